"""`watersmeet bench`: it finds its benchmarks, measures, checks results, and says what it measured."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.cli import bench
from watersmeet.cli import main as cli
from watersmeet.core.errors import SpecError, WatersmeetError

FIELDS = ["bench", "metric", "value", "unit", "peer", "ratio", "target", "holds"]
PROMISED = [
    "inmemory",
    "inmemory-large",
    "small-batches",
    "skew",
    "bounded",
    "short",
    "growth",
    "batches",
    "page-cache",
    "lookup",
    "memory",
    "multiway",
    "online",
    "page",
    "purge",
    "queries",
    "range",
    "start",
    "window",
    "asof",
    "kinds",
    "spark-equi",
    "spark-drain",
    "spark-trigger",
    "spark-repartition",
    "spark-restart",
    "spark-batch",
    "spark-window",
    "spark-kinds",
    "spark-4way",
    "spark-lookup",
    "spark-skew",
    "spark-cluster",
    "spark-kafka",
    "spark-s3",
]
SUITES = ["nexmark", "datafusion-24768", "db-benchmark", "tpch", "alliance", "growth"]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(bench.find_benchmarks().parent))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.main(parser.parse_args(arguments))


def records(path: Path, *arguments: str) -> list[dict[str, Any]]:
    assert run(*arguments, "--repeat", "1", "--json", str(path)) == 0
    found: list[dict[str, Any]] = json.loads(path.read_text())
    assert found and all(list(record) == FIELDS for record in found)
    return found


# -- the command -------------------------------------------------------------------------------------------------------


def test_lists_every_promised_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("suite ")] == PROMISED
    assert [line.split()[1] for line in lines if line.startswith("suite ")] == SUITES


def test_a_name_stands_for_all_that_begin_with_it(modules: Any) -> None:
    chosen = modules("catalogue").chosen
    assert chosen(["start", "spark", "spark-equi"]) == ["start", *(name for name in PROMISED if name[:6] == "spark-")]
    assert chosen([]) == PROMISED


def test_names_what_there_is_instead_of_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "nosuch"]) == cli.USAGE_ERROR
    assert "there is no benchmark 'nosuch'; there are inmemory, " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--repeat", "0"], ["--scale", "0"], ["--scale", "nan"]])
def test_refuses_senseless_numbers(arguments: list[str]) -> None:
    with pytest.raises(SpecError, match="at least once, at a scale above 0"):
        run("start", *arguments)


def test_refuses_a_place_it_cannot_write_to_before_it_measures(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="missing is not a directory"):
        run("start", "--json", str(tmp_path / "missing" / "figures.json"))


@pytest.mark.parametrize(("command", "known"), [("bench", "inmemory"), ("reproduce", "rpj-8")])
def test_a_checkout_is_found_from_another_directory(command: str, known: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "watersmeet.cli", command, "--list"]
    source = Path(wm.__file__).parents[1]
    done = subprocess.run(
        arguments, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert known in done.stdout


def test_says_so_where_there_are_no_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = bench.find_benchmarks()
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "lib" / "site" / "watersmeet" / "cli" / "bench.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WatersmeetError, match="run this in a checkout"):
        bench.find_benchmarks()
    shutil.copytree(checkout, tmp_path / "benchmarks")
    assert bench.find_benchmarks() == tmp_path / "benchmarks"


# -- what is measured --------------------------------------------------------------------------------------------------


def test_compares_with_a_peer_in_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    found = records(tmp_path / "figures.json", "inmemory", "--peers", "--scale", "0.02")
    total = next(record for record in found if record["metric"] == "total, confluence")
    assert total["ratio"] == pytest.approx(total["value"] / total["peer"])
    assert total["target"] == "<= 0.75 x"
    assert total["holds"] is None, "a target is about the full size"
    wrong = next(record for record in found if record["metric"] == "wrong results")
    assert wrong["value"] == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 3 + len(found)
    assert max(map(len, table)) <= 80


def test_runs_without_peers_and_judges_nothing_by_them(tmp_path: Path) -> None:
    found = records(tmp_path / "figures.json", "skew", "small-batches", "--scale", "0.02")
    assert {record["bench"] for record in found} == {"skew", "small-batches"}
    assert all(record["peer"] is None and record["ratio"] is None for record in found)
    assert all(record["value"] == 0 for record in found if record["metric"].startswith("wrong"))
    targets = {record["metric"]: record["target"] for record in found}
    assert targets["of 64 rows, confluence"] == ">= 2" and targets["of 1 row, confluence"] == ">= 0.3"


def test_short_memory_is_exact(tmp_path: Path) -> None:
    found = {record["metric"]: record["value"] for record in records(tmp_path / "f.json", "short", "--scale", "0.02")}
    assert found["uniform: wrong runs"] == found["zipf: wrong runs"] == 0
    assert found["uniform: 1%"] > 0 and found["zipf: 1%"] > 0


def test_bounded_spills_and_is_exact(tmp_path: Path) -> None:
    found = {record["metric"]: record["value"] for record in records(tmp_path / "f.json", "bounded", "--scale", "0.02")}
    assert found["wrong runs, by checksum"] == 0
    assert all(found[f"spilled, {budget} MB"] > 0 for budget in (200, 100, 60))


def test_joins_of_four_inputs_are_exact_and_spill_in_little_memory(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    found = {each["metric"]: each for each in records(tmp_path / "f.json", "multiway", "--peers", "--scale", "0.01")}
    for shape in ("chain", "star", "inflating chain"):
        assert found[f"wrong runs, {shape}"]["value"] == 0
    assert found["chain: total, mjoin"]["target"] == "<= 1.5 x"
    assert found["inflating chain: state, mjoin to tree"]["ratio"] < 1
    assert all(found[f"star: first, {join} in 10%"]["value"] > 0 for join in ("miner", "tree", "mjoin"))


def test_joins_of_stalling_sources_and_of_ranges_are_exact(
    tmp_path: Path, modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules("online"), "STALL", 0.1)
    names = ("online", "range")
    found = {record["metric"]: record["value"] for record in records(tmp_path / "f.json", *names, "--scale", "0.02")}
    assert found["wrong runs"] == 0
    assert 0 < found["delivered by then, confluence"] <= 100
    assert found["arriving, rpj beside xjoin"] > 0
    assert found["rows a second, confluence"] > 0


def test_a_day_of_news_is_joined_in_little_memory(tmp_path: Path) -> None:
    found = {
        record["metric"]: record["value"]
        for record in records(tmp_path / "f.json", "purge", "--scale", "0.005", "--repeat", "1")
    }
    assert found["wrong results, rate"] == found["wrong results, memory"] == 0
    assert found["spilled, rate"] == 0 and found["handed on, rate"] == 1000
    assert found["most rows kept, memory"] <= found["most rows kept, rate"] < 1000


def test_a_page_is_looked_at_while_its_cost_is_measured(tmp_path: Path) -> None:
    found = {record["metric"]: record["value"] for record in records(tmp_path / "f.json", "page", "--scale", "0.02")}
    assert found["wrong runs, by row count"] == 0
    assert found["updates a second"] > 0 and found["opening the first page"] > 0
    assert found["processor time, with a page"] > 0 and "more with a page" in found


def test_a_wrong_result_fails_the_run(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules("in_memory"), "matches", lambda left, right: -1)
    assert run("skew", "--scale", "0.01", "--repeat", "1") == 1


def test_growth_of_a_process_is_seen(modules: Any) -> None:
    memory, resident = modules("memory"), modules("resident")
    for workload, rows in (("bounded", 40_000), ("zipf", 4_000)):
        run_account = memory.measure(workload, "operator", 8 << 20, rows)
        assert run_account["rows"] == resident.expected(workload, rows) > 0
        assert 0 < run_account["peak"] <= 8 << 20
        assert run_account["growth"] < run_account["idle"]


def test_memory_is_watched_at_every_budget_of_bounded_and_short(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, asked = modules("memory"), set()

    def measure(workload: str, driver: str, size: int, rows: int) -> dict[str, float]:
        asked.add((workload, driver, size, rows))
        return {"budget": size, "growth": size, "peak": size, "rows": 7}

    monkeypatch.setattr(memory, "measure", measure)
    monkeypatch.setattr(memory, "expected", lambda workload, rows: 7)
    found = {each.metric: each for each in memory.memory(modules("rounds").Settings(repeat=1))}
    assert found["wrong runs, by row count"].value == 0
    uniform, zipf = 2 * 1_500_000 * 80, 2 * 200_000 * 80
    budgets = [("bounded", size * 1_000_000, 3_000_000) for size in (200, 100, 60)]
    budgets += [("uniform", int(uniform * share), 1_500_000) for share in (0.1, 0.03, 0.01)]
    budgets += [("zipf", int(zipf * share), 200_000) for share in (0.1, 0.03, 0.01)]
    assert asked == {(name, driver, size, rows) for name, size, rows in budgets for driver in ("operator", "wm.join")}
    assert found["growth at uniform 10%, wm.join"].target.bound == pytest.approx(1.15 * 24 + 16)


def test_ten_times_the_rows_are_beside_those_before(tmp_path: Path) -> None:
    found = {each["metric"]: each for each in records(tmp_path / "f.json", "growth", "--scale", "0.01")}
    assert found["wrong runs, by row count"]["value"] == 0
    assert found["64 MiB: 0.3M rows, spilled"]["value"] == 0 < found["64 MiB: 30M rows, spilled"]["value"]
    for memory, kept in (("64 MiB", 0.7), ("5%", 0.9)):
        for by in ("processor", "clock"):
            first, second = (found[f"{memory}: {size} rows, {by}"] for size in ("3M", "30M"))
            assert second["peer"] == first["value"] > 0 and second["target"] == f">= {kept} x"


def test_what_a_batch_of_results_costs_is_seen(tmp_path: Path) -> None:
    found = {each["metric"]: each for each in records(tmp_path / "f.json", "batches", "--scale", "0.1")}
    assert found["wrong runs, by row count"]["value"] == 0
    assert found["rows a batch, few"]["value"] <= 256 < found["rows a batch, many"]["value"] <= 8192
    assert found["processor time, few"]["value"] > found["processor time, many"]["value"]
    assert found["a batch of results"]["target"] == "<= 50"


def test_runs_are_read_and_mapped_with_a_warm_and_a_cold_page_cache(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_cache = modules("page_cache")
    monkeypatch.setattr(page_cache, "WARMING", 8_192)
    due = modules("resident").expected("uniform", 20_000)
    for way in ("read", "mapped"):
        for cache in ("warm", "cold"):
            told = page_cache.join(way, cache, 1 << 20, 20_000)
            assert told["pairs"] == due and told["clock"] > 0 and told["processor"] > 0
            assert (told["dropped"] > 0) == (cache == "cold")


def test_reading_is_beside_mapping(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page_cache = modules("page_cache")

    def account(way: str, cache: str, memory: int, rows: int, groups: Path | None) -> dict[str, float]:
        clock = {"read": 1.0, "mapped": 4.0}[way] * (2 if cache == "cold" else 1)
        return {"clock": clock, "processor": 1.0, "disk": 0, "pairs": 7, "own": memory, "cached": 2e6}

    monkeypatch.setattr(page_cache, "account", account)
    monkeypatch.setattr(page_cache, "expected", lambda workload, rows: 7)
    settings = modules("rounds").Settings(repeat=1)
    found = {each.metric: each for each in page_cache.page_cache(settings)}
    cold = found["1%, cold: read, beside mapped, clock"]
    assert (cold.value, cold.peer, found["wrong runs, by row count"].value) == (2, 8, 0)
    limited = {each.metric: each for each in page_cache.measured(settings, Path("groups"))}
    assert limited["10%, limited: own at most"].value == 24 and limited["10%, limited: cached at most"].value == 2
    assert not set(limited) & {each for each in found if "," in each and "wrong" not in each}


def test_the_first_join_of_a_process_is_timed(modules: Any) -> None:
    loading, first, second = modules("start").first_join()
    assert loading > 0 and first > second > 0, "the first loads what was compiled"


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_targets_and_figures(modules: Any) -> None:
    Figure, Target = modules("figures").Figure, modules("figures").Target
    fast = Figure("total", 1.0, "s", 2.0, Target("<=", 0.8, of_ratio=True))
    assert fast.judged(full=True) is True
    assert fast.judged(full=False) is None
    assert Figure("total", 2.0, "s", 2.0, fast.target).judged(full=True) is False
    assert Figure("total", 2.0, "s", None, fast.target).judged(full=True) is None
    assert Figure("speed", 0.2, "M rows/s", target=Target(">=", 0.3)).judged(full=True) is False
    assert Figure("speed", None, "M rows/s", target=Target(">=", 0.3)).judged(full=True) is None


def test_contestants_take_turns(modules: Any) -> None:
    turns: list[str] = []
    runs = modules("rounds").take_turns({name: lambda name=name: turns.append(name) or len(turns) for name in "ab"}, 3)
    assert turns == ["a", "b"] * 3
    assert runs == {"a": [1, 3, 5], "b": [2, 4, 6]}
    assert modules("rounds").middle(runs["a"], float) == 3
    assert modules("rounds").middle(None, float) is None


def test_checksum_sees_a_row_that_is_lost_doubled_or_mixed_up(modules: Any) -> None:
    inputs = modules("inputs")
    left, right = (inputs.table(inputs.generators.uniform(500, 100, seed), seed, width=12) for seed in (1, 2))
    joined = left.join(right, "key", right_suffix="_right", join_type="inner").combine_chunks().to_batches()[0]
    expected = inputs.expected_checksum(left, right)
    column = joined.schema.get_field_index("text_right")
    mixed = joined.set_column(column, "text_right", joined["text_right"].take(pa.array(range(joined.num_rows)[::-1])))

    def checksum(*batches: pa.RecordBatch) -> tuple[int, int]:
        count = inputs.Checksum()
        for batch in batches:
            count.add(batch)
        found: tuple[int, int] = count.result
        return found

    assert checksum(joined.slice(7), joined.slice(0, 7)) == expected
    assert checksum(joined.slice(1)) != expected
    assert checksum(joined.slice(1), joined.slice(1, 1)) != expected
    assert checksum(mixed) != expected


def test_the_peer_that_joins_endless_streams_finds_the_same_pairs(modules: Any) -> None:
    window = modules("window")
    streams = window.Streams.of(30_000, 5_000, 2_000)
    found = modules("symmetric_peer").datafusion_pairs(streams.left, streams.right, streams.window)
    assert found.pairs == window.run(streams, 64 << 20).pairs > 0
