"""Pairs found and not yet handed out, and how they become output batches; and rows that have found nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Numbers
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.kernels import gather
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan, Rows, TableRows, gather_all
from watersmeet.records.types import widened

PAIR_BYTES = 96
"""Of each place in the buffer: the pair itself, and the scratch arrays of filtering and measuring."""
_LEAST_ROOM = 64
_ABOUT = 2
"""If so many times the pairs that surely fit would fit at most, those will do."""


@dataclass(slots=True)
class Between:
    """Where the rows of the buffered pairs lie: the rows that were looked up, and the table they were looked up in.

    Without a table, those of `probe` have found nobody: the buffer has their numbers there, and no pairs.
    """

    probe_side: int
    probe: Rows
    table: Rows | None


class Marking(Protocol):
    """Who has found a partner: see `matching.matched`."""

    def mark(self, side: int, source: Rows, numbers: Numbers) -> Bool:
        """Rows have partners; tells which had none before, of rows that occur twice the first."""
        ...

    def mark_some(self, side: int, source: Rows, numbers: Numbers) -> Bool:
        """The same, of some of the first of them alone if there is no more room on disk."""
        ...

    def unmarked(self, side: int, source: Rows, numbers: Numbers) -> Bool:
        """Which rows have no partner yet."""
        ...


Sides = Sequence[tuple[Rows, Numbers]]
"""The rows of some pairs, of each side: where they lie, and their numbers there."""


class PairBuffer:
    """A fixed number of pairs (row looked up, row found), and the output batches made of them."""

    def __init__(
        self, spec: JoinSpec, codec: KeyCodec, plans: tuple[RowPlan, ...], capacity: int, wide: bool = False
    ) -> None:
        """With `wide`, rows that were found are numbered with their source in the upper half of a word."""
        self._spec = spec
        self._schema = spec.schema
        self._kind = spec.kind
        self._codec = codec
        self._plans = plans
        self.matched: Marking | None = None
        """Who is told of rows that have found a partner; nobody, if only pairs matter."""
        self._outputs = [tuple(plan.outputs) for plan in plans]
        keys = [tuple(plan.keys) for plan in plans]
        counts = spec.output is Output.COUNTS
        # What comes out of half a pair is known only when it is known to be one.
        keys_first = counts or self._kind.one_sided
        self._wanted = keys if keys_first else [tuple(dict.fromkeys([*plan.outputs, *plan.keys])) for plan in plans]
        self._changed = [
            {each for each in (*plan.outputs, *plan.keys) if plan.types[each] != plan.original_type(each)}
            for plan in plans
        ]
        """Of each side, the columns that are stored as another type than their own."""
        self._columns = _columns_of(spec, plans)
        self._of_pairs = _columns_of_pairs(spec, plans, self._columns)
        self._has_dictionaries = any(pa.types.is_dictionary(field.type) for field in spec.left)
        self.probes = np.empty(capacity, np.int32)
        self.rows: Numbers = np.empty(capacity, np.int64 if wide else np.int32)
        self.widest = [0, 0]
        """The widest row of each side so far."""
        self.room = capacity
        """How many pairs a look-up is to find at a time: about as many as one output batch can hold."""
        self.first = 0
        self.count = 0
        """Pairs from `first` to `count` wait to be handed out."""
        self._done = 0
        """How many of the pairs that are being handed out are done with."""

    @property
    def waiting(self) -> int:
        """Pairs not yet handed out."""
        return self.count - self.first

    def clear(self) -> None:
        """Make the whole buffer free."""
        self.first = self.count = 0

    def filter(self, fresh: Bool, start: int = 0) -> None:
        """Keep only the pairs that are fresh, of those from `start` on."""
        self.count = start + int(gather.keep(fresh, self.probes[start : self.count], self.rows[start : self.count]))

    def take(self, between: Between, limit: int) -> tuple[pa.RecordBatch | None, int]:
        """Hand out waiting pairs, as many as fit into `limit` bytes, at least one: the batch, and how many pairs it
        has.

        Pairs whose hashes agree and whose keys do not are dropped here.
        """
        probes, rows = self.probes[self.first : self.count], self.rows[self.first : self.count]
        if between.table is None:
            sides: list[tuple[Rows, Numbers]] = [(between.probe, rows)]
            plans = [self._plans[between.probe_side]]
        else:
            sides, plans = [(between.probe, probes), (between.table, rows)], list(self._plans)
            if between.probe_side:
                sides.reverse()
        fit = self._fitting(sides, plans, limit)
        while True:
            try:
                some = [(source, numbers[:fit]) for source, numbers in sides]
                self._done = fit
                batch, count = self._build(some) if len(some) == 2 else self._build_alone(between.probe_side, some[0])
                fit = self._done
                break
            except OverflowError:
                # More distinct values than a small dictionary index can number: a smaller batch has fewer.
                fit //= 2
                if not fit:
                    raise
        self._settle_room(fit, limit)
        self.first += fit
        if self.first == self.count:
            self.clear()
        return batch, count

    def _settle_room(self, fit: int, limit: int) -> None:
        """Find as many pairs the next time as went out together; a few left over would cost a batch of their own."""
        if self.first:
            return  # a rest says nothing about the whole
        sure = self._surely_fitting(limit)
        if fit < self.count:
            self.room = min(len(self.probes), max(_LEAST_ROOM, fit if fit == sure else fit - fit // 16))
        elif fit >= self.room and not sure <= self.room < _ABOUT * sure:
            self.room = min(len(self.probes), self.room + self.room // 128 + 1)

    def _surely_fitting(self, limit: int) -> int:
        """How many pairs fit in any case, by the widest rows so far."""
        return limit // max(1, sum(self.widest))

    def _fitting(self, sides: Sides, plans: Sequence[RowPlan], limit: int) -> int:
        count = len(sides[0][1])
        sure = self._surely_fitting(limit)
        if count <= sure or (self._spec.output is Output.COUNTS and self._codec.exact):
            return count
        if count < _ABOUT * sure:
            return sure  # to measure each, where they lie on disk, would take longer than another batch
        widths = np.zeros(count, np.int64)
        for (source, numbers), plan in zip(sides, plans, strict=True):
            for column in {*plan.outputs, *plan.keys}:
                source.widen(column, numbers, widths)
        return int(gather.fitting(widths, limit))

    def _build(self, sides: Sides) -> tuple[pa.RecordBatch | None, int]:
        if self._kind.one_sided:
            return self._build_half(sides)
        count = len(sides[0][1])
        counts = self._spec.output is Output.COUNTS
        if counts and self._codec.exact:
            self._mark(sides)
            return None, count
        arrays = self._gathered(sides, self._wanted)
        if not self._codec.exact:
            equal = self._equal(arrays)
            if equal is not None:
                count = int(np.count_nonzero(equal))
                # Arrow cannot filter every type, but every type can be gathered.
                sides = [(source, numbers[equal]) for source, numbers in sides]
            if counts or not count:
                self._mark(sides)
                return None, count
            if equal is not None:
                arrays = self._gathered(sides, self._outputs)
        batch = self._put_together(arrays, count)
        self._mark(sides)
        return batch, count

    def _mark(self, sides: Sides) -> None:
        """Rows of pairs that are handed out have partners. Whatever may fail was done before."""
        if self.matched is not None:
            for side, tracked in enumerate(self._kind.tracked):
                if tracked and len(sides[side][1]):
                    self.matched.mark(side, *sides[side])

    def _build_half(self, sides: Sides) -> tuple[pa.RecordBatch | None, int]:
        """Left rows that have found their first partner: they come out (`semi`), or will not (`anti`)."""
        assert self.matched is not None
        some = self.matched.unmarked(0, *sides[0])
        places = np.flatnonzero(some)
        if not some.all():
            sides = [(source, numbers[some]) for source, numbers in sides]
        if not self._codec.exact and len(sides[0][1]):
            equal = self._equal(self._gathered(sides, self._wanted))
            if equal is not None:
                places, sides = places[equal], [(source, numbers[equal]) for source, numbers in sides]
        source, numbers = sides[0]
        if not len(numbers):
            return None, 0
        if not self._kind.gives_matched:
            self.matched.mark(0, source, numbers)
            return None, 0
        built = None
        if self._has_dictionaries:
            # Where a batch may turn out to be too large, rows are marked when it is there.
            firsts = _first_of_each(source, numbers)
            places, numbers = places[firsts], numbers[firsts]
            built = self._build_alone(0, (source, numbers))
        fresh = self.matched.mark_some(0, source, numbers)
        if len(fresh) < len(numbers):  # the disk is full: whoever is marked by now comes out, the others next time
            self._done, built = int(places[len(fresh)]), None
        return built or self._build_alone(0, (source, numbers[: len(fresh)][fresh]))

    def _build_alone(self, side: int, rows: tuple[Rows, Numbers]) -> tuple[pa.RecordBatch | None, int]:
        """Rows of one side, beside nobody."""
        count = len(rows[1])
        if self._spec.output is Output.COUNTS or not count:
            return None, count
        arrays: list[dict[int, pa.Array]] = [{}, {}]
        arrays[side] = self._originals(side, rows, self._outputs[side])
        return self._put_together(arrays, count), count

    def _equal(self, arrays: Sequence[Mapping[int, pa.Array]]) -> Bool | None:
        """Which pairs have truly equal keys; None: all."""
        keys = [[arrays[side][column] for column in self._plans[side].keys] for side in (0, 1)]
        return self._codec.equal(*keys)

    def _put_together(self, arrays: Sequence[Mapping[int, pa.Array]], count: int) -> pa.RecordBatch:
        """A batch of what was gathered of each side, with NULLs in the place of a side of which nothing was."""
        if arrays[0] and arrays[1]:
            columns = [
                arrays[side][place] if field is None else self._of_both(side, arrays[side][place], field)
                for side, place, field in self._of_pairs
            ]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        columns = []
        for places, field in zip(self._columns, self._schema, strict=True):
            side, place = next((each for each in places if each[1] in arrays[each[0]]), places[0])
            if place in arrays[side]:
                column = arrays[side][place]
                columns.append(column if column.type == field.type else self._of_both(side, column, field))
            else:
                plan = self._plans[side]
                columns.append(plan.original(place, pa.nulls(count, plan.types[place])))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _of_both(self, side: int, column: pa.Array, field: pa.Field) -> pa.Array:
        """A key of both inputs, which is of one of them here, in the type of the output."""
        try:
            return widened(column, field.type)
        except pa.ArrowInvalid as error:
            (mine, other), name = (self._spec.names[each] for each in (side, 1 - side)), field.name
            types = [self._spec.input(each).field(name).type for each in (side, 1 - side)]
            raise SpecError(
                f"how='full' makes one column of {name!r} of {mine} ({types[0]}) and of {other} ({types[1]}), and a "
                f"value of {mine} is beyond {field.type}; cast both to a coarser unit of time first, or "
                f"give one of them another name"
            ) from error

    def _gathered(self, sides: Sides, wanted: Sequence[tuple[int, ...]]) -> list[dict[int, pa.Array]]:
        """Columns of both sides in their own types, by their numbers."""
        return [self._originals(side, sides[side], wanted[side]) for side in (0, 1)]

    def _originals(self, side: int, rows: tuple[Rows, Numbers], columns: tuple[int, ...]) -> dict[int, pa.Array]:
        """Columns of a side in their own types, by their numbers."""
        gathered = dict(zip(columns, gather_all(rows[0], columns, rows[1]), strict=True))
        for column in self._changed[side].intersection(columns):
            gathered[column] = self._plans[side].original(column, gathered[column])
        return gathered


def _columns_of(spec: JoinSpec, plans: Sequence[RowPlan]) -> list[list[tuple[int, int]]]:
    """Of each column of the output, the sides that have it, and which of what is stored of them it is."""
    if spec.output is Output.COUNTS:
        return []
    if spec.output is Output.PAIRS:
        return [[(side, plan.outputs[0])] for side, plan in enumerate(plans) if plan.outputs]
    return [
        [
            (side, plans[side].outputs[spec.kept[side].index(place)])
            for side, place in enumerate(column)
            if place is not None
        ]
        for column in spec.columns
    ]


def _columns_of_pairs(
    spec: JoinSpec, plans: Sequence[RowPlan], columns: Sequence[Sequence[tuple[int, int]]]
) -> list[tuple[int, int, pa.Field | None]]:
    """Of each column of pairs, the side that has it, which of what is stored of that side it is, and the field of
    whose type it becomes; None if it has it.
    """
    found: list[tuple[int, int, pa.Field | None]] = []
    for ((side, place), *_), field in zip(columns, spec.schema if columns else (), strict=True):
        found.append((side, place, None if plans[side].original_type(place) == field.type else field))
    return found


def _first_of_each(source: Rows, numbers: Numbers) -> Numbers:
    """Where each row occurs first."""
    if isinstance(source, TableRows):
        numbers = source.in_table(numbers)[1]
    return np.sort(np.unique(numbers, return_index=True)[1])
