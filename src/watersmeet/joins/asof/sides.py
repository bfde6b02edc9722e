"""What both inputs of an as-of join share: rows that arrive, each with its time, and left rows with the time as of
which they ask; and where rows go to disk: names, figures, and memory to remember runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.cost import Meter
from watersmeet.engine.arrival import Arrival, Arriving
from watersmeet.memory import Budget
from watersmeet.records.bands import HIGHEST, LOWEST
from watersmeet.records.times import NEVER
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spill.store import Store

if TYPE_CHECKING:
    from watersmeet.joins.asof.join import AsofJoin


RUN_BYTES = 1024
"""What is remembered of a run and of the times beside it."""
LEAST_RUNS = 16
"""That there is always memory to remember."""
_BUFFER_SHARE = 16


class Disk:
    """Where runs are written to."""

    def __init__(
        self,
        store: Store,
        budget: Budget,
        page_bytes: int,
        meter: Meter,
        open_run: OpenRun,
        discard: Callable[[list[str]], None],
        fan_in: int,
    ) -> None:
        """So many runs of one input and level become one."""
        self.store = store
        self.page_bytes = page_bytes
        self.block_bytes = max(page_bytes, budget.total // _BUFFER_SHARE)
        """Of rows that are written, or copied, at once."""
        self.open_run = open_run
        self.discard = discard
        """Removes segments of these names, once no snapshot needs them."""
        self.written = 0
        """How many runs were begun."""
        self.runs = 0
        """How many there are."""
        self.events: Counter[str] = Counter()
        """What happened how often: settlements, flushes, merges."""
        self.meter = meter
        budget.reservation("writing").grow(self.block_bytes)
        self._catalogue = budget.reservation("catalogue of runs")
        # Two inputs, of two levels in most joins; a run is written when memory is full.
        self._catalogue.set_aside(max(LEAST_RUNS, min(4 * fan_in, budget.total // (32 * RUN_BYTES))) * RUN_BYTES)

    def new_name(self, side: int) -> str:
        """A name for the next run of an input."""
        self.written += 1
        return f"run-{side}-{self.written}"

    def wrote(self, run: Any) -> None:
        """A run was written."""
        self.meter.pages_written += -(-run.nbytes // self.page_bytes)
        self.meter.seeks += 1

    def pages_of(self, run: Any, rows: int) -> int:
        """Pages of so many rows of a run."""
        pages: int = -(-run.nbytes * rows // (max(1, run.rows) * self.page_bytes))
        return pages

    def count(self, more: int) -> None:
        """So many more runs are to be remembered, or fewer."""
        self.runs += more
        if more > 0:
            self._catalogue.grow(more * RUN_BYTES)
        else:
            self._catalogue.shrink(-more * RUN_BYTES)


@dataclass(frozen=True, slots=True)
class Known:
    """What an as-of join knows beside its rows."""

    newest: tuple[int, ...] = (NEVER, NEVER)
    """Each input's newest time."""
    settled: int = HIGHEST
    """The time that the right input had passed at the last settlement."""
    fresh_low: int = HIGHEST
    """No left row that came since then asks as of an earlier time."""
    widest: tuple[int, ...] = (0, 0)

    def and_also(self, other: Known) -> Known:
        """What both know of rows of either: the inputs have come as far as anybody knows, and what is not looked up yet
        by one of them is not.
        """
        newest, widest = (tuple(map(max, mine, theirs)) for mine, theirs in (
            (self.newest, other.newest), (self.widest, other.widest)
        ))  # fmt: skip
        return Known(newest, min(self.settled, other.settled), min(self.fresh_low, other.fresh_low), widest)


_RIGHT = 1


class AsofArrival(Arrival):
    """A batch on its way into memory, each row with its time."""

    def __init__(self, join: AsofJoin, side: int, batch: pa.RecordBatch, numbers: Int64, newest: int) -> None:
        hashes, valid = join.codec.hash(side, join.plans[side].key_arrays(batch))
        timed = join.timing.read(side, batch, newest)
        known = timed.known if valid is None else valid if timed.known is None else valid & timed.known
        drops = timed.late is not None and (side == _RIGHT or join.spec.times.late == "drop")
        in_time = ~timed.late if drops and timed.late is not None else None
        if side == _RIGHT or join.spec.how == "inner":
            fit = known if in_time is None else in_time if known is None else known & in_time
        else:  # a row without a key or a time comes without a partner
            fit = in_time
        if side == _RIGHT:
            keys, moments = hashes, [pa.array(timed.times)]
        else:
            keys = timed.floors if known is None else np.where(known, timed.floors, LOWEST)
            moments = [pa.array(timed.times, mask=None if known is None else ~known), pa.array(hashes)]
        Arriving.__init__(self, join, side, batch, numbers, [keys], fit, moments)
        self.lookup = None
        self.timed = timed
        self._reached = timed.newest if self.positions is None else timed.newest[self.positions]
        self._asof = self._join = join

    @property
    def at_hand(self) -> int:
        """Rows are not looked up as they arrive."""
        return 0

    def work(self, fuel: int) -> int:
        """Take the next rows."""
        join = self._asof
        if self.next == self.rows:
            return 1
        self.kept = join.must_keep(self.input)
        count = join.admit(self, min(fuel, self.rows - self.next))
        self.take_slice(count)
        return count

    def take_slice(self, count: int) -> None:
        """Move the next rows into memory, and let their times count."""
        keys, parts, columns = self.piece(count)
        join = self._asof
        self.next += count
        if self.kept:
            join.tables[self.input].append(keys, parts, columns, join.ticks(count))
            join.meter.inserts += count
        join.rows_taken(self.input, keys, int(self._reached[self.next - 1]))

    def finish(self) -> None:
        """The times of rows that match nothing count, too."""
        if len(self.timed.newest):
            self._asof.has_reached(self.input, int(self.timed.newest[-1]))

    def to_state(self) -> dict[str, Any]:
        """What was known before the rows that wait."""
        return {**super().to_state(), "newest": self.newest_before(self.unfinished().start)}

    def newest_before(self, row: int) -> int:
        """The newest time of the input before a row of the batch."""
        return int(self.timed.newest[row - 1]) if row else self.timed.before
