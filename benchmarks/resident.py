"""A process that joins rows made as they are asked for within a budget, and says by how much it grew, as JSON.

`python -m benchmarks.resident WORKLOAD DRIVER BYTES ROWS`
"""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks import bounded
from benchmarks.inputs import TEXT_WIDTH, lazy, lazy_matches, lazy_zipf, spec_of, zipf_matches
from benchmarks.ours import Run, arrivals, drive, live

EVERY = 0.005
KEYS_A_ROW, SKEW = 5, 0.8
"""Of rows whose keys are by Zipf's law."""
WORKLOADS: Mapping[str, Callable[[int, int], Iterator[pa.RecordBatch]]] = {
    "bounded": lambda side, rows: lazy(side, rows, rows, bounded.TEXT_WIDTH),
    "uniform": lambda side, rows: lazy(side, rows, rows, TEXT_WIDTH),
    "zipf": lambda side, rows: lazy_zipf(side, rows, KEYS_A_ROW * rows, SKEW, TEXT_WIDTH),
}
"""What `bounded` and `short` join: so many rows of a side."""
WARMING = 200_000


class Sampler(threading.Thread):
    """Looks at the resident set every few milliseconds, for systems that do not keep its peak."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process()
        self._over = threading.Event()
        self.most = self.now()

    def now(self) -> int:
        """Bytes resident."""
        return int(self._process.memory_info().rss)

    def run(self) -> None:
        """Until told to stop."""
        while not self._over.wait(EVERY):
            self.most = max(self.most, self.now())

    def stop(self) -> int:
        """The most that was seen."""
        self._over.set()
        self.join()
        return self.most


def forget_peak() -> bool:
    """Let Linux begin a new peak of the resident set; False where that cannot be."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak() -> int:
    """The most bytes resident since then, as Linux says."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def expected(workload: str, rows: int) -> int:
    """How many pairs there are."""
    return zipf_matches(rows, KEYS_A_ROW * rows, SKEW) if workload == "zipf" else lazy_matches(rows, rows)


def join(sides: list[Iterator[pa.RecordBatch]], driver: str, memory: int) -> Run:
    """The join, by hand or as a user runs it."""
    if driver == "wm.join":
        return live(sides[0], sides[1], memory)
    schema = next(lazy(0, 1, 1, TEXT_WIDTH)).schema
    return drive(spec_of(schema, schema), arrivals(*sides), memory)


def main(workload: str, driver: str, memory: int, rows: int) -> dict[str, float]:
    """Warm up, and join under observation."""
    # In so little memory it spills, and merges its runs: all of its code is loaded.
    join([WORKLOADS["uniform"](side, WARMING) for side in (0, 1)], driver, 1 << 20)
    sides = [WORKLOADS[workload](side, rows) for side in (0, 1)]
    gc.collect()
    pa.default_memory_pool().release_unused()
    sampler = Sampler()
    exact = forget_peak()
    idle = sampler.now()
    sampler.start()
    run = join(sides, driver, memory)
    most = max(sampler.stop(), peak() if exact else 0)
    return {"growth": most - idle, "idle": idle, "peak": run.peak, "rows": run.result[0], "seconds": run.total}


if __name__ == "__main__":
    json.dump(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), sys.stdout)
