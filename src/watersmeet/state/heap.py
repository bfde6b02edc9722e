"""Room for byte strings, in chunks that are claimed before they are filled and given back whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from watersmeet.kernels import gather as kernels
from watersmeet.memory import Reservation
from watersmeet.state.arena import Arena, Pool

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class Heap:
    """Room for byte strings: equal chunks, each owned by one partition; a string longer than a chunk gets several."""

    def __init__(self, capacity: int, chunk: int, partitions: int, claim: Reservation, huge_pages: bool) -> None:
        self.chunk = chunk
        self._arena = Arena(np.uint8, -(-capacity // chunk) * chunk, huge_pages)
        self.bytes: NDArray[np.uint8] = self._arena.array
        self._pool = Pool(chunk, -(-capacity // chunk), claim, self._release)
        self._owned: list[list[int]] = [[] for _ in range(partitions)]
        self.positions = np.zeros(partitions, np.int64)
        self.ends = np.zeros(partitions, np.int64)
        self._room = np.zeros(partitions, np.int64)

    def reserve(self, lengths: Int64, parts: Int32) -> bool:
        """Make sure that rows with strings of these lengths fit."""
        chunks, outsize = kernels.chunks_needed(lengths, parts, self.positions, self.ends, self.chunk, self._room)
        return self._pool.reserve(int(chunks)) and self._pool.reserve_runs(int(outsize))

    def place(self, lengths: Int64, parts: Int32) -> Int64:
        """Where the strings of each row begin. A row's strings lie together, so that how well chunks are filled does
        not depend on how many rows come at once.
        """
        starts = np.empty(len(parts), np.int64)
        slots = self._pool.peek()
        owners = np.empty(len(slots), np.int32)
        fresh = np.asarray(slots, np.int64) * self.chunk
        taken, too_long = kernels.place_bytes(
            lengths, parts, self.positions, self.ends, self.chunk, fresh, owners, starts
        )
        for slot, owner in zip(self._pool.take(int(taken)), owners, strict=False):
            self._owned[owner].append(slot)
        if too_long:
            for i in np.flatnonzero(starts < 0):
                size = -(-int(lengths[i]) // self.chunk)
                first = self._pool.take_run(size)
                self._owned[parts[i]].extend(range(first, first + size))
                starts[i] = first * self.chunk
        return starts

    def drop(self, part: int) -> None:
        """Free a partition's chunks."""
        self._pool.give_back(self._owned[part])
        self._owned[part] = []
        self.positions[part] = self.ends[part] = 0

    def keep(self, part: int, used: Int64) -> None:
        """Free those of a partition's chunks that are not among the used ones; the one being filled stays."""
        wanted = {*used.tolist(), int(self.ends[part]) // self.chunk - 1}
        gone = [slot for slot in self._owned[part] if slot not in wanted]
        self._owned[part] = [slot for slot in self._owned[part] if slot in wanted]
        self._pool.give_back(gone)

    def trim(self, size: int) -> int:
        """Give free chunks back to the budget."""
        return self._pool.trim(size)

    def check(self) -> None:
        """Assert that every chunk is owned once."""
        self._pool.check()
        owned = [slot for slots in self._owned for slot in slots]
        assert len(owned) == len(set(owned)) == self._pool.in_use

    def _release(self, first: int, beyond: int) -> None:
        self._arena.release(first * self.chunk, beyond * self.chunk)
