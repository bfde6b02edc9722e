"""Rows that arrive on an input of whose keys something is known: they can be asked for their keys."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.core.errors import PromiseError
from watersmeet.engine.arrival import Arrival
from watersmeet.joins.progressive.knowledge import key_text
from watersmeet.records.patterns import plain_array


class KeyedArrival(Arrival):
    """A batch on its way into memory, whose keys can be had in plain types."""

    def keys(self, first: int, count: int) -> list[pa.Array]:
        """The key columns of some rows, in plain types."""
        positions = self.positions
        columns = [plain_array(column) for column in self._join.plans[self.input].key_arrays(self.batch)]
        if positions is not None:
            return [column.take(pa.array(positions[first : first + count])) for column in columns]
        return [column.slice(first, count) for column in columns]

    def row_number(self, row: int) -> int:
        """The number of a row in its input."""
        return int(self.numbers[row if self.positions is None else self.positions[row]])

    def broken_word(self, row: int, remedy: str) -> PromiseError:
        """An error that names a row which was promised not to come."""
        spec = self._join.spec
        name = spec.names[self.input]
        told = key_text(spec, self.input, self.keys(row, 1), 0)
        number = self.row_number(row)
        return PromiseError(
            f"row {number:,} of {name} has {told}, which {name} had promised not to send any more; {remedy}"
        )
