"""Punctuations of the inputs on their way to the output.

A punctuation of one input holds for the output once the other input has promised as much, and once all results that it
speaks of have been handed out. Until then it waits. Whatever becomes ready at one moment goes out in the order in which
it came in, and always behind the results it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.promises import Among, Punctuation, Range
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.memory import Reservation
from watersmeet.records.patterns import KeyPattern, plain_storage

if TYPE_CHECKING:
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin


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
