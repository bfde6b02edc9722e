"""Band columns as 64-bit words of the same order, and the exact comparison behind them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.bands import BandForm
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels.hashing import ordered_doubles
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
