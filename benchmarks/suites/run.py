"""`watersmeet bench suite`: every question to every contestant, each in a process of its own, in turns."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import figures
from benchmarks.memory import environment
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.suites import nexmark, nexmark_spark
from benchmarks.suites.catalogue import SUITES
from benchmarks.suites.contestant import DONE, EXHAUSTED, FAILED, TOO_LONG, Answer, Task
from benchmarks.suites.engines import is_exhausted
from benchmarks.suites.model import OURS, Question, Setting, Suite, size_of
from watersmeet.api.run import cores
from watersmeet.core.errors import SpecError, WatersmeetError

ALL = "all"
PACKAGES = ("watersmeet", "pyarrow", "numpy", "numba", "duckdb", "polars", "datafusion", "pandas", "pyspark")
_HEADING = f"  {'question, setting':<34}{'contestant':<20}{'time':>9}{'CPU':>9}{'first':>9}{'memory':>10}  agrees"


def chosen(names: Sequence[str]) -> list[Suite]:
    """The suites of these names; `all` of them.

    >>> [suite.name for suite in chosen(["tpch"])]
    ['tpch']
    """
    for name in names:
        if name not in SUITES and name != ALL:
            raise SpecError(f"there is no suite {name!r}; there are {', '.join(SUITES)}, and {ALL}")
    if not names:
        raise SpecError(f"name a suite: {', '.join(SUITES)}, or {ALL}")
    return [suite for name, suite in SUITES.items() if name in names or ALL in names]


def main(names: Sequence[str], settings: Settings, target: Path | None) -> int:
    """Run suites; returns 1 if ours did not come to its end, or a rival that did had another result."""
    suites = chosen(names)
    many = len(suites) > 1
    if many and target is not None and not target.is_dir():
        raise SpecError(f"{target} is not a directory; the figures of each suite become a file there")
    wrong = False
    for suite in suites:
        print(f"{suite.name}: {suite.title}, scale {settings.scale:g}", flush=True)
        print(_HEADING, flush=True)
        told: dict[str, Any] = {"runs": []}
        for told in figures_so_far(suite, settings):
            if target is not None:  # after each question: what comes later may fail
                write(target / f"{suite.name}.json" if target.is_dir() else target, told)
        wrong |= any(each["agrees"] is False or _ours_failed(each) for each in told["runs"])
    return int(wrong)


def write(path: Path, told: Mapping[str, Any]) -> None:
    """The figures of a suite, as JSON; a file that exists is replaced at once."""
    figures.replace_text(path, json.dumps(told, indent=1) + "\n")


def run(suite: Suite, settings: Settings) -> dict[str, Any]:
    """All figures of a suite, and what they were taken with and on."""
    *_, told = figures_so_far(suite, settings)
    return told


def figures_so_far(suite: Suite, settings: Settings) -> Iterator[dict[str, Any]]:
    """The figures of a suite after each question."""
    load = os.getloadavg()[0]
    began = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place, warm = Path(directory) / "full", Path(directory) / "warm"
        suite.write(place, settings.scale)
        suite.write(warm, min(settings.scale, suite.warm_scale))
        runs = []
        for question, setting in suite.asked():
            runs += _asked(suite, question, setting, settings, place, warm)
            yield {
                "suite": suite.name,
                "scale": settings.scale,
                "turns": settings.repeat,
                "taken": began.strftime("%Y-%m-%d %H:%M UTC"),
                "load": [round(load, 2), round(os.getloadavg()[0], 2)],
                "machine": machine(),
                "versions": dict(versions()),
                "runs": list(runs),
            }


def machine() -> dict[str, Any]:
    """What it was measured on."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": cores(),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).is_file() else []


