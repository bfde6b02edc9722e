"""When rows settle their debts to the disk, as arithmetic: how many hashes may be gone through for how many rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settling:
    """Rows settle as soon as they are enough; and wait for others, on disk if need be, where they are too few.

    The more there is on disk, the more rows wait for each other: how late they are grows with what is there, and not
    with how long the join has run. Going through a hash takes some nanoseconds, with its share of the pages that are
    mapped for those that match; taking a row in takes some dozens.

    >>> usual = Settling()
    >>> usual.is_worth_it(5_000, 100_000), usual.is_worth_it(5_000, 1_000_000), usual.is_worth_it(100, 100)
    (False, False, False)
    >>> usual.is_worth_it(20_000, 100_000)
    True
    >>> usual.can_wait(5_000, 30_000), usual.can_wait(5_000, 1_000_000), usual.can_wait(0, 0)
    (False, True, False)
    """

    hashes_per_row: int = 8
    """Of the other input's runs, to be gone through for each row which settles: about as much work as taking it in."""
    idle_hashes_per_row: int = 128
    """The same where there is nothing else to do, at first: see `idle_share`."""
    least_rows: int = 4096
    """Fewer are not worth the beginning."""
    passes_saved: int = 8
    """Where memory is full: rows are written before they have settled if they are so many times fewer than the hashes
    that they owe."""
    most_runs: int = 64
    """That may owe at once."""

    def is_worth_it(self, owing: int, hashes: int) -> bool:
        """Whether so many rows that owe make up for going through so many hashes."""
        return owing >= max(self.least_rows, hashes // self.hashes_per_row)

    def idle_share(self, share: int, is_behind: bool) -> int:
        """How many hashes a row may go through next where there is nothing else to do.

        A settlement that ends when the next is due already was too small: the disk is never idle, and does more for
        its time if more rows settle at once. If there is a pause between two, fewer rows need to wait for each other.

        >>> Settling().idle_share(128, is_behind=True), Settling().idle_share(64, is_behind=False)
        (64, 128)
        """
        if is_behind:
            return max(self.hashes_per_row, share // 2)
        return min(max(self.hashes_per_row, self.idle_hashes_per_row), 2 * share)

    def can_wait(self, owing: int, hashes: int) -> bool:
        """Whether a memory-full of rows had better be written, and settle together with others later.

        Where nothing is owed, nothing is saved: then one side alone leaves memory, and arrivals meet the other there.
        """
        return hashes > 0 and owing * self.passes_saved <= hashes
