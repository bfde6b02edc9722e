"""Bits beside runs: as a set of rows would have them, however few pages are in memory; damaged ones are named."""

from __future__ import annotations

from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.errors import SegmentError
from watersmeet.memory import Budget
from watersmeet.runs import matched_bits
from watersmeet.runs.flush import write_run
from watersmeet.runs.matched_bits import MatchedBits
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtable import Memtable


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def bits_in(store: MemoryStore, nbytes: int) -> MatchedBits:
    numbers = count()
    return MatchedBits(store, nbytes, lambda: f"bits-{next(numbers)}", lambda names: [*map(store.remove, names)])


@pytest.mark.parametrize("page_bytes", [1, 8, 64])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_marked_as_in_a_set(
    seed: int, page_bytes: int, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matched_bits, "_LEAST_PAGE", page_bytes)
    monkeypatch.setattr(matched_bits, "_MOST_PAGE", page_bytes)
    rng = np.random.default_rng([seed, page_bytes])
    bits, rows = bits_in(store, 4 * page_bytes), [int(rng.integers(1, 900)) for _ in range(3)]
    names, marked, written = ["a", "b", "c"], set[int](), 0
    for name, each in zip(names, rows, strict=True):
        first = rng.random(each) < 0.1
        filling = bits.begin(name, each)
        for start in range(0, each, 50):
            filling.add(first[start : start + 50])
        filling.end()
        marked |= {(names.index(name) << 32) + int(row) for row in np.flatnonzero(first)}
    for step in range(60):
        run = rng.integers(0, 3, 40)
        codes = (run << 32) + (rng.random(40) * np.array(rows)[run]).astype(np.int64)
        assert bits.unmarked(names, codes).tolist() == [code not in marked for code in codes.tolist()]
        fresh = bits.mark(names, codes).tolist()
        for code, was_fresh in zip(codes.tolist(), fresh, strict=True):
            assert was_fresh == (code not in marked)
            marked.add(code)
        if step % 20 == 19:  # somebody else goes on
            written += bits.written
            versions = bits.save()
            bits = bits_in(store, 4 * page_bytes)
            bits._new_name = (f"later-{step}-{number}" for number in count()).__next__
            bits.load(versions, dict(zip(names, rows, strict=True)))
        bits.check(names)
    for number, (name, each) in enumerate(zip(names, rows, strict=True)):
        found, at = [], 0
        while at < each:
            some, at = bits.unmarked_from(name, at, int(rng.integers(1, 9)))
            found += some.tolist()
        assert found == [row for row in range(each) if (number << 32) + row not in marked]
    assert written > 3 or page_bytes * 8 * 4 >= sum(rows), "pages had to make room for others"


def _run(store: MemoryStore, name: str, hashes: list[int]) -> SortedRun:
    table = Memtable([pa.int64()], Budget(1 << 24), Layout(0, 16, 256), "left")
    parts, columns = np.zeros(len(hashes), np.int32), [pa.array(hashes)]
    assert table.reserve(parts, columns)
    table.append(np.array(hashes), parts, columns, np.arange(len(hashes)) + 1)
    return write_run(store, name, table, np.empty(16, np.uint64), np.empty(16, np.int64), 1 << 12)


def test_a_merged_run_has_the_bits_of_its_rows_in_one_piece_or_in_several(store: MemoryStore) -> None:
    old = [_run(store, "x", [1, 4, 4, 9]), _run(store, "y", [2, 4, 7])]
    bits = bits_in(store, 1 << 12)
    for run, marked in zip(old, ([True, False, True, False], [False, True, False]), strict=True):
        filling = bits.begin(run.name, run.rows)
        filling.add(np.array(marked))
        filling.end()
    # 1x 2y 4x 4x 4y 7y 9x
    pieces = [_run(store, "p", [1, 2, 4]), _run(store, "q", [4, 4, 7, 9])]
    bits.replace(old, pieces)
    assert bits.unmarked_from("p", 0, 9)[0].tolist() == [1, 2]
    assert bits.unmarked_from("q", 0, 9)[0].tolist() == [2, 3]
    bits.check(["p", "q"])


def test_rows_that_come_later_have_no_partner(store: MemoryStore) -> None:
    bits = bits_in(store, 1 << 12)
    bits.begin("rows", 0)
    bits.grow("rows", 10)
    bits.mark(["rows"], np.array([3, 9]))
    versions = bits.save()
    bits.grow("rows", 100_000)
    assert bits.unmarked(["rows"], np.array([3, 9, 10, 99_999])).tolist() == [False, False, True, True]
    again = bits_in(store, 1 << 12)
    again.load(versions, {"rows": 100_000})
    assert again.unmarked(["rows"], np.array([3, 9, 10, 99_999])).tolist() == [False, False, True, True]


def test_damaged_bits_are_named(store: MemoryStore) -> None:
    bits = bits_in(store, 1 << 12)
    bits.begin("run", 100)
    bits.mark(["run"], np.array([7]))
    version = bits.save()["run"]
    assert version is not None
    content = bytearray(store.open(version).to_pybytes())
    content[0] ^= 1
    store.remove(version)
    writer = store.create(version)
    writer.write(pa.py_buffer(bytes(content)))
    writer.commit()
    again = bits_in(store, 1 << 12)
    again.load({"run": version}, {"run": 100})
    with pytest.raises(SegmentError, match=f"'{version}' cannot be used: it was altered"):
        again.unmarked(["run"], np.array([7]))
