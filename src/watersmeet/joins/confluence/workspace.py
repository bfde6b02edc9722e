"""The buffers through which rows of Confluence go, and how memory is divided for it."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.matching.owing import Slice
from watersmeet.memory import Budget
from watersmeet.runs.stretches import GatheringRoom

_LEAST_SLICE = 64
MOST_SLICE = 1 << 16
_BUFFER_SHARE = 16
_MOST_BLOCK = 256 << 10
"""Bytes of rows of a run that share a description and a checksum, and are written at once."""
FLOOR = 2 << 20
"""Bytes that buffers have in any memory, so that batches are of a useful size."""
_LEAST_RESULT = 64
"""Bytes of a narrow result: more of them at once than fit into a batch would wait for nothing."""
_MOST_ARRIVING = 2 << 20
_LEAST_PAIRS = 64
_WINDOW = 1 << 15
"""Hashes of runs that are read at once."""
_MOST_PAIRS = 1 << 16
_PAIR_BYTES = 32
"""Of each place in the buffer: the pair, its width where widths differ, and whether it is one."""


def _pairs_for(output_bytes: int) -> int:
    """How many pairs may wait that become batches of so many bytes."""
    return max(_LEAST_PAIRS, min(_MOST_PAIRS, output_bytes // _LEAST_RESULT))


def divided(usual: Sizing, memory: int, floor: int, grain: Grain | None) -> Sizing:
    """A budget as it is usually divided, but that results go out in batches of a useful size, however small it is."""
    output = max(usual.output_bytes, floor // 2)
    pairs = grain.pairs if grain is not None and grain.pairs else _pairs_for(output)
    counted = min(output + pairs * _PAIR_BYTES, usual.output_bytes + _pairs_for(usual.output_bytes) * _PAIR_BYTES)
    beyond = output + pairs * _PAIR_BYTES - counted
    # Rows that arrive are not copied: of theirs, only hashes and numbers are held until they are in a memtable.
    arriving = max(usual.input_bytes, min(_MOST_ARRIVING, memory // 8))
    beyond += 2 * (arriving - usual.input_bytes)
    return replace(usual, output_bytes=output, pairs=pairs, pair_bytes=_PAIR_BYTES, input_bytes=arriving, beyond=beyond)


class Workspace:
    """Buffers beside those of every operator: for rows that are sorted, that are written, and for strings of runs."""

    def __init__(
        self,
        budget: Budget,
        memory: int,
        sizing: Sizing,
        *,
        floor: int,
        most_slice: int,
        by_range: bool,
        copies_strings: bool,
    ) -> None:
        """They are within the budget but for what the floor gives them beyond their share of it."""
        share = memory // _BUFFER_SHARE
        rows = max(_LEAST_SLICE, min(most_slice, max(share, floor // 4) // Slice.bytes_for(1, by_range)))
        reads = bool(floor) and copies_strings
        window = 0 if by_range or not reads else _WINDOW
        self.slice = Slice(rows, by_range, window)
        """Through which rows go that settle, or are written."""
        self.block_bytes = max(sizing.page_bytes, min(_MOST_BLOCK, max(share, floor // 8)))
        """Of rows that are written at once, or copied because they stay in memory."""
        self.gathering = GatheringRoom(sizing.output_bytes) if reads else None
        """Through which rows of runs become results; None: they are gathered where they are mapped."""
        sizes = {"sorting": Slice.bytes_for(rows, by_range) + 8 * window, "writing": self.block_bytes}
        if self.gathering is not None:
            sizes["gathering"] = self.gathering.nbytes
        self.beyond = sizing.beyond
        """Bytes of all buffers that come on top of the budget."""
        for name, size in sizes.items():
            counted = min(size, share) if floor else size
            budget.reservation(name).grow(counted)
            self.beyond += size - counted
