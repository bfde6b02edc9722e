"""Work, counted. A cost model turns counts into virtual seconds; an operator never sees seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of the work done in one step; costs add up.

    >>> Cost(probes=2, results=1) + Cost(probes=3)
    Cost(hashes=0, inserts=0, probes=5, comparisons=0, results=1, pages_read=0, pages_written=0, seeks=0)
    """

    hashes: int = 0
    """Keys hashed."""
    inserts: int = 0
    """Rows put into a table in memory (the papers' moves)."""
    probes: int = 0
    """Rows looked up in a table."""
    comparisons: int = 0
    """Candidate rows visited by those look-ups."""
    results: int = 0
    """Pairs emitted."""
    pages_read: int = 0
    """Disk pages read, all accesses."""
    pages_written: int = 0
    """Disk pages written, all accesses."""
    seeks: int = 0
    """How many of the page accesses were random: the first page of each contiguous read or write."""

    def __add__(self, other: Cost) -> Cost:
        # Written out: this is done at every step, and a loop over the fields takes five times as long.
        return Cost(
            self.hashes + other.hashes,
            self.inserts + other.inserts,
            self.probes + other.probes,
            self.comparisons + other.comparisons,
            self.results + other.results,
            self.pages_read + other.pages_read,
            self.pages_written + other.pages_written,
            self.seeks + other.seeks,
        )

    def __sub__(self, other: Cost) -> Cost:
        return self + Cost(
            -other.hashes,
            -other.inserts,
            -other.probes,
            -other.comparisons,
            -other.results,
            -other.pages_read,
            -other.pages_written,
            -other.seeks,
        )


class Meter:
    """The running, mutable counterpart of `Cost`, cheap to bump from the hot path."""

    __slots__ = (
        "comparisons",
        "hashes",
        "inserts",
        "pages_read",
        "pages_written",
        "probes",
        "results",
        "seeks",
    )

    def __init__(self) -> None:
        self.hashes = self.inserts = self.probes = self.comparisons = 0
        self.results = self.pages_read = self.pages_written = self.seeks = 0

    def total(self) -> Cost:
        """Everything counted so far."""
        return Cost(
            self.hashes,
            self.inserts,
            self.probes,
            self.comparisons,
            self.results,
            self.pages_read,
            self.pages_written,
            self.seeks,
        )
