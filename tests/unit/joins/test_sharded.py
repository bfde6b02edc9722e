"""Confluence in shards: events reach all, memory follows the need, figures add up, snapshots keep the number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError, SpecError
from watersmeet.core.protocol import Arrive, End, Punctuate, Stall, Status
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.sharded import Sharded
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "note": pa.string()})
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("id"))
MEMORY = 2 << 20


def rows(ids: range | list[int], width: int = 20) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "note": [str(i).zfill(width) for i in ids]}, SCHEMA)


def work_off(join: Sharded, fuel: int = 10_000, now: float = 0.0) -> Counter[int]:
    """Poll as long as there is something to do; the keys of the pairs."""
    found: Counter[int] = Counter()
    while True:
        step = join.poll(now, fuel)
        join.check()
        if step.out is not None:
            found.update(step.out.column(0).to_pylist())
        if step.status is not Status.HAS_OUTPUT:
            return found


def hot_ids(join: Sharded, shard: int, count: int) -> list[int]:
    """Keys of one shard."""
    found: list[int] = []
    for start in range(0, 1 << 20, 4096):
        batch = rows(range(start, start + 4096), 1)
        piece = join._splitters[0].split(batch, 0)[shard]
        found += [] if piece is None else (piece.rows + start).tolist()
        if len(found) >= count:
            return found[:count]
    raise AssertionError("no such keys")


def test_each_shard_has_its_part_and_the_figures_are_of_all() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore(), shards=3, delay=1.0)
    found: Counter[int] = Counter()
    for start in range(0, 30_000, 1000):
        for side in (0, 1):
            join.receive(Arrive(side, rows(range(start, start + 1000), 80)))
            found += work_off(join, now=start / 1000)
    join.receive(Arrive(0, rows(range(2000), 80)))
    found += work_off(join, now=31.0)
    assert all(15_000 < shard.cost.inserts < 26_000 for shard in join.shards)
    assert join.cost.inserts == 62_000 and join.cost.hashes == 62_000, "hashes are computed once"
    assert join.events == sum((shard.events for shard in join.shards), Counter()) and join.events["flushed"] > 0
    each = [shard.report().lateness for shard in join.shards]
    assert all(lateness is not None for lateness in each), "all shards spilled"
    lateness = join.report().lateness
    assert lateness is not None
    assert lateness.owing == sum(part.owing for part in each if part is not None)
    assert lateness.most == max(part.most for part in each if part is not None)
    wakes = [at for shard in join.shards if (at := shard.wake_at()) is not None]
    assert join.wake_at() == (min(wakes) if wakes else None)
    for side in (0, 1):
        join.receive(End(side))
    found += work_off(join)
    assert found == Counter({i: 1 + (i < 2000) for i in range(30_000)}) and join.phase == "done"
    assert join.budget.peak <= MEMORY


def test_a_shard_with_more_rows_than_others_has_more_of_the_memory_before_it_flushes() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore(), shards=4)
    ids = hot_ids(join, 2, 6000)
    held = 0
    for start in range(0, len(ids), 500):
        join.receive(Arrive(0, rows(ids[start : start + 500], 150)))
        work_off(join)
        if not join.events["flushed"]:
            held = join.budget.shares[2].used
    assert held > 1.5 * join.budget.fair, "it took what the others had no use for"
    assert join.events["flushed"] > 0
    work_off(join)
    assert join.budget.shares[2].total < held, "and gave back what it no longer needed"


def test_a_shard_without_room_for_a_row_gets_what_others_have_too_much_of() -> None:
    join = Sharded(SPEC, Sharded.least_memory(SPEC, shards=2) + 200_000, MemoryStore(), shards=2)
    rich, poor = (hot_ids(join, shard, 3000) for shard in (0, 1))
    pool = join.budget
    for start in range(0, 3000, 10):
        join.receive(Arrive(0, rows(rich[start : start + 10], 30)))
        work_off(join)
        if pool._left < pool.step:
            break
    assert pool.shares[0].total > pool.fair and not join.events["flushed"]
    wide = (pool.fair - pool.shares[1].used) // 5
    join.receive(Arrive(0, rows(poor[:1], wide)))
    work_off(join)
    assert join.shards[1].tables[0].rows == 1, "it was taken in"
    assert join.shards[0].events["flushed"] == 1 and pool.shares[0].total <= pool.fair
    join.receive(Arrive(1, rows([*poor[:1], *rich[: start + 10]], 5)))
    for side in (0, 1):
        join.receive(End(side))
    assert work_off(join) == Counter([*poor[:1], *rich[: start + 10]])


def test_a_hot_key_does_not_keep_other_shards_from_going_on() -> None:
    join = Sharded(SPEC, 8 << 20, MemoryStore(), shards=2)
    hot, cold = hot_ids(join, 0, 1), hot_ids(join, 1, 2000)
    join.receive(Arrive(0, rows(hot * 2000)))
    join.receive(Arrive(0, rows(cold)))
    work_off(join)
    join.receive(Arrive(1, rows(hot * 2000)))  # four million pairs
    join.receive(Arrive(1, rows(cold)))
    found: Counter[str] = Counter()
    while found["cold"] < 2000:
        step = join.poll(0.0, 5000)
        assert step.status is Status.HAS_OUTPUT
        if step.out is not None:
            found["hot" if step.out.column(0)[0].as_py() in hot else "cold"] += step.out.num_rows
    assert found["hot"] < 1_000_000
    while not found["hot"]:
        step = join.poll(0.0, 5000)
        found["hot"] += step.out.num_rows if step.out is not None else 0
    join.close()


def test_ends_silences_and_later_rows_reach_every_shard() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore(), shards=2)
    join.receive(Arrive(0, rows(range(10))))
    work_off(join)
    join.receive(Stall())
    join.poll(0.0, 10)
    work_off(join)
    assert all(shard._stalled for shard in join.shards)
    join.receive(Arrive(0, rows(hot_ids(join, 0, 3))))
    work_off(join)
    assert not any(shard._stalled for shard in join.shards), "the silence is over for all"
    join.receive(End(0))
    work_off(join)
    assert all(shard.exhausted(0) and not shard.exhausted(1) for shard in join.shards)
    with pytest.raises(ProtocolError, match="left has ended"):
        join.receive(Arrive(0, rows([1])))
    with pytest.raises(ProtocolError, match="does not take Punctuate"):
        join.receive(Punctuate(1, {"id": 1}))


def test_more_rows_than_may_be_on_their_way_wait_in_whole_batches() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore(), shards=2)
    most = join.budget.beside.free // 16
    join.receive(Arrive(0, rows(range(3 * most), 4)))
    join.hand_on()
    assert not join.hungry and join.outstanding == [3 * most, 0] and join.budget.beside.free < 16
    join.check()
    work_off(join)
    assert join.hungry and join.outstanding == [0, 0] and join.cost.inserts == 3 * most


def test_rows_that_match_nothing_are_not_waited_for() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore(), shards=2)
    join.receive(Arrive(0, pa.record_batch({"id": pa.nulls(5, pa.int64()), "note": ["a"] * 5}, SCHEMA)))
    work_off(join)
    assert join.outstanding == [0, 0]
    join.check()


def test_snapshots_are_of_as_many_shards() -> None:
    store = MemoryStore()
    join = Sharded(SPEC, MEMORY, store, shards=3)
    join.receive(Arrive(0, rows(range(5000))))
    join.poll(0.0, 100)
    join.receive(Arrive(1, rows(range(2500, 7500))))
    snapshot = join.snapshot()
    assert len(snapshot.state["shards"]) == 3 and all(name in store.names() for name in snapshot.segments)
    for shards in (2, 4):
        with pytest.raises(SnapshotError, match="of 3 shards; ask for as many"):
            Sharded.restore(SPEC, snapshot, MEMORY, store, shards=shards)
    again = Sharded.restore(SPEC, snapshot, MEMORY, store, shards=3)
    again.check()
    for side in (0, 1):
        again.receive(End(side))
    assert work_off(again) == Counter(range(2500, 5000))
    plain = Confluence(SPEC, MEMORY, MemoryStore()).snapshot()
    with pytest.raises(SnapshotError, match="without shards"):
        Sharded.restore(SPEC, plain, MEMORY, store, shards=3)


def test_too_little_memory_and_no_shards_are_refused() -> None:
    least = Sharded.least_memory(SPEC, shards=8)
    with pytest.raises(BudgetError, match="in 8 shards; allow at least"):
        Sharded(SPEC, least - 1, MemoryStore(), shards=8)
    Sharded(SPEC, least, MemoryStore(), shards=8).check()
    with pytest.raises(SpecError, match="cannot be 0 shards"):
        Sharded(SPEC, MEMORY, MemoryStore(), shards=0)


def test_a_band_is_refused() -> None:
    with pytest.raises(SpecError, match="id need only be close; use one thread"):
        Sharded(JoinSpec(SCHEMA, SCHEMA, parse_on(wm.band("id", 2))), MEMORY, MemoryStore())


def test_a_batch_of_other_columns_is_refused() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore())
    with pytest.raises(SpecError, match="other columns than announced"):
        join.receive(Arrive(0, pa.record_batch({"x": np.arange(3)})))


def test_small_batches_are_split_together() -> None:
    join = Sharded(SPEC, MEMORY, MemoryStore(), shards=2)
    split: list[int] = []
    for number, splitter in enumerate(join._splitters):
        real = splitter.split

        def noted(batch: pa.RecordBatch, first: int, number: int = number, real: Any = real) -> Any:
            split.append(batch.num_rows)
            return real(batch, first)

        splitter.split = noted  # type: ignore[method-assign]
    for i in range(50):
        for side in (0, 1):
            join.receive(Arrive(side, rows([i])))
    join.receive(End(0))
    join.receive(Arrive(1, rows([50])))
    join.receive(End(1))
    assert join.received == 101
    assert work_off(join) == Counter(range(50)) and split == [50, 50, 1]
