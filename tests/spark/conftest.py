"""One Spark session for all tests of a worker process; without Java, the tests that need it are skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_LEAST_JAVA = 17

# A virtual machine that lives for minutes and joins a few thousand rows spends most of its time compiling: a simple
# compiler and a simple collector take half the processor time. This holds for all that is started by `spark-submit`.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def _java_version() -> int:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


@pytest.fixture(scope="session")
def java() -> None:
    if _java_version() < _LEAST_JAVA:
        pytest.skip(f"Spark needs a Java runtime of {_LEAST_JAVA} or later, and there is none; see scripts/java.sh")


def _connector(request: pytest.FixtureRequest) -> dict[str, str]:
    """Spark's connector for Kafka, if a test of this run needs it and it can be had; `broker` says so if it cannot."""
    from servers.process import Unavailable, spark_jars

    if not any("broker" in getattr(item, "fixturenames", ()) for item in request.session.items):
        return {}
    try:
        return {"spark.jars": spark_jars("connector")}
    except Unavailable:
        return {}


@pytest.fixture(scope="module")
def broker(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Kafka broker on this machine."""
    from servers.kafka import Broker
    from servers.process import Unavailable, spark_jars

    try:
        spark_jars("connector")
        found = Broker(tmp_path_factory.mktemp("kafka"))
    except Unavailable as reason:
        pytest.skip(f"no Kafka broker: {reason}")
    with found:
        yield found


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PySpark's own modules say while they are imported
        from pyspark.sql import SparkSession
    place = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder
    for name, value in _connector(request).items():
        builder = builder.config(name, value)
    session = (
        builder.master("local[2,3]")
        .appName("watersmeet tests")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Europe/Athens")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .getOrCreate()
    )
    yield session
    session.stop()
