"""Columns of an arena: values by row number, whatever their Arrow type.

Three layouts serve every type: values of one width, byte strings, and, for nested and other rare types, small Arrow
arrays to which the rows point. A column takes Arrow arrays in their stored form (see `stored_types`) and gives them
back the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels import gather as kernels
from watersmeet.memory import Reservation
from watersmeet.records.arena import Arena, Heap

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_PIECES_BEFORE_MERGING = 16


class Column(Protocol):
    """What a table asks of a column."""

    row_bytes: int
    in_heap: bool
    """Whether its values lie in the table's heap."""

    def reserve(self, array: pa.Array, parts: Int32, lengths: Int64) -> bool:
        """Claim what `append` will need beyond the row's own bytes; False if there is no room.

        What the heap is to hold is not claimed, but added to each row's `lengths`.
        """
        ...

    def append(self, array: pa.Array, rows: Int32, parts: Int32, starts: Int64) -> None:
        """Put the values of new rows into place; their strings go to the heap at `starts`, which then points behind
        them.
        """
        ...

    def gather(self, rows: Int32) -> pa.Array:
        """The values of some rows, in that order."""
        ...

    def widen(self, rows: Int32, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        ...

    def drop(self, part: int) -> None:
        """Free what a partition's rows hold beyond their own bytes."""
        ...

    def keep(self, part: int, rows: Int32) -> None:
        """Free what rows of a partition hold so, but for these."""
        ...

    def release(self, start: int, stop: int) -> None:
        """Give the memory of unused rows back."""
        ...

    def trim(self, size: int) -> int:
        """Give free memory back to the budget; returns how much."""
        ...


def make_column(type_: pa.DataType, capacity: int, partitions: int, heap: Heap, claim: Reservation) -> Column:
    """The column for a stored type."""
    if pa.types.is_boolean(type_):
        return FixedColumn(type_, 1, capacity)
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or _is_large_bytes(type_):
        return BytesColumn(type_, capacity, heap)
    width = _byte_width(type_)
    if width:
        return FixedColumn(type_, width, capacity)
    return ObjectColumn(type_, capacity, partitions, claim)


def _is_large_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(type_) or pa.types.is_large_binary(type_))


def _byte_width(type_: pa.DataType) -> int:
    plain = pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_)
    return type_.bit_width // 8 if plain and type_.num_fields == 0 and type_.bit_width % 8 == 0 else 0


def estimated_width(type_: pa.DataType) -> int:
    """Bytes that one value of a stored type takes in an arena's row, heap not counted."""
    if pa.types.is_boolean(type_):
        return 2
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or _is_large_bytes(type_):
        return 13
    return (_byte_width(type_) or 8) + 1


class _Nulls:
    """One byte a row, written only once a null has been seen."""

    def __init__(self, capacity: int) -> None:
        self._arena = Arena(np.uint8, capacity)
        self.seen = False

    def append(self, array: pa.Array, rows: Int32) -> None:
        if array.null_count:
            self.seen = True
            kernels.scatter(array.is_null().to_numpy(zero_copy_only=False).view(np.uint8), rows, self._arena.array)
        elif self.seen:
            self._arena.array[rows] = 0

    def validity(self, rows: Int32) -> tuple[pa.Buffer | None, int]:
        """The Arrow bitmap of some rows and their number of nulls."""
        if not self.seen:
            return None, 0
        nulls = self._arena.array[rows]
        count = int(np.count_nonzero(nulls))
        return (pa.py_buffer(np.packbits(nulls == 0, bitorder="little")) if count else None), count

    def release(self, start: int, stop: int) -> None:
        if self.seen:
            self._arena.release(start, stop)


