"""What a parser may do with any input: give a result, or one of our errors; soon, and in proportion."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from watersmeet.core.errors import WatersmeetError

SECONDS = 20
"""After which a parser hangs, on a busy machine, too."""
ROOM = 1 << 30
"""Bytes of addresses that it may take, unless more is allowed: a hundred times what any input here needs."""


class Hung(BaseException):
    """It took too long; no parser's `except Exception` may take it for something else."""


@contextmanager
def guarded(room: int = ROOM) -> Iterator[None]:
    """Within, our errors are fine, all others are faults; so is what takes too long, or too much memory."""
    pa.array([1])  # what Arrow's allocator reserves for good is not this input's
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, _hung)
    resource.setrlimit(resource.RLIMIT_AS, (_addresses() + room, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with suppress(WatersmeetError):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def _hung(*_: object) -> None:
    raise Hung(f"no answer within {SECONDS} seconds")


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
