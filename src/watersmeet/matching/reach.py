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
(`tests/unit/matching/test_reach.py` and `tests/conformance/test_confluence_bands.py` break each step, and notice.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64, Uint64
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels.hashing import ordered_doubles
from watersmeet.kernels.sort_keys import coarse_keys, words_of_keys
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.range_lookup import RangeCodec
from watersmeet.records.keys import KeyCodec

_SIGN = np.int64(-(1 << 63))
"""Words of values are signed, sort keys unsigned."""


class Reach(Protocol):
    """Which keys rows look for."""

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
        self._coarse = self._equalities > 0
        if self._coarse:
            self.verified_keys = self._equalities
            self.verifies_band, self.exact = True, False
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
            self.origin = int(np.partition(words, len(words) // 2)[len(words) // 2])

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
