"""When rows settle their debts to the disk before they must: as soon as there are enough of them."""

from __future__ import annotations

HASHES_PER_ROW = 32
"""Of the other input's runs, that may be gone through for each row which settles: about as much work as taking the row in."""
LEAST_ROWS = 4096
"""Fewer are not worth the beginning."""


def worth_settling(owing: int, hashes: int) -> bool:
    """Whether so many rows that owe make up for going through so many hashes.

    The more there is on disk, the more rows wait for each other; how late they are grows with what is there, and never
    with how long the join has run since.

    >>> worth_settling(5_000, 100_000), worth_settling(5_000, 1_000_000), worth_settling(100, 100)
    (True, False, False)
    """
    return owing >= max(LEAST_ROWS, hashes // HASHES_PER_ROW)
