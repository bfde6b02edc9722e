"""Rows and hashes of runs that are read from their files: the same as are mapped, checked, and in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_uint64
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.errors import SegmentError, SpillError
from watersmeet.matching.reading import HashWindow
from watersmeet.memory import Budget
from watersmeet.runs import sorted_run
from watersmeet.runs.sorted_run import MergedRows, RunWriter, SortedRun
from watersmeet.runs.stretches import GatheringRoom
from watersmeet.spill import file_store
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.store import Descriptor
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtable import Memtable

TYPES = (pa.int64(), pa.string(), pa.bool_(), pa.int16(), pa.large_binary(), pa.decimal128(20, 2))
ROWS = 3_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with FileStore(tmp_path) as opened:
        yield opened


def columns_of(rng: np.random.Generator, rows: int, widest: int) -> list[pa.Array]:
    """Values of every plain layout, some of them NULL, some strings empty."""

    def some(values: list[Any], type_: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else value for value in values], type_)

    texts = ["x" * int(n) for n in rng.integers(0, 30, rows)]
    texts[rows // 2] = "y" * widest
    return [
        pa.array(rng.integers(0, 1 << 40, rows)),
        some(texts, TYPES[1]),
        some((rng.random(rows) < 0.5).tolist(), TYPES[2]),
        some(rng.integers(0, 1000, rows).tolist(), TYPES[3]),
        some([b"z" * int(n) for n in rng.integers(0, 9, rows)], TYPES[4]),
        some([str(n) for n in rng.integers(0, 1000, rows)], pa.string()).cast(TYPES[5]),
    ]


def written(store: FileStore, name: str, seed: int, rows: int = ROWS, widest: int = 40) -> tuple[SortedRun, pa.Table]:
    """A run, and its rows in their order; some hashes occur many times."""
    rng = np.random.default_rng(seed)
    columns = columns_of(rng, rows, widest)
    hashes = rng.integers(-(1 << 62), 1 << 62, rows)
    hashes[: rows // 4] = rng.choice(hashes[:7], rows // 4)
    table = Memtable(TYPES, Budget(1 << 26), Layout(0, 256, 4096), "left")
    assert table.reserve(np.zeros(rows, np.int32), columns)
    table.append(hashes, np.zeros(rows, np.int32), columns, np.arange(rows))
    order = np.argsort(hashes.view(np.uint64), kind="stable")
    writer = RunWriter(store, name, TYPES, rows, 32, 4096)
    writer.write_hashes(hashes[order].view(np.uint64))
    writer.write_rows(table, order)
    in_order = [column.take(pa.array(order)) for column in columns]
    return writer.seal(), pa.table([pa.array(hashes[order].view(np.uint64)), *in_order], names=list("habcdef"))


def gathered(runs: list[SortedRun], numbers: Any, room: GatheringRoom | None) -> list[pa.Array]:
    rows = MergedRows(runs)
    rows.room = room
    return rows.gather_all(tuple(range(len(TYPES))), numbers)


def some_rows(tables: list[pa.Table], seed: int, count: int) -> tuple[Any, list[pa.Array]]:
    """Numbers of rows of several runs in any order, and what is to be found there."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(tables), count)
    place = rng.integers(0, [tables[run].num_rows for run in which])
    firsts = np.cumsum([0, *(table.num_rows for table in tables)])[which]
    whole = pa.concat_tables(tables).take(pa.array(firsts + place)).combine_chunks()
    return (which << 32) + place, [whole.column(k).combine_chunks() for k in range(1, whole.num_columns)]


