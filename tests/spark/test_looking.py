"""Joins on Spark as a page shows them: from a listener's events, and from a state directory. No Spark is needed."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

import watersmeet as wm
from waiting import ended, until
from watersmeet.cli import main as cli
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.drivers.history import History
from watersmeet.records.times import NEVER
from watersmeet.spark.io.state_view import StateView
from watersmeet.spark.io.watch import Watch
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.rebalance.master_task import RoutingFiles
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad
from watersmeet.spark.rebalance.routing import Home, HotKey, Routing
from watersmeet.spark.state.directory import Batch, Owner, StateDirectory
from watersmeet.spark.state.lineage import token
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.state.watermarks import Marks
from watersmeet.spark.task import figures as task_figures
from watersmeet.spark.task.settled_group import SettledGroup

SPEC = JoinSpec(pa.schema({"id": pa.int64(), "a": pa.string()}), pa.schema({"id": pa.int64()}), parse_on("id"))
FIGURES = dict.fromkeys(task_figures.SCALARS, 0) | {
    "left_rows": 1_000, "right_rows": 2_000, "results": 500, "memory": 3 << 20, "budget": 4 << 20, "spilled": 10,
    "state_bytes": 1 << 30, "task_ms": 700, "left_late": 2, "right_late": 1, "state_rows": 77,
    "left_delay_p50_ms": 20.0, "left_delay_p99_ms": 1500.0,
}  # fmt: skip


def event(batch: int, **figures: Any) -> Any:
    progress = SimpleNamespace(
        runId="run",
        batchId=batch,
        batchDuration=1200,
        timestamp=f"2026-11-17T12:00:{2 * batch:02d}.000Z",
        observedMetrics={"watersmeet orders": Row(figures=Row(**(FIGURES | figures)))},
    )
    return SimpleNamespace(progress=progress)


def begin(path: Path, number: int, groups: int = 4, run: str = "run-1") -> StateDirectory:
    return StateDirectory(path, Owner("some join", groups, "query-1"), Batch(number, run), retain=10)


def feed(directory: StateDirectory, group: int, keys: range) -> None:
    """A batch of so many left rows, and one right row, into a group."""
    join = SettledGroup(JoinFactory.of(SPEC, "confluence"), 1 << 20, directory.group(group), OpenRuns())
    rows = [(0, pa.record_batch({"id": keys, "a": ["text"] * len(keys)})), (1, pa.record_batch({"id": [keys[0]]}))]
    for _ in join.results(iter(rows), set):
        pass


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a query that ran for three batches, long ago."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    place = tmp_path / "orders"
    for number in range(3):
        feed(begin(place, number), number % 2, range(100 * (number + 1)))
    for path in place.rglob("*"):
        if path.is_file():
            os.utime(path, (1.7e9 + (path.name.isdigit() and int(path.name)), 1.7e9 + 5))
    for number in range(3):
        os.utime(place / "batches" / f"{number:012d}", (1.7e9, 1.7e9 + number))
    return place


class TestListener:
    def test_each_batch_is_a_sample(self) -> None:
        with Watch(stream=io.StringIO()) as watch:
            for batch in (0, 1, 1, 2):
                watch.onQueryProgress(event(batch))
            watch.onQueryProgress(event(3, left_rows=None, right_rows=None, results=None))
            watch.onQueryTerminated(SimpleNamespace(runId="run", exception=None))
        [watched] = watch.joins.values()
        samples = watched.history.samples()
        assert [each.elapsed for each in samples] == pytest.approx([0.0, 1.2, 3.2, 5.2, 7.2, 7.2])
        assert [each.rows_in for each in samples][:3] == [(0, 0), (1000, 2000), (2000, 4000)]
        last = samples[-1]
        assert (last.rows_out, last.late, last.window_rows) == (1500, (6, 3), 77)
        assert last.batch is not None and (last.batch.seconds, last.batch.join_seconds) == (1.2, 0.7)
        assert last.first_result_after == pytest.approx(1.2)
        assert last.delays == (0.02, 1.5) and last.peak == 3 << 20 and last.done and watched.history.ended

    def test_why_a_query_failed(self) -> None:
        with Watch(stream=io.StringIO()) as watch:
            watch.onQueryProgress(event(0))
            watch.onQueryTerminated(SimpleNamespace(runId="run", exception="the\n  executor is gone"))
        [watched] = watch.joins.values()
        assert watched.history.error == "the executor is gone"

    def test_its_page_with_groups_until_it_is_closed(
        self, state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(task_figures.DIRECTORIES, "orders", str(state))
        with Watch(stream=io.StringIO(), page=True) as watch:
            watch.onQueryProgress(event(0))
            assert watch.page is not None and watch.page in capfd.readouterr().err
            text = urllib.request.urlopen(watch.page.replace("/?", "/metrics?")).read().decode()
            assert 'watersmeet_rows_out_total{run="run-1",title="orders"} 500' in text
            assert watch._pages._page is not None
            [run] = watch._pages._page.board.runs
            assert run.kind == "batches" and [group["number"] for group in run.extras["groups"]] == [0, 1, 2, 3]
        assert not any(thread.name == "watersmeet-page" for thread in threading.enumerate())

    def test_on_a_page_that_is_somebody_elses(self) -> None:
        with wm.Page() as page:
            with Watch(stream=io.StringIO(), page=page) as watch:
                watch.onQueryProgress(event(0))
            assert page.is_open and page.board.runs[0].title == "orders"

    def test_without_one_there_is_no_thread(self) -> None:
        with Watch(stream=io.StringIO()) as watch:
            watch.onQueryProgress(event(0))
            assert watch.page is None
            assert not any(thread.name == "watersmeet-page" for thread in threading.enumerate())


class TestStateDirectory:
    def test_what_it_was_like_after_each_batch(self, state: Path) -> None:
        view, history = StateView(state), History()
        assert view.tell(history) and not view.tell(history)
        samples = history.samples()
        assert [each.rows_in for each in samples] == [(100, 1), (300, 2), (600, 3)]
        assert [each.batch.number for each in samples if each.batch is not None] == [0, 1, 2]
        sizes = [each.on_disk for each in samples]
        assert sizes == sorted(sizes) and sizes[0] > 0

    def test_batches_that_come_later_are_added_once_they_are_over(
        self, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        view, history = StateView(state), History()
        view.tell(history)
        feed(begin(state, 3), 3, range(50))
        assert not view.tell(history), "it may still be at work"
        feed(begin(state, 4), 3, range(50))
        assert view.tell(history)
        assert history.samples()[-1].rows_in == (650, 4)
        monkeypatch.setattr("watersmeet.spark.io.state_view._SETTLES", 0.0)
        assert view.tell(history) and history.samples()[-1].rows_in == (700, 5)

    def test_groups_by_their_size(self, state: Path) -> None:
        extras = StateView(state).extras()
        assert [group["load"] > 0 for group in extras["groups"]] == [True, True, False, False]
        assert extras["unit"] == "bytes" and extras["batch"] == 2

    def test_slots_moves_and_hot_keys_of_a_parallel_join(self, state: Path) -> None:
        directory = begin(state, 3)
        files = RoutingFiles(directory)
        routing = Routing((0, 1, 0, 1, 1, -1), (0, 1), (HotKey(-1, (Home(4, ways=1),)),), moved=(2,))
        files.publish(routing)
        files.tell(SlotLoad(0, 2.0, {0: GroupLoad(10, 20, 0.5), 2: GroupLoad(10, 20, 1.25)}, 3))
        extras = StateView(state).extras()
        assert [(group["number"], group["slot"], group["load"]) for group in extras["groups"]] == [
            (0, 0, 0.5), (1, 1, 0.0), (2, 0, 1.25), (3, 1, 0.0), (4, 1, 0.0),
        ]  # fmt: skip
        assert [group["number"] for group in extras["groups"] if group["moved"]] == [2]
        assert extras["hot"] == [{"key": "f" * 16, "ways": 1, "groups": [4]}]

    def test_files_that_vanish_while_it_looks_are_left_out(self, state: Path) -> None:
        view = StateView(state)
        for manifest in (state / "group-0001").glob("manifest-*"):
            manifest.write_text("half of a ma")
        history = History()
        view.tell(history)
        assert history.samples()[-1].rows_in == (400, 2)

    def test_what_is_no_state_directory(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"is not the state directory of a join: there is no state\.json in it"):
            StateView(tmp_path)

    def test_one_that_is_elsewhere(self, state: Path) -> None:
        here, there = StateView(state), StateView(f"fetch+file://{state}")
        samples = []
        for view in (here, there):
            history = History()
            assert view.tell(history) and view.title == "orders"
            samples.append(history.samples())
        assert samples[0] == samples[1] and len(samples[0]) == 3
        assert here.extras() == there.extras()

    def test_an_address_that_leads_nowhere(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"fetch\+file.*nothing is not the state directory of a join"):
            StateView(f"fetch+file://{tmp_path}/nothing")
        with pytest.raises(SpecError, match="is not reached by PyArrow"):
            StateView("nonsense://bucket/state")

    def test_it_changes_nothing(self, state: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
        view = StateView(state)
        view.tell(History())
        view.extras()
        assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


class TestTimes:
    """How far the inputs of a window join have come, batch by batch."""

    def begin(self, place: Path, number: int, run: str = "run-1", tick: int | None = 1000) -> Marks:
        owner = Owner("some join", 4, "query-1", tick=tick)
        return Marks(StateDirectory(place, owner, Batch(number, run), retain=10), 2, NEVER)

    def test_each_batch_has_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("watersmeet.spark.io.state_view._SETTLES", 0.0)
        told = [((0, (5_000_000, NEVER)), (2, (3_000_000, 1_500_000))), (), ((1, (4_000_000, 9_000_000)),)]
        for number, marks in enumerate(told):
            batch = self.begin(tmp_path, number)
            batch.before()
            for group, times in marks:
                batch.tell(group, times)
        history = History()
        StateView(tmp_path).tell(history)
        assert [each.reached for each in history.samples()] == [(5.0, 1.5), (5.0, 1.5), (5.0, 9.0)]
        assert all(each.dated and each.names == ("left", "right") for each in history.samples())
        assert str(history.last) and not any(each.rows_in for each in history.samples())

    def test_of_a_run_that_was_given_up_they_do_not_count(self, tmp_path: Path) -> None:
        self.begin(tmp_path, 0).tell(0, (10, 10))
        void = self.begin(tmp_path, 1)
        void.before()
        void.tell(0, (1000, 1000))
        again = self.begin(tmp_path, 1, "run-2", tick=None)
        assert StateView(tmp_path).reached(1) == (10e-6, 10e-6)
        again.tell(3, (NEVER, 20))
        assert StateView(tmp_path).reached(1) == (10e-6, 20e-6)

    def test_what_another_task_is_writing_stays(self, tmp_path: Path) -> None:
        self.begin(tmp_path, 0).tell(0, (10, 10))
        again = self.begin(tmp_path, 1, "run-2")  # what was known then is called by the run that finished batch 0
        hidden = tmp_path / "marks" / f".known-1-{token('run-1')}.0123456789ab"
        hidden.touch()
        again.before()
        assert hidden.exists() and hidden.with_name(f"known-1-{token('run-1')}").exists()

    def test_a_task_of_an_earlier_run_leaves_those_of_a_later_one(self, tmp_path: Path) -> None:
        self.begin(tmp_path, 0).tell(0, (10, 10))
        outlived = self.begin(tmp_path, 1)  # it knows of the runs there are now, and looks when the next one is at work
        self.begin(tmp_path, 1, "run-2").tell(2, (NEVER, 20))
        assert outlived.before() == [10, 10]
        assert self.begin(tmp_path, 2, "run-2").before() == [10, 20]

    def test_what_was_dropped_is_not_known_and_integers_stay_as_they_are(self, tmp_path: Path) -> None:
        for number in range(14):
            batch = self.begin(tmp_path, number, tick=None)
            batch.before()
            batch.tell(0, (number, 2 * number))
        view = StateView(tmp_path)
        assert not view.dated and view.reached(0) is None
        assert [view.reached(number) for number in (12, 13)] == [(12, 24), (13, 26)]

    def test_a_join_without_windows_has_none(self, state: Path) -> None:
        assert StateView(state).reached(1) is None

    def test_on_the_page_of_a_query(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(task_figures.DIRECTORIES, "orders", str(tmp_path))
        self.begin(tmp_path, 0).tell(0, (5_000_000, NEVER))
        with wm.Page() as page, Watch(stream=io.StringIO(), page=page) as watch:
            watch.onQueryProgress(event(0))
            last = page.board.runs[0].history.last
        assert last is not None and last.reached == (5.0, None) and last.dated


class TestServe:
    def test_into_a_file(self, state: Path, tmp_path: Path) -> None:
        assert cli.run(["serve", str(state), "--report", str(tmp_path / "state.html")]) == 0
        text = (tmp_path / "state.html").read_text()
        found = re.search(r'id="recorded">(.*?)</script>', text)
        assert found is not None
        [run] = json.loads(found[1])
        assert run["kind"] == "state" and run["title"] == "orders" and len(run["extras"]["groups"]) == 4

    def test_what_is_none(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["serve", str(tmp_path)]) == 2
        assert "is not the state directory of a join" in capsys.readouterr().err

    def test_until_a_signal_comes(self, state: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "watersmeet.cli.main", "serve", str(state)], stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            address = process.stderr.readline().split()[-1]
            metrics = address.replace("/?", "/metrics?")
            until(lambda: "watersmeet_batch{" in urllib.request.urlopen(metrics).read().decode(), "no batch is told")
        finally:
            process.terminate()
            ended(process, "serve was asked to end")
        assert process.returncode == 128 + 15
