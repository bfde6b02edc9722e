"""Side tables: every row is found by its hash, in a fixed order, whatever came, went and grew in between."""

from __future__ import annotations

import gc
import resource
from collections import Counter
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.memory import Budget
from watersmeet.tables.hash_table import ENTRY_BYTES, Layout, Probe, SideTable, row_bytes

MIB = 1 << 20
NUMBER = (pa.int64(),)


def make(memory: int = 4 * MIB, bits: int = 2, block_rows: int = 16, types: Any = NUMBER) -> SideTable:
    return SideTable(types, Budget(memory), Layout(bits, block_rows, 1024), "left")


def hashes_of(keys: Any, bits: int = 2) -> Any:
    """A hash for each small key: the top bits say the partition, as with real ones."""
    keys = np.asarray(keys, np.int64)
    return (keys % (1 << bits)) << (64 - bits) | keys


class Twin:
    """A table and, beside it, what it should hold: rows by number, with hash, value and tick."""

    def __init__(self, table: SideTable) -> None:
        self.table = table
        self.rows: dict[int, tuple[int, int, int]] = {}
        self.tick = 0

    def put(self, hashes: Any) -> Any:
        parts = self.table.parts_of(hashes)
        ticks = np.arange(self.tick + 1, self.tick + 1 + len(hashes))
        values = pa.array(ticks * 10)
        assert self.table.reserve(parts, [values])
        rows = self.table.append(hashes, parts, [values], ticks)
        self.tick += len(hashes)
        whole = zip(hashes.tolist(), (ticks * 10).tolist(), ticks.tolist(), strict=True)
        new = dict(zip(rows.tolist(), whole, strict=True))
        assert len(new) == len(hashes) and not new.keys() & self.rows.keys(), "a row number is used once at a time"
        self.rows |= new
        return rows

    def drop(self, part: int) -> None:
        for row in self.table.rows_of(part).tolist():
            del self.rows[row]
        self.table.drop(part)

    def drop_oldest(self, part: int, count: int) -> None:
        rows = self.table.oldest(part, count)
        assert len(rows) >= min(count, self.table.part_rows[part])
        assert rows.tolist() == self.table.rows_of(part)[: len(rows)].tolist()
        for row in rows.tolist():
            del self.rows[row]
        self.table.drop_oldest(part, len(rows))

    def check(self, wanted: Any, capacity: int = 64) -> None:
        """Look up hashes and compare with a search through all rows, in order: newest first."""
        found = look_up(self.table, wanted, capacity)
        by_hash: dict[int, list[int]] = {}
        for row, (hash_, _, _) in sorted(self.rows.items(), key=lambda item: -item[1][2]):
            by_hash.setdefault(hash_, []).append(row)
        assert found == [(i, row) for i, hash_ in enumerate(wanted.tolist()) for row in by_hash.get(hash_, [])]
        rows = np.array([row for _, row in found], np.int32)
        assert self.table.gather(0, rows).to_pylist() == [self.rows[row][1] for row in rows.tolist()]
        assert self.table.ticks(rows).tolist() == [self.rows[row][2] for row in rows.tolist()]
        assert self.table.hashes(rows).tolist() == [self.rows[row][0] for row in rows.tolist()]


def look_up(table: SideTable, hashes: Any, capacity: int, stride: int = 1 << 30) -> list[tuple[int, int]]:
    """All pairs, through buffers of so many pairs and at most `stride` hashes at a time."""
    probe = Probe(hashes, table.parts_of(hashes))
    out_probe, out_row = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    pairs: list[tuple[int, int]] = []
    for _ in range(100_000):
        if probe.done:
            return pairs
        stop = min(len(hashes), probe.next + stride)
        found, visited = table.probe(probe, stop, out_probe, out_row)
        assert found <= capacity and visited >= found
        pairs += zip(out_probe[:found].tolist(), out_row[:found].tolist(), strict=True)
    raise AssertionError("the probe does not get on")


def test_the_index_grows_and_every_row_stays_findable() -> None:
    twin = Twin(make())
    rng = np.random.default_rng(3)
    buckets = {len(twin.table._heads)}
    for _ in range(30):
        twin.put(hashes_of(rng.integers(0, 700, 40)))
        buckets.add(len(twin.table._heads))
        twin.table.check()
    assert len(buckets) > 3, "the index grew several times"
    assert len(twin.table._heads) >= twin.table.rows == 1200
    twin.check(hashes_of(rng.permutation(900)))


