"""A worker whose Python is the wrong one says so, and one on this machine is the right one. No Spark is needed."""

from __future__ import annotations

import gc
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
