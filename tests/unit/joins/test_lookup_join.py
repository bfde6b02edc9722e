"""`wm.lookup_join` and its choices."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from waiting import PATIENCE
from watersmeet.cli.main import run
from watersmeet.core.lookup import LookupSpec, lookup_conditions
from watersmeet.core.protocol import Arrive, End, Stall, Status
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.engine.lookup_shell import Waiting
from watersmeet.joins.lookup.index_nested_loop import IndexNestedLoop
from watersmeet.joins.lookup.meshjoin import MeshJoin
from watersmeet.joins.lookup.partitioned import Partitioned
from watersmeet.policies.join_memory import ArrivalFrequency, victims
from watersmeet.relation.changes import StoredRelation
from watersmeet.spill import MemoryStore


def products(count: int = 2_000) -> pa.Table:
    return pa.table({"sku": range(count), "name": [f"product {i}" for i in range(count)]})


def sold(skus: list[Any]) -> pa.Table:
    return pa.table({"sku": pa.array(skus, pa.int64()), "n": pa.array(range(len(skus)), pa.int64())})


@pytest.mark.parametrize("partition", ["range", "hash"])
def test_a_stream_is_enriched(partition: str, tmp_path: Path) -> None:
    relation = wm.Relation.build(
        products(), on="sku", path=tmp_path / "r", partition=partition, segment="4 KiB", memory="1 MiB"
    )
    skus = np.random.default_rng(1).integers(0, 2_500, 5_000).tolist()
    result = wm.lookup_join(sold(skus), relation, memory="256 KiB")
    found = result.table()
    assert Counter(found["n"].to_pylist()) == Counter(n for n, sku in enumerate(skus) if sku < 2_000)
    assert all(row["name"] == f"product {row['sku']}" for row in found.to_pylist())
    figures = result.progress.lookup
    assert figures is not None and figures.answered == 5_000
    assert figures.misses == sum(sku >= 2_000 for sku in skus)
    assert figures.bytes_read > 0 and figures.hits > 0 and 0 <= figures.delay_p50 <= figures.delay_p99 < 60
    assert result.progress.algorithm == "partitioned" and "memory" in str(result.progress.reason)
    assert result.progress.peak <= 256 * 1024
    assert "misses" in str(result.progress)


@pytest.mark.parametrize(
    "how, on_miss, rows",
    [
        ("inner", None, [(1, 0, "product 1")]),
        ("left", None, [(1, 0, "product 1"), (None, 2, None), (99, 1, None)]),
        ("inner", "keep", [(1, 0, "product 1"), (None, 2, None), (99, 1, None)]),
        ("semi", "drop", [(1, 0)]),
        ("anti", None, [(None, 2), (99, 1)]),
    ],
)
def test_what_comes_out_for_a_row(how: str, on_miss: str | None, rows: list[Any]) -> None:
    found = wm.lookup_join(sold([1, 99, None]), products(10), on="sku", how=how, on_miss=on_miss).table()
    assert sorted((tuple(row.values()) for row in found.to_pylist()), key=str) == sorted(rows, key=str)


def test_from_files_and_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(products(), tmp_path / "products.parquet")
    pq.write_table(sold([5, 6, 5_000]), tmp_path / "sold.parquet")
    found = wm.lookup_join(tmp_path / "sold.parquet", tmp_path / "products.parquet", on="sku", spill=tmp_path)
    assert found.table().num_rows == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["products.parquet", "sold.parquet"]
    words = ["lookup-join", str(tmp_path / "sold.parquet"), str(tmp_path / "products.parquet"), "--on", "sku"]
    assert run([*words, "--how", "left", "-o", str(tmp_path / "out.parquet")]) == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 3
    assert "1 misses" in capsys.readouterr().err
    assert run([*words, "--how", "outer"]) == 2
    assert "choose inner, left, semi, anti" in capsys.readouterr().err
    wm.Relation.build(tmp_path / "products.parquet", on="sku", path=tmp_path / "rel")
    assert run([words[0], words[1], str(tmp_path / "rel"), "--quiet"]) == 0
    assert "product 6" in capsys.readouterr().out


def test_bad_requests_are_sentences(tmp_path: Path) -> None:
    relation = wm.Relation.build(products(10), on="sku", path=tmp_path / "r")
    with pytest.raises(wm.SpecError, match="laid out by sku"):
        wm.lookup_join(sold([1]), relation, on="n = name")
    with pytest.raises(wm.SpecError, match="contradict"):
        wm.lookup_join(sold([1]), relation, how="semi", on_miss="keep")
    with pytest.raises(wm.SpecError, match="no option 'colour'"):
        wm.lookup_join(sold([1]), relation, colour="red")
    with pytest.raises(wm.SpecError, match="not known"):
        wm.lookup_join(sold([1]), relation, algorithm="xjoin")
    with pytest.raises(wm.SpecError, match="knows its own"):
        wm.lookup_join(sold([1]), products(3))
    with pytest.raises(wm.SpecError, match="bands and points are joined"):
        wm.lookup_join(sold([1]), products(3), on=wm.band("sku", 1))
    with pytest.raises(wm.SpecError, match="cannot be compared"):
        wm.lookup_join(pa.table({"sku": ["x"]}), relation)
    with pytest.raises(wm.BudgetError, match="too small for this join"):
        wm.lookup_join(sold([1]), relation, memory="1 KiB").table()
    with pytest.raises(wm.SpecError, match="r_wb must be a share"):
        wm.lookup_join(sold([1]), relation, r_wb=2).table()


def test_rows_see_every_change_that_came_before_them(tmp_path: Path) -> None:
    """A stream that waits for each change to be made gets exactly the newest name, every time."""
    relation = wm.Relation.build(products(200), on="sku", path=tmp_path / "r", segment="1 KiB", memory="64 KiB")
    writer = wm.Relation.open(tmp_path / "r")
    answered = threading.Semaphore(0)

    def stream() -> Iterator[dict[str, int]]:
        for n in range(12):
            if n:
                assert answered.acquire(timeout=PATIENCE), f"row {n - 1} is not answered"
            writer.upsert([{"sku": n % 3, "name": f"name {n}"}])
            yield {"sku": n % 3, "n": n}

    for batch in wm.lookup_join(wm.source(stream(), batch_rows=1), relation, memory="256 KiB"):
        for row in batch.to_pylist():
            assert row["name"] == f"name {row['n']}"
            answered.release()


def test_a_relation_changed_by_another_thread_all_the_while(tmp_path: Path) -> None:
    relation = wm.Relation.build(products(500), on="sku", path=tmp_path / "r", segment="2 KiB", memory="64 KiB")
    stop = threading.Event()

    def change() -> None:
        writer, i = wm.Relation.open(tmp_path / "r"), 0
        while not stop.is_set():
            writer.upsert({"sku": sku, "name": f"product {sku}"} for sku in range(i % 500, i % 500 + 5))
            i += 37

    thread = threading.Thread(target=change)
    thread.start()
    try:
        skus = np.random.default_rng(2).integers(0, 500, 20_000).tolist()
        batches = iter(sold(skus).to_batches(max_chunksize=500))
        found = wm.lookup_join(batches, relation, memory="256 KiB").table()
    finally:
        stop.set()
        thread.join()
    assert sorted(found["n"].to_pylist()) == list(range(20_000))
    assert relation.version > 2


# --- the operator, step by step ---


def operator(rows: int = 400, memory: int | None = None, **options: Any) -> Partitioned:
    relation = StoredRelation.in_memory(products(rows), ("sku",), theta=1024)
    spec = LookupSpec(sold([]).schema, relation.schema, lookup_conditions("sku", relation.on))
    least = Partitioned.least_memory(spec, relation.reader)
    return Partitioned(spec, least + (memory or 0), MemoryStore(), relation.reader, **options)


def feed(join: LookupJoin, skus: list[int], now: float = 0.0) -> int:
    join.receive(Arrive(0, sold(skus).combine_chunks().to_batches()[0]))
    return drain(join, now)


def drain(join: LookupJoin, now: float = 0.0) -> int:
    rows, status = 0, Status.HAS_OUTPUT
    while status is Status.HAS_OUTPUT:
        step = join.poll(now, 10_000)
        rows += 0 if step.out is None else step.out.num_rows
        status = step.status
        join.check()
    return rows


def test_rows_wait_for_each_other_and_a_partition_stays() -> None:
    join = operator(memory=64 * 1024, n_invoke=10, max_delay=None)
    assert feed(join, list(range(5))) == 0 and join.rows_waiting == 5
    assert feed(join, list(range(5, 10))) == 10, "ten wait: the partition is read"
    assert join.cost.seeks == 1 and join.hits == 0
    assert feed(join, [3, 4]) == 2 and join.hits == 2 and join.cost.seeks == 1, "it is in memory now"
    assert feed(join, [399]) == 0
    join.receive(Stall())
    assert join.poll(0.0, 1).status is Status.HAS_WORK
    while join.rows_waiting:
        join.poll(0.0, 100)
    assert join.cost.seeks == 2, "a silence is used for those who wait"
    join.receive(End(0))
    assert drain(join) == 0 and join.phase == "done"


def test_rows_that_arrive_together_are_taken_together() -> None:
    join = operator(memory=8 << 20, max_delay=None)
    join.receive(Arrive(0, sold(list(range(400)) * 10).combine_chunks().to_batches()[0]))
    assert join.poll(0.0, 10**6).status is Status.NEED_INPUT and join.rows_waiting == 4_000
    assert join.cost.seeks == 0
    queue = Waiting(join._queue[0]._limit, join._pinned)
    queue.add(sold(list(range(20_000))).combine_chunks().to_batches()[0])
    assert queue.next()[0].num_rows >= 10_000, "as many at once as the memory allows, not as the least would"


def test_nobody_waits_too_long() -> None:
    join = operator(memory=64 * 1024, max_delay=0.5)
    assert feed(join, [1], now=10.0) == 0
    assert join.wake_at() == 10.5
    assert join.poll(10.4, 100).out is None
    assert drain(join, 10.6) == 1 and join.wake_at() is None
    assert 0.5 < join.answers.delays.quantile(0.5) < 0.7


def test_arrivals_go_before_rows_that_have_waited_for_long_but_not_for_ever() -> None:
    join = operator(memory=64 * 1024, max_delay=0.5)
    parts = join.version.map.locate(join._codec.places([pa.array(range(400))]))
    lonely = [int(np.flatnonzero(parts == part)[0]) for part in range(4)]
    assert feed(join, lonely, now=0.0) == 0
    assert join.poll(0.7, 100).out.num_rows == 1 and join.rows_waiting == 3
    assert join.status is Status.NEED_INPUT and join.wake_at() == 0.5, "one is answered, and arrivals may come between"
    join.poll(1.0, 100)
    assert join.status is Status.HAS_OUTPUT and drain(join, 1.1) == 2, "no longer than twice that"


def test_a_join_without_a_moment_to_spare_lets_rows_wait_longer() -> None:
    join = operator(memory=64 * 1024, max_delay=0.5)
    for step in range(100):
        join._must_poll = True  # never idle between two polls
        join.poll(step * 0.1, 1)
    assert feed(join, [1], now=10.0) == 0 and join.wake_at() == 15.0, "ten times as long, and no longer"
    assert drain(join, 11.0) == 0 and join.rows_waiting == 1
    for step in range(20):
        join._must_poll = False
        join.poll(20.0 + step, 1)
    assert join._patience == 0.5, "idle for a long time: promptness is back"


def test_a_full_buffer_is_drained_largest_first() -> None:
    join = operator(rows=4_000, n_invoke=10**9, max_delay=None, r_wb=0.4)
    parts = join.version.map.locate(join._codec.places([pa.array(range(4_000))]))
    crowded, lonely = np.flatnonzero(parts == 3)[:3], np.flatnonzero(parts == 7)[:1]
    fed = answered = 0
    while not answered:
        answered += feed(join, crowded.tolist() + (lonely.tolist() if not fed else []))
        fed += 4 if not fed else 3
    assert join.rows_waiting == fed - answered and join._wait.part_rows[7] == 1, "the lonely row still waits"


def test_hot_partitions_displace_cold_ones() -> None:
    join = operator(rows=4_000, memory=12 * 1024, n_invoke=1, max_delay=None, epoch=1_000)
    for sku in range(0, 4_000, 50):
        feed(join, [sku])
    resident = len(join.memory.parts)
    assert 0 < resident < join.version.partitions
    hot = list(range(1_000, 1_010))
    for _ in range(30):
        feed(join, hot)
    part = int(join.version.map.locate(join._codec.places([pa.array([1_005])]))[0])
    assert part in join.memory.parts.tolist()
    before = join.hits
    feed(join, hot)
    assert join.hits == before + 10


def test_the_worked_decay_and_equation_6_1() -> None:
    frequency = ArrivalFrequency(1, alpha=0.3, epoch=10)
    for arrivals in (10, 10, 10):
        frequency.note(np.array([arrivals]))
    assert frequency.counts[0] == pytest.approx(10 * (0.3 + 0.09 + 0.027)), "each epoch's count, by its age"
    counts, sizes = np.array([5.0, 4.0, 1.0]), np.array([200, 100, 100])
    assert victims(counts, sizes, np.array([1, 2]), 0, rho=0.25, free=100) == [2]
    assert victims(counts, sizes, np.array([1, 2]), 0, rho=0.25, free=0) is None, "equation 6.2: no room"
    assert victims(counts, sizes, np.array([1]), 0, rho=0.25, free=100) is None, "wanted more for its size"


def test_a_mesh_row_leaves_when_the_whole_relation_has_passed() -> None:
    relation = StoredRelation.in_memory(products(400), ("sku",), theta=1024)
    spec = LookupSpec(sold([]).schema, relation.schema, lookup_conditions("sku", relation.on), "left")
    join = MeshJoin(spec, 200_000, MemoryStore(), relation.reader)
    scan = len(relation.latest.ids)
    assert scan > 5 and join.capacity >= 1_000
    share = join.capacity // scan
    assert feed(join, [7] * (share - 1)) == 0 and join.cost.seeks == 0, "the queue segment is not full"
    found = feed(join, [7])
    assert join.cost.seeks == 1 and found in (0, share)
    for turn in range(2, scan):
        found += feed(join, [1_000] * share)
        assert join.cost.seeks == turn and join.rows_waiting == turn * share
    found += feed(join, [1_000] * share)
    assert join.cost.seeks == scan and join.rows_waiting == (scan - 1) * share and found == share
    join.receive(End(0))
    assert found + drain(join) == scan * share and join.phase == "done"
    assert join.answers.misses == (scan - 1) * share


def test_nested_loops_read_each_page_once_as_long_as_it_fits() -> None:
    relation = StoredRelation.in_memory(products(4_000), ("sku",), theta=64 * 1024)
    spec = LookupSpec(sold([]).schema, relation.schema, lookup_conditions("sku", relation.on))
    least = IndexNestedLoop.least_memory(spec, relation.reader)
    skus = np.random.default_rng(1).integers(0, 4_000, 3_000).tolist()
    plenty, scarce = (
        IndexNestedLoop(spec, memory, MemoryStore(), relation.reader) for memory in (least + 4_000_000, least)
    )
    assert feed(plenty, skus) == feed(scarce, skus) == 3_000
    pages = -(-relation.nbytes // 4096)
    assert plenty.cost.pages_read <= pages + len(relation.latest.ids) < scarce.cost.pages_read
    before = plenty.cost.pages_read
    assert feed(plenty, skus) == 3_000 and plenty.cost.pages_read == before and plenty.hits > 0


def test_a_snapshot_of_a_version_that_is_gone_is_refused() -> None:
    join = operator()
    feed(join, [1])
    taken = join.snapshot()
    relation = StoredRelation(join.reader.store, join.reader.pins, "memory")
    spec, store, reader, memory = join.spec, join.store, join.reader, join.budget.total
    join.close()
    for i in range(3):
        relation.upsert(pa.record_batch({"sku": [i], "name": ["x"]}))
    with pytest.raises(wm.errors.SnapshotError, match="cannot meet the relation as it was"):
        Partitioned.restore(spec, taken, memory, store, reader)


def test_a_slow_stream_is_answered_in_its_pauses(tmp_path: Path) -> None:
    relation = wm.Relation.build(products(), on="sku", path=tmp_path / "r")
    answered = threading.Semaphore(0)
    sent = 0

    def slow() -> Iterator[dict[str, int]]:
        nonlocal sent
        for n in range(3):
            sent += 1
            yield {"sku": n, "n": n}
            assert answered.acquire(timeout=PATIENCE), f"row {n} is not answered before the next one comes"

    for n, batch in enumerate(wm.lookup_join(wm.source(slow(), batch_rows=1), relation)):
        assert batch["n"].to_pylist() == [n]
        assert sent == n + 1, "the stream still pauses"
        answered.release()
    assert sent == 3
