"""Rows on their way into an as-of join: their times as words in the order of time, which of them come late, and how
far a column of times that is known already is from being in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.asof import AsofSpec, zero_of
from watersmeet.core.bands import Width, tick_nanoseconds
from watersmeet.core.errors import SpecError
from watersmeet.core.keys import plain_type
from watersmeet.core.spec import Band, JoinSpec
from watersmeet.kernels.hashing import ordered_doubles
from watersmeet.records.bands import HIGHEST, LOWEST, BandCodec
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.records.times import NEVER, times_for_people

TIME, HASH = 0, 1
"""The first column of every row of an as-of join; a left row's hash is its second."""
FIRST_PAYLOAD = (2, 1)


class AsofCodec(KeyCodec):
    """Hashes of the equalities; without any, all rows have the same."""

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        """A hash for each row, and which rows can match anything (None: all can)."""
        return super().hash(side, columns[1:]) if len(columns) > 1 else (np.zeros(len(columns[0]), np.int64), None)

    @classmethod
    def of_right(cls, spec: AsofSpec) -> KeyCodec:
        """Compares keys of the right input with each other."""
        on = tuple(type(each)(each.right, each.right) for each in spec.equalities)
        return KeyCodec(JoinSpec(spec.right, spec.right, on, suffixes=("", "_other")))


class AsofPlan(RowPlan):
    """One input's columns, the time of each row before them; of the left input also the hash."""

    def __init__(self, spec: AsofSpec, side: int, exact_hash: bool) -> None:
        super().__init__(spec, side, exact_hash)
        first = FIRST_PAYLOAD[side]
        words = [pa.int64()] * first
        self.types = [*words, *self.types]
        self._originals = [*words, *self._originals]
        self._of_any_width = [i + first for i in self._of_any_width]
        self.outputs = [i + first for i in self.outputs]
        self.keys = [i + first for i in self.keys]
        self._time_column = spec.input(side).get_field_index(spec.times.time[side])

    def key_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The time column of an input batch, then its key columns."""
        return [batch.column(self._time_column), *super().key_arrays(batch)]


@dataclass(frozen=True, slots=True)
class AsofTimed:
    """The times of a batch of rows."""

    times: Int64
    floors: Int64
    """The time from which on nothing is forgotten that a row may ask for: its own, unless it comes late."""
    known: Bool | None
    """Which rows have a time; None: all."""
    late: Bool | None
    """Which rows came too late; None: none."""
    newest: Int64
    """The newest time of the input up to and with each row."""
    before: int
    """The newest time of the input before all of them."""


class AsofTiming:
    """Turns the times of both inputs into words of one order, tells which rows are late, and how far times are apart.

    >>> from watersmeet.core.asof import parse_asof
    >>> schema = pa.schema({"t": pa.int64()})
    >>> timing = AsofTiming(AsofSpec(schema, schema, (), times=parse_asof("t", lateness=2)))
    >>> timed = timing.read(0, pa.record_batch({"t": [5, 9, 6]}), NEVER)
    >>> timed.late, timed.floors, timing.mark(0, 9)
    (array([False, False,  True]), array([5, 9, 7]), 7)
    """

    def __init__(self, spec: AsofSpec) -> None:
        self._spec = spec
        self._lateness = spec.latenesses
        self._columns = [spec.input(side).get_field_index(spec.times.time[side]) for side in (0, 1)]
        zero = zero_of(spec.time_types[0])
        assert zero is not None
        self._codec = BandCodec.of(
            JoinSpec(spec.left, spec.right, (Band(*spec.times.time, zero),), suffixes=("_l", "_r"))
        )
        self.in_doubles = self._codec.in_doubles
        self.tolerance = spec.tolerance

    def times(self, side: int, batch: pa.RecordBatch) -> tuple[Int64, Bool | None]:
        """The times of an input's rows as words, and which rows have one (None: all)."""
        times, known = self._codec.words(side, batch.column(self._columns[side]))
        known = None if known is None or known.all() else known
        if self._codec.form.outgrows_word:
            told = times if known is None else times[known]
            if ((told == HIGHEST) | (told == LOWEST)).any():
                raise SpecError(
                    f"a time of {self._spec.names[side]} has no place among 64-bit words of the finer unit; cast the "
                    f"time columns to one type, or leave it out"
                )
        return times, known

    def read(self, side: int, batch: pa.RecordBatch, newest: int) -> AsofTimed:
        """The times of the next rows of an input, which has told `newest` as its newest time so far."""
        times, known = self.times(side, batch)
        if known is None and len(times) and times[0] >= newest and (times[1:] >= times[:-1]).all():
            times = np.ascontiguousarray(times)  # in order, as most rows come
            return AsofTimed(times, times, None, None, times, newest)
        told = times if known is None else np.where(known, times, NEVER)
        reached = np.maximum.accumulate(np.concatenate([[newest], told]))
        before, after = reached[:-1], reached[1:]
        late, floors = None, times
        marks = self._marks(side, before)
        if marks is not None:
            is_late = told < marks
            if known is not None:
                is_late &= known
            if is_late.any():
                late = is_late
                floors = np.where(is_late, marks, times)
        return AsofTimed(np.ascontiguousarray(times), np.ascontiguousarray(floors), known, late, after, newest)

    def _marks(self, side: int, newest: Int64) -> Int64 | None:
        """The times before which rows are late, by the newest before each; None if none ever is."""
        lateness = self._lateness[side]
        if lateness is None:
            return None
        if not lateness:
            return newest
        if self.in_doubles:
            with np.errstate(invalid="ignore", over="ignore"):
                moved = self._doubles(newest) - lateness
            words = ordered_doubles(np.ascontiguousarray(moved).view(np.int64))
            return np.where((newest == NEVER) | np.isnan(moved), NEVER, words)
        least = LOWEST + min(int(lateness), HIGHEST)
        return np.where(newest < least, NEVER, newest - np.int64(min(int(lateness), HIGHEST)))

    def mark(self, side: int, newest: int) -> int:
        """Rows before this time are late, if their input has told `newest`; NEVER if nothing is known."""
        marks = self._marks(side, np.array([newest], np.int64))
        return NEVER if marks is None else int(marks[0])

    @staticmethod
    def _doubles(words: Int64) -> NDArray[np.float64]:
        found: NDArray[np.float64] = ordered_doubles(np.ascontiguousarray(words)).view(np.float64)
        return found

    def apart(self, later: Int64, earlier: Int64) -> NDArray[Any]:
        """How far times are apart, in units that compare with the tolerance."""
        if self.in_doubles:
            with np.errstate(invalid="ignore", over="ignore"):
                apart: NDArray[Any] = self._doubles(later) - self._doubles(earlier)
            # Of infinite times there is no difference: equal ones are not apart.
            return np.where(np.isnan(apart), np.where(later == earlier, 0.0, np.inf), apart)
        return later.view(np.uint64) - earlier.view(np.uint64)

    def beyond(self, apart: NDArray[Any], times: int = 1) -> Bool:
        """Which distances are more than so many times the tolerance."""
        if self.tolerance is None:
            return np.zeros(len(apart), np.bool_)
        if self.in_doubles:
            found: Bool = apart > times * self.tolerance
        else:
            most = times * int(self.tolerance)
            found = apart > np.uint64(most) if most < 1 << 64 else np.zeros(len(apart), np.bool_)
        return found

    def reached(self, newest: Sequence[int]) -> tuple[float | None, ...] | None:
        """Newest times for people."""
        if self.in_doubles:
            told = self._doubles(np.array(newest, np.int64)).tolist()
            return tuple(None if word == NEVER else time for word, time in zip(newest, told, strict=True))
        return times_for_people(newest, self._spec.tick)


