"""The operator of a micro-batch against the oracle: every type, several batches, tiny memory. No Spark is needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.cases import Case, make_case
from watersmeet.checks.run import expected_rows
from watersmeet.core.errors import BudgetError
from watersmeet.core.protocol import Arrive
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.runs.mapped import OpenSegments
from watersmeet.spark.state.directory import Batch, GroupState, Held, batch_of, manifests
from watersmeet.spark.state.lineage import Lineage
from watersmeet.spark.task.batch_runs import canonical_order
from watersmeet.spark.task.run_join import MicroBatchJoin
from watersmeet.spark.task.run_merging import to_merge
from watersmeet.spark.task.sizes import LEAST
from watersmeet.spill.file_store import FileStore

Pieces = list[tuple[int, pa.RecordBatch]]
ONE_RUN = Lineage((("run", 0),))


class Group:
    """A group's state, fed batch by batch as tasks do."""

    def __init__(self, path: Path, spec: JoinSpec, memory: int) -> None:
        path.mkdir(exist_ok=True)
        self.path, self.spec, self.memory = path, spec, memory
        self.next = 0
        self.last: MicroBatchJoin | None = None

    def state(self, number: int) -> GroupState:
        """The state as a batch finds it."""
        return GroupState(self.path, Batch(number, "run"), retain=3, lineage=ONE_RUN)

    def batch(self, pieces: Pieces, number: int | None = None) -> list[pa.RecordBatch]:
        """Run a batch, the next one unless told; each with its own mappings, as another process would."""
        number = self.next if number is None else number
        group = self.state(number)
        held = group.before()
        join = MicroBatchJoin(self.spec, self.memory, group.store, group.name, OpenSegments())
        join.receive(pieces)
        if any(join.counts.rows):
            group.publish(Held(number, join.merged(held.runs)))
        self.next, self.last = number + 1, join
        return list(join.results(held.runs))


def _rows(batches: list[pa.RecordBatch]) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch))


def _micro_batches(case: Case, rng: np.random.Generator) -> list[Pieces]:
    pieces = [(m.event.input, m.event.batch) for m in case.moves if isinstance(m.event, Arrive)]
    cuts = sorted(rng.integers(0, len(pieces) + 1, int(rng.integers(0, 7))).tolist())
    return [pieces[a:b] for a, b in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]