class FixedColumn:
    """Values of one width: numbers, dates, decimals, booleans, fixed-size binary."""

    in_heap = False

    def __init__(self, type_: pa.DataType, width: int, capacity: int) -> None:
        self._type = type_
        self._is_bool = pa.types.is_boolean(type_)
        self._width = width
        self._word: Any = _WORDS.get(width)
        self._values = Arena(self._word or np.uint8, capacity if self._word else capacity * width)
        self._nulls = _Nulls(capacity)
        self.row_bytes = width + 1

    @property
    def words(self) -> Int64:
        """The values by row number, of a column of 64-bit words without NULL."""
        words: Int64 = self._values.array.view(np.int64)
        return words

    def reserve(self, array: pa.Array, parts: Int32, lengths: Int64) -> bool:
        return True

    def append(self, array: pa.Array, rows: Int32, parts: Int32, starts: Int64) -> None:
        self._nulls.append(array, rows)
        if self._is_bool:
            array = array.cast(pa.uint8())
        buffer = array.buffers()[1]
        if buffer is None:  # all null: there may be no values at all
            return
        target = self._values.array
        if self._word is None:
            values = np.frombuffer(buffer, np.uint8)[array.offset * self._width :]
            kernels.scatter_wide(values, self._width, rows, target)
        else:
            values = np.frombuffer(buffer, self._word)[array.offset : array.offset + len(array)]
            if _adjoining(rows):
                target[rows[0] : rows[0] + len(rows)] = values
            else:
                kernels.scatter(values, rows, target)

    def gather(self, rows: Int32) -> pa.Array:
        validity, nulls = self._nulls.validity(rows) if self._nulls.seen else (None, 0)
        buffer = pa.allocate_buffer(len(rows) * self._width)
        if self._word is None:
            kernels.take_wide(self._values.array, self._width, rows, np.frombuffer(buffer, np.uint8))
        else:
            kernels.take(self._values.array, rows, np.frombuffer(buffer, self._word))
        type_ = pa.uint8() if self._is_bool else self._type
        array = pa.Array.from_buffers(type_, len(rows), [validity, buffer], nulls)
        return array.cast(pa.bool_()) if self._is_bool else array

    def widen(self, rows: Int32, widths: Int64) -> None:
        widths += self._width

    def drop(self, part: int) -> None:
        pass

    def keep(self, part: int, rows: Int32) -> None:
        pass

    def release(self, start: int, stop: int) -> None:
        width = 1 if self._word else self._width
        self._values.release(start * width, stop * width)
        self._nulls.release(start, stop)

    def trim(self, size: int) -> int:
        return 0


