"""Windows of `ManyConfluence`: what has left its window is forgotten, in memory and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from watersmeet.engine.multi_windows import MultiWindows
from watersmeet.matching.multi_windows import Reached
from watersmeet.runs.sorted_run import let_go
from watersmeet.tables.memtables import ManyWindowMemtable

if TYPE_CHECKING:
    from watersmeet.joins.multiway.confluence import ManyConfluence

_EXPIRED = 2
"""Expired rows leave memory when they are so many: one in two. Those that stay have to be put into the index anew."""
_EXPIRED_WHEN_FULL = 8
"""One in so many, where memory is full."""
_PUT_AWAY_FAN_IN = 8
"""Of a join of batches, each of which writes runs: so many become one."""


class Expiry:
    """Part of an operator: rows of several inputs meet as they do without windows, and then they expire.

    ::

        time ──────────────────────────────────────────────────────────────▶
        runs of r    [· · · ·][· · · ·][· · · ·][· · · ·]   memtable of r
        runs of s    [· · · ·][· · · ·][· · · ·][· · · ·]   memtable of s     rows that owe settle with all of these
                      expired: goes as a whole, unread

    As long as the windows fit into memory, rows are looked up there alone, and those that have expired go, many at a
    time.

    **What may go.** A row is of no more use if all rows that may still meet it come too late for it. Those are rows to
    come, and rows that owe: they arrived, and have yet to meet what is on disk. So what has expired is judged by how
    far the inputs had come *before the first row that owes arrived*, which is noted when a settlement begins, and
    whenever nothing is owed. A row that owes stays until it has settled.
    (`tests/conformance/test_multi_windows.py` breaks both rules, and is noticed.)

    Runs become one only where together they span a quarter of the window or less, so that they still go in time.
    An input that has been silent keeps the others' rows alive, where windows measure time: it may still send old rows.
    With `idle` in the windows it does so for that long only.

    >>> import pyarrow as pa
    >>> from watersmeet.core.many_windows import parse_many_windows
    >>> from watersmeet.core.multi_spec import MultiSpec
    >>> from watersmeet.core.protocol import Arrive, Stall
    >>> from watersmeet.joins.multiway.confluence import ManyConfluence
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64(), "t": pa.int64()})
    >>> windows = parse_many_windows(20_000, "rsu", time="t")
    >>> spec = MultiSpec.of({name: schema for name in "rsu"}, ["r.a = s.a", "s.a = u.a"], window=windows)
    >>> join = ManyConfluence(spec, ManyConfluence.least_memory(spec), MemoryStore(), floor=0)
    >>> rows = 0
    >>> for start in range(0, 80_000, 5_000):
    ...     numbers = pa.array(range(start, start + 5_000))
    ...     for number in range(3):
    ...         join.receive(Arrive(number, pa.record_batch([numbers, numbers], schema)))
    ...         while (step := join.poll(0.0, 1000)).status.name == "HAS_OUTPUT":
    ...             rows += step.out.num_rows if step.out else 0
    >>> join.receive(Stall())
    >>> while (step := join.poll(0.0, fuel=1000)).status.name != "NEED_INPUT":
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.events["flushed"] > 0, join.events["expired runs"] > 0, join.window_rows < 120_000
    (80000, True, True, True)
    """

    def __init__(self, join: ManyConfluence, windows: MultiWindows) -> None:
        self._join = join
        self._windows = windows
        self.since = windows.clock.at
        """How far the inputs had come before the first row that owes arrived."""
        self.began = self.since
        """How far they had come when the settlement at hand began."""

    # --- rows that owe ---

    def settlement_begins(self) -> None:
        """All rows that owe are about to settle."""
        self.began = self._windows.clock.at

    def settled(self) -> None:
        """All rows that owed when the settlement began have met everything."""
        self.since = self.began
        self.expire()

    # --- what may go ---

    def expired_before(self, number: int) -> int:
        """Rows of an input that are older than this meet nothing that is still to come, or that owes."""
        return self._windows.clock.expired_before(number, (number,), self.since if self._join.owes else None)

    def make_room(self) -> bool:
        """Memory is full: let go of rows that nobody will ask for, if they are many."""
        return self._expire(_EXPIRED_WHEN_FULL)

    def expire(self) -> bool:
        """Let go of what has expired: of rows in memory if they are many, and of runs."""
        return self._expire(_EXPIRED)

    def _expire(self, share: int) -> bool:
        join = self._join
        if join.settling is not None or join.merges or not join.tables:
            return False  # rows on their way through runs are known by their numbers
        owes = join.owes
        if not owes:
            self.since = self._windows.clock.at
        bounds = list(map(self.expired_before, range(len(join.tables))))
        some = [self._expire_rows(number, before, share, owes) for number, before in enumerate(bounds)]
        gone = [self._expire_runs(number, before) for number, before in enumerate(bounds)]
        if any(gone):
            join.flushing.count()
        return any(some)

    def _expire_rows(self, number: int, before: int, share: int, owes: bool) -> bool:
        """Let the first rows of a memtable go if one in so many has expired."""
        join, table = self._join, self._join.tables[number]
        assert isinstance(table, ManyWindowMemtable)
        count = table.let_expire(before, join.settled[number] if owes else table.rows) if table.rows else 0
        if not count or share * count < table.rows:
            return False
        join.gone[number] = int(table.ticks(np.array([count - 1], np.int32))[0])
        table.drop_first(count)
        join.settled[number] = max(0, join.settled[number] - count)
        join.events["expired rows"] += count
        return True

    def _expire_runs(self, number: int, before: int) -> bool:
        gone = self._join.disks[number].forget_before(before)
        for each in gone:
            let_go(each.runs)
            self._join.saver.discard([run.name for run in each.runs])
        self._join.events["expired runs"] += len(gone)
        return bool(gone)

    # --- between two batches, checks and snapshots ---

    def put_away(self) -> None:
        """Write all memtables as runs, if they owe nothing: then the state is a list of runs."""
        self.expire()
        join, flushing = self._join, self._join.flushing
        if join.is_busy or join.owes:
            return
        # Such runs are small, and are opened again if another worker goes on.
        flushing.fan_in = min(flushing.fan_in, _PUT_AWAY_FAN_IN)
        if any(table.rows for table in join.tables):
            flushing.flush()
            join.events["put away"] += 1

    def check(self) -> None:
        """Assert the invariants."""
        assert all(not each.span.is_empty for disk in self._join.disks for each in disk.sets)

    def to_state(self) -> list[list[list[Any]]]:
        """For a snapshot."""
        return [self.since.to_state(), self.began.to_state()]

    def load(self, state: list[list[list[Any]]]) -> None:
        """Go on where a snapshot was taken."""
        self.since, self.began = map(Reached.from_state, state)