_FAR = 1 << 61


def disorder(column: pa.ChunkedArray) -> Width | None:
    """By how much a value is older than the newest before it, at most; None if that cannot be told.

    >>> disorder(pa.chunked_array([[1, 5], [3, 6]])), disorder(pa.chunked_array([[0.5, 0.25]]))
    (2, None)
    """
    plain, _ = plain_type(column.type)
    if plain != column.type:
        return None
    dated = pa.types.is_timestamp(plain) or pa.types.is_date(plain)
    if not dated and not (pa.types.is_integer(plain) and plain != pa.uint64()):
        return _zero_if_sorted(column, plain)
    newest, most = -_FAR, 0
    for chunk in column.chunks:
        times = _words(chunk)
        if not len(times):
            continue
        if times[0] >= newest and (times[1:] >= times[:-1]).all():
            newest = int(times[-1])
            if times[0] <= -_FAR or newest >= _FAR:
                return None
            continue
        if times.min() <= -_FAR or times.max() >= _FAR:
            return None
        reached = np.maximum(np.maximum.accumulate(times), newest)
        most = max(most, int((reached - times).max()))
        newest = int(reached[-1])
    if not dated:
        return most
    # A length of time is told in microseconds; a little more lateness than there is does no harm.
    return timedelta(microseconds=-(-most * tick_nanoseconds(plain) // 1000))


def _words(chunk: pa.Array) -> Int64:
    if chunk.null_count:
        chunk = chunk.drop_null()
    if pa.types.is_integer(chunk.type):
        return np.asarray(chunk).astype(np.int64, copy=False)
    return np.asarray(chunk.view(pa.int32() if chunk.type.bit_width == 32 else pa.int64())).astype(np.int64, copy=False)


def _zero_if_sorted(column: pa.ChunkedArray, plain: pa.DataType) -> Width | None:
    """Lengths of fractions are rounded: it is safe to tell that there is no disorder, and nothing else."""
    if not (pa.types.is_floating(plain) or pa.types.is_decimal(plain)):
        return None
    last = None
    for chunk in column.chunks:
        values = chunk.drop_null()
        if pa.types.is_floating(plain):
            values = values.filter(pc.invert(pc.is_nan(values)))
        if not len(values):
            continue
        if last is not None and values[0].as_py() < last:
            return None
        if len(values) > 1 and not pc.all(pc.less_equal(values[:-1], values[1:])).as_py():
            return None
        last = values[-1].as_py()
    return 0
