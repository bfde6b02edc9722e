"""Rows that are gathered from where they lie, all columns of a batch in one pass.

Whoever has such rows says where their blocks are (see `kernels.addressed`), and gives the few columns that have no
plain layout, nested ones above all, as Arrow arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64, Numbers
from watersmeet.kernels import addressed as kernels

Sources: TypeAlias = Int64
"""A row for each source: directory, base, shift and stride, which tell where blocks are."""

_ALIGNED = 64
_ZEROS = np.zeros(1, np.int64)
NOWHERE = _ZEROS.ctypes.data
"""An address that can be read, for arrays that have no values."""


def width_of(type_: pa.DataType) -> int:
    """Bytes of a value of a stored type, or what stands for them in kernels."""
    if pa.types.is_boolean(type_):
        return kernels.BITS
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return kernels.STRINGS
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return kernels.LARGE_STRINGS
    plain = pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_)
    if plain and type_.num_fields == 0 and type_.bit_width % 8 == 0:
        return int(type_.bit_width) // 8
    return kernels.OTHER


class Picture:
    """Some columns that are asked for together again and again, and what is known of them."""

    __slots__ = ("_last", "columns", "others", "strings", "types", "widths")

    def __init__(self, columns: Sequence[int], types: Sequence[pa.DataType], widths: Int32) -> None:
        self.columns = np.array(columns, np.int32)
        self.types = [types[column] for column in columns]
        self.widths: list[int] = widths[self.columns].tolist()
        self.strings = [k for k, width in enumerate(self.widths) if width in (kernels.STRINGS, kernels.LARGE_STRINGS)]
        self.others = [k for k, width in enumerate(self.widths) if width == kernels.OTHER]
        self._last: tuple[list[bool], Layout] | None = None

    def layout(self, count: int, nullable: list[bool]) -> Layout:
        """Where so many rows go, until it is asked for others."""
        if self._last is None or self._last[0] != nullable:
            self._last = (nullable, Layout(self, nullable))
        self._last[1].fit(count)
        return self._last[1]


class AddressedRows(ABC):
    """Rows by number, in blocks whose columns lie anywhere."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = tuple(types)
        self.widths = np.array([width_of(type_) for type_ in types], np.int32)
        self._pictures: dict[tuple[int, ...], Picture] = {}

    @property
    @abstractmethod
    def sources(self) -> Sources:
        """Where the blocks are now."""

    @abstractmethod
    def may_be_null(self, column: int) -> bool:
        """Whether any value of a column is NULL."""

    @abstractmethod
    def other(self, column: int, rows: Numbers) -> pa.Array:
        """Values of a column that has no plain layout."""

    @abstractmethod
    def other_width(self, column: int, rows: Numbers) -> int:
        """Bytes that such a value takes, about."""

    def check_rows(self, rows: Numbers) -> None:
        """Make sure that rows which are about to be read where they lie are what was written; in memory they are."""
        return

    def located(self, rows: Numbers) -> Numbers:
        """The numbers by which kernels find rows in the sources; their own, unless somebody says where each is."""
        return rows

    def gather(self, column: int, rows: Numbers) -> pa.Array:
        """One column's values for some rows."""
        return self.gather_all((column,), rows)[0]

    def gather_all(self, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
        """The values of some rows in several columns."""
        picture = self._pictures.get(columns)
        if picture is None:
            picture = self._pictures[columns] = Picture(columns, self.types, self.widths)
        count = len(rows)
        if not count:
            return [pa.nulls(0, type_) for type_ in picture.types]
        places = self.located(rows)
        layout = picture.layout(count, [self.may_be_null(column) for column in columns])
        buffer = self._allocate(layout.fixed_bytes)
        layout.place(buffer.address)
        strings = self._copy(picture, layout, places)
        others = {k: self.other(columns[k], rows) for k in picture.others}
        return [
            others[k] if k in others else layout.array(k, buffer, strings)
            for k in range(len(columns))
        ]  # fmt: skip

    def _copy(self, picture: Picture, layout: Layout, places: Numbers) -> pa.Buffer | None:
        """Copy values from places in the sources to where they go; returns the bytes of strings, if there are any."""
        strings = None
        if picture.strings:
            kernels.measure(self.sources, self.widths, picture.columns, places, layout.firsts, layout.sizes)
            strings = self._allocate(layout.place_strings())
            layout.place_bytes(strings.address)
        kernels.gather(self.sources, self.widths, picture.columns, places, layout.out, layout.nulls)
        return strings

    def _allocate(self, size: int) -> pa.Buffer:
        """Memory for rows that are gathered."""
        return pa.allocate_buffer(size, memory_pool=pa.system_memory_pool())

    def widen(self, column: int, rows: Numbers, widths: Int64) -> None:
        """Add to `widths` what each row's value takes in an output batch."""
        width = int(self.widths[column])
        if width > 0:
            widths += width
        elif width == kernels.BITS:
            widths += 1
        elif width == kernels.OTHER:
            widths += self.other_width(column, rows)
        else:
            kernels.widen(self.sources, self.widths, np.array([column], np.int32), self.located(rows), widths)


class Layout:
    """Where the columns of some rows go: one stretch of memory for all values, and one for all bytes of strings."""

    __slots__ = (
        "_bits", "_count", "_nullable", "_picture", "_placed", "_relative", "_starts", "_string_starts",
        "firsts", "fixed_bytes", "nulls", "out", "sizes",
    )  # fmt: skip

    def __init__(self, picture: Picture, nullable: Sequence[bool]) -> None:
        self._picture = picture
        self._nullable = [may_be_null and width != kernels.OTHER for may_be_null, width in zip(
            nullable, picture.widths, strict=True
        )]  # fmt: skip
        columns = len(picture.widths)
        self.out = np.zeros(kernels.WORDS * columns, np.int64)
        self.sizes = np.zeros(columns, np.int64)
        self.nulls = np.zeros(columns, np.int64)
        self._string_starts = [0] * columns
        self._count = -1
        self.fixed_bytes = 0
        """Of all that is not bytes of strings."""
        self._starts: list[tuple[int, int, int]] = []
        """Of each column, where its values begin, how many bytes they are, and where its bitmap begins, -1 for none."""
        self._bits: list[int] = []
        """Where bitmaps begin, of booleans and of validity."""
        self._relative = np.zeros(kernels.WORDS * columns, np.int64)
        self._placed = np.zeros(kernels.WORDS * columns, np.bool_)
        self._placed[:: kernels.WORDS] = True
        self._placed[2 :: kernels.WORDS] = self._nullable
        self.firsts = self.out[:: kernels.WORDS]
        """Where values go, which is where offsets of strings lie."""

    def fit(self, count: int) -> None:
        """Be the layout of so many rows."""
        if count == self._count:
            return
        self._count = count
        self._starts, self._bits = starts, bits = [], []
        bitmap = (-(-count // 8) + _ALIGNED - 1) & -_ALIGNED
        at = 0
        words: list[int] = []
        for width, may_be_null in zip(self._picture.widths, self._nullable, strict=True):
            start = at
            if width > 0:
                length = width * count
            elif width == kernels.BITS:
                length = -(-count // 8)
                bits.append(at)
            else:
                length = -width * (count + 1) if width else 0
            at += (length + _ALIGNED - 1) & -_ALIGNED
            if may_be_null:
                starts.append((start, length, at))
                bits.append(at)
                words += (start, 0, at)
                at += bitmap
            else:
                starts.append((start, length, -1))
                words += (start, 0, 0)
        self.fixed_bytes = at
        self._relative[:] = words

    def place(self, address: int) -> None:
        """Values go to this address; what bits are set in becomes zeros."""
        self.move(address)
        if self._bits:
            self.nulls[:] = 0
            for start in self._bits:
                kernels.clear(address + start, -(-self._count // 8))

    def begin_again(self) -> None:
        """Forget what was copied so far."""
        self.nulls[:] = 0
        for bits in self._bits:
            kernels.clear(int(self.out[0]) - self._starts[0][0] + bits, -(-self._count // 8))

    def move(self, address: int) -> None:
        """What was placed is at another address now."""
        np.multiply(self._placed, address, out=self.out)
        self.out += self._relative

    def place_strings(self) -> int:
        """The bytes of strings are measured; returns how many there are."""
        at = 0
        for k in self._picture.strings:
            self._string_starts[k] = at
            at += (int(self.sizes[k]) + _ALIGNED - 1) & -_ALIGNED
        return at

    def place_bytes(self, address: int) -> None:
        """The bytes of strings go to this address."""
        for k in self._picture.strings:
            self.out[kernels.WORDS * k + 1] = address + self._string_starts[k]

    def words(self, start: int) -> Int64:
        """How a block describes these columns, if its values begin at `start` and its strings right behind them."""
        words = np.zeros((len(self._starts), kernels.WORDS), np.int64)
        for k, width in enumerate(self._picture.widths):
            first, _, bitmap = self._starts[k]
            words[k, 0] = 8 * (start + first) if width == kernels.BITS else start + first
            words[k, 1] = start + self.fixed_bytes + self._string_starts[k]
            words[k, 2] = 8 * (start + bitmap) if self.nulls[k] else 0
        return words

    def array(self, k: int, buffer: pa.Buffer, strings: pa.Buffer | None) -> pa.Array:
        """A column, once its values are in place."""
        start, length, bitmap = self._starts[k]
        nulls = int(self.nulls[k]) if bitmap >= 0 else 0
        validity = buffer.slice(bitmap, -(-self._count // 8)) if nulls else None
        buffers = [validity, buffer.slice(start, length)]
        if strings is not None and k in self._picture.strings:
            buffers.append(strings.slice(self._string_starts[k], int(self.sizes[k])))
        return pa.Array.from_buffers(self._picture.types[k], self._count, buffers, nulls)


def with_values(array: pa.Array) -> pa.Array:
    """The same values with memory behind all of them: an array of NULLs may have none."""
    buffers = array.buffers()
    return array if len(buffers) > 1 and buffers[1] is not None else pa.nulls(len(array), array.type)


def words_of(array: pa.Array, width: int) -> tuple[int, int, int]:
    """Where values, bytes of strings and validity of an array of a plain layout begin; see `with_values`."""
    buffers, offset = array.buffers(), array.offset
    validity = 8 * buffers[0].address + offset if buffers[0] is not None and array.null_count else 0
    if width == kernels.BITS:
        return 8 * buffers[1].address + offset, 0, validity
    if width > 0:
        return buffers[1].address + width * offset, 0, validity
    return buffers[1].address - width * offset, (buffers[2].address if buffers[2] is not None else NOWHERE), validity


def gathered_by_block(piece: Callable[[int], pa.Array], rows: Numbers, shift: int) -> pa.Array:
    """Values of rows that lie in arrays of a block each."""
    blocks = rows >> shift
    order = np.argsort(blocks, kind="stable")
    mask = (1 << shift) - 1
    return put_back(
        order,
        [piece(int(blocks[group[0]])).take(pa.array(rows[group] & mask)) for group in groups(blocks[order], order)],
    )


def gathered_by_source(source: Callable[[int], AddressedRows], column: int, rows: Numbers) -> pa.Array:
    """Values of a column that has no plain layout, of rows that are numbered with their source."""
    which = rows >> 32
    order = np.argsort(which, kind="stable")
    taken = [
        source(int(which[group[0]])).other(column, (rows[group] & 0xFFFFFFFF).astype(np.int32))
        for group in groups(which[order], order)
    ]
    return put_back(order, taken)


def groups(sorted_keys: Numbers, order: Int64) -> list[Int64]:
    """An order cut where its keys change."""
    return np.split(order, np.flatnonzero(np.diff(sorted_keys)) + 1)


def put_back(order: Int64, arrays: Sequence[pa.Array]) -> pa.Array:
    """Values that were taken in some order, group by group, in the order that was asked for."""
    if len(arrays) == 1 and bool((order[:-1] < order[1:]).all()):
        return arrays[0]
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(arrays).take(pa.array(back))
