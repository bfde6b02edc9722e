"""Columns whose values need only be close, as 64-bit words of the same order, and the exact comparison behind them:
bands, and points of two or three numbers with a word for each dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Bytes, Int64
from watersmeet.core.bands import BandForm, NearForm
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels.hashing import ordered_doubles
from watersmeet.kernels.near import NEAR, UNDECIDED, near_doubles, near_far_words, near_words
from watersmeet.records.keys import DoubleColumn

_WIDE = Context(prec=200)
LOWEST, HIGHEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


class BandCodec:
    """Turns the two columns of a band into words in which "close" is an interval.

    Exact numbers become units of the band's form. One beyond 64 bits becomes the last word on its side, which keeps
    the order; whether such values are truly close is asked again of the values themselves (`within`). Doubles become
    their ordered bits, and the interval is a little wider than the band: the index decides each candidate by the double
    arithmetic that defines it.

    >>> from watersmeet.core.spec import band
    >>> spec = JoinSpec(pa.schema({"p": pa.int64()}), pa.schema({"p": pa.decimal128(5, 1)}), (band("p", 2),))
    >>> codec = BandCodec.of(spec)
    >>> words, known = codec.words(0, pa.array([7, None]))
    >>> int(words[0]), known, [int(bound[0]) for bound in codec.bounds(words)]
    (70, array([ True, False]), [50, 90])
    """

    def __init__(self, form: BandForm, left: pa.DataType, right: pa.DataType) -> None:
        """For columns of these types, in a form of theirs."""
        self.form = form
        self._doubles = [DoubleColumn(left), DoubleColumn(right)] if form.in_doubles else None

    @classmethod
    def of(cls, spec: JoinSpec) -> BandCodec:
        """For the band of a join."""
        assert spec.band is not None and spec.band_form is not None, "the spec has checked its types"
        left, right = (spec.input(side).field(spec.band.column(side)).type for side in (0, 1))
        return cls(spec.band_form, left, right)

    @property
    def in_doubles(self) -> bool:
        """Whether the index must decide candidates by double arithmetic."""
        return self.form.in_doubles

    @property
    def exact(self) -> bool:
        """Whether `within` need not be asked."""
        return not self.form.outgrows_word

    def words(self, side: int, array: pa.Array) -> tuple[Int64, Bool | None]:
        """A word for each row, and which rows can match anything (None: all can)."""
        if self.form.nothing:
            return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
        if self._doubles is not None:
            return self._doubles[side].words(array)
        array = plain_values(array)
        known = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
        return self._units(side, array), known

    def _units(self, side: int, array: pa.Array) -> Int64:
        kind = array.type
        if pa.types.is_decimal(kind):
            values = _decimals(array)
        else:
            values = _integers(array)
            if values.dtype == np.uint64:
                if self.form.biased:
                    return values.view(np.int64) ^ LOWEST
                values = np.minimum(values, np.uint64(HIGHEST)).view(np.int64)
        return _multiplied(values.astype(np.int64, copy=False), self.form.factors[side])

    def bounds(self, words: Int64) -> tuple[Int64, Int64]:
        """For each word the first and the last that may be close to it."""
        width = self.form.width
        if isinstance(width, float):
            # A difference that rounds to the width is below the next double; and sums round in the same order.
            doubles = ordered_doubles(words).view(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                reach = np.nextafter(width, np.inf)
                low, high = doubles - reach, doubles + reach
            low[np.isnan(low)], high[np.isnan(high)] = -np.inf, np.inf
            # The two zeros are one value: as a bound, each must be on its own side of both.
            low[low == 0], high[high == 0] = -0.0, 0.0
            return ordered_doubles(low.view(np.int64)), ordered_doubles(high.view(np.int64))
        low, high = words, words
        for step in (min(width, HIGHEST), min(max(0, width - HIGHEST), HIGHEST), int(width > 2 * HIGHEST)):
            if step:
                low = np.where(low < LOWEST + step, LOWEST, low - step)
                high = np.where(high > HIGHEST - step, HIGHEST, high + step)
        return low, high

    def within(self, left: pa.Array, right: pa.Array) -> Bool | None:
        """Which pairs of values, row by row, that the index found close truly are; None if all are."""
        columns = [plain_values(left), plain_values(right)]
        words = [self._units(side, columns[side]) for side in (0, 1)]
        beyond = np.zeros(len(left), np.bool_)
        for each in words:
            beyond |= (each == LOWEST) | (each == HIGHEST)
        if not beyond.any():
            return None
        # Only values beyond 64 bits come here; Python's integers hold them, one by one.
        rows = np.flatnonzero(beyond)
        values = [exact_values(columns[side].take(pa.array(rows)), self.form.factors[side]) for side in (0, 1)]
        close = np.ones(len(left), np.bool_)
        close[rows] = [abs(l - r) <= self.form.width for l, r in zip(*values, strict=True)]
        return None if close.all() else close

    def close(self, left: pa.Array, right: pa.Array) -> Bool:
        """Which pairs of any values, row by row, are close."""
        (a, a_known), (b, b_known) = self.words(0, left), self.words(1, right)
        if self.in_doubles:
            with np.errstate(invalid="ignore", over="ignore"):
                apart = np.abs(ordered_doubles(a).view(np.float64) - ordered_doubles(b).view(np.float64))
            close: Bool = apart <= self.form.width
        else:
            low, high = self.bounds(a)
            close = (low <= b) & (b <= high)
        for known in (a_known, b_known):
            if known is not None:
                close &= known
        if not self.exact and close.any():
            rows = np.flatnonzero(close)
            truly = self.within(plain_values(left).take(pa.array(rows)), plain_values(right).take(pa.array(rows)))
            if truly is not None:
                close[rows] = truly
        return close


def plain_values(array: pa.Array) -> pa.Array:
    """The values themselves."""
    while True:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary.take(array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        else:
            return array


def _integers(array: pa.Array) -> NDArray[Any]:
    """What an array of integers or times stores; undefined at NULL."""
    kind = array.type
    unsigned = pa.types.is_integer(kind) and not pa.types.is_signed_integer(kind)
    return _stored(array, np.dtype(f"{'u' if unsigned else 'i'}{kind.bit_width // 8}"), 1)


def _decimals(array: pa.Array) -> Int64:
    """The unscaled values, those beyond a word as the last on their side."""
    width = array.type.byte_width
    if width < 8:
        return _stored(array, np.dtype(np.int32), 1).astype(np.int64)
    words = _stored(array, np.dtype(np.int64), width // 8).reshape(-1, width // 8)
    low = words[:, 0]
    fits = (words[:, 1:] == (low >> 63)[:, np.newaxis]).all(axis=1)
    return np.where(fits, low, np.where(words[:, -1] < 0, LOWEST, HIGHEST))


def _stored(array: pa.Array, dtype: np.dtype[Any], per_row: int) -> NDArray[Any]:
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) * per_row, dtype)
    return np.frombuffer(buffer, dtype, len(array) * per_row, array.offset * per_row * dtype.itemsize)


def _multiplied(values: Int64, factor: int) -> Int64:
    """Products, those beyond a word as the last on their side."""
    if factor == 1:
        return values
    most = HIGHEST // factor
    product = values * np.int64(factor if most else 0)
    return np.where(values > most, HIGHEST, np.where(values < -most, LOWEST, product))


def exact_values(array: pa.Array, factor: int) -> Sequence[int]:
    """Values without NULL in units, as Python's integers."""
    kind = array.type
    if pa.types.is_decimal(kind):
        return [int(value.scaleb(kind.scale, _WIDE)) * factor for value in array.to_pylist()]
    return [value * factor for value in _integers(array).tolist()]


