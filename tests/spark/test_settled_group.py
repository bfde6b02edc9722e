"""Our own join through micro-batches: in any order, killed, repeated, it gives what the oracle gives. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.cases import Case, make_case, make_kind_case
from watersmeet.checks.run import expected_rows
from watersmeet.core.errors import BudgetError, SegmentError, SnapshotError, SourceError
from watersmeet.core.protocol import Arrive
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.joins.confluence import Confluence
from watersmeet.matching.debts import RunEntry
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.state.directory import Batch, GroupState, Owner, StateDirectory, batch_of
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task.settled_group import SettledGroup

Pieces = list[tuple[int, pa.RecordBatch]]


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Killed(BaseException):
    """What a SIGKILL looks like to a test: nothing is cleaned up."""


class Group:
    """A group's state, fed batch by batch as tasks do."""

    def __init__(self, path: Path, spec: JoinSpec, memory: int, run: str = "run-0") -> None:
        self.path, self.factory, self.memory, self.run = path, JoinFactory.of(spec, "confluence"), memory, run
        self.opened: OpenRuns | None = None
        self.operators: list[Confluence] = []
        self.last: SettledGroup | None = None

    def settling(self, *given: Any) -> Confluence:
        """The factory's, which can be looked at afterwards."""
        self.operators.append(self.factory.settling(*given))
        return self.operators[-1]

    settles = True

    @property
    def names(self) -> tuple[str, ...]:
        return self.factory.names

    def state(self, number: int) -> GroupState:
        """The state as an attempt at a batch finds it."""
        owner = Owner(self.factory.fingerprint, 1, "query")
        return StateDirectory(self.path, owner, Batch(number, self.run), retain=3).group(0)

    def begin(self, number: int, pieces: Pieces, ended: tuple[int, ...] = ()) -> Iterator[pa.RecordBatch]:
        """An attempt at a batch, each with its own mappings unless told, as another process would have."""
        self.last = SettledGroup(self, self.memory, self.state(number), self.opened or OpenRuns())
        return self.last.results(iter(pieces), lambda: set(ended))

    def batch(self, number: int, pieces: Pieces, ended: tuple[int, ...] = ()) -> list[pa.RecordBatch]:
        return list(self.begin(number, pieces, ended))

    @property
    def events(self) -> Counter[str]:
        """What has happened in all operators."""
        return sum((operator.events for operator in self.operators), Counter[str]())

    def runs(self, number: int) -> list[list[RunEntry]]:
        """The runs of both sides when a batch begins."""
        state = self.state(number)
        SettledGroup(self, self.memory, state, OpenRuns())._open()
        return list(self.operators.pop().debts.runs)

    def files(self, start: str) -> list[str]:
        return sorted(path.name for path in (self.path / "group-0000").glob(f"{start}*"))


def _rows(batches: list[pa.RecordBatch]) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch))


def _micro_batches(case: Case, rng: np.random.Generator) -> list[Pieces]:
    pieces = [(m.event.input, m.event.batch) for m in case.moves if isinstance(m.event, Arrive)]
    cuts = sorted(rng.integers(0, len(pieces) + 1, int(rng.integers(0, 7))).tolist())
    return [pieces[a:b] for a, b in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]


def _killed(group: Group, number: int, pieces: Pieces, ended: tuple[int, ...], rng: np.random.Generator) -> bool:
    """An attempt that ends at some write to the disk, and leaves what it has written; whether it came to that."""
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
        from watersmeet.spill import file_store

        patch.setattr(file_store._FileWriter, "commit", count_down(file_store._FileWriter.commit))
        patch.setattr(state_directory, "publish", count_down(state_directory.publish))
        patch.setattr(versioned_store.VersionedStore, "abandon", lambda self: None)
        try:
            group.batch(number, pieces, ended)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("first", range(0, 40, 10))
