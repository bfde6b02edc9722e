"""How tests wait: for events, never for time.

How long anything takes depends on what else the machine does. A test that lets time pass says so to a `Clock`; a test
that needs another thread or process to have come somewhere waits `until` it has.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 240.0
"""Seconds after which something that should have happened never will: a net, which no test is about."""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so; a failure if it never is."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {PATIENCE:.0f} s: {what}"
        time.sleep(0.005)


def ended(process: subprocess.Popen[Any], what: str) -> tuple[Any, Any]:
    """What a process that should end by itself has written; a failure if it does not end."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the process still runs after {PATIENCE:.0f} s: {what}") from None


class Clock:
    """Stands in for the module `time` in a module under test: time passes when a test, or a sleep there, says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Sleepers(threading.Condition):
    """A condition variable that tells which threads sleep on it."""

    def __init__(self) -> None:
        super().__init__()
        self._asleep: set[threading.Thread] = set()

    def wait(self, timeout: float | None = None) -> bool:
        self._asleep.add(threading.current_thread())
        try:
            return super().wait(timeout)
        finally:
            self._asleep.discard(threading.current_thread())

    def notify_all(self) -> None:
        self._asleep.clear()
        super().notify_all()

    def holds(self, thread: threading.Thread) -> bool:
        """Whether a thread sleeps here, and nobody has rung since."""
        with self:
            return thread in self._asleep