def test_without_memory_for_a_larger_index_chains_get_longer_and_nothing_is_lost() -> None:
    types = (pa.int64(),)
    block = 16 * row_bytes(types)
    twin = Twin(make(memory=4 * 16 * 4 + 40 * block, types=types))
    keys = np.arange(600) % 500
    twin.put(hashes_of(keys))
    assert twin.table.rows == 600
    assert len(twin.table._heads) < 600, "there was no room for more buckets"
    twin.table.check()
    twin.check(hashes_of(np.arange(510)))


def test_blocks_are_used_again_by_any_partition() -> None:
    twin = Twin(make())
    twin.put(hashes_of(np.arange(64) * 4))  # all in partition 0
    before = set(twin.rows)
    used = twin.table._blocks._claim.held
    twin.drop(0)
    assert twin.table.rows == 0 and not twin.rows
    twin.put(hashes_of(np.arange(64) * 4 + 3))  # all in partition 3
    assert set(twin.rows) == before, "the same row numbers"
    assert twin.table._blocks._claim.held == used, "and no more memory"
    twin.check(hashes_of(np.arange(300)))
    twin.table.check()


def test_a_dropped_partition_is_found_no_more_and_the_others_are() -> None:
    twin = Twin(make())
    twin.put(hashes_of(np.arange(400)))
    twin.drop(2)
    assert twin.table.part_rows.tolist() == [100, 100, 0, 100]
    assert twin.table.latest_tick(2) == 0 and twin.table.latest_tick(3) == 400
    twin.check(hashes_of(np.arange(400)))
    twin.put(hashes_of(np.arange(0, 400, 3)))
    twin.check(hashes_of(np.arange(400)))
    twin.table.check()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.integers(0, 40), min_size=1, max_size=40)),
            st.tuples(st.just("drop"), st.integers(0, 3)),
            st.tuples(st.just("drop oldest"), st.integers(0, 30)),
            st.tuples(st.just("trim"), st.integers(0, 20_000)),
        ),
        max_size=15,
    )
)
def test_any_history_leaves_what_it_should(moves: list[tuple[str, Any]]) -> None:
    twin = Twin(make(memory=256 * 1024, block_rows=8))
    for move, what in moves:
        if move == "put":
            twin.put(hashes_of(what))
        elif move == "drop":
            twin.drop(what)
        elif move == "drop oldest":
            twin.drop_oldest(what % 4, what)
        else:
            twin.table.trim(what)
        twin.table.check()
    twin.check(hashes_of(np.arange(45)))


