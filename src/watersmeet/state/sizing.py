"""How an operator divides the memory it is given, and the least it can work in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.core.errors import BudgetError
from watersmeet.memory import format_bytes
from watersmeet.state.pairs import PAIR_BYTES
from watersmeet.state.side import Layout

_KIB = 1024
_MIB = 1024 * 1024
_LEAST_BLOCKS = 24
_LEAST_BLOCK_ROWS = 8
_LEAST_CHUNK = 256
_LEAST_BUFFERS = 22 * _KIB


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

    @property
    def buffers(self) -> int:
        """Bytes set aside for all buffers."""
        return self.pairs * PAIR_BYTES + self.output_bytes + 2 * self.page_bytes + 2 * self.input_bytes

    @classmethod
    def least(cls, row_bytes: Sequence[int]) -> int:
        """The smallest budget that works, for the two sides' bytes a row (without their strings)."""
        return _LEAST_BUFFERS + _LEAST_BLOCKS * (_LEAST_BLOCK_ROWS * max(row_bytes) + _LEAST_CHUNK)

    @classmethod
    def divide(cls, memory: int, row_bytes: Sequence[int], partitioned: bool, what: str) -> Sizing:
        """Divide a budget; an error if it is too small."""
        least = cls.least(row_bytes)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for {what} of these rows; allow at least "
                f"{format_bytes(least)}"
            )
        pairs = _between(64, memory // 16 // PAIR_BYTES, 16_384)
        output = _between(4 * _KIB, memory // 16, 8 * _MIB)
        page = _between(2 * _KIB, memory // 64, 512 * _KIB)
        buffered = _between(2 * _KIB, memory // 32, 2 * _MIB)
        rest = memory - pairs * PAIR_BYTES - output - 2 * page - 2 * buffered
        if not partitioned:
            layout = Layout(0, _power(_between(_LEAST_BLOCK_ROWS, rest // 16 // max(row_bytes), 4096)), 64 * _KIB)
            return cls(pairs, output, page, buffered, cls._with_chunk(layout, rest // 16))
        bits = _between(1, (rest // (96 * _KIB)).bit_length() - 1, 5)
        # Every partition of both sides has an open block and an open chunk: they may take a quarter of the memory.
        share = rest // 4 // (2 << bits)
        rows = _power(_between(_LEAST_BLOCK_ROWS, share // 2 // max(row_bytes), 4096))
        return cls(pairs, output, page, buffered, cls._with_chunk(Layout(bits, rows, 0), share // 2))

    @staticmethod
    def _with_chunk(layout: Layout, share: int) -> Layout:
        return Layout(layout.partition_bits, layout.block_rows, _power(_between(_LEAST_CHUNK, share, 64 * _KIB)))


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def _power(value: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (value.bit_length() - 1)