@pytest.mark.parametrize(
    ("endless", "make"), [(True, make_case), (False, make_case), (False, make_kind_case)], ids=["endless", "", "kinds"]
)
def test_killed_and_repeated_batches_in_any_order_and_memory(
    first: int, endless: bool, make: Callable[..., Case], tmp_path: Path
) -> None:
    killed = replayed = bands = 0
    events: Counter[str] = Counter()
    for seed in range(first, first + 10):
        case = make(seed, Confluence)
        if case.spec.output is not Output.ROWS:
            continue
        bands += case.spec.band is not None
        rng = np.random.default_rng([seed, endless])
        group = Group(tmp_path / str(seed), case.spec, case.memory)
        found: list[pa.RecordBatch] = []
        batches = _micro_batches(case, rng)
        for number, pieces in enumerate(batches):
            coming = {side for later in batches[number + 1 :] for side, _ in later}
            ended = () if endless else tuple(side for side in (0, 1) if side not in coming)
            while rng.random() < 0.3:
                killed += _killed(group, number, pieces, ended, rng)
            results = group.batch(number, pieces, ended)
            while rng.random() < 0.4:  # by this start of the query or by the next, in another order, with other memory
                replayed += 1
                if rng.random() < 0.5:
                    group.run = f"run-{number}-{replayed}"
                group.memory = int(rng.choice([case.memory, 2 * case.memory, 1 << 20]))
                cut = [(side, rows.slice(i, 7)) for side, rows in pieces for i in range(0, rows.num_rows, 7)]
                shuffled = [cut[i] for i in rng.permutation(len(cut))]
                assert _rows(group.batch(number, shuffled, ended)) == _rows(results), case
            found += results
        assert _rows(found) == expected_rows(case), case
        assert endless or group.batch(len(batches), [], (0, 1)) == []
        events += group.events
    assert killed and replayed and bands
    assert events["settled at the end of a batch"] and events["flushed"]


def test_every_row_of_streams_that_end_is_met_and_nothing_is_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    left, right = _integers(rng, 3_000, 900, "a"), _integers(rng, 3_000, 900, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 1 << 20)
    found = group.batch(0, [(0, left.slice(0, 2_000)), (1, right.slice(0, 1_000))])
    found += group.batch(1, [(0, left.slice(2_000))], (0,))
    assert group.last is not None
    # What the other side's rows would meet is needed no more: they are of the side that has not ended.
    assert [len(runs) > 0 for runs in group.runs(2)] == [True, False]
    found += group.batch(2, [(1, right.slice(1_000, 1_000))])
    assert group.batch(3, []) == [], "a batch of signs alone, which changes nothing"
    assert not group.files("manifest-000000000003")
    found += group.batch(4, [(1, right.slice(2_000))], (1,))
    assert group.last.counts.state_rows == group.last.counts.state_bytes == 0
    assert sum(batch.num_rows for batch in found) == _count(left, right)
    assert group.batch(5, [], (0, 1)) == []
    with pytest.raises(SourceError, match=r"the left input|left has ended, but batch 6 has 3000 more rows"):
        group.batch(6, [(0, left)])


def test_rows_after_the_end_of_their_input_are_named(tmp_path: Path) -> None:
    left, right = _integers(np.random.default_rng(2), 30, 9, "a"), _integers(np.random.default_rng(3), 30, 9, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 1 << 20)
    group.batch(0, [(0, left)], (0,))
    with pytest.raises(SourceError, match="has ended, but batch 1 has 30 more rows"):
        group.batch(1, [(1, right), (0, left)])
    assert len(group.files("operator-1")) == 0
    assert sum(batch.num_rows for batch in group.batch(1, [(1, right)])) == _count(left, right)


def _integers(rng: np.random.Generator, rows: int, keys: int, column: str) -> pa.RecordBatch:
    return pa.record_batch({"id": rng.integers(0, keys, rows), column: np.arange(rows)})


