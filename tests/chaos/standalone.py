"""A Spark cluster of two workers that Spark takes for two hosts: a second attempt at a task runs only on another.

(In `local-cluster`, all workers have the same host name, so no task is ever run twice at once.)
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pyspark

from waiting import PATIENCE

_CLASSES = "org.apache.spark.deploy"
_HOSTS = ("127.0.0.1", "127.0.0.2")


class Standalone:
    """A master and two workers with a core each; a context manager."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Standalone:
        self._place.mkdir(parents=True, exist_ok=True)
        log = self._begin("master", "master.Master", "--host", _HOSTS[0], "--port", "0")
        self.master = _found(log, r"Starting Spark master at (spark://\S+)")
        for host in _HOSTS:
            work = str(self._place / f"work-{host}")
            given = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", work)
            log = self._begin(f"worker-{host}", "worker.Worker", *given, self.master)
            _found(log, r"(Successfully registered with master)")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE)

    def _begin(self, name: str, main: str, *given: str) -> Path:
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        environment |= {"SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        command = [str(home / "bin" / "spark-class"), f"{_CLASSES}.{main}", "--webui-port", "0", *given]
        log = self._place / f"{name}.log"
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=self._place)
            )
        return log


def _found(log: Path, pattern: str, timeout: float = PATIENCE) -> str:
    """What a log says, as soon as it says it."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"{log} does not say {pattern!r}; it says: {log.read_text(errors='replace')[-2000:]}")