_SMALL = 1 << 31
"""Radii below it have squares, and three of them a sum, of 64 bits."""
_WIDER = 2.0**-16


class NearCodec:
    """Turns the columns of points into words, and decides which points are near each other.

    >>> from watersmeet.core.spec import near
    >>> schema = pa.schema({"x": pa.int64(), "y": pa.float64()})
    >>> codec = NearCodec(JoinSpec(schema, schema, (near(["x", "y"], 5),), suffixes=("_l", "_r")))
    >>> codec.close([pa.array([0, 0]), pa.array([0.0, 0.0])], [pa.array([3, 3]), pa.array([4.0, 4.1])])
    array([ True, False])
    """

    def __init__(self, spec: JoinSpec) -> None:
        assert spec.near is not None and spec.near_form is not None, "the spec has checked its types"
        self.form: NearForm = spec.near_form
        names = zip(spec.near.left, spec.near.right, strict=True)
        types = [(spec.left.field(left).type, spec.right.field(right).type) for left, right in names]
        self.dimensions = [BandCodec(form, *pair) for form, pair in zip(self.form.dimensions, types, strict=True)]
        """Of each: a band as wide as the radius, which points that are near each other are within."""

    @property
    def strip_width(self) -> int | float:
        """Values of one dimension of near points lie in strips of this width that are the same or neighbours.

        Of exact numbers, the radius is wide enough. Which strip a double lies in is computed, and may be wrong by
        2^-20 of a strip where these are the most that are counted; it is a little wider.
        """
        radius = self.form.radius
        if isinstance(radius, float):
            return max(radius * (1 + _WIDER), math.nextafter(radius, math.inf))
        return max(1, radius)

    def words(self, side: int, columns: Sequence[pa.Array]) -> tuple[list[Int64], Bool | None]:
        """For each dimension a word for each row, and which rows can match anything (None: all can)."""
        found, valid = [], None
        for codec, column in zip(self.dimensions, columns, strict=True):
            words, known = codec.words(side, column)
            if self.form.in_doubles:
                finite = np.isfinite(ordered_doubles(words).view(np.float64))
                known = _both(known, None if finite.all() else finite)
            found.append(words)
            valid = _both(valid, known)
        return found, (None if valid is None or valid.all() else valid)

    def close(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bool:
        """Which pairs of points, row by row, are near each other; all can match something."""
        words = [
            np.array([codec.words(side, column)[0] for codec, column in zip(self.dimensions, columns, strict=True)])
            for side, columns in enumerate((left, right))
        ]
        found: Bytes = np.zeros(words[0].shape[1], np.uint8)
        if self.form.in_doubles:
            doubles = [ordered_doubles(each).view(np.float64) for each in words]
            self._doubles(doubles[0], doubles[1], found)
        else:
            self._exact(words[0], words[1], left, right, found)
        close: Bool = found == NEAR
        return close

    def _doubles(self, left: NDArray[np.float64], right: NDArray[np.float64], found: Bytes) -> None:
        radius = float(self.form.radius)
        _, exponent = math.frexp(radius)
        # The power may be beyond what a double can be, and either half of it is not.
        scales = np.array([2.0 ** (-exponent // 2), 2.0 ** (-exponent - -exponent // 2)])
        if near_doubles(left, right, radius, scales, found):
            # Differences that are 2^300 times smaller than the radius, at its very edge: exactly, one by one.
            square = Fraction(radius) ** 2
            for i in np.flatnonzero(found == UNDECIDED):
                apart = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(left[:, i], right[:, i], strict=True)]
                found[i] = sum(each * each for each in apart) <= square

    def _exact(
        self,
        left: Int64,
        right: Int64,
        left_columns: Sequence[pa.Array],
        right_columns: Sequence[pa.Array],
        found: Bytes,
    ) -> None:
        radius, square = int(self.form.radius), self.form.square
        if radius < _SMALL:
            near_words(left, right, np.uint64(radius), np.uint64(square), found)
        else:
            large = float(radius) if radius < 1 << 1000 else math.inf
            near_far_words(left, right, large, float(Fraction(square, radius * radius)), found)
        for number, codec in enumerate(self.dimensions):
            if not codec.exact:  # values beyond 64 bits are the last word on their side
                for words in (left[number], right[number]):
                    found[(words == LOWEST) | (words == HIGHEST)] = UNDECIDED
        rows = np.flatnonzero(found == UNDECIDED)
        if not len(rows):
            return
        # These few are decided by Python's integers, one by one.
        total = [0] * len(rows)
        for codec, *columns in zip(self.dimensions, left_columns, right_columns, strict=True):
            values = [
                exact_values(plain_values(column).take(pa.array(rows)), factor)
                for column, factor in zip(columns, codec.form.factors, strict=True)
            ]
            total = [sum_ + (a - b) ** 2 for sum_, a, b in zip(total, *values, strict=True)]
        found[rows] = [each <= square for each in total]


def _both(one: Bool | None, other: Bool | None) -> Bool | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
