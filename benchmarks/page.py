"""What a live page costs the join that it shows, in processor time of the whole process, the server's thread included.

A browser's place is taken by another process, which reads all news as they come: `python -m benchmarks.page ADDRESS`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import pyarrow as pa

import watersmeet as wm
from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import matches, table
from benchmarks.memory import environment
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.errors import WatersmeetError
from watersmeet.sources import generators

ROWS = 4_000_000
MEMORY = 64 << 20
OPENING = """
import time, watersmeet as wm
wm.Page
began = time.process_time()
with wm.Page(): print(time.process_time() - began)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """One join."""

    processor: float
    """Seconds of processor time, of all threads."""
    elapsed: float
    rows: int
    updates: int = 0
    """How often the reader was told something new."""
    server: float = 0.0
    """Seconds of processor time of the page's own thread."""


def page(settings: Settings) -> Iterator[Figure]:
    """A live page that is looked at: what it adds to a join's processor time."""
    rows = settings.rows(ROWS)
    left, right = (table(generators.unique(rows, seed), seed) for seed in (1, 2))
    contestants = {"page": lambda: watched(left, right), "without": lambda: joined(left, right, None)}
    take_turns(contestants, 1)
    runs = take_turns(contestants, settings.repeat)
    seconds = {name: middle(each, lambda run: run.processor) or 0.0 for name, each in runs.items()}
    shown = runs["page"]
    # By neighbours: what else the machine does changes from one round to the next more than a page costs.
    more = median(one.processor / other.processor - 1 for one, other in zip(shown, runs["without"], strict=True))
    yield Figure("processor time, with a page", seconds["page"], "s", seconds["without"])
    yield Figure("more with a page", 100 * more, "%", target=Target("<=", 2))
    yield Figure("the server's thread alone", middle(shown, lambda run: 100 * run.server / run.processor), "%")
    yield Figure("updates a second", middle(shown, lambda run: run.updates / run.elapsed), "")
    yield Figure("opening the first page", median(opening() for _ in range(settings.repeat)), "s")
    expected = matches(left, right)
    yield exactness(sum(run.rows != expected for each in runs.values() for run in each), "wrong runs, by row count")


def joined(left: pa.Table, right: pa.Table, shown_on: wm.Page | None) -> Cost:
    """A join in little memory, on a page if there is one."""
    processor, began = time.process_time(), time.perf_counter()
    with wm.join(left, right, on="key", memory=MEMORY, page=shown_on) as result:
        rows = sum(batch.num_rows for batch in result)
    return Cost(time.process_time() - processor, time.perf_counter() - began, rows)


def watched(left: pa.Table, right: pa.Table) -> Cost:
    """The same with somebody who looks."""
    with wm.Page() as shown_on:
        command = [sys.executable, "-m", "benchmarks.page", shown_on.address]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()  # it is connected
            before = server_time()
            cost = joined(left, right, shown_on)
            server = server_time() - before
            shown_on.close()
            return replace(cost, updates=int(reader.stdout.readline()), server=server)


def server_time() -> float:
    """Processor time so far of the thread that serves the only page there is."""
    [thread] = [each for each in threading.enumerate() if each.name == "watersmeet-page"]
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def opening() -> float:
    """Processor time of the first page of a process."""
    done = subprocess.run(
        [sys.executable, "-c", OPENING], env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WatersmeetError(f"a page could not be opened: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout)


def read(address: str) -> int:
    """Read the news of a page until it is closed; returns how much there was."""
    news = 0
    with urllib.request.urlopen(address.replace("/?", "/events?")) as answer:
        for line in answer:
            if line.startswith(b"retry:"):
                print("connected", flush=True)
            news += line.startswith(b"event: news")
    return news


if __name__ == "__main__":
    print(read(sys.argv[1]))
