"""Any operator through micro-batches: killed, repeated, restored or kept, it gives what the oracle gives. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.cases import Case, make_case
from watersmeet.checks.multi_cases import MultiCase, make_multi_case
from watersmeet.checks.run import expected_rows
from watersmeet.core.errors import PromiseError, SegmentError, SnapshotError, SourceError, SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.planner import ALGORITHMS, MULTIWAY
from watersmeet.spark.plan.control_rows import OVER, SIGN_CODES, UP_TO
from watersmeet.spark.plan.multijoin import MultiFactory
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.state.directory import Batch, GroupState, Owner, StateDirectory, batch_of
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_group import OperatorGroup, Shares
from watersmeet.spark.task.ordered_rows import Arrivals
from watersmeet.spark.task.punctuations import Punctuations, read_promises
from watersmeet.spark.task.row_hashes import row_hashes
from watersmeet.spill.store import MemoryStore

Pieces = list[tuple[int, pa.RecordBatch]]
FUEL = 20_000


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Killed(BaseException):
    """What a SIGKILL looks like to a test: nothing is cleaned up."""


class Group:
    """A group of a query that is started and stopped, fed batch by batch as tasks do."""

    def __init__(self, path: Path, factory: Any, memory: int, kept: KeptOperators | None = None) -> None:
        self.path, self.factory, self.memory = path, factory, memory
        self.kept = KeptOperators() if kept is None else kept
        self.run = "run-1"
        self.fuel = FUEL
        self.spilled = self.restored = self.held = 0

    def batch(
        self,
        number: int,
        pieces: Pieces,
        ended: tuple[int, ...] = (),
        kept: KeptOperators | None = None,
        over: Sequence[tuple[int, int, pa.RecordBatch]] = (),
    ) -> list[pa.RecordBatch]:
        owner = Owner(self.factory.fingerprint, 1, "query")
        group = StateDirectory(self.path, owner, Batch(number, self.run), retain=4).group(0)
        arrivals = Arrivals(self.factory.inputs, Shares.of(self.memory).arrivals, MemoryStore)
        for side, rows in pieces:
            arrivals.add(side, rows)
        kept = self.kept if kept is None else kept
        told = Punctuations(self.factory.inputs, Shares.of(self.memory).arrivals // 8, MemoryStore)
        for each in over:
            told.take(*each)
        outcome = OperatorGroup(self.factory, self.memory, self.fuel, group, kept).run(arrivals, frozenset(ended), told)
        self.held = outcome.counts.state_rows
        self.spilled += outcome.counts.spilled
        assert outcome.counts.peak <= self.memory
        results = list(outcome.results)
        assert sum(batch.num_rows for batch in results) == outcome.counts.results
        return results


def _rows(batches: list[pa.RecordBatch]) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch))


def _is_sparks(spec: JoinSpec | MultiSpec, inputs: int) -> bool:
    """Whether Spark could hand such rows to Python."""
    odd = (
        pa.types.is_dictionary, pa.types.is_run_end_encoded, pa.types.is_union,
        pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_list_view, pa.types.is_large_list_view,
    )  # fmt: skip

    def plain(type_: pa.DataType) -> bool:
        if isinstance(type_, pa.BaseExtensionType) or any(test(type_) for test in odd):
            return False
        return all(plain(type_.field(i).type) for i in range(type_.num_fields))

    return spec.output is Output.ROWS and all(plain(field.type) for side in range(inputs) for field in spec.input(side))


def _micro_batches(case: Case | MultiCase, rng: np.random.Generator) -> list[tuple[Pieces, tuple[int, ...]]]:
    """The case's rows as micro-batches; the ends come after each input's last rows, perhaps in batches of their own."""
    pieces = [(m.event.input, m.event.batch) for m in case.moves if isinstance(m.event, Arrive)]
    cuts = sorted(rng.integers(0, len(pieces) + 1, int(rng.integers(1, 7))).tolist())
    rows = [pieces[a:b] for a, b in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]
    rows += [[] for _ in range(int(rng.integers(0, 3)))]
    ends: list[tuple[int, ...]] = [() for _ in rows]
    for side in range(case.inputs):
        last = max((i for i, batch in enumerate(rows) if any(s == side for s, _ in batch)), default=0)
        at = int(rng.integers(last, len(rows)))
        ends[at] = (*ends[at], side)
    return list(zip(rows, ends, strict=True))


def _cases(name: str, count: int) -> Iterator[Case | MultiCase]:
    seed = 0
    while count:
        case = make_multi_case(seed, MULTIWAY[name]) if name in MULTIWAY else make_case(seed, ALGORITHMS[name])
        if _is_sparks(case.spec, case.inputs):
            count -= 1
            yield case
        seed += 1


def _factory(case: Case | MultiCase, name: str) -> JoinFactory | MultiFactory:
    return MultiFactory.of(case.spec, name) if isinstance(case, MultiCase) else JoinFactory.of(case.spec, name)


@pytest.mark.parametrize("name", sorted([*ALGORITHMS, *MULTIWAY]))
def test_killed_repeated_and_restarted_batches_give_every_pair_once(name: str, tmp_path: Path) -> None:
    spilled = replayed = 0
    for case in _cases(name, settings().max_examples // 12):
        rng = np.random.default_rng([case.seed, 77])
        memory = case.memory * 8 // 5 + 64
        if name == "symmetric_hash":
            memory *= 16
        group = Group(tmp_path / str(case.seed), _factory(case, name), memory)
        found: list[pa.RecordBatch] = []
        for number, (pieces, ended) in enumerate(_micro_batches(case, rng)):
            group.fuel = int(rng.choice([0, 50, 5_000]))
            if rng.random() < 0.3:  # another worker, which has kept nothing
                group.kept = KeptOperators()
            if rng.random() < 0.4:
                _killed(group, number, pieces, ended, rng)
            results = group.batch(number, pieces, ended)
            while rng.random() < 0.4:  # repeated, by this run or by the next one, in another order and with other fuel
                replayed += 1
                if rng.random() < 0.5:
                    group.run = f"run-{number}-{replayed}"
                group.fuel = int(rng.choice([0, 50, 5_000]))
                shuffled = [pieces[i] for i in rng.permutation(len(pieces))]
                again = group.batch(number, shuffled, ended, kept=rng.choice([group.kept, KeptOperators()]))
                assert _rows(again) == _rows(results), case
            found += results
        assert _rows(found) == expected_rows(case), case
        spilled += group.spilled
    assert replayed
    assert name == "symmetric_hash" or spilled


def _killed(group: Group, number: int, pieces: Pieces, ended: tuple[int, ...], rng: np.random.Generator) -> None:
    """An attempt that ends at some write to the disk, and leaves what it has written."""
    left = int(rng.integers(0, 6))

    def count_down(real: Any) -> Any:
        def act(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **kwargs)

        return act

    with pytest.MonkeyPatch.context() as patch:
        from watersmeet.spark.state import directory as state_directory
        from watersmeet.spark.state import store as versioned_store
        from watersmeet.spark.task import operator_group
        from watersmeet.spill import file_store

        patch.setattr(file_store._FileWriter, "commit", count_down(file_store._FileWriter.commit))
        patch.setattr(state_directory, "publish", count_down(state_directory.publish))
        for cleaner in (operator_group.ResultFile, versioned_store.VersionedStore):
            patch.setattr(cleaner, "abandon", lambda self: None)
        try:
            group.batch(number, pieces, ended)
        except Killed:
            group.kept = KeptOperators()


def _integers(rng: np.random.Generator, rows: int, keys: int, column: str) -> pa.RecordBatch:
    return pa.record_batch({"id": rng.integers(0, keys, rows), column: np.arange(rows)})


def _two_tables(rows: int = 6_000, keys: int = 3_000) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    rng = np.random.default_rng(9)
    return _integers(rng, rows, keys, "a"), _integers(rng, rows, keys, "b")


def _expected(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    ours, theirs = (Counter(batch["id"].to_pylist()) for batch in (left, right))
    return sum(count * theirs[key] for key, count in ours.items())


def _group(tmp_path: Path, memory: int = 160 << 10) -> tuple[Group, pa.RecordBatch, pa.RecordBatch]:
    left, right = _two_tables()
    factory = JoinFactory.of(JoinSpec(left.schema, right.schema, parse_on("id")), "xjoin")
    return Group(tmp_path / "s", factory, memory), left, right


def test_silence_is_used_and_the_rest_comes_with_the_last_end(tmp_path: Path) -> None:
    group, left, right = _group(tmp_path)
    first = group.batch(0, [(0, left), (1, right)])
    group.fuel = 1_000_000
    silent = group.batch(1, [])
    group.fuel = 0
    assert group.batch(2, []) == []
    one = group.batch(3, [], (1,))
    last = group.batch(4, [], (0,))
    after = group.batch(5, [], (0,))
    counts = [sum(batch.num_rows for batch in found) for found in (first, silent, one, last, after)]
    assert group.spilled > 0
    assert counts[0] > 0 < counts[1]
    assert counts[3] > 0 == counts[4]
    assert sum(counts) == _expected(left, right)
    with pytest.raises(SourceError, match=r"the left input|left has ended, but batch 6 has 6000 more rows"):
        group.batch(6, [(0, left)])


def test_a_kept_operator_is_used_only_at_the_attempt_that_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, left, right = _group(tmp_path, 1 << 20)
    restored: list[int] = []
    real = JoinFactory.restore
    monkeypatch.setattr(JoinFactory, "restore", lambda self, *args: restored.append(1) or real(self, *args))
    found = group.batch(0, [(0, left.slice(0, 3000))])
    found += group.batch(1, [(1, right.slice(0, 3000))])
    assert not restored
    other = KeptOperators()
    found += group.batch(2, [(0, left.slice(3000))], kept=other)  # a batch that this worker did not see
    assert len(restored) == 1
    found += group.batch(3, [(1, right.slice(3000))])  # so what it has kept is of no use
    assert len(restored) == 2
    found += group.batch(4, [], (0, 1))
    assert sum(batch.num_rows for batch in found) == _expected(left, right)


def test_of_two_attempts_at_once_the_first_to_publish_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, left, right = _group(tmp_path)
    found = group.batch(0, [(0, left)])
    real = StateDirectory.group
    others: list[Any] = []

    def meanwhile(self: StateDirectory, number: int) -> Any:
        state = real(self, number)
        once = state.publish_once
        monkeypatch.setattr(StateDirectory, "group", real)

        def publish(content: Any) -> Any:
            group.fuel = 0
            others.append(group.batch(1, [(1, right)], kept=KeptOperators()))
            return once(content)

        state.publish_once = publish
        return state

    monkeypatch.setattr(StateDirectory, "group", meanwhile)
    group.fuel = 10_000_000
    late = group.batch(1, [(1, right)])
    assert _rows(late) == _rows(others[0])
    found += late
    found += group.batch(2, [], (0, 1))
    assert sum(batch.num_rows for batch in found) == _expected(left, right)
    # What the second attempt had written is gone.
    assert len({name.split("-")[3] for name in _files(group, "operator-1-")}) == 1


def test_an_error_after_publication_leaves_what_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, left, right = _group(tmp_path)
    found = group.batch(0, [(0, left)])
    once = GroupState.publish_once

    def then_fail(self: GroupState, content: Any) -> Any:
        once(self, content)
        monkeypatch.setattr(GroupState, "publish_once", once)
        raise OSError("no space left on device")

    monkeypatch.setattr(GroupState, "publish_once", then_fail)
    with pytest.raises(OSError, match="no space"):
        group.batch(1, [(1, right)])
    found += group.batch(1, [(1, right)], kept=KeptOperators())
    found += group.batch(2, [], (0, 1), kept=KeptOperators())
    assert sum(batch.num_rows for batch in found) == _expected(left, right)


def _files(group: Group, start: str) -> list[str]:
    return sorted(path.name for path in (group.path / "group-0000").glob(f"{start}*"))


def test_old_versions_and_results_are_dropped(tmp_path: Path) -> None:
    group, left, right = _group(tmp_path)
    for number in range(24):
        step = slice(number * 200, 200)
        group.batch(number, [(0, left.slice(step.start, 200)), (1, right.slice(step.start, 200))])
    assert {name.split("-")[1] for name in _files(group, "results-")} == {"23"}
    assert [batch_of(name) for name in _files(group, "manifest-")] == list(range(12, 24))
    assert len(_files(group, "operator-")) < 150


def test_damage_is_named(tmp_path: Path) -> None:
    group, left, right = _group(tmp_path)
    group.batch(0, [(0, left), (1, right)])
    [damaged, *_] = (path for path in sorted((group.path / "group-0000").glob("operator-*")))
    content = damaged.read_bytes()
    for bad in (content[:300] + b"?" + content[301:], content[:-100]):
        damaged.write_bytes(bad)
        with pytest.raises(SegmentError, match=damaged.name):
            group.batch(1, [], (0, 1), kept=KeptOperators())
    damaged.unlink()
    with pytest.raises(SegmentError, match=damaged.name):
        group.batch(1, [], (0, 1), kept=KeptOperators())


def test_a_batch_of_other_rows_than_the_state_has_is_refused(tmp_path: Path) -> None:
    group, left, _ = _group(tmp_path)
    group.batch(0, [(0, left)])
    group.run = "run-2"
    with pytest.raises(SnapshotError, match="batch 0 of other rows than the query gives now"):
        group.batch(0, [(0, left.slice(1))])
    assert group.batch(0, [(0, left)]) == []


def test_a_query_that_goes_back_further_begins_there_anew(tmp_path: Path) -> None:
    group, left, right = _group(tmp_path)
    for number in range(4):
        group.batch(number, [(0, left.slice(number * 1000, 1000))])
    group.run = "run-2"
    group.batch(1, [(0, left.slice(1000))])
    found = group.batch(2, [(1, right)], (0, 1))
    assert sum(batch.num_rows for batch in found) == _expected(left, right)


@pytest.mark.parametrize("limit", [1 << 24, 1 << 14])
def test_arrivals_come_in_an_order_of_their_own(limit: int) -> None:
    rng = np.random.default_rng(3)
    left = pa.record_batch({"id": rng.integers(0, 50, 9_000), "text": [f"é{i % 70}" * (i % 9) for i in range(9_000)]})
    right = pa.record_batch({"id": rng.integers(0, 50, 3_000)})
    orders = []
    for _ in range(2):
        arrivals = Arrivals([left.schema, right.schema], limit, MemoryStore)
        shuffled = left.take(pa.array(rng.permutation(left.num_rows)))
        for start in range(0, 9_000, 700):
            arrivals.add(0, shuffled.slice(start, 700))
            arrivals.add(1, right.slice(start // 3, 234 if start // 3 + 234 <= 3000 else 3000))
        orders.append(list(arrivals.in_order()))
        assert arrivals.spilled == (limit < 1 << 20)
        arrivals.close()
    assert [side for side, _ in orders[0]] == [side for side, _ in orders[1]]
    for side in (0, 1):
        one, other = (pa.Table.from_batches([b for s, b in order if s == side]) for order in orders)
        assert one.equals(other)
    table = pa.Table.from_batches([b for s, b in orders[0] if s == 0])
    assert _rows(table.to_batches()) == _rows([left])


def test_rows_are_told_apart_by_any_column() -> None:
    rng = np.random.default_rng(2)
    values = {
        "a": pa.array([1.5, 2.5, None]),
        "b": pa.array([b"x", b"", None]),
        "c": pa.array([True, False, None]),
        "d": pa.array([1, 2, None], pa.decimal128(20, 2)),
        "e": pa.array([{"p": 1, "q": "u"}, {"p": 1, "q": "v"}, None]),
        "f": pa.array([[1], [1, 2], None]),
        "g": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
    }
    for name, column in values.items():
        assert len(set(row_hashes(pa.record_batch({name: column})).tolist())) == 3, name
    whole = pa.record_batch(values)
    order = rng.permutation(3)
    assert (row_hashes(whole)[order] == row_hashes(whole.take(pa.array(order)))).all()
    assert (row_hashes(whole)[1:] == row_hashes(whole.slice(1))).all()


def _promising(on: Any, promises: Any) -> JoinFactory:
    schema = pa.schema({"id": pa.int64(), "at": pa.int64(), "v": pa.int64()})
    spec = JoinSpec(schema, schema, parse_on(on), promises=read_promises(promises))
    return JoinFactory.of(spec, "auto")


def _of_keys(ids: Any, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + len(ids))
    columns = {"id": ids, "at": [1] * len(ids), "v": numbers}
    return pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _about(ids: Any, at: Any = None, v: Any = None) -> pa.RecordBatch:
    """Punctuations: what is not told is anything."""
    nulls = [None] * len(ids)
    columns = {"id": ids, "at": at or nulls, "v": v or nulls}
    return pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns.items()})


@pytest.mark.parametrize(("on", "up_to"), [("id", False), ("id", True), (["id", "at"], False)])
def test_punctuations_purge_state_through_repeated_and_restarted_batches(on: Any, up_to: bool, tmp_path: Path) -> None:
    factory = _promising(on, {"left": {"punctuated": True}, "right": {"punctuated": True}})
    assert factory.algorithm == "metadata_mjoin" and factory.punctuated
    group = Group(tmp_path, factory, 1 << 20)
    rng = np.random.default_rng(9)
    found: list[pa.RecordBatch] = []
    rows: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    held = []
    for number in range(10):
        # Keys of a stretch that moves on; behind it, all are over.
        tables = [_of_keys(rng.integers(number * 20, number * 20 + 60, 100), number * 1_000) for _ in (0, 1)]
        gone = list(range(number * 20, number * 20 + 20))
        told = _about(gone[-1:]) if up_to else _about(gone, at=[1] * 20 if isinstance(on, list) else None)
        over = [(side, SIGN_CODES[UP_TO if up_to else OVER], told) for side in (0, 1)]
        if number % 3 == 1:
            group.kept = KeptOperators()
        results = group.batch(number, list(enumerate(tables)), over=over)
        if number % 2:
            group.run = f"run of {number}"
            assert _rows(group.batch(number, list(enumerate(tables)), over=over)) == _rows(results)
        found += results
        held.append(group.held)
        for side in (0, 1):
            rows[side].append(tables[side])
    told_rows = [[row for table in each for row in table.to_pylist()] for each in rows]
    expected = Counter(
        (one["v"], other["v"]) for one in told_rows[0] for other in told_rows[1] if one["id"] == other["id"]
    )
    pairs = (zip(batch["v"].to_pylist(), batch["v_right"].to_pylist(), strict=True) for batch in found)
    assert Counter(pair for each in pairs for pair in each) == expected
    # Of each batch, the two thirds stay that are not over: of four hundred rows at most.
    assert max(held) < 420 < 1_000, held
    with pytest.raises(PromiseError, match="promised"):
        group.batch(10, [(0, _of_keys([3]))])


def test_punctuations_about_other_columns_forget_nothing(tmp_path: Path) -> None:
    factory = _promising("id", {"left": {"punctuated": True}})
    group = Group(tmp_path, factory, 1 << 20)
    group.batch(0, [(1, _of_keys(range(50)))], over=[(0, SIGN_CODES[OVER], _about([3, None], v=[4, 5]))])
    assert group.held == 50
    assert sum(batch.num_rows for batch in group.batch(1, [(0, _of_keys(range(50)))])) == 50
    group.batch(2, [], over=[(0, SIGN_CODES[OVER], _about(list(range(40))))])
    assert group.held == 60  # the left rows may meet right ones that are still to come


def test_promises_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(SpecError, match="rows of a micro-batch have no order"):
        read_promises({"left": {"sorted": "id"}})
    with pytest.raises(SpecError, match="not of 'middle'"):
        read_promises({"middle": {}})
