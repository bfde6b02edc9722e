"""What an operator has spilled of one of several inputs: runs that are probed by any join attribute where they lie.

```
run   pages of rows (hash, tick, columns) in the order in which they were written
      for each attribute: its hashes by row · its hashes in ascending order · the row of each of those
```

Runs are mapped and never loaded, so that looking something up on disk needs no memory but the buffers of the look-up.
Rows of an input are numbered through by ordinals, in the order in which they left memory. To remember a run takes a
little memory: where that becomes much, runs that follow each other are put together, and their rows keep their order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.kernels.combinations import probe_run
from watersmeet.kernels.sorted_runs import RangeProbe, SortedRuns
from watersmeet.memory import Reservation
from watersmeet.records.plan import value_widths
from watersmeet.runs.page import Stored, cut, page_schema
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.multi_hash_table import ManySide

SORT_BYTES = 40
"""Of each row, while a run is written: its number, its hashes, their order."""
_EVERYTHING = np.iinfo(np.int64).max
_RUN_BYTES = 320
_PAGE_BYTES = 48
_FEWEST_TOGETHER = 4
"""Fewer runs are not put together, or the same rows would be written again and again."""
_AT_SEVERAL_TICKS = -1


class ManyStored(Stored, Protocol):
    """Rows by number that can be written, with their attributes."""

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's hashes of some rows."""
        ...


class ManyRun:
    """Rows that left memory at one tick, or, of runs that were put together, each at a tick of its own."""

    def __init__(self, store: Store, name: str, first_ordinal: int, departed: int, ends: Sequence[int]) -> None:
        self.name = name
        self.first_ordinal = first_ordinal
        self.departed = departed
        self.ends = np.array(ends, np.int64)
        """Rows up to the end of each page."""
        self._store = store
        self._segment: Segment | None = None
        self._arrays: dict[str, Any] = {}
        self._pages: dict[int, pa.RecordBatch] = {}

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.ends[-1])

    @property
    def nbytes(self) -> int:
        """What the run takes in memory as long as it is on disk."""
        return _RUN_BYTES + _PAGE_BYTES * len(self.ends)

    def look_up(
        self, attribute: int, probe: Probe | RangeProbe, out_probe: Int32, out_row: Int32, meter: Meter
    ) -> tuple[int, int]:
        """Go on with a look-up by one attribute until the buffers are full; returns pairs found, rows visited."""
        if isinstance(probe, RangeProbe):
            return self._look_up_range(attribute, probe, out_probe, out_row, meter)
        if not probe.next and probe.link < 0:
            # Rows found by binary search lie anywhere: a page for each, until all pages have been read.
            touched = min(len(probe.hashes), len(self.ends))
            meter.seeks += touched
            meter.pages_read += touched
        found, probe.next, probe.link, visited = probe_run(
            probe.hashes, probe.next, probe.link,
            self._array(f"sorted-{attribute}"), self._array(f"order-{attribute}"), out_probe, out_row,
        )  # fmt: skip
        return int(found), int(visited)

    def _look_up_range(
        self, attribute: int, probe: RangeProbe, out_probe: Int32, out_row: Int32, meter: Meter
    ) -> tuple[int, int]:
        words = self._array(f"sorted-{attribute}")
        if probe.untouched:
            low, high = probe.reach
            if high < words[0] or low > words[-1]:
                probe.done = True
                return 0, 0
            meter.seeks += 1
            meter.pages_read += min(len(probe.hashes), len(self.ends))
        index = SortedRuns.of_sorted(words, self._array(f"order-{attribute}"))
        return index.probe(probe, _EVERYTHING, out_probe, out_row)

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        """One attribute's hashes of some rows."""
        found: Int64 = self._array(f"hashes-{attribute}")[rows]
        return found

    def arrivals(self) -> Int64:
        """When all rows arrived."""
        found: Int64 = self._array("ticks")
        return found

    def ticks(self, rows: Int32) -> Int64:
        """When some rows arrived."""
        found: Int64 = self._array("ticks")[rows]
        return found

    def departures(self, rows: Int32) -> Int64 | int:
        """When some rows left memory: all at once, or each at its tick."""
        if self.departed != _AT_SEVERAL_TICKS:
            return self.departed
        found: Int64 = self._array("departed")[rows]
        return found

    def pages_of(self, rows: Int32) -> int:
        """How many pages ascending rows lie on."""
        if not len(rows):
            return 0
        first, last = np.searchsorted(self.ends, [rows[0], rows[-1]], "right")
        return int(last - first) + 1

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One stored column's values for some rows."""
        pieces = [self._column(page, column).take(pa.array(places)) for page, _, places in self._by_page(rows)]
        if len(pieces) == 1:
            return pieces[0]
        back = np.empty(len(rows), np.int64)
        back[np.concatenate([at for _, at, _ in self._by_page(rows)])] = np.arange(len(rows))
        return pa.concat_arrays(pieces).take(pa.array(back))

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        for page, at, places in self._by_page(rows):
            widths[at] += value_widths(self._column(page, column))[places]

    def _by_page(self, rows: Int32) -> Iterator[tuple[int, Int64, Int64]]:
        """Pages, which of the rows are on each, and where."""
        pages = np.searchsorted(self.ends, rows, "right")
        for page in np.unique(pages):
            at = np.flatnonzero(pages == page)
            yield int(page), at, rows[at] - (self.ends[page - 1] if page else 0)

    def _column(self, page: int, column: int) -> pa.Array:
        if page not in self._pages:
            self._pages[page] = self._opened().read_page(page)
        return self._pages[page].column(column + 2)

    def _array(self, name: str) -> Any:
        if name not in self._arrays:
            self._arrays[name] = self._opened().array(name)
        return self._arrays[name]

    def _opened(self) -> Segment:
        if self._segment is None:
            self._segment = Segment.open(self._store, self.name)
        return self._segment

    def close(self) -> None:
        """Drop the mapping; the next read maps the run again."""
        self._segment = None
        self._arrays.clear()
        self._pages.clear()

    def to_state(self) -> list[Any]:
        """The run for a snapshot."""
        return [self.name, self.first_ordinal, self.departed, self.ends.tolist()]


