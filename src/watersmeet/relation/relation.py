"""A relation on disk: versions of a table, cut by key into segments that are mapped and probed where they lie.

```
v0000000007        a version: the first place of each partition, and the numbers of its segments
r0000000012 …      segments: rows of one partition in the order of their places, with a hash index beside them
```

Nothing is ever rewritten. A change writes new segments and then a version that names them; the version is published in
one step, so that whoever opens the relation finds the old state or the new one. A reader keeps the version it opened
until it moves on, and what no reader needs is removed by a later change.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.errors import RelationError, SegmentError
from watersmeet.core.keys import common_key_type
from watersmeet.kernels import hash_index
from watersmeet.records.columns import ArrowColumn
from watersmeet.records.places import PlaceCodec
from watersmeet.records.types import from_stored, stored_type
from watersmeet.relation.partitions import PartitionMap
from watersmeet.spill.pins import Pin, Pins
from watersmeet.spill.segment import Segment, SegmentWriter, schema_of, text_of
from watersmeet.spill.store import Store
from watersmeet.tables.hash_table import Probe

FORMAT = 1
THETA = 1 << 20
"""Segments hold this many bytes at least, and twice as many at most, if keys allow it."""
_MOST_OPEN = 2048
EXACT_DOUBLES = 2**53
"""Below this, every integer is a double of its own."""
_VERSION = re.compile(r"v([0-9]{10})")
_SEGMENT = re.compile(r"r([0-9]{10})")


def version_name(number: int) -> str:
    """The name of a version in the store."""
    return f"v{number:010d}"


def segment_name(number: int) -> str:
    """The name of a segment in the store."""
    return f"r{number:010d}"


@dataclass(frozen=True, slots=True)
class Design:
    """What stays the same in all versions of a relation."""

    schema: pa.Schema
    on: tuple[str, ...]
    partition: str
    """How partitions are cut: by range, or by hash."""
    theta: int = THETA
    unique: bool = False
    prefix: bytes = b""
    """What string keys begin with, as far as it was known when the relation was built."""
    surrogate: str | None = None
    """The column of numbers that the relation itself gives to its rows."""

    def __post_init__(self) -> None:
        if self.partition not in ("range", "hash"):
            raise RelationError(f"partition={self.partition!r} is not known; choose 'range' or 'hash'")
        if not self.on:
            raise RelationError("a relation needs at least one key column; say on='column'")
        for name in self.on:
            if self.on.count(name) > 1:
                raise RelationError(f"key column {name!r} is named {self.on.count(name)} times in on=; name it once")
            found = self.schema.get_all_field_indices(name)
            if not found:
                raise RelationError(
                    f"key column {name!r} is not in the rows; choose from what they have, "
                    f"{', '.join(self.schema.names) or 'no columns'}"
                )
            if len(found) > 1:
                raise RelationError(f"key column {name!r} is in the rows {len(found)} times; rename all but one")
            type_ = self.schema.field(found[0]).type
            if common_key_type(type_, type_) is None:
                raise RelationError(f"key column {name!r} is of type {type_}, which cannot be compared; cast it first")

    @property
    def key_indices(self) -> list[int]:
        """Where the key columns are."""
        return [self.schema.get_field_index(name) for name in self.on]

    @property
    def stored(self) -> pa.Schema:
        """The columns as segments have them."""
        return pa.schema([pa.field(field.name, stored_type(field.type)) for field in self.schema])

    def codec(self) -> PlaceCodec:
        """The places of this relation's own keys."""
        types = [self.schema.field(i).type for i in self.key_indices]
        return self.codec_of(types)

    def codec_of(self, types: Sequence[pa.DataType]) -> PlaceCodec:
        """The places of keys of other types in this relation."""
        return PlaceCodec(types, hashed=self.partition == "hash", prefix=self.prefix)

    def to_meta(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "schema": text_of(self.schema),
            "on": list(self.on),
            "partition": self.partition,
            "theta": self.theta,
            "unique": self.unique,
            "prefix": self.prefix.hex(),
            "surrogate": self.surrogate,
        }

    @classmethod
    def from_meta(cls, meta: Any) -> Design:
        """From JSON."""
        if meta.get("format") != FORMAT:
            raise RelationError(f"the relation has format {meta.get('format')}, and this version reads {FORMAT}")
        return cls(
            schema_of(meta["schema"]),
            tuple(meta["on"]),
            meta["partition"],
            meta["theta"],
            meta["unique"],
            bytes.fromhex(meta["prefix"]),
            meta["surrogate"],
        )