def versions() -> Iterator[tuple[str, str]]:
    """Of ours and of the rivals that are there."""
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def _asked(
    suite: Suite, question: Question, setting: Setting, settings: Settings, place: Path, warm: Path
) -> list[dict[str, Any]]:
    """One question to all contestants of a setting."""
    size = size_of(place, question.tables)
    memory = setting.bytes_for(size, settings.scale)
    task = Task(suite.name, question.name, OURS, str(place), str(warm), memory, cores(), setting.loaded)
    names = [name for name in setting.contestants if settings.peers or name.startswith(OURS)]
    longest = longest_seconds(settings.scale)
    turns = take_turns({name: partial(ask, replace(task, contestant=name), longest) for name in names}, settings.repeat)
    truth = next(iter(_done(turns[OURS])), None)
    told = []
    for name, answers in turns.items():
        done = _done(answers)
        record: dict[str, Any] = {
            "question": question.name,
            "setting": setting.name,
            "contestant": name,
            "limit": None if name in suite.unlimited or setting.loaded else memory,
            "input": size,
            "outcome": DONE
            if len(done) == len(answers)
            else next(each.outcome for each in answers if each not in done),
            "said": next((each.said for each in answers if each.said), ""),
            "agrees": all((each.rows, each.sum) == (truth.rows, truth.sum) for each in done)
            if done and truth
            else None,
            "rows": done[0].rows if done else None,
        }
        for field in ("seconds", "cpu", "first", "growth"):
            record[field] = middle(done, lambda each, field=field: float(getattr(each, field)))
        told.append(record)
        print(_line(record), flush=True)
    return told


def _done(answers: Sequence[Answer]) -> list[Answer]:
    return [each for each in answers if each.outcome == DONE]


def longest_seconds(scale: float) -> float:
    """How long an answer may take."""
    return min(1800.0, max(180.0, 1800.0 * scale))


def ask(task: Task, longest: float) -> Answer:
    """One process's answer, whatever becomes of it."""
    if task.contestant in nexmark.SPARK:
        return _on_spark(task, longest)
    command = [sys.executable, "-m", "benchmarks.suites.contestant", json.dumps(asdict(task))]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=longest)
    except subprocess.TimeoutExpired:
        return Answer(TOO_LONG, f"more than {longest:.0f} s")
    if done.returncode == 0:
        return Answer(**json.loads(done.stdout.splitlines()[-1]))
    said = " ".join(done.stderr.split())[-300:]
    killed = done.returncode in (-9, 137)
    return Answer(EXHAUSTED if killed or is_exhausted(said) else FAILED, said or f"ended by signal {-done.returncode}")


def _on_spark(task: Task, longest: float) -> Answer:
    question = SUITES[task.suite].question(task.question)
    try:
        told = nexmark_spark.asked(question, task.contestant, Path(task.place), Path(task.warm), longest)
    except subprocess.TimeoutExpired:
        return Answer(TOO_LONG, f"more than {longest:.0f} s")
    except WatersmeetError as error:
        said = " ".join(str(error).split())
        return Answer(EXHAUSTED if is_exhausted(said) else FAILED, said[-300:])
    return Answer(DONE, "", told.results, told.sum, sum(told.seconds), told.seconds[0], told.cpu, told.memory)


def _ours_failed(record: Mapping[str, Any]) -> bool:
    return str(record["contestant"]).startswith(OURS) and record["outcome"] != DONE


def _line(record: Mapping[str, Any]) -> str:
    where = f"{record['question']}, {record['setting']}"[:33]
    words = {True: "yes", False: "NO", None: ""}
    if record["outcome"] != DONE:
        return f"  {where:<34}{record['contestant']:<20}{record['outcome']}: {record['said'][:60]}"
    cells = [f"{record[name]:.2f} s" for name in ("seconds", "cpu", "first")] + [f"{record['growth'] / 1e6:.0f} MB"]
    return (
        f"  {where:<34}{record['contestant']:<20}{cells[0]:>9}{cells[1]:>9}{cells[2]:>9}{cells[3]:>10}  "
        f"{words[record['agrees']]}"
    )