VALUES = {
    "strings": (pa.string(), lambda i: None if i % 7 == 0 else "x" * (i * 37 % 90)),
    "some longer than a chunk": (pa.string(), lambda i: f"{i} " * (700 if i % 11 == 0 else i % 5)),
    "nested": (pa.list_(pa.int64()), lambda i: None if i % 9 == 0 else list(range(i % 6))),
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_oldest_rows_leave_and_give_the_memory_of_their_values_back(kind: str) -> None:
    type_, value = VALUES[kind]
    budget = Budget(4 * MIB)
    table = SideTable((type_, type_), budget, Layout(1, 8, 1024), "left")
    at_first = budget.used
    held: list[list[int]] = [[], []]
    rng = np.random.default_rng(8)
    number = 0
    for _ in range(60):
        count = int(rng.integers(1, 30))
        numbers = range(number, number + count)
        number += count
        hashes = hashes_of(rng.integers(0, 50, count), bits=1)
        parts = table.parts_of(hashes)
        columns = [pa.array([value(i + more) for i in numbers], type_) for more in (0, 5)]
        assert table.reserve(parts, columns)
        table.append(hashes, parts, columns, np.array(numbers) + 1)
        for part in (0, 1):
            held[part] += [i for i, mine in zip(numbers, parts, strict=True) if mine == part]
            gone = table.oldest(part, int(rng.integers(0, 30)))
            table.drop_oldest(part, len(gone))
            del held[part][: len(gone)]
            rows = table.rows_of(part)
            for column, more in ((0, 0), (1, 5)):
                assert table.gather(column, rows).to_pylist() == [value(i + more) for i in held[part]]
        table.check()
    for part in (0, 1):
        table.drop_oldest(part, len(table.oldest(part, len(held[part]))))
    table.trim(4 * MIB)
    index = 4 * len(table._heads)
    assert not table.rows and budget.used <= at_first + index


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("stride", [1, 5, 1000])
def test_a_probe_stops_and_goes_on_anywhere(capacity: int, stride: int) -> None:
    table = make()
    rng = np.random.default_rng(8)
    keys = rng.zipf(1.5, 300) % 20
    hashes = hashes_of(keys)
    parts = table.parts_of(hashes)
    values = pa.array(np.arange(300))
    assert table.reserve(parts, [values])
    rows = table.append(hashes, parts, [values], np.arange(300))
    wanted = rng.integers(0, 25, 40)
    pairs = look_up(table, hashes_of(wanted), capacity, stride)
    expected = [(i, int(rows[j])) for i, key in enumerate(wanted) for j in range(299, -1, -1) if keys[j] == key]
    assert len(expected) > 500, "there is something to stop amid"
    assert Counter(pairs) == Counter(expected)
    assert pairs == expected, "row by row, the newest match first"


def test_hashes_that_share_a_bucket_are_told_apart() -> None:
    table = make(bits=0)
    hashes = np.arange(20, dtype=np.int64) << 32  # the low bits, which choose the bucket, are all zero
    parts, values = table.parts_of(hashes), pa.array(range(20))
    assert table.reserve(parts, [values])
    rows = table.append(hashes, parts, [values], np.arange(20))
    assert look_up(table, hashes[::-1].copy(), 8) == [(i, row) for i, row in enumerate(rows[::-1].tolist())]


def test_partitions_are_the_top_bits_of_the_hash() -> None:
    hashes = np.array([0, -1, 1 << 62, -(1 << 63), (1 << 62) - 1], np.int64)
    assert make(bits=2).parts_of(hashes).tolist() == [0, 3, 1, 2, 0]
    assert make(bits=0).parts_of(hashes).tolist() == [0] * 5


def test_reserving_claims_before_and_a_refusal_claims_nothing_lasting() -> None:
    types = (pa.int64(), pa.string())
    table = make(memory=64 * 1024, types=types)
    budget = table._blocks._claim._budget
    base = budget.used
    parts = np.zeros(10, np.int32)
    columns = [pa.array(range(10)), pa.array(["x" * 200] * 10)]
    assert table.reserve(parts, columns)
    claimed = budget.used
    assert claimed >= base + 10 * row_bytes(types) + 2000
    table.append(np.zeros(10, np.int64), parts, columns, np.arange(10))
    assert budget.used == claimed, "appending takes what was reserved and no more"
    assert not table.reserve(np.zeros(2000, np.int32), [pa.array(range(2000)), pa.array(["x"] * 2000)])
    table.trim(MIB)
    assert budget.used <= claimed and table.rows == 10
    table.check()
    assert row_bytes(types) == ENTRY_BYTES + 9 + 13


def test_trimming_gives_everything_back_to_the_budget() -> None:
    table = make(types=(pa.int64(), pa.string()))
    budget = table._blocks._claim._budget
    hashes = hashes_of(np.arange(2000))
    parts, columns = table.parts_of(hashes), [pa.array(range(2000)), pa.array([f"row {i}" * 9 for i in range(2000)])]
    assert table.reserve(parts, columns)
    table.append(hashes, parts, columns, np.arange(2000))
    full = budget.used
    for part in range(4):
        table.drop(part)
    assert budget.used == full, "dropped memory stays warm"
    freed = table.trim(1)
    assert 0 < freed < full / 4 and budget.used == full - freed, "no more than asked, in whole blocks"
    table.trim(1 << 40)
    assert {name: held for name, held in budget.breakdown().items() if held} == {"left index": table._heads.nbytes}
    table.check()


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="memory is given back where madvise can do so")
def test_trimming_gives_memory_back_to_the_system() -> None:
    process = psutil.Process()
    table = SideTable((pa.int64(), pa.string()), Budget(400 * MIB), Layout(2, 4096, 64 * 1024), "left")
    count = 100_000
    text = pa.array(["x" * 600] * count)
    gc.collect()
    before = process.memory_info().rss
    hashes = hashes_of(np.arange(count))
    parts = table.parts_of(hashes)
    columns = [pa.array(np.arange(count)), text]
    assert table.reserve(parts, columns)
    table.append(hashes, parts, columns, np.arange(count))
    full = process.memory_info().rss
    assert full - before > 50 * MIB, "the table takes memory"
    for part in range(4):
        table.drop(part)
    table.trim(1 << 40)
    after = process.memory_info().rss
    assert full - after > 0.8 * (60 * MIB), f"{full - after} bytes came back"


