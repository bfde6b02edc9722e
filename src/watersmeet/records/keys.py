"""Key columns as 64-bit hashes, and the exact comparison behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.keys import COARSENESS, KeyKind, KeyType, common_key_type
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels import hashing


class KeyCodec:
    """Turns the key columns of a join into hashes, and compares keys whose hashes are equal.

    >>> from watersmeet.core.spec import parse_on
    >>> spec = JoinSpec(pa.schema({"id": pa.int64()}), pa.schema({"id": pa.float32()}), parse_on("id"))
    >>> codec = KeyCodec(spec)
    >>> left, valid = codec.hash(0, [pa.array([1, 2, None])])
    >>> right, _ = codec.hash(1, [pa.array([1, 2.5, 0], pa.float32())])
    >>> left == right, valid
    (array([ True, False, False]), array([ True,  True, False]))
    """

    exact: bool
    """Whether equal hashes mean equal keys, so that `equal` need not be asked."""

    def __init__(self, spec: JoinSpec) -> None:
        self._columns: tuple[list[_Column], list[_Column]] = ([], [])
        forms = []
        for names in zip(spec.keys(0), spec.keys(1), strict=True):
            sources = [spec.input(side).field(names[side]).type for side in (0, 1)]
            form = common_key_type(*sources)
            assert form is not None, "the spec has checked its types"
            forms.append(form)
            for side in (0, 1):
                self._columns[side].append(_column(sources[side], form))
        self._forms = forms
        self.exact = not forms or (len(forms) == 1 and forms[0].fits_word)
        self._in_doubles = bool(forms) and forms[0].kind is KeyKind.FLOAT
        self._unsigned = bool(forms) and forms[0].unsigned

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """A hash for each row, and which rows can match anything (None: all can).

        A row cannot if a key is NULL, or has a value that the other side's type cannot hold. Its hash is 0.
        """
        return self._hashed(self._columns[side], columns)

    @staticmethod
    def _hashed(readers: Sequence[_Column], columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        hashes: Int64 | None = None
        valid: Bool | None = None
        for column, array in zip(readers, columns, strict=True):
            found, known = column.hash(array)
            valid = _both(valid, known)
            if hashes is None:
                hashes = found
            else:
                hashing.combine(hashes.view(np.uint64), found.view(np.uint64))
        assert hashes is not None, "without a key there is nothing to hash"
        if valid is None or valid.all():
            return hashes, None
        hashes[~valid] = 0
        return hashes, valid

    def words(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """A word for each row that is equal for equal keys, and which rows can match anything (None: all can).

        Where one word says everything about a key, its order is that of the values; elsewhere it is the hash.
        """
        if not self.exact:
            return self.hash(side, columns)
        form, valid = self._columns[side][0].form_of(columns[0])
        assert not isinstance(form, _Strings), "strings do not fit a word"
        words = form.view(np.int64)
        return (hashing.ordered_doubles(words) if self._in_doubles else np.ascontiguousarray(words)), valid

    def hash_plain(self, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """Hashes of keys that are given in plain types, whatever encoding their columns have; see `hash`."""
        return self._hashed(self._plain(columns), columns)

    def ranks_plain(self, column: pa.Array) -> tuple[Int64, Bool | None]:
        """A word for each plain value that is ordered as the values are, and which can match anything; keys are exact.

        NaN is above all numbers.
        """
        assert self.exact
        form, valid = self._plain([column])[0].form_of(column)
        assert not isinstance(form, _Strings), "strings do not fit a word"
        words = np.ascontiguousarray(form.view(np.int64))
        return hashing.ordered_doubles(words) if self._in_doubles else self._unsigned_order(words), valid

    def equal_plain(self, first: Sequence[pa.Array], second: Sequence[pa.Array]) -> Bool | None:
        """Which pairs of keys in plain types, row by row, are truly equal, whatever sides they are of; see `equal`."""
        equal: Bool | None = None
        columns = zip(self._plain(first), first, self._plain(second), second, strict=True)
        for one, first_column, other, second_column in columns:
            equal = _both(equal, _equal_forms(one.form_of(first_column), other.form_of(second_column)))
        return equal

    def _plain(self, columns: Sequence[pa.Array]) -> list[_Column]:
        return [_column(column.type, form) for column, form in zip(columns, self._forms, strict=True)]

    def ranks_of_hashes(self, hashes: Int64) -> Int64:
        """The same from the hashes of keys: where keys are exact, a hash tells its key.

        >>> from watersmeet.core.spec import parse_on
        >>> schema = pa.schema({"id": pa.int64()})
        >>> codec = KeyCodec(JoinSpec(schema, schema, parse_on("id")))
        >>> codec.ranks_of_hashes(codec.hash(0, [pa.array([7, -7])])[0])
        array([ 7, -7])
        """
        assert self.exact
        words = hashing.unmixed(hashes.view(np.uint64)).view(np.int64)
        return hashing.ordered_doubles(words) if self._in_doubles else self._unsigned_order(words)

    def _unsigned_order(self, words: Int64) -> Int64:
        return words ^ np.int64(-(1 << 63)) if self._unsigned else words

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bool | None:
        """Which pairs of keys, row by row, are truly equal; None if all are. No key may be NULL."""
        equal: Bool | None = None
        for i, columns in enumerate(zip(left, right, strict=True)):
            forms = [self._columns[side][i].form_of(columns[side]) for side in (0, 1)]
            equal = _both(equal, _equal_forms(forms[0], forms[1]))
        return equal


class DoubleColumn:
    """A column of numbers as doubles, in words that have the same order.

    >>> words, known = DoubleColumn(pa.int8()).words(pa.array([-1, 0, 1], pa.int8()))
    >>> words[0] < words[1] < words[2]
    np.True_
    """

    def __init__(self, source: pa.DataType) -> None:
        self._column = _column(source, KeyType(KeyKind.FLOAT))

    def words(self, array: pa.Array) -> tuple[Int64, Bool | None]:
        """A word for each row, and which rows are neither NULL nor NaN (None: all)."""
        form, known = self._column.form_of(array)
        assert not isinstance(form, _Strings), "numbers are not strings"
        bits = form.view(np.int64)
        numbers = ~np.isnan(bits.view(np.float64))
        return hashing.ordered_doubles(bits), _both(known, None if numbers.all() else numbers)


@dataclass(frozen=True, slots=True)
class _Strings:
    """Rows of bytes: row i is `data[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[Any]
    data: NDArray[np.uint8]


_Form: TypeAlias = "Int64 | NDArray[np.uint64] | _Strings"
"""The canonical values: a word a row, a row of several words a row, or bytes."""

_Reader: TypeAlias = "Callable[[pa.Array, KeyType], tuple[_Form, Bool | None]]"
"""Brings an array into its common form; the mask says which values have one (None: all), not which are NULL."""


class _Column(ABC):
    """One key column of one side."""

    @abstractmethod
    def form_of(self, array: pa.Array) -> tuple[_Form, Bool | None]:
        """The canonical values, and which rows have one."""

    @abstractmethod
    def hash(self, array: pa.Array) -> tuple[Int64, Bool | None]:
        """Fresh hashes, and which rows have a canonical value."""


def _column(source: pa.DataType, form: KeyType) -> _Column:
    if isinstance(source, pa.BaseExtensionType):
        return _Extension(_column(source.storage_type, form))
    if pa.types.is_dictionary(source):
        return _Indirect(_column(_takeable(source.value_type), form), _takeable(source.value_type), _dictionary_parts)
    if pa.types.is_run_end_encoded(source):
        return _Indirect(_column(_takeable(source.value_type), form), _takeable(source.value_type), _run_parts)
    return _Plain(source, form)


class _Plain(_Column):
    def __init__(self, source: pa.DataType, form: KeyType) -> None:
        self._form = form
        self._reader = _reader(source, form)
        # The commonest keys are hashed from Arrow's memory in one pass.
        numbers = form.kind is KeyKind.NUMBER and form.scale == 0
        self._integer: Any = {pa.int32(): np.int32, pa.int64(): np.int64}.get(source) if numbers else None
        self._is_float64 = form.kind is KeyKind.FLOAT and source == pa.float64()

    def form_of(self, array: pa.Array) -> tuple[_Form, Bool | None]:
        form, fits = self._reader(array, self._form)
        return form, _both(_known(array), fits)

    def hash(self, array: pa.Array) -> tuple[Int64, Bool | None]:
        hashes = np.empty(len(array), np.int64)
        out = hashes.view(np.uint64)
        if self._integer is not None:
            hashing.hash_words(_values(array, self._integer), out)
            return hashes, _known(array)
        if self._is_float64:
            values = _values(array, np.float64)
            hashing.hash_doubles(values, values.view(np.uint64), out)
            return hashes, _known(array)
        form, valid = self.form_of(array)
        if isinstance(form, _Strings):
            hashing.hash_bytes(form.offsets, form.data, out)
        elif form.ndim == 1:
            hashing.hash_words(_frozen(form.view(np.int64)), out)
        else:
            _hash_wide(form, out)
        return hashes, valid


def _hash_wide(words: NDArray[Any], hashes: NDArray[np.uint64]) -> None:
    more = np.empty_like(hashes)
    for i in range(words.shape[1]):
        hashing.hash_words(_frozen(np.ascontiguousarray(words[:, i]).view(np.int64)), more if i else hashes)
        if i:
            hashing.combine(hashes, more)


@dataclass(frozen=True, slots=True)
class _Extension(_Column):
    """A column that is compared as what it is stored as."""

    storage: _Column

    def form_of(self, array: pa.Array) -> tuple[_Form, Bool | None]:
        return self.storage.form_of(array.storage)

    def hash(self, array: pa.Array) -> tuple[Int64, Bool | None]:
        return self.storage.hash(array.storage)


@dataclass(frozen=True, slots=True)
class _Indirect(_Column):
    """A column whose rows point to values: a dictionary, or runs of equal values."""

    values: _Column
    value_type: pa.DataType
    parts: Callable[[pa.Array], tuple[pa.Array, pa.Array]]

    def form_of(self, array: pa.Array) -> tuple[_Form, Bool | None]:
        return self.values.form_of(self._decoded(*self.parts(array)))

    def hash(self, array: pa.Array) -> tuple[Int64, Bool | None]:
        places, values = self.parts(array)
        if len(values) > len(array):  # a small batch with a large dictionary
            return self.values.hash(self._decoded(places, values))
        hashes, valid = self.values.hash(_cast(values, self.value_type))
        known = _known(places)
        rows = places.fill_null(0).to_numpy() if known is not None else places.to_numpy()
        if not len(values):  # every row is NULL
            return np.zeros(len(array), np.int64), known
        return hashes[rows], _both(known, None if valid is None else valid[rows])

    def _decoded(self, places: pa.Array, values: pa.Array) -> pa.Array:
        return _cast(values, self.value_type).take(places)


def _dictionary_parts(array: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    return array.indices, array.dictionary


def _run_parts(array: pa.RunEndEncodedArray) -> tuple[pa.Array, pa.Array]:
    first, runs = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.to_numpy()[first : first + runs].astype(np.int64) - array.offset
    lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
    return pa.array(np.repeat(np.arange(first, first + runs), lengths)), array.values


def _takeable(values: pa.DataType) -> pa.DataType:
    """Arrow does not take rows from views, so they are turned into what it does take from."""
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(values, values)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array if array.type == target else pc.cast(array, target)


def _reader(source: pa.DataType, form: KeyType) -> _Reader:
    """How arrays of a plain type are brought into a common form."""
    if form.kind is KeyKind.NOTHING:
        return _read_nothing
    if form.kind in (KeyKind.STRING, KeyKind.BINARY):
        return _read_fixed_bytes if pa.types.is_fixed_size_binary(source) else _read_bytes
    if form.kind is KeyKind.BOOL:
        return _read_bool
    if form.kind is KeyKind.FLOAT:
        return _read_decimal_as_double if pa.types.is_decimal(source) else _read_double
    if form.kind is KeyKind.NUMBER:
        return _read_decimal if pa.types.is_decimal(source) else _read_integer
    return _read_time


def _read_nothing(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)


def _read_bool(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    return _bits(array, 1).astype(np.int64), None


def _read_bytes(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    array = _cast(array, _takeable(array.type))
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if not len(array):
        return _Strings(_frozen(np.zeros(1, np.int32)), _frozen(np.empty(0, np.uint8))), None
    _, offsets, data = array.buffers()
    dtype = np.dtype(np.int64 if is_large else np.int32)
    places = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return _Strings(_frozen(places), _byte_view(data)), None


def _read_fixed_bytes(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    width = array.type.byte_width
    places = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
    return _Strings(_frozen(places), _byte_view(array.buffers()[1])), None


def _read_integer(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    dtype = np.dtype(array.type.to_pandas_dtype())
    words, fits = _divided(_values(array, dtype), 10**-form.scale)
    if dtype == np.uint64 and not form.unsigned:
        fits = _both(fits, words < np.uint64(1 << 63))
    return (words.view(np.int64) if words.dtype == np.uint64 else words.astype(np.int64, copy=False)), fits


def _read_decimal(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    assert form.bits is not None, "a number has a width"
    narrow, power = form.bits // 64, array.type.scale - form.scale
    wide = _decimal_words(array)
    if wide.shape[1] == narrow == 1:
        words, fits = _divided(wide[:, 0], 10**power)
        return words, _both(fits, words >= 0) if form.unsigned else fits
    if wide.shape[1] == narrow and not power:
        return wide, None
    if wide.shape[1] == 2 and narrow == 1 and not power and not form.unsigned:
        low = np.ascontiguousarray(wide[:, 0])
        return low, wide[:, 1] == low >> 63
    shrunk, fits = np.empty((len(array), narrow), np.uint64), np.empty(len(array), np.bool_)
    hashing.shrink_integers(_frozen(wide.view(np.uint64)), power, form.unsigned, shrunk, fits)
    words = shrunk.view(np.int64)
    return words[:, 0] if narrow == 1 else words, fits


def _decimal_words(array: pa.Array) -> Int64:
    """The unscaled values in two's complement, lowest word first: one row of words a value."""
    width = array.type.byte_width
    if width < 8:
        return _values(array, np.int32).astype(np.int64).reshape(-1, 1)
    return _values(array, np.int64, width // 8).reshape(-1, width // 8)


def _read_time(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    found = array.type
    ticks = _values(array, np.dtype(f"i{found.byte_width}")).astype(np.int64, copy=False)
    if pa.types.is_date32(found):
        return ticks, None
    if pa.types.is_date64(found):
        return ticks // 86_400_000, None
    if form.kind is KeyKind.DAY:
        return _divided(ticks, 86_400 * _ticks("s", found.unit))
    return _divided(ticks, _ticks(form.unit, found.unit))


def _ticks(coarse: str, fine: str) -> int:
    """How many of a finer unit of time make one of a coarser unit."""
    return int(1000 ** (COARSENESS[coarse] - COARSENESS[fine]))


def _read_double(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    values = _values(array, np.dtype(array.type.to_pandas_dtype()))
    return _double_words(values.astype(np.float64, copy=False)), None


EXACT_POWERS = 22
"""Powers of ten up to this one are doubles without rounding."""


def _read_decimal_as_double(array: pa.Array, form: KeyType) -> tuple[_Form, Bool | None]:
    """The double nearest to each decimal."""
    words, scale = _decimal_words(array), array.type.scale
    low = words[:, 0]
    is_small = (low >= -(1 << 53)) & (low <= 1 << 53) & (words[:, 1:] == (low >> 63)[:, np.newaxis]).all(axis=1)
    if abs(scale) <= EXACT_POWERS and is_small.all():
        doubles = low.astype(np.float64)  # exact, as is the power, so that the one operation rounds correctly
        return _double_words(doubles / 10.0**scale if scale >= 0 else doubles * 10.0**-scale), None
    return _double_words(_values(pc.cast(pc.cast(array, pa.string()), pa.float64()), np.float64)), None


def _double_words(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    words = np.empty(len(values), np.uint64)
    hashing.double_words(_frozen(values), _frozen(values.view(np.uint64)), words)
    return words


def _divided(values: NDArray[Any], divisor: int) -> tuple[NDArray[Any], Bool | None]:
    """Integers divided, and for which of them that left no rest."""
    if divisor == 1:
        return values, None
    if divisor > np.iinfo(values.dtype).max:
        return np.zeros_like(values), values == 0
    quotients = values // values.dtype.type(divisor)
    return quotients, quotients * values.dtype.type(divisor) == values


def _equal_forms(left: tuple[_Form, Bool | None], right: tuple[_Form, Bool | None]) -> Bool | None:
    a, b = left[0], right[0]
    if isinstance(a, _Strings) or isinstance(b, _Strings):
        assert isinstance(a, _Strings)
        assert isinstance(b, _Strings)
        equal = np.empty(len(a.offsets) - 1, np.bool_)
        differing = hashing.differing_bytes(a.offsets, a.data, b.offsets, b.data, equal)
        return _both(equal if differing else None, _both(left[1], right[1]))
    same = a.view(np.int64) == b.view(np.int64)
    equal = same if same.ndim == 1 else same.all(axis=1)
    valid = _both(left[1], right[1])
    if valid is not None:
        equal &= valid
    return None if equal.all() else equal


def _both(first: Bool | None, second: Bool | None) -> Bool | None:
    """Rows that are in two masks, None being the mask of all rows."""
    if first is None:
        return second
    return first if second is None else first & second


def _known(array: pa.Array) -> Bool | None:
    """Which rows are not NULL; None if none is."""
    if not array.null_count:
        return None
    if array.buffers()[0] is None:  # the null type keeps no bits
        return np.zeros(len(array), np.bool_)
    return _bits(array, 0)


def _bits(array: pa.Array, buffer: int) -> Bool:
    if not len(array):
        return np.empty(0, np.bool_)
    first, start = divmod(array.offset, 8)
    packed = np.frombuffer(array.buffers()[buffer], np.uint8, (start + len(array) + 7) // 8, first)
    return np.unpackbits(packed, bitorder="little")[start : start + len(array)].view(np.bool_)


def _values(array: pa.Array, dtype: Any, per_row: int = 1) -> NDArray[Any]:
    """The values of a fixed-width array, without a copy; what stands at NULL is undefined."""
    dtype = np.dtype(dtype)
    if not len(array):
        return _frozen(np.empty(0, dtype))
    start = array.offset * per_row * dtype.itemsize
    return _frozen(np.frombuffer(array.buffers()[1], dtype, len(array) * per_row, start))


def _byte_view(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    if buffer is None or not buffer.size:
        return _frozen(np.empty(0, np.uint8))
    return _frozen(np.frombuffer(buffer, np.uint8))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array for reading only: Numba would compile a kernel twice, for arrays that can and cannot be written."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