def _count(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    ours, theirs = (Counter(batch["id"].to_pylist()) for batch in (left, right))
    return sum(count * theirs[key] for key, count in ours.items())


def test_rows_beyond_the_memory_are_written_in_several_runs_and_all_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    left, right = _integers(rng, 30_000, 9_000, "a"), _integers(rng, 20_000, 9_000, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 256 << 10)
    found = group.batch(0, [(side, rows.slice(i, 500)) for i in range(0, 30_000, 500) for side, rows in
                            ((0, left), (1, right)) if i < rows.num_rows])  # fmt: skip
    assert group.last is not None
    counts = group.last.counts
    assert group.events["flushed"] + group.events["flushed owing"] > 10
    assert counts.peak <= 256 << 10
    assert counts.spilled > (left.nbytes + right.nbytes) // 2
    assert sum(batch.num_rows for batch in found) == counts.results == _count(left, right)
    assert max(batch.nbytes for batch in found) <= 1 << 20
    assert counts.state_rows == 50_000


def test_one_key_for_all_rows_comes_out_in_bounded_batches(tmp_path: Path) -> None:
    left = pa.record_batch({"id": np.zeros(700, np.int64), "text": ["x" * (i % 50) for i in range(700)]})
    right = pa.record_batch({"id": np.zeros(600, np.int64), "more": ["y" * (i % 70) for i in range(600)]})
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 256 << 10)
    found = group.batch(0, [(0, left.slice(0, 300)), (1, right)]) + group.batch(1, [(0, left.slice(300))])
    assert sum(batch.num_rows for batch in found) == 700 * 600
    assert len(set(zip(*(pa.Table.from_batches(found).column(i).to_pylist() for i in (1, 2)), strict=True))) == 50 * 70
    assert max(batch.nbytes for batch in found) <= 1 << 20


def test_who_goes_on_maps_runs_and_reads_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    left, right = _integers(rng, 5_000, 2_000, "a"), _integers(rng, 5_000, 2_000, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 1 << 20)
    found = group.batch(0, [(0, left), (1, right.slice(0, 3_000))])
    [manifest] = group.files("manifest-")
    assert all(name.startswith("operator-0-") for name in set(group.files("")) - {manifest})
    assert len(group.files("operator-")) == 2, "a run of each side, and nothing else"
    read: list[str] = []
    for method in ("check_rows", "check_hashes", "gather_all"):
        monkeypatch.setattr(SortedRun, method, lambda *given, name=method: read.append(name))
    runs = group.runs(1)
    monkeypatch.undo()
    assert not read
    assert [[entry.run.rows for entry in side] for side in runs] == [[5_000], [3_000]]
    # Less memory than before will do: no row has to fit in.
    group.memory = 128 << 10
    found += group.batch(1, [(1, right.slice(3_000))])
    assert sum(batch.num_rows for batch in found) == _count(left, right)


def test_runs_stay_few_no_batch_pays_for_all_and_old_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from watersmeet.joins.confluence import upkeep

    monkeypatch.setattr(upkeep, "_LEAST_ROWS", 600)
    monkeypatch.setattr(upkeep, "_SMALL", 128)
    rng = np.random.default_rng(7)
    left, right = (_integers(rng, 16_000, 9_000, column) for column in "ab")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 256 << 10)
    sizes = [4_000, *[100] * 60, 4_000, *[40] * 40]
    found = start = unfinished = 0
    for number, size in enumerate(sizes):
        pieces = [(0, left.slice(start, size)), (1, right.slice(start, size))]
        found += sum(b.num_rows for b in group.batch(number, pieces))
        start += size
        merged = group.operators[-1].catalogue.upkeep.rows_merged
        assert merged <= 2 * 7 * max(600, 2 * size), "of each side and class of runs, twice as many as came"
        unfinished += bool(group.operators[-1].catalogue.upkeep.names)
        runs = group.runs(number + 1)
        assert all(sum(entry.run.rows for entry in side) == start for side in runs)
        assert all(len({entry.birth for entry in side}) < 24 for side in runs)
    assert unfinished > 5, "merges went on from batch to batch"
    assert found == _count(left.slice(0, start), right.slice(0, start))
    # The last three versions can be gone back to, and the one before them; what others needed goes every eight batches.
    versions = [batch_of(name) for name in group.files("manifest-")]
    assert versions[-1] == len(sizes) - 1 and len(versions) <= 3 + 8 + 1
    assert len(group.files("operator-")) < 150


