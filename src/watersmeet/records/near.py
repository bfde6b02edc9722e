"""Points of two or three numbers: words of the same order for each dimension, and the exact comparison of distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Bytes, Int64
from watersmeet.core.bands import NearForm
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels.hashing import ordered_doubles
from watersmeet.kernels.near import NEAR, UNDECIDED, near_doubles, near_far_words, near_words
from watersmeet.records.bands import HIGHEST, LOWEST, BandCodec, exact_values, plain_values

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
