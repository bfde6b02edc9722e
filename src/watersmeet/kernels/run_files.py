"""Runs as files: blocks laid out before they are written, and rows gathered from what is read of them.

Rows that were found lie anywhere in many runs. To read them where they are mapped costs a page fault for each few of
them, and every page counts as the process's own until it is let go. So they are taken in the order in which they lie,
a stretch of a run after the other: its blocks that are wanted are read into a buffer, neighbours together, and their
rows are copied from there to where they go. (`kernels.addressed` says how a block is described.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Bytes, Int32, Int64, Uint64
from watersmeet.kernels.addressed import (
    BITS,
    LARGE_STRINGS,
    OTHER,
    STRINGS,
    WORDS,
    advise,
    bit,
    checksum,
    clear,
    described,
    gather,
    length_of,
    measure,
    move,
    move8,
    numbered,
    pread,
    read8,
    read32,
    read64,
    set_bit,
    write8,
    write32,
    write64,
)
from watersmeet.kernels.compile import inlined, kernel

ALIGNED = 64
"""Blocks and their columns begin at multiples of it."""
NO_ROOM = -1
"""There is not enough memory for the strings."""
NOT_SO = -2
"""It cannot be read in this way: too much lies in a stretch, or it is not what was written."""


@inlined
def _aligned(size: Any) -> Any:
    return (size + ALIGNED - 1) & ~np.int64(ALIGNED - 1)


@kernel
def lay_out(
    sources: Int64,
    widths: Int32,
    columns: Int32,
    nullable: Bytes,
    rows: Any,
    block_rows: int,
    room: Bytes,
    starts: Int64,
    checksums: Int64,
    nulls: Int64,
) -> tuple[Any, Any]:
    """Put rows into a buffer as the blocks of a run, as many blocks as fit: returns how many rows, and their bytes.

    `starts` and `checksums` are told of each block, `nulls` is how many values of each column are NULL, to which is
    added. All columns have plain values: see `OTHER`.
    """
    count = columns.shape[0]
    words, out = np.zeros(WORDS * count, np.int64), np.zeros(WORDS * count, np.int64)
    firsts, sizes, absent = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    head = _aligned(np.int64(8 * WORDS * count))
    done = used = block = np.int64(0)
    while done < rows.shape[0]:
        some = rows[done : done + block_rows]
        start: Any = np.int64(room.ctypes.data) + used
        bitmap = _aligned(np.int64((some.shape[0] + 7) >> 3))
        at = head
        for k in range(count):
            width = np.int64(widths[columns[k]])
            words[WORDS * k], words[WORDS * k + 1], words[WORDS * k + 2] = at, 0, 0
            if width > 0:
                at += _aligned(width * some.shape[0])
            elif width == BITS:
                at += bitmap
            else:
                at += _aligned(-width * (some.shape[0] + 1))
            if nullable[k]:
                words[WORDS * k + 2] = at
                at += bitmap
        if used + at > room.shape[0]:
            break
        clear(start, at)
        for k in range(count):
            firsts[k] = start + words[WORDS * k]
        measure(sources, widths, columns, some, firsts, sizes)
        for k in range(count):
            width = widths[columns[k]]
            if width in (STRINGS, LARGE_STRINGS):
                words[WORDS * k + 1] = at
                at += _aligned(sizes[k])
        if used + at > room.shape[0]:
            break
        for k in range(count):
            width = widths[columns[k]]
            out[WORDS * k], out[WORDS * k + 1] = firsts[k], start + words[WORDS * k + 1]
            out[WORDS * k + 2] = start + words[WORDS * k + 2] if nullable[k] else 0
            absent[k] = 0
            if width in (STRINGS, LARGE_STRINGS):
                clear(out[WORDS * k + 1] + sizes[k], _aligned(sizes[k]) - sizes[k])
        gather(sources, widths, columns, some, out, absent)
        for k in range(count):
            place = words[WORDS * k]
            write64(start + 8 * WORDS * k, 8 * place if widths[columns[k]] == BITS else place)
            write64(start + 8 * (WORDS * k + 1), words[WORDS * k + 1])
            write64(start + 8 * (WORDS * k + 2), 8 * words[WORDS * k + 2] if absent[k] else 0)
            nulls[k] += absent[k]
        starts[block], checksums[block] = used, checksum(start, at)
        used += at
        done += some.shape[0]
        block += 1
    return done, used


@kernel
def check_blocks(sources: Int64, sums: Int64, rows: Any, most: int, read: Int64) -> tuple[int, int]:
    """Compare the blocks of rows with their checksums where that was not done, up to so many blocks; they are marked.

    `sums` tells of each source where its checksums lie. `read` becomes the number of blocks that were read. Returns the
    first row that was not looked at, and -1; or the row whose block is not what was written, and its source.
    """
    read[0] = 0
    for i in range(rows.shape[0]):
        which, row = numbered(rows[i])
        marks = sources[which, 4]
        if marks == 0:
            continue
        block = row >> sources[which, 2]
        if read8(marks + block):
            if read[0] == most:
                return i, -1
            directory = sources[which, 0] + 8 * block
            start = read64(directory)
            found = checksum(sources[which, 1] + start, read64(directory + 8) - start)
            if found != read64(sums[which] + 8 * block):
                return i, which
            write8(marks + block, np.uint8(0))
            read[0] += 1
    return rows.shape[0], -1


@inlined
def _first_from(hashes: Any, low: Any, high: Any, wanted: Any) -> Any:
    """The first of ascending hashes that is not below the wanted one."""
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _find_in_file(descriptor: Any, begins: Any, count: Any, wanted: Any, buffer: Any) -> Any:
    """The first of the ascending hashes of a file that is not below the wanted one; `NOT_SO` if that cannot be read."""
    low, high = np.int64(0), np.int64(count)
    while low < high:
        middle = (low + high) // 2
        if buffer.shape[0] == 0 or pread(descriptor, np.int64(buffer.ctypes.data), 8, begins + 8 * middle) != 8:
            return np.int64(NOT_SO)
        if buffer[0] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def read_hashes(
    descriptors: Int64,
    begins: int,
    counts: Int64,
    cursors: Int64,
    nexts: Int64,
    at: int,
    row: int,
    stop: int,
    least: Any,
    most: Any,
    buffer: Uint64,
    addresses: Int64,
    lows: Int64,
    highs: Int64,
) -> tuple[int, int]:
    """Read the hashes from `least` to `most` of runs from `at` up to `stop` into a buffer, of as many as fit.

    All hashes before the cursor of a run are smaller, and with a cursor of -1 it has yet to be found; of the run at
    `at`, those before `row` are not wanted, either.
    They begin in each file at `begins`. Tells of each run where its first hash would lie, and between which rows those
    are that were read; and, in `nexts`, the cursor for hashes from `most` on. Returns the run before which it stopped,
    and the row from which on the last one has yet to be read, or -1; or `NOT_SO`.
    """
    used = np.int64(0)
    for run in range(at, stop):
        if cursors[run] < 0:
            cursors[run] = _find_in_file(descriptors[run], begins, counts[run], least, buffer[used:])
            if cursors[run] < 0:
                return (run, -1) if run > at else (NOT_SO, -1)
        low = max(cursors[run], np.int64(row)) if run == at else cursors[run]
        # Where a run is read in several parts, the first hash that is not below `most` may be in an earlier one.
        is_next = run > at or row <= cursors[run] or nexts[run] == low
        start, end = used, used
        rows = counts[run]
        share = (np.float64(most - least) + 1.0) / (np.float64(np.uint64(0xFFFFFFFFFFFFFFFF) - least) + 1.0)
        guess = np.int64(share * (rows - low))
        guess += 4 * np.int64(np.sqrt(np.float64(guess))) + 16
        whole = low == rows
        while not whole and end < buffer.shape[0]:
            length = min(guess, rows - low - (end - start), buffer.shape[0] - end)
            place = begins + 8 * (low + end - start)
            if pread(descriptors[run], np.int64(buffer.ctypes.data) + 8 * end, 8 * length, place) != 8 * length:
                return NOT_SO, -1
            end += length
            whole = buffer[end - 1] > most or low + end - start == rows
            if not whole and buffer[end - 1] < least:  # none of them is wanted
                low += end - start
                end = start
        if not whole and run > at:
            return run, -1
        first = _first_from(buffer, start, end, least)
        last = end
        if most != np.uint64(0xFFFFFFFFFFFFFFFF):
            last = _first_from(buffer, first, end, most + np.uint64(1))
        addresses[run] = np.int64(buffer.ctypes.data) + 8 * (start - low)
        lows[run], highs[run] = low + first - start, low + last - start
        if is_next:
            nexts[run] = low + _first_from(buffer, start, end, most) - start
        if not whole:
            return run + 1, low + end - start
        used = last
    return stop, -1


@kernel
def by_stretch(rows: Int64, firsts: Int64, shifts: Int64, order: Int32, starts: Int64) -> None:
    """Put rows in the order of the stretches of sources that they lie in, and tell where each begins: those of a source
    have numbers from its first on, and each has two to the power of its shift rows.
    """
    starts[:] = 0
    for i in range(rows.shape[0]):
        which, row = numbered(rows[i])
        starts[firsts[which] + (row >> shifts[which]) + 1] += 1
    for k in range(starts.shape[0] - 1):
        starts[k + 1] += starts[k]
    for i in range(rows.shape[0]):
        which, row = numbered(rows[i])
        at = firsts[which] + (row >> shifts[which])
        order[starts[at]] = i
        starts[at] += 1
    for k in range(starts.shape[0] - 1, 0, -1):
        starts[k] = starts[k - 1]
    starts[0] = 0


@kernel
def read_blocks(  # noqa: C901
    sources: Int64, files: Int64, which: int, rows: Int64, order: Int32, directory: Int64, sums: Int64, buffer: Bytes
) -> Any:
    """Read the blocks of some rows of one run into a buffer, neighbours together: each lies as far behind the first as
    in the file. `directory` is told where the blocks from the first to the last begin in the file.

    Returns the number of the first block, or `NOT_SO`. Blocks that were never read are compared with their checksums.
    """
    descriptor, place, blocks = files[which, 0], files[which, 1], files[which, 2]
    shift, marks = sources[which, 2], sources[which, 4]
    first, last = np.int64(1) << 62, np.int64(-1)
    for j in range(order.shape[0]):
        block = (np.int64(rows[order[j]]) & 0xFFFFFFFF) >> shift
        first, last = min(first, block), max(last, block)
    count = last - first + 1
    if count + 1 > directory.shape[0]:
        return NOT_SO
    length = 8 * (count + 1)
    if pread(descriptor, np.int64(directory.ctypes.data), length, place + 8 * first) != length:
        return NOT_SO
    if directory[count] - directory[0] > buffer.shape[0]:
        return NOT_SO
    if marks:
        length = 8 * count
        at = place + 8 * (blocks + 1 + first)
        if pread(descriptor, np.int64(sums.ctypes.data), length, at) != length:
            return NOT_SO
    wanted = np.zeros(count, np.bool_)
    for j in range(order.shape[0]):
        wanted[((np.int64(rows[order[j]]) & 0xFFFFFFFF) >> shift) - first] = True
    start = np.int64(0)
    while start < count:
        if not wanted[start]:
            start += 1
            continue
        stop = start + 1
        while stop < count and (wanted[stop] or (stop + 1 < count and wanted[stop + 1])):
            stop += 1
        length = directory[stop] - directory[start]
        at = np.int64(buffer.ctypes.data) + directory[start] - directory[0]
        if pread(descriptor, at, length, directory[start]) != length:
            return NOT_SO
        if marks:
            for block in range(start, stop):
                if wanted[block] and read8(marks + first + block):
                    size = directory[block + 1] - directory[block]
                    if checksum(at + directory[block] - directory[start], size) != sums[block]:
                        return NOT_SO
                    write8(marks + first + block, np.uint8(0))
        start = stop
    return first


@kernel
def gather_by_stretch(  # noqa: C901
    sources: Int64,
    mapped: Int64,
    files: Int64,
    widths: Int32,
    columns: Int32,
    rows: Int64,
    order: Int32,
    starts: Int64,
    out: Int64,
    nulls: Int64,
    taken: Int64,
    room: Bytes,
    used: int,
    directory: Int64,
    sums: Int64,
    buffer: Bytes,
    page: int,
    advice: int,
) -> int:
    """The same as `addressed.gather`, one stretch after the other (see `by_stretch`). Those of sources that have a file
    (`files`: its descriptor, where its directory begins, and how many blocks it has) are read into the buffer; others
    are read where they lie, and if they are `mapped` (where, and how many bytes) they are let go after that.

    How long strings are is not known before. They go to `room`, from `used` on, and `taken` is told for each column of
    strings where each is and how long. Returns how much of the room is used then; or `NO_ROOM`, or `NOT_SO`.
    """
    room_at, buffer_at = np.int64(room.ctypes.data), np.int64(buffer.ctypes.data)
    for stretch in range(starts.shape[0] - 1):
        low, high = starts[stretch], starts[stretch + 1]
        if low == high:
            continue
        which, row = numbered(rows[order[low]])
        shift = sources[which, 2]
        first = np.int64(-1)
        if files[which, 0] >= 0:
            first = np.int64(read_blocks(sources, files, which, rows, order[low:high], directory, sums, buffer))
            if first < 0:
                return NOT_SO
        texts = 0
        for k in range(columns.shape[0]):
            width, words = widths[columns[k]], 8 * WORDS * columns[k]
            target, validity = out[WORDS * k], out[WORDS * k + 2]
            if width == OTHER:
                continue
            for j in range(low, high):
                i = np.int64(order[j])
                row = np.int64(rows[i]) & 0xFFFFFFFF
                if first >= 0:
                    at = origin = buffer_at + directory[(row >> shift) - first] - directory[0]
                else:
                    at, origin = described(sources, which, row >> shift)
                inside = row & ((1 << shift) - 1)
                value = origin + read64(at + words)
                if width == 8:
                    move8(target + 8 * i, value + 8 * inside)
                elif width > 0:
                    move(target + width * i, value + width * inside, width)
                elif width == BITS:
                    if bit(7 * origin + value + inside):
                        set_bit(target, i)
                else:
                    offset = value - width * inside
                    length = length_of(offset, width)
                    if used + length > room.shape[0]:
                        return NO_ROOM
                    begin = np.int64(read32(offset)) if width == STRINGS else read64(offset)
                    move(room_at + used, origin + read64(at + words + 8) + begin, length)
                    taken[texts, i] = (used << 32) + length
                    used += length
                if validity:
                    place = read64(at + words + 16)
                    if place == 0 or bit(8 * origin + place + inside):
                        set_bit(validity, i)
                    else:
                        nulls[k] += 1
            texts += width < 0 and width != BITS
        if first < 0 and mapped[which, 1]:
            start = mapped[which, 0] // page * page
            advise(start, mapped[which, 0] + mapped[which, 1] - start, advice)
    return used


@kernel
def offsets_of(taken: Int64, width: int, target: int) -> Any:
    """Arrow's offsets for strings that were taken by `gather_by_stretch`; returns how many bytes they are."""
    total = np.int64(0)
    count = taken.shape[0]
    for i in range(count + 1):
        if width == STRINGS:
            write32(target + 4 * i, np.int32(total))
        else:
            write64(target + 8 * i, total)
        if i < count:
            total += taken[i] & 0xFFFFFFFF
    return total


@kernel
def put_strings(taken: Int64, room: Bytes, target: int) -> None:
    """Copy strings that were taken by `gather_by_stretch` from the room to where they go, one behind the other."""
    room_at = np.int64(room.ctypes.data)
    for i in range(taken.shape[0]):
        length = taken[i] & 0xFFFFFFFF
        move(target, room_at + (taken[i] >> 32), length)
        target += length
