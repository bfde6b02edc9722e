"""A relation that can be changed while it is read: whole partitions are written anew, and then a version that names
them.

What a change costs is the partitions it touches, so a thousand rows at once are hardly dearer than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import RelationError, SpillError
from watersmeet.relation.build import (
    OwnKeys,
    SegmentEntry,
    SegmentSink,
    build_version,
    catalogue,
    cut_evenly,
    discard,
)
from watersmeet.relation.relation import (
    Design,
    Pinned,
    RelationReader,
    Version,
    published,
    segment_name,
    segments_in,
    version_name,
)
from watersmeet.relation.sort import Rows, stored_rows
from watersmeet.spill.pins import MemoryPins, Pins
from watersmeet.spill.store import MemoryStore, Store


class StoredRelation:
    """A table cut by key into segments, in a store; readers see whole versions of it.

    >>> relation = StoredRelation.in_memory(pa.table({"id": [1, 2], "name": ["one", "two"]}), on=("id",))
    >>> relation.upsert(pa.record_batch({"id": [2, 3], "name": ["zwei", "drei"]}))
    2
    >>> relation.delete(pa.record_batch({"id": [1]}))
    3
    >>> relation.table().to_pylist()
    [{'id': 2, 'name': 'zwei'}, {'id': 3, 'name': 'drei'}]
    """

    def __init__(self, store: Store, pins: Pins, where: str) -> None:
        self.reader = RelationReader(store, pins, where)

    @classmethod
    def in_memory(cls, table: pa.Table, on: tuple[str, ...], memory: int = 64 << 20, **design: Any) -> StoredRelation:
        """A relation without a disk, for simulations and tests."""
        relation = StoredRelation(MemoryStore(), MemoryPins(), "memory")
        partitions = design.pop("partitions", None)
        design.setdefault("partition", "range")
        chosen = Design(with_surrogate(table.schema, design.get("surrogate")), on, **design)
        relation.fill(chosen, table.to_batches(), MemoryStore(), memory, partitions=partitions)
        return relation

    # --- what is there ---

    @property
    def latest(self) -> Version:
        """The newest version."""
        return self.reader.latest()

    @property
    def version(self) -> int:
        """The newest version's number; every change makes the next."""
        return self.latest.number

    @property
    def schema(self) -> pa.Schema:
        """The rows' columns."""
        return self.latest.design.schema

    @property
    def on(self) -> tuple[str, ...]:
        """The key columns."""
        return self.latest.design.on

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.latest.total_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the newest version's segments."""
        return self.latest.total_bytes

    @property
    def partitions(self) -> int:
        """How many parts the keys are cut into."""
        return self.latest.partitions

    def reading(self) -> RelationReader:
        """A reader of its own, for a join that goes on while this relation is changed."""
        return RelationReader(self.reader.store, self.reader.pins, self.reader.where)

    def pin(self, number: int | None = None) -> Pinned:
        """Hold the newest version, or this one, for reading."""
        return self.reader.pin(number)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows of the newest version, one partition after the other."""
        pinned = self.pin()
        try:
            yield from self.reader.scan(pinned.version)
        finally:
            pinned.release()

    def table(self) -> pa.Table:
        """All rows as a PyArrow table."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    # --- changes ---

    def fill(
        self,
        design: Design,
        batches: Iterable[pa.RecordBatch],
        spill: Store,
        memory: int,
        *,
        partitions: int | None = None,
        replace: bool = False,
    ) -> int:
        """Lay out rows as the whole relation; returns the number of the version."""
        store = self.reader.store
        with self._writing():
            there = bool(published(store))
            if there and not replace:
                raise RelationError(f"there is a relation in {self.reader.where}; say replace=True to lay it out anew")
            if not there:
                _sweep(store, set())
            before = self.latest if there else None
            kept = self._clean(before) if before is not None else ()
            retired = (*kept, *(() if before is None else ((number, before.number) for number in before.ids.tolist())))
            version, sink = build_version(
                design, batches, store, spill, memory,
                number=1 if before is None else before.number + 1,
                next_id=0 if before is None else before.next_id,
                retired=retired, partitions=partitions,
            )  # fmt: skip
            self._publish(version, sink)
            return version.number

    def upsert(self, batch: pa.RecordBatch) -> int:
        """Put rows in the place of all that have their keys; returns the number of the version that has them.

        Rows with a NULL key are left out.
        """
        design = self.latest.design
        expected = without_surrogate(design)
        if not batch.schema.equals(expected):
            raise RelationError(f"the rows have the columns {batch.schema.names}, the relation has {expected.names}")
        return self._change(batch, insert=True)

    def delete(self, keys: pa.RecordBatch) -> int:
        """Remove all rows with these keys (of a batch, the key columns count); returns the number of the version."""
        design = self.latest.design
        missing = [name for name in design.on if name not in keys.schema.names]
        if missing:
            raise RelationError(f"the keys to delete lack the column {missing[0]!r}; the key is {', '.join(design.on)}")
        return self._change(keys.select(list(design.on)), insert=False)

    def _change(self, batch: pa.RecordBatch, insert: bool) -> int:
        with self._writing():
            before = self.latest
            changed = Changes(self.reader, before, before.number + 1).apply(batch, insert)
            if changed is None:
                return before.number
            version, sink = changed
            self._publish(version, sink)
            return version.number

    @contextmanager
    def _writing(self) -> Iterator[None]:
        lock = self.reader.pins.lock()
        try:
            yield
        finally:
            lock.release()

    def _publish(self, version: Version, sink: SegmentSink) -> None:
        try:
            version.write(self.reader.store)
        except BaseException:
            discard(self.reader.store, sink.written)
            raise
        self.reader.note(version)
        with suppress(SpillError):  # it is published: what could not be removed now is removed by the next change
            self._clean(version)

    def _clean(self, version: Version) -> tuple[tuple[int, int], ...]:
        return clean(self.reader, version)


