"""Laying a table out as a relation, within a budget.

```
rows ──▶ fill memory ──▶ sort by place ──▶ run   (spilled, unless there is only one)
                                            │
runs ──▶ the next stretch of places of all runs ──▶ sort ──▶ cut ──▶ segments
```

Runs are sorted, so a stretch of places is a slice of each. How far a stretch may reach is read off the first places of
the runs' pages. What is left when segments of the right size have been cut off is carried over to the next stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import BudgetError, RelationError, SpillError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.memory import format_bytes
from watersmeet.records.keys import KeyCodec
from watersmeet.records.types import from_stored
from watersmeet.relation.partitions import PartitionMap
from watersmeet.relation.relation import Design, Version, segment_name, write_segment
from watersmeet.relation.sort import DiskRun, RelationRun, Rows, Sorter
from watersmeet.spill.store import Store

SegmentEntry: TypeAlias = tuple[int, int, int, int]
"""A segment's number, rows, bytes, and the bytes of its widest row."""

_USUAL = 1.4
"""The size aimed at, in theta: between 1 and 2, with room on both sides."""
_CHAPTERS_FROM = 4
"""A partition of more than so many theta is written as several segments."""


def stretches(runs: list[RelationRun], cuts: list[tuple[int, int]]) -> Iterator[Rows]:
    """All rows up to each cut (a place) in turn, and those beyond the last, each stretch sorted."""
    at = [0] * len(runs)
    for cut in [*cuts, None]:
        parts = []
        for i, run in enumerate(runs):
            end = len(run.words) if cut is None else _position(run, *cut)
            if end > at[i]:
                parts.append(run.slice(at[i], end))
                at[i] = end
        if parts:
            yield parts[0] if len(runs) == 1 else Rows.concat(parts).sorted()
        for i, run in enumerate(runs):
            if isinstance(run, DiskRun):
                run.release(at[i])


def _position(run: RelationRun, word: int, hash_: int) -> int:
    """How many of a run's rows lie before a place."""
    low = int(np.searchsorted(run.words, word, side="left"))
    high = int(np.searchsorted(run.words, word, side="right"))
    return low + int(np.searchsorted(run.hashes[low:high], hash_, side="left"))


def range_cuts(runs: list[RelationRun], target: int) -> list[tuple[int, int]]:
    """Places about `target` bytes apart."""
    words, hashes, sizes = [], [], []
    for run in runs:
        firsts, nbytes = run.marks()
        words.append(run.words[firsts])
        hashes.append(run.hashes[firsts])
        sizes.append(nbytes)
    if not words:
        return []
    word, hash_, size = np.concatenate(words), np.concatenate(hashes), np.concatenate(sizes)
    order = np.lexsort((hash_, word))
    crossed = np.cumsum(size[order]) // target
    chosen = order[1:][crossed[1:] > crossed[:-1]]
    return list(zip(word[chosen].tolist(), hash_[chosen].tolist(), strict=True))


