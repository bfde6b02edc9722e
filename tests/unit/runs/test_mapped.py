"""Rows of mapped segments: gathered across pages, whatever their type, and let go of when they are many. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.runs.hash_runs import Run, RunWriter
from watersmeet.runs.mapped import OpenSegment, OpenSegments
from watersmeet.spark.task.run_merging import merge
from watersmeet.spark.task.sizes import LEAST, Sizes
from watersmeet.spill.file_store import FileStore

ROWS = 3_000
SIZES = Sizes.divide(LEAST)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with FileStore(tmp_path) as store:
        yield store


def columns(rng: np.random.Generator, rows: int = ROWS) -> list[pa.Array]:
    numbers = rng.integers(0, 1 << 40, rows)
    return [
        pa.array(numbers),
        pa.array(numbers % 1_000).cast(pa.int16()),
        pa.array(numbers).cast(pa.decimal128(30, 3)),
        pa.array(numbers, mask=(np.arange(rows) > 400) & (numbers % 3 == 0)),
        pa.array([f"text {number % 977}" for number in numbers]),
        pa.array(numbers % 2 == 0),
    ]


def write(store: FileStore, hashes: np.ndarray, arrays: list[pa.Array], name: str = "left") -> Run:
    counter = iter(range(1_000))
    types = [array.type for array in arrays]
    names = lambda: f"{name}-{next(counter)}"  # noqa: E731
    with RunWriter(store, names, types, SIZES.page_bytes, SIZES.segment_rows) as writer:
        for start in range(0, len(hashes), 100):
            writer.add(hashes[start : start + 100], [array.slice(start, 100) for array in arrays])
        return writer.finish()


def opened(store: FileStore, arrays: list[pa.Array]) -> OpenSegment:
    run = write(store, np.arange(len(arrays[0])), arrays)
    [ref] = Run(run.segments[:1]).segments
    segment = OpenSegments().get(store, ref)
    assert len(segment.ends) > 5
    return segment


@pytest.mark.parametrize("order", ["sorted", "shuffled", "one page", "none"])
def test_values_of_any_type_come_from_all_pages_in_the_order_asked_for(store: FileStore, order: str) -> None:
    rng = np.random.default_rng(1)
    arrays = columns(rng)
    segment = opened(store, arrays)
    rows = rng.integers(0, int(segment.ends[-1]), 400).astype(np.int32)
    if order == "sorted":
        rows.sort()
    elif order == "one page":
        rows %= int(segment.ends[0])
    elif order == "none":
        rows = rows[:0]
    for column, array in enumerate(arrays):
        found = segment.gather(column, rows)
        found.validate(full=True)
        assert found.equals(array.take(pa.array(rows)))


def test_plain_values_are_gathered_in_one_pass_and_others_page_by_page(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = opened(store, columns(np.random.default_rng(2)))
    asked: list[int] = []
    by_page = segment._gather_by_page
    monkeypatch.setattr(segment, "_gather_by_page", lambda column, rows: asked.append(column) or by_page(column, rows))
    end = int(segment.ends[-1])
    first, everywhere = np.arange(0, 20, dtype=np.int32), np.arange(0, end, 7, dtype=np.int32)
    for rows in (first, everywhere):
        for column in range(6):
            segment.gather(column, rows)
    assert end > 500
    assert asked == [4, 5, 3, 4, 5]  # NULLs are on the later pages only


def test_mappings_are_kept_while_they_are_small(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(store, np.arange(ROWS), columns(np.random.default_rng(3)))
    segments = OpenSegments()
    released: list[str] = []
    monkeypatch.setattr(OpenSegment, "release", lambda segment: released.append(segment.ref.name))
    for ref in run.segments:
        segments.get(store, ref)
    size = sum(ref.nbytes for ref in run.segments)
    segments.release(keep=size)
    assert not released
    segments.release(keep=size - 1)
    assert released == [ref.name for ref in run.segments]
    segments.get(store, run.segments[0])
    segments.release(keep=size - 1)
    assert len(released) == len(run.segments)


def test_merged_runs_have_the_rows_of_all_in_order(store: FileStore) -> None:
    rng = np.random.default_rng(4)
    hashes = [np.sort(each) for each in np.split(rng.permutation(3 * ROWS) - ROWS, 3)]
    arrays = [columns(rng) for _ in range(3)]
    runs = [write(store, *each, name=f"left-{i}") for i, each in enumerate(zip(hashes, arrays, strict=True))]
    counter = iter(range(1_000))
    types = [array.type for array in arrays[0]]
    merged, left = merge(runs, types, store, OpenSegments(), lambda: f"right-{next(counter)}", SIZES)
    assert not left
    assert merged.rows == 3 * ROWS
    segments = [OpenSegments().get(store, ref) for ref in merged.segments]
    found = np.concatenate([segment.hashes(0, segment.ref.rows) for segment in segments])
    order = np.argsort(np.concatenate(hashes), kind="stable")
    assert np.array_equal(found, np.concatenate(hashes)[order])
    for column in range(6):
        expected = pa.concat_arrays([each[column] for each in arrays]).take(pa.array(order))
        gathered = [segment.gather(column, np.arange(segment.ref.rows, dtype=np.int32)) for segment in segments]
        assert pa.concat_arrays(gathered).equals(expected)


def test_a_merge_that_stops_leaves_what_it_has_not_taken(store: FileStore) -> None:
    rng = np.random.default_rng(5)
    hashes = [np.sort(rng.integers(-60, 60, ROWS)), np.sort(rng.integers(-400, 400, ROWS // 3))]
    arrays = [columns(rng, len(each)) for each in hashes]
    left = [write(store, *each, name=f"left-{i}") for i, each in enumerate(zip(hashes, arrays, strict=True))]
    counter, types = iter(range(1_000)), [array.type for array in arrays[0]]
    done: list[Run] = []
    while left:
        before = sum(run.rows for run in left)
        part, left = merge(left, types, store, OpenSegments(), lambda: f"right-{next(counter)}", SIZES, limit=500)
        assert part.rows + sum(run.rows for run in left) == before
        assert part.rows >= 500 or not left
        assert all(run.segments[0].first > part.segments[-1].last for run in left)
        done.append(part)
    assert len(done) > 3
    segments = [OpenSegments().get(store, ref) for run in done for ref in run.segments]
    found = np.concatenate([segment.hashes(0, segment.ref.rows) for segment in segments])
    assert np.array_equal(found, np.sort(np.concatenate(hashes)))
    numbers = [segment.gather(0, np.arange(segment.ref.rows, dtype=np.int32)) for segment in segments]
    everything = [number for each in arrays for number in each[0].to_pylist()]
    assert sorted(pa.concat_arrays(numbers).to_pylist()) == sorted(everything)
