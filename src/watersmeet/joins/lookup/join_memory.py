"""The partitions of a relation that are in memory: which they are, and how often each is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int32
from watersmeet.core.cost import Meter
from watersmeet.memory import Budget
from watersmeet.policies.join_memory import ArrivalFrequency, victims
from watersmeet.relation.relation import RelationSegment, Version
from watersmeet.tables.hash_table import Layout, Probe, SideTable, row_bytes

_LEAST_BLOCKS = 8
_LEAST_BLOCK_ROWS = 8
_LEAST_CHUNK = 256
_MOST_SLOTS = 4096
_ROWS_PER_EPOCH = 256
"""Of each partition, on average, if no epoch is given."""


class JoinMemory:
    """Partitions that were read and are worth keeping, as tables that are probed.

    A partition that was read stays in the place of such that are asked for less, for their size and by more than a
    fraction `rho`; how often it is asked for decays by `alpha` with every epoch of so many rows.
    """

    def __init__(
        self, room: int, columns: Sequence[int], version: Version, *, rho: float, alpha: float, epoch: int | None
    ) -> None:
        """`columns` are those of the relation that rows in memory have."""
        self.version = version
        self.columns = tuple(columns)
        partitions = version.partitions
        stored = version.design.stored
        types = [stored.field(i).type for i in columns]
        self.frequency = ArrivalFrequency(partitions, alpha, epoch or _ROWS_PER_EPOCH * partitions)
        self.slot_of = np.full(partitions, -1, np.int32)
        """By partition: where in the table it is; -1 if it is not."""
        self._parts: NDArray[np.intp] | None = None
        """Those that are there, as long as nothing changes."""
        self.widest = 0
        """Bytes of the widest row that was ever here."""
        self.small_keys = True
        """Whether all rows that were ever here have keys that doubles tell apart: see `RelationSegment`."""
        self._rho = rho
        self._usable = room
        """Bytes in terms of what partitions have on disk; learned, as rows in memory differ."""
        size = max(1, int(version.part_bytes.mean())) if partitions else 1
        slots = max(1, min(partitions, _MOST_SLOTS, 2 * room // size))
        self._free_slots = list(range(slots - 1, -1, -1))
        self.table: SideTable | None = None
        if room > least_table(types, slots):
            rows = max(1, int(version.part_rows.mean()))
            self.table = partitioned_table(types, room, slots, "join memory", rows // 8)

    @property
    def parts(self) -> NDArray[np.intp]:
        """The partitions in memory."""
        if self._parts is None:
            self._parts = np.flatnonzero(self.slot_of >= 0)
        return self._parts

    def note(self, parts: Int32) -> None:
        """Rows have arrived for these partitions."""
        self.frequency.note(np.bincount(parts, minlength=len(self.slot_of)))

    def offer(self, part: int, segments: Sequence[RelationSegment], meter: Meter) -> None:
        """Keep a partition that was read, in the place of such that are asked for less; or do not."""
        sizes, counts = self.version.part_bytes, self.frequency.counts
        if self.table is None:
            return
        free = self._usable - int(sizes[self.parts].sum())
        evicted = victims(counts, sizes, self.parts, part, self._rho, free)
        if evicted is None:
            return
        for each in evicted:
            self._evict(each)
        while not self._bring_in(self.table, part, segments, meter):
            # In memory, rows take a little more or less than on disk.
            more = victims(counts, sizes, self.parts, part, self._rho, int(sizes[part]) - 1)
            if not more:
                self._usable = min(self._usable, max(0, int(sizes[self.parts].sum()) + int(sizes[part]) - 1))
                return
            self._evict(more[0])

    def _bring_in(self, table: SideTable, part: int, segments: Sequence[RelationSegment], meter: Meter) -> bool:
        if not self._free_slots:
            return False
        slot = self._free_slots[-1]
        # In memory the newest rows are met first: the last segment goes in first, so that rows come as from the disk.
        if not all(self._copy(table, slot, segment, meter) for segment in reversed(segments)):
            table.drop(slot)
            table.trim(int(self.version.part_bytes[part]))
            return False
        self._free_slots.pop()
        self.slot_of[part] = slot
        self._parts = None
        start, stop = self.version.bounds[part], self.version.bounds[part + 1]
        self.widest = max(self.widest, int(self.version.widest[start:stop].max(initial=0)))
        keys = self.version.design.key_indices
        self.small_keys &= all(segment.has_small_integers(key) for segment in segments for key in keys)
        return True

    def _copy(self, table: SideTable, slot: int, segment: RelationSegment, meter: Meter) -> bool:
        columns, hashes = [segment.columns[i] for i in self.columns], segment.hashes
        parts = np.full(len(hashes), slot, np.int32)
        if not table.reserve(parts, columns):
            return False
        table.append(hashes, parts, columns, np.zeros(len(hashes), np.int64))
        meter.inserts += len(hashes)
        return True

    def _evict(self, part: int) -> None:
        assert self.table is not None
        self.table.drop(int(self.slot_of[part]))
        self._free_slots.append(int(self.slot_of[part]))
        self.slot_of[part] = -1
        self._parts = None

    def forget(self, changed: NDArray[np.bool_], version: Version) -> None:
        """Go on with another version, in which these partitions are other ones and all borders are the same."""
        for part in np.flatnonzero(changed & (self.slot_of >= 0)).tolist():
            self._evict(part)
        self.version = version

    def check(self) -> None:
        """Assert the invariants."""
        assert self._parts is None or np.array_equal(self._parts, np.flatnonzero(self.slot_of >= 0))
        slots = self.slot_of[self.slot_of >= 0]
        assert len(set(slots.tolist()) | set(self._free_slots)) == len(slots) + len(self._free_slots)
        if self.table is not None:
            self.table.check()
            sizes = self.table.part_rows[slots]
            assert (sizes == self.version.part_rows[self.parts]).all()
            assert self.table.rows == sizes.sum()


class SomeColumns:
    """A table's rows, of whose columns some are asked for: numbered as a plan has them."""

    def __init__(self, table: SideTable, columns: Sequence[int]) -> None:
        self._table = table
        self._columns = columns

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up."""
        return self._table.probe(probe, limit, out_probe, out_row)

    def gather(self, column: int, rows: Int32) -> pa.Array:
        """One column's values for some rows."""
        return self._table.gather(self._columns[column], rows)


def least_table(types: Sequence[pa.DataType], partitions: int) -> int:
    """Bytes without which a table of so many partitions is of no use."""
    index = 64 << (partitions - 1).bit_length()
    return index + _LEAST_BLOCKS * (_LEAST_BLOCK_ROWS * row_bytes(types) + _LEAST_CHUNK)


def partitioned_table(
    types: Sequence[pa.DataType], size: int, partitions: int, name: str, wanted: int = 64
) -> SideTable:
    """A table with a budget of its own, whose blocks are small enough for that, and have `wanted` rows at most."""
    bits = max(0, (partitions - 1).bit_length())
    share = size // max(_LEAST_BLOCKS, min(4 << bits, 4096))
    rows = _power(max(_LEAST_BLOCK_ROWS, min(share // 2 // row_bytes(types), wanted, 4096)))
    chunk = _power(max(_LEAST_CHUNK, min(share // 2, 16 * 1024)))
    return SideTable(types, Budget(size), Layout(bits, rows, chunk), name, by_hash=False)


def _power(value: int) -> int:
    return 1 << (value.bit_length() - 1)
