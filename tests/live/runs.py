"""Runs to be shown: samples as joins tell them, without the joins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from watersmeet.core.report import Lateness
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress

MIB = 1 << 20
NAMES = ("orders", "shipments")


def progress(step: int, **more: Any) -> Progress:
    """A tenth of a second further with each step: rows of both inputs, results, memory that fills and empties."""
    usual = Progress(
        NAMES,
        (300 * step, 240 * step),
        700 * step,
        0.05,
        step / 10,
        memory=(step * 97 % 100) * MIB // 50,
        peak=2 * MIB,
        budget=2 * MIB,
        spilled=step // 10 * MIB,
        on_disk=step // 10 * MIB,
        phase="arriving",
        algorithm="confluence",
        lateness=Lateness(0.06, 0.45, 0.5, step % 7 * 100),
        events=(("flushed", step // 10), ("settled in passing", step // 3)),
    )
    return replace(usual, **more)


def history(steps: int = 50, **more: Any) -> History:
    """A run so far."""
    made = History()
    for step in range(steps):
        made.add(progress(step, **more))
    return made
