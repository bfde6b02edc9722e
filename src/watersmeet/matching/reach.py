"""Sort keys of rows that match where values are close, and which keys those may have that a row looks for.

A band alone: the key is the band column's word, in unsigned order. It says everything about the value, but for exact
numbers beyond 64 bits, which are compared as they are once more.

Equalities and a band: the key is half a hash and a coarse word (`kernels.sort_keys`). Rows of one key are those of a
hash whose values lie in a cell; what a row looks for is every cell that the band around its own can touch. Both halves
prove little: of the pairs that are found, the values themselves decide.

**What a row looks for is never too little.** Let x be a row's word, and y that of a row that matches it: then
low(x) <= y <= high(x), by the ends of the band (`BandCodec.bounds`), which never fall as x rises. Let x be in a cell
from f to l. Then low(f) <= low(x) <= y <= high(x) <= high(l), and as codes keep the order, the code of y lies between
those of low(f) and high(l). Both rise with the cell: rows in the order of their keys look ever further on.
(`tests/unit/matching/test_reach.py` and `tests/conformance/test_confluence.py` break each step, and notice.)

Points: the first dimension is a band, as wide as the radius. The others are divided into strips of about that width,
and a row's strips (a cell, where there are two such dimensions) stand in the upper half of its key. Near points lie in
the same strip or in neighbours. So a row is kept under one key, and *asks under several*: its own, and those that it
would have one strip up or down, in each dimension; under each of them, it looks for what a band looks for.

**A pair is found under one key.** Let the strips' codes of a kept row be p, and those of a row that asks q. It is found
under the shift p - q and under no other, for a shift changes each field of the key by itself (the first and the last
code are used by no row, so nothing is carried over), and all shifts are different. **And it is found**: strips of near
points are neighbours (`NearCodec.strip_width`), and so their codes differ by one at most (`kernels.sort_keys`).
(`tests/conformance/test_near.py` forgets a neighbour, and asks twice under one key, and both are noticed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels.hashing import combine, ordered_doubles
from watersmeet.kernels.sort_keys import (
    MOST_STRIPS,
    add_strips,
    coarse_keys,
    largest_size,
    strips_of_words,
    words_of_keys,
)
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.range_lookup import RangeCodec
from watersmeet.records.bands import BandCodec, NearCodec
from watersmeet.records.keys import KeyCodec

_SIGN = np.int64(-(1 << 63))
"""Words of values are signed, sort keys unsigned."""


class Reach(Protocol):
    """Which keys rows look for."""

    @property
    def shifts(self) -> Uint64 | None:
        """What is added to a row's key for each key that it asks under; None: it asks under its own."""
        ...

    @property
    def decides(self) -> bool:
        """Whether `close` is to be asked of the pairs that are found."""
        ...

    def bounds(self, keys: Uint64) -> tuple[Uint64, Uint64]:
        """From which key on and up to which a row of each key has to look; both rise with the key."""
        ...

    def close(self, wanted: Uint64, found: Uint64) -> Bool:
        """Which pairs of keys that were found may truly match."""
        ...


