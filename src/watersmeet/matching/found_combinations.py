"""Combinations of rows of several inputs: where each row lies, and how combinations become output batches.

A row of an input is told by one number: which source holds it (the table in memory, the batch at hand, or a run on
disk) and its place there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import Output
from watersmeet.kernels import addressed as kernels
from watersmeet.kernels import combinations, gather
from watersmeet.records.addressed import Layout, Picture
from watersmeet.records.attributes import AttributeCodec
from watersmeet.records.plan import BatchRows, RowPlan
from watersmeet.runs.multi_catalogue import ManyRun, ManyRuns
from watersmeet.runs.presence import FOREVER, NOT_ON_DISK
from watersmeet.runs.stretches import TakenStrings
from watersmeet.tables.multi_hash_table import ManySide
from watersmeet.tables.multi_range_table import ManySorted

if TYPE_CHECKING:
    from watersmeet.matching.many_rows import ManyRows

ManyTable: TypeAlias = ManySide | ManySorted
"""One of several inputs' rows in memory."""
TABLE, BATCH, FIRST_RUN = 0, 1, 2
_SHIFT = 32
_ALL = slice(None)


def places(source: int, rows: Int32) -> Int64:
    """The numbers of rows of one source."""
    return rows.astype(np.int64) | (source << _SHIFT)


def extended(ids: Int64, probes: Int32, source: int, rows: Numbers, drivers: Int32) -> tuple[Int64, Int32]:
    """Partial combinations, some of them perhaps several times, with a row of one more input; and their drivers."""
    more = np.empty((len(ids) + 1, len(probes)), np.int64)
    more_drivers = np.empty(len(probes), np.int32)
    combinations.extend(ids, probes, rows, source << _SHIFT, drivers, more, more_drivers)
    return more, more_drivers


def in_table(ids: Int64) -> Int32:
    """The row numbers of those that are in the table."""
    rows: Int32 = ids[ids >> _SHIFT == TABLE].astype(np.int32)
    return rows


class Passing(BatchRows):
    """Rows that arrive and need not be kept."""

    def __init__(self, columns: Sequence[pa.Array], hashes: list[Int64], ticks: Int64) -> None:
        super().__init__(columns)
        self._hashes = hashes
        self._ticks = ticks

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's hashes of some rows."""
        return self._hashes[attribute][rows]

    def ticks(self, rows: Int32) -> Int64:
        """When some rows arrived."""
        return self._ticks[rows]


