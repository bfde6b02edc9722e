"""How a signal ends a command."""

from __future__ import annotations

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
