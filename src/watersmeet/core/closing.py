"""What is used in a `with` and closed behind it."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Ends with `close()` where a `with` ends, however that is.

    >>> class Door(Closing):
    ...     def close(self):
    ...         print("closed")
    >>> with Door():
    ...     print("open")
    open
    closed
    """

    __slots__ = ()

    def close(self) -> None:
        """Let go of everything; harmless when that has been done."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
