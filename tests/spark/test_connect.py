"""Everything works under Spark Connect, where there is no SparkContext and no RDD."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.conftest import _LEAST_JAVA, _java_version


def test_every_verb_under_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    if _java_version() < _LEAST_JAVA:
        pytest.skip("Spark needs a Java runtime")
    script = Path(__file__).parent / "connect_script.py"
    environment = {key: value for key, value in os.environ.items() if key not in ("PYSPARK_GATEWAY_PORT", "MASTER")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([str(script.parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=480, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
