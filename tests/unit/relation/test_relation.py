"""Relations: laid out within a budget, changed in whole steps, whole after any failure."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.keys import random_key
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.checks.payload import random_payload
from watersmeet.core.errors import BudgetError, RelationError, SegmentError, SpecError, SpillError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.relation.changes import StoredRelation
from watersmeet.relation.relation import Design, published, segments_in, version_name
from watersmeet.relation.sort import Sorter
from watersmeet.spill import MemoryStore

KIB = 1024


def rows_of(table: pa.Table) -> Counter[Any]:
    counted: Counter[Any] = Counter()
    for batch in table.to_batches():
        counted.update(canonical_rows(batch))
    return counted


def numbers(count: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"id": rng.permutation(count), "text": [f"{i % 97:03d}" * 4 for i in range(count)]})


@pytest.mark.parametrize("partition", ["range", "hash"])
@pytest.mark.parametrize("memory", [128 * KIB, 16 << 20], ids=["spilled", "in memory"])
def test_what_is_laid_out_is_what_came(partition: str, memory: int, tmp_path: Path) -> None:
    table = numbers(6_000)
    relation = wm.Relation.build(
        table, on="id", path=tmp_path / "r", partition=partition, memory=memory, segment=8 * KIB
    )
    assert rows_of(relation.table()) == rows_of(table)
    version = relation.latest
    codec = version.design.codec()
    parts = version.map.locate(codec.places([relation.table()["id"].combine_chunks()]))
    assert (parts == np.repeat(np.arange(version.partitions), version.part_rows)).all()
    assert version.partitions > 15
    if partition == "range":
        assert version.part_bytes.min() >= 8 * KIB and version.part_bytes.max() <= 2.2 * 8 * KIB
    assert [each.name for each in tmp_path.iterdir()] == ["r"], "runs are gone"
    assert rows_of(wm.Relation.open(tmp_path / "r").table()) == rows_of(table)


def test_sorting_stays_within_its_budget_and_spills() -> None:
    table, spill = numbers(20_000), MemoryStore()
    sorter = Sorter(Design(table.schema, ("id",), "range", 4 * KIB), 64 * KIB, spill)
    for batch in table.to_batches(max_chunksize=5_000):
        sorter.add(batch)
    runs = sorter.runs()
    assert len(runs) > 4 and len(spill.names()) == len(runs)
    assert sorter._budget.peak <= 64 * KIB
    assert all((np.diff(run.words) >= 0).all() for run in runs)


def test_hash_partitions_can_be_counted_out(tmp_path: Path) -> None:
    relation = wm.Relation.build(
        numbers(5_000), on="id", path=tmp_path / "r", partition="hash", partitions=89, segment=KIB
    )
    assert relation.partitions == 89
    with pytest.raises(SpecError, match="partitions="):
        wm.Relation.build(numbers(5), on="id", path=tmp_path / "s", partitions=3)


def test_many_rows_of_one_key_are_kept_together(tmp_path: Path) -> None:
    table = pa.table({"id": [5] * 3_000 + list(range(3_000)), "n": range(6_000)})
    relation = wm.Relation.build(table, on="id", path=tmp_path / "r", segment=4 * KIB)
    version = relation.latest
    part = int(version.map.locate(version.design.codec().places([pa.array([5])]))[0])
    assert version.part_rows[part] >= 3_001 and len(version.segment_ids(part)) > 1
    assert rows_of(relation.table()) == rows_of(table)
    relation.delete([5])
    assert relation.rows == 2_999


@pytest.mark.parametrize("seed", range(16))
def test_changes_of_any_rows_are_those_of_a_plain_table(seed: int) -> None:
    rng = np.random.default_rng([seed, 11])
    keys = [random_key(rng, int(rng.integers(2, 60))) for _ in range(1 + int(rng.random() < 0.3))]
    payload_seed = int(rng.integers(1 << 30))

    def make(rows: int) -> pa.RecordBatch:
        columns = [key.column(1, rng.integers(0, len(key.values[1]), rows), rng.random(rows) < 0.05) for key in keys]
        columns.append(pa.array(rng.integers(0, 1000, rows)))
        columns.append(random_payload(np.random.default_rng(payload_seed), rows))
        return pa.RecordBatch.from_arrays(columns, names=[*(f"k{i}" for i in range(len(keys))), "n", "p"])

    on = tuple(f"k{i}" for i in range(len(keys)))
    first = make(int(rng.integers(0, 120)))
    relation = StoredRelation.in_memory(
        pa.Table.from_batches([first]), on, theta=int(rng.choice([256, 1024, 1 << 20])),
        partition=["range", "hash"][seed % 2],
    )  # fmt: skip
    spec = JoinSpec(first.schema, first.schema, parse_on(list(on)))
    model = [first]

    def remove(batch: pa.RecordBatch) -> pa.Table:
        table = pa.Table.from_batches(model, first.schema).combine_chunks()
        gone = {i for i, _ in reference_pairs(table, pa.Table.from_batches([batch]), spec)}
        return table, [i for i in range(table.num_rows) if i not in gone]

    for _ in range(5):
        batch = make(int(rng.integers(0, 30)))
        table, kept = remove(batch)
        pieces = [table.slice(i, 1).to_batches()[0] for i in kept]
        if rng.random() < 0.6:
            relation.upsert(batch)
            model = [*pieces, batch]
        else:
            relation.delete(batch)
            model = pieces
        expected = pa.Table.from_batches(model, first.schema)
        has_key = [all(expected[name][i].as_py() is not None for name in on) for i in range(expected.num_rows)]
        rows = [row for batch in model for row in canonical_rows(batch)]
        assert rows_of(relation.table()) == Counter(row for row, has in zip(rows, has_key, strict=True) if has)
        version = relation.latest
        parts = version.map.locate(version.design.codec().places([relation.table()[n].combine_chunks() for n in on]))
        assert (parts == np.repeat(np.arange(version.partitions), version.part_rows)).all()


def test_a_growing_partition_is_cut(tmp_path: Path) -> None:
    relation = wm.Relation.build(numbers(100), on="id", path=tmp_path / "r", segment=KIB)
    before = relation.latest
    for start in range(100, 2_000, 100):
        relation.upsert({"id": i, "text": f"new {i}"} for i in range(start, start + 100))
    assert relation.partitions > 4 * before.partitions and relation.latest.cut_in > 1
    assert relation.latest.part_bytes.max() < 4 * KIB
    assert relation.rows == 2_000


def test_unique_keys_are_held_to_it(tmp_path: Path) -> None:
    twice = [{"id": 1}, {"id": 2}, {"id": 1}]
    with pytest.raises(RelationError, match="id=1 is there more than once"):
        wm.Relation.build(twice, on="id", path=tmp_path / "r", unique=True)
    assert not wm.Relation.is_at(tmp_path / "r")
    relation = wm.Relation.build([{"id": 1}, {"id": 2}], on="id", path=tmp_path / "r", unique=True)
    with pytest.raises(RelationError, match="more than once"):
        relation.upsert([{"id": 7}, {"id": 7}])
    assert relation.rows == 2 and relation.upsert([{"id": 2}]) == 2 and relation.rows == 2


def test_surrogate_keys_stay_with_their_keys(tmp_path: Path) -> None:
    relation = wm.Relation.build(
        [{"source": "a", "id": 7}, {"source": "b", "id": 7}, {"source": "a", "id": 8}],
        on=["source", "id"], path=tmp_path / "r", surrogate="skey",
    )  # fmt: skip
    given = {(row["source"], row["id"]): row["skey"] for row in relation.table().to_pylist()}
    assert sorted(given.values()) == [1, 2, 3]
    relation.upsert([{"source": "b", "id": 7}, {"source": "c", "id": 1}])
    after = {(row["source"], row["id"]): row["skey"] for row in relation.table().to_pylist()}
    assert after == {**given, ("c", 1): 4}
    with pytest.raises(RelationError, match="already"):
        wm.Relation.build([{"id": 1}], on="id", path=tmp_path / "s", surrogate="id")


def test_readers_keep_their_version_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "r"
    relation = wm.Relation.build(numbers(1_000), on="id", path=path, segment=4 * KIB)
    reader = wm.Relation.open(path)
    pinned = reader.pin()
    before = rows_of(reader.table())
    for i in range(6):
        relation.upsert([{"id": i, "text": "changed"}])
    assert rows_of(pa.Table.from_batches(list(reader.reader.scan(pinned.version)))) == before
    assert reader.version == 7 and rows_of(reader.table()) == rows_of(relation.table()) != before
    held = len(segments_in(relation.reader.store))
    pinned.release()
    relation.upsert([{"id": 1, "text": "again"}])
    store = relation.reader.store
    assert published(store) == [7, 8] and len(segments_in(store)) < held
    assert set(segments_in(store)) <= {*relation.latest.ids.tolist(), *(n for n, _ in relation.latest.retired)}
    with pytest.raises(RelationError, match=r"version 1 of the relation in .* is gone"):
        reader.pin(1)


def test_a_reader_that_was_killed_holds_nothing_up(tmp_path: Path) -> None:
    path = tmp_path / "r"
    relation = wm.Relation.build(numbers(100), on="id", path=path)
    script = f"import watersmeet as wm, os; p = wm.Relation.open({str(path)!r}).pin(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert any(each.name.startswith(".pin-1-") for each in path.iterdir())
    for i in range(3):
        relation.upsert([{"id": i, "text": "x"}])
    assert published(relation.reader.store) == [3, 4]
    assert not any(each.name.startswith(".pin") for each in path.iterdir())


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    relation = wm.Relation.build(numbers(10), on="id", path=tmp_path / "r")
    lock = wm.Relation.open(tmp_path / "r").reader.pins.lock()
    with pytest.raises(RelationError, match="another writer"):
        relation.delete([1])
    lock.release()
    assert relation.delete([1]) == 2


def test_bad_requests_are_sentences(tmp_path: Path) -> None:
    table = numbers(10)
    with pytest.raises(RelationError, match="'sku' is not in the rows; choose from what they have, id, text"):
        wm.Relation.build(table, on="sku", path=tmp_path / "r")
    twice = pa.Table.from_arrays([[1], [2]], names=["id", "id"])
    with pytest.raises(RelationError, match="'id' is in the rows 2 times; rename all but one"):
        wm.Relation.build(twice, on="id", path=tmp_path / "r")
    file = tmp_path / "file"
    file.touch()
    taken = (
        r"file: a file is where a directory should be \(File exists\); move that file away or name another directory"
    )
    with pytest.raises(SpillError, match=taken):
        wm.Relation.build(table, on="id", path=file)
    with pytest.raises(RelationError, match="choose 'range' or 'hash'"):
        wm.Relation.build(table, on="id", path=tmp_path / "r", partition="grid")
    with pytest.raises(RelationError, match="cannot be compared"):
        wm.Relation.build(pa.table({"id": [[1]]}), on="id", path=tmp_path / "r")
    with pytest.raises(BudgetError, match="allow at least 8 MiB"):
        wm.Relation.build(table, on="id", path=tmp_path / "r", memory="1 MiB")
    with pytest.raises(RelationError, match="there is no relation in"):
        wm.Relation.open(tmp_path / "nowhere")
    relation = wm.Relation.build(table, on="id", path=tmp_path / "r")
    with pytest.raises(RelationError, match="replace=True"):
        wm.Relation.build(table, on="id", path=tmp_path / "r")
    with pytest.raises(RelationError, match="not of type int64"):
        relation.delete(["x"])
    assert relation.delete([99]) == 1, "no row, no new version"


@pytest.mark.parametrize(
    ("on", "said"),
    [
        (None, "on=None is not understood; write the key column's name, or a list of several"),
        (5, "on=5 is not understood"),
        ([1], r"on=\[1\] is not understood"),
        (["k", "k"], "key column 'k' is named 2 times in on=; name it once"),
    ],
)
def test_keys_that_are_no_columns_are_refused(on: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(RelationError, match=f"^{said}"):
        wm.Relation.build([{"k": 1}], on, tmp_path / "rel")


def test_keys_to_delete_may_be_a_set_or_an_array(tmp_path: Path) -> None:
    relation = wm.Relation.build(pa.table({"k": range(6)}), "k", tmp_path / "rel")
    for keys in (np.array([0, 9]), {1, 2}, {3: "a"}.keys()):
        relation.delete(keys)
    assert sorted(relation.table()["k"].to_pylist()) == [4, 5]
    with pytest.raises(RelationError, match="the keys to delete are not of type int64: "):
        relation.delete([1 << 70])


def test_laid_out_anew_for_new_readers(tmp_path: Path) -> None:
    old = wm.Relation.build(numbers(500), on="id", path=tmp_path / "r", segment=KIB)
    pinned = old.pin()
    new = wm.Relation.build([{"sku": "a"}], on="sku", path=tmp_path / "r", replace=True)
    assert new.table().to_pylist() == [{"sku": "a"}] and new.version == 2
    assert sum(batch.num_rows for batch in old.reader.scan(pinned.version)) == 500


def test_an_altered_segment_is_named(tmp_path: Path) -> None:
    relation = wm.Relation.build(numbers(1_000), on="id", path=tmp_path / "r", segment=4 * KIB)
    victim = sorted((tmp_path / "r").glob("r*"))[2]
    content = bytearray(victim.read_bytes())
    content[1_000] ^= 1
    victim.chmod(0o600)
    victim.write_bytes(content)
    with pytest.raises(SegmentError, match=victim.name):
        relation.table()


@pytest.mark.parametrize("driver", ["adbc", "sqlite3"])
def test_rows_out_of_a_database(driver: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", [(i, f"c{i}", i / 2) for i in range(2_000)])
    connection.close()
    if driver == "adbc":
        dbapi = pytest.importorskip("adbc_driver_sqlite.dbapi")
        connection = dbapi.connect(str(file))
    else:
        connection = sqlite3.connect(file)
    try:
        relation = wm.Relation.build(
            wm.query(connection, "SELECT * FROM customers WHERE id < ?", (1_500,)), on="id", path=tmp_path / "r"
        )
        cursor = connection.cursor()
        cursor.execute("SELECT id, name, score FROM customers WHERE id >= 1500 AND id < 1800")
        relation.upsert(cursor)
        relation.upsert(wm.query(connection, "SELECT score, name, id FROM customers WHERE id >= 1700"))
        relation.delete(wm.query(connection, "SELECT id FROM customers WHERE id < 10"))
        with pytest.raises(wm.SourceError, match="the query cannot be run"):
            wm.query(connection, "SELECT * FROM nothing")
    finally:
        connection.close()
    assert relation.schema.names == ["id", "name", "score"]
    table = relation.table().sort_by("id")
    assert table["id"].to_pylist() == list(range(10, 2_000)) and table["name"][1_989].as_py() == "c1999"


def test_rows_out_of_a_file(tmp_path: Path) -> None:
    pq.write_table(numbers(300), tmp_path / "in.parquet")
    assert wm.Relation.build(tmp_path / "in.parquet", on="id", path=tmp_path / "r").rows == 300


# --- failures ---


class Killed(BaseException):
    """The process is gone: nothing it would have done after this happens."""


@contextmanager
def failing(at: int, kill: bool) -> Iterator[list[int]]:
    """Let the `at`-th change of the disk (from 1) fail; if killed, half of it happens, and nothing after it."""
    calls = [0]
    real: dict[str, Callable[..., Any]] = {}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real[name](*args, **kwargs)
            if calls[0] >= at and kill:
                raise Killed
            calls[0] += 1
            if calls[0] == at:
                if name == "write":
                    real[name](args[0], bytes(args[1])[: len(args[1]) // 2])
                if kill:
                    raise Killed
                raise OSError(errno.ENOSPC, "No space left on device")
            return real[name](*args, **kwargs)

        return call

    for name in ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir"):
        real[name] = getattr(os, name)
    try:
        for name in real:
            setattr(os, name, wrap(name))
        yield calls
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def build(path: Path) -> None:
    wm.Relation.build(numbers(60), on="id", path=path, segment=KIB, memory=64 * KIB)


def rebuild(path: Path) -> None:
    wm.Relation.build(numbers(40, 3), on="id", path=path, segment=KIB, memory=64 * KIB, replace=True)


def upsert(path: Path) -> None:
    wm.Relation.open(path).upsert({"id": i, "text": "new"} for i in range(0, 90, 7))


def outgrow(path: Path) -> None:
    """Put in so many rows that partitions are cut, and what the version before last had is removed."""
    relation = wm.Relation.open(path)
    partitions = relation.partitions
    relation.upsert({"id": i, "text": "more"} for i in range(10, 110))
    assert relation.partitions > partitions or relation.latest.cut_in > 1


def delete(path: Path) -> None:
    wm.Relation.open(path).delete(list(range(0, 60, 3)))


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "failed"])
@pytest.mark.parametrize("act", [build, rebuild, upsert, outgrow, delete], ids=lambda act: act.__name__)
def test_whole_whenever_it_fails(act: Callable[[Path], None], kill: bool, tmp_path: Path) -> None:
    """Every write, sync, rename, creation and removal fails in turn; the relation is as before or as after."""

    template = tmp_path / "template"
    if act is not build:
        build(template)
        wm.Relation.open(template).upsert([{"id": 1, "text": "first"}])

    def prepare(name: str) -> Path:
        path = tmp_path / name
        if template.exists():
            shutil.copytree(template, path)
        return path

    def state(path: Path) -> Counter[Any] | None:
        return rows_of(wm.Relation.open(path).table()) if wm.Relation.is_at(path) else None

    path = prepare("undisturbed")
    before = state(path)
    with failing(10**9, kill) as calls:
        act(path)
    after = state(path)
    assert calls[0] > 15 and before != after
    seen = set()
    for at in range(1, calls[0] + 1):
        path = prepare(f"at-{at}")
        try:
            with failing(at, kill):
                act(path)
        except (Killed, SpillError):
            pass
        found = state(path)
        assert found in (before, after), f"torn by call {at} of {calls[0]}"
        seen.add("old" if found == before else "new")
        if act is not build or found is None:
            act(path)  # whoever comes next finds nothing in the way
        assert state(path) == after
        store = wm.Relation.open(path).reader.store
        latest = wm.Relation.open(path).latest
        assert set(segments_in(store)) <= {*latest.ids.tolist(), *(n for n, _ in latest.retired)}
        assert version_name(latest.number) in store.names()
    assert "old" in seen
