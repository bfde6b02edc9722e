"""A process that joins lazily made rows within a budget and says by how much it grew: `DRIVER BYTES ROWS`, as JSON."""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.bounded import TEXT_WIDTH
from benchmarks.inputs import lazy, spec_of
from benchmarks.ours import Run, arrivals, drive, live

EVERY = 0.005


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


def join(driver: str, memory: int, rows: int) -> Run:
    """The join, by hand or as a user runs it."""
    left, right = (lazy(side, rows, rows, TEXT_WIDTH) for side in (0, 1))
    if driver == "wm.join":
        return live(left, right, memory)
    schema = next(lazy(0, 1, 1, TEXT_WIDTH)).schema
    return drive(spec_of(schema, schema), arrivals(left, right), memory)


def main(driver: str, memory: int, rows: int) -> dict[str, float]:
    """Warm up, and join under observation."""
    join(driver, 1 << 20, 200_000)  # in so little memory it spills, and merges its runs: all of its code is loaded
    gc.collect()
    pa.default_memory_pool().release_unused()
    sampler = Sampler()
    exact = forget_peak()
    idle = sampler.now()
    sampler.start()
    run = join(driver, memory, rows)
    most = max(sampler.stop(), peak() if exact else 0)
    return {"growth": most - idle, "idle": idle, "peak": run.peak, "rows": run.result[0], "seconds": run.total}


if __name__ == "__main__":
    json.dump(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