def test_a_replayed_batch_may_come_in_another_order_and_the_next_goes_on_from_either(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    spec = JoinSpec(pa.schema({"id": pa.int64(), "a": pa.int64()}), pa.schema({"id": pa.int64(), "b": pa.int64()}),
                    parse_on("id"))  # fmt: skip
    group = Group(tmp_path, spec, 256 << 10)
    batches = [[(0, _integers(rng, 500, 200, "a")), (1, _integers(rng, 500, 200, "b"))] for _ in range(3)]
    first = [group.batch(number, pieces) for number, pieces in enumerate(batches)]
    shuffled = [(side, rows.take(pa.array(rng.permutation(rows.num_rows)))) for side, rows in reversed(batches[2])]
    group.run = "run-1"
    again = group.batch(2, shuffled)
    assert pa.Table.from_batches(again) != pa.Table.from_batches(first[2])
    assert _rows(again) == _rows(first[2])
    after = group.batch(3, batches[0])
    lefts, rights = ([rows for pieces in [*batches, batches[0]] for s, rows in pieces if s == side] for side in (0, 1))
    everything = _count(pa.concat_batches(lefts), pa.concat_batches(rights))
    assert sum(b.num_rows for each in [*first, after] for b in each) == everything


def test_of_two_attempts_at_once_the_first_to_publish_counts_and_both_answer(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    left, right = _integers(rng, 900, 300, "a"), _integers(rng, 900, 300, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 256 << 10)
    found = group.batch(0, [(0, left.slice(0, 500)), (1, right.slice(0, 500))])
    rest: Pieces = [(0, left.slice(500)), (1, right.slice(500))]
    slow = group.begin(1, rest)
    begun = [next(slow)]
    fast = group.batch(1, rest[::-1])
    slow_one = begun + list(slow)
    assert _rows(slow_one) == _rows(fast)
    assert len({name.split("-")[3] for name in group.files("operator-1-")}) == 1, "the slower one's files are gone"
    found += fast
    found += group.batch(2, [(0, left)])
    assert sum(b.num_rows for b in found) == _count(left, right) + _count(left, right)


@pytest.mark.parametrize("already_mapped", [False, True])
def test_damage_is_named(tmp_path: Path, already_mapped: bool) -> None:
    rng = np.random.default_rng(9)
    left, right = _integers(rng, 900, 300, "a"), _integers(rng, 900, 300, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 256 << 10)
    group.opened = OpenRuns() if already_mapped else None
    group.batch(0, [(0, left), (1, right)])
    group.batch(1, [(0, left.slice(0, 1))])
    [damaged, *_] = (path for path in sorted((tmp_path / "group-0000").glob("operator-0*")))
    content = damaged.read_bytes()
    for place in (3, 100, len(content) // 2, len(content) - 200, len(content) - 3):
        damaged.unlink()
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        with pytest.raises(SegmentError, match=f"is damaged and the query cannot go on.*{damaged.name}"):
            group.batch(2, [(0, left), (1, right)])
    damaged.write_bytes(content[:-100])
    with pytest.raises(SegmentError, match=damaged.name):
        group.batch(2, [(0, left), (1, right)])
    damaged.unlink()
    with pytest.raises(SegmentError, match=damaged.name):
        group.batch(2, [(0, left), (1, right)])
    damaged.write_bytes(content)
    found = sum(b.num_rows for b in group.batch(2, [(1, right)]))
    assert found == _count(left, right) + _count(left.slice(0, 1), right)


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    left, right = _integers(np.random.default_rng(1), 9, 9, "a"), _integers(np.random.default_rng(1), 9, 9, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 10_000)
    with pytest.raises(BudgetError, match="too little for the confluence join of these rows; allow at least"):
        group.batch(0, [(0, left)])


def test_a_state_of_another_format_is_refused_by_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from watersmeet.spark.state import directory

    left, right = _integers(np.random.default_rng(1), 9, 9, "a"), _integers(np.random.default_rng(1), 9, 9, "b")
    group = Group(tmp_path, JoinSpec(left.schema, right.schema, parse_on("id")), 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(directory, "FORMAT", 3)
        group.batch(0, [(0, left)])
    told = f"has format 3, and this version of Watersmeet reads {directory.FORMAT}; go on with"
    with pytest.raises(SnapshotError, match=told):
        group.batch(1, [(1, right)])
