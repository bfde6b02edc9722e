"""Which keys an input will not send any more: its punctuated range.

Where a key is a word (numbers, dates, times), the range is a list of intervals, so that a million punctuations of
neighbouring keys are one. Other keys are remembered one by one, by their hashes, and compared when a hash is met.

Knowing less is never wrong: what finds no memory is not remembered.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Bool, Int64
from watersmeet.memory import Reservation
from watersmeet.records.keys import KeyCodec
from watersmeet.records.patterns import KeyPattern, decoded, encoded, plain_array, plain_storage

Keys = Callable[[], Sequence[pa.Array]]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_INTERVAL_BYTES = 16
_RANGE_BYTES = 256


def punctuated_range(codec: KeyCodec, claim: Reservation, most: int) -> WordRange | ValueRange:
    """The range of an input; its memory is claimed, but never more than `most` bytes."""
    return WordRange(codec, claim, most) if codec.exact else ValueRange(codec, claim, most)


class WordRange:
    """Intervals of words, both ends included, none touching another.

    >>> from watersmeet.core.spec import JoinSpec, parse_on
    >>> from watersmeet.memory import Budget
    >>> schema = pa.schema({"id": pa.int64()})
    >>> codec = KeyCodec(JoinSpec(schema, schema, parse_on("id")))
    >>> known = WordRange(codec, Budget(1000).reservation("range"), 1000)
    >>> for key in (3, 5, 4, 9):
    ...     _ = known.add(KeyPattern(0, [pa.array([key])]))
    >>> known.entries, known.contains(codec.hash(1, [pa.array([2, 3, 5, 8, 9])])[0], lambda: []).tolist()
    (2, [False, True, True, False, True])
    """

    def __init__(self, codec: KeyCodec, claim: Reservation, most: int) -> None:
        self._codec = codec
        self._claim = claim
        self._most = most
        self._lows = np.empty(0, np.int64)
        self._highs = np.empty(0, np.int64)

    @property
    def entries(self) -> int:
        """How many intervals there are."""
        return len(self._lows)

    def add(self, pattern: KeyPattern) -> bool:
        """Take note of a promise; False if there is no memory for it."""
        bounds = self._bounds(pattern)
        return bounds is None or self._add(*bounds)

    def add_keys(self, hashes: Int64, keys: Keys) -> bool:
        """The same for keys of rows."""
        ranks = self._codec.ranks_of_hashes(hashes)
        return self._add(ranks, ranks)

    def add_beyond(self, hashes: Int64, keys: Keys, descending: bool) -> bool | None:
        """Take note that all keys are over that lie before the furthest of these."""
        ranks = self._codec.ranks_of_hashes(hashes)
        furthest = int(ranks.min()) if descending else int(ranks.max())
        if furthest == (_HIGHEST if descending else _LOWEST):
            return False
        low, high = (furthest + 1, _HIGHEST) if descending else (_LOWEST, furthest - 1)
        if self.covers_words(low, high):
            return False
        return True if self._add(np.array([low]), np.array([high])) else None

    def _bounds(self, pattern: KeyPattern) -> tuple[Int64, Int64] | None:
        """As closed intervals of words; None if no key can lie there."""
        if pattern.values is not None:
            ranks, valid = self._codec.ranks_plain(pattern.values[0])
            ranks = ranks if valid is None else ranks[valid]
            return (ranks, ranks) if len(ranks) else None
        low = self._bound(pattern.low, _LOWEST, 1 if pattern.low_open else 0)
        high = self._bound(pattern.high, _HIGHEST, -1 if pattern.high_open else 0)
        if low is None or high is None or low > high:
            return None
        return np.array([low]), np.array([high])

    def _bound(self, value: pa.Array | None, unbounded: int, step: int) -> int | None:
        if value is None:
            return unbounded
        ranks, valid = self._codec.ranks_plain(value)
        if valid is not None and not valid[0]:
            return None  # a value that no key of the other side can have: what lies at its sides is not known here
        bound = int(ranks[0]) + step
        return bound if _LOWEST <= bound <= _HIGHEST else None

    def _add(self, lows: Int64, highs: Int64) -> bool:
        if len(lows) == 1 and self.entries and self.covers_words(int(lows[0]), int(highs[0])):
            return True
        all_lows, all_highs = np.concatenate([self._lows, lows]), np.concatenate([self._highs, highs])
        order = np.argsort(all_lows, kind="stable")
        all_lows, all_highs = all_lows[order], np.maximum.accumulate(all_highs[order])
        # An interval begins where a low lies beyond the next word after all that came before.
        before = all_highs[:-1]
        begins = np.concatenate([[True], (all_lows[1:] > before) & (all_lows[1:] - 1 > before)])
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(all_lows)) - 1
        grown = _INTERVAL_BYTES * (len(starts) - self.entries)
        if grown > 0 and (len(starts) * _INTERVAL_BYTES > self._most or not self._claim.try_grow(grown)):
            return False
        self._claim.shrink(max(0, -grown))
        self._lows, self._highs = all_lows[starts], all_highs[ends]
        return True

    def contains(self, hashes: Int64, keys: Keys) -> Bool:
        """Which of some rows have such keys."""
        if not self.entries:
            return np.zeros(len(hashes), np.bool_)
        ranks = self._codec.ranks_of_hashes(hashes)
        at = np.searchsorted(self._lows, ranks, side="right") - 1
        inside: Bool = (at >= 0) & (ranks <= self._highs[at])
        return inside

    def covers(self, low_to_high: KeyPattern) -> bool:
        """Whether a whole range of keys is among them."""
        bounds = self._bounds(low_to_high)
        return bounds is not None and self.covers_words(int(bounds[0][0]), int(bounds[1][0]))

    def covers_words(self, low: int, high: int) -> bool:
        """Whether all words from one to another are among them."""
        at = int(np.searchsorted(self._lows, low, side="right")) - 1
        return at >= 0 and high <= int(self._highs[at])

    def clear(self) -> None:
        """Forget everything."""
        self._claim.shrink(_INTERVAL_BYTES * self.entries)
        self._lows, self._highs = np.empty(0, np.int64), np.empty(0, np.int64)

    def to_state(self) -> Any:
        """For a snapshot."""
        return [base64.b64encode(array.tobytes()).decode() for array in (self._lows, self._highs)]

    def load(self, state: Any) -> None:
        """Take over a snapshot's state."""
        self._lows, self._highs = (np.frombuffer(base64.b64decode(text), np.int64).copy() for text in state)
        self._claim.grow(_INTERVAL_BYTES * self.entries)


