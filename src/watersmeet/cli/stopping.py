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
