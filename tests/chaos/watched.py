"""A join task that is watched, slowed down and, when ordered to, fails: all from outside, the task itself is as it is.

A task's steps (begun, read, published, answered) go into a journal, a file for each process; `running` has a file for
each process that is inside a task, with the step it has reached; `orders` are files that the first task to find one
takes away and obeys.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from waiting import PATIENCE
from watersmeet.spark.state.directory import GroupState
from watersmeet.spark.task.lookup_task import BatchVersions

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

STEPS = ("begun", "read", "published", "answered")
RAISE = "raise after publication"
STRAGGLE = "straggle"


class Ordered(RuntimeError):
    """The exception that a task was ordered to raise."""


@dataclass(frozen=True)
class Note:
    """A line of the journal."""

    at: float
    pid: int
    run: str
    batch: int
    group: int
    attempt: int
    step: str


def read_journal(place: Path) -> list[Note]:
    """All steps of all tasks so far, in the order of their time."""
    notes = []
    for file in (place / "journal").iterdir():
        for line in file.read_text().splitlines():
            with suppress(ValueError):  # a process was killed while it wrote its last line
                notes.append(Note(**json.loads(line)))
    return sorted(notes, key=lambda note: note.at)


class Watch:
    """The eye on one task attempt."""

    def __init__(self, place: Path, pause: float) -> None:
        context = TaskContext.get()
        assert context is not None
        self._place = place
        self._pause = pause
        self._run = str(context.getLocalProperty("spark.jobGroup.id"))
        self._batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        self._group = context.partitionId()
        self.attempt = context.attemptNumber()
        self._running = place / "running" / str(os.getpid())
        self._lock = threading.RLock()

    def reach(self, step: str) -> None:
        """Note a step, then obey what was ordered, or wait a little, so that a kill finds tasks at every step."""
        with self._lock:  # a slot publishes several groups at once
            self._reach(step)

    def _reach(self, step: str) -> None:
        note = Note(time.time(), os.getpid(), self._run, self._batch, self._group, self.attempt, step)
        with (self._place / "journal" / str(os.getpid())).open("a") as journal:
            journal.write(json.dumps(asdict(note)) + "\n")
        hidden = self._running.with_name(f".{self._running.name}")
        hidden.write_text(json.dumps(asdict(note)))
        hidden.rename(self._running)
        if step == "published" and self._take(RAISE) is not None:
            self.reach("raised")
            raise Ordered(f"ordered to fail after publication, in batch {self._batch}")
        if self.attempt == 0 and step in STEPS and (until := self._take(f"{STRAGGLE} {step}")) is not None:
            self._wait_for_the_other(until)
            self.reach(f"waited until {until}")
        time.sleep(random.uniform(0, self._pause))

    def _wait_for_the_other(self, until: str) -> None:
        """Wait until another attempt at this task has reached a step."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for note in read_journal(self._place):
                other = (note.run, note.batch, note.group) == (self._run, self._batch, self._group)
                if other and note.attempt != self.attempt and note.step == until:
                    return
            time.sleep(0.02)

    def leave(self) -> None:
        """The task is over."""
        self._running.unlink(missing_ok=True)

    def _take(self, order: str) -> str | None:
        taken = self._place / "orders" / f".{order} {os.getpid()} {time.monotonic_ns()}"
        with suppress(FileNotFoundError):
            (self._place / "orders" / order).rename(taken)
            return taken.read_text()
        return None


_watch: Watch | None = None


def _noted(method: Callable[..., Any], step: str) -> Callable[..., Any]:
    """A method that notes a step once it is done."""

    @wraps(method)
    def wrapper(*given: Any) -> Any:
        found = method(*given)
        if _watch is not None:
            _watch.reach(step)
        return found

    return wrapper


_WATCHED = [
    (owner, name, _noted(getattr(owner, name), step))
    for owner, name, step in (
        (GroupState, "latest", "read"), (GroupState, "publish_once", "published"),
        (BatchVersions, "current", "read"),
    )
]  # fmt: skip


@dataclass(frozen=True)
class Watched:
    """The function of `mapInArrow`: the join's own, watched."""

    task: Task
    place: str
    pause: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        global _watch
        for owner, name, method in _WATCHED:
            setattr(owner, name, method)
        _watch = watch = Watch(Path(self.place), self.pause)
        try:
            watch.reach("begun")
            yield from self.task(batches)
            watch.reach("answered")
        finally:
            watch.leave()
            _watch = None