@pytest.mark.parametrize("count", [1, 40, 5_000])
@pytest.mark.parametrize("way", ["read", "mapped for want of descriptors", "some mapped"])
def test_rows_are_gathered_as_they_were_written(
    store: FileStore, count: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, tables = map(list, zip(*(written(store, f"run-{k}", k) for k in range(3)), strict=True))
    before = Descriptor.open_now
    if way != "read":
        most = before + (way == "some mapped")
        monkeypatch.setattr(file_store, "_most_open", lambda: most)
    numbers, expected = some_rows(tables, count, count)
    checked: list[int] = []
    check = sorted_run.check_forward
    monkeypatch.setattr(sorted_run, "check_forward", lambda *args: checked.append(1) or check(*args))
    unread = sum(run.blocks_unchecked for run in runs)
    found = gathered(runs, numbers, GatheringRoom(1 << 20))
    assert all(mine.equals(theirs) for mine, theirs in zip(found, expected, strict=True))
    assert sum(run.blocks_unchecked for run in runs) < unread, "what is read for the first time is checked"
    opened = Descriptor.open_now - before
    assert (opened, bool(checked)) == {"read": (3, False), "some mapped": (1, True)}.get(way, (0, True))
    del runs, found
    assert Descriptor.open_now == before, "files are closed with their runs"


def test_a_stretch_that_is_larger_than_the_buffer_is_read_where_it_is_mapped(store: FileStore) -> None:
    run, table = written(store, "run", 5, widest=200_000)
    numbers, expected = some_rows([table], 1, 2_000)
    found = gathered([run], numbers, GatheringRoom(4 << 20, 100_000))
    assert all(mine.equals(theirs) for mine, theirs in zip(found, expected, strict=True))
    too_small = gathered([run], numbers, GatheringRoom(1000))
    assert all(mine.equals(theirs) for mine, theirs in zip(too_small, expected, strict=True)), "no room for strings"


def test_an_altered_block_is_noticed_when_it_is_read(store: FileStore) -> None:
    run, table = written(store, "run", 3)
    block = 40
    row = block * run.block_rows
    place = int(run._starts[block]) + 200
    del run
    with (store.path / "run").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    damaged = SortedRun(store, "run", TYPES)
    others = np.arange(0, row - 64)
    assert gathered([damaged], others, GatheringRoom(1 << 20))[0].equals(table.column(1).combine_chunks()[: row - 64])
    with pytest.raises(SegmentError, match=f"'run' cannot be used: block {block} was altered"):
        gathered([damaged], np.array([row + 3]), GatheringRoom(1 << 20))


def test_nothing_but_what_is_wanted_is_read(store: FileStore) -> None:
    """Blocks that hold none of the rows are not looked at: they stay unchecked."""
    run, _ = written(store, "run", 4)
    blocks = run.blocks_unchecked
    gathered([run], np.array([0, 1, 33, 64 * 32]), GatheringRoom(1 << 20))
    assert blocks - run.blocks_unchecked == 3


# --- hashes ---


def pairs_by_window(runs: list[SortedRun], slices: list[Any], room: int, again: bool = False) -> list[tuple[int, ...]]:
    """Which rows of runs are equal to which hashes of slices, as they come into the window."""
    window = HashWindow.over(runs, np.empty(room, np.uint64))
    assert window is not None
    found = []
    for number, hashes in enumerate(slices):
        window.go_to(hashes[0], hashes[-1])
        at = row = 0
        while at < len(runs):
            window.show(at, row, len(runs))
            while at < window.stop:
                for each in range(max(row, int(window.lows[at])), int(window.highs[at])):
                    value = c_uint64.from_address(int(window.addresses[at]) + 8 * each).value
                    found += [(number, k, at, each) for k in np.flatnonzero(hashes == value).tolist()]
                at, row = at + 1, 0
            if window.rest >= 0:
                at, row = window.stop - 1, window.rest
            if again:  # somebody else has used the buffer
                window.go_to(hashes[0], hashes[-1])
    return found


def expected_pairs(tables: list[pa.Table], slices: list[Any]) -> list[tuple[int, ...]]:
    found = []
    for number, hashes in enumerate(slices):
        for at, table in enumerate(tables):
            for each, value in enumerate(table.column(0).to_numpy()):
                found += [(number, k, at, each) for k in np.flatnonzero(hashes == value).tolist()]
    return found


def slices_of(tables: list[pa.Table], cuts: int) -> list[Any]:
    """Hashes of the runs and others, in ascending order, cut anywhere: also amid equal ones."""
    rng = np.random.default_rng(cuts)
    every = np.concatenate([table.column(0).to_numpy() for table in tables])
    wanted = np.sort(np.concatenate([rng.choice(every, 60), rng.integers(0, 1 << 62, 20).astype(np.uint64)]))
    return [part for part in np.split(wanted, np.sort(rng.choice(80, cuts, replace=False))) if len(part)]


@pytest.mark.parametrize("room", [1, 7, 100, 1 << 14])
@pytest.mark.parametrize("cuts", [0, 3, 30])
@pytest.mark.parametrize("again", [False, True])
def test_each_hash_comes_into_the_window_once(store: FileStore, room: int, cuts: int, again: bool) -> None:
    runs, tables = map(list, zip(*(written(store, f"run-{k}", k, 200 * k + 50) for k in range(3)), strict=True))
    slices = slices_of(tables, cuts)
    assert sorted(pairs_by_window(runs, slices, room, again)) == sorted(expected_pairs(tables, slices))


def test_a_disk_that_fails_is_told(store: FileStore) -> None:
    run, _ = written(store, "run", 1)
    window = HashWindow.over([run], np.empty(64, np.uint64))
    assert window is not None
    with (store.path / "run").open("r+b") as file:
        file.truncate(100)
    window.go_to(np.uint64(0), np.uint64(2**64 - 1))
    with pytest.raises(SpillError, match="could not read the hashes of 'run'"):
        window.show(0, 0, 1)


def test_there_is_no_window_over_runs_that_are_no_files(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = written(store, "run", 1)
    assert HashWindow.over([run], np.empty(0, np.uint64)) is None, "no buffer"
    monkeypatch.setattr(file_store, "_most_open", lambda: 0)
    assert HashWindow.over([SortedRun(store, "run", TYPES)], np.empty(8, np.uint64)) is None
