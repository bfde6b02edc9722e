"""All conditions of a join as words in which a match is an interval, and what must be proved beyond that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.lookup import Index, Lookup
from watersmeet.records.bands import BandCodec
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan

_NO_TAGS = np.zeros(0, np.int64)
_LEAST_VISITS = 64


class RangeCodec(KeyCodec):
    """A word for each row, by which it is sorted and found.

    - With a band: the band column's value; equalities beside it become a tag, which must be the same.
    - Else: the key's value, where one ordered word says everything about it; elsewhere the key's hash.
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        self.band = self._band_of(spec)
        self._equalities = len(spec.equalities)
        self.verified_keys = 0 if self.exact else self._equalities
        self.tagged = self.band is not None and self._equalities > 0
        self.verifies_band = self.band is not None and not self.band.exact
        self.exact = self.exact and not self.verifies_band

    @staticmethod
    def _band_of(spec: JoinSpec) -> BandCodec | None:
        """What tells whether values are close, if they need only be that."""
        return None if spec.band is None else BandCodec.of(spec)

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """The word of each row, from its key columns and then its band column, and which rows can match anything."""
        if self.band is None:
            return self.words(side, columns) if not self.verified_keys else super().hash(side, columns)
        words, valid = self.band.words(side, columns[-1])
        if self._equalities:
            _, known = super().hash(side, columns[:-1])
            valid = known if valid is None else valid if known is None else valid & known
        return words, (None if valid is None or valid.all() else valid)

    def tags(self, side: int, columns: Sequence[pa.Array]) -> Int64:
        """The hash of each row's equalities."""
        return super().hash(side, columns)[0]

    def equal(self, left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Bool | None:
        """Which pairs of rows that were found truly match; None if all do."""
        equal = super().equal(left[: self.verified_keys], right[: self.verified_keys])
        if self.verifies_band:
            assert self.band is not None
            close = self.band.within(left[-1], right[-1])
            equal = close if equal is None else equal if close is None else equal & close
        return equal

    def probe(self, words: Int64, columns: Sequence[pa.Array]) -> RangeProbe:
        """The look-up of rows by their words and, if there are tags, by those in the last of their columns."""
        words = np.ascontiguousarray(words)
        if self.band is None:
            return RangeProbe(words, words, words)
        low, high = self.band.bounds(words)
        tags = self.stored_tags(columns)
        width = float(self.band.form.width) if self.band.in_doubles else 0.0
        return RangeProbe(words, low, high, tags, self.band.in_doubles, width)

    def stored_tags(self, columns: Sequence[pa.Array]) -> Int64:
        """The tags of stored rows, which are the last of their columns; nothing if there are none."""
        return np.ascontiguousarray(columns[-1].to_numpy()) if self.tagged else _NO_TAGS


class RangePlan(RowPlan):
    """One input's columns, with the tag as the last of them if there is one."""

    def __init__(self, spec: JoinSpec, side: int, codec: RangeCodec) -> None:
        close = spec.close_columns(side)
        super().__init__(spec, side, not codec.verified_keys, close if codec.verifies_band else ())
        self._codec = codec
        self._side = side
        self._bands = [spec.input(side).get_field_index(name) for name in close]
        if codec.tagged:
            self.types = [*self.types, pa.int64()]

    def key_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return super().key_arrays(batch) + [batch.column(i) for i in self._bands]

    def store(self, batch: pa.RecordBatch, numbers: Int64) -> list[pa.Array]:
        columns = super().store(batch, numbers)
        if self._codec.tagged:
            columns.append(pa.array(self._codec.tags(self._side, super().key_arrays(batch))))
        return columns


class RangeLookup(Lookup):
    """Rows on their way through a sorted index.

    Pairs come in an order that the index's runs decide; a table that was built anew in the same runs gives the same.
    """

    def __init__(
        self,
        probe: RangeProbe,
        table: Index,
        between: Between,
        fresh: Callable[[Int32, Int32], Bool] | None = None,
        note: Callable[[Int32, Int32], None] | None = None,
    ) -> None:
        untyped_probe: Any = probe
        super().__init__(untyped_probe, table, between, fresh)
        self._note = note
        self._counted = False

    @property
    def between_rows(self) -> bool:
        """Runs are gone through one after the other: only the end lies between rows."""
        return self.done

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        probe: Any = self.probe
        self._before += self._in_buffer
        out = pairs.probes[: pairs.room], pairs.rows[: pairs.room]
        found, visited = map(int, self._table.probe(probe, max(_LEAST_VISITS, fuel), *out))
        if self._note is not None and found:
            self._note(pairs.probes[:found], pairs.rows[:found])
        self._settle(pairs, found)
        if not self._counted:
            meter.probes += len(probe.hashes)
            self._counted = True
        meter.comparisons += visited
        return max(1, visited)

    def resume(self, pairs: PairBuffer, place: list[int]) -> None:
        """Go to a place."""
        probe: Any = self.probe
        before, in_buffer, handed_out = place
        everything = np.iinfo(np.int64).max
        while self._before < before:
            limit = min(before - self._before, len(pairs.probes))
            found, _ = self._table.probe(probe, everything, pairs.probes[:limit], pairs.rows[:limit])
            self._before += found
        found, _ = self._table.probe(probe, everything, pairs.probes[:in_buffer], pairs.rows[:in_buffer])
        self._settle(pairs, found)
        pairs.first = handed_out
        self._counted = True
        if not pairs.waiting:
            pairs.clear()


class ChainedLookup(Lookup):
    """The same rows looked up in one table after the other, or under one key after the other."""

    def __init__(self, count: int, link: Callable[[int], Lookup]) -> None:
        """`link` makes each of so many look-ups when its turn has come."""
        self._count = count
        self._make = link
        self._go_to(0)

    def _go_to(self, at: int) -> None:
        self._at, self._link = at, self._make(at)
        self.probe = self._link.probe
        self.between = self._link.between

    @property
    def done(self) -> bool:
        """Whether all pairs were found in all of them."""
        return self._at == self._count - 1 and self._link.done

    @property
    def between_rows(self) -> bool:
        """Only the end lies between rows."""
        return self.done

    def work(self, pairs: PairBuffer, fuel: int, meter: Meter) -> int:
        """Fill the empty buffer with pairs; returns the fuel that took."""
        if self._link.done:
            self._go_to(self._at + 1)
        return self._link.work(pairs, fuel, meter)

    def place(self, pairs: PairBuffer) -> list[int]:
        """Which look-up it is, and the place there."""
        return [self._at, *self._link.place(pairs)]

    def resume(self, pairs: PairBuffer, place: list[int]) -> None:
        """Go to a place."""
        self._go_to(place[0])
        self._link.resume(pairs, place[1:])
