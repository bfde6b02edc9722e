"""What is known of one input's future: by its promises, by punctuations, and by the rows that came; and punctuations
on their way to the output.

A punctuation of one input holds for the output once the other input has promised as much, and once all results that it
speaks of have been handed out. Until then it waits. Whatever becomes ready at one moment goes out in the order in which
it came in, and always behind the results it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.promises import Among, Punctuation, Range
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.memory import Reservation
from watersmeet.records.keys import KeyCodec
from watersmeet.records.patterns import KeyPattern, decoded, encoded, plain_storage
from watersmeet.records.punctuated import Keys, punctuated_range

if TYPE_CHECKING:
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin


_MOST_NEW = 256
"""Portions of new keys that are told apart before the next purge."""


class Knowledge:
    """One input's punctuated range, and what of it was not acted upon yet.

    - A punctuation adds its values or its range.
    - Of a clustered input, a key is over when another one comes.
    - Of a sorted input, all keys before the one at hand are over.
    - Of an input with unique keys, a key is over when it comes. As long as its row is in memory, the row itself tells
      that; it is added here when the row leaves.
    """

    def __init__(self, spec: JoinSpec, side: int, codec: KeyCodec, claim: Reservation, most: int) -> None:
        keys, promises = spec.keys(side), spec.promises[side]
        self.unique = promises.unique_key(keys)
        self.descending = promises.sorted_key(keys)
        """Of a sorted input: whether it descends; None if it is not sorted."""
        self.clustered = self.descending is None and promises.clustered_key(keys)
        self.range = punctuated_range(codec, claim, most)
        self.forgotten = 0
        """Promises that there was no memory for."""
        self._codec = codec
        self._open: tuple[int, list[pa.Array]] | None = None
        """Of a clustered input: the hash and the key of the last row."""
        self.news = 0
        """Promises that nobody has acted upon."""
        self._new_hashes: list[Int64] = []
        self._new_ranges = False

    @property
    def in_order(self) -> bool:
        """Whether the order of rows tells something, so that they must be taken in that order."""
        return self.clustered or self.descending is not None

    def add(self, pattern: KeyPattern, count: int = 1) -> None:
        """Take note of a punctuation, or of the values of so many."""
        if not self.range.add(pattern):
            self.forgotten += 1
        self.news += count
        if pattern.values is None:
            self._new_ranges = True
        else:
            hashes, valid = self._codec.hash_plain(pattern.values)
            self._note_new(hashes if valid is None else hashes[valid])

    def _note_new(self, hashes: Int64) -> None:
        self._new_hashes.append(hashes)
        if len(self._new_hashes) > _MOST_NEW:  # then it is as well to look at all rows
            self._new_hashes, self._new_ranges = [], True

    def remember(self, hashes: Int64, keys: Keys) -> None:
        """These unique keys have come, and their rows leave memory."""
        if len(hashes) and not self.range.add_keys(hashes, keys):
            self.forgotten += 1

    def learn(self, hashes: Int64, keys: Callable[[], list[pa.Array]]) -> None:
        """Take note of what rows that came, in their order, say about those to come."""
        if not len(hashes):
            return
        if self.descending is not None:
            before = self.range.entries
            moved = self.range.add_beyond(hashes, keys, self.descending)
            if moved is None:
                self.forgotten += 1
            elif moved or self.range.entries != before:
                self._new_ranges = True
                self.news += 1
        elif self.clustered:
            self._close_clusters(hashes, keys)

    def _close_clusters(self, hashes: Int64, keys: Callable[[], list[pa.Array]]) -> None:
        starts = np.concatenate([[0], np.flatnonzero(np.diff(hashes)) + 1])
        over, last = starts[:-1], int(starts[-1])
        if self._open is not None and self._open[0] != hashes[0]:
            hash_, key = self._open
            self._over(np.array([hash_]), lambda: key)
        if len(over):
            self._over(hashes[over], lambda: [key.take(pa.array(over)) for key in keys()])
        key = [] if self._codec.exact else [column.slice(last, 1) for column in keys()]
        self._open = (int(hashes[last]), key)

    def _over(self, hashes: Int64, keys: Keys) -> None:
        if not self.range.add_keys(hashes, keys):
            self.forgotten += 1
        self._note_new(hashes)
        self.news += len(hashes)

    def in_open_cluster(self, hashes: Int64) -> int:
        """How many of the next rows belong to the cluster that is open."""
        if self._open is None:
            return 0
        others = np.flatnonzero(hashes != self._open[0])
        return int(others[0]) if len(others) else len(hashes)

    def broken(self, hashes: Int64, keys: Callable[[], list[pa.Array]], seen: Bool) -> Bool:
        """Which of the next rows should not have come; `seen`: those whose key is in memory."""
        late = self.range.contains(hashes, keys)
        if self.unique:
            again = np.ones(len(hashes), np.bool_)
            again[np.unique(hashes, return_index=True)[1]] = False
            if again.any() and not self._codec.exact:
                again = self._truly_repeated(hashes, keys, again)
            late |= seen | again
        if self.descending is not None:
            late |= self._out_of_order(hashes, keys)
        elif self.clustered and len(hashes):
            starts = np.concatenate([[True], hashes[1:] != hashes[:-1]])
            first = np.unique(hashes[starts], return_index=True)[1]
            again = np.ones(int(starts.sum()), np.bool_)
            again[first] = False
            late[np.flatnonzero(starts)[again]] = True
            if self._open is not None and hashes[0] != self._open[0]:
                late |= starts & (hashes == self._open[0])
        return late

    def _truly_repeated(self, hashes: Int64, keys: Callable[[], list[pa.Array]], again: Bool) -> Bool:
        rows = np.flatnonzero(again)
        _, first, places = np.unique(hashes, return_index=True, return_inverse=True)
        firsts = first[places[rows]]
        columns = keys()
        equal = self._codec.equal_plain(
            [column.take(pa.array(rows)) for column in columns], [column.take(pa.array(firsts)) for column in columns]
        )
        if equal is not None:
            again[rows[~equal]] = False
        return again

    def _out_of_order(self, hashes: Int64, keys: Callable[[], list[pa.Array]]) -> Bool:
        late = np.zeros(len(hashes), np.bool_)
        if len(hashes) < 2:
            return late
        if self._codec.exact:
            ranks = self._codec.ranks_of_hashes(hashes)
            late[1:] = ranks[1:] > ranks[:-1] if self.descending else ranks[1:] < ranks[:-1]
        else:
            column = keys()[0]
            later, earlier = column.slice(1), column.slice(0, len(column) - 1)
            wrong = (pc.greater if self.descending else pc.less)(later, earlier)
            late[1:] = wrong.fill_null(False).to_numpy(zero_copy_only=False)
        return late

    # --- what was not acted upon ---

    def new_hashes(self) -> Int64 | None:
        """The hashes of keys that were added since; None if there were ranges, too."""
        if self._new_ranges:
            return None
        return np.unique(np.concatenate(self._new_hashes)) if self._new_hashes else np.empty(0, np.int64)

    def acted_upon(self) -> None:
        """No news any more."""
        self.news, self._new_hashes, self._new_ranges = 0, [], False

    def clear(self) -> None:
        """The input has ended: nothing needs to be remembered."""
        self.range.clear()
        self.acted_upon()

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        key = None
        if self._open is not None:
            key = [str(self._open[0]), encoded(self._open[1]) if self._open[1] else None]
        # What is new is not told apart: the next purge looks at all rows, and finds the same ones.
        return {"range": self.range.to_state(), "open": key, "news": self.news, "forgotten": self.forgotten}

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot's state."""
        self.range.load(state["range"])
        if state["open"] is not None:
            hash_, key = state["open"]
            self._open = (int(hash_), [] if key is None else decoded(key))
        self.news, self.forgotten = state["news"], state["forgotten"]
        self._new_ranges = self.news > 0


