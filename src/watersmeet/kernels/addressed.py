"""Rows gathered from where they lie: whole batches that were never copied, or runs that are mapped from disk.

Rows are numbered, and lie in blocks of a power of two rows. A block is found by its number, and described by three
words a column, so that one loop serves both kinds of rows and all columns of a batch::

    source       directory, base, shift, stride, marks (a byte for each block that has yet to be checked; 0: none has)
    in memory    no directory; the description of block b lies at base + b * stride, its words are addresses
    in a run     directory[b] tells where block b begins behind base: with its description, whose words count from there

    words of a column    values (offsets of strings, first bit of booleans) · bytes of strings · first bit of validity

Rows of several sources, such as runs that are merged, are numbered with their source in the upper half of a word. Where
there is one source alone, a number is its own, and may be as large as a word.

A bit is told by eight times its byte's address plus its place in the byte; validity 0 means that no value is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels.compile import inlined, kernel

BITS = -1
STRINGS = -4
LARGE_STRINGS = -8
OTHER = 0
"""What stands for a column's width where values have none: booleans, strings by the width of their offsets, and what
cannot be gathered here at all."""
WORDS = 3
_CHUNK = 256
_AHEAD = 24


def _reader(bits: int, numba_type: Any) -> Callable[[Any], Any]:
    """A load from any address."""

    def declare(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            value.align = 1
            return value

        return numba_type(types.int64), generate

    make: Any = intrinsic
    read: Callable[[Any], Any] = make(declare)
    return read


def _mover(width: int) -> Callable[[Any, Any], None]:
    """A copy of `width` bytes from one address to another, as one load and one store."""

    def declare(typing_context: Any, target: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.VectorType(ir.IntType(8), width).as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], pointer))
            value.align = 1
            builder.store(value, builder.inttoptr(arguments[0], pointer)).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    make: Any = intrinsic
    move: Callable[[Any, Any], None] = make(declare)
    return move


def _writer(bits: int, numba_type: Any) -> Callable[[Any, Any], None]:
    """A store to any address."""

    def declare(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), generate

    make: Any = intrinsic
    write: Callable[[Any, Any], None] = make(declare)
    return write


def _fetcher() -> Callable[[Any], None]:
    def declare(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
            fetch = builder.module.declare_intrinsic(
                "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
            )
            reading = [ir.Constant(flag, word) for word in (0, 3, 1)]
            builder.call(fetch, [builder.inttoptr(arguments[0], pointer), *reading])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    make: Any = intrinsic
    fetch: Callable[[Any], None] = make(declare)
    return fetch


read8, read32, read64 = _reader(8, types.uint8), _reader(32, types.int32), _reader(64, types.int64)
write8, write32, write64 = _writer(8, types.uint8), _writer(32, types.int32), _writer(64, types.int64)
_move1, _move2, _move4, move8, _move16, _move32 = (_mover(width) for width in (1, 2, 4, 8, 16, 32))
fetch = _fetcher()
"""Ask for the cache line of an address that will be read soon; any address is harmless."""


@inlined
def move(target: Any, source: Any, length: Any) -> None:
    """Copy bytes; none beyond either end is touched: the last chunk overlaps the one before."""
    if length >= 32:
        done = 0
        while done + 32 <= length:
            _move32(target + done, source + done)
            done += 32
        if done < length:
            _move32(target + length - 32, source + length - 32)
    elif length >= 16:
        _move16(target, source)
        _move16(target + length - 16, source + length - 16)
    elif length >= 8:
        move8(target, source)
        move8(target + length - 8, source + length - 8)
    elif length >= 4:
        _move4(target, source)
        _move4(target + length - 4, source + length - 4)
    else:
        for k in range(length):
            _move1(target + k, source + k)


@kernel
def clear(address: int, length: int) -> None:
    """Fill memory with zeros."""
    for k in range(length):
        write8(address + k, np.uint8(0))


@inlined
def described(sources: Any, code: Any, block: Any) -> Any:
    """Where a block's description lies, and from where its words count."""
    directory = sources[code, 0]
    if directory:
        start = sources[code, 1] + read64(directory + 8 * block)
        return start, start
    return sources[code, 1] + block * sources[code, 3], np.int64(0)


@inlined
def numbered(code: Any) -> Any:
    """The source of a row, and its number there."""
    return np.int64(code) >> 32, np.int64(code) & 0xFFFFFFFF


