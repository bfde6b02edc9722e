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
class ShedFigures:
    """What was let go because the join could not keep up, and what that cost."""

    rows: tuple[int, ...]
    """Of each input."""
    share: float
    """Of all rows of an input that may go."""
    pairs: int
    """That would have been found: exactly, if the next two are the same, else an estimate."""
    pairs_low: int
    pairs_high: int
    """They are no less and no more, but for once in a thousand times."""

    @property
    def exact(self) -> bool:
        """Whether all lost pairs were counted."""
        return self.pairs_low == self.pairs_high


@dataclass(frozen=True, slots=True)
class SpoolFigures:
    """How far sources have run ahead of the join, onto the disk."""

    waiting_rows: int
    waiting_bytes: int
    """On disk now."""
    peak_bytes: int
    """The most that were on disk at once."""
    rows: int
    bytes: int
    """That were written so far."""
    room: int
    """Bytes that may be on disk at once."""
    refused: str | None = None
    """Why the disk took no more, when it was last tried: sources wait until it does."""


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
    reached: tuple[float | None, ...] | None = None
    """The newest time that each input has told, in seconds since 1970 if it is `dated`, else as the column has it; None
    where rows are counted."""
    dated: bool = False


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long pairs waited, in seconds, that were not found as their later row came; and what still waits."""

    p50: float
    p99: float
    most: float
    owing: int
    """Rows that have yet to meet what the other input has on disk."""


@dataclass(frozen=True, slots=True)
class Probing:
    """In which order a join of several inputs looks its rows up, and what it has seen."""

    conditions: tuple[str, ...]
    """In words."""
    ends: tuple[tuple[int, int], ...]
    """The two inputs of each condition."""
    matches: tuple[tuple[float, float], ...]
    """Of each condition: how many rows of its first input match one of the second, and the other way round."""
    orders: tuple[tuple[int, ...], ...]
    """For rows of each input, the others as they are looked up."""


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """The last micro-batch of a join on Spark."""

    number: int
    seconds: float
    """From its start to its end."""
    join_seconds: float
    """What the slowest task of the join took of that."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that an operator says of itself; what does not concern its kind of join is None."""

    lookup: LookupFigures | None = None
    promises: PromiseFigures | None = None
    window: WindowFigures | None = None
    lateness: Lateness | None = None
    probing: Probing | None = None
