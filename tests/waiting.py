"""How tests wait: for events, never for time.

How long anything takes depends on what else the machine does. A test that lets time pass says so to a `Clock`; a test
that needs another thread or process to have come somewhere waits `until` it has.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
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


def is_in(folder: Path, pattern: str) -> bool:
    """Whether such a file is somewhere below a folder, in which others make and remove files all the while."""
    try:
        return any(folder.rglob(pattern))
    except FileNotFoundError:  # a folder was gone before it was looked into
        return False


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

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
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


class IdleTime(Clock):
    """A clock that goes on only while all threads of a join sleep: on the slowest machine no silence goes unnoticed.

    Sources sleep by it; the driver's threads sleep on conditions that come from it.
    """

    STEP = 0.005

    def __init__(self) -> None:
        super().__init__()
        self._consumer = threading.current_thread()
        self._turn = threading.Condition()
        self._due: dict[threading.Thread, float] = {}
        self._bell = Sleepers()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> IdleTime:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ticker.join()

    def condition(self) -> Sleepers:
        """A condition for the driver of the next join."""
        self._bell = Sleepers()
        return self._bell

    def sleep(self, seconds: float) -> None:
        me = threading.current_thread()
        with self._turn:
            self._due[me] = self.now + seconds
            self._turn.wait_for(lambda: self.now >= self._due[me] or self._over.is_set())
            del self._due[me]

    def _tick(self) -> None:
        while not self._over.wait(0.001):
            bell = self._bell
            with bell, self._turn:
                if bell.holds(self._consumer) and all(map(self._sleeps, _readers())):
                    self.now += self.STEP
                    self._turn.notify_all()
                    bell.notify_all()
        with self._turn:
            self._turn.notify_all()

    def _sleeps(self, reader: threading.Thread) -> bool:
        return self._due.get(reader, 0.0) > self.now or self._bell.holds(reader)


def _readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watersmeet-read-")]