@inlined
def _found(sources: Any, base: Any, code: Any) -> Any:
    """The source of a row, of those from `base` on, and its number there."""
    if sources.shape[0] == 1:
        return np.int64(0), np.int64(code)
    which, row = numbered(code)
    return which + base, row


@inlined
def bit(place: Any) -> Any:
    """The bit at a place."""
    return (read8(place >> 3) >> np.uint8(place & 7)) & np.uint8(1)


@inlined
def set_bit(target: Any, place: Any) -> Any:
    """Set the bit that is so many behind an address."""
    at = target + (place >> 3)
    write8(at, read8(at) | np.uint8(1 << (place & 7)))


@inlined
def _offset_place(sources: Any, rows: Any, i: Any, words: Any, width: Any) -> Any:
    """Where the offset of a row's string lies."""
    which, row = _found(sources, np.int64(0), rows[i])
    shift = sources[which, 2]
    at, origin = described(sources, which, row >> shift)
    return origin + read64(at + words) - width * (row & ((1 << shift) - 1))


@inlined
def length_of(offset: Any, width: Any) -> Any:
    """How long a string is, by where its offset lies."""
    if width == STRINGS:
        return np.int64(read32(offset + 4)) - np.int64(read32(offset))
    return read64(offset + 8) - read64(offset)


@kernel
def measure(sources: Int64, widths: Int32, columns: Int32, rows: Any, out: Int64, sizes: Int64) -> None:
    """For each column of strings, write Arrow's offsets for some rows to the address `out`, and how many bytes they are
    to `sizes`.
    """
    count = rows.shape[0]
    for k in range(columns.shape[0]):
        width = widths[columns[k]]
        if width != STRINGS and width != LARGE_STRINGS:
            continue
        total = np.int64(0)
        target = out[k]
        words = 8 * WORDS * columns[k]
        for i in range(count):
            if i + _AHEAD < count:
                fetch(_offset_place(sources, rows, i + _AHEAD, words, width))
            length = length_of(_offset_place(sources, rows, i, words, width), width)
            if width == STRINGS:
                write32(target + 4 * i, np.int32(total))
            else:
                write64(target + 8 * i, total)
            total += length
        if width == STRINGS:
            write32(target + 4 * count, np.int32(total))
        else:
            write64(target + 8 * count, total)
        sizes[k] = total


@kernel
def widen(sources: Int64, widths: Int32, columns: Int32, rows: Any, sizes: Int64) -> None:
    """Add to `sizes` what the strings of each row take in a batch."""
    for k in range(columns.shape[0]):
        width = widths[columns[k]]
        if width != STRINGS and width != LARGE_STRINGS:
            continue
        words = 8 * WORDS * columns[k]
        for i in range(rows.shape[0]):
            sizes[i] += length_of(_offset_place(sources, rows, i, words, width), width) - width


@kernel
def gather(sources: Int64, widths: Int32, columns: Int32, rows: Any, out: Int64, nulls: Int64) -> None:
    """Copy the values of some rows, column by column, to addresses.

    `out` has three words a column: where values go (strings: where their offsets lie, which `measure` has written),
    where bytes of strings go, and where the bitmap of validity goes, 0 if no value is NULL. Bitmaps must be zeros.
    `nulls` is told how many values are NULL.
    """
    places = np.empty(_CHUNK, np.int64)
    for k in range(columns.shape[0]):
        nulls[k] = _gather_column(
            sources, np.int64(0), widths[columns[k]], 8 * WORDS * columns[k], rows, places, out[WORDS * k],
            out[WORDS * k + 1], out[WORDS * k + 2], nulls[k], sources.shape[0] == 1,
        )  # fmt: skip


@kernel
def gather_together(
    sources: Int64, bases: Int64, widths: Int32, columns: Int32, inputs: Int32, ids: Any, out: Int64, nulls: Int64
) -> None:
    """The same for columns of several inputs: column k has rows ids[inputs[k]], which all are in the first of their
    sources, at bases[inputs[k]], and values of widths[k].
    """
    places = np.empty(_CHUNK, np.int64)
    for k in range(columns.shape[0]):
        nulls[k] = _gather_column(
            sources, bases[inputs[k]], widths[k], 8 * WORDS * columns[k], ids[inputs[k]], places, out[WORDS * k],
            out[WORDS * k + 1], out[WORDS * k + 2], nulls[k], True,
        )  # fmt: skip