class BytesColumn:
    """Strings and binary values, whose bytes lie in the table's heap."""

    row_bytes = 13
    in_heap = True

    def __init__(self, type_: pa.DataType, capacity: int, heap: Heap) -> None:
        self._type = type_
        self._offset: Any = np.int64 if _is_large_bytes(type_) else np.int32
        self._heap = heap
        self._starts = Arena(np.int64, capacity)
        self._lengths = Arena(np.int32, capacity)
        self._nulls = _Nulls(capacity)

    def reserve(self, array: pa.Array, parts: Int32, lengths: Int64) -> bool:
        kernels.add_string_lengths(self._offsets(array), lengths)
        return True

    def append(self, array: pa.Array, rows: Int32, parts: Int32, starts: Int64) -> None:
        self._nulls.append(array, rows)
        offsets = self._offsets(array)
        buffer = array.buffers()[2]
        data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
        kernels.store_bytes(data, offsets, starts, rows, self._heap.bytes, self._starts.array, self._lengths.array)

    def gather(self, rows: Int32) -> pa.Array:
        validity, nulls = self._nulls.validity(rows)
        offsets, offset_buffer = _output((len(rows) + 1) * np.dtype(self._offset).itemsize)
        offsets = offsets.view(self._offset)
        total = int(kernels.measure_bytes(self._lengths.array, rows, offsets))
        data, data_buffer = _output(total)
        kernels.take_bytes(self._starts.array, self._heap.bytes, rows, offsets, data)
        return pa.Array.from_buffers(self._type, len(rows), [validity, offset_buffer, data_buffer], nulls)

    def widen(self, rows: Int32, widths: Int64) -> None:
        widths += np.dtype(self._offset).itemsize
        kernels.add_lengths(self._lengths.array, rows, widths)

    def drop(self, part: int) -> None:
        pass

    def keep(self, part: int, rows: Int32) -> None:
        pass

    def chunks(self, rows: Int32) -> Int64:
        """The heap's chunks in which the values of some rows lie."""
        rows = rows[self._lengths.array[rows] > 0]
        starts = self._starts.array[rows]
        first, last = (at // self._heap.chunk for at in (starts, starts + self._lengths.array[rows] - 1))
        long = np.flatnonzero(last > first)
        return np.concatenate([first, *(np.arange(first[i], last[i] + 1) for i in long)])

    def release(self, start: int, stop: int) -> None:
        self._starts.release(start, stop)
        self._lengths.release(start, stop)
        self._nulls.release(start, stop)

    def trim(self, size: int) -> int:
        return 0

    def _offsets(self, array: pa.Array) -> NDArray[Any]:
        buffer = array.buffers()[1]
        if buffer is None or not buffer.size:
            return np.zeros(len(array) + 1, self._offset)
        return np.frombuffer(buffer, self._offset)[array.offset : array.offset + len(array) + 1]


class ObjectColumn:
    """Values of any other type, as pieces: Arrow arrays that each belong to one partition. A row points into one."""

    row_bytes = 8
    in_heap = False

    def __init__(self, type_: pa.DataType, capacity: int, partitions: int, claim: Reservation) -> None:
        self._type = type_
        self._claim = claim
        self._places = Arena(np.int64, capacity)
        self._pieces: dict[int, tuple[pa.Array, Int32, int]] = {}
        self._owned: list[list[int]] = [[] for _ in range(partitions)]
        self._next = 0
        self._cut: list[tuple[pa.Array, NDArray[np.int64]]] = []
        self._in_advance = 0

    def reserve(self, array: pa.Array, parts: Int32, lengths: Int64) -> bool:
        # What a piece takes is known once it is cut: it is kept until it is appended, or another slice is asked for.
        self.trim(0)
        order = np.argsort(parts, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(parts[order])) + 1) if len(order) else []
        _ = array.null_count  # pieces of what Arrow knows to have none have no bitmap: let it always know
        pieces = [(array.take(pa.array(group)), group) for group in groups]
        size = sum(_piece_bytes(piece) for piece, _ in pieces)
        if not self._claim.try_grow(size):
            return False
        self._cut, self._in_advance = pieces, size
        return True

    def append(self, array: pa.Array, rows: Int32, parts: Int32, starts: Int64) -> None:
        cut, self._cut, self._in_advance = self._cut, [], 0
        for piece, group in cut:
            self._add(int(parts[group[0]]), piece, rows[group])

    def _add(self, part: int, piece: pa.Array, rows: Int32) -> None:
        """Keep a piece whose bytes are claimed, merging a partition's many small ones."""
        held = _piece_bytes(piece)
        small = [number for number in self._owned[part] if len(self._pieces[number][1]) <= 2 * len(rows)]
        if len(small) >= _PIECES_BEFORE_MERGING:
            olds = [self._pieces[number] for number in small]
            merged = pa.concat_arrays([*(old for old, _, _ in olds), piece])
            together = held + sum(size for _, _, size in olds)
            size = _piece_bytes(merged)
            # Merging saves memory, but for a bitmap that some of the pieces did without.
            if size <= together or self._claim.try_grow(size - together):
                self._claim.shrink(max(0, together - size))
                rows = np.concatenate([*(old for _, old, _ in olds), rows])
                piece, held = merged, size
                for number in small:
                    del self._pieces[number]
                self._owned[part] = [number for number in self._owned[part] if number in self._pieces]
        number = self._next
        self._next += 1
        self._pieces[number] = (piece, rows, held)
        self._owned[part].append(number)
        self._places.array[rows] = (number << 32) + np.arange(len(rows))

    def gather(self, rows: Int32) -> pa.Array:
        if not len(rows):
            return pa.nulls(0, self._type)
        places = self._places.array[rows]
        order = np.argsort(places >> 32, kind="stable")
        numbers = places[order] >> 32
        starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
        taken = [
            self._pieces[int(numbers[start])][0].take(pa.array(places[group] & 0xFFFFFFFF))
            for start, group in zip(starts, np.split(order, starts[1:]), strict=True)
        ]
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_arrays(taken).take(pa.array(back))

    def widen(self, rows: Int32, widths: Int64) -> None:
        total, count = 0, 0
        for number in np.unique(self._places.array[rows] >> 32):
            _, piece_rows, held = self._pieces[int(number)]
            total, count = total + held, count + len(piece_rows)
        widths += total // max(1, count) + 1

    def drop(self, part: int) -> None:
        for number in self._owned[part]:
            self._claim.shrink(self._pieces.pop(number)[2])
        self._owned[part] = []

    def keep(self, part: int, rows: Int32) -> None:
        for number in self._owned[part]:
            piece, mine, held = self._pieces[number]
            kept = np.flatnonzero(np.isin(mine, rows))
            if len(kept) == len(mine):
                continue
            del self._pieces[number]
            self._claim.shrink(held)
            if len(kept):
                piece, mine = piece.take(pa.array(kept)), mine[kept]
                # Some of what was there takes no more than all of it; Arrow may round a buffer up.
                size = min(held, _piece_bytes(piece))
                self._claim.grow(size)
                self._pieces[number] = (piece, mine, size)
                self._places.array[mine] = (number << 32) + np.arange(len(mine))
        self._owned[part] = [number for number in self._owned[part] if number in self._pieces]

    def release(self, start: int, stop: int) -> None:
        self._places.release(start, stop)

    def trim(self, size: int) -> int:
        freed, self._in_advance = self._in_advance, 0
        self._cut = []
        self._claim.shrink(freed)
        return freed


