"""Memory that grows without being copied, and is given back without being moved.

An arena is a flat array over address space for all that the budget could ever hold. Address space costs nothing; the
operating system provides memory when a page is first written, and takes it back when it is released. So a row keeps
its number for as long as it lives, and kernels see plain arrays.

A pool hands out equal slots of such arenas. What is given back stays warm, still reserved, to be handed out again
without new page faults; `trim` gives warm slots back to the operating system and to the budget.

Byte strings have a heap: chunks that are claimed before they are filled and given back whole.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import gather as kernels
from watersmeet.memory import Reservation

_PAGE = mmap.PAGESIZE
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class Arena:
    """A one-dimensional array of `capacity` zeros, of which only what was written takes memory.

    Its pages are small ones: huge pages would make random reads a little faster, but each has to be filled with zeros
    before its first byte is written, which costs more than that.
    """

    def __init__(self, dtype: Any, capacity: int) -> None:
        size = max(1, capacity) * np.dtype(dtype).itemsize
        if sys.platform == "win32":
            self._map = mmap.mmap(-1, size)
        else:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self.array: NDArray[Any] = np.frombuffer(self._map, dtype=dtype, count=max(1, capacity))

    @property
    def itemsize(self) -> int:
        """Bytes of one item."""
        return self.array.itemsize

    def release(self, start: int, stop: int) -> None:
        """Give the memory of whole pages within array[start:stop] back; they read as zeros afterwards."""
        first = -(-start * self.itemsize // _PAGE) * _PAGE
        last = stop * self.itemsize // _PAGE * _PAGE
        if last > first and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


class Pool:
    """Numbered slots of one size, reserved before they are handed out.

    >>> from watersmeet.memory import Budget
    >>> pool = Pool(10, 100, Budget(35).reservation("slots"), lambda first, stop: None)
    >>> pool.reserve(3), pool.take(2), pool.reserve(2)
    (True, [0, 1], False)
    """

    def __init__(self, slot_bytes: int, slots: int, claim: Reservation, release: Callable[[int, int], None]) -> None:
        """`release` is told from which slot up to which the memory can go."""
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.in_use = 0
        self._claim = claim
        self._release = release
        self._warm: list[int] = []
        self._cold: list[int] = []
        self._bump = 0
        self._in_advance = 0

    @property
    def warm(self) -> int:
        """Slots that are reserved and free."""
        return len(self._warm)

    @property
    def ever_used(self) -> int:
        """No slot from this number on was handed out since all were free."""
        return self._bump

    def reserve(self, count: int) -> bool:
        """Make sure that `count` slots can be taken; False, and nothing changed, if the budget has no room."""
        missing = count - len(self._warm)
        if missing <= 0:
            return True
        if missing > len(self._cold) + self.slots - self._bump - self._in_advance or not self._claim.try_grow(
            missing * self.slot_bytes
        ):
            return False
        while missing and self._cold:
            self._warm.append(self._cold.pop())
            missing -= 1
        # Slots are taken from the end of the list: the lowest of the new ones must come last.
        self._warm[:0] = range(self._bump + missing - 1, self._bump - 1, -1)
        self._bump += missing
        return True

    def take(self, count: int) -> list[int]:
        """Hand out slots that were reserved."""
        taken = [self._warm.pop() for _ in range(count)]
        self.in_use += count
        return taken

    def peek(self, most: int | None = None) -> list[int]:
        """The slots that `take` would hand out, in that order; so many at most."""
        return self._warm[::-1] if most is None else self._warm[: -most - 1 : -1]

    def reserve_runs(self, count: int) -> bool:
        """Make sure that runs of `count` adjoining slots in all can be taken with `take_run`."""
        missing = count - self._in_advance
        if missing <= 0:
            return True
        if self._bump + count > self.slots or not self._claim.try_grow(missing * self.slot_bytes):
            return False
        self._in_advance = count
        return True

    def take_run(self, count: int) -> int:
        """Hand out `count` adjoining slots, beyond all that were ever used; they were reserved by `reserve_runs`."""
        assert count <= self._in_advance
        first = self._bump
        self._bump += count
        self._in_advance -= count
        self.in_use += count
        return first

    def give_back(self, slots: list[int]) -> None:
        """Free slots; they stay reserved until `trim`."""
        self._warm.extend(reversed(slots))
        self.in_use -= len(slots)

    def trim(self, size: int) -> int:
        """Give at least `size` bytes of free slots back to the budget, or all there are; returns how many."""
        freed = self._in_advance * self.slot_bytes
        self._in_advance = 0
        count = min(len(self._warm), max(0, -(-(size - freed) // self.slot_bytes)))
        slots = self._warm[:count]
        del self._warm[:count]
        # Neighbours go together: slots are often smaller than the system's pages, of which only whole ones can go.
        for first, stop in stretches(slots):
            self._release(first, stop)
        self._cold += slots
        freed += count * self.slot_bytes
        self._claim.shrink(freed)
        if self.in_use == 0 and not self._warm:
            self._cold.clear()
            self._bump = 0
        return freed

    def check(self) -> None:
        """Assert that every slot is in one place and that the reservation is right."""
        assert self.in_use + len(self._warm) + len(self._cold) == self._bump <= self.slots
        assert len(set(self._warm) | set(self._cold)) == len(self._warm) + len(self._cold)
        assert self._claim.held == (self.in_use + len(self._warm) + self._in_advance) * self.slot_bytes


def stretches(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Numbers that follow each other, from the first up to the one after the last.

    >>> list(stretches([7, 2, 1, 8, 4]))
    [(1, 3), (4, 5), (7, 9)]
    """
    first = last = -1
    for number in sorted(numbers):
        if number != last + 1 or first < 0:
            if first >= 0:
                yield first, last + 1
            first = number
        last = number
    if first >= 0:
        yield first, last + 1


class Heap:
    """Room for byte strings: equal chunks, each owned by one partition; a string longer than a chunk gets several."""

    def __init__(self, capacity: int, chunk: int, partitions: int, claim: Reservation) -> None:
        self.chunk = chunk
        self._arena = Arena(np.uint8, -(-capacity // chunk) * chunk)
        self.bytes: NDArray[np.uint8] = self._arena.array
        self._pool = Pool(chunk, -(-capacity // chunk), claim, self._release)
        self._owned: list[list[int]] = [[] for _ in range(partitions)]
        self.positions = np.zeros(partitions, np.int64)
        self.ends = np.zeros(partitions, np.int64)
        self._room = np.zeros(partitions, np.int64)

    @property
    def in_use(self) -> int:
        """Bytes of chunks that have an owner."""
        return self._pool.in_use * self.chunk

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
