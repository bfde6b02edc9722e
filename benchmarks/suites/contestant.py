"""A process that answers one question as one contestant, and tells how: `python -m benchmarks.suites.contestant JSON`.

The tables of `warm` are gone through first, so that what is measured has its code loaded and compiled. The answer is a
line of JSON: how it came out, rows and their number, seconds to the first and to the last row, processor time, and by
how much the process grew.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds

from benchmarks.ours import Watch
from benchmarks.resident import Sampler, forget_peak, peak
from benchmarks.suites import catalogue
from benchmarks.suites.check import Sum
from benchmarks.suites.engines import answers, is_exhausted
from benchmarks.suites.model import LEAST_MEMORY, OURS, Inputs, Question

DONE, EXHAUSTED, FAILED, TOO_LONG = "done", "out of memory", "failed", "too long"
MOST_OF_THE_MACHINE = 0.8
WARM_MEMORY = 1 << 30
"""Of rivals; ours has little, so that what spills is loaded, too."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is told to do."""

    suite: str
    question: str
    contestant: str
    place: str
    warm: str
    memory: int
    threads: int
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """How it went."""

    outcome: str
    said: str = ""
    """If it did not come to its end: why."""
    rows: int = 0
    sum: int = 0
    seconds: float = 0.0
    first: float = 0.0
    cpu: float = 0.0
    growth: int = 0


def answer(task: Task) -> Answer:
    """Answer a question, once for warming up and once under observation."""
    question = catalogue.SUITES[task.suite].question(task.question)
    if task.contestant == "spark":
        from benchmarks.suites.spark_sql import answer_on_spark

        return Answer(DONE, **answer_on_spark(question, task.place, task.warm))
    if not task.contestant.startswith(OURS):
        _limit()
    warm = _inputs(task, question, task.warm, LEAST_MEMORY if task.contestant.startswith(OURS) else WARM_MEMORY)
    for batch in answers(task.contestant, question, warm):
        Sum(question.columns).add(batch)
    inputs = _inputs(task, question, task.place, task.memory)
    gc.collect()
    pa.default_memory_pool().release_unused()
    sampler = Sampler()
    exact = forget_peak()
    idle = sampler.now()
    sampler.start()
    cpu = time.process_time()
    watch = Watch(Sum(question.columns))
    outcome, said = DONE, ""
    try:
        for batch in answers(task.contestant, question, inputs):
            watch.take(batch)
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        outcome = EXHAUSTED if isinstance(error, MemoryError) or is_exhausted(said) else FAILED
    run = watch.run()
    cpu = time.process_time() - cpu
    most = max(sampler.stop(), peak() if exact else 0)
    return Answer(outcome, said[:300], *run.result, run.total, run.first, cpu, most - idle)


def _inputs(task: Task, question: Question, place: str, memory: int) -> Inputs:
    loaded: dict[str, Any] = {}
    if task.loaded:
        loaded = {name: ds.dataset(f"{place}/{name}").to_table().combine_chunks() for name in question.tables}
    return Inputs(Path(place), memory, task.threads, frames(loaded) if task.contestant == "pandas" else loaded)


def frames(tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    """Tables as frames of pandas with Arrow's arrays."""
    import pandas as pd

    return {name: table.to_pandas(types_mapper=pd.ArrowDtype) for name, table in tables.items()}


def _limit() -> None:
    """Let a rival that would take the whole machine fail in this process alone; ours keeps to its budget."""
    import resource

    most = int(MOST_OF_THE_MACHINE * psutil.virtual_memory().total)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    print(json.dumps(asdict(answer(Task(**json.loads(sys.argv[1]))))))