@pytest.mark.parametrize("first", range(0, 240, 20))
def test_all_types_over_several_batches(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        case = make_case(seed, XJoin)
        if case.spec.output is not Output.ROWS:
            continue
        group = Group(tmp_path / str(seed), case.spec, LEAST)
        found: list[pa.RecordBatch] = []
        for pieces in _micro_batches(case, np.random.default_rng(seed)):
            found += group.batch(pieces)
        assert _rows(found) == expected_rows(case), case


def _integers(rng: np.random.Generator, rows: int, keys: int, column: str) -> pa.RecordBatch:
    return pa.record_batch({"id": rng.integers(0, keys, rows), column: np.arange(rows)})


def _count(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    ours, theirs = (Counter(batch["id"].to_pylist()) for batch in (left, right))
    return sum(count * theirs[key] for key, count in ours.items())


def test_rows_beyond_the_memory_are_written_in_several_runs_and_all_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    left, right = _integers(rng, 30_000, 9_000, "a"), _integers(rng, 20_000, 9_000, "b")
    group = Group(tmp_path / "g", JoinSpec(left.schema, right.schema, parse_on("id")), LEAST)
    found = group.batch([(0, left), (1, right)])
    assert group.last is not None
    assert group.last.counts.runs > 10
    assert group.last.counts.peak <= LEAST
    assert sum(batch.num_rows for batch in found) == group.last.counts.results == _count(left, right)
    assert max(batch.nbytes for batch in found) <= LEAST // 8


def test_one_key_for_all_rows_comes_out_in_bounded_batches(tmp_path: Path) -> None:
    left = pa.record_batch({"id": np.zeros(700, np.int64), "text": ["x" * (i % 50) for i in range(700)]})
    right = pa.record_batch({"id": np.zeros(600, np.int64), "more": ["y" * (i % 70) for i in range(600)]})
    group = Group(tmp_path / "g", JoinSpec(left.schema, right.schema, parse_on("id")), LEAST)
    found = group.batch([(0, left.slice(0, 300)), (1, right)]) + group.batch([(0, left.slice(300))])
    assert sum(batch.num_rows for batch in found) == 700 * 600
    assert len(set(zip(*(pa.Table.from_batches(found).column(i).to_pylist() for i in (1, 2)), strict=True))) == 50 * 70
    assert max(batch.nbytes for batch in found) <= LEAST // 8


def test_a_replayed_batch_answers_the_same_in_the_same_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    spec = JoinSpec(pa.schema({"id": pa.int64(), "a": pa.int64()}), pa.schema({"id": pa.int64(), "b": pa.int64()}),
                    parse_on("id"))  # fmt: skip
    group = Group(tmp_path / "g", spec, LEAST)
    batches = [[(0, _integers(rng, 500, 200, "a")), (1, _integers(rng, 500, 200, "b"))] for _ in range(3)]
    first = [group.batch(pieces) for pieces in batches]
    shuffled: Pieces = [
        (side, rows.take(pa.array(rng.permutation(rows.num_rows)))) for side, rows in reversed(batches[2])
    ]
    again = group.batch(shuffled, number=2)
    assert first[2]
    assert pa.Table.from_batches(again).equals(pa.Table.from_batches(first[2]))
    # What comes after goes on from the replayed state.
    after = group.batch(batches[0])
    lefts, rights = ([rows for pieces in [*batches, batches[0]] for s, rows in pieces if s == side] for side in (0, 1))
    everything = _count(pa.concat_batches(lefts), pa.concat_batches(rights))
    assert sum(b.num_rows for each in [*first, after] for b in each) == everything


def test_runs_stay_few_and_old_files_go(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    left, right = (_integers(rng, 4_000, 3_000, column) for column in "ab")
    group = Group(tmp_path / "g", JoinSpec(left.schema, right.schema, parse_on("id")), LEAST)
    found = 0
    for start in range(0, 4_000, 100):
        pieces = [(0, left.slice(start, 100)), (1, right.slice(start, 100))]
        found += sum(batch.num_rows for batch in group.batch(pieces))
    assert found == _count(left, right)
    held = GroupState(group.path, Batch(group.next, "run"), 3, ONE_RUN).before()
    assert all(len(runs) <= 6 for runs in held.runs)
    assert all(sum(run.rows for run in runs) == 4_000 for runs in held.runs)
    # Versions 37 to 39 can be gone back to, so 36, the state before them, stays; segments stay while one has them.
    state = GroupState(group.path, Batch(39, "run"), 3, ONE_RUN)
    state.sweep()
    assert list(manifests((path.name for path in group.path.iterdir()), ONE_RUN)) == [36, 37, 38, 39]
    needed = set[str]().union(
        *(GroupState(group.path, Batch(n + 1, "run"), 3, ONE_RUN).before().segments() for n in range(36, 40))
    )
    old = {path.name for path in group.path.glob("*-*-*-*") if batch_of(path.name) <= 36}
    assert old
    assert old <= needed <= {path.name for path in group.path.iterdir()}


def test_merging_keeps_each_run_larger_than_all_newer_ones() -> None:
    rows: list[int] = []
    for _ in range(500):
        rows.append(10)
        while count := to_merge(rows):
            rows[-count:] = [sum(rows[-count:])]
        assert all(rows[i] > 2 * rows[i + 1] for i in range(len(rows) - 1))


def test_canonical_order_depends_on_the_rows_alone() -> None:
    rng = np.random.default_rng(8)
    hashes = rng.integers(0, 20, 300)
    columns = [
        pa.array(rng.integers(0, 3, 300), mask=rng.random(300) < 0.2),
        pa.array([["b", "a", None][i] for i in rng.integers(0, 3, 300)]),
        pa.array([{"x": int(i)} if i else None for i in rng.integers(0, 4, 300)]),
    ]
    order = canonical_order(hashes, columns)
    shuffle = rng.permutation(300)
    again = canonical_order(hashes[shuffle], [column.take(pa.array(shuffle)) for column in columns])
    assert np.array_equal(hashes[order], np.sort(hashes))
    for column in columns:
        assert column.take(pa.array(order)).equals(column.take(pa.array(shuffle)).take(pa.array(again)))


def test_too_little_memory_is_refused() -> None:
    spec = JoinSpec(pa.schema({"id": pa.int64()}), pa.schema({"id": pa.int64()}), parse_on("id"))
    with FileStore() as store, pytest.raises(BudgetError, match="allow at least 256 KiB"):
        MicroBatchJoin(spec, LEAST - 1, store)


def test_rows_of_one_pass_are_left_in_a_few_runs_and_all_found() -> None:
    rng = np.random.default_rng(9)
    left, right = _integers(rng, 7_000, 3_000, "a"), _integers(rng, 6_000, 3_000, "b")
    found = {}
    for most in (1, 4):
        with FileStore() as store:
            spec = JoinSpec(left.schema, right.schema, parse_on("id"))
            join = MicroBatchJoin(spec, LEAST, store, most_runs=most)
            join.receive([(0, left), (1, right)])
            assert 4 < join.counts.runs < 2 * 32
            found[most] = _rows(list(join.results(((), ()))))
            written = store.bytes_written
        found[most, "written"] = written
    assert found[1] == found[4]
    assert found[1].total() == _count(left, right)
    assert found[4, "written"] < found[1, "written"]


def test_no_small_batch_pays_for_merging_a_long_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    left, right = _integers(rng, 9_000, 3_000, "a"), _integers(rng, 9_000, 3_000, "b")
    group = Group(tmp_path / "g", JoinSpec(left.schema, right.schema, parse_on("id")), LEAST)
    found = start = merging = 0
    for size in [4_000, *[100] * 50]:
        pieces = [(0, left.slice(start, size)), (1, right.slice(start, size))]
        start += size
        found += sum(batch.num_rows for batch in group.batch(pieces))
        held = group.state(group.next).before()
        assert all(sum(run.rows for run in runs) == start for runs in held.runs)
        assert all(len(runs) < 14 for runs in held.runs)
        merging += any(run.taking for runs in held.runs for run in runs)
        if size == 100:
            refs = [ref for run in held.runs[0] for ref in run.segments if batch_of(ref.name) == held.batch]
            assert 0 < sum(ref.rows for ref in refs) < 1_500
    lefts, rights = left.slice(0, start), right.slice(0, start)
    assert found == _count(lefts, rights)
    assert merging > 5