def key_text(spec: JoinSpec, side: int, keys: Sequence[pa.Array], row: int) -> str:
    """A row's key for people."""
    return ", ".join(f"{name}={column[row].as_py()!r}" for name, column in zip(spec.keys(side), keys, strict=True))


_ENTRY_BYTES = 512


@dataclass(frozen=True, slots=True)
class _Waiting:
    number: int
    pattern: KeyPattern
    hashes: Int64


def _size(pattern: KeyPattern) -> int:
    arrays = (*(pattern.values or ()), pattern.low, pattern.high)
    return _ENTRY_BYTES + sum(int(array.nbytes) for array in arrays if array is not None)


class Propagation:
    """The punctuations that wait, and those that are ready."""

    def __init__(self, join: MetadataMJoin, claim: Reservation, most: int, wanted: bool) -> None:
        self._join = join
        self._claim = claim
        self._most = most
        self._wanted = wanted and join.spec.output is Output.ROWS
        self._waiting: tuple[list[_Waiting], list[_Waiting]] = ([], [])
        self._all: list[tuple[Int64, Int64, list[pa.Array]] | None] = [None, None]
        self._number = 0
        self.not_passed_on = 0
        """Punctuations that there was no memory for."""
        self._ready: list[tuple[int, KeyPattern]] = []

    @property
    def any(self) -> bool:
        """Whether any wait."""
        return bool(self._waiting[0] or self._waiting[1])

    def waits(self, side: int) -> bool:
        """Whether any of one input wait."""
        return bool(self._waiting[side])

    def add(self, patterns: Sequence[KeyPattern]) -> None:
        """Punctuations have come in."""
        if not self._wanted:
            return
        values = [pattern.values for pattern in patterns if pattern.values is not None]
        hashes, valid = np.empty(0, np.int64), None
        if values:
            hashes, valid = self._join.codec.hash_plain([pa.concat_arrays(each) for each in zip(*values, strict=True)])
        start = 0
        for pattern in patterns:
            count = 0 if pattern.values is None else len(pattern.values[0])
            mine = hashes[start : start + count]
            if valid is not None:  # values that can have no partner have no results
                mine = mine[valid[start : start + count]]
            start += count
            size = _size(pattern)
            if self._claim.held + size > self._most or not self._claim.try_grow(size):
                self.not_passed_on += 1
                continue
            self._waiting[pattern.side].append(_Waiting(self._number, pattern, mine))
            self._all[pattern.side] = None
            self._number += 1

    def look(self) -> None:
        """Find out which are ready; called when no results wait to be handed out."""
        for side in (0, 1):
            waiting = self._waiting[side]
            if not waiting:
                continue
            ready = self._ready_ones(side, waiting)
            if not ready.any():
                continue
            self._claim.shrink(sum(_size(each.pattern) for each, now in zip(waiting, ready, strict=True) if now))
            self._ready += [(each.number, each.pattern) for each, now in zip(waiting, ready, strict=True) if now]
            waiting[:] = [each for each, now in zip(waiting, ready, strict=True) if not now]
            self._all[side] = None

    def _ready_ones(self, side: int, waiting: list[_Waiting]) -> Bool:
        join = self._join
        ready = np.ones(len(waiting), np.bool_)
        hashes, owners, keys = self._together(side)
        if len(hashes):
            over = join.is_over(1 - side, hashes, lambda: keys) & join.promised.nothing_on_disk(hashes)
            ready[owners[~over]] = False
        for i, each in enumerate(waiting):
            if each.pattern.values is None:
                ready[i] = join.range_is_over(1 - side, each.pattern)
        return ready

    def _together(self, side: int) -> tuple[Int64, Int64, list[pa.Array]]:
        """The values of all that wait: hashes, whose they are, and keys."""
        known = self._all[side]
        if known is None:
            hashes, owners, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], []
            for i, each in enumerate(self._waiting[side]):
                if each.pattern.values is not None and len(each.hashes):
                    hashes.append(each.hashes)
                    owners.append(np.full(len(each.hashes), i))
                    values.append(self._valid(each))
            keys = [] if self._join.codec.exact else [pa.concat_arrays(column) for column in zip(*values, strict=True)]
            known = self._all[side] = (np.concatenate(hashes), np.concatenate(owners), keys)
        return known

    def _valid(self, each: _Waiting) -> list[pa.Array]:
        assert each.pattern.values is not None
        if self._join.codec.exact or len(each.hashes) == len(each.pattern.values[0]):
            return list(each.pattern.values)
        _, valid = self._join.codec.hash_plain(each.pattern.values)
        assert valid is not None, "some have no partners"
        rows = pa.array(np.flatnonzero(valid))
        return [value.take(rows) for value in each.pattern.values]

    def take(self) -> tuple[Punctuation, ...]:
        """Hand out those that are ready."""
        ready, self._ready = sorted(self._ready, key=lambda each: each[0]), []
        return tuple(found for _, pattern in ready for found in output_punctuations(self._join.spec, pattern))

    @property
    def ready(self) -> bool:
        """Whether any are ready."""
        return bool(self._ready)

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        waiting = sorted([*self._waiting[0], *self._waiting[1]], key=lambda each: each.number)
        return [self.not_passed_on, [each.pattern.to_state() for each in waiting]]

    def load(self, state: list[Any]) -> None:
        """Take over a snapshot's state."""
        not_passed_on, waiting = state
        for saved in waiting:
            self.add([KeyPattern.of_state(saved)])
        self.not_passed_on = not_passed_on


