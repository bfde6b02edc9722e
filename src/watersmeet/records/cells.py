"""Which of many conditions each row passes, without asking each of each row.

Conditions compare columns with values. The values that all of them name divide a column into cells, within which no
condition can tell one value from another::

    amount > 100, amount > 500, amount = 7        ...7)[7](7...100)[100](100...500)[500](500...  NULL

A row's cells in all columns decide all conditions, and finding them takes one search a column, however many conditions
there are. What compares columns with each other, or strings by their order, is asked of every row, and its answer is
one more thing that cells differ in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Bool, Int32, Int64, Uint64
from watersmeet.core.filters import Atom, Both, Column, Compare, Filter, atoms, holds, values_of
from watersmeet.kernels.bitsets import digest, find_codes, intersect, put_codes
from watersmeet.records.types import stored_type, to_stored

_MOST = 1 << 62
_WORD = 64
_FREE = -1
ENTRY_BYTES = 2 * 12
"""Of each key that is remembered, in a table that is half empty at least."""


class Cells:
    """The cells of an input's rows, by conditions that are bound to its columns.

    Most conditions ask something of one column, and something of another: what the cell of a column says about all
    conditions is a row of bits, made once, and a row of the input passes what its cells' bits have in common. Only
    conditions that mix columns in other ways are asked of rows, of the first of each cell.

    >>> from watersmeet.core.filters import bind, parse_filter
    >>> batch = pa.record_batch({"a": [5, 7, 8, None, 900], "b": ["x", "y", "x", "x", "z"]})
    >>> texts = "a > 7", "b = 'x'", "a = 7", "a < 9 and not b = 'y'", "a = 900 or b = 'x'"
    >>> cells = Cells(batch.schema, [bind(parse_filter(text), batch.schema, "", "") for text in texts], 16)
    >>> [format(passed, "05b") for passed in cells.classes(batch, lambda passed: passed[:, 0].astype(np.int32))]
    ['11010', '00100', '11011', '10010', '10001']
    """

    def __init__(self, schema: pa.Schema, conditions: Sequence[Filter], most: int) -> None:
        """`most` cells are remembered with their classes."""
        types = {field.name: stored_type(field.type) for field in schema}
        by_column: dict[str, list[Atom]] = {}
        apart: dict[Atom, None] = {}
        for atom in (atom for condition in conditions for atom in atoms(condition)):
            if _is_searched(atom, types[atom.column]):
                by_column.setdefault(atom.column, []).append(atom)
            else:
                apart[atom] = None
        self._columns = [_axis(name, types[name], found) for name, found in sorted(by_column.items())]
        self._axes: list[_Axis] = [*self._columns, *map(_Apart, apart)]
        asked: dict[str, list[tuple[int, Filter]]] = {column.name: [] for column in self._columns}
        self._mixed: list[tuple[int, Filter]] = []
        for number, condition in enumerate(conditions):
            parts = list(_parts(condition))
            names = [_only_column(part, types) for part in parts]
            if None in names:
                self._mixed.append((number, condition))
                continue
            for part, name in zip(parts, names, strict=True):
                assert name is not None
                asked[name].append((number, part))
        self._tables = [column.table(asked[column.name], len(conditions)) for column in self._columns]
        self._everything = _packed(np.ones((1, len(conditions)), np.bool_))
        self._asked = sorted({name for _, mixed in self._mixed for atom in atoms(mixed) for name in _columns(atom)})
        self._compared = sorted({name for atom in (*apart, *chain(*by_column.values())) for name in _columns(atom)})
        self._codes = Codes(most)

    def classes(self, batch: pa.RecordBatch, make: Callable[[Uint64], Int32]) -> Int32:
        """The class of each row; `make` gives those of sets of conditions that rows pass, a bit for each."""
        count = batch.num_rows
        # Of views, runs and dictionaries Arrow can neither compare nor take all.
        batch = pa.record_batch({name: to_stored(batch.column(name)) for name in self._compared})
        places = [axis.places(batch) for axis in self._axes]

        def made(_: Int64, rows: Int64) -> Int32:
            sets, which = _distinct(self._passed(batch, [of_axis[rows] for of_axis in places], rows))
            found: Int32 = make(sets)[which]
            return found

        keys, cells = np.zeros(count, np.int64), 1
        for axis, of_axis in zip(self._axes, places, strict=True):
            if cells * axis.size >= _MOST:  # more than words can number: each row is asked for itself
                return made(keys, np.arange(count))
            keys = keys * axis.size + of_axis
            cells *= axis.size
        return self._codes.of(keys, made)

    def _passed(self, batch: pa.RecordBatch, places: Sequence[Int64], rows: Int64) -> Uint64:
        """Which conditions some rows pass."""
        found = np.repeat(self._everything, len(rows), axis=0)
        for table, of_column in zip(self._tables, places, strict=False):
            intersect(table, of_column, found)
        if self._mixed:
            some = batch.select(self._asked).take(pa.array(rows))
            for number, condition in self._mixed:
                fails = ~_true(holds(condition, some))
                found[fails, number // _WORD] &= ~(np.uint64(1) << np.uint64(number % _WORD))
        return found


def _true(found: pa.Array) -> Bool:
    """Where something is true, and neither false nor NULL."""
    true: Bool = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return true


def _packed(passed: Bool) -> Uint64:
    """Lines of bits as words."""
    count = -(-max(1, passed.shape[1]) // _WORD) * _WORD
    wide = np.zeros((len(passed), count), np.bool_)
    wide[:, : passed.shape[1]] = passed
    return np.packbits(wide, axis=1, bitorder="little").view(np.uint64)


def _distinct(sets: Uint64) -> tuple[Uint64, Int64]:
    """The different sets among some, and which of them each is."""
    digests = np.empty(len(sets), np.int64)
    digest(sets, digests)
    _, first, which = np.unique(digests, return_index=True, return_inverse=True)
    found = sets[first]
    if not np.array_equal(found[which], sets):
        found, which = np.unique(sets, axis=0, return_inverse=True)
    return found, which.reshape(-1)


def _parts(condition: Filter) -> Iterator[Filter]:
    """What must hold, all of it, for a condition to hold."""
    if isinstance(condition, Both):
        for each in condition.conditions:
            yield from _parts(each)
    else:
        yield condition


def _only_column(condition: Filter, types: Mapping[str, pa.DataType]) -> str | None:
    """The one column that decides a condition by its cells; None if there is none."""
    found = list(atoms(condition))
    names = {atom.column for atom in found}
    if len(names) > 1 or not all(_is_searched(atom, types[atom.column]) for atom in found):
        return None
    return names.pop()


def _columns(atom: Atom) -> list[str]:
    other = [atom.value.name] if isinstance(atom, Compare) and isinstance(atom.value, Column) else []
    return [atom.column, *other]


def _in_words(type_: pa.DataType) -> bool:
    """Whether values are words, or times that are kept as such."""
    if pa.types.is_float16(type_):
        return False
    if pa.types.is_temporal(type_):
        return not pa.types.is_interval(type_)
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))


def _is_searched(atom: Atom, type_: pa.DataType) -> bool:
    """Whether a search among the values that a column is compared with tells what the atom says."""
    if isinstance(atom, Compare) and isinstance(atom.value, Column):
        return False
    if _in_words(type_):
        return True
    if isinstance(atom, Compare) and atom.operator not in ("=", "!="):
        return False
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _axis(name: str, type_: pa.DataType, found: Sequence[Atom]) -> _Divided:
    values = [value for atom in found for value in values_of(atom)]
    return _Searched(name, type_, values) if _in_words(type_) else _Named(name, type_, values)


class _Axis(ABC):
    """One of the things that cells differ in."""

    size: int
    """How many cells there are along it."""

    @abstractmethod
    def places(self, batch: pa.RecordBatch) -> Int64:
        """The cell of each row."""


class _Apart(_Axis):
    """What is asked of every row: it holds, it does not, or nobody knows."""

    size = 3

    def __init__(self, atom: Atom) -> None:
        self._atom = atom

    def places(self, batch: pa.RecordBatch) -> Int64:
        found = holds(self._atom, batch)
        cells: Int64 = pc.fill_null(found.cast(pa.int8()), 2).to_numpy(zero_copy_only=False).astype(np.int64)
        return cells


class _Divided(_Axis):
    """A column divided by values."""

    name: str

    @abstractmethod
    def examples(self) -> pa.Array:
        """A value of each cell."""

    def table(self, conditions: Sequence[tuple[int, Filter]], count: int) -> Uint64:
        """What each cell says about so many conditions, of which some ask for this column: a bit for each."""
        column = self.examples()
        some = pa.record_batch({self.name: column})
        passed = np.ones((len(column), count), np.bool_)
        for number, condition in conditions:
            passed[:, number] &= _true(holds(condition, some))
        return _packed(passed)


class _Searched(_Divided):
    """Of values that are compared as words: below each, at it, and above all; NaN, and NULL."""

    def __init__(self, name: str, type_: pa.DataType, values: Sequence[Any]) -> None:
        self.name = name
        self._type = type_
        self._values = np.unique(
            np.concatenate([_words(pa.array([], type_)), *(_words(pa.array([v])) for v in values)])
        )
        self.size = 2 * len(self._values) + 3

    def examples(self) -> pa.Array:
        values, count = self._values, len(self._values)
        found = np.zeros(self.size, values.dtype)
        found[1 : 2 * count : 2] = values
        if values.dtype.kind == "f":
            # Where a value is next to another, or is the last, there is nothing between: such a cell has no rows.
            found[0], found[2 : 2 * count + 1 : 2], found[-2] = -np.inf, np.nextafter(values, np.inf), np.nan
            column = pa.array(found, mask=np.arange(self.size) == self.size - 1, from_pandas=False)
            return column
        limits = np.iinfo(values.dtype)
        found[0] = limits.min
        found[2 : 2 * count + 1 : 2] = np.where(values < limits.max, values, limits.max - 1) + np.ones(1, values.dtype)
        column = pa.array(found, mask=np.arange(self.size) == self.size - 1)
        return column.cast(self._type) if pa.types.is_boolean(self._type) else column.view(self._type)

    def places(self, batch: pa.RecordBatch) -> Int64:
        column = batch.column(self.name)
        words, values = _words(column), self._values
        found = np.searchsorted(values, words)
        cells: Int64 = 2 * found.astype(np.int64)
        if len(values):
            at = values[np.minimum(found, len(values) - 1)] == words
            cells += at & (found < len(values))
        if words.dtype.kind == "f":
            cells[np.isnan(words)] = self.size - 2
        if column.null_count:
            cells[column.is_null().to_numpy(zero_copy_only=False)] = self.size - 1
        return cells


class _Named(_Divided):
    """Of strings that are compared for being equal: each of those that are named, all others, and NULL."""

    def __init__(self, name: str, type_: pa.DataType, values: Sequence[Any]) -> None:
        self.name = name
        self._values = pa.array(values, type_).unique()
        self.size = len(self._values) + 2

    def examples(self) -> pa.Array:
        names = self._values.to_pylist()
        return pa.array([*names, "".join([*names, "x"]), None], self._values.type)

    def places(self, batch: pa.RecordBatch) -> Int64:
        column = batch.column(self.name)
        found = pc.index_in(column, value_set=self._values)
        cells: Int64 = pc.fill_null(found, len(self._values)).to_numpy(zero_copy_only=False).astype(np.int64)
        if column.null_count:
            cells[column.is_null().to_numpy(zero_copy_only=False)] = self.size - 1
        return cells


def _words(column: pa.Array) -> Any:
    """Values as numbers in the same order; NULL as any."""
    type_ = column.type
    if pa.types.is_floating(type_):
        column = column.cast(pa.float64())
    elif pa.types.is_boolean(type_):
        column = column.cast(pa.uint8())
    elif not pa.types.is_integer(type_):
        column = column.view(pa.int32() if type_.bit_width == _WORD // 2 else pa.int64())
    return (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)


class Codes:
    """Remembers up to so many keys, none negative; when there are more, it forgets all and begins anew.

    >>> codes = Codes(4)
    >>> asked = []
    >>> def square(keys, places):
    ...     asked.extend(keys.tolist())
    ...     return (keys * keys).astype(np.int32)
    >>> codes.of(np.array([3, 2, 3, 2]), square).tolist(), codes.of(np.array([2, 5]), square).tolist(), asked
    ([9, 4, 9, 4], [4, 25], [2, 3, 5])
    """

    def __init__(self, most: int) -> None:
        self._bits = max(2, (2 * most - 1).bit_length())
        self._most = (1 << self._bits) // 2
        self._slots = np.full(1 << self._bits, _FREE, np.int64)
        self._codes = np.empty(1 << self._bits, np.int32)
        self._known = 0

    @staticmethod
    def bytes_for(most: int) -> int:
        """What it takes to remember so many keys."""
        return ENTRY_BYTES // 2 << max(2, (2 * most - 1).bit_length())

    def clear(self) -> None:
        """Forget all."""
        self._slots.fill(_FREE)
        self._known = 0

    def of(self, keys: Int64, make: Callable[[Int64, Int64], Int32]) -> Int32:
        """The codes of keys; `make` gives those of new ones, each once, and is told where each stands first."""
        found = np.empty(len(keys), np.int32)
        if not find_codes(keys, self._bits, self._slots, self._codes, found):
            return found
        missing = np.flatnonzero(found < 0)
        new, first, which = np.unique(keys[missing], return_index=True, return_inverse=True)
        made = make(new, missing[first])
        found[missing] = made[which]
        if self._known + len(new) > self._most:
            self.clear()
        new, made = new[: self._most], made[: self._most]
        put_codes(new, made, self._bits, self._slots, self._codes)
        self._known += len(new)
        return found
