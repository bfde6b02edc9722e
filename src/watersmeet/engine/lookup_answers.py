"""Stream rows on their way through an index of the relation's rows, and what comes out for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.core.delays import Delays
from watersmeet.core.keys import KeyKind, common_key_type
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.report import LookupFigures
from watersmeet.core.spec import Output
from watersmeet.matching.lookup import Index
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.records.types import from_stored
from watersmeet.relation.relation import RelationSegment
from watersmeet.tables.hash_table import Probe

PAIR_BYTES = 64
"""Of each place in the buffer of candidates: the pair itself, and the scratch arrays of comparing."""


class Gathered(Protocol):
    """Rows by number, in their stored columns."""

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One stored column's values for some rows."""
        ...


class GatheredIndex(Gathered, Index, Protocol):
    """The relation's rows, or some of them, found by hash."""


class MappedIndex:
    """A segment where it lies, its columns numbered as the plan has them."""

    def __init__(self, segment: RelationSegment, answers: Answers) -> None:
        self.segment = segment
        self.exact = answers.hash_proves(segment.has_small_integers)
        self._columns = answers.plans[1].sources

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        return self.segment.probe(probe, limit, out_probe, out_row)

    def gather(self, column: int, rows: Int32) -> pa.Array:
        return self.segment.gather(self._columns[column], rows)