class ManyRuns:
    """One input's runs, in the order in which they were written."""

    def __init__(self, store: Store, prefix: str, attributes: int, claim: Reservation, meter: Meter) -> None:
        self.runs: list[ManyRun] = []
        self.rows = 0
        self._numbered = 0
        """How many ordinals have been given."""
        self._store = store
        self._prefix = prefix
        self._attributes = attributes
        self._claim = claim
        self._meter = meter

    def flush(self, table: ManySide, parts: Sequence[int], tick: int, page_bytes: int, run_rows: int) -> None:
        """Move partitions of a table to disk, as runs of at most so many rows; whole or not at all."""
        written = self.write(table, _stretches(table, parts, run_rows), tick, page_bytes)
        table.drop_all(parts)
        table.trim(sum(run.nbytes for run in written))
        for run in written:
            self._claim.grow(run.nbytes)
            self._append(run)

    def write(self, table: ManyStored, stretches: Iterable[Int32], tick: int, page_bytes: int) -> list[ManyRun]:
        """Write rows of a table as runs, one for each stretch; whole or not at all. They count once they are added."""
        written: list[ManyRun] = []
        try:
            for rows in stretches:
                first = self._numbered + sum(run.rows for run in written)
                name = f"{self._prefix}-{tick}-{len(written)}"
                ends = self._write(name, table, rows, page_bytes)
                written.append(ManyRun(self._store, name, first, tick, ends))
        except BaseException:
            for run in written:
                self._store.remove(run.name)
            raise
        for run in written:
            self._meter.seeks += 1
            self._meter.pages_written += len(run.ends)
        return written

    def try_add(self, run: ManyRun) -> bool:
        """Take the run that follows into the catalogue; False if there is no memory for that."""
        if not self._claim.try_grow(run.nbytes):
            return False
        self._append(run)
        return True

    def _append(self, run: ManyRun) -> None:
        self.runs.append(run)
        self.rows += run.rows
        self._numbered = run.first_ordinal + run.rows

    def put_together(self, types: tuple[pa.DataType, ...], tick: int, page_bytes: int, run_rows: int) -> list[str]:
        """Let runs that follow each other become one of at most so many rows; returns the segments that can go."""
        gone: list[str] = []
        first = 0
        while first < len(self.runs):
            beyond, rows = first, 0
            while beyond < len(self.runs) and rows + self.runs[beyond].rows <= run_rows:
                rows += self.runs[beyond].rows
                beyond += 1
            if beyond - first >= _FEWEST_TOGETHER:
                gone += [run.name for run in self._put_together(first, beyond, types, tick, page_bytes)]
                beyond = first + 1
            first = max(beyond, first + 1)
        return gone

    def _put_together(
        self, first: int, beyond: int, types: tuple[pa.DataType, ...], tick: int, page_bytes: int
    ) -> list[ManyRun]:
        runs = self.runs[first:beyond]
        together = _RunsTogether(runs, types)
        rows = np.arange(together.rows, dtype=np.int32)
        name = f"{self._prefix}-{tick}-from-{runs[0].first_ordinal}"
        ends = self._write(name, together, rows, page_bytes, together.departures(rows))
        one = ManyRun(self._store, name, runs[0].first_ordinal, _AT_SEVERAL_TICKS, ends)
        for run in runs:
            run.close()
            self._claim.shrink(run.nbytes)
            self._meter.pages_read += len(run.ends)
        self._claim.grow(one.nbytes)
        self._meter.seeks += len(runs) + 1
        self._meter.pages_written += len(ends)
        self.runs[first:beyond] = [one]
        return runs

    def forget(self, run: ManyRun) -> None:
        """Take a run out of the catalogue; its segment is still there."""
        run.close()
        self.runs.remove(run)
        self.rows -= run.rows
        self._claim.shrink(run.nbytes)

    def run_of(self, ordinal: int) -> int:
        """The number of the run that has an ordinal; behind the last one, how many runs there are."""
        if ordinal == self.rows:
            return len(self.runs)
        return bisect_right(self.runs, ordinal, key=lambda run: run.first_ordinal) - 1

    def places(self, first: int, count: int) -> Iterator[tuple[int, Int32]]:
        """Runs and their rows that have `count` ordinals from the first on."""
        number = self.run_of(first)
        while count:
            run = self.runs[number]
            start = first - run.first_ordinal
            size = min(count, run.rows - start)
            yield number, np.arange(start, start + size, dtype=np.int32)
            first, count, number = first + size, count - size, number + 1

    def _write(
        self, name: str, table: ManyStored, rows: Int32, page_bytes: int, departures: Int64 | None = None
    ) -> list[int]:
        writer = SegmentWriter(self._store, name, page_schema(table.types))
        ends: list[int] = []
        try:
            for start, stop in cut(table, rows, page_bytes):
                piece = rows[start:stop]
                arrays = [pa.array(table.hashes(piece)), pa.array(table.ticks(piece))]
                arrays += [table.gather(column, piece) for column in range(len(table.types))]
                writer.write_page(pa.RecordBatch.from_arrays(arrays, schema=writer.schema))
                ends.append(stop)
            writer.add_array("ticks", table.ticks(rows))
            if departures is not None:
                writer.add_array("departed", departures)
            for attribute in range(self._attributes):
                hashes = table.attribute_hashes(attribute, rows)
                order = np.argsort(hashes, kind="stable").astype(np.int32)
                writer.add_array(f"hashes-{attribute}", hashes)
                writer.add_array(f"sorted-{attribute}", hashes[order])
                writer.add_array(f"order-{attribute}", order)
            writer.seal().close()
        except BaseException:
            writer.abort()
            raise
        return ends

    @property
    def page_rows(self) -> int:
        """About how many rows a page has."""
        return int(self.runs[-1].rows // len(self.runs[-1].ends)) if self.runs else 0

    @property
    def segments(self) -> list[str]:
        """The names of all runs."""
        return [run.name for run in self.runs]

    def close(self) -> None:
        """Drop all mappings."""
        for run in self.runs:
            run.close()

    def to_state(self) -> list[Any]:
        """The runs for a snapshot."""
        return [run.to_state() for run in self.runs]

    def load(self, state: list[Any]) -> None:
        """Take over a snapshot's runs."""
        for name, first, departed, ends in state:
            run = ManyRun(self._store, name, first, departed, ends)
            self._claim.grow(run.nbytes)
            self._append(run)

    def check(self) -> None:
        """Assert that ordinals run through, but for runs that were forgotten."""
        at = 0
        for run in self.runs:
            assert run.first_ordinal >= at and run.rows > 0
            at = run.first_ordinal + run.rows
        assert sum(run.rows for run in self.runs) == self.rows and at <= self._numbered


class _RunsTogether:
    """The rows of runs that follow each other, numbered through."""

    def __init__(self, runs: Sequence[ManyRun], types: tuple[pa.DataType, ...]) -> None:
        self._runs = runs
        self._ends = np.cumsum([run.rows for run in runs])
        self.types = types
        self.rows = int(self._ends[-1])

    def _by_run(self, rows: Int32) -> Iterator[tuple[ManyRun, slice, Int32]]:
        """Runs, which of the ascending rows each has, and their numbers there."""
        start = 0
        for run, end in zip(self._runs, self._ends.tolist(), strict=True):
            stop = int(np.searchsorted(rows, end))
            if stop > start:
                yield run, slice(start, stop), rows[start:stop] - np.int32(end - run.rows)
            start = stop

    def hashes(self, rows: Int32) -> Int64:
        return self.attribute_hashes(0, rows)

    def attribute_hashes(self, attribute: int, rows: Int32) -> Int64:
        return np.concatenate([run.attribute_hashes(attribute, own) for run, _, own in self._by_run(rows)])

    def ticks(self, rows: Int32) -> Int64:
        return np.concatenate([run.ticks(own) for run, _, own in self._by_run(rows)])

    def departures(self, rows: Int32) -> Int64:
        departures = np.empty(len(rows), np.int64)
        for run, at, own in self._by_run(rows):
            departures[at] = run.departures(own)
        return departures

    def gather(self, column: int, rows: Int32) -> pa.Array:
        return pa.concat_arrays([run.gather(column, own) for run, _, own in self._by_run(rows)])

    def widen(self, column: int, rows: Int32, widths: Int64) -> None:
        for run, at, own in self._by_run(rows):
            run.widen(column, own, widths[at])


def _stretches(table: ManySide, parts: Sequence[int], most: int) -> Iterator[Int32]:
    """The rows of some partitions, at most so many at once."""
    held: list[Int32] = []
    count = 0
    for part in parts:
        rows = table.rows_of(part)
        while len(rows):
            some = rows[: most - count]
            held.append(some)
            count += len(some)
            rows = rows[len(some) :]
            if count == most:
                yield np.concatenate(held)
                held, count = [], 0
    if held:
        yield np.concatenate(held)