class BandKeys(RangeCodec):
    """A sort key for each row of a join with a band.

    >>> from watersmeet.core.spec import band, parse_on
    >>> schema = pa.schema({"sym": pa.string(), "price": pa.int64()})
    >>> codec = BandKeys(JoinSpec(schema, schema, parse_on(["sym", band("price", 2)])))
    >>> keys, _ = codec.hash(0, [pa.array(["a", "a", "b"]), pa.array([100, 102, 100])])
    >>> low, high = codec.bounds(keys.view(np.uint64))
    >>> [bool(low[0] <= key <= high[0]) for key in keys.view(np.uint64)]
    [True, True, False]
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        assert self.band is not None
        self._band = self.band
        self.tagged = False
        self._coarse = self._equalities > 0 or spec.near is not None
        if self._coarse:
            self.verified_keys = self._equalities
            self.verifies_band, self.exact = True, False
        self.shifts: Uint64 | None = None
        self.origin: int | None = None
        """Beside equalities: a word amid the first values that came. All keys are told from it, so it never changes."""

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """The sort key of each row, from its key columns and then its band column, and which rows can match."""
        words, valid = self._band.words(side, columns[-1])
        if not self._coarse:
            return words ^ _SIGN, (None if valid is None or valid.all() else valid)
        hashes, known = KeyCodec.hash(self, side, columns[:-1])
        valid = known if valid is None else valid if known is None else valid & known
        if self.origin is None:
            self._choose_origin(words if valid is None else words[valid])
        keys = self._keys(hashes.view(np.uint64), words)
        return keys.view(np.int64), (None if valid is None or valid.all() else valid)

    def _choose_origin(self, words: Int64) -> None:
        """The median of some values: an odd one among them, a NULL's stand-in say, would make all others look alike."""
        if len(words):
            self.origin = _median(words)

    def to_state(self) -> Any:
        """What must be known to make the same keys again."""
        return self.origin

    def load(self, state: Any) -> None:
        """Make the same keys as another did."""
        self.origin = state

    @property
    def _middle(self) -> np.uint64:
        return np.uint64((self.origin or 0) + (1 << 63))

    def _keys(self, hashes: Uint64, words: Int64) -> Uint64:
        keys = np.empty(len(words), np.uint64)
        coarse_keys(hashes, (words ^ _SIGN).view(np.uint64), self._middle, keys)
        return keys

    def bounds(self, keys: Uint64) -> tuple[Uint64, Uint64]:
        """From which key on and up to which a row of each key has to look; both rise with the key."""
        if not self._coarse:
            low, high = self._band.bounds(keys.view(np.int64) ^ _SIGN)
            return (low ^ _SIGN).view(np.uint64), (high ^ _SIGN).view(np.uint64)
        first, last = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
        words_of_keys(keys, self._middle, first, last)
        low, _ = self._band.bounds(first.view(np.int64) ^ _SIGN)
        _, high = self._band.bounds(last.view(np.int64) ^ _SIGN)
        return self._keys(keys, low), self._keys(keys, high)

    @property
    def decides(self) -> bool:
        """Whether keys are doubles, which are close or not by the arithmetic of doubles."""
        return self._band.in_doubles and not self._coarse

    def close(self, wanted: Uint64, found: Uint64) -> Bool:
        """Which pairs of doubles that were found are truly close."""
        sides = [ordered_doubles(keys.view(np.int64) ^ _SIGN).view(np.float64) for keys in (wanted, found)]
        with np.errstate(invalid="ignore", over="ignore"):
            close: Bool = np.abs(sides[0] - sides[1]) <= self._band.form.width
        return close

    def probe(self, words: Int64, columns: Sequence[pa.Array]) -> RangeProbe:
        """The look-up of rows by their keys, in a table that has them in the order of signed words."""
        low, high = (each.view(np.int64) ^ _SIGN for each in self.bounds(words.view(np.uint64)))
        if not self.decides:
            return RangeProbe(words ^ _SIGN, low, high)
        return RangeProbe(words ^ _SIGN, low, high, in_doubles=True, width=float(self._band.form.width))

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bool | None:
        """Which pairs of rows that were found truly match; None if all do."""
        if not self._coarse:
            return super().equal(left, right)
        equal, close = KeyCodec.equal(self, left[:-1], right[:-1]), self._band.close(left[-1], right[-1])
        return close if equal is None else equal & close


