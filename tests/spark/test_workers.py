"""A worker whose Python is the wrong one says so, and one on this machine is the right one. No Spark is needed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from watersmeet.memory import Budget
from watersmeet.spark.task import worker as settled
from watersmeet.spark.task.worker import portable, use_own_python

_SCRIPT = """
import sys
sys.modules["watersmeet"] = None  # what an interpreter without it does at an import
from pyspark import cloudpickle
run = cloudpickle.loads(open(sys.argv[1], "rb").read())
next(run(iter([])))
"""


def test_a_worker_without_watersmeet_says_what_to_do(tmp_path: Path) -> None:
    run = portable(Budget(5), SimpleNamespace())  # type: ignore[arg-type]
    (tmp_path / "run").write_bytes(cloudpickle.dumps(run))
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"RuntimeError: the Python of Spark's workers, {sys.executable}, has no Watersmeet")
    assert "set PYSPARK_PYTHON" in last


def test_what_a_worker_has_loaded_is_set_aside_after_its_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "_tasks", 0)
    before = gc.get_freeze_count()
    try:
        assert list(portable(iter, SimpleNamespace())(iter([1, 2]))) == [1, 2]  # type: ignore[arg-type]
        assert gc.get_freeze_count() > before + 1_000
    finally:
        gc.unfreeze()


_CLEAN = """
from pyspark.sql import SparkSession
from watersmeet import spark as wms

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
wms.register(spark)
options = {"rows": 100, "keys": 10, "seed": 1, "columns": "id, line, amount, note"}
assert spark.read.format("watersmeet").options(**options).load().count() == 100
query = spark.readStream.format("watersmeet").options(**options).load().writeStream.format("memory").queryName("rows")
query.trigger(availableNow=True).start().awaitTermination()
assert spark.table("rows").count() == 100
"""


def test_the_data_source_runs_with_this_python_where_nobody_has_named_one(java: None, tmp_path: Path) -> None:
    # The Python of the path has no Watersmeet, as that of most machines; it says so if it is asked.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho the wrong Python was asked >&2\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PATH": f"{other.parent}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    command = [sys.executable, "-W", "ignore", "-c", _CLEAN]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _session(master: str, python: str | None = None) -> Any:
    conf = SimpleNamespace(get=lambda name: python)
    return SimpleNamespace(_sc=SimpleNamespace(master=master, getConf=lambda: conf, pythonExec="python3"))


def test_workers_on_this_machine_run_this_python_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for session, expected in (
        (_session("local[2]"), sys.executable),
        (_session("local[2]", "/some/python"), "python3"),
        (_session("spark://host:7077"), "python3"),
    ):
        use_own_python(session)
        assert session._sc.pythonExec == expected
    monkeypatch.setenv("PYSPARK_PYTHON", "/some/python")
    session = _session("local[2]")
    use_own_python(session)
    assert session._sc.pythonExec == "python3"
    use_own_python(SimpleNamespace())  # type: ignore[arg-type]
