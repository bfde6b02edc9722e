"""What window joins share that keep rows in blocks which go one by one, the oldest of a partition first."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.joins.window.windowed import TimedLookup, WindowJoin
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Lookup
from watersmeet.records.plan import Rows
from watersmeet.records.times import FLOOR, TIME
from watersmeet.tables.hash_table import Probe
from watersmeet.tables.window_table import WindowProbe, WindowTable


class WindowLookup(TimedLookup):
    """Rows looked up in a table that counts which of its blocks were part of results."""

    def __init__(self, probe: Probe, table: WindowTable, between: Between, join: BlockWindowJoin) -> None:
        super().__init__(probe, table, between, join, partners=table.part_rows)
        self._counted = table

    def work(self, pairs: PairBuffer, fuel: int, meter: Any) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        used = super().work(pairs, fuel, meter)
        if pairs.count:
            self._counted.count_results(pairs.rows[: pairs.count])
        return used


class BlockWindowJoin(WindowJoin):
    """The frame of an operator for two endless streams with a window table for each."""

    tables: tuple[WindowTable, ...]  # type: ignore[assignment]

    def _make_table(self, side: int) -> WindowTable:
        return WindowTable(self.plans[side].types, self.budget, self.sizing.layout, self.spec.names[side])

    def arrival_lookup(self, side: int, hashes: Int64, parts: Int32, columns: list[pa.Array], source: Rows) -> Lookup:
        """The look-up of rows that arrived on one side in the memory of the other."""
        return self.lookup_in(self.tables[1 - side], side, hashes, parts, columns, source)

    def lookup_in(
        self,
        table: WindowTable,
        side: int,
        hashes: Int64,
        parts: Int32,
        columns: list[pa.Array],
        source: Rows,
    ) -> WindowLookup:
        """The look-up of rows that arrived on one side in a table of the other."""
        times = columns[TIME].to_numpy()
        behind, ahead = self.timing.least_ages(side)
        probe = WindowProbe(
            hashes, parts, times=times, lows=columns[FLOOR].to_numpy(), highs=self.timing.meets(side, times),
            least_behind=behind, least_ahead=ahead,
        )  # fmt: skip
        return WindowLookup(probe, table, Between(side, source, table), self)

    # --- expiry ---

    def expire(self) -> bool:
        """Let go of blocks whose rows have all expired; False if there are none."""
        some = False
        for side, table in enumerate(self.tables):
            bound = self.expired_before(side)
            for part in table.expired(bound).tolist():
                queue = table.queues[part]
                while queue and table.latest[queue[0]] < bound and self._may_drop(side, part, queue[0]):
                    self.drop_oldest(side, part)
                    self.events["expired blocks"] += 1
                    some = True
        return some

    def _may_drop(self, side: int, part: int, block: int) -> bool:
        """Whether a block's rows have nothing left to look up."""
        return True

    def drop_oldest(self, side: int, part: int) -> None:
        """Drop a partition's oldest block from memory."""
        table = self.tables[side]
        self.gone[side][part] = table.last_tick[table.queues[part][0]]
        table.drop_oldest(part)
