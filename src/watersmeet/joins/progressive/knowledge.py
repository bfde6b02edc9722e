"""What is known of one input's future: by its promises, by punctuations, and by the rows that came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.spec import JoinSpec
from watersmeet.memory import Reservation
from watersmeet.records.keys import KeyCodec
from watersmeet.records.patterns import KeyPattern, decoded, encoded
from watersmeet.records.punctuated import Keys, punctuated_range

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
