"""What both inputs of an as-of join share where their rows go to disk: names, figures, and memory to remember runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from watersmeet.core.cost import Meter
from watersmeet.memory import Budget
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spill.store import Store

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
