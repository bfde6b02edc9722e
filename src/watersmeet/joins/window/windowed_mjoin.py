"""MJoin over endless inputs: windows of time or of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from watersmeet.core.multi_spec import MultiSpec
from watersmeet.engine.multi_arrival import Arrival
from watersmeet.engine.multi_sizing import ManySizing
from watersmeet.engine.multiway import MultiwayJoin
from watersmeet.engine.pipeline import Scope
from watersmeet.engine.sizing import Grain
from watersmeet.joins.multiway.flushing import Overflow, pinned_order
from watersmeet.matching.multi_windows import MOMENT
from watersmeet.spill.store import Store
from watersmeet.tables.multi_hash_table import ManySide

_SHARE = 8
"""Expired rows are looked for when so large a part of the rows in memory is new; taking them out costs a pass."""
_LEAST_NEW = 16
_PARTITION_BITS = 3
"""Every partition has an open block, which expired rows stay in: few partitions and small blocks keep few of them."""
_BLOCKS_OF_A_WINDOW = 8
_ROWS_OF_A_BLOCK = 128
"""Where nobody knows how many rows a window will hold."""
_FEWEST = 64
"""Blocks are cut to this part of their usual rows at most: each takes a little memory of its own."""


class WindowedMJoin(MultiwayJoin):
    """Look each new row up in the windows of all other inputs, in memory and on disk, and forget what expires [1]_.

    ```
    arriving   row ─▶ its own table; ─▶ windows of the others, the most selective first ─▶ results
                  every now and then: blocks and runs whose rows have all expired are dropped
                  memory full: expired rows go first; then partitions go to disk as runs
    ```

    Which combinations are results is told in `core.many_windows`. Rows are worked off in the order in which they were
    received, those of all inputs together.

    Endless inputs have no clean-up, and a row must have met all it can meet before it is forgotten. So nothing is put
    off: rows that arrive are also looked up in the runs on disk, where they lie, and every result is found when its
    last row comes. No result can come up twice, and no books are kept of who has met. The paper has windows that fit
    into memory; there nothing is on disk, and this costs nothing. Runs are not merged: each row is looked up in all of
    them, and each takes a little memory, so that windows of many times the memory are for `confluence`.

    An input that has been silent keeps the others' rows alive, where windows measure time: it may still send old rows.
    With `idle` in the windows it does so for that long only.

    :param flush: which partitions leave memory, see `MJoin`.
    :param probing: pins the order of look-ups: for each input's name, the others' names.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import Arrive
    >>> from watersmeet.core.many_windows import parse_many_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64(), "t": pa.int64()})
    >>> windows = parse_many_windows({"r": 3, "s": 1, "u": 5}, "rsu", time="t")
    >>> spec = MultiSpec.of({name: schema for name in "rsu"}, ["r.a = s.a", "s.a = u.a"], window=windows)
    >>> join = WindowedMJoin(spec, 1 << 20, MemoryStore())
    >>> for number, times in enumerate([[10, 6], [11], [9]]):
    ...     join.receive(Arrive(number, pa.record_batch({"a": [7] * len(times), "t": times}, schema)))
    ...     found = join.poll(0.0, 1000).out
    >>> found.to_pylist()
    [{'a': 7, 'r_t': 10, 's_t': 11, 'u_t': 9}]

    .. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
       Information Sources, VLDB 2003, section 3.4.
    """

    SAVED: ClassVar[tuple[str, ...]] = ("overflow", "_latest", "_new_rows")
    name: ClassVar[str] = "mjoin"
    windowed: ClassVar[bool] = True

    def __init__(
        self,
        spec: MultiSpec,
        memory: int,
        store: Store,
        *,
        flush: str = "auto",
        probing: Mapping[str, Sequence[str]] | None = None,
        grain: Grain | None = None,
    ) -> None:
        super().__init__(spec, memory, store, order=pinned_order(spec, probing), grain=grain)
        self.overflow = Overflow(self, flush)
        self._latest: list[list[list[int]]] = [[] for _ in spec.names]
        """By input and run: moments that none of its rows exceeds, one for each of the windows' `parts`."""
        self._new_rows = 0

    def _make_sizing(self, memory: int) -> ManySizing:
        sizing = super()._make_sizing(memory)
        layout, units = sizing.layout, self.spec.window_units
        assert self.spec.window is not None and units is not None
        bits = min(layout.partition_bits, _PARTITION_BITS)
        rows = _ROWS_OF_A_BLOCK
        if self.spec.window.counted:
            rows = max(1, min(units.spans) // (_BLOCKS_OF_A_WINDOW << bits))
        rows = min(layout.block_rows, max(8, layout.block_rows // _FEWEST, 1 << (rows.bit_length() - 1)))
        return replace(sizing, layout=replace(layout, partition_bits=bits, block_rows=rows))

    # --- arrivals ---

    def arrival_scope(self) -> Scope:
        """Tables, and all runs."""
        return Scope(tuple(len(disk.runs) for disk in self.disks))

    def arrival_done(self) -> None:
        """What has expired goes every now and then: see `admit`."""
        self.timed.follow()

    def must_keep(self, number: int) -> bool:
        """Whether a row that arrives on this input can still find partners later: nobody has to wait for the disk."""
        return not all(self.exhausted(other) for other in range(len(self.inputs)) if other != number)

    def admit(self, arrival: Arrival, count: int) -> int:
        """Make room for the next rows of an arrival; returns for how many, at least one."""
        if self._new_rows >= max(_LEAST_NEW, sum(table.rows for table in self.tables) // _SHARE):
            self.expire()
        admitted = super().admit(arrival, count)
        self._new_rows += admitted
        return admitted

    # --- expiry and overflow ---

    def put_away(self) -> None:
        """What has expired need not be saved."""
        self.expire()

    def expire(self) -> bool:
        """Let go of blocks and runs whose rows have all expired; False if there are none."""
        self._new_rows = 0
        some = False
        for number in range(len(self.inputs)):
            parts = self.timed.parts[number]
            bounds = [self.timed.clock.expired_before(part, parts) for part in parts]
            some |= self._expire_blocks(number, bounds)
            some |= self._expire_runs(number, bounds)
        return some

    def _expire_blocks(self, number: int, bounds: Sequence[int]) -> bool:
        table = self.tables[number]
        assert isinstance(table, ManySide)
        counts: dict[int, int] = {}
        for part in np.flatnonzero(table.part_rows).tolist():
            for first, count in table.spans(part):
                rows = np.arange(first, first + count, dtype=np.int32)
                expired = np.zeros(count, np.bool_)
                for column, bound in enumerate(bounds):
                    expired |= table.gather(MOMENT + column, rows).to_numpy(zero_copy_only=False) < bound
                if not expired.all():
                    break
                counts[part] = counts.get(part, 0) + count
                self.gone[number, part] = int(table.ticks(rows[-1:])[0])
        table.drop_oldest_of(counts)
        self.events["expired rows"] += sum(counts.values())
        return bool(counts)

    def _expire_runs(self, number: int, bounds: Sequence[int]) -> bool:
        disk, latest = self.disks[number], self._latest[number]
        expired = [
            place
            for place, moments in enumerate(latest)
            if any(moment < bound for moment, bound in zip(moments, bounds, strict=True))
        ]
        for place in reversed(expired):
            run = disk.runs[place]
            self.overflow.run_goes(number, run.attribute_hashes(0, np.arange(run.rows, dtype=np.int32)))
            disk.forget(run)
            del latest[place]
            self.saver.discard([run.name])
            self.events["expired runs"] += 1
        return bool(expired)

    def _make_room(self) -> bool:
        if self.expire():
            return True
        flushed = self.overflow.make_room()
        clock, parts = self.timed.clock, self.timed.parts
        told = [count - 1 for count in clock.rows] if clock.counted else clock.newest
        for number, disk in enumerate(self.disks):
            latest = [told[part] for part in parts[number]]
            self._latest[number] += [latest] * (len(disk.runs) - len(self._latest[number]))
        return flushed

    # --- checks and snapshots ---

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        self.overflow.check()
        assert [len(latest) for latest in self._latest] == [len(disk.runs) for disk in self.disks]