def hash_cuts(partitions: int) -> list[tuple[int, int]]:
    """The borders of equal parts of all hashes."""
    least = -(2**63)
    return [(least + (i << 64) // partitions, least) for i in range(1, partitions)]


def cut_evenly(rows: Rows, theta: int) -> list[Rows]:
    """Sorted rows in pieces of theta to 2 theta bytes, where places allow it; one place is never cut."""
    widths = np.cumsum(rows.widths())
    total = int(widths[-1]) if len(widths) else 0
    count = max(1, min(max(round(total / (_USUAL * theta)), -(-total // (2 * theta))), max(1, total // theta)))
    places = rows.places
    borders = 1 + np.flatnonzero((np.diff(places.words) != 0) | (np.diff(places.hashes) != 0))
    ends = widths[borders - 1]
    wanted = [total * i // count for i in range(1, count)]
    after = np.searchsorted(ends, wanted)
    nearest = [
        int(borders[i - 1]) if i == len(borders) or (i and want - ends[i - 1] < ends[i] - want) else int(borders[i])
        for i, want in zip(after.tolist(), wanted, strict=True)
        if len(borders)
    ]
    edges = [0, *sorted(set(nearest)), len(rows)]
    return [rows.slice(start, stop) for start, stop in pairwise(edges) if stop > start]


def cut_ahead(rows: Rows, theta: int) -> list[Rows]:
    """Like `cut_evenly`, but the last piece is what is carried over: more rows will follow."""
    total = int(rows.widths().sum())
    count = int(total / (_USUAL * theta)) - 1
    if count < 1:
        return [rows]
    pieces = cut_evenly(rows, theta)
    return [*pieces[:-2], Rows.concat(pieces[-2:])] if len(pieces) > 1 else pieces


class SegmentSink:
    """Writes partitions as segments, and keeps the catalogue of what was written."""

    def __init__(self, design: Design, store: Store, next_id: int, next_surrogate: int) -> None:
        self.design = design
        self.next_id = next_id
        self.next_surrogate = next_surrogate
        self.written: list[int] = []
        self._store = store
        self._keys = OwnKeys(design)

    def write(self, rows: Rows) -> list[SegmentEntry]:
        """Write one partition's rows, which are sorted."""
        if self.design.unique:
            self._keys.refuse_duplicates(rows)
        if not len(rows):
            return []
        size = int(rows.widths().sum())
        count = 1 if size <= _CHAPTERS_FROM * self.design.theta else -(-size // (2 * self.design.theta))
        edges = np.linspace(0, len(rows), count + 1).astype(int)
        written = []
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if stop > start:
                part = rows.slice(start, stop)
                nbytes = write_segment(
                    self._store, self.next_id, self.design.stored, part.columns, _owned(part.places.hashes)
                )
                written.append((self.next_id, stop - start, nbytes, int(part.widths().max())))
                self.written.append(self.next_id)
                self.next_id += 1
        return written

    def numbered(self, rows: Rows) -> Rows:
        """New rows with their surrogate keys, if the relation gives such."""
        if self.design.surrogate is None:
            return rows
        first, self.next_surrogate = self.next_surrogate, self.next_surrogate + len(rows)
        return Rows([*rows.columns, pa.array(np.arange(first, first + len(rows)))], rows.places)


class OwnKeys:
    """Exact comparison of a relation's own keys."""

    def __init__(self, design: Design) -> None:
        schema = pa.schema([design.schema.field(i) for i in design.key_indices])
        self._design = design
        self._types = schema.types
        self.codec = KeyCodec(JoinSpec(schema, schema, parse_on(list(design.on))))

    def keys(self, columns: list[pa.Array], rows: NDArray[Any]) -> list[pa.Array]:
        """The keys of some rows, in their own types."""
        numbers = pa.array(rows)
        return [
            from_stored(columns[i].take(numbers), type_)
            for i, type_ in zip(self._design.key_indices, self._types, strict=True)
        ]

    def equal(self, left: list[pa.Array], a: NDArray[Any], right: list[pa.Array], b: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows a of some columns have the keys of rows b of others."""
        found = self.codec.equal(self.keys(left, a), self.keys(right, b))
        return np.ones(len(a), np.bool_) if found is None else found

    def refuse_duplicates(self, rows: Rows) -> None:
        """An error if two of these sorted rows have one key."""
        step = 1
        while step < len(rows):
            # Rows of one place lie together: compare each with the next, with the one after that, and so on.
            same = np.flatnonzero(
                (rows.places.words[step:] == rows.places.words[:-step])
                & (rows.places.hashes[step:] == rows.places.hashes[:-step])
            )
            if not len(same):
                return
            equal = self.equal(rows.columns, same, rows.columns, same + step)
            if equal.any():
                row = same[equal][:1]
                key = ", ".join(
                    f"{name}={array[0].as_py()!r}"
                    for name, array in zip(self._design.on, self.keys(rows.columns, row), strict=True)
                )
                raise RelationError(f"the key {key} is there more than once, and the relation was to have unique keys")
            step += 1


def build_version(
    design: Design,
    batches: Iterable[pa.RecordBatch],
    store: Store,
    spill: Store,
    memory: int,
    *,
    number: int,
    next_id: int = 0,
    retired: tuple[tuple[int, int], ...] = (),
    partitions: int | None = None,
) -> tuple[Version, SegmentSink]:
    """Write the segments of a whole relation; the version is returned, not published."""
    least = 8 * design.theta
    if memory < least:
        raise BudgetError(
            f"{format_bytes(memory)} of memory are too little to lay out segments of {format_bytes(design.theta)}; "
            f"allow at least {format_bytes(least)}"
        )
    sorter = Sorter(design, memory // 2, spill)
    for batch in batches:
        sorter.add(batch)
    runs = sorter.runs()
    sink = SegmentSink(sorter.design, store, next_id, 1)
    firsts: list[tuple[int, int]] = []
    written: list[list[SegmentEntry]] = []
    pieces = _hash_pieces if design.partition == "hash" else _range_pieces
    try:
        for first, rows in pieces(sorter.design, runs, partitions):
            firsts.append(first)
            written.append(sink.write(sink.numbered(rows)) if rows is not None else [])
    except BaseException:
        discard(store, sink.written)
        raise
    return (
        catalogue(sorter.design, number, firsts, written, np.full(len(firsts), number), sink, sorter.left_out, retired),
        sink,
    )


def _range_pieces(
    design: Design, runs: list[RelationRun], partitions: int | None
) -> Iterator[tuple[tuple[int, int], Rows | None]]:
    theta = design.theta
    carried: Rows | None = None
    none_yet = True
    for stretch in stretches(runs, range_cuts(runs, int(_USUAL * theta))):
        rows = stretch if carried is None else Rows.concat([carried, stretch])
        *whole, carried = cut_ahead(rows, theta)
        for piece in whole:
            yield _first(piece), piece
            none_yet = False
    if carried is not None:
        for piece in cut_evenly(carried, theta):
            yield _first(piece), piece
            none_yet = False
    if none_yet:
        yield (0, 0), None


def _hash_pieces(
    design: Design, runs: list[RelationRun], partitions: int | None
) -> Iterator[tuple[tuple[int, int], Rows | None]]:
    total = sum(int(run.marks()[1].sum()) for run in runs)
    count = partitions or max(1, -(-total // int(_USUAL * design.theta)))
    cuts = hash_cuts(count)
    starts = [(-(2**63), -(2**63)), *cuts]
    yield from _between(runs, starts)


def _between(runs: list[RelationRun], starts: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Rows | None]]:
    """The rows of each partition, None where there are none."""
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        parts = []
        for run in runs:
            low, high = _position(run, *start), len(run.words) if end is None else _position(run, *end)
            if high > low:
                parts.append(run.slice(low, high))
            if isinstance(run, DiskRun):
                run.release(high)
        yield start, (parts[0] if len(parts) == 1 else Rows.concat(parts).sorted()) if parts else None


def _first(rows: Rows) -> tuple[int, int]:
    return int(rows.places.words[0]), int(rows.places.hashes[0])


def catalogue(
    design: Design,
    number: int,
    firsts: list[tuple[int, int]],
    written: list[list[SegmentEntry]],
    changed: NDArray[Any],
    sink: SegmentSink,
    left_out: int,
    retired: tuple[tuple[int, int], ...],
    cut_in: int | None = None,
) -> Version:
    """The version that has these partitions."""
    flat = np.array([each for segments in written for each in segments], np.int64).reshape(-1, 4)
    return Version(
        number,
        design,
        PartitionMap(np.array([word for word, _ in firsts], np.int64), np.array([h for _, h in firsts], np.int64)),
        np.concatenate([[0], np.cumsum([len(segments) for segments in written])]).astype(np.int64),
        np.ascontiguousarray(flat[:, 0]),
        np.ascontiguousarray(flat[:, 1]),
        np.ascontiguousarray(flat[:, 2]),
        np.ascontiguousarray(flat[:, 3]),
        np.asarray(changed, np.int64),
        number if cut_in is None else cut_in,
        sink.next_id,
        sink.next_surrogate,
        left_out,
        retired,
    )


def discard(store: Store, numbers: list[int]) -> None:
    """Remove segments that no version names; what cannot be removed now is swept by the next change."""
    for number in numbers:
        with suppress(SpillError):
            store.remove(segment_name(number))


def _owned(hashes: Int64) -> Int64:
    """Contiguous and writable, as the kernels are compiled for."""
    return np.array(hashes, np.int64)
