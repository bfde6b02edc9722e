"""How a run on the command line is stopped: a signal unwinds the stack, so that everything is cleaned up."""

from __future__ import annotations

import importlib.machinery
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALLED = 128
"""Added to the number of a signal, it is the exit code."""


class Stopped(BaseException):
    """A signal asked the run to end: not an error, so nothing but the command line catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = SIGNALLED + number


def stop_behind(error: BaseException | None) -> Stopped | None:
    """The stop that an error came of: Python and libraries make another error of what is raised in some places.

    >>> error = RuntimeError("Error calling __set_name__")
    >>> error.__cause__ = Stopped(15)
    >>> stop_behind(error).number, stop_behind(ValueError())
    (15, None)
    """
    while error is not None and not isinstance(error, Stopped):
        error = error.__cause__ or error.__context__
    return error


AGAIN = 0.05
"""Seconds until a stop that Python swallowed, or that came at a bad moment, is raised again."""
INSIST = 2.0
"""Seconds until it is looked whether a run is on its way out after a stop: a library may have swallowed it."""
FRAGILE = "llvmlite.binding"
"""Python code that hands memory to LLVM and takes it back, and breaks where an exception comes between two lines of it:
memory was freed twice, and code that was being loaded called as if it were there."""
FORGETFUL = {
    importlib.machinery.SourceFileLoader.source_to_code.__code__,
    importlib.machinery.ExtensionFileLoader.create_module.__code__,
    importlib.machinery.ExtensionFileLoader.exec_module.__code__,
}
"""Where Python runs C code that forgets what is raised in it, or makes another error of it. The compiler works out
constants such as 2**31, and forgets all but a KeyboardInterrupt; an extension that its own imports failed."""


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP unwind the stack once, so that everything is cleaned up; later ones are too late."""
    numbers = [signal.SIGINT, signal.SIGTERM] + ([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])
    alarm = getattr(signal, "SIGALRM", None)
    complain = sys.unraisablehook

    def stop(number: int, frame: FrameType | None = None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        fragile = _is_fragile(frame)
        if not stop_again(number, AGAIN if fragile else INSIST) or not (fragile or _is_being_stopped()):
            raise Stopped(number)

    def stop_again(number: int, seconds: float) -> bool:
        """Stop a little later; False where there is no alarm clock."""
        if alarm is None:  # pragma: no cover - Windows
            return False
        before.setdefault(alarm, signal.signal(alarm, lambda _alarm, frame: stop(number, frame)))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return True

    def insist(swallowed: sys.UnraisableHookArgs) -> None:
        """Python swallows what is raised while an object is being destroyed or called back by a library."""
        stopped = swallowed.exc_value
        if not isinstance(stopped, Stopped):
            complain(swallowed)
        elif not stop_again(stopped.number, AGAIN):  # pragma: no cover - Windows: whoever asks again is heard
            signal.signal(stopped.number, stop)

    before: dict[signal.Signals, Any] = {}
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # started with nohup, or in the background
            before[number] = signal.signal(number, stop)
    sys.unraisablehook = insist
    try:
        yield
    finally:
        sys.unraisablehook = complain
        if alarm in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_fragile(frame: FrameType | None) -> bool:
    """Whether the code that a signal interrupted was called by code that must not be left at any line."""
    while frame is not None:
        if frame.f_code in FORGETFUL or str(frame.f_globals.get("__name__")).startswith(FRAGILE):
            return True
        frame = frame.f_back
    return False


def _is_being_stopped() -> bool:
    """Whether this is called from what is cleaned up on the way out."""
    return stop_behind(sys.exc_info()[1]) is not None
