"""Faults on purpose: one plan says which operation fails, and how; stores, the disk, memory and buckets ask it.

Every operation is asked for by its kind, is counted, and is carried out, or not, or only half, or it is carried out and
its answer is lost, or whoever asks for it dies there. Once dead, it does nothing any more: a process that was killed
does not clean up.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from watersmeet.memory import Reservation

Made = TypeVar("Made")


class Killed(BaseException):
    """What a SIGKILL looks like: nothing is cleaned up."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to an operation."""

    operation: str
    """Its kind; empty: any."""
    at: int
    """The first of its kind that it happens to, from 1."""
    how: str = "error"
    """`error`: it is not carried out; `after`: it is, and there is an error nevertheless; `half`: so much of it is,
    where that can be; `kill`, `kill after`: whoever asked for it is dead from then on; `blind`: what is opened gives
    nothing; `slow`: it takes long, and nothing else is wrong with it."""
    error: int = errno.ENOSPC
    lasts: int = 1
    """How many of its kind it happens to."""

    def __str__(self) -> str:
        name = errno.errorcode.get(self.error, str(self.error))
        told = {"error": name, "after": f"done, yet {name}", "half": f"half, then {name}"}.get(self.how, self.how)
        return f"{told} at {self.operation or 'operation'} {self.at}" + (f" and on, {self.lasts}" * (self.lasts > 1))


class Faults:
    """Counts operations, and says which of them fail.

    >>> faults = Faults([Fault("write", at=2, error=errno.EIO)])
    >>> faults.perform("write", lambda: "one")
    'one'
    >>> faults.perform("write", lambda: "two")
    Traceback (most recent call last):
    OSError: [Errno 5] Input/output error
    >>> dict(faults.calls), dict(faults.injected)
    ({'write': 2}, {'write EIO': 1})
    """

    def __init__(self, planned: Iterable[Fault] = (), before: Callable[[str], None] = lambda operation: None) -> None:
        """`before` is told of every operation before it is carried out; it may raise `Killed`."""
        self.planned = list(planned)
        self.before = before
        self.on_kill: Callable[[], None] = lambda: None
        self.on_slow: Callable[[], None] = lambda: None
        self.calls: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.failed: list[Fault] = []
        """Those that have happened, in their order."""
        self.on = True
        self._lock = threading.Lock()
        self._counting: int | None = None
        """Which thread has the lock: what it does besides is done by finalizers of garbage that is collected then."""

    @property
    def failures(self) -> int:
        """How many operations have failed."""
        return self.injected.total()

    def due(self, operation: str) -> Fault | None:
        """Count an operation, and say what happens to it; None: nothing."""
        if self._counting == threading.get_ident():
            return None
        with self._lock:
            self._counting = threading.get_ident()
            try:
                return self._counted(operation)
            finally:
                self._counting = None

    def _counted(self, operation: str) -> Fault | None:
        if not self.on:
            return None
        self.calls[operation] += 1
        total = self.calls.total()
        for fault in self.planned:
            if fault.operation in ("", operation):
                number = self.calls[operation] if fault.operation else total
                if fault.at <= number < fault.at + fault.lasts:
                    self.injected[f"{operation} {_named(fault)}"] += 1
                    if fault.how != "slow":
                        self.failed.append(fault)
                    return fault
        return None

    def perform(self, operation: str, act: Callable[[], Made], half: Callable[[], Made] | None = None) -> Made:
        """Carry out an operation, or whatever the plan says of it."""
        if not self.on or self._counting == threading.get_ident():
            return act()
        self.before(operation)
        fault = self.due(operation)
        if fault is not None and fault.how == "slow":
            self.on_slow()
        elif fault is not None:
            if fault.how.endswith("after"):
                act()
            elif fault.how == "half" and half is not None:
                half()
            self.refuse(fault)
        return act()

    def refuse(self, fault: Fault) -> NoReturn:
        """End an operation as the plan says."""
        if fault.how.startswith("kill"):
            self.on_kill()
            raise Killed
        raise made_error(fault.error)


def _named(fault: Fault) -> str:
    name = errno.errorcode.get(fault.error, str(fault.error))
    return name if fault.how == "error" else f"{name} {fault.how}" if fault.how in ("after", "half") else fault.how


def made_error(number: int) -> OSError:
    """What the system would say."""
    return OSError(number, os.strerror(number))


class Memory:
    """While this is entered, reservations that need more of a budget ask first, and may be refused.

    >>> from watersmeet.memory import Budget
    >>> faults = Faults([Fault("reserve", at=2)])
    >>> with Memory(faults):
    ...     rows = Budget(100).reservation("rows")
    ...     rows.try_grow(10), rows.try_grow(10), rows.try_grow(10)
    (True, False, True)
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        self._real = real = Reservation._try_hold
        faults = self._faults

        def try_hold(claim: Reservation, size: int) -> bool:
            if size > claim.held and faults.due("reserve") is not None:
                return False
            return real(claim, size)

        Reservation._try_hold = try_hold  # type: ignore[method-assign]

    def __exit__(self, *_: Any) -> None:
        Reservation._try_hold = self._real  # type: ignore[method-assign]