class _Level:
    """Some values, found by their hashes."""

    def __init__(self, hashes: Int64, columns: list[pa.Array]) -> None:
        order = np.argsort(hashes, kind="stable")
        self.hashes = hashes[order]
        self.columns = [column.take(pa.array(order)) for column in columns]

    @property
    def nbytes(self) -> int:
        return int(self.hashes.nbytes + sum(column.nbytes for column in self.columns))


class ValueRange:
    """Values one by one, and ranges of values."""

    def __init__(self, codec: KeyCodec, claim: Reservation, most: int) -> None:
        self._codec = codec
        self._claim = claim
        self._most = most
        self._levels: list[_Level] = []
        """Each more than twice as long as the next."""
        self._ranges: list[KeyPattern] = []
        self._held = 0

    @property
    def entries(self) -> int:
        """How many values and ranges there are."""
        return sum(len(level.hashes) for level in self._levels) + len(self._ranges)

    def add(self, pattern: KeyPattern) -> bool:
        """Take note of a promise; False if there is no memory for it."""
        if pattern.values is None:
            return self._add_range(pattern)
        hashes, valid = self._codec.hash_plain(pattern.values)
        return self._add_values(hashes, pattern.values, valid)

    def add_keys(self, hashes: Int64, keys: Keys) -> bool:
        """The same for keys of rows."""
        first = np.unique(hashes, return_index=True)[1]
        return self._add_values(hashes[first], [plain_array(key).take(pa.array(first)) for key in keys()])

    def add_beyond(self, hashes: Int64, keys: Keys, descending: bool) -> bool | None:
        """Take note that all keys are over that lie before the furthest of these."""
        extremes = pc.min_max(keys()[0])
        furthest = pa.array([extremes["min" if descending else "max"].as_py()], keys()[0].type)
        bounds = {"low": furthest, "low_open": True} if descending else {"high": furthest, "high_open": True}
        pattern = KeyPattern(0, **bounds)
        if self.covers(pattern):
            return False
        return True if self._add_range(pattern) else None

    def _add_values(self, hashes: Int64, values: Sequence[pa.Array], valid: Bool | None = None) -> bool:
        new = ~self._among_values(hashes, lambda: values)
        if valid is not None:
            new &= valid
        rows = np.flatnonzero(new)
        if not len(rows):
            return True
        level = _Level(hashes[rows], [value.take(pa.array(rows)) for value in values])
        if not self._grow(level.nbytes):
            return False
        self._levels.append(level)
        while len(self._levels) > 1 and len(self._levels[-2].hashes) <= 2 * len(self._levels[-1].hashes):
            last, before = self._levels.pop(), self._levels.pop()
            columns = [pa.concat_arrays([a, b]) for a, b in zip(before.columns, last.columns, strict=True)]
            merged = _Level(np.concatenate([before.hashes, last.hashes]), columns)
            self._levels.append(merged)
            excess = before.nbytes + last.nbytes - merged.nbytes
            self._held -= excess
            if excess >= 0:
                self._claim.shrink(excess)
            else:
                self._claim.grow(-excess)
        return True

    def _grow(self, size: int) -> bool:
        if self._held + size > self._most or not self._claim.try_grow(size):
            return False
        self._held += size
        return True

    def _add_range(self, pattern: KeyPattern) -> bool:
        # Of ranges without a lower (or upper) bound the widest says it all: that of a sorted input moves on and on.
        narrower = [known for known in self._ranges if _within(known, pattern)]
        if any(_within(pattern, known) for known in self._ranges):
            return True
        if not self._grow(_RANGE_BYTES):
            return False
        self._ranges = [known for known in self._ranges if known not in narrower] + [pattern]
        self._held -= _RANGE_BYTES * len(narrower)
        self._claim.shrink(_RANGE_BYTES * len(narrower))
        return True

    def contains(self, hashes: Int64, keys: Keys) -> Bool:
        """Which of some rows have such keys."""
        found = self._among_values(hashes, keys)
        if self._ranges and len(hashes):
            column = plain_array(keys()[0])
            for known in self._ranges:
                found |= _inside(column, known)
        return found

    def _among_values(self, hashes: Int64, keys: Keys) -> Bool:
        found = np.zeros(len(hashes), np.bool_)
        for level in self._levels:
            at = np.searchsorted(level.hashes, hashes)
            at[at == len(level.hashes)] = 0
            rows = np.flatnonzero(level.hashes[at] == hashes)
            if not len(rows):
                continue
            # Of two values with one hash only the first is looked at: the other is not known, then.
            values = [column.take(pa.array(at[rows])) for column in level.columns]
            mine = [plain_array(key).take(pa.array(rows)) for key in keys()]
            equal = self._codec.equal_plain(mine, values)
            found[rows if equal is None else rows[equal]] = True
        return found

    def covers(self, low_to_high: KeyPattern) -> bool:
        """Whether a whole range of keys is among them."""
        return any(_within(low_to_high, known) for known in self._ranges)

    def clear(self) -> None:
        """Forget everything."""
        self._claim.shrink(self._held)
        self._levels, self._ranges, self._held = [], [], 0

    def to_state(self) -> Any:
        """For a snapshot."""
        levels = [[encoded([pa.array(level.hashes), *level.columns])] for level in self._levels]
        return [levels, [known.to_state() for known in self._ranges]]

    def load(self, state: Any) -> None:
        """Take over a snapshot's state."""
        levels, ranges = state
        for (text,) in levels:
            hashes, *columns = decoded(text)
            level = _Level(hashes.to_numpy(), list(columns))
            self._levels.append(level)
            self._held += level.nbytes
            self._claim.grow(level.nbytes)
        self._ranges = [KeyPattern.of_state(saved) for saved in ranges]
        self._held += _RANGE_BYTES * len(ranges)
        self._claim.grow(_RANGE_BYTES * len(ranges))


