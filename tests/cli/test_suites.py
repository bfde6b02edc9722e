"""`watersmeet bench suite`: contestants agree, failures are told, and the page is what its figures make of it."""

from __future__ import annotations

import dataclasses
import gc
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import spark_query
from benchmarks.rounds import Settings
from benchmarks.suites import nexmark, page, run
from benchmarks.suites.catalogue import SUITES
from benchmarks.suites.check import Sum
from benchmarks.suites.contestant import DONE, EXHAUSTED, FAILED, Answer, Task, frames
from benchmarks.suites.engines import answers
from benchmarks.suites.model import OURS, Inputs, Question, size_of

from watersmeet.cli import main as cli

pytest.importorskip("duckdb")
pytest.importorskip("datafusion")
pytest.importorskip("polars")

TINY = {"nexmark": 0.0003, "datafusion-24768": 0.0003, "db-benchmark": 0.0005, "tpch": 0.001, "alliance": 0.005}
"""Scales; of others 0.0002."""
MEMORY = 64 << 20
ELSEWHERE = ("spark", *nexmark.SPARK)
"""Contestants whose tests are those of Spark."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder with the tables of a suite, made once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            SUITES[name].write(made[name], TINY.get(name, 0.0002))
        return made[name]

    return of


def result(contestant: str, question: Question, inputs: Inputs) -> tuple[int, int]:
    total = Sum(question.columns)
    for batch in answers(contestant, question, inputs):
        total.add(batch)
    return total.result


# -- contestants agree -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUITES)
def test_all_contestants_of_a_suite_have_the_same_result(tables: Any, name: str) -> None:
    place, suite = tables(name), SUITES[name]
    for question, setting in suite.asked():
        loaded = {table: pq.read_table(place / table) for table in question.tables} if setting.loaded else {}
        plain = Inputs(place, MEMORY, 2, loaded)
        expected = result("duckdb", question, plain)
        assert expected[0] > 0, question.name
        for contestant in setting.contestants:
            if contestant not in ELSEWHERE:
                inputs = dataclasses.replace(plain, loaded=frames(loaded)) if contestant == "pandas" else plain
                assert result(contestant, question, inputs) == expected, (question.name, setting.name, contestant)


def test_ours_is_exact_in_little_memory_too_where_it_spills(tables: Any) -> None:
    for name in ("datafusion-24768", "db-benchmark", "growth"):
        question = SUITES[name].questions[-1]
        plenty, little = (Inputs(tables(name), memory, 1) for memory in (MEMORY, 200_000))
        assert result(OURS, question, little) == result(OURS, question, plenty)
        joined = question.ours(little, "auto")
        assert sum(batch.num_rows for batch in joined) > 0
        if size_of(tables(name), question.tables) > 400_000:
            assert joined.progress.spilled > 0


def test_nexmarks_answers_are_those_of_the_whole_queries(tables: Any) -> None:
    import duckdb

    place, question = tables("nexmark"), SUITES["nexmark"].question("q4, q9")
    joined = pa.Table.from_batches(question.ours(Inputs(place, MEMORY, 1), "auto"))
    with duckdb.connect() as connection:
        for table in question.tables:
            connection.execute(f"CREATE VIEW {table} AS FROM read_parquet('{place}/{table}/*.parquet')")
        best = "SELECT auction, category, max(price) AS price FROM pairs GROUP BY ALL"
        query = f"WITH pairs AS ({question.sql}), best AS ({best})"
        averages = connection.sql(f"{query} SELECT category, avg(price) FROM best GROUP BY ALL ORDER BY 1").fetchall()
        winning = connection.sql(
            f"{query} SELECT auction, bidder, price FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY "
            "price DESC, ts_right, bidder) AS place FROM pairs) WHERE place = 1 ORDER BY 1"
        ).fetchall()
    assert [tuple(row.values()) for row in nexmark.average_winners(joined).to_pylist()] == [
        (category, pytest.approx(price)) for category, price in averages
    ]
    found = nexmark.winners(joined).select(["auction", "bidder", "price"]).to_pylist()
    assert [tuple(row.values()) for row in found] == winning and len(winning) > 10


def test_the_sum_tells_rows_apart_that_are_lost_doubled_or_paired_otherwise() -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "b": ["x", "y", None], "c": [0.5, None, 2.0]})

    def total(*batches: pa.RecordBatch) -> tuple[int, int]:
        made = Sum(("a", "b", "c"))
        for each in batches:
            made.add(each)
        return made.result

    mixed = batch.set_column(1, "b", pa.array(["y", "x", None]))
    assert total(batch.slice(2), batch.slice(0, 2)) == total(batch)
    others = [total(batch.slice(1)), total(batch.slice(1), batch.slice(1, 1)), total(mixed)]
    assert total(batch) not in others and others[1][0] == others[2][0] == 3


# -- processes, turns, outcomes ----------------------------------------------------------------------------------------


def test_a_process_answers_and_tells_what_it_took(tables: Any) -> None:
    place = str(tables("growth"))
    task = Task("growth", "1M", OURS, place, place, 8 << 20, 1)
    told = run.ask(task, longest=120)
    question = SUITES["growth"].question("1M")
    assert told.outcome == DONE and (told.rows, told.sum) == result("duckdb", question, Inputs(Path(place), MEMORY, 1))
    assert 0 < told.first <= told.seconds and told.cpu > 0 and told.growth < 1 << 30


def test_a_rival_that_runs_out_of_memory_is_told(tables: Any) -> None:
    place = str(tables("datafusion-24768"))
    told = run.ask(Task("datafusion-24768", "join", "datafusion", place, place, 100_000, 1), longest=120)
    assert told.outcome == EXHAUSTED and "exhausted" in told.said
    late = run.ask(Task("datafusion-24768", "join", "duckdb", place, place, MEMORY, 1), longest=0.01)
    assert (late.outcome, late.rows) == ("too long", 0)


def test_a_suite_is_run_in_turns_and_disagreement_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def ask(task: Task, longest: float) -> Answer:
        asked.append((task.question, task.contestant))
        if task.contestant == "polars":
            return Answer(FAILED, "it fell over")
        rows = 8 if (task.contestant, task.question) == ("duckdb", "q2: medium inner on int") else 7
        return Answer(DONE, "", rows, 5, 2.0, 0.5, 3.0, 4_000_000)

    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # before each turn: here it took longer than all that is asked
    target = tmp_path / "db.json"
    assert cli.run(["bench", "suite", "db-benchmark", "--peers", "--scale", "0.0001", "--json", str(target)]) == 1
    told = json.loads(target.read_text())
    assert {"machine", "versions", "load", "scale", "taken"} <= set(told)
    wrong = [(each["question"], each["contestant"]) for each in told["runs"] if each["agrees"] is False]
    assert wrong == [("q2: medium inner on int", "duckdb")] * 2
    assert {each["outcome"] for each in told["runs"] if each["contestant"] == "polars"} == {FAILED}
    assert asked[:3] == [("q1: small inner on int", name) for name in ("ours", "duckdb", "polars")]
    assert "failed: it fell over" in capsys.readouterr().out
    failed = {"contestant": "ours pmj", "outcome": FAILED}
    assert run._ours_failed(failed) and not run._ours_failed(failed | {"contestant": "polars"})
    asked.clear()
    assert run.main(["db-benchmark"], Settings(scale=0.0001, repeat=2), None) == 0
    assert {name for _, name in asked} == {"ours"} and len(asked) == 20, "without --peers ours alone"


@pytest.mark.parametrize("names", [["suite"], ["suite", "nosuch"]])
def test_suites_are_named(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", *names]) == cli.USAGE_ERROR
    assert "nexmark, datafusion-24768, db-benchmark, tpch, alliance, growth" in capsys.readouterr().err
    assert [suite.name for suite in run.chosen(["all"])] == list(SUITES)


# -- the page ----------------------------------------------------------------------------------------------------------


def made_up(question: str, contestant: str, seconds: float, growth: float, outcome: str = DONE) -> dict[str, Any]:
    return {
        "question": question, "setting": "64 MiB", "contestant": contestant, "limit": 1, "input": 2, "outcome": outcome,
        "said": "", "agrees": True, "rows": 3, "seconds": seconds, "cpu": 1.0, "first": 0.5, "growth": growth,
    }  # fmt: skip


def test_the_page_says_where_we_win_and_lose_and_draws_it(tmp_path: Path) -> None:
    told = {
        "suite": "growth", "scale": 1.0, "turns": 1, "taken": "today", "load": [0.1, 2.0],
        "machine": {"processor": "P", "cores": 2, "memory": 1 << 34, "system": "Linux", "python": "3"},
        "versions": {"duckdb": "2"},
        "runs": [
            made_up("1M", "ours", 4.0, 10e6), made_up("1M", "duckdb", 1.0, 40e6),
            made_up("3M", "ours", 9.0, 10e6), made_up("3M", "duckdb", 1.0, 90e6),
            made_up("10M", "ours", 9.0, 10e6), made_up("10M", "duckdb", 0.0, 0.0, EXHAUSTED),
        ],
    }  # fmt: skip
    [found] = page.comparisons(told)
    assert (found.answered, found.asked, found.ended) == (2, 3, EXHAUSTED)
    assert found.ratios["seconds"] == pytest.approx(6) and found.ratios["growth"] == pytest.approx(1 / 6)
    assert found.lost == ["seconds"]
    made = page.text({"growth": told}, {"growth": {"64 MiB": {"duckdb": "It sorts."}}})
    assert "| **6.00 x** | 0.17 x | 1.00 x | 2 of 3, else out of memory |" in made
    assert "- growth, 64 MiB, duckdb: 6.00 x the time. It sorts." in made
    page.draw(told, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_the_page_in_the_documentation_is_made_of_the_figures_there() -> None:
    results = page.read(page.RESULTS)
    assert page.PAGE.read_text() == page.text(results, page.reasons()), "run python -m benchmarks.suites.page"
    assert all((page.PAGE.parent / "images" / f"suite-{name}.png").is_file() for name in results)


def test_figures_are_written_after_each_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends a suite, the figures of the questions before are there."""
    target, asked = tmp_path / "figures.json", []
    real = run._asked

    def until_the_second(*given: Any) -> Any:
        asked.append(given)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(run, "_asked", until_the_second)
    monkeypatch.setattr(run, "ask", lambda task, longest: Answer(FAILED, "it crashed"))
    with pytest.raises(KeyboardInterrupt):
        run.main(["db-benchmark"], Settings(scale=0.0001), target)
    [told] = json.loads(target.read_text())["runs"]
    assert (told["contestant"], told["outcome"], told["said"]) == ("ours", "failed", "it crashed")


def test_a_spark_contestant_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_query.subprocess, "Popen", lambda command, **how: _POPEN(["sleep", "600"], **how))
    with pytest.raises(subprocess.TimeoutExpired):
        spark_query.measure("ours", longest=0.1)


_POPEN = subprocess.Popen
