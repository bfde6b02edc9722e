"""Rows of batches that several shards have: told by their places, counted by each, gone when nobody has them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.memory import Budget
from watersmeet.records.keys import KeyCodec
from watersmeet.records.split import Piece, Portion, Shared, Shelf, Splitter
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtables import SharedMemtable

SCHEMA = pa.schema({"id": pa.int64(), "note": pa.string(), "ok": pa.bool_()})
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("id"))


def batch(first: int, count: int, width: int = 3) -> pa.RecordBatch:
    ids = range(first, first + count)
    notes = [None if i % 7 == 0 else str(i) * (width if i % 2 else 1) for i in ids]
    return pa.record_batch({"id": ids, "note": notes, "ok": [i % 3 == 0 for i in ids]}, SCHEMA)


class Bench:
    """Two shards' memtables, and what is split for them."""

    def __init__(self) -> None:
        self.splitter = Splitter(SPEC, 0, KeyCodec(SPEC), 2, stays=True)
        self.budgets = [Budget(1 << 20), Budget(1 << 20)]
        self.tables = [
            SharedMemtable(self.splitter.shelf.types, budget, Layout(0, 16, 1024), "left", shelf=self.splitter.shelf)
            for budget in self.budgets
        ]

    def share(self, rows: pa.RecordBatch) -> list[Portion]:
        """Each table takes its own rows of a batch."""
        portions = []
        for table, piece in zip(self.tables, self.splitter.split(rows, 0), strict=True):
            assert piece is not None
            portions.append(Portion([piece]))
            take(table, portions[-1].hashes, [portions[-1]])
        return portions


def take(table: SharedMemtable, hashes: Any, columns: list[Any]) -> None:
    parts = np.zeros(len(hashes), np.int32)
    assert table.reserve(parts, columns)
    table.append(hashes, parts, columns, np.arange(len(hashes)))
    table.check()


def ids(table: SharedMemtable) -> list[int]:
    """All rows, last first, each of which must be one row in all columns."""
    numbers = np.arange(table.rows, dtype=np.int32)[::-1].copy()
    found = pa.RecordBatch.from_arrays(table.gather_all((0, 1, 2), numbers), names=SCHEMA.names)
    found.validate(full=True)
    for row in found.to_pylist():
        assert row["ok"] == (row["id"] % 3 == 0)
        assert row["note"] is None if row["id"] % 7 == 0 else row["note"].startswith(str(row["id"]))
    return [int(i) for i in found["id"].to_pylist()]


def test_shared_rows_and_own_rows_are_found_where_they_are() -> None:
    bench = Bench()
    bench.share(batch(0, 300).slice(11))
    for start in (1000, 1040):  # rows of its own, which fill blocks of 16 with others
        rows = batch(start, 40)
        take(bench.tables[0], np.arange(40), list(rows.columns))
    bench.share(batch(2000, 200))
    found = [ids(table) for table in bench.tables]
    assert sorted(found[0] + found[1]) == [*range(11, 300), *range(1000, 1080), *range(2000, 2200)]
    assert {1000, 1079} <= set(found[0]) and min(map(len, found)) > 100


def test_each_counts_the_bytes_of_its_own_rows_as_if_they_were_copied() -> None:
    bench = Bench()
    rows = batch(0, 400, width=50)
    portions = bench.share(rows)
    for portion, budget in zip(portions, bench.budgets, strict=True):
        mine = rows.take(pa.array(portion.places & 0xFFFFFFFF))
        assert mine.nbytes <= portion.nbytes <= mine.nbytes + 2 * len(portion.hashes)
        assert portion.slice(3, 5).nbytes < portion.nbytes / 10
        assert budget.used > portion.nbytes


def test_a_batch_stays_until_the_last_shard_has_let_go_and_its_number_is_free_then() -> None:
    bench = Bench()
    portions = bench.share(batch(0, 200))
    number = next(iter(portions[0].batches))
    del portions
    bench.tables[0].clear()
    gc.collect()
    assert not bench.splitter.shelf.free and len(ids(bench.tables[1])) == bench.tables[1].rows
    bench.tables[1].clear()
    gc.collect()
    assert list(bench.splitter.shelf.free) == [number]
    bench.share(batch(500, 200))
    assert sorted(ids(bench.tables[0]) + ids(bench.tables[1])) == list(range(500, 700)), "in the place of the first"


def test_more_batches_than_there_was_room_for() -> None:
    bench = Bench()
    for first in range(0, 10_000, 200):
        bench.share(batch(first, 200))
    assert sorted(ids(bench.tables[0]) + ids(bench.tables[1])) == list(range(10_000))


@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.dictionary(pa.int8(), pa.string())])
def test_nested_values_and_values_in_another_form_are_copied(type_: pa.DataType) -> None:
    schema = pa.schema({"id": pa.int64(), "more": type_})
    spec = JoinSpec(schema, schema, parse_on("id"))
    rows = pa.record_batch({"id": range(500), "more": pa.nulls(500, type_)}, schema)
    pieces = Splitter(spec, 0, KeyCodec(spec), 1, stays=True).split(rows, 0)
    assert pieces[0] is not None and not pieces[0].is_shared


def test_few_rows_of_a_batch_are_copied() -> None:
    splitter = Splitter(SPEC, 0, KeyCodec(SPEC), 1, stays=True)
    few, many = splitter.split(batch(0, 20), 0)[0], splitter.split(batch(0, 500), 0)[0]
    assert isinstance(few, Piece) and isinstance(many, Piece) and isinstance(few.batch, Shared)
    assert not few.is_shared and many.is_shared and isinstance(splitter.shelf, Shelf)