def output_punctuations(spec: JoinSpec, pattern: KeyPattern) -> list[Punctuation]:
    """What a pattern of one side's keys says about the output: once for each side whose key columns are there.

    >>> from watersmeet.core.spec import parse_on
    >>> spec = JoinSpec(pa.schema({"a": pa.int64()}), pa.schema({"b": pa.int64()}), parse_on("a = b"))
    >>> output_punctuations(spec, KeyPattern(1, [pa.array([3])]))
    [Punctuation(a = 3), Punctuation(b = 3)]
    """
    names = spec.schema.names
    found = []
    for side in (0, 1):
        schema, kept = spec.input(side), spec.kept[side]
        offset = len(spec.kept[0]) if side else 0
        places = [schema.get_field_index(key) for key in spec.keys(side)]
        if not all(place in kept for place in places):
            continue
        told = {}
        for i, place in enumerate(places):
            value = _value(pattern, i, plain_storage(schema.field(place).type))
            if value is None:
                break
            told[names[offset + kept.index(place)]] = value
        else:
            found.append(Punctuation(told))
    return found


def _value(pattern: KeyPattern, column: int, type_: pa.DataType) -> object:
    """One column of a pattern, as values of an output column; None if it has no such values."""
    try:
        if pattern.values is not None:
            found = pattern.values[column]
            values = (found if found.type == type_ else found.cast(type_)).to_pylist()
            return values[0] if len(values) == 1 else Among(tuple(values))
        low, high = (None if bound is None else bound.cast(type_)[0].as_py() for bound in (pattern.low, pattern.high))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return Range(low, high, pattern.low_open, pattern.high_open)