def _piece_bytes(piece: pa.Array) -> int:
    """What a piece holds: its buffers, and the numbers of its rows."""
    _ = piece.null_count  # as in `reserve`: what is made of it takes the same, whoever has looked at it before
    return int(piece.get_total_buffer_size()) + 4 * len(piece)


def _adjoining(rows: Int32) -> bool:
    """Whether rows are numbered without a gap; the ends tell, since rows of one append never repeat nor fall back
    across.
    """
    return len(rows) > 1 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())


class ArrowColumn:
    """The values of an Arrow array of a stored type, made ready to be gathered again and again."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._type = array.type
        self._offset: Any = _offset_of(array.type)
        self._width = 0 if self._offset else _byte_width(array.type)
        self._word = _WORDS.get(self._width)
        self._ready = bool(len(array)) and not array.null_count and bool(self._offset or self._width)
        if not self._ready:
            return
        buffers, start, end = array.buffers(), array.offset, array.offset + len(array)
        if self._offset:
            self._starts = np.frombuffer(buffers[1], self._offset)[start : end + 1]
            filled = buffers[2] is not None and buffers[2].size
            self._values: NDArray[Any] = np.frombuffer(buffers[2] if filled else b"\0", np.uint8)
        elif self._word is None:
            self._values = np.frombuffer(buffers[1], np.uint8)[start * self._width :]
        else:
            self._values = np.frombuffer(buffers[1], self._word)[start:end]

    def gather(self, rows: Int32) -> pa.Array:
        """Some values, in half the time that Arrow takes for it."""
        count = len(rows)
        if not self._ready or not count:
            return self._array.take(pa.array(rows))
        if self._offset:
            offsets, offset_buffer = _output((count + 1) * self._starts.itemsize)
            offsets = offsets.view(self._offset)
            total = int(kernels.measure_strings(self._starts, rows, offsets))
            out, buffer = _output(total)
            if total:
                kernels.take_strings(self._starts, self._values, rows, offsets, out)
            return pa.Array.from_buffers(self._type, count, [None, offset_buffer, buffer], 0)
        out, buffer = _output(count * self._width)
        if self._word is None:
            kernels.take_wide(self._values, self._width, rows, out)
        else:
            kernels.take(self._values, rows, out.view(self._word))
        return pa.Array.from_buffers(self._type, count, [None, buffer], 0)


def gathered(array: pa.Array, rows: Int32) -> pa.Array:
    """Some values of an Arrow array of a stored type."""
    return ArrowColumn(array).gather(rows)


def _offset_of(type_: pa.DataType) -> Any:
    """The type of a string type's offsets; None for other types."""
    if _is_large_bytes(type_):
        return np.int64
    return np.int32 if pa.types.is_string(type_) or pa.types.is_binary(type_) else None


def _output(size: int) -> tuple[NDArray[np.uint8], pa.Buffer]:
    buffer = pa.allocate_buffer(size)
    return np.frombuffer(buffer, np.uint8), buffer
