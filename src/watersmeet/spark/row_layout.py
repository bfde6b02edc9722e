"""How rows of both inputs share one row, so that one shuffle carries them.

A column of the left input and one of the right that have the same type take turns in one slot:

    left  (id long, item string)          tag │ slot 0 long │ slot 1 string │ slot 2 date
    right (id long, day date)       ──▶    0  │ left id     │ left item     │ null
                                           1  │ right id    │ null          │ right day

The tag says whose row it is and to which group of keys it belongs: twice the group, plus one for the right input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from watersmeet.core.errors import ProtocolError

T = TypeVar("T")
Halves: TypeAlias = "tuple[pa.RecordBatch | None, pa.RecordBatch | None]"

TAG = "tag"


@dataclass(frozen=True)
class RowLayout:
    """Which slot each column of each input is carried in.

    >>> layout = RowLayout.of(["long", "string"], ["long", "date"])
    >>> layout.slots, layout.count
    (((0, 1), (0, 2)), 3)
    """

    slots: tuple[tuple[int, ...], tuple[int, ...]]
    count: int

    @classmethod
    def of(cls, left: Sequence[T], right: Sequence[T]) -> RowLayout:
        """A layout for columns of these types."""
        free = list(range(len(left)))
        count = len(left)
        places = []
        for wanted in right:
            shared = next((slot for slot in free if left[slot] == wanted), None)
            if shared is None:
                places.append(count)
                count += 1
            else:
                free.remove(shared)
                places.append(shared)
        return cls((tuple(range(len(left))), tuple(places)), count)

    def column_in(self, side: int, slot: int) -> int | None:
        """Which column of a side is carried in a slot; None if none is."""
        return self.slots[side].index(slot) if slot in self.slots[side] else None

    def split(self, batch: pa.RecordBatch, schemas: Sequence[pa.Schema], group: int | None) -> tuple[int, Halves]:
        """A batch as it comes from the shuffle, as the group it is of and the rows of either side (None: no row)."""
        tags = batch.column(0).to_numpy()
        sides = tags & 1
        found = int(tags[0]) >> 1
        if (tags >> 1 != found).any() or group not in (None, found):
            raise ProtocolError(
                f"a task was given rows of group {group if group is not None else found} and of another; "
                f"nothing may repartition the rows between the union and the join"
            )
        rights = int(np.count_nonzero(sides))
        if rights in (0, len(tags)):
            only = self._rows(batch, int(rights > 0), schemas)
            return found, (None, only) if rights else (only, None)
        masks = [pa.array(sides == side) for side in (0, 1)]
        left, right = (self._rows(batch.filter(masks[side]), side, schemas) for side in (0, 1))
        return found, (left, right)

    def _rows(self, batch: pa.RecordBatch, side: int, schemas: Sequence[pa.Schema]) -> pa.RecordBatch:
        arrays = [batch.column(slot + 1) for slot in self.slots[side]]
        columns = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, schemas[side], strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schemas[side])