@dataclass(frozen=True, slots=True)
class Asked:
    """Stream rows that ask for their partners: where their columns lie, and their hashes, partitions and times."""

    source: Gathered
    rows: Int32
    """Their numbers in the source."""
    hashes: Int64
    parts: Int32
    times: Int64
    """When they arrived, in microseconds."""
    widest: int
    """Bytes of the widest of them."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, some: Any) -> Asked:
        """Some of them."""
        times, widest = self.times[some], self.widest
        return Asked(self.source, self.rows[some], self.hashes[some], self.parts[some], times, widest)


class Answers:
    """What all units of one operator share: the plan of columns, the buffer of candidates, the counts."""

    def __init__(self, spec: LookupSpec) -> None:
        self.spec = spec
        self.codec = KeyCodec(spec.pairs)
        self.gives_pairs = spec.how in ("inner", "left")
        keys_only = replace(spec.pairs, output=Output.COUNTS)
        self.plans = (
            RowPlan(spec.pairs, 0, exact_hash=False),
            RowPlan(spec.pairs if self.gives_pairs else keys_only, 1, exact_hash=False),
        )
        self.resize(1, 1)
        self.meter = Meter()
        self.delays = Delays()
        self._proof = _proof(spec)
        self.now = 0
        """In microseconds, as the last poll told."""
        self.answered = 0
        self.misses = 0

    def resize(self, capacity: int, output_bytes: int) -> None:
        """Have room for so many candidates, and give batches of so many bytes."""
        self.probes = np.empty(capacity, np.int32)
        self.rows = np.empty(capacity, np.int32)
        self.output_bytes = output_bytes

    def hash_proves(self, small_integers: Callable[[int], bool]) -> bool:
        """Whether rows that are found by their hash need not be compared; it may take small integers in a column."""
        if self._proof is not KeyKind.NUMBER:
            return self._proof is KeyKind.FLOAT
        return small_integers(self.spec.relation.get_field_index(self.spec.on[0].right))

    def room(self, widest: int) -> int:
        """Pairs that an output batch can have, with rows of at most so many bytes on both sides together."""
        return max(1, min(len(self.probes), self.output_bytes // max(1, widest)))

    def truly_equal(self, asked: Asked, index: GatheredIndex, probes: Int32, rows: Int32) -> NDArray[np.bool_] | None:
        """Which candidates have equal keys; None if all have."""
        left, right = self.plans
        return self.codec.equal(
            [left.original(c, asked.source.gather(c, asked.rows[probes])) for c in left.keys],
            [right.original(c, index.gather(c, rows)) for c in right.keys],
        )

    def pairs(self, asked: Asked, index: GatheredIndex, probes: Int32, rows: Int32) -> pa.RecordBatch | None:
        """The output for pairs."""
        self.meter.results += len(probes)
        if self.spec.output is Output.COUNTS:
            return None
        right = self.plans[1]
        columns = self._stream_columns(asked, asked.rows[probes])
        columns += [right.original(c, index.gather(c, rows)) for c in right.outputs]
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.schema)

    def alone(self, asked: Asked, some: NDArray[np.intp]) -> pa.RecordBatch | None:
        """The output for rows without a partner, or for rows of which nothing but their finding counts."""
        self.meter.results += len(some)
        if self.spec.output is Output.COUNTS:
            return None
        columns = self._stream_columns(asked, asked.rows[some])
        if self.gives_pairs:
            right = self.plans[1]
            missing = [(right.types[c], self.spec.relation.field(right.sources[c]).type) for c in right.outputs]
            columns += [from_stored(pa.nulls(len(some), stored), own) for stored, own in missing]
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.schema)

    def _stream_columns(self, asked: Asked, rows: Int32) -> list[pa.Array]:
        left = self.plans[0]
        return [left.original(c, asked.source.gather(c, rows)) for c in left.outputs]

    def batch(self, asked: Asked) -> pa.RecordBatch:
        """Rows as they arrived."""
        columns = self._stream_columns(asked, asked.rows)
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.stream)


def _proof(spec: LookupSpec) -> KeyKind | None:
    """What a hash proves: places are made of doubles, which say all about floats, and about integers of no great size.

    FLOAT: keys of equal hashes are equal. NUMBER: they are, if those of the relation are small integers. None: they
    need not be.
    """
    if len(spec.on) != 1:
        return None
    types = [spec.stream.field(spec.on[0].left).type, spec.relation.field(spec.on[0].right).type]
    if all(pa.types.is_integer(type_) for type_ in types):
        return KeyKind.NUMBER
    form = common_key_type(*types)
    return KeyKind.FLOAT if form is not None and form.kind is KeyKind.FLOAT else None


class Unit:
    """Some stream rows, and the indexes that hold all their possible partners.

    With one index the rows go through it together; with several (a partition of many segments) one after the other.
    A row's partners come in a fixed order, so a number says how many of them were handed out.
    """

    def __init__(
        self,
        answers: Answers,
        asked: Asked,
        slots: Int32,
        indexes: list[GatheredIndex],
        widest: int,
        skip: int = 0,
        exact: bool = False,
        matched: NDArray[np.bool_] | None = None,
    ) -> None:
        """`exact`: hashes prove that keys are equal. `matched`: rows that had partners before, if any had."""
        self._exact = exact
        self.asked = asked
        self.matched = np.zeros(len(asked), np.bool_) if matched is None else matched
        self.matched[:1] |= skip > 0
        self._answers = answers
        self._indexes = indexes
        self._slots = slots
        self._room = answers.room(asked.widest + widest)
        self._skip = skip
        self._handed = skip
        """How many partners of the row at hand were handed out."""
        self._chapter = 0
        self._first = 0
        """Of several indexes: the row at hand."""
        self._probe = self._next_probe()
        self._rest: NDArray[np.intp] | None = None
        self._given = 0
        self._counted = False
        if not indexes or not len(asked):
            self._found_all()

    @property
    def done(self) -> bool:
        """Whether all that comes out was handed out."""
        return self._rest is not None and self._given == len(self._rest)

    def _next_probe(self) -> Probe:
        if len(self._indexes) < 2:
            return Probe(self.asked.hashes, self._slots)
        end = self._first + 1
        return Probe(self.asked.hashes[self._first : end], self._slots[self._first : end])

    @property
    def _at(self) -> int:
        """The first row that has not met all its partners."""
        return self._first + (self._probe.next if len(self._indexes) < 2 else 0)

    def work(self, fuel: int) -> tuple[pa.RecordBatch | None, int]:
        """Find some partners, or hand out some rows; returns a batch, if there is one, and the fuel that took."""
        if self._rest is not None:
            some = self._rest[self._given : self._given + self._room]
            self._given += len(some)
            return self._answers.alone(self.asked, some), max(1, len(some))
        answers, probe = self._answers, self._probe
        before, start, index = self._at, probe.next, self._indexes[self._chapter]
        stop = min(len(probe.hashes), start + max(1, fuel))
        room = slice(0, self._room)
        found, visited = index.probe(probe, stop, answers.probes[room], answers.rows[room])
        answers.meter.probes += probe.next - start
        answers.meter.comparisons += visited
        out = self._settle(index, answers.probes[:found], answers.rows[:found], before)
        return out, max(1, probe.next - start) + found

    def _settle(self, index: GatheredIndex, probes: Int32, rows: Int32, before: int) -> pa.RecordBatch | None:
        """Compare the candidates, note who matched, go on to the next index or row, and build the output."""
        answers = self._answers
        if len(probes) and not self._exact:
            equal = answers.truly_equal(self.asked, index, probes + np.int32(self._first), rows)
            if equal is not None:
                probes, rows = probes[equal], rows[equal]
        probes = probes + np.int32(self._first)
        if self._skip and len(probes):
            old = min(self._skip, int(np.count_nonzero(probes == 0)))
            self._skip -= old
            probes, rows = probes[old:], rows[old:]
        self.matched[probes] = True
        if self._probe.done:
            self._advance()
        at = self._at if self._rest is None else len(self.asked)
        new = int(np.count_nonzero(probes == at))
        self._handed = self._handed + new if at == before else new
        answers.delays.add(answers.now - self.asked.times[before:at])
        if not len(probes) or not answers.gives_pairs:
            return None
        return answers.pairs(self.asked, index, probes, rows)

    def _advance(self) -> None:
        """The probe is over: the row's next index, the next row, or the end."""
        if len(self._indexes) > 1:
            self._chapter += 1
            if self._chapter == len(self._indexes):
                self._chapter = 0
                self._first += 1
            if self._first < len(self.asked):
                self._probe = self._next_probe()
                return
        self._found_all()

    def _found_all(self) -> None:
        if not self._indexes:
            self._answers.delays.add(self._answers.now - self.asked.times)
        how = self._answers.spec.how
        self._answers.answered += len(self.asked)
        self._answers.misses += int(np.count_nonzero(~self.matched))
        wanted = self.matched if how == "semi" else ~self.matched
        self._rest = np.flatnonzero(wanted) if how != "inner" else np.empty(0, np.intp)

    def pending(self) -> tuple[Asked, int]:
        """The rows that are not answered in full, and how many partners of the first were handed out already."""
        if self._rest is not None:
            return self.asked.take(self._rest[self._given :]), 0
        at = self._at
        if self._answers.spec.how == "inner":
            return self.asked.take(slice(at, None)), self._handed
        if self._answers.spec.how == "left":
            before = np.flatnonzero(~self.matched[:at])
            return self.asked.take(np.concatenate([np.arange(at, len(self.asked)), before])), self._handed
        return self.asked, 0


def lookup_figures(answered: int, misses: int, hits: int, bytes_read: int, delays: Delays) -> LookupFigures:
    """What a look-up says of itself, out of its counts."""
    return LookupFigures(answered, misses, hits, bytes_read, delays.quantile(0.5), delays.quantile(0.99))


def sum_of_figures(each: Sequence[LookupFigures], delays: Delays) -> LookupFigures:
    """What several look-ups say of themselves together; their delays are not to be added up."""
    return lookup_figures(
        sum(figures.answered for figures in each),
        sum(figures.misses for figures in each),
        sum(figures.hits for figures in each),
        sum(figures.bytes_read for figures in each),
        delays,
    )