def clean(reader: RelationReader, version: Version) -> tuple[tuple[int, int], ...]:
    """Remove what no reader needs, and what a killed writer left; returns what is retired and still there."""
    store = reader.store
    oldest = reader.pins.oldest()
    # The version before this one stays: a reader may be about to pin it.
    needed = version.number - 1 if oldest is None else min(oldest, version.number - 1)
    for number in published(store):
        if number < needed:
            store.remove(version_name(number))
    kept = tuple((number, last) for number, last in version.retired if last >= needed)
    _sweep(store, {*version.ids.tolist(), *(number for number, _ in kept)})
    return kept


def _sweep(store: Store, living: set[int]) -> None:
    for number in segments_in(store):
        if number not in living:
            store.remove(segment_name(number))


class Changes:
    """Works out the next version of a relation."""

    def __init__(self, reader: RelationReader, before: Version, number: int) -> None:
        self._reader = reader
        self._before = before
        self._number = number
        self._design = before.design
        self._keys = OwnKeys(before.design)
        self._codec = before.design.codec()

    def apply(self, batch: pa.RecordBatch, insert: bool) -> tuple[Version, SegmentSink] | None:
        """The version after rows were put in or their keys removed; None if that changes nothing."""
        kept = clean(self._reader, self._before)
        incoming, left_out = stored_rows(self._design, self._codec, batch)
        before = self._before
        sink = SegmentSink(self._design, self._reader.store, before.next_id, before.next_surrogate)
        parts = before.map.locate(incoming.places)
        order = np.argsort(parts, kind="stable")
        touched, starts = np.unique(parts[order], return_index=True)
        groups = dict(zip(touched.tolist(), np.split(order, starts[1:]), strict=True)) if len(touched) else {}
        firsts: list[tuple[int, int]] = []
        written: list[list[SegmentEntry]] = []
        changed: list[int] = []
        retired = list(kept)
        try:
            for part in range(before.partitions):
                first = (int(before.map.first_words[part]), int(before.map.first_hashes[part]))
                pieces = None
                if part in groups:
                    pieces = self._rewritten(part, incoming.take(groups[part]), insert, sink)
                if pieces is None:
                    firsts.append(first)
                    written.append(self._segments(part))
                    changed.append(int(before.changed[part]))
                    continue
                retired += [(number, before.number) for number in before.segment_ids(part)]
                for i, piece in enumerate(pieces):
                    firsts.append((int(piece.places.words[0]), int(piece.places.hashes[0])) if i else first)
                    written.append(sink.write(piece))
                    changed.append(self._number)
        except BaseException:
            discard(self._reader.store, sink.written)
            raise
        if self._number not in changed:
            return None
        cut = len(firsts) != before.partitions
        version = catalogue(
            self._design, self._number, firsts, written, np.array(changed), sink,
            before.left_out + (left_out if insert else 0), tuple(retired), self._number if cut else before.cut_in,
        )  # fmt: skip
        return version, sink

    def _segments(self, part: int) -> list[SegmentEntry]:
        before = self._before
        start, stop = int(before.bounds[part]), int(before.bounds[part + 1])
        columns = (
            before.ids[start:stop],
            before.rows[start:stop],
            before.nbytes[start:stop],
            before.widest[start:stop],
        )
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _rewritten(self, part: int, incoming: Rows, insert: bool, sink: SegmentSink) -> list[Rows] | None:
        """A partition after the change, cut anew if it has grown too large; None if it stays as it is."""
        existing = self._load(part)
        gone, match = self._matches(existing, incoming, insert)
        if not insert and not gone.any():
            return None
        parts = [existing.take(np.flatnonzero(~gone))] if existing is not None else []
        if insert:
            parts.append(self._numbered(incoming, existing, match, sink))
        rows = Rows.concat(parts).sorted() if parts else incoming
        if int(rows.widths().sum()) <= 2 * self._design.theta:
            return [rows]
        return cut_evenly(rows, self._design.theta)

    def _load(self, part: int) -> Rows | None:
        parts = []
        for number in self._before.segment_ids(part):
            segment = self._reader.segment(number)
            places = self._codec.places([segment.columns[i] for i in self._design.key_indices])
            parts.append(Rows(segment.columns, places))
        return Rows.concat(parts) if parts else None

    def _matches(self, existing: Rows | None, incoming: Rows, insert: bool) -> tuple[NDArray[np.bool_], Int64]:
        """Which existing rows have a key that comes in, and for each incoming row one existing row of its key or -1."""
        match = np.full(len(incoming), -1, np.int64)
        if existing is None:
            return np.zeros(0, np.bool_), match
        gone = np.zeros(len(existing), np.bool_)
        order = np.argsort(incoming.places.hashes, kind="stable")
        hashes = incoming.places.hashes[order]
        low = np.searchsorted(hashes, existing.places.hashes, side="left")
        high = np.searchsorted(hashes, existing.places.hashes, side="right")
        counts = high - low
        old = np.repeat(np.arange(len(existing)), counts)
        offsets = np.arange(len(old)) - np.repeat(np.cumsum(counts) - counts, counts)
        new = order[np.repeat(low, counts) + offsets]
        if len(old):
            equal = self._keys.codec.equal(
                self._keys.keys(existing.columns, old), self._keys.keys(self._key_columns(incoming, insert), new)
            )
            if equal is not None:
                old, new = old[equal], new[equal]
            gone[old] = True
            match[new] = old
        return gone, match

    def _key_columns(self, incoming: Rows, whole_rows: bool) -> list[pa.Array]:
        """The incoming columns as whole rows have them; where keys alone come in, the others are not there."""
        if whole_rows:
            return incoming.columns
        columns: list[Any] = [None] * len(self._design.schema)
        for i, column in zip(self._design.key_indices, incoming.columns, strict=True):
            columns[i] = column
        return columns

    def _numbered(self, incoming: Rows, existing: Rows | None, match: Int64, sink: SegmentSink) -> Rows:
        """Incoming rows with surrogate keys: known keys keep theirs, new ones get the next."""
        if self._design.surrogate is None:
            return incoming
        numbers = np.zeros(len(incoming), np.int64)
        known = match >= 0
        if existing is not None and known.any():
            numbers[known] = existing.columns[-1].take(pa.array(match[known])).to_numpy()
        fresh = int(np.count_nonzero(~known))
        numbers[~known] = np.arange(sink.next_surrogate, sink.next_surrogate + fresh)
        sink.next_surrogate += fresh
        return Rows([*incoming.columns, pa.array(numbers)], incoming.places)


def with_surrogate(schema: pa.Schema, surrogate: str | None) -> pa.Schema:
    """The columns of a relation that numbers its rows itself."""
    if surrogate is None:
        return schema
    if surrogate in schema.names:
        raise RelationError(f"the rows have a column {surrogate!r} already; give the surrogate key another name")
    return schema.append(pa.field(surrogate, pa.int64(), nullable=False))


def without_surrogate(design: Design) -> pa.Schema:
    """The columns of rows that come in."""
    return design.schema if design.surrogate is None else design.schema.remove(len(design.schema) - 1)