def _inside(column: pa.Array, known: KeyPattern) -> Bool:
    inside = np.ones(len(column), np.bool_)
    if known.low is not None:
        above = (pc.greater if known.low_open else pc.greater_equal)(column, known.low[0])
        inside &= above.fill_null(False).to_numpy(zero_copy_only=False)
    if known.high is not None:
        below = (pc.less if known.high_open else pc.less_equal)(column, known.high[0])
        inside &= below.fill_null(False).to_numpy(zero_copy_only=False)
    return inside


def _within(inner: KeyPattern, outer: KeyPattern) -> bool:
    """Whether a range lies in another."""
    if inner.values is not None or outer.values is not None:
        return False
    return _bound_within(inner.low, inner.low_open, outer.low, outer.low_open, pc.greater) and _bound_within(
        inner.high, inner.high_open, outer.high, outer.high_open, pc.less
    )


def _bound_within(
    inner: pa.Array | None, inner_open: bool, outer: pa.Array | None, outer_open: bool, beyond: Any
) -> bool:
    if outer is None or inner is None:
        return outer is None
    one, other = inner[0], outer[0]
    return bool(beyond(one, other).as_py()) or (bool(pc.equal(one, other).as_py()) and (inner_open or not outer_open))


def ranges_can_be_told(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types can be said to be less than one another."""
    try:
        pc.less(pa.nulls(0, plain_storage(left)), pa.nulls(1, plain_storage(right))[0])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return False
    return True


def behind_values(
    codec: KeyCodec, values: Sequence[pa.Array], at: Int64, hashes: Int64, keys: Keys, places: Int64
) -> Bool:
    """Which rows, by their hashes and places, come at or behind the place of a value that equals their key."""
    found, valid = codec.hash_plain(values)
    order = np.argsort(at, kind="stable")
    order = order if valid is None else order[valid[order]]
    # Of one hash the first place counts; where two values share a hash, the other one is not known here.
    known, first = np.unique(found[order], return_index=True)
    if not len(known):
        return np.zeros(len(hashes), np.bool_)
    place = np.searchsorted(known, hashes)
    place[place == len(known)] = 0
    value = order[first[place]]
    late: Bool = (known[place] == hashes) & (places >= at[value])
    rows = np.flatnonzero(late)
    if len(rows) and not codec.exact:
        mine = [key.take(pa.array(rows)) for key in keys()]
        equal = codec.equal_plain(mine, [each.take(pa.array(value[rows])) for each in values])
        if equal is not None:
            late[rows[~equal]] = False
    return late