@dataclass(frozen=True)
class Version:
    """One state of a relation: its partitions and their segments."""

    number: int
    design: Design
    map: PartitionMap
    bounds: Int64
    """Partition p has the segments bounds[p] to bounds[p + 1]."""
    ids: Int64
    rows: Int64
    nbytes: Int64
    widest: Int64
    """By segment: its number, its rows, its bytes, and the bytes of its widest row."""
    changed: Int64
    """By partition: the version in which its rows last changed."""
    cut_in: int
    """The version in which the borders between partitions last changed."""
    next_id: int
    next_surrogate: int
    left_out: int
    """Rows whose key was NULL: nothing can look them up."""
    retired: tuple[tuple[int, int], ...]
    """Segments that older versions have: their numbers, and the last version that needs them."""

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.map)

    @property
    def total_rows(self) -> int:
        """Rows of all partitions."""
        return int(self.rows.sum())

    @property
    def total_bytes(self) -> int:
        """Bytes of all segments."""
        return int(self.nbytes.sum())

    @cached_property
    def part_bytes(self) -> Int64:
        """Bytes by partition."""
        ends = np.concatenate([[0], np.cumsum(self.nbytes)])
        return np.asarray(ends[self.bounds[1:]] - ends[self.bounds[:-1]], np.int64)

    @cached_property
    def part_rows(self) -> Int64:
        """Rows by partition."""
        ends = np.concatenate([[0], np.cumsum(self.rows)])
        return np.asarray(ends[self.bounds[1:]] - ends[self.bounds[:-1]], np.int64)

    @property
    def largest_segment(self) -> int:
        """Bytes of the largest segment."""
        return int(self.nbytes.max(initial=0))

    @property
    def widest_row(self) -> int:
        """Bytes of the widest row."""
        return int(self.widest.max(initial=0))

    @property
    def held_bytes(self) -> int:
        """Main memory that an open version takes."""
        return self.map.nbytes + 8 * (5 * self.partitions + 4 * len(self.ids))

    def segment_ids(self, part: int) -> list[int]:
        """The numbers of a partition's segments."""
        ids: list[int] = self.ids[self.bounds[part] : self.bounds[part + 1]].tolist()
        return ids

    def changed_since(self, older: Version) -> NDArray[np.bool_] | None:
        """Which partitions have changed since an older version; None if the borders have, so that none compares."""
        return None if self.cut_in > older.number else self.changed > older.number

    def write(self, store: Store) -> None:
        """Publish this version: from here on it is what a reader finds."""
        with SegmentWriter(store, version_name(self.number), pa.schema([])) as writer:
            for name in ("bounds", "ids", "rows", "nbytes", "widest", "changed"):
                writer.add_array(name, getattr(self, name))
            writer.add_array("first_words", self.map.first_words)
            writer.add_array("first_hashes", self.map.first_hashes)
            writer.seal(
                {
                    **self.design.to_meta(),
                    "cut_in": self.cut_in,
                    "next_id": self.next_id,
                    "next_surrogate": self.next_surrogate,
                    "left_out": self.left_out,
                    "retired": [list(each) for each in self.retired],
                }
            ).close()

    @classmethod
    def read(cls, store: Store, number: int) -> Version:
        """A version that was published."""
        segment = Segment.open(store, version_name(number))
        try:
            found = cls._of(number, segment)
        except (AttributeError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            raise SegmentError(
                f"{version_name(number)!r} is no version of a relation ({type(error).__name__}: {error}); put back a "
                f"sound copy, or build the relation again"
            ) from error
        segment.close()
        return found

    @classmethod
    def _of(cls, number: int, segment: Segment) -> Version:
        meta = segment.meta
        arrays = {name: np.array(segment.array(name), np.int64) for name in segment.arrays}
        if (np.diff(arrays["first_words"][1:].astype(object)) < 0).any():
            raise ValueError("its partitions are not in order")
        version = cls(
            number,
            Design.from_meta(meta),
            PartitionMap(arrays.pop("first_words"), arrays.pop("first_hashes")),
            **arrays,
            cut_in=int(meta["cut_in"]),
            next_id=int(meta["next_id"]),
            next_surrogate=int(meta["next_surrogate"]),
            left_out=int(meta["left_out"]),
            retired=tuple((int(number), int(last)) for number, last in meta["retired"]),
        )
        bounds, segments = version.bounds, {len(getattr(version, each)) for each in ("ids", "rows", "nbytes", "widest")}
        if segments != {int(bounds[-1])} or bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise ValueError("its partitions are not those of its segments")
        if len({len(bounds) - 1, len(version.map), len(version.changed)}) > 1 or (version.ids < 0).any():
            raise ValueError("it tells of different numbers of partitions")
        return version


def published(store: Store) -> list[int]:
    """The numbers of the versions in a store, in order."""
    return sorted(int(found[1]) for name in store.names() if (found := _VERSION.fullmatch(name)))


def segments_in(store: Store) -> list[int]:
    """The numbers of the segments in a store."""
    return [int(found[1]) for name in store.names() if (found := _SEGMENT.fullmatch(name))]


class Pinned:
    """A version that stays readable for as long as this is held."""

    def __init__(self, version: Version, pin: Pin) -> None:
        self.version = version
        self._pin = pin

    def release(self) -> None:
        """The version is not needed any more."""
        self._pin.release()


class RelationReader:
    """Finds, pins and reads the versions of a relation in a store."""

    def __init__(self, store: Store, pins: Pins, where: str) -> None:
        self.store = store
        self.pins = pins
        self.where = where
        self._latest: Version | None = None
        self._open: OrderedDict[int, RelationSegment] = OrderedDict()

    def latest(self, pinned: bool = False) -> Version:
        """The newest version; asks the store whether there is one beyond the last that was seen.

        Versions are numbered without a gap and removed from the oldest on, so that it is the newest if it is there and
        the next is not. A reader that has pinned it, or an older one, knows that it is there.
        """
        while True:
            if self._latest is None:
                found = published(self.store)
                if not found:
                    raise RelationError(f"there is no relation in {self.where}; make one with Relation.build")
                self._latest = Version.read(self.store, found[-1])
            if self._is_there(self._latest.number + 1):
                self._latest = Version.read(self.store, self._latest.number + 1)
            elif pinned or self._is_there(self._latest.number):
                return self._latest
            else:
                self._latest = None

    def _is_there(self, number: int) -> bool:
        try:
            self.store.open(version_name(number))
        except SegmentError:
            return False
        return True

    def note(self, version: Version) -> None:
        """A change in this process has published a version."""
        self._latest = version

    def pin(self, number: int | None = None) -> Pinned:
        """Hold the newest version, or this one if it is still there."""
        while number is None:
            version = self.latest()
            pinned = Pinned(version, self.pins.pin(version.number))
            if self.latest().number <= version.number + 1:
                return pinned
            pinned.release()  # two changes came between: the version may be gone
        pin = self.pins.pin(number)
        try:
            version = Version.read(self.store, number)
        except SegmentError:
            pin.release()
            raise RelationError(
                f"version {number} of the relation in {self.where} is gone; the newest is {self.latest().number}"
            ) from None
        return Pinned(version, pin)

    def segment(self, number: int) -> RelationSegment:
        """A segment by its number. Mappings are kept for a while, as checking and parsing cost more than a look-up."""
        found = self._open.pop(number, None)
        if found is None:
            found = RelationSegment(Segment.open(self.store, segment_name(number)))
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open[number] = found
        return found

    def forget(self, numbers: Iterable[int]) -> None:
        """These segments are not needed any more: let go of their mappings, and so of their room on disk."""
        for number in numbers:
            found = self._open.pop(number, None)
            if found is not None:
                found.close()

    def scan(self, version: Version) -> Iterator[pa.RecordBatch]:
        """All rows of a version, segment by segment, in their own types."""
        schema = version.design.schema
        for number in version.ids.tolist():
            segment = self.segment(number)
            columns = [from_stored(column, field.type) for column, field in zip(segment.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            segment.release()


class RelationSegment:
    """A segment of a relation, mapped: rows in their stored form, found by the hashes of their places."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        batch = segment.read_page(0)
        self.columns: list[pa.Array] = batch.columns
        self.rows = batch.num_rows
        self.nbytes = segment.nbytes
        self._entries = segment.array("entries")
        self._heads = segment.array("heads")
        self._small: dict[int, bool] = {}
        self._ready: list[ArrowColumn | None] = [None] * len(self.columns)

    @property
    def buckets(self) -> int:
        """Of the index."""
        return len(self._heads)

    def has_small_integers(self, column: int) -> bool:
        """Whether a column has integers, all such that doubles tell them apart."""
        found = self._small.get(column)
        if found is None:
            found = pa.types.is_integer(self.columns[column].type)
            if found:
                ends = pc.min_max(self.columns[column])
                found = ends["min"].as_py() > -EXACT_DOUBLES and ends["max"].as_py() < EXACT_DOUBLES
            self._small[column] = found
        return found

    @property
    def hashes(self) -> Int64:
        """The hash of each row's place."""
        return np.ascontiguousarray(self._entries[::2])

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up up to hash `limit` or until the buffers are full; returns pairs found, entries
        visited.
        """
        found, probe.next, probe.link, visited = hash_index.probe(
            probe.hashes, probe.parts, probe.next, limit, probe.link,
            self._entries, self._heads, len(self._heads), out_probe, out_row, 0,
        )  # fmt: skip
        return found, visited

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One stored column's values for some rows."""
        ready = self._ready[column]
        if ready is None:
            ready = self._ready[column] = ArrowColumn(self.columns[column])
        return ready.gather(rows)

    def release(self) -> None:
        """Let the mapped pages leave this process's memory until they are read again."""
        self._segment.release()

    def close(self) -> None:
        """Drop the mapping."""
        self._segment.release()
        self._segment.close()


def write_segment(store: Store, number: int, schema: pa.Schema, columns: list[pa.Array], hashes: Int64) -> int:
    """Write rows, in the order of their places, with their index; returns the bytes."""
    rows = len(hashes)
    buckets = 1 << max(4, (rows - 1).bit_length())
    entries, heads = np.zeros(2 * rows, np.int64), np.zeros(buckets, np.int32)
    numbers = np.arange(rows, dtype=np.int32)
    hash_index.link_rows(hashes, np.zeros(rows, np.int32), numbers, entries, heads, buckets)
    with SegmentWriter(store, segment_name(number), schema) as writer:
        writer.write_page(pa.RecordBatch.from_arrays(columns, schema=schema))
        writer.add_array("entries", entries)
        writer.add_array("heads", heads)
        segment = writer.seal()
    nbytes = segment.nbytes
    segment.close()
    return nbytes
