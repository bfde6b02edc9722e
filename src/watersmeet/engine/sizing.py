"""How an operator divides the memory it is given, and the least it can work in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.core.errors import BudgetError, SpecError
from watersmeet.matching.found_pairs import PAIR_BYTES
from watersmeet.memory import format_bytes
from watersmeet.tables.hash_table import Layout

_KIB = 1024
_MIB = 1024 * 1024
_LEAST_BLOCKS = 24
_LEAST_BLOCK_ROWS = 8
_LEAST_CHUNK = 256
_LEAST_BUFFERS = 22 * _KIB
_LEAST_GRAIN = {"page_bytes": 16, "fan_in": 2, "block_rows": 1, "pairs": 1, "bucket_rows": 1, "records": 0}


@dataclass(frozen=True, slots=True)
class Grain:
    """How fine an operator's units are, where the memory alone should not decide; None: it does.

    >>> Grain(partitions=16, page_bytes=1024).fan_in is None
    True
    """

    partitions: int | None = None
    """How many partitions rows are hashed into, a power of two."""
    page_bytes: int | None = None
    """Of a disk page."""
    fan_in: int | None = None
    """Runs of each side that a merging operation takes."""
    block_rows: int | None = None
    """Rows of a block, where sorted blocks are flushed."""
    table_rows: int | None = None
    """Rows of a block of a table in partitions, a power of two."""
    pairs: int | None = None
    """Pairs that may wait to be handed out."""
    bucket_rows: int | None = None
    """Rows that a bucket of a join of two inputs' hash index may hold, on average: with more, the index doubles. One
    unless given. So many that it never doubles leave one bucket to a partition, and every row is compared with all."""
    records: int | None = None
    """Bytes set aside for the records of runs, and as many for those of visits: rows never get them."""

    def __post_init__(self) -> None:
        if self.partitions is not None and (self.partitions < 1 or self.partitions & (self.partitions - 1)):
            raise SpecError(f"{self.partitions} partitions cannot be told apart by bits of a hash; give a power of two")
        if self.table_rows is not None and (self.table_rows < 1 or self.table_rows & (self.table_rows - 1)):
            raise SpecError(f"blocks of {self.table_rows} rows cannot be told apart by bits; give a power of two")
        for name, least in _LEAST_GRAIN.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise SpecError(f"{name}={value} is too small; give at least {least}")


@dataclass(frozen=True, slots=True)
class Sizing:
    """The parts of a budget. What is not a buffer belongs to the tables."""

    pairs: int
    """Pairs that may wait to be handed out."""
    output_bytes: int
    page_bytes: int
    """Of one disk page, on its way to the disk or back."""
    input_bytes: int
    """Of rows received and not yet worked off, as they are copied together."""
    layout: Layout
    pair_bytes: int = PAIR_BYTES
    """Of each place in the buffer of pairs."""
    beyond: int = 0
    """Of the buffers for results, what lies beyond the budget: see `Confluence`."""

    @property
    def buffers(self) -> int:
        """Bytes set aside for all buffers."""
        results = self.pairs * self.pair_bytes + self.output_bytes - self.beyond
        return results + 2 * self.page_bytes + 2 * self.input_bytes

    @classmethod
    def least(cls, row_bytes: Sequence[int]) -> int:
        """The smallest budget that works, for the two sides' bytes a row (without their strings)."""
        return _LEAST_BUFFERS + _LEAST_BLOCKS * (_LEAST_BLOCK_ROWS * max(row_bytes) + _LEAST_CHUNK)

    @classmethod
    def divide(
        cls, memory: int, row_bytes: Sequence[int], partitioned: bool, what: str, grain: Grain | None = None
    ) -> Sizing:
        """Divide a budget; an error if it is too small."""
        least = cls.least(row_bytes)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for {what} of these rows; allow at least "
                f"{format_bytes(least)}"
            )
        grain = grain or Grain()
        pairs = grain.pairs or _between(64, memory // 16 // PAIR_BYTES, 16_384)
        output = _between(4 * _KIB, memory // 16, 8 * _MIB)
        page = grain.page_bytes or _between(2 * _KIB, memory // 64, 512 * _KIB)
        buffered = _between(2 * _KIB, memory // 32, 2 * _MIB)
        rest = memory - pairs * PAIR_BYTES - output - 2 * page - 2 * buffered
        if not partitioned:
            rows = _power(_between(_LEAST_BLOCK_ROWS, rest // 16 // max(row_bytes), 4096))
            return cls(pairs, output, page, buffered, cls._layout(0, rows, rest // 16, grain))
        bits = _between(1, (rest // (96 * _KIB)).bit_length() - 1, 5)
        if grain.partitions is not None:
            bits = grain.partitions.bit_length() - 1
        # Every partition of both sides has an open block and an open chunk: they may take a quarter of the memory.
        share = max(0, rest - 2 * (grain.records or 0)) // 4 // (2 << bits)
        rows = grain.table_rows or _power(_between(_LEAST_BLOCK_ROWS, share // 2 // max(row_bytes), 4096))
        return cls(pairs, output, page, buffered, cls._layout(bits, rows, share // 2, grain))

    @staticmethod
    def _layout(bits: int, rows: int, share: int, grain: Grain) -> Layout:
        return Layout(bits, rows, _power(_between(_LEAST_CHUNK, share, 64 * _KIB)), grain.bucket_rows or 1)


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def _power(value: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (value.bit_length() - 1)
