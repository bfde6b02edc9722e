"""How rows of several inputs share one row, so that one shuffle carries them.

Columns of different inputs that have the same type take turns in one slot:

    left  (id long, item string)          tag │ slot 0 long │ slot 1 string │ slot 2 date
    right (id long, day date)       ──▶    0  │ left id     │ left item     │ null
                                           1  │ right id    │ null          │ right day

The tag says whose row it is and to which group of keys it belongs: the group times the number of kinds of rows, plus
the kind. There is a kind for each input (for each role that its rows can have, if there are several); where groups
without rows of their own are to be woken, one for rows that do nothing else; and where inputs may give signs of life,
one for those of each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.errors import ProtocolError

T = TypeVar("T")

TAG = "tag"


@dataclass(frozen=True)
class RowLayout:
    """Which slot each column of each input is carried in.

    >>> layout = RowLayout.of(["long", "string"], ["long", "date"])
    >>> layout.slots, layout.count
    (((0, 1), (0, 2)), 3)
    """

    slots: tuple[tuple[int, ...], ...]
    count: int
    wakes: bool = False
    """Whether there are rows that only wake their group."""
    roles: int = 1
    """What rows of one input can be, in different groups."""
    ticks: bool = False
    """Whether there are rows that only say that their input is there, and perhaps how far it has come."""

    @classmethod
    def of(cls, *inputs: Sequence[T], wakes: bool = False, roles: int = 1, ticks: bool = False) -> RowLayout:
        """A layout for inputs with columns of these types."""
        types: list[T] = []
        places = []
        for columns in inputs:
            free = list(range(len(types)))
            taken = []
            for wanted in columns:
                shared = next((slot for slot in free if types[slot] == wanted), None)
                if shared is None:
                    shared = len(types)
                    types.append(wanted)
                else:
                    free.remove(shared)
                taken.append(shared)
            places.append(tuple(taken))
        return cls(tuple(places), len(types), wakes, roles, ticks)

    @property
    def kinds(self) -> int:
        """How many kinds of rows there are."""
        return self.first_tick + len(self.slots) * self.ticks

    @property
    def first_tick(self) -> int:
        """The kind of the first input's signs of life."""
        return len(self.slots) * self.roles + self.wakes

    def column_in(self, number: int, slot: int) -> int | None:
        """Which column of an input is carried in a slot; None if none is."""
        return self.slots[number].index(slot) if slot in self.slots[number] else None

    def split(
        self, batch: pa.RecordBatch, schemas: Sequence[pa.Schema], group: int | None
    ) -> tuple[int, list[tuple[int, pa.RecordBatch]]]:
        """A batch as it comes from the shuffle, as the group it is of and its rows, those of each input together."""
        tags = batch.column(0).to_numpy()
        found, kinds = self.kinds_of(tags, group)
        counts = np.bincount(kinds, minlength=self.kinds)
        pieces = []
        for number in np.flatnonzero(counts[: len(self.slots)]).tolist():
            own = batch if counts[number] == len(kinds) else batch.filter(pa.array(kinds == number))
            pieces.append((number, self.rows_of(own, number, schemas)))
        return found, pieces

    def kinds_of(self, tags: NDArray[Any], group: int | None) -> tuple[int, NDArray[Any]]:
        """The group that rows are of, which must be one and the same, and the kind of each."""
        found = int(tags[0]) // self.kinds
        kinds = tags - found * self.kinds
        if kinds.min() < 0 or kinds.max() >= self.kinds or group not in (None, found):
            raise ProtocolError(
                f"a task was given rows of group {group if group is not None else found} and of another; "
                f"nothing may repartition the rows between the union and the join"
            )
        return found, kinds

    def ticks_of(self, batch: pa.RecordBatch, schemas: Sequence[pa.Schema]) -> list[tuple[int, pa.RecordBatch]]:
        """The signs of life in a batch, those of each input together."""
        if not self.ticks:
            return []
        kinds = batch.column(0).to_numpy() % self.kinds
        signs = [(number, kinds == self.first_tick + number) for number in range(len(self.slots))]
        return [
            (number, self.rows_of(batch.filter(pa.array(own)), number, schemas)) for number, own in signs if own.any()
        ]

    def rows_of(self, batch: pa.RecordBatch, number: int, schemas: Sequence[pa.Schema]) -> pa.RecordBatch:
        """A batch as it comes from the shuffle, all of one input, as rows of that input."""
        arrays = [batch.column(slot + 1) for slot in self.slots[number]]
        columns = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, schemas[number], strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schemas[number])
