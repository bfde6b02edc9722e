"""A quiet local Spark for the command line: started if there is none, and gone when it is no longer needed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import WatersmeetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
MOST_CORES = 4
_SECONDS_TO_END = 15
_SETTINGS = {
    "spark.sql.streaming.numRecentProgressUpdates": "10000",  # the display must not miss any
    "spark.sql.adaptive.enabled": "false",  # for queries this small, planning again takes longer than it saves
    "spark.sql.session.timeZone": "UTC",
}


def cores() -> int:
    """How many tasks run at once."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_CORES, usable)


@contextmanager
def local_session(name: str, log: Path, scratch: Path, short: bool = False) -> Iterator[SparkSession]:
    """The session that this process has, or one of a local Spark that ends with the block.

    :param log: the file that Spark and its workers write to, instead of the terminal.
    :param scratch: where Spark keeps what it needs while it runs.
    :param short: whether less than a minute of work is ahead, for which thorough compiling does not pay.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PySpark's own modules say while they are imported
        from pyspark.sql import SparkSession
    running = SparkSession.getActiveSession()
    if running is not None:
        with _settings(running):
            yield running
        return
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(f"local[{cores()}]")
        .appName(name)
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores()))
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    )
    if short:
        builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    interrupt = signal.getsignal(signal.SIGINT)
    orderly = False
    try:
        with _standard_error_into(log):
            session = builder.getOrCreate()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)  # Spark has put its own in its place
        with _settings(session):
            yield session
        orderly = True
    except Exception:
        orderly = True
        raise
    finally:
        _end(orderly)


@contextmanager
def _settings(session: SparkSession) -> Iterator[None]:
    before = {key: session.conf.get(key) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    yield
    for key, old in before.items():
        session.conf.set(key, old or "")


def check_java() -> None:
    """An error if Spark would find no Java that it can run on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = 0
    if java and Path(java).exists():
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
        version = re.search(r'version "(\d+)', told)
        found = int(version[1]) if version else 0
    if found < LEAST_JAVA:
        where = f"JAVA_HOME={home}" if home else "the PATH"
        raise WatersmeetError(
            f"Spark needs a Java runtime of {LEAST_JAVA} or later, and {where} has none; install one "
            f"(Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or take --engine local"
        )


@contextmanager
def _standard_error_into(log: Path) -> Iterator[None]:
    """What is started meanwhile has this file as its standard error, for good."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)


def _end(orderly: bool) -> None:
    """Stop Spark and wait until its process is gone.

    After an interrupt no word is exchanged with it any more: the answer to the last question may still be on its way,
    and would be taken for the answer to the next.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    gateway: Any = SparkContext._gateway
    if orderly and context is not None:
        with suppress(Exception):
            context.stop()
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        with suppress(Exception):
            server.shutdown()  # or it would complain that its client is gone
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