def test_rows_brought_back_know_their_places_on_disk() -> None:
    table = make(block_rows=8)
    hashes = hashes_of(np.arange(20) * 4)
    assert not table.brought_back(0)
    for first, count in ((100, 5), (105, 12), (117, 3)):  # across the ends of blocks
        part = np.zeros(count, np.int32)
        values = [pa.array(range(count))]
        assert table.reserve(part, values)
        rows = table.append_from_disk(hashes[:count], 0, values, np.arange(count), first)
        assert table.ordinals(rows).tolist() == list(range(first, first + count))
        table.check()
    assert table.brought_back(0)
    assert table.ordinals(table.rows_of(0)).tolist() == list(range(100, 120))
    with pytest.raises(AssertionError, match="close_block"):
        table.append_from_disk(hashes[:1], 0, [pa.array([1])], np.arange(1), 500)
    table.close_block(0)
    assert table.reserve(np.zeros(2, np.int32), [pa.array([1, 2])])
    rows = table.append_from_disk(hashes[:2], 0, [pa.array([1, 2])], np.arange(2), 500)
    assert table.ordinals(rows).tolist() == [500, 501]
    assert table.part_rows[0] == 22 and len(table.rows_of(0)) == 22
    table.check()


def test_rows_that_arrive_have_no_place_on_disk_even_in_a_block_used_before() -> None:
    table = make(block_rows=8)
    hashes, values = hashes_of(np.arange(8) * 4), [pa.array(range(8))]
    part = np.zeros(8, np.int32)
    assert table.reserve(part, values)
    back = table.append_from_disk(hashes, 0, values, np.arange(8), 40)
    table.drop(0)
    assert table.reserve(part, values)
    rows = table.append(hashes, part, values, np.arange(8))
    assert rows.tolist() == back.tolist()
    assert table.ordinals(rows).tolist() == [-1] * 8
    assert not table.brought_back(0)


def test_spans_are_the_rows_in_their_order_of_arrival() -> None:
    twin = Twin(make(block_rows=8))
    for count in (5, 9, 3):
        twin.put(hashes_of(np.arange(count) * 4))
    rows = twin.table.rows_of(0)
    assert twin.table.ticks(rows).tolist() == list(range(1, 18))
    assert [count for _, count in twin.table.spans(0)] == [8, 8, 1]
    twin.table.close_block(0)
    twin.put(hashes_of(np.array([4, 8])))
    assert [count for _, count in twin.table.spans(0)] == [8, 8, 1, 2]
    assert twin.table.ticks(twin.table.rows_of(0)).tolist() == list(range(1, 20))
    twin.check(hashes_of(np.arange(40)))


def test_widths_are_what_values_take_in_a_batch() -> None:
    table = make(types=(pa.int64(), pa.string(), pa.bool_()))
    columns = [pa.array([1, 2]), pa.array(["abc", "x" * 50]), pa.array([True, None])]
    parts = np.zeros(2, np.int32)
    assert table.reserve(parts, columns)
    rows = table.append(np.zeros(2, np.int64), parts, columns, np.arange(2))
    widths = np.zeros(2, np.int64)
    for column in range(3):
        table.widen(column, rows, widths)
    assert widths.tolist() == [8 + 4 + 3 + 1, 8 + 4 + 50 + 1]


def test_check_notices_a_broken_chain() -> None:
    twin = Twin(make())
    twin.put(hashes_of(np.arange(100)))
    twin.table._heads[np.flatnonzero(twin.table._heads)[0]] = 0
    with pytest.raises(AssertionError, match="each row is linked exactly once"):
        twin.table.check()
