"""Sorted runs: what is written is read back, damage is noticed and named, merges keep every row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.errors import SegmentError
from watersmeet.memory import Budget
from watersmeet.runs.sorted_run import MergedRows, RunWriter, SortedRun, block_rows_for
from watersmeet.runs.spine import Merge, to_merge
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtable import Memtable

TYPES = (pa.int64(), pa.string(), pa.list_(pa.int8()), pa.bool_())


def written(store: MemoryStore, name: str, rows: int, seed: int, block_rows: int = 8) -> tuple[SortedRun, pa.Table]:
    """A run, and the same rows in their order as a table."""
    rng = np.random.default_rng(seed)
    columns = [
        pa.array(rng.integers(0, 1 << 40, rows)),
        pa.array([None if x == 3 else "ab" * int(x) for x in rng.integers(0, 20, rows)]),
        pa.array([[int(x)] for x in rng.integers(0, 100, rows)], pa.list_(pa.int8())),
        pa.array(rng.random(rows) < 0.5),
    ]
    hashes = rng.integers(0, 1 << 62, rows)
    table = Memtable(TYPES, Budget(1 << 24), Layout(0, 16, 256), "left")
    assert table.reserve(np.zeros(rows, np.int32), columns)
    table.append(hashes, np.zeros(rows, np.int32), columns, np.arange(rows))
    order = np.argsort(hashes, kind="stable")
    writer = RunWriter(store, name, TYPES, rows, block_rows, 4096)
    writer.write_hashes(hashes[order].view(np.uint64))
    writer.write_rows(table, order.astype(np.int64))
    in_order = [column.take(pa.array(order)) for column in columns]
    return writer.seal(), pa.table([pa.array(hashes[order]), *in_order], names=["hash", "a", "b", "c", "d"])


def read(run: SortedRun) -> pa.Table:
    rows = np.arange(run.rows, dtype=np.int32)
    run.check_hashes(0, run.rows)
    arrays = run.gather_all((0, 1, 2, 3), rows)
    return pa.table([pa.array(run.hashes().view(np.int64)), *arrays], names=["hash", "a", "b", "c", "d"])


@pytest.mark.parametrize("rows", [1, 8, 9, 500])
def test_rows_are_read_back(rows: int) -> None:
    store = MemoryStore()
    run, expected = written(store, "run", rows, 1)
    assert read(run).equals(expected)
    assert read(SortedRun(store, "run", TYPES)).equals(expected)


def flipped(place: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        altered = bytearray(content)
        altered[place(len(content))] ^= 64
        return bytes(altered)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        flipped(lambda size: 3),
        flipped(lambda size: 64 + 13),
        flipped(lambda size: size // 2),
        flipped(lambda size: size - 40),
        flipped(lambda size: size - 1),
    ],
    ids=["empty", "torn", "short", "long", "header", "hash", "row", "directory", "end"],
)
def test_damage_is_noticed_and_named(damage: Callable[[bytes], bytes]) -> None:
    store = MemoryStore()
    written(store, "run", 500, 1)
    content = damage(store.open("run").to_pybytes())
    other = MemoryStore()
    writer = other.create("run")
    writer.write(content)
    writer.commit()
    with pytest.raises(SegmentError, match="spill segment 'run' cannot be used"):
        read(SortedRun(other, "run", TYPES))


def test_any_byte_of_a_block_counts() -> None:
    store = MemoryStore()
    written(store, "run", 60, 1)
    content = store.open("run").to_pybytes()
    begin = 64 + 512  # behind the hashes
    for place in range(begin, begin + 512, 7):
        other = MemoryStore()
        writer = other.create("run")
        writer.write(flipped(lambda size, at=place: at)(content))  # type: ignore[misc]
        writer.commit()
        with pytest.raises(SegmentError):
            read(SortedRun(other, "run", TYPES))


def test_a_writer_that_is_given_up_leaves_nothing() -> None:
    store = MemoryStore()
    writer = RunWriter(store, "run", TYPES, 10, 8, 4096)
    writer.write_hashes(np.arange(10, dtype=np.uint64))
    writer.abort()
    assert store.names() == [] and store.bytes_held == 0


def test_merged_runs_have_all_rows_in_order() -> None:
    store = MemoryStore()
    runs, tables = zip(*(written(store, f"run-{i}", 40 + 17 * i, i, 4 << i) for i in range(4)), strict=True)
    merge = Merge(store, "merged", runs, 2048)
    while merge.work():
        pass
    assert merge.merged is not None
    expected = pa.concat_tables(tables).sort_by([("hash", "ascending"), ("a", "ascending")])
    assert read(merge.merged).sort_by([("hash", "ascending"), ("a", "ascending")]).equals(expected)
    assert (np.diff(merge.merged.hashes().astype(object)) >= 0).all()


def test_a_merge_that_is_given_up_leaves_nothing() -> None:
    store = MemoryStore()
    runs = [written(store, f"run-{i}", 100, i)[0] for i in range(2)]
    merge = Merge(store, "merged", runs, 256)
    assert merge.work() > 0
    merge.abort()
    assert store.names() == ["run-0", "run-1"]


def test_places_in_merged_rows_can_be_gone_to_again() -> None:
    store = MemoryStore()
    rows = MergedRows([written(store, f"run-{i}", 50, i)[0] for i in range(3)])
    hashes, numbers = np.empty(20, np.uint64), np.empty(20, np.int64)
    rows.next_sorted(hashes, numbers)
    places = rows.places()
    count = rows.next_sorted(hashes, numbers)
    first = numbers[:count].tolist()
    rows.go_to(places)
    assert rows.next_sorted(hashes, numbers) == count and numbers[:count].tolist() == first


@pytest.mark.parametrize("fan_in", [2, 3, 8])
def test_the_spine_keeps_runs_few(fan_in: int) -> None:
    """After any number of flushes, no level has as many runs as are merged, and levels fall."""
    levels: list[int] = []
    for flushes in range(1, 300):
        levels.append(0)
        while count := to_merge(levels, fan_in):
            levels[-count:] = [levels[-1] + 1]
        assert sorted(levels, reverse=True) == levels
        assert max(levels.count(level) for level in set(levels)) < fan_in
        assert fan_in ** max(levels) <= flushes


def test_blocks_are_small_and_grow_with_the_run() -> None:
    assert block_rows_for(1_000_000, 10_000, 64 << 10) == 64, "8 KiB of rows of 100 bytes"
    assert block_rows_for(1_000_000, 10, 4096) == 1, "wide rows"
    assert block_rows_for(10_000_000, 1_000_000, 512) == 32, "no more than is written at once"
    assert block_rows_for(1 << 26, 1 << 20, 1 << 20) == 1024, "a large run has no more than 1024 blocks"
    assert block_rows_for(1 << 34, 1 << 28, 1 << 16) == 1024, "unless that is more than is written at once"


def test_a_run_may_be_one_block_without_an_end() -> None:
    """As the times are that lie beside the runs of as-of joins."""
    store = MemoryStore()
    writer = RunWriter(store, "times", (), 10, 1 << 40, 0)
    writer.write_hashes(np.arange(10, dtype=np.uint64))
    writer.write_rows(written(MemoryStore(), "run", 10, 1, 8)[0], np.arange(10))
    run = writer.seal()
    run.check_hashes(0, 10)
    assert run.rows == 10 and run.hashes().tolist() == list(range(10))
