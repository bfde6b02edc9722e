"""`watersmeet demo` and `watersmeet join --engine spark`: what they show, write and refuse, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from spark.frames import rows_in
from waiting import PATIENCE, ended, is_in, until
from watersmeet.cli import main as cli
from watersmeet.core.errors import SegmentError, WatersmeetError
from watersmeet.demo import on_spark
from watersmeet.spark.io.failures import explained

COMMAND = [sys.executable, "-m", "watersmeet.cli.main"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two inputs, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    tags = pa.array([f"t{i % 3}" for i in range(900)]).dictionary_encode()
    pq.write_table(pa.table({"id": pa.array(range(900), pa.uint16()), "tag": tags, "name": ["a"] * 900}), "a.parquet")
    pyarrow.csv.write_csv(pa.table({"key": [i % 1000 for i in range(2000)], "name": ["x"] * 2000}), "b.csv")
    return tmp_path


def test_a_join_of_files_is_the_same_on_spark(spark: Any, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    join = ["join", "a.parquet", "b.csv", "--on", "id = key", "--memory", "16MiB", "--spill", str(here)]
    join += ["--algorithm", "hmj"]
    assert cli.run([*join, "--engine", "spark", "-o", "far.parquet"]) == 0
    summary = capsys.readouterr().err.splitlines()[-1]
    assert summary.startswith("1,800 rows from 900 + 2,000 in ")
    assert cli.run([*join, "--quiet", "-o", "near.parquet"]) == 0
    far, near = pq.read_table("far.parquet"), pq.read_table("near.parquet")
    assert far.schema == near.schema
    assert rows_in(far) == rows_in(near)
    assert sorted(path.name for path in here.iterdir()) == ["a.parquet", "b.csv", "far.parquet", "near.parquet"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--on", "id = key", "--algorithm", "quick"], "algorithm 'quick' is not known"),
        (["--on", "id = key", "--memory", "9KiB"], "of memory are too little for a task of this join"),
        (["--on", "nothing"], "join column 'nothing' is not in"),
        (["--on", "id = key", "--memory", "much"], "'much' is not understood"),
        (["--on", "id = key", "-o", "out.txt"], "out.txt cannot be written"),
        (["--on", "id = key", "--spill", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_spark_is_started(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr("watersmeet.spark.io.local.local_session", None)
    assert cli.run(["join", "a.parquet", "b.csv", "--engine", "spark", *arguments]) in (1, 2)
    output = capsys.readouterr()
    assert said in output.err and len(output.err.splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == ["a.parquet", "b.csv"]


def test_a_failure_in_a_task_is_one_sentence(spark: Any, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("late.csv").open("w") as file:
        file.write("key,n\n" + "1,2\n" * 90_000 + "1,2,3\n")
    join = ["join", "a.parquet", "late.csv", "--on", "id = key", "--engine", "spark", "--quiet", "-o", "out.parquet"]
    assert cli.run(join) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"watersmeet: {here / 'late.csv'}")
    assert len(output.err.splitlines()) == 1
    assert not list(here.glob("*out*"))


def test_our_sentence_is_found_in_sparks_report() -> None:
    report = "An error\n  File x\nwatersmeet.core.errors.SegmentError: segment 'left-3' is torn; put it back\n\tat org"
    found = explained(report)
    assert type(found) is SegmentError and str(found) == "segment 'left-3' is torn; put it back"
    assert type(explained("")) is WatersmeetError


def test_without_java_there_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(here))
    assert cli.run(["demo", "--rows", "100"]) == 1
    assert "Spark needs a Java runtime of 17 or later, and JAVA_HOME=" in capsys.readouterr().err
    assert not (here / "demo-output").exists()


def test_a_small_demo(
    spark: Any, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine, rows come in several batches: in all but the last, work is done that could wait.
    monkeypatch.setattr(on_spark, "ROWS_PER_BATCH", 2400)
    assert cli.run(["demo", "--rows", "12000", "--memory", "256KiB", "--seed", "5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80 + len(str(here))
    figures = {cells[1].strip(): cells[2].strip() for line in shown if len(cells := line.split("│")) == 4}
    assert figures["orders"] == "12,000 rows" and figures["shipments"] == "9,600 rows"
    assert figures["verified with Spark's own join"] == "yes"
    assert figures["peak memory"].endswith(" KiB of 256 KiB")
    found = spark.read.parquet(str(here / "demo-output/result"))
    assert figures["pairs"] == f"{found.count():,}"
    assert (here / "demo-output/demo.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_an_interrupt_leaves_no_process_and_no_files(here: Path) -> None:
    scratch = here / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "demo", "--out", "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        until(lambda: process.poll() is not None or is_in(scratch, "checkpoint/offsets/0"), "a batch is begun")
        assert process.poll() is None, process.communicate()
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in child.name() for child in children)
        process.send_signal(signal.SIGINT)
        _, errors = ended(process, "it was interrupted")
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert errors.endswith("watersmeet: stopped\n") and "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=PATIENCE)
    assert not alive
    assert not [path for path in scratch.rglob("*") if path.is_file()]
