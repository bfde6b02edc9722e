"""The nearest rows by time among those of one hash: found by galloping through rows in the order of hash and time, or,
where all rows are in the order of time, in one pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Bytes, Int32, Int64, Uint64
from watersmeet.kernels.addressed import WORDS, read64
from watersmeet.kernels.compile import inlined, kernel

BACKWARD, FORWARD, NEAREST = 0, 1, 2
NOBODY, WAITS = -1, -2
"""In place of a row that is found: there is none, or it is not known yet."""


@inlined
def _hash_place(address: Any, start: Any, stop: Any, hash_: Any, after: Any) -> Any:
    """From `start` on, where the first hash is that is not below another; with `after`, the first that is above it."""
    low, step = start, 1
    high = start
    while high < stop:
        there = np.uint64(read64(address + 8 * high))
        if there > hash_ or (there == hash_ and not after):
            break
        low = high + 1
        high += step
        step *= 2
    high = min(high, stop)
    while low < high:
        middle = (low + high) >> 1
        there = np.uint64(read64(address + 8 * middle))
        if there > hash_ or (there == hash_ and not after):
            high = middle
        else:
            low = middle + 1
    return low


@inlined
def _time_place(address: Any, start: Any, stop: Any, time: Any, after: Any) -> Any:
    """The same for times."""
    low, step = start, 1
    high = start
    while high < stop:
        there = read64(address + 8 * high)
        if there > time or (there == time and not after):
            break
        low = high + 1
        high += step
        step *= 2
    high = min(high, stop)
    while low < high:
        middle = (low + high) >> 1
        there = read64(address + 8 * middle)
        if there > time or (there == time and not after):
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def look_up(
    wanted: Uint64,
    floors: Int64,
    hashes: int,
    times: int,
    count: int,
    rows: Int32,
    code: int,
    direction: int,
    before: Int64,
    row_before: Int64,
    after: Int64,
    row_after: Int64,
) -> None:
    """Of rows of one source, the last one up to each floor and the first one from it on, if they are nearer than those
    found so far.

    What is wanted is in the order of hash and floor, and so are the source's hashes and times, which lie at two
    addresses. Sources are asked in the order in which their rows came: of rows of one time, the last counts before a
    floor, the first after it. `rows` tells the numbers of rows where these are not their places; `code` is the source.
    """
    at = np.int64(0)
    i = 0
    many = wanted.shape[0]
    numbered = rows.shape[0] > 0
    while i < many and at < count:
        hash_ = wanted[i]
        at = _hash_place(hashes, at, count, hash_, False)
        behind = i + 1
        while behind < many and wanted[behind] == hash_:
            behind += 1
        if at < count and np.uint64(read64(hashes + 8 * at)) == hash_:
            stop = _hash_place(hashes, at, count, hash_, True)
            place = at
            for j in range(i, behind):
                place = _time_place(times, place, stop, floors[j], direction != FORWARD)
                if direction != FORWARD and place > at:
                    time = read64(times + 8 * (place - 1))
                    if row_before[j] < 0 or time >= before[j]:
                        before[j] = time
                        row_before[j] = code + (rows[place - 1] if numbered else place - 1)
                if direction != BACKWARD and place < stop:
                    time = read64(times + 8 * place)
                    if row_after[j] < 0 or time < after[j]:
                        after[j] = time
                        row_after[j] = code + (rows[place] if numbered else place)
            at = stop
        i = behind


@kernel
def merge_two(
    hashes: Uint64, times: Int64, rows: Int32, others: Uint64, other_times: Int64, other_rows: Int32,
    out_hashes: Uint64, out_times: Int64, out_rows: Int32,
) -> None:  # fmt: skip
    """Two stretches of rows in the order of hash and time as one; of equal ones, those of the first come first."""
    i, j = 0, 0
    for k in range(out_rows.shape[0]):
        first = j == others.shape[0] or (
            i < hashes.shape[0] and (hashes[i] < others[j] or (hashes[i] == others[j] and times[i] <= other_times[j]))
        )
        if first:
            out_hashes[k], out_times[k], out_rows[k] = hashes[i], times[i], rows[i]
            i += 1
        else:
            out_hashes[k], out_times[k], out_rows[k] = others[j], other_times[j], other_rows[j]
            j += 1


@inlined
def _comes_before(hashes: Any, times: Any, one: Any, other: Any) -> Any:
    if hashes[one] != hashes[other]:
        return hashes[one] < hashes[other]
    return times[one] < times[other] or (times[one] == times[other] and one < other)


@kernel
def merge_timed(
    hashes: Int64, times: Int64, ends: Int64, places: Int64, out_hashes: Uint64, out_times: Int64, out_rows: Int64
) -> int:
    """The next rows of several runs in the order of hash and time, as many as the buffers hold.

    `hashes` and `times` are addresses, `places` how far each run is; rows are numbered with their run.
    """
    next_hashes, next_times = np.empty(hashes.shape[0], np.uint64), np.empty(hashes.shape[0], np.int64)
    heap = np.empty(hashes.shape[0], np.int64)
    size = 0
    for run in range(hashes.shape[0]):
        if places[run] < ends[run]:
            next_hashes[run] = np.uint64(read64(hashes[run] + 8 * places[run]))
            next_times[run] = read64(times[run] + 8 * places[run])
            at = size
            size += 1
            while at > 0 and _comes_before(next_hashes, next_times, run, heap[(at - 1) // 2]):
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = run
    found = 0
    while found < out_rows.shape[0] and size > 0:
        run = heap[0]
        out_hashes[found] = next_hashes[run]
        out_times[found] = next_times[run]
        out_rows[found] = (run << 32) + places[run]
        found += 1
        places[run] += 1
        if places[run] < ends[run]:
            next_hashes[run] = np.uint64(read64(hashes[run] + 8 * places[run]))
            next_times[run] = read64(times[run] + 8 * places[run])
        else:
            size -= 1
            run = heap[size]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and _comes_before(next_hashes, next_times, heap[child + 1], heap[child]):
                child += 1
            if not _comes_before(next_hashes, next_times, heap[child], run):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = run
    return found


@inlined
def _word(base: Any, shift: Any, stride: Any, words: Any, row: Any) -> Any:
    """The value of a row of one table in memory, in a column of words."""
    return read64(read64(base + (row >> shift) * stride + words) + 8 * (row & ((1 << shift) - 1)))


@kernel
def ascends(sources: Int64, column: int, start: int, stop: int) -> bool:
    """Whether a column of words ascends from one row of a table up to another."""
    base, shift, stride, words = sources[0, 1], sources[0, 2], sources[0, 3], 8 * WORDS * column
    last = _word(base, shift, stride, words, start)
    for row in range(start + 1, stop):
        word = _word(base, shift, stride, words, row)
        if word < last:
            return False
        last = word
    return True


@inlined
def _slot_of(slots: Any, mask: Any, hash_: Any) -> Any:
    """Where a hash is among the slots, each a hash and a row, or the free place where it would be."""
    at = hash_ & mask
    while slots[2 * at + 1] >= 0 and slots[2 * at] != hash_:
        at = (at + 1) & mask
    return 2 * at


@kernel
def fill_slots(slots: Int64, hashes: Int64) -> None:
    """Put the last row of each hash into its slot."""
    mask = (slots.shape[0] >> 1) - 1
    for row in range(hashes.shape[0]):
        place = _slot_of(slots, mask, hashes[row])
        slots[place], slots[place + 1] = hashes[row], row


@kernel
def sweep(
    slots: Int64,
    state: Int64,
    sources: Int64,
    hashes: Int64,
    left: Int64,
    floors: Int64,
    answered: Bytes,
    bound: int,
    probes: Int32,
    found: Int64,
    before: Int64,
) -> bool:
    """For left rows in the order of their floors, the last right row of the same hash up to each floor.

    Right rows have these `hashes`, and ascend in time. `state` tells, and is told, how far right and left rows were
    passed, how many of the latter were looked up, how many slots are used, and the last floor. A row that came late is
    before its floor: if what it finds is later, `WAITS` is told for it. False if there are too few slots to go on.
    """
    base, shift, stride = sources[0, 1], sources[0, 2], sources[0, 3]
    left_base, left_shift, left_stride = left[0, 1], left[0, 2], left[0, 3]
    mask, left_mask = (np.int64(1) << shift) - 1, (np.int64(1) << left_shift) - 1
    at, i, count, used = state[0], state[1], state[2], state[3]
    rows, slot_mask = hashes.shape[0], (slots.shape[0] >> 1) - 1
    most = (slots.shape[0] >> 1) * 4 // 5
    times = read64(base + (at >> shift) * stride) if at < rows else np.int64(0)
    next_time = read64(times + 8 * (at & mask)) if at < rows else np.int64(0)
    wanted = read64(left_base + (i >> left_shift) * left_stride + 8 * WORDS) if i < floors.shape[0] else np.int64(0)
    enough = True
    while i < floors.shape[0] and count < found.shape[0]:
        if (i & left_mask) == 0:
            wanted = read64(left_base + (i >> left_shift) * left_stride + 8 * WORDS)
        floor = floors[i]
        if answered[i]:
            i += 1
            continue
        if floor > bound:
            break
        while at < rows and next_time <= floor:
            place = _slot_of(slots, slot_mask, hashes[at])
            if slots[place + 1] < 0:
                if used == most:
                    enough = False
                    break
                used += 1
                slots[place] = hashes[at]
            slots[place + 1] = at
            at += 1
            if at < rows:
                if (at & mask) == 0:
                    times = read64(base + (at >> shift) * stride)
                next_time = read64(times + 8 * (at & mask))
        if not enough:
            break
        row = slots[_slot_of(slots, slot_mask, read64(wanted + 8 * (i & left_mask))) + 1]
        if row >= 0 and (before.shape[0] or _word(left_base, left_shift, left_stride, np.int64(0), i) < floor):
            time = _word(base, shift, stride, np.int64(0), row)
            if time > _word(left_base, left_shift, left_stride, np.int64(0), i):
                row = np.int64(WAITS)
            elif before.shape[0]:
                before[count] = time
        probes[count], found[count] = i, row
        count += 1
        i += 1
        state[4] = floor
    state[0], state[1], state[2], state[3] = at, i, count, used
    return enough
