"""What joins of a stream with a relation on disk have: a budget and how it is divided, the relation, the rows at hand.

What they do with it is in `lookups`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.core.delays import Delays
from watersmeet.core.errors import BudgetError, RelationError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.protocol import Snapshot
from watersmeet.engine.lookup_answers import PAIR_BYTES, Answers, Asked, MappedIndex, Unit
from watersmeet.memory import Budget, Reservation, format_bytes
from watersmeet.records.intake import Intake
from watersmeet.records.places import PlaceCodec
from watersmeet.relation.relation import Pinned, RelationReader, RelationSegment, Version
from watersmeet.spill.store import Store

PAGE_BYTES = 4096
"""Of a disk page, as costs count them."""
_KIB = 1024
_NO_NUMBERS = np.empty(0, np.int64)
_NO_SLOTS = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class LookupSizing:
    """The parts of a budget that every look-up has."""

    pairs: int
    output_bytes: int
    input_bytes: int
    catalogue_bytes: int
    """The relation's partitions: of this version, and of the next while the join moves there."""

    @property
    def total(self) -> int:
        """Bytes set aside for all of them."""
        return self.pairs * PAIR_BYTES + 2 * self.output_bytes + 3 * self.input_bytes + self.catalogue_bytes

    @classmethod
    def divide(cls, spare: int, version: Version) -> LookupSizing:
        """As small as they can be, or parts of what there is beyond the least."""
        widest = 2 * version.widest_row
        return cls(
            pairs=_between(64, spare // 32 // PAIR_BYTES, 16_384),
            output_bytes=_between(max(4 * _KIB, widest), spare // 32, max(8 << 20, widest)),
            input_bytes=_between(4 * _KIB, spare // 32, 2 << 20),
            catalogue_bytes=2 * version.held_bytes + Delays.nbytes,
        )


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


class Waiting(Intake):
    """Rows that arrived while one version was the newest."""

    def __init__(self, limit: int, pinned: Pinned) -> None:
        super().__init__(limit)
        self.pinned = pinned


class LookupFrame(ABC):
    """The parts of an operator that joins a stream with a relation, and what one operator does other than another."""

    name: ClassVar[str]
    reason: str = ""
    """Why the planner chose it."""
    takes_punctuations: bool = False
    beyond: int = 0
    """Nothing comes on top of the budget."""
    spills: ClassVar[bool] = False

    @property
    def patience(self) -> int:
        """Each row is wanted at once."""
        return 0

    @property
    def ahead(self) -> int | None:
        """No input is ahead of the others."""
        return None

    def __init__(self, spec: LookupSpec, memory: int, store: Store, relation: RelationReader) -> None:
        self.spec = spec
        self.store = store
        self.reader = relation
        self.budget = Budget(memory)
        self._claims: dict[str, Reservation] = {}
        self._pinned = relation.pin()
        self._check_relation()
        self.sizing = LookupSizing.divide(0, self.version)
        self.answers = Answers(spec)
        self.hits = 0
        """Rows that found their partition in memory."""
        self._queue: deque[Waiting] = deque()
        self._arrival: Asked | None = None
        self._unit: Unit | None = None
        self._resumed: deque[tuple[pa.RecordBatch, Int64]] = deque()
        """Rows of a snapshot that were not answered, and when they arrived."""
        self._skip = 0
        """How many partners the first of them was given before."""
        self._received_at: int | None = None
        self._stalled = self._ended = self._done = self._must_poll = self._cleaning_up = False
        self._known_schema = spec.stream
        self._saved: tuple[int, Snapshot] | None = None
        self._steps = 0
        self._led = False
        self._set_up()
        self._queue.append(Waiting(self._row_limit, self._pinned))

    # --- what the operators differ in ---

    @abstractmethod
    def _lay_out(self, room: int) -> None:
        """Divide what the buffers leave of the memory, for the version at hand; nothing waits."""

    @classmethod
    @abstractmethod
    def _least_room(cls, spec: LookupSpec, version: Version, **options: Any) -> int:
        """Bytes without which `_lay_out` cannot work."""

    @abstractmethod
    def _take(self, asked: Asked) -> tuple[int, Unit | None]:
        """Take some of the first rows that have arrived, and perhaps begin to answer some; returns how many were
        taken, 0 if others must be answered first.
        """

    @abstractmethod
    def _next_unit(self, idle: bool) -> Unit | None:
        """Answer rows that wait, because they must not wait longer or because there is nothing else to do."""

    @abstractmethod
    def _is_due(self) -> bool:
        """Whether rows that wait must be answered now, though more may be on their way."""

    @abstractmethod
    def _last_unit(self, changed: NDArray[np.bool_] | None) -> Unit | None:
        """Answer rows that wait for these partitions (None: for any); None when there are no more."""

    @abstractmethod
    def _forget(self, changed: NDArray[np.bool_]) -> None:
        """These partitions are other ones in the next version, and no row waits for them."""

    @abstractmethod
    def _unit_done(self) -> None:
        """The unit at hand has given all its answers."""

    @abstractmethod
    def _waiting_rows(self) -> Iterator[Asked]:
        """All rows that wait, those of the unit at hand left out."""

    @property
    @abstractmethod
    def rows_waiting(self) -> int:
        """How many rows wait for a partition."""

    def _gives_way(self) -> bool:
        """Whether others are to work first, now that the unit at hand is done."""
        return False

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _load_own(self, state: dict[str, Any]) -> None:  # noqa: B027  not everybody has some
        """Take over the operator's own state."""

    def _adopt_resumed(self, state: dict[str, Any]) -> None:  # noqa: B027  not everybody has some
        """Take rows of a snapshot back to where they were; those that are left come like arrivals."""

    # --- the relation ---

    @property
    def version(self) -> Version:
        """The version that rows meet now."""
        return self._pinned.version

    def _check_relation(self) -> None:
        design = self.version.design
        if design.schema != self.spec.relation or design.on != tuple(equal.right for equal in self.spec.on):
            raise RelationError(
                f"the relation in {self.reader.where} was laid out anew, with other columns or keys than the join was "
                f"made for; begin a new join"
            )

    @classmethod
    def least_memory(cls, spec: LookupSpec, relation: RelationReader, **options: Any) -> int:
        """The smallest budget this join can work in, if no row of the stream is large."""
        version = relation.latest()
        return LookupSizing.divide(0, version).total + cls._least_room(spec, version, **options)

    def _set_up(self) -> None:
        """Lay everything out for the version at hand."""
        for claim in self._claims.values():
            claim.clear()
        least = LookupSizing.divide(0, self.version).total + self._least_room(self.spec, self.version)
        if self.budget.total < least:
            self._too_little(least)
        self.sizing = LookupSizing.divide(self.budget.total - least, self.version)
        self.claim("buffers", self.sizing.total)
        self.answers.resize(self.sizing.pairs, self.sizing.output_bytes)
        types = [self.spec.stream.field(equal.left).type for equal in self.spec.on]
        self._codec: PlaceCodec = self.version.design.codec_of(types)
        self._lay_out(self.budget.free)

    def claim(self, name: str, size: int) -> None:
        """Reserve part of the budget under a name, until everything is laid out anew."""
        if name not in self._claims:
            self._claims[name] = self.budget.reservation(name)
        self._claims[name].grow(size)

    def _too_little(self, needed: int) -> None:
        raise BudgetError(
            f"{format_bytes(self.budget.total)} of memory are too little for the {self.name} join with this relation, "
            f"whose largest segment has {format_bytes(self.version.largest_segment)}; allow at least "
            f"{format_bytes(needed)}"
        )

    @property
    def _row_limit(self) -> int:
        return self.sizing.input_bytes

    def mapped(self, number: int) -> RelationSegment:
        """A segment from the disk, counted as read."""
        segment = self.reader.segment(number)
        meter = self.answers.meter
        meter.pages_read += -(-segment.nbytes // PAGE_BYTES)
        meter.seeks += 1
        return segment

    def mapped_indexes(self, part: int) -> list[MappedIndex]:
        """A partition from the disk."""
        return [MappedIndex(self.mapped(number), self.answers) for number in self.version.segment_ids(part)]

    def ask_mapped(self, asked: Asked, indexes: list[MappedIndex], part: int, skip: int = 0) -> Unit:
        """Rows of one partition, which is on disk."""
        slots = np.zeros(len(asked), np.int32)
        exact = all(index.exact for index in indexes)
        return Unit(self.answers, asked, slots, [*indexes], self.widest_of(part), skip, exact)

    def ask_nothing(self, asked: Asked) -> Unit:
        """Rows for which the relation has no segment: they are looked up all the same."""
        self.answers.meter.probes += len(asked)
        return Unit(self.answers, asked, _NO_SLOTS, [], 0)

    def widest_of(self, part: int) -> int:
        """Bytes of a partition's widest row."""
        start, stop = self.version.bounds[part], self.version.bounds[part + 1]
        return int(self.version.widest[start:stop].max(initial=0))