def _median(words: Int64) -> int:
    return int(np.partition(words, len(words) // 2)[len(words) // 2])


class NearKeys(BandKeys):
    """A sort key for each row of a join of points that are near each other.

    >>> from watersmeet.core.spec import near, parse_on
    >>> schema = pa.schema({"x": pa.float64(), "y": pa.float64()})
    >>> codec = NearKeys(JoinSpec(schema, schema, parse_on(near(["x", "y"], 1))))
    >>> keys, _ = codec.hash(0, [pa.array([5.0, 5.5, 5.0]), pa.array([7.0, 7.8, 9.5])])
    >>> found = 0
    >>> for shift in codec.shifts:
    ...     low, high = codec.bounds(keys.view(np.uint64)[:1] + shift)
    ...     found = found + ((low <= keys.view(np.uint64)) & (keys.view(np.uint64) <= high))
    >>> found
    array([1, 1, 0])
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        self._near = NearCodec(spec)
        self._strips = len(self._near.dimensions) - 1
        self._hash_bits = (32, 12, 8)[self._strips] if self._equalities else 0
        """Of the upper half of a key; the strips share the others."""
        self._field = (32 - self._hash_bits) // self._strips
        most = (1 << (self._field - 1)) - 2
        self._bits = np.uint64(max(bits for bits in range(2, 32) if int(largest_size(np.uint64(bits))) <= most))
        self._equal = not self._near.form.radius
        """Only equal values are near: a hash tells more of them than strips do."""
        self.origins: list[int] | None = None
        """In each dimension that is divided into strips: a word amid the first values that came, for good."""
        self.shifts = np.array(
            [
                sum(step << (32 + number * self._field) for number, step in enumerate(steps)) % (1 << 64)
                for steps in product((-1, 0, 1), repeat=self._strips)
            ],
            np.uint64,
        )
        if self._equal:
            self.shifts = None

    @staticmethod
    def _band_of(spec: JoinSpec) -> BandCodec:
        return NearCodec(spec).dimensions[0]

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """The sort key of each row, from its key columns and then its dimensions, and which rows can match."""
        words, valid = self._near.words(side, columns[self._equalities :])
        hashes = np.zeros(len(words[0]), np.uint64)
        if self._equalities:
            found, known = KeyCodec.hash(self, side, columns[: self._equalities])
            hashes = found.view(np.uint64)
            valid = known if valid is None else valid if known is None else valid & known
        if self.origin is None:
            self._choose_origins(words if valid is None else [each[valid] for each in words])
        keys = self._keys(self._upper(hashes, words[1:]), words[0])
        return keys.view(np.int64), (None if valid is None or valid.all() else valid)

    def _choose_origins(self, words: Sequence[Int64]) -> None:
        self._choose_origin(words[0])
        if self.origin is not None:
            self.origins = [_median(each) for each in words[1:]]

    def _upper(self, hashes: Uint64, words: Sequence[Int64]) -> Uint64:
        """The upper half of each key; what is in the lower does not matter."""
        if self._equal:
            for each in words:
                combine(hashes, each.view(np.uint64))
            return hashes
        hashes &= ~np.uint64(0) << np.uint64(64 - self._hash_bits) if self._hash_bits else np.uint64(0)
        for number, each in enumerate(words):
            field, shift = np.uint64(self._field), np.uint64(32 + number * self._field)
            add_strips(hashes, self._strips_of(number, each), self._bits, field, shift)
        return hashes

    def _strips_of(self, number: int, words: Int64) -> Int64:
        """In which strip each value of a dimension lies, counted from the origin's."""
        origin, width = (0 if self.origins is None else self.origins[number]), self._near.strip_width
        strips = np.zeros(len(words), np.int64)
        if isinstance(width, float):
            values = ordered_doubles(words).view(np.float64)
            middle = ordered_doubles(np.array([origin])).view(np.float64)[0]
            with np.errstate(invalid="ignore", over="ignore"):
                found = np.clip(np.floor((values - middle) / width), -MOST_STRIPS, MOST_STRIPS)
            strips = np.nan_to_num(found).astype(np.int64)  # rows that match nothing may be anywhere
        elif width < 1 << 64:
            strips_of_words(words, np.int64(origin), np.uint64(width), strips)
        return strips

    def to_state(self) -> Any:
        """What must be known to make the same keys again."""
        return None if self.origin is None else [self.origin, self.origins]

    def load(self, state: Any) -> None:
        """Make the same keys as another did."""
        self.origin, self.origins = state or (None, None)

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bool | None:
        """Which pairs of rows that were found truly match."""
        keys = self._equalities
        equal, near = KeyCodec.equal(self, left[:keys], right[:keys]), self._near.close(left[keys:], right[keys:])
        return near if equal is None else equal & near


def keys_of(spec: JoinSpec) -> BandKeys:
    """By which keys rows of a join are sorted whose values need only be close."""
    return BandKeys(spec) if spec.near is None else NearKeys(spec)