@dataclass(slots=True)
class InputRows:
    """All rows of one input that combinations can be made of."""

    table: ManyTable
    disk: ManyRuns
    batch: Passing | None = None

    def _source(self, number: int) -> ManyTable | Passing | ManyRun:
        if number == TABLE:
            return self.table
        if number == BATCH:
            assert self.batch is not None
            return self.batch
        return self.disk.runs[number - FIRST_RUN]

    def _by_source(self, ids: Int64) -> Iterator[tuple[int, slice | Int64, Int32]]:
        """Sources, which of the rows each has, and their places there."""
        if not len(ids):
            return
        rows = np.empty(len(ids), np.int32)
        first = combinations.untag(ids, _SHIFT, rows)
        if first >= 0:
            yield first, _ALL, rows
            return
        sources = ids >> _SHIFT
        for source in np.unique(sources):
            at = np.flatnonzero(sources == source)
            yield int(source), at, rows[at]

    def attribute_hashes(self, attribute: int, ids: Int64) -> Int64:
        """One attribute's hashes."""
        out = np.empty(len(ids), np.int64)
        for source, at, rows in self._by_source(ids):
            if at is _ALL:
                return self._source(source).attribute_hashes(attribute, rows)
            out[at] = self._source(source).attribute_hashes(attribute, rows)
        return out

    def words(self, column: int, ids: Int64) -> Int64:
        """The values of a stored column of 64-bit words without NULL."""
        out = np.empty(len(ids), np.int64)
        for source, at, rows in self._by_source(ids):
            out[at] = self._source(source).gather(column, rows).to_numpy(zero_copy_only=False)
        return out

    def stays(self, ids: Int64) -> tuple[Int64, Int64, Int64]:
        """When the rows arrived in memory and left it, and their ordinals on disk."""
        arrived = np.empty(len(ids), np.int64)
        departed = np.full(len(ids), FOREVER)
        ordinals = np.full(len(ids), NOT_ON_DISK)
        for number, at, rows in self._by_source(ids):
            source = self._source(number)
            arrived[at] = source.ticks(rows)
            if isinstance(source, ManyRun):
                departed[at] = source.departures(rows)
                ordinals[at] = rows.astype(np.int64) + source.first_ordinal
        return arrived, departed, ordinals

    def gather_columns(self, columns: Sequence[int], ids: Int64) -> list[pa.Array]:
        """The values of some stored columns."""
        if not columns:
            return []
        pieces = []
        back = np.empty(len(ids), np.int64)
        taken = 0
        for number, at, rows in self._by_source(ids):
            source = self._source(number)
            pieces.append([source.gather(column, rows) for column in columns])
            if at is _ALL:
                return pieces[0]
            back[at] = np.arange(taken, taken + len(rows))
            taken += len(rows)
        order = pa.array(back)
        return [pa.concat_arrays(each).take(order) for each in zip(*pieces, strict=True)]

    def widen(self, column: int, rows: Int64, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        for source, at, numbers in self._by_source(rows):
            some = np.zeros(len(numbers), np.int64)
            self._source(source).widen(column, numbers, some)
            widths[at] += some


class Combined(Protocol):
    """Rows of one input, as combinations tell them."""

    def gather_columns(self, columns: Sequence[int], ids: Int64) -> list[pa.Array]:
        """The values of some stored columns."""
        ...

    def widen(self, column: int, rows: Int64, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        ...


class CombinationBuffer:
    """Combinations found and not yet handed out, and the output batches made of them."""

    def __init__(self, spec: MultiSpec, codec: AttributeCodec, plans: Sequence[RowPlan]) -> None:
        self._spec = spec
        self._codec = codec
        self._plans = plans
        self._to_verify = [number for number, exact in enumerate(codec.exact) if not exact]
        self._ids = np.empty((len(plans), 0), np.int64)
        self.gather_together: Callable[[Int64], list[pa.Array] | None] | None = None
        """Gathers what all inputs have of some combinations in one pass, or says that it cannot."""
        self.widest = [0] * len(plans)
        """The widest row of each input so far."""
        self.in_results: Callable[[Int64], None] | None = None
        """Who is told of rows of the preserved input that are in results, if there is one."""
        self._alone = False
        """Whether what waits are rows of the preserved input alone."""

    @property
    def waiting(self) -> int:
        """Combinations not yet handed out."""
        return self._ids.shape[1]

    def fill(self, ids: Int64) -> None:
        """Put combinations into the empty buffer: a row number of each input, one column for each combination."""
        assert not self.waiting
        self._ids, self._alone = ids, False

    def fill_alone(self, ids: Int64) -> None:
        """Put rows of the preserved input into the empty buffer that are in no result: they come out alone."""
        assert not self.waiting
        self._ids, self._alone = ids[np.newaxis], True

    def clear(self) -> None:
        """Forget all combinations."""
        self._ids = self._ids[:, :0]

    def take(self, inputs: Sequence[Combined], limit: int) -> tuple[pa.RecordBatch | None, int, int]:
        """Hand out combinations, as many as fit into `limit` bytes, at least one: the batch, how many results it has,
        and how many combinations were taken.

        Combinations whose hashes agree and whose values do not are dropped here.
        """
        fit = self._fitting(inputs, limit)
        while True:
            try:
                some = self._ids[:, :fit]
                batch, count = self._build_alone(inputs, some[0]) if self._alone else self._build(inputs, some)
                break
            except OverflowError:  # more distinct values than a small dictionary index can number
                fit //= 2
                if not fit:
                    raise
        self._ids = self._ids[:, fit:]
        return batch, count, fit

    def _fitting(self, inputs: Sequence[Combined], limit: int) -> int:
        count = self.waiting
        if count * sum(self.widest) <= limit or (self._spec.output is Output.COUNTS and not self._to_verify):
            return count
        widths = np.zeros(count, np.int64)
        plans = self._plans
        if self._alone:
            assert self._spec.preserved is not None
            inputs, plans = [inputs[self._spec.preserved]], [plans[self._spec.preserved]]
        for rows, ids, plan in zip(inputs, self._ids, plans, strict=True):
            for column in {*plan.outputs, *plan.keys}:
                rows.widen(column, ids, widths)
        return int(gather.fitting(widths, limit))

    def _build(self, inputs: Sequence[Combined], ids: Int64) -> tuple[pa.RecordBatch | None, int]:
        equal = self._verified(inputs, ids)
        if equal is not None:
            ids = ids[:, equal]
        count = ids.shape[1]
        if self._spec.output is Output.COUNTS or not count:
            self._tell(ids)
            return None, count
        arrays = None if self.gather_together is None else self.gather_together(ids)
        if arrays is None:
            each = zip(inputs, ids, self._plans, strict=True)
            arrays = [array for rows, mine, plan in each for array in rows.gather_columns(plan.outputs, mine)]
        outputs = ((plan, column) for plan in self._plans for column in plan.outputs)
        columns = [plan.original(column, array) for (plan, column), array in zip(outputs, arrays, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
        self._tell(ids)
        return batch, count

    def _tell(self, ids: Int64) -> None:
        """These results are handed out. Whatever may fail was done before."""
        if self.in_results is not None and ids.shape[1]:
            assert self._spec.preserved is not None
            self.in_results(ids[self._spec.preserved])

    def _build_alone(self, inputs: Sequence[Combined], ids: Int64) -> tuple[pa.RecordBatch | None, int]:
        """Rows of the preserved input, with NULLs in the place of all others."""
        count, preserved = len(ids), self._spec.preserved
        if self._spec.output is Output.COUNTS:
            return None, count
        assert preserved is not None
        columns = []
        for number, plan in enumerate(self._plans):
            arrays = [pa.nulls(count, plan.types[column]) for column in plan.outputs]
            if number == preserved:
                arrays = inputs[number].gather_columns(plan.outputs, ids)
            columns += [plan.original(column, array) for column, array in zip(plan.outputs, arrays, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.schema), count

    def _verified(self, inputs: Sequence[Combined], ids: Int64) -> Bool | None:
        """Which combinations have truly equal values at both ends of all edges; None if all have."""
        verified: Bool | None = None
        for number in self._to_verify:
            edge = self._spec.edges[number]
            values = []
            for side in (0, 1):
                at = edge.input(side)
                plan = self._plans[at]
                column = plan.keys[self._spec.attribute_of(number, side)]
                values += [plan.original(column, array) for array in inputs[at].gather_columns([column], ids[at])]
            equal = self._codec.equal(number, *values)
            if equal is not None:
                verified = equal if verified is None else verified & equal
        return verified


class Together:
    """Some columns of each input, wherever their rows lie, in memory or in runs, gathered in one pass.

    Of few results, calls would take longer than copying.
    """

    def __init__(self, inputs: Sequence[ManyRows], columns: Sequence[Sequence[int]]) -> None:
        self._inputs = inputs
        of_all = [(number, column) for number, each in enumerate(columns) for column in each]
        self._inputs_of = np.array([number for number, _ in of_all], np.int32)
        self._columns = np.array([column for _, column in of_all], np.int32)
        self._widths = np.array([inputs[number].widths[column] for number, column in of_all], np.int32)
        types = [inputs[number].types[column] for number, column in of_all]
        self._picture = Picture(range(len(of_all)), types, self._widths)
        self._of_all = of_all
        self._counts = [len(each) for each in columns]

    def gather(self, ids: Int64) -> list[pa.Array] | None:
        """The columns of some combinations; None where that cannot be done at once: rows pass by, or columns have no
        plain layout.
        """
        picture, count = self._picture, ids.shape[1]
        if picture.others or not count or (ids[:, 0] >> 32 == BATCH).any():
            return None
        ids = np.ascontiguousarray(ids)
        for rows, mine in zip(self._inputs, ids, strict=True):
            if rows.resident.room is None:
                rows.check_rows(mine)
        layout = picture.layout(count, [self._inputs[number].may_be_null(column) for number, column in self._of_all])
        buffer = pa.allocate_buffer(layout.fixed_bytes)
        layout.place(buffer.address)
        if any(rows.on_disk for rows in self._inputs):
            taken = self._gather_forward(ids, layout)
            if taken is None:
                return None
            strings = taken.place(layout)
        else:
            strings = self._gather(ids, layout)
        return [layout.array(k, buffer, strings) for k in range(len(self._of_all))]

    def _gather(self, ids: Int64, layout: Layout) -> pa.Buffer | None:
        """All rows are in memory."""
        strings = None
        if self._picture.strings:
            self._measure(ids, layout.firsts, layout.sizes)
            strings = pa.allocate_buffer(layout.place_strings())
            layout.place_bytes(strings.address)
        sources = [rows.sources for rows in self._inputs]
        bases = np.cumsum([0, *map(len, sources[:-1])])
        words = layout.out, layout.nulls
        kernels.gather_together(
            np.concatenate(sources), bases, self._widths, self._columns, self._inputs_of, ids, *words
        )  # fmt: skip
        return strings

    def _gather_forward(self, ids: Int64, layout: Layout) -> TakenStrings | None:
        """Rows of runs are read forward, input by input; None if there is no room for their strings."""
        room = self._inputs[0].resident.room
        if room is None:
            return None
        taken = TakenStrings(room, self._picture, ids.shape[1])
        start = 0
        for rows, mine, count in zip(self._inputs, ids, self._counts, strict=True):
            columns = self._columns[start : start + count]
            if not taken.gather(rows.resident.stretches, rows, columns, mine, layout, start):
                return None
            start += count
        return taken

    def _measure(self, ids: Int64, firsts: Int64, sizes: Int64) -> None:
        for k in self._picture.strings:
            rows, at = self._inputs[self._inputs_of[k]], slice(k, k + 1)
            mine = ids[self._inputs_of[k]]
            kernels.measure(rows.sources, rows.widths, self._columns[at], mine, firsts[at], sizes[at])
