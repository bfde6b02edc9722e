"""Moving values between batches and arenas: scatter on the way in, gather on the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from watersmeet.core.arrays import Bytes, Int32, Int64
from watersmeet.kernels.compile import inlined, kernel, prefetch

AHEAD = 24


def _chunk_copy(width: int) -> Callable[[Any, Any, Any, Any], None]:
    """An unaligned copy of `width` bytes between byte arrays, as one vector load and store."""

    def declare(typing_context: Any, target: Any, at: Any, source: Any, start: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            views = [context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 2)]
            pointer = ir.VectorType(ir.IntType(8), width).as_pointer()
            put, take = (
                builder.bitcast(builder.gep(view.data, [arguments[k]]), pointer)
                for view, k in zip(views, (1, 3), strict=True)
            )
            value = builder.load(take)
            value.align = 1
            builder.store(value, put).align = 1
            return context.get_dummy_value()

        return types.void(target, types.intp, source, types.intp), generate

    make: Any = intrinsic
    copy: Callable[[Any, Any, Any, Any], None] = make(declare)
    return copy


_copy8 = _chunk_copy(8)
_copy32 = _chunk_copy(32)


@inlined
def copy_bytes(target: Bytes, at: Any, source: Bytes, start: Any, length: Any) -> None:
    """Copy a byte string; never touches a byte beyond either end: the last chunk overlaps the one before."""
    if length >= 32:
        done = 0
        while done + 32 <= length:
            _copy32(target, np.intp(at + done), source, np.intp(start + done))
            done += 32
        if done < length:
            _copy32(target, np.intp(at + length - 32), source, np.intp(start + length - 32))
    elif length >= 8:
        done = 0
        while done + 8 <= length:
            _copy8(target, np.intp(at + done), source, np.intp(start + done))
            done += 8
        if done < length:
            _copy8(target, np.intp(at + length - 8), source, np.intp(start + length - 8))
    else:
        for k in range(length):
            target[at + k] = source[start + k]


@kernel
def scatter(values: Any, rows: Int32, target: Any) -> None:
    """target[rows[i]] = values[i]."""
    for i in range(rows.shape[0]):
        target[rows[i]] = values[i]


@kernel
def take(source: Any, rows: Int32, out: Any) -> None:
    """out[i] = source[rows[i]]."""
    count = rows.shape[0]
    for i in range(count):
        if i + AHEAD < count:
            prefetch(source, np.intp(rows[i + AHEAD]))
        out[i] = source[rows[i]]


@kernel
def scatter_wide(values: Bytes, width: int, rows: Int32, target: Bytes) -> None:
    """Like `scatter`, for values of any number of bytes."""
    for i in range(rows.shape[0]):
        copy_bytes(target, np.int64(rows[i]) * width, values, i * width, width)


@kernel
def take_wide(source: Bytes, width: int, rows: Int32, out: Bytes) -> None:
    """Like `take`, for values of any number of bytes."""
    for i in range(rows.shape[0]):
        copy_bytes(out, i * width, source, np.int64(rows[i]) * width, width)


@inlined
def _page_of(ends: Int64, page: Any, row: Any) -> Any:
    """The page of a row, looked for from another page on: rows that follow each other are mostly near."""
    while row >= ends[page]:
        page += 1
    while page > 0 and row < ends[page - 1]:
        page -= 1
    return page


@kernel
def take_paged(data: Bytes, width: int, starts: Int64, ends: Int64, rows: Int32, out: Bytes) -> None:
    """Like `take_wide`, for values on pages: page p ends before row ends[p], its first value is at data[starts[p]]."""
    count = rows.shape[0]
    page = ahead_page = 0
    for i in range(count):
        if i + AHEAD < count:
            ahead = rows[i + AHEAD]
            ahead_page = _page_of(ends, ahead_page, ahead)
            before = ends[ahead_page - 1] if ahead_page else 0
            prefetch(data, np.intp(starts[ahead_page] + (ahead - before) * width))
        page = _page_of(ends, page, rows[i])
        before = ends[page - 1] if page else 0
        copy_bytes(out, i * width, data, starts[page] + (rows[i] - before) * width, width)


@kernel
def place_bytes(
    lengths: Int64,
    parts: Int32,
    positions: Int64,
    ends: Int64,
    chunk: int,
    fresh: Int64,
    owners: Int32,
    starts: Int64,
) -> tuple[int, int]:
    """Give each row's strings a place in its partition's current chunk of the heap, or in the next `fresh` chunk.

    Rows longer than a chunk get no place here (start -1). Returns the chunks taken and how many rows are too long.
    """
    taken = 0
    too_long = 0
    for i in range(parts.shape[0]):
        length = lengths[i]
        if length > chunk:
            starts[i] = -1
            too_long += 1
            continue
        part = parts[i]
        if positions[part] + length > ends[part]:
            positions[part] = fresh[taken]
            ends[part] = fresh[taken] + chunk
            owners[taken] = part
            taken += 1
        starts[i] = positions[part]
        positions[part] += length
    return taken, too_long


@kernel
def chunks_needed(
    lengths: Int64, parts: Int32, positions: Int64, ends: Int64, chunk: int, room: Int64
) -> tuple[int, int]:
    """How many fresh chunks `place_bytes` would take, and how many chunks the rows that are too long fill."""
    for part in range(room.shape[0]):
        room[part] = ends[part] - positions[part]
    needed = 0
    outsize = 0
    for i in range(parts.shape[0]):
        length = lengths[i]
        if length > chunk:
            outsize += (length + chunk - 1) // chunk
            continue
        part = parts[i]
        if length > room[part]:
            room[part] = chunk
            needed += 1
        room[part] -= length
    return needed, outsize


@kernel
def add_string_lengths(offsets: Any, lengths: Int64) -> None:
    """lengths[i] += the length of string i."""
    for i in range(lengths.shape[0]):
        lengths[i] += np.int64(offsets[i + 1]) - np.int64(offsets[i])


@kernel
def store_bytes(
    data: Bytes, offsets: Any, starts: Int64, rows: Int32, heap: Bytes, row_starts: Int64, row_lengths: Int32
) -> None:
    """Copy strings to their places in the heap, note the places by row, and let `starts` point behind them."""
    for i in range(rows.shape[0]):
        first = np.int64(offsets[i])
        length = np.int64(offsets[i + 1]) - first
        row_starts[rows[i]] = starts[i]
        row_lengths[rows[i]] = length
        copy_bytes(heap, starts[i], data, first, length)
        starts[i] += length


@kernel
def measure_bytes(lengths: Int32, rows: Int32, offsets: Any) -> Any:
    """Fill Arrow offsets for the strings of some rows; returns their bytes."""
    total = np.int64(0)
    count = rows.shape[0]
    offsets[0] = 0
    for i in range(count):
        if i + AHEAD < count:
            prefetch(lengths, np.intp(rows[i + AHEAD]))
        total += lengths[rows[i]]
        offsets[i + 1] = total
    return total


@kernel
def take_bytes(starts: Int64, heap: Bytes, rows: Int32, offsets: Any, out: Bytes) -> None:
    """Copy the strings of some rows side by side, to the offsets that `measure_bytes` filled."""
    near = 12
    count = rows.shape[0]
    for i in range(count):
        if i + 2 * near < count:
            prefetch(starts, np.intp(rows[i + 2 * near]))
        if i + near < count:
            ahead = np.intp(starts[rows[i + near]])
            prefetch(heap, ahead)
            prefetch(heap, ahead + 63)
        at = np.int64(offsets[i])
        copy_bytes(out, at, heap, starts[rows[i]], np.int64(offsets[i + 1]) - at)


@kernel
def measure_strings(source_offsets: Any, rows: Int32, offsets: Any) -> Any:
    """Like `measure_bytes`, for strings that lie side by side in an Arrow array."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        total += np.int64(source_offsets[row + 1]) - np.int64(source_offsets[row])
        offsets[i + 1] = total
    return total


@kernel
def take_strings(source_offsets: Any, data: Bytes, rows: Int32, offsets: Any, out: Bytes) -> None:
    """Like `take_bytes`, for strings that lie side by side in an Arrow array."""
    for i in range(rows.shape[0]):
        at = np.int64(offsets[i])
        copy_bytes(out, at, data, np.int64(source_offsets[rows[i]]), np.int64(offsets[i + 1]) - at)


@kernel
def fitting(widths: Int64, limit: int) -> Any:
    """How many of the first rows stay within `limit` bytes together; at least one."""
    total = np.int64(0)
    for i in range(widths.shape[0]):
        total += widths[i]
        if total > limit:
            return max(i, 1)
    return widths.shape[0]


@kernel
def add_lengths(lengths: Int32, rows: Int32, widths: Int64) -> None:
    """widths[i] += lengths[rows[i]]."""
    for i in range(rows.shape[0]):
        widths[i] += lengths[rows[i]]


@kernel
def keep(mask: Any, probes: Int32, rows: Int32) -> int:
    """Drop the pairs whose mask is false, in place; returns how many are left."""
    left = 0
    for i in range(mask.shape[0]):
        if mask[i]:
            probes[left] = probes[i]
            rows[left] = rows[i]
            left += 1
    return left
