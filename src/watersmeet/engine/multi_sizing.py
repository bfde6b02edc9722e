"""How an operator of several inputs divides the memory it is given, and the least it can work in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.core.errors import BudgetError
from watersmeet.engine.sizing import Grain
from watersmeet.memory import format_bytes
from watersmeet.runs.multi_catalogue import SORT_BYTES
from watersmeet.tables.hash_table import Layout

_KIB = 1024
_MIB = 1024 * 1024
_LEAST_BLOCK_ROWS = 8
_LEAST_CHUNK = 256
_LEAST_COMBINATIONS = 32
_LEAST_SORTED = 128
_LEAST_BUFFER = 2 * _KIB
_LEAST_BLOCKS = 14
"""Of each input: two open ones, and some more to make partitions of."""


@dataclass(frozen=True, slots=True)
class ManySizing:
    """The parts of a budget. What is not a buffer belongs to the tables."""

    inputs: int
    combinations: int
    """Partial combinations at each level of a look-up, and whole ones that wait to be handed out."""
    run_rows: int
    """Rows of a run, which are sorted while it is written."""
    output_bytes: int
    page_bytes: int
    input_bytes: int
    layout: Layout
    place_bytes: int = 0
    """Of each of the combinations; 0: as look-ups that are not merged need it."""
    beyond: int = 0
    """What of all that lies beyond the budget."""

    @property
    def buffers(self) -> int:
        """Bytes set aside for all buffers."""
        return (
            self.combinations * (self.place_bytes or place_bytes(self.inputs))
            + self.run_rows * SORT_BYTES
            + self.output_bytes
            + 2 * self.page_bytes
            + self.inputs * self.input_bytes
            - self.beyond
        )

    @classmethod
    def least(cls, row_bytes: Sequence[int]) -> int:
        """The smallest budget that works, for the inputs' bytes a row (without their strings)."""
        inputs = len(row_bytes)
        smallest = cls._of(inputs, 0, max(row_bytes), _LEAST_BLOCK_ROWS, Grain())
        blocks = inputs * _LEAST_BLOCKS * (_LEAST_BLOCK_ROWS * max(row_bytes) + _LEAST_CHUNK)
        return smallest.buffers + blocks + 4 * _KIB

    @classmethod
    def divide(cls, memory: int, row_bytes: Sequence[int], what: str, grain: Grain | None = None) -> ManySizing:
        """Divide a budget; an error if it is too small."""
        least = cls.least(row_bytes)
        if memory < least:
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for {what} of these rows; allow at least "
                f"{format_bytes(least)}"
            )
        return cls._of(len(row_bytes), memory, max(row_bytes), None, grain or Grain())

    @classmethod
    def _of(cls, inputs: int, memory: int, widest: int, rows: int | None, grain: Grain) -> ManySizing:
        combinations = grain.pairs or _between(_LEAST_COMBINATIONS, memory // 16 // place_bytes(inputs), 8192)
        run_rows = _between(_LEAST_SORTED, memory // 16 // SORT_BYTES, 1 << 20)
        output = _between(2 * _LEAST_BUFFER, memory // 16, 8 * _MIB)
        page = grain.page_bytes or _between(_LEAST_BUFFER, memory // 64, 512 * _KIB)
        buffered = _between(_LEAST_BUFFER, memory // 16 // inputs, 2 * _MIB)
        sizing = cls(inputs, combinations, run_rows, output, page, buffered, Layout(1, rows or 1, _LEAST_CHUNK))
        if rows is not None:
            return sizing
        rest = memory - sizing.buffers
        bits = _between(1, (rest // (48 * _KIB * inputs)).bit_length() - 1, 5)
        if grain.partitions is not None:
            bits = grain.partitions.bit_length() - 1
        # Every partition of every input has an open block and an open chunk: they may take a quarter of the memory.
        share = rest // 4 // (inputs << bits)
        block_rows = _power(_between(_LEAST_BLOCK_ROWS, share // 2 // widest, 4096))
        chunk = _power(_between(_LEAST_CHUNK, share // 2, 64 * _KIB))
        return cls(inputs, combinations, run_rows, output, page, buffered, Layout(bits, block_rows, chunk))


def place_bytes(inputs: int) -> int:
    """Of each place in the buffers: at each level its rows, hashes and places, and the scratch arrays of filtering."""
    return inputs * (8 * inputs + 24) + 48 * inputs


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def _power(value: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (value.bit_length() - 1)
