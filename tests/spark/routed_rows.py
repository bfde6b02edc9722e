"""Rows on their way to tasks that a master chose for them, as Spark delivers them: for tests without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.records.times import WindowCodec, WindowPlan
from watersmeet.spark.io.source import END
from watersmeet.spark.plan.control_rows import SIGN_CODES
from watersmeet.spark.plan.row_layout import RowLayout
from watersmeet.spark.rebalance.routing import KINDS
from watersmeet.spark.task.placement import Placement

Keys = Callable[[int, pa.RecordBatch], Sequence[int | None]]
"""The hash of each row's key, of a side; None for rows that meet nothing."""
_PIECE = 60
"""Rows that come at once."""
_ANY_HASH = 42
"""Of signs, which belong to no key."""


def numbered_keys(spec: JoinSpec) -> Keys:
    """Hashes as they are where Spark sends rows by number."""
    placement = Placement(spec, by_id=True)
    return lambda side, rows: placement.hashes([rows.column(name) for name in spec.keys(side)]).tolist()


def hashed_keys(spec: WindowJoinSpec) -> Keys:
    """Hashes as they are where Spark sends rows by the hash of their key; rows without a time meet nothing."""
    codec = WindowCodec(spec)
    plans = [WindowPlan(spec, side, codec) for side in (0, 1)]

    def keys(side: int, rows: pa.RecordBatch) -> list[int | None]:
        hashes, valid = codec.hash(side, plans[side].key_arrays(rows))
        assert spec.window.time is not None
        known = rows.column(spec.window.time[side]).is_valid().to_numpy(zero_copy_only=False)
        known = known if valid is None else known & valid
        words = hashes.view(np.uint64).astype(np.uint32).view(np.int32).tolist()
        return [word if fine else None for word, fine in zip(words, known.tolist(), strict=True)]

    return keys


@dataclass(frozen=True)
class RoutedRows:
    """What comes to each slot of a join's batches, with some wakes among the rows of windows."""

    spec: JoinSpec
    groups: int
    keys: Keys
    signed: bool = False
    """Whether a column tells rows from signs."""
    chances: Callable[[pa.RecordBatch], Iterable[int]] = lambda rows: range(rows.num_rows)
    """A number of each row: which of the ways of its key it goes, where there are several."""
    layout: RowLayout = field(init=False)

    def __post_init__(self) -> None:
        types = ([each.type for each in self.spec.input(side)] for side in (0, 1))
        object.__setattr__(self, "layout", RowLayout.of(*types, wakes=True, roles=3))
        assert self.layout.kinds == KINDS

    def delivered(
        self, slot: int, tables: Sequence[pa.RecordBatch], routing: Any, ended: Sequence[int] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slot, and the signs of the inputs that have ended."""
        hot, slots = dict(routing["hot"]), routing["slots"]
        wakes = routing["wakes"] if isinstance(self.spec, WindowJoinSpec) else []
        for side, table in enumerate(tables):
            rows, tags, hashes = [], [], []
            for row, (key, chance) in enumerate(zip(self.keys(side, table), self.chances(table), strict=True)):
                if key is None:
                    continue
                places = [{"place": key % self.groups, "kind": side}]
                if key in hot:
                    places = hot[key][side][chance % len(hot[key][side])]
                for place in [*places, *(wakes if chance % 5 == 0 else [])]:
                    if slots[place["place"]] == slot:
                        rows.append(row)
                        tags.append(_tag(place))
                        hashes.append(key)
            yield from self._pieces(table.take(pa.array(rows, pa.int64())), side, tags, hashes, 0)
            if side in ended:
                own = [each for each in routing["signs"][side] if slots[each["place"]] == slot]
                nothing = pa.RecordBatch.from_arrays(
                    [pa.nulls(len(own), each.type) for each in table.schema], schema=table.schema
                )
                tags = [_tag(each) for each in own]
                yield from self._pieces(nothing, side, tags, [_ANY_HASH] * len(own), SIGN_CODES[END])

    def _pieces(
        self, own: pa.RecordBatch, side: int, tags: list[int], hashes: list[int], sign: int
    ) -> Iterator[pa.RecordBatch]:
        arrays = [pa.array(tags, pa.int32())]
        for number in range(self.layout.count):
            column = self.layout.column_in(side, number)
            arrays.append(own.column(column) if column is not None else pa.nulls(own.num_rows, self._type(number)))
        arrays.append(pa.array(hashes, pa.int32()))
        if self.signed:
            arrays.append(pa.array([sign] * own.num_rows, pa.int8()))
        whole = pa.RecordBatch.from_arrays(arrays, [str(i) for i in range(len(arrays))])
        for start in range(0, whole.num_rows, _PIECE):
            yield whole.slice(start, _PIECE)

    def _type(self, number: int) -> pa.DataType:
        columns = (self.layout.column_in(side, number) for side in (0, 1))
        side, column = next((side, column) for side, column in enumerate(columns) if column is not None)
        return self.spec.input(side).field(column).type


def _tag(place: Any) -> int:
    return int(place["place"] * KINDS + place["kind"])
