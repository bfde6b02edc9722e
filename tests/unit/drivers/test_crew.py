"""Threads that run shards: side by side, one at a time each; nothing is lost when one fails, and none stays behind."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from waiting import PATIENCE, until
from watersmeet.api.join import FEW_ROWS as FEW_ROWS_IN_ALL
from watersmeet.api.join import usual_threads
from watersmeet.api.run import cores, open_sources
from watersmeet.core.cost import Cost
from watersmeet.core.errors import SpecError, SpillError
from watersmeet.core.protocol import Status, Step
from watersmeet.drivers.crew import FEW_ROWS, Crew
from watersmeet.drivers.inbox import Bell
from watersmeet.joins.shard import Shard
from watersmeet.joins.sharded import Sharded
from watersmeet.records.split import portion_of
from watersmeet.tables.memtables import SharedMemtable

RESULT = pa.record_batch({"id": [1]})


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watersmeet-join")]


@pytest.fixture(autouse=True)
def _none_stays_behind() -> Iterator[None]:
    yield
    gc.collect()
    until(lambda: not helpers(), "all helpers have ended")


class Part:
    """A shard with so many runs to do; `at_run` is called in each."""

    def __init__(self, runs: int = 1, at_run: Callable[[], Any] = lambda: None, found: int = 0) -> None:
        self.left, self.at_run, self.found = runs, at_run, found
        self.status = Status.HAS_OUTPUT
        self.ran: list[str] = []
        self.inside = 0

    @property
    def ready(self) -> bool:
        return self.left > 0

    def is_due(self, now: float) -> bool:
        return False

    def run(self, now: float, fuel: int) -> Step:
        self.inside += 1
        assert self.inside == 1, "two threads run one shard"
        try:
            self.ran.append(threading.current_thread().name)
            self.at_run()
            self.left -= 1
            self.status = Status.HAS_OUTPUT if self.left else Status.DONE
            out = RESULT if self.found else None
            self.found -= out is not None
            return Step(out, self.status, Cost())
        finally:
            self.inside -= 1


class Whole:
    """An operator of such shards."""

    def __init__(self, *parts: Part, result_bytes: int = 1 << 20, rows: int = FEW_ROWS) -> None:
        self.shards = list(parts)
        self.result_bytes = result_bytes
        self.outstanding = [rows, 0]
        self.hungry = True
        self.received = 0

    @property
    def status(self) -> Status:
        return Status.HAS_OUTPUT if any(part.ready for part in self.shards) else Status.DONE

    def hand_on(self) -> None:
        """All is there."""


def crew_of(*parts: Part, threads: int = 2, **options: Any) -> Crew:
    return Crew(Whole(*parts, **options), threads, Bell(), lambda: False)


def work_off(crew: Crew) -> int:
    """Poll to the end; how many results there were."""
    found = 0
    while True:
        step = crew.poll(0.0, 1, silent=False)
        found += step.out is not None
        if step.status is not Status.HAS_OUTPUT:
            return found


def test_shards_are_run_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE)
    parts = [Part(at_run=meeting.wait, found=1) for _ in range(3)]
    crew = crew_of(*parts, threads=3)
    assert work_off(crew) == 3
    assert len({part.ran[0] for part in parts}) == 3
    assert crew.stop()


def test_every_result_comes_out_whoever_finds_it() -> None:
    for _ in range(20):
        parts = [Part(runs=30, found=10) for _ in range(4)]
        crew = crew_of(*parts, threads=3)
        assert work_off(crew) == 40
        assert crew.stop()


def test_one_thread_is_enough_for_a_few_rows() -> None:
    parts = [Part(), Part()]
    for part in parts:
        part.status = Status.NEED_INPUT
    crew = crew_of(*parts, rows=FEW_ROWS - 1)
    work_off(crew)
    assert not helpers() and {name for part in parts for name in part.ran} == {threading.current_thread().name}
    assert crew.stop()


def test_helpers_stop_when_too_many_results_wait() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait_in_the_consumer() -> None:
        if threading.current_thread() is threading.main_thread():
            begun.set()
            assert may_end.wait(PATIENCE)

    parts = [Part(1, wait_in_the_consumer), Part(1000, found=1000)]
    crew = crew_of(*parts, result_bytes=5 * RESULT.nbytes)
    watcher = threading.Thread(
        target=lambda: (
            begun.wait(PATIENCE),
            until(lambda: len(parts[1].ran) == 5 and crew._idle == 1, "enough results wait"),
            may_end.set(),
        )
    )
    watcher.start()
    assert crew.poll(0.0, 1, silent=False).status is Status.HAS_OUTPUT
    watcher.join()
    assert work_off(crew) == 1000
    assert crew.stop()


def test_what_fails_in_a_helper_is_raised_after_what_was_found_before() -> None:
    failed = threading.Event()
    numbers = iter(range(100))

    def fail_at_last() -> None:
        if next(numbers) == 3:
            failed.set()
            raise SpillError("no space is left on the disk")

    parts = [Part(1, lambda: failed.wait(PATIENCE)), Part(100, fail_at_last, found=100)]
    crew = crew_of(*parts)
    found = 0
    while crew._error is None or crew._results:
        found += crew.poll(0.0, 1, silent=False).out is not None
    with pytest.raises(SpillError, match=r"^no space is left on the disk$"):
        crew.poll(0.0, 1, silent=False)
    assert found == 3 and len(parts[1].ran) == 4, "nothing is run after that"
    assert crew.stop()


def test_a_helper_that_stops_the_crew_does_not_wait_for_itself() -> None:
    answers: list[bool] = []
    crew: Crew

    def stop_from_inside() -> None:
        if threading.current_thread() is not threading.main_thread():
            answers.append(crew.stop())

    meeting = threading.Barrier(2, timeout=PATIENCE)
    parts = [Part(1, meeting.wait), Part(1, lambda: (meeting.wait(), stop_from_inside()))]
    crew = crew_of(*parts)
    if parts[0].ready:
        crew.poll(0.0, 1, silent=False)
    until(lambda: not helpers(), "the helper has ended")
    assert answers in ([False], []), "an operator is not closed while one of its shards is run"
    crew.stop()


# --- joins in threads ---


def table(rows: int, seed: int, keys: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    text = pa.array([str(i) * 8 for i in range(100)]).take(pa.array(rng.integers(0, 100, rows)))
    return pa.table({"id": rng.integers(0, keys, rows), "n": np.arange(rows), "text": text})


def pairs(left: pa.Table, right: pa.Table) -> Counter[tuple[int, int]]:
    joined = left.select(["id", "n"]).join(right.select(["id", "n"]), "id", join_type="inner", right_suffix="_right")
    return Counter(zip(joined["n"].to_pylist(), joined["n_right"].to_pylist(), strict=True))


@pytest.mark.parametrize(("threads", "memory"), [(2, "256 MiB"), (3, "256 MiB"), (2, "19 MiB"), (8, "80 MiB")])
@pytest.mark.parametrize("kind", ["tables", "readers"])
def test_a_join_in_threads_finds_every_pair_once(
    threads: int, memory: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = table(150_000, 1, 80_000), table(150_000, 2, 80_000)
    ran: set[str] = set()
    run, place = Shard.run, SharedMemtable._place
    shared: set[bool] = set()

    def noted_place(self: SharedMemtable, columns: list[Any], count: int) -> None:
        shared.add(portion_of(columns) is not None)
        place(self, columns, count)

    monkeypatch.setattr(SharedMemtable, "_place", noted_place)

    def noted(self: Shard, now: float, fuel: int) -> Step:
        ran.add(threading.current_thread().name)
        return run(self, now, fuel)

    monkeypatch.setattr(Shard, "run", noted)
    inputs = [rows if kind == "tables" else rows.to_reader() for rows in (left, right)]
    result = wm.join(*inputs, on="id", memory=memory, threads=threads)
    found: Counter[tuple[int, int]] = Counter()
    for batch in result:
        found.update(zip(batch["n"].to_pylist(), batch["n_right"].to_pylist(), strict=True))
    assert found == pairs(left, right)
    assert len(ran) > 1, "helpers had a part in it"
    assert (True in shared) == (kind == "tables"), "rows of tables are not copied"
    progress = result.progress
    assert progress.algorithm == "confluence" and progress.done and progress.rows_in == (150_000, 150_000)
    assert progress.peak <= progress.budget
    assert (progress.spilled > 0) == (memory == "19 MiB")


def test_silences_are_used_by_the_shards_too() -> None:
    left, right = table(150_000, 1, 80_000), table(150_000, 2, 80_000)
    seen = threading.Event()

    def with_a_pause(rows: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from rows.slice(0, 140_000).to_batches(max_chunksize=5000)
        assert seen.wait(PATIENCE), "nobody settles in the silence"
        yield from rows.slice(140_000).to_batches(max_chunksize=5000)

    def look(progress: Any) -> None:
        lateness = progress.lateness
        if progress.rows_in == (140_000, 140_000) and lateness is not None and not lateness.owing:
            seen.set()

    result = wm.join(with_a_pause(left), with_a_pause(right), on="id", memory="19 MiB", threads=2, on_progress=look)
    found: Counter[tuple[int, int]] = Counter()
    for batch in result:
        found.update(zip(batch["n"].to_pylist(), batch["n_right"].to_pylist(), strict=True))
    assert found == pairs(left, right)


@pytest.mark.parametrize("by", ["close", "garbage"])
def test_a_join_that_is_left_early_leaves_no_thread_and_no_file(by: str, tmp_path: Any) -> None:
    left, right = table(100_000, 1, 1000), table(100_000, 2, 1000)
    result = wm.join(left, right, on="id", memory="19 MiB", threads=2, spill=tmp_path)
    batches = iter(result)
    for _ in range(5):
        next(batches)
    assert helpers()
    if by == "close":
        result.close()
    del batches, result
    gc.collect()
    until(lambda: not helpers(), "all helpers have ended")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_in_a_shard_is_the_error_of_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = table(100_000, 1, 50_000), table(100_000, 2, 50_000)
    run = Shard.run

    def failing(self: Shard, now: float, fuel: int) -> Step:
        if threading.current_thread() is not threading.main_thread():
            raise SpillError("no space is left on the disk; free some")
        return run(self, now, fuel)

    monkeypatch.setattr(Shard, "run", failing)
    with pytest.raises(SpillError, match=r"^no space is left on the disk; free some$"):
        wm.join(left, right, on="id", memory="64 MiB", threads=2).table()


def test_one_thread_has_no_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("there are shards")

    monkeypatch.setattr(Sharded, "__init__", refuse)
    small = pa.table({"id": [1, 2]})
    assert wm.join(small, small, on="id").table().num_rows == 2, "so few rows are not worth several"
    assert wm.join(small, small, on="id", threads=1).table().num_rows == 2
    assert wm.join(small, small, on="id", memory="8 MiB", threads=4).table().num_rows == 2, "nor has little memory"
    assert wm.join(small, small, on="id", algorithm="xjoin").table().num_rows == 2
    assert wm.join(small, small, on=wm.band("id", 1), threads=2).table().num_rows == 4, "a band has no hashes"
    with pytest.raises(AssertionError, match="there are shards"):
        wm.join(small, small, on="id", threads=2).table()


def test_unless_told_all_processors_join_tables_and_one_thread_what_would_be_copied() -> None:
    large, few = pa.table({"id": range(FEW_ROWS_IN_ALL // 2)}), pa.table({"id": [1, 2]})

    def sources(*data: object) -> list[Any]:
        return open_sources([("left", data[0]), ("right", data[1])])

    assert usual_threads(sources(large, large.to_batches()[0])) == cores()
    assert usual_threads(sources(large, few)) == 1
    assert usual_threads(sources(large, large.to_reader())) == 1
    assert usual_threads(sources(large.to_reader(), large.to_reader())) == 1


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two"])
def test_threads_are_a_number(threads: Any) -> None:
    small = pa.table({"id": [1, 2]})
    with pytest.raises(SpecError, match="threads must be a number, 1 or more"):
        wm.join(small, small, on="id", threads=threads)


def test_other_algorithms_refuse_more_than_one_thread() -> None:
    small = pa.table({"id": [1, 2]})
    with pytest.raises(SpecError, match="xjoin uses one thread; leave threads=2 out"):
        wm.join(small, small, on="id", algorithm="xjoin", threads=2)
