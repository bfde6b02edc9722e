"""A handle on the driver's process: tell it what to do, see what runs below it, kill some of that, start it again."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from chaos.job import ANSWER
from chaos.verbs import VERBS
from chaos.watched import Note, read_journal
from chaos.work import rows_of
from waiting import PATIENCE, until

_EXECUTOR = "CoarseGrainedExecutorBackend"
_TESTS = Path(__file__).parents[1]


class Died(RuntimeError):
    """The driver's process ended, or kept silent for too long, when an answer was due."""


class Job:
    """A driver that is started in a process of its own, any number of times, over one place on disk."""

    def __init__(self, place: Path, master: str, conf: Mapping[str, str] | None = None, verb: str = "join") -> None:
        self.place = place
        self.verb = VERBS[verb]
        self.settings: dict[str, Any] = {
            "place": str(place), "master": master, "groups": 3, "pause": 0.15, "conf": dict(conf or {}), "verb": verb,
        }  # fmt: skip
        for name in ("journal", "running", "orders"):
            (place / name).mkdir(parents=True, exist_ok=True)
        self.log = place / "driver.log"
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader: threading.Thread | None = None
        self._known: dict[tuple[int, float], psutil.Process] = {}

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def start(self) -> None:
        """Start the driver and its query."""
        path = os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "chaos.job", json.dumps(self.settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.place,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        self._answers = queue.Queue()
        self._reader = threading.Thread(target=_pass_on, args=(self._process.stdout, self._answers), daemon=True)
        self._reader.start()
        self._answer("to its start", 2 * PATIENCE)
        self.tell("start")

    @property
    def pid(self) -> int:
        """The driver's process."""
        assert self._process is not None
        return self._process.pid

    def tell(self, what: str, timeout: float = 2 * PATIENCE) -> dict[str, Any]:
        """Tell the driver to do something, and wait for the answer."""
        self.order(what)
        return self._answer(f"to {what!r}", timeout)

    def order(self, what: str) -> None:
        """Tell the driver to do something; the answer comes when it is done."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def _answer(self, of: str, timeout: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise Died(f"no answer {of} for {timeout:.0f} s; see {self.log}") from None
        if line is None:
            raise Died(f"the driver ended and gave no answer {of}; see {self.log}")
        return dict(json.loads(line))

    def drain(self) -> None:
        """Wait until all files are taken in; what stopped the query is raised."""
        answer = self.tell("drain")
        if "error" in answer:
            raise Died(answer["error"])

    def rows(self, what: str) -> Any:
        """The rows of the sink (`read`), or of Spark's own join (`own`)."""
        with pa.OSFile(self.tell(what)["path"]) as file:
            return rows_of(pa.ipc.open_file(file).read_all())

    def quit(self) -> None:
        """End the driver in an orderly way."""
        assert self._process is not None
        self._look()
        with suppress(Died):
            self.tell("quit", PATIENCE)
        self.kill_all()

    # -- what runs

    def running(self) -> dict[int, Note]:
        """The processes of this driver's that are inside a task, and the step each has reached."""
        alive = {process.pid for process in self._look() if _is_alive(process)}
        found = {}
        for file in (self.place / "running").glob("[0-9]*"):
            with suppress(FileNotFoundError):
                if int(file.name) in alive:
                    found[int(file.name)] = Note(**json.loads(file.read_text()))
        return found

    def wait_running(self, timeout: float) -> tuple[int, Note] | None:
        """A process that is inside a task, as soon as there is one; None if none comes."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for found in self.running().items():
                return found
            time.sleep(0.01)
        return None

    def hold(self, pid: int) -> Note | None:
        """Stop a process in the midst of its task, for it might be done before it is killed; None if it is done."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.send_signal(signal.SIGSTOP)
            until(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE), f"process {pid} stops")
            with suppress(FileNotFoundError):
                return Note(**json.loads((self.place / "running" / str(pid)).read_text()))
            self.let_go(pid)
        return None

    def let_go(self, pid: int) -> None:
        """Let a process that is held, if it is still there, go on."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def executor_of(self, pid: int) -> psutil.Process | None:
        """The executor above a Python worker."""
        with suppress(psutil.Error):
            for parent in psutil.Process(pid).parents():
                if _EXECUTOR in " ".join(parent.cmdline()):
                    return parent
        return None

    def journal(self) -> list[Note]:
        """All steps of all tasks so far, in the order of their time."""
        return read_journal(self.place)

    def write_order(self, name: str, content: str = "") -> None:
        """An order for the first task that finds it."""
        hidden = self.place / "orders" / f".{name}"
        hidden.write_text(content)
        hidden.rename(self.place / "orders" / name)

    def is_waiting(self, name: str) -> bool:
        """Whether an order has not been taken."""
        return (self.place / "orders" / name).exists()

    # -- killing

    def kill_driver(self) -> int:
        """SIGKILL the driver, Python and JVM; its executors and workers are left to find out. The JVM's pid."""
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        [jvm] = [child for child in children if "java" in child.name()]
        self._look()
        kill(jvm)
        self._end()
        return jvm.pid

    def kill_all(self) -> None:
        """End every process that this job ever had."""
        self._look()
        self._end()
        self._end_known()
        if self._reader is not None:
            self._reader.join(PATIENCE)

    def _end(self) -> None:
        """End the driver's Python process, and what was said to it and by it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            with suppress(BrokenPipeError):
                self._process.stdin.close()  # type: ignore[union-attr]
            self._process = None

    def _look(self) -> list[psutil.Process]:
        """All processes below the driver, and take note of them."""
        if self._process is None or self._process.poll() is not None:
            return []
        with suppress(psutil.Error):
            found = psutil.Process(self._process.pid).children(recursive=True)
            for process in found:
                with suppress(psutil.Error):
                    self._known[process.pid, process.create_time()] = process
            return [process for process in found if process.is_running()]
        return []

    def _end_known(self) -> None:
        for process in self._known.values():
            with suppress(psutil.Error):
                process.kill()  # psutil makes sure that the number is still that process's
        for process in self._known.values():
            # Linux says that nothing is there where a thread has the number of a process that is gone.
            with suppress(psutil.Error, FileNotFoundError):
                process.wait(PATIENCE)
        self._known.clear()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def kill(process: psutil.Process) -> None:
    """SIGKILL a process and make sure that it died of it."""
    process.send_signal(signal.SIGKILL)
    until(lambda: not _is_alive(process), f"process {process.pid} dies of SIGKILL")


def _pass_on(lines: Any, answers: queue.Queue[str | None]) -> None:
    with lines:
        for line in lines:
            if line.startswith(ANSWER):
                answers.put(line.removeprefix(ANSWER))
    answers.put(None)
