"""What an operator says of itself while it runs, beyond memory and disk: figures for people, and for a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookupFigures:
    """How the rows of a stream fared with a relation."""

    answered: int
    """Rows of the stream that have met all their partners."""
    misses: int
    """Those that had none."""
    hits: int
    """Rows that found their partition in memory."""
    bytes_read: int
    """Of the relation."""
    delay_p50: float
    delay_p99: float
    """Seconds from a row's arrival in the join to its last partner."""


@dataclass(frozen=True, slots=True)
class PromiseFigures:
    """What a join made of its inputs' promises, by input."""

    kept: tuple[int, ...]
    """Rows in memory."""
    purged: tuple[int, ...]
    """Rows taken out of memory because of a promise."""
    dropped: tuple[int, ...]
    """Rows never kept because of a promise."""
    broken: tuple[int, ...]
    """Rows that came although they were promised not to."""


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Where a window join is."""

    late: tuple[int, ...]
    """Rows of each input that came later than allowed."""
    rows: int
    """Rows that are remembered, in memory and on disk."""
    delays: tuple[float, float]
    """Half of the results were found so many seconds after their later row came; and 99 in 100."""
    delayed: int = 0
    """Rows that met the last of what they had to meet after they had left their own window."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long pairs waited, in seconds, that were not found as their later row came; and what still waits."""

    p50: float
    p99: float
    most: float
    owing: int
    """Rows that have yet to meet what the other input has on disk."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that an operator says of itself; what does not concern its kind of join is None."""

    lookup: LookupFigures | None = None
    promises: PromiseFigures | None = None
    window: WindowFigures | None = None
    lateness: Lateness | None = None
