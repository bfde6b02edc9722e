"""Work, counted. A cost model turns counts into virtual seconds; an operator never sees seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields


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
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


class Meter:
    """The running, mutable counterpart of `Cost`, cheap to bump from the hot path."""

    __slots__ = tuple(f.name for f in fields(Cost))

    hashes: int
    inserts: int
    probes: int
    comparisons: int
    results: int
    pages_read: int
    pages_written: int
    seeks: int

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def total(self) -> Cost:
        """Everything counted so far."""
        return Cost(*(getattr(self, name) for name in self.__slots__))