@inlined
def _gather_column(
    sources: Any, base: Any, width: Any, words: Any, rows: Any, places: Any, target: Any, strings: Any, validity: Any,
    nulls: Any, of_one: Any,
) -> Any:  # fmt: skip
    """Copy the values of one column; returns how many are NULL, or what it was told if none can be.

    `of_one`: all rows are of the source at `base`.
    """
    count = rows.shape[0]
    if width != OTHER:
        plain = of_one and sources[base, 0] == 0
        start, shift, stride = sources[base, 1] + words, sources[base, 2], sources[base, 3]
        mask = (1 << shift) - 1
        for first in range(0, count, _CHUNK):
            stop = min(count, first + _CHUNK)
            if plain and width > 0:  # one table in memory: what tells where blocks are is the same for all rows
                for i in range(first, stop):
                    row = np.int64(rows[i])
                    place = read64(start + (row >> shift) * stride) + width * (row & mask)
                    fetch(place)
                    places[i - first] = place
            elif plain and width == STRINGS:
                for i in range(first, stop):
                    row = np.int64(rows[i])
                    at = start + (row >> shift) * stride
                    place = read64(at + 8) + np.int64(read32(read64(at) + 4 * (row & mask)))
                    fetch(place)
                    fetch(place + 63)
                    places[i - first] = place
            else:
                _locate_values(sources, base, width, words, rows, first, stop, places)
            _copy_chunk(width, places, first, stop, target, strings)
        if validity:
            nulls = _copy_validity(sources, base, words, rows, validity)
    return nulls


@inlined
def _locate_values(
    sources: Any, base: Any, width: Any, words: Any, rows: Any, first: Any, stop: Any, places: Any
) -> Any:
    """Where the values of some rows of any sources lie, which are asked for."""
    for i in range(first, stop):
        which, row = _found(sources, base, rows[i])
        shift = sources[which, 2]
        at, origin = described(sources, which, row >> shift)
        inside = row & ((1 << shift) - 1)
        if width > 0:
            place = origin + read64(at + words) + width * inside
            fetch(place)
        elif width == BITS:
            place = 8 * origin + read64(at + words) + inside
        elif width == STRINGS:
            offset = np.int64(read32(origin + read64(at + words) + 4 * inside))
            place = origin + read64(at + words + 8) + offset
            fetch(place)
            fetch(place + 63)
        else:
            place = origin + read64(at + words + 8) + read64(origin + read64(at + words) + 8 * inside)
            fetch(place)
            fetch(place + 63)
        places[i - first] = place


@inlined
def _copy_chunk(width: Any, places: Any, start: Any, stop: Any, target: Any, strings: Any) -> Any:
    if width == 8:
        for i in range(start, stop):
            move8(target + 8 * i, places[i - start])
    elif width == 4:
        for i in range(start, stop):
            _move4(target + 4 * i, places[i - start])
    elif width == STRINGS:
        for i in range(start, stop):
            at = np.int64(read32(target + 4 * i))
            move(strings + at, places[i - start], np.int64(read32(target + 4 * i + 4)) - at)
    elif width == LARGE_STRINGS:
        for i in range(start, stop):
            at = read64(target + 8 * i)
            move(strings + at, places[i - start], read64(target + 8 * i + 8) - at)
    elif width == BITS:
        for i in range(start, stop):
            if bit(places[i - start]):
                set_bit(target, i)
    else:
        for i in range(start, stop):
            move(target + width * i, places[i - start], width)


@inlined
def _copy_validity(sources: Any, base: Any, words: Any, rows: Any, validity: Any) -> Any:
    """Set the bits of rows whose value is not NULL; returns how many are."""
    nulls = 0
    for i in range(rows.shape[0]):
        which, row = _found(sources, base, rows[i])
        shift = sources[which, 2]
        at, origin = described(sources, which, row >> shift)
        first = read64(at + words + 16)
        if first == 0 or bit(8 * origin + first + (row & ((1 << shift) - 1))):
            set_bit(validity, i)
        else:
            nulls += 1
    return nulls


START = 0x243F6A8885A308D3 >> 1
"""Of checksums."""
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@kernel
def checksum_on(start: int, address: int, length: int) -> Any:
    """The checksum of bytes that follow others, whose checksum is `start`; a multiple of eight bytes.

    Each word is mixed in by a step that can be undone, so that no change of one word goes unnoticed.
    """
    total = np.uint64(start)
    for k in range(0, length, 8):
        total = (total ^ np.uint64(read64(address + k))) * _PRIME
        total ^= total >> np.uint64(32)
    return np.int64(total)


