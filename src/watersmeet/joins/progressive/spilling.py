"""What progressive joins that spill have in common: runs on disk, the ledger, flushing by a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.sizing import Grain
from watersmeet.engine.two_way import ProgressiveJoin
from watersmeet.matching.ledger import Ledger
from watersmeet.policies.flush import FlushPolicy, flush_policy
from watersmeet.policies.statistics import PartitionStatistics
from watersmeet.runs.catalogue import DiskSide
from watersmeet.runs.presence import FOREVER, Stay
from watersmeet.spill.store import Store

_LEAST_HISTORY = 768
"""Bytes set aside for the history of visits: when all memory is taken by rows, reactive work can still begin."""


class SpillingJoin(ProgressiveJoin):
    """A progressive join whose partitions have a part in memory and runs on disk."""

    sorted_runs: ClassVar[bool] = False
    """Whether the rows of a run are written in the order of their hashes."""

    def __init__(
        self, spec: JoinSpec, memory: int, store: Store, flush: FlushPolicy | str, grain: Grain | None = None
    ) -> None:
        super().__init__(spec, memory, store, grain)
        partitions = self.sizing.layout.partitions
        catalogue = self.budget.reservation("catalogue of spilled runs")
        records = grain.records or 0 if grain is not None else 0
        catalogue.set_aside(records)
        self.disks = tuple(DiskSide(partitions, store, f"run-{side}", catalogue, self.meter) for side in (0, 1))
        history = self.budget.reservation("history of visits")
        history.set_aside(max(_LEAST_HISTORY, memory // 256, records))
        self.ledger = Ledger(partitions, history)
        self.statistics = PartitionStatistics(partitions)
        self.left_at = np.zeros((2, partitions), np.int64)
        """When rows of a side and partition last left memory; `gone` says up to which arrival they have."""
        self._flush_policy = flush_policy(flush)

    def must_keep(self, side: int) -> bool:
        """Unless the other input has ended and has nothing on disk."""
        return not self.exhausted(1 - side) or self.disks[1 - side].total_rows > 0

    def rows_kept(self, side: int, parts: Int32) -> None:
        """Count arrivals."""
        self.statistics.arrived(side, np.bincount(parts, minlength=self.sizing.layout.partitions))

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        rows = self._rows_in_memory(spared)
        if not rows.any():
            return False
        leaving: tuple[list[tuple[int, int]], ...] = ([], [])
        for victim in self._flush_policy.victims(rows, self.statistics):
            leaving[victim.side].append((victim.part, victim.rows))
        for side, portions in enumerate(leaving):
            if portions:
                self.flush(side, portions)
        return True

    def _rows_in_memory(self, spared: frozenset[tuple[int, int]]) -> NDArray[np.int64]:
        rows = np.array([table.part_rows for table in self.tables])
        for side, part in spared:
            rows[side, part] = 0
        return rows

    def flush(self, side: int, portions: Sequence[tuple[int, int]]) -> None:
        """Move the oldest rows of partitions from memory to disk: at least so many of each, in whole blocks."""
        self.clock += 1
        self._flush_now(side, portions)

    def _flush_now(self, side: int, portions: Sequence[tuple[int, int]]) -> None:
        disk, table = self.disks[side], self.tables[side]
        latest = disk.flush(table, portions, self.clock, self.sizing.page_bytes, self.sorted_runs)
        for (part, _), arrived in zip(portions, latest, strict=True):
            self.gone[side][part] = arrived
            self.left_at[side][part] = self.clock

    def whole(self, side: int, parts: Sequence[int]) -> list[tuple[int, int]]:
        """All rows that partitions have in memory, for `flush`; empty ones are left out."""
        rows = self.tables[side].part_rows
        return [(part, int(rows[part])) for part in parts if rows[part]]

    def last_departure(self, side: int, part: int) -> int:
        """The last tick at which a row left this partition's memory for the disk."""
        return int(self.left_at[side][part])

    def flush_together(self, parts: Sequence[int]) -> None:
        """Move both sides of partitions from memory to disk, at one tick."""
        self.clock += 1
        for side in (0, 1):
            held = self.whole(side, parts)
            if held:
                self._flush_now(side, held)

    def _input_closed(self, side: int) -> None:
        """Rows of the other side that have met all of this input are done with."""
        self.statistics.ended(side)
        other = 1 - side
        for part in range(self.sizing.layout.partitions):
            if not self.disks[side].rows[part]:
                self.forget(other, part)

    def forget(self, side: int, part: int) -> None:
        """Drop a partition from memory: its rows are on disk, or can find no more partners."""
        super().forget(side, part)
        self.left_at[side][part] = self.clock

    def drop_partition(self, part: int) -> None:
        """Forget a partition whose pairs have all been emitted."""
        for side in (0, 1):
            self.forget(side, part)
            self.saver.discard(self.disks[side].drop(part))
        self.ledger.drop(part)

    def stay_in_table(self, side: int, part: int, rows: Int32) -> Stay:
        """When rows of a table were in memory: until now, or until they were flushed if they were brought back."""
        table = self.tables[side]
        ordinals = table.ordinals(rows)
        departed = np.full(len(rows), FOREVER)
        back = ordinals >= 0
        if back.any():
            departed[back] = self.disks[side].departures(part, ordinals[back])
        return Stay(table.ticks(rows), departed, ordinals)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for disk in self.disks:
            disk.check()
        self.ledger.check(self.clock, [disk.rows for disk in self.disks])
        for side, table in enumerate(self.tables):
            for part in range(self.sizing.layout.partitions):
                rows = table.rows_of(part)
                stayed = rows[table.ordinals(rows) < 0]
                assert (table.ticks(stayed) > self.gone[side][part]).all(), (
                    "rows in memory arrived after the last flush"
                )

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        for disk in self.disks:
            disk.release()

    def _own_state(self) -> tuple[list[str], dict[str, Any]]:
        return [name for disk in self.disks for name in disk.segments()], {
            "disks": [disk.to_state() for disk in self.disks],
            "ledger": self.ledger.to_state(),
            "statistics": self.statistics.to_state(),
            "left_at": self.left_at.tolist(),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        for disk, saved in zip(self.disks, state["disks"], strict=True):
            disk.load(saved)
        self.ledger.load(state["ledger"])
        self.statistics.load(state["statistics"])
        self.left_at = np.array(state["left_at"], np.int64)
