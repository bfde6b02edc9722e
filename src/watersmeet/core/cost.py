"""Work, counted. A cost model turns counts into virtual seconds; an operator never sees seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of the work done in one step; costs add up.

    >>> Cost(probes=2, results=1) + Cost(probes=3)
    Cost(hashes=0, inserts=0, probes=5, comparisons=0, results=1, pages_read=0, pages_written=0, seeks=0, runs=0, \
disk_rows=0, nested=0)
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
    runs: int = 0
    """Runs written right behind another one: random accesses, too, if each partition had a place of its own."""
    disk_rows: int = 0
    """Rows read and written, of window joins: what moves where a disk is charged by the byte and not by the page."""
    nested: int = 0
    """Rows that nested loops would compare the rows looked up with: all of their partition on the other side."""

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
            self.runs + other.runs,
            self.disk_rows + other.disk_rows,
            self.nested + other.nested,
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
            -other.runs,
            -other.disk_rows,
            -other.nested,
        )


class Meter:
    """The running, mutable counterpart of `Cost`, cheap to bump from the hot path."""

    __slots__ = (
        "comparisons",
        "disk_rows",
        "hashes",
        "inserts",
        "nested",
        "pages_read",
        "pages_written",
        "probes",
        "results",
        "runs",
        "seeks",
    )

    def __init__(self) -> None:
        self.hashes = self.inserts = self.probes = self.comparisons = 0
        self.results = self.pages_read = self.pages_written = self.seeks = 0
        self.runs = self.disk_rows = self.nested = 0

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
            self.runs,
            self.disk_rows,
            self.nested,
        )
