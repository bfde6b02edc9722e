"""Rows of Confluence leave memory: a memtable becomes a run, and some of its rows may stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Bytes, Int32, Int64, Numbers, Uint64
from watersmeet.kernels.addressed import OTHER
from watersmeet.matching.debts import RunEntry
from watersmeet.policies.keeping import Staying
from watersmeet.runs.flush import write_run
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.tables.memtable import Memtable

if TYPE_CHECKING:
    from watersmeet.joins.confluence.operator import Confluence

_FIRST = np.zeros(1, np.int32)


class Stayed(NamedTuple):
    """Copies of rows that stay in memory while the others of their memtable leave it."""

    hashes: Int64
    columns: list[pa.Array]
    marks: Bytes | None
    """Whether each has a partner, where that matters."""


class Flushing:
    """Part of Confluence: writes memtables, and brings back what stays.

    A memtable whose rows have settled is written alone (`flush`). Where it pays to let rows settle later, both are
    written at once, and their runs say that they owe (`flush_owing`).
    """

    def __init__(self, join: Confluence) -> None:
        self._join = join

    def flush(self, side: int, *, all_of_it: bool = False) -> None:
        """Write a memtable that owes nothing as a run, unless its rows wait for nobody; some may stay in memory."""
        join = self._join
        join.clock += 1
        join.events["flushed"] += 1
        stayed: Stayed | None = None
        if not join.exhausted(1 - side):
            all_of_it = all_of_it or self._forgets_matched(side) or join.foretold is not None
            chosen = None if all_of_it else self._choose_to_stay(side)
            run = self._write(side, chosen, settled=True)
            if run is not None:
                join.debts.add(side, self._entry(side, run, join.tables[1 - side].rows))
            stayed = None if chosen is None else self.copied(side, chosen.numbers)
        self.forget_rows(side)
        if stayed is not None:
            self.bring_back(side, stayed)
        join.catalogue.count()

    def flush_owing(self) -> None:
        """Write both memtables as they are: that they owe is said by their runs. They owe each other nothing."""
        join = self._join
        join.clock += 1
        join.events["flushed owing"] += 1
        owe = [join.debts.rows_owe(side) for side in (0, 1)]
        entries: list[RunEntry | None] = [None, None]
        try:
            for side, table in enumerate(join.tables):
                if table.rows:
                    before = int(table.ticks(_FIRST)[0]) if owe[side] else None
                    run = self._write(side)
                    entries[side] = None if run is None else self._entry(side, run, 0, before)
        except BaseException:
            self._drop_written([entry.run.name for entry in entries if entry is not None])
            raise
        for side, entry in enumerate(entries):
            if entry is not None:
                join.debts.add(side, entry)
        for side in (0, 1):
            self.forget_rows(side, owe[side])
        join.catalogue.count()

    def forget_rows(self, side: int, owing: bool = False) -> None:
        """A memtable is empty now; whatever comes owes all that is on disk. Whether rows that left it still owe."""
        join = self._join
        join.alone.rows_dropped(side, join.tables[side].rows)
        if join.foretold is not None:
            join.foretold.rows_left(side)
        join.forget(side, 0)
        join.owed_since.rows_left(side, owing)
        join.debts.rows_left(side)
        if join.keeping is not None:
            join.keeping.rows_left(side)

    # --- what stays ---

    def _choose_to_stay(self, side: int) -> Staying | None:
        """Which rows of a memtable had better stay when the others leave; they fit into the buffer for writing."""
        join, table = self._join, self._join.tables[side]
        if join.keeping is None:
            return None
        most = min(table.rows // 4, join.workspace.block_bytes * table.rows // max(1, table.row_nbytes))
        chosen = join.keeping.choose(side, join.tables, most)
        return chosen if chosen is not None and self._fit_into_buffer(table, chosen.numbers) else None

    def _fit_into_buffer(self, table: Memtable, numbers: Int32) -> bool:
        """Whether copies of some rows do: those of frequent keys may be wider than others."""
        if OTHER in table.widths:
            return False  # what single nested values take is not known
        widths = np.full(len(numbers), len(table.types), np.int64)  # for offsets and bitmaps
        for column in range(len(table.types)):
            table.widen(column, numbers, widths)
        return int(widths.sum()) <= min(self._join.workspace.block_bytes, table.held // 4)

    def copied(self, side: int, numbers: Int32) -> Stayed:
        """Copies of some rows of a memtable."""
        table = self._join.tables[side]
        marks = table.marks[numbers] if self._join.spec.kind.tracked[side] else None
        return Stayed(table.hashes(numbers), table.gather_all(tuple(range(len(table.types))), numbers), marks)

    def bring_back(self, side: int, stayed: Stayed) -> None:
        """Rows that have settled take their places anew, as if they had come right after the flush."""
        join, table, count = self._join, self._join.tables[side], len(stayed.hashes)
        join.events["rows that stayed"] += count
        parts = np.zeros(count, np.int32)
        if not table.reserve(parts, stayed.columns):
            raise AssertionError("rows do not fit into the memory that they just left")
        table.append(stayed.hashes, parts, stayed.columns, join.ticks(count))
        if stayed.marks is not None:
            table.marks[:] = stayed.marks
        join.debts.rows_left(side, stayed=count)
        assert join.keeping is not None
        join.keeping.rows_left(side, stayed=count)

    # --- what is written ---

    def _entry(self, side: int, run: SortedRun, since: int, owes_before: int | None = None) -> RunEntry:
        """What is to be known of a memtable that was written now."""
        return RunEntry(run, self._join.clock, since, owes_before=owes_before, span=self._join.span_of(side))

    def _write(self, side: int, chosen: Staying | None = None, settled: bool = False) -> SortedRun | None:
        """Write rows of a memtable as a run; None if none of them is of any use."""
        join, table, buffer = self._join, self._join.tables[side], self._join.workspace.slice
        there, buffer.owner = buffer.holds(table), None
        staying: tuple[int, Callable[[Uint64, Numbers], Bool]] | None = None
        if chosen is not None:
            staying = len(chosen.numbers), chosen.stay
        if self._forgets_matched(side):
            marks = table.marks
            staying = int(np.count_nonzero(marks)), lambda hashes, numbers: marks[numbers] != 0
        if settled and join.foretold is not None and join.foretold.helps(side):
            staying = join.foretold.useless_in_memory(side)
        rows = table.rows - (0 if staying is None else staying[0])
        if staying is not None and chosen is None:
            join.events["rows not written"] += staying[0]
        if not rows:
            return None
        name, block_bytes = join.catalogue.new_run(side), join.workspace.block_bytes
        write = partial(
            write_run, join.store, name, table, buffer.hashes, buffer.rows, block_bytes,
            sorted_already=there, staying=staying,
        )  # fmt: skip
        run = self._write_marked(name, table, rows, write) if join.spec.kind.tracked[side] else write()
        join.meter.pages_written += join.catalogue.pages_of(run.rows, run.nbytes)
        join.meter.seeks += 1
        return run

    def _write_marked(self, name: str, table: Memtable, rows: int, write: Callable[..., SortedRun]) -> SortedRun:
        """Write a run of rows, and their marks beside it."""
        assert self._join.matched is not None
        bits, marks = self._join.matched.bits, table.marks
        filling = bits.begin(name, rows)
        written = []
        try:
            run = write(note=lambda numbers: filling.add(marks[numbers] != 0))
            written.append(name)
            filling.end()
        except BaseException:
            bits.forget([name])
            self._drop_written(written)
            raise
        return run

    def _drop_written(self, names: Sequence[str]) -> None:
        """Something has failed before runs that were written counted."""
        matched = self._join.matched
        for name in names:
            self._join.store.remove(name)
            if matched is not None and name in matched.bits:
                matched.bits.forget([name])

    def _forgets_matched(self, side: int) -> bool:
        """Whether rows of a side are of no more use once they have a partner."""
        return self._join.matched is not None and self._join.matched.forgotten(side)
