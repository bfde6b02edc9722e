"""How a task divides the memory it is given."""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.core.errors import BudgetError
from watersmeet.matching.found_pairs import PAIR_BYTES
from watersmeet.memory import format_bytes

_KIB = 1024
_MIB = 1024 * 1024
LEAST = 256 * _KIB
INDEX_BYTES = 40
"""Of each row of a segment that is being written: hash, entry, up to two bucket heads, its place in the order."""
MOST_MERGED = 8
"""Runs that are merged at once."""

_MOST_ROWS = 1 << 19
"""Merged in a batch, a fraction of a second's work; much fewer, and runs would have very many segments."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Parts of a budget; together they are less than all of it.

    >>> sizes = Sizes.divide(512 << 20)
    >>> sizes.page_bytes, sizes.segment_rows
    (1048576, 1677721)
    """

    received_bytes: int
    """Of rows received and not yet written; sorting them takes as much again."""
    segment_rows: int
    """Rows of one segment, whose index is built in memory."""
    merge_rows: int
    """Rows that a batch merges of a run that is too long to be merged at once."""
    page_bytes: int
    pairs: int
    output_bytes: int

    @classmethod
    def divide(cls, memory: int) -> Sizes:
        """Divide a budget; an error if it is too small."""
        if memory < LEAST:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for a join task; allow at least {format_bytes(LEAST)}"
            )
        return cls(
            received_bytes=memory // 4,
            segment_rows=memory // 8 // INDEX_BYTES,
            merge_rows=min(memory // 16 // INDEX_BYTES, _MOST_ROWS),
            page_bytes=_between(4 * _KIB, memory // 64, _MIB),
            pairs=_between(64, memory // 16 // PAIR_BYTES, 65_536),
            output_bytes=_between(8 * _KIB, memory // 16, 8 * _MIB),
        )

    @property
    def buffers(self) -> int:
        """All that is not for rows received and for sorting them: an index, pages being merged, pairs, output."""
        merging = 3 * MOST_MERGED * self.page_bytes
        return self.segment_rows * INDEX_BYTES + merging + self.pairs * PAIR_BYTES + self.output_bytes


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