@kernel
def checksum(address: int, length: int) -> Any:
    """The checksum of a multiple of 64 bytes (or of eight): four words at a time, each in a lane of its own."""
    one = two = three = four = np.uint64(START)
    k = 0
    while k + 32 <= length:
        one = (one ^ np.uint64(read64(address + k))) * _PRIME
        two = (two ^ np.uint64(read64(address + k + 8))) * _PRIME
        three = (three ^ np.uint64(read64(address + k + 16))) * _PRIME
        four = (four ^ np.uint64(read64(address + k + 24))) * _PRIME
        one ^= one >> np.uint64(29)
        two ^= two >> np.uint64(29)
        three ^= three >> np.uint64(29)
        four ^= four >> np.uint64(29)
        k += 32
    while k + 8 <= length:
        one = (one ^ np.uint64(read64(address + k))) * _PRIME
        k += 8
    total = one
    for lane in (two, three, four):
        total = (total ^ lane) * _PRIME
        total ^= total >> np.uint64(32)
    return np.int64(total)


@inlined
def _is_before(hashes: Any, at: Any, one: Any, other: Any) -> Any:
    """Whether one run's next row comes before another's: by its hash, or by the run's number."""
    return hashes[one] < hashes[other] or (hashes[one] == hashes[other] and one < other)


@kernel
def merge(hashes: Int64, ends: Int64, places: Int64, out_hashes: Any, out_rows: Int64) -> int:
    """The next rows of several sorted runs in the order of their hashes, as many as the buffers hold.

    `hashes` are addresses of the runs' hashes, `places` how far each is; rows are numbered with their run. The runs
    stand in a heap by their next hash.
    """
    nexts = np.empty(hashes.shape[0], np.uint64)
    heap = np.empty(hashes.shape[0], np.int64)
    size = 0
    for run in range(hashes.shape[0]):
        if places[run] < ends[run]:
            nexts[run] = np.uint64(read64(hashes[run] + 8 * places[run]))
            at = size
            size += 1
            while at > 0 and _is_before(nexts, at, run, heap[(at - 1) // 2]):
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = run
    room = out_rows.shape[0]
    found = 0
    while found < room and size > 0:
        run = heap[0]
        out_hashes[found] = nexts[run]
        out_rows[found] = (run << 32) + places[run]
        found += 1
        places[run] += 1
        if places[run] < ends[run]:
            nexts[run] = np.uint64(read64(hashes[run] + 8 * places[run]))
        else:
            size -= 1
            run = heap[size]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and _is_before(nexts, at, heap[child + 1], heap[child]):
                child += 1
            if not _is_before(nexts, at, heap[child], run):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = run
    return found


def _advice() -> Callable[[Any, Any, Any], None]:
    """The system's madvise."""

    def declare(typing_context: Any, address: Any, length: Any, advice: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word, number = ir.IntType(64), ir.IntType(32)
            type_ = ir.FunctionType(number, [word, word, number])
            function = cgutils.get_or_insert_function(builder.module, type_, "madvise")
            builder.call(function, [*arguments[:2], builder.trunc(arguments[2], number)])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    make: Any = intrinsic
    call: Callable[[Any, Any, Any], None] = make(declare)
    return call


def _reading() -> Callable[[Any, Any, Any, Any], Any]:
    """The system's pread: descriptor, address, how many bytes, from where on; tells how many were read."""

    def declare(typing_context: Any, descriptor: Any, address: Any, length: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word, number = ir.IntType(64), ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(word, [number, word, word, word]), "pread"
            )
            return builder.call(function, [builder.trunc(arguments[0], number), *arguments[1:]])

        return types.int64(types.int64, types.int64, types.int64, types.int64), generate

    make: Any = intrinsic
    call: Callable[[Any, Any, Any, Any], Any] = make(declare)
    return call


advise = _advice()
pread = _reading()


@kernel
def let_go(addresses: Int64, sizes: Int64, page: int, advice: int) -> None:
    """Let mapped pages of files leave this process's memory until they are read again.

    Only of mapped files: other memory would lose what is in it.
    """
    for k in range(addresses.shape[0]):
        start = addresses[k] // page * page
        advise(start, addresses[k] + sizes[k] - start, advice)
