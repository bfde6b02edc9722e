"""Runs that are read into buffers, and runs that are mapped: which is faster, with a warm page cache, and a cold one?

`python -m benchmarks.page_cache --cgroup DIR` measures both in groups of the memory controller's directory DIR, whose
limit is twice the budget, beyond what a process holds that has everything loaded; pages of files count in it.

A cold run's pages are dropped once they are written, and all again whenever as many bytes as the budget were read; the
time that takes is left out. Each run has a process of its own, which makes its rows as they are asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.control_group import ControlGroup
from benchmarks.figures import HEADING, Figure, exactness, lines
from benchmarks.inputs import TEXT_WIDTH, lazy
from benchmarks.memory import environment
from benchmarks.ours import Made, arrivals, drive
from benchmarks.resident import WARMING, WORKLOADS, expected
from benchmarks.rounds import Settings, middle, take_turns
from benchmarks.short import WORKLOADS as SHORT
from benchmarks.short import budgets
from watersmeet.core.errors import WatersmeetError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spill import FileStore
from watersmeet.spill.store import Bytes, Descriptor, StoreWriter

WORKLOAD = "uniform"
SHARES = ("10%", "1%")
READ, MAPPED = "read", "mapped"
WARM, COLD, LIMITED = "warm", "cold", "limited"


def page_cache(settings: Settings) -> Iterator[Figure]:
    """1.5M+1.5M rows in 10% and 1%: runs read or mapped, page cache warm or cold."""
    yield from measured(settings, None)


def measured(settings: Settings, groups: Path | None) -> Iterator[Figure]:
    """Reading beside mapping."""
    rows = settings.rows(SHORT[WORKLOAD][0])
    sizes = budgets(rows)
    kinds = [(share, cache) for share in SHARES for cache in ((WARM, COLD) if groups is None else (LIMITED,))]
    runs = take_turns(
        {
            f"{share} {cache} {way}": partial(account, way, cache, sizes[share], rows, groups)
            for share, cache in kinds
            for way in (READ, MAPPED)
        },
        settings.repeat,
    )
    for share, cache in kinds:
        both = [runs[f"{share} {cache} {way}"] for way in (READ, MAPPED)]
        for by in ("clock", "processor"):
            read, mapped = (middle(each, lambda run, by=by: run[by]) for each in both)
            yield Figure(f"{share}, {cache}: read, beside mapped, {by}", read, "s", mapped)
        read, mapped = (middle(each, lambda run: run["disk"] / 1e6) for each in both)
        yield Figure(f"{share}, {cache}: from disk", read, "MB", mapped)
        if groups is not None:
            for what in ("own", "cached"):
                read, mapped = (middle(each, lambda run, what=what: run[what] / 1e6) for each in both)
                yield Figure(f"{share}, {cache}: {what} at most", read, "MB", mapped)
    due = expected(WORKLOAD, rows)
    yield exactness(sum(run["pairs"] != due for each in runs.values() for run in each), "wrong runs, by row count")


def account(way: str, cache: str, memory: int, rows: int, groups: Path | None = None) -> dict[str, Any]:
    """What a process says of one join, and its group, if it is in one."""
    command = [sys.executable, "-m", "benchmarks.page_cache", "--join", way, cache, str(memory), str(rows)]
    seen: dict[str, Any] = {}
    if groups is None:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    else:
        with ControlGroup(groups, 2 * memory) as group:
            done = group.run([*command, "--enter", str(group.processes)], environment(), enters=False)
            seen = {"own": group.own, "cached": group.cached}
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise WatersmeetError(f"{' '.join(command[1:])} failed: {said[0]}")
    return {**json.loads(done.stdout), **seen}


class Dropping(FileStore):
    """A store whose runs are read or mapped, and whose pages leave the page cache if it is to be cold."""

    def __init__(self, way: str, cold_after: int | None) -> None:
        super().__init__()
        self._way = way
        self._cold_after = cold_after
        self._since = 0
        self.dropped = 0
        """How often a file's pages were."""
        self.spent = Made()
        """Time that dropping took."""

    def create(self, name: str) -> StoreWriter:
        """Begin a new name, whose pages are dropped once it is there."""
        writer = super().create(name)
        return writer if self._cold_after is None else _Dropped(writer, self, name)

    def descriptor(self, name: str) -> Descriptor | None:
        """None makes readers use the mapping."""
        return super().descriptor(name) if self._way == READ else None

    def count_read(self, size: int) -> None:
        """So many bytes were read; if that is enough, all are to come from the disk again."""
        super().count_read(size)
        self._since += size
        if self._cold_after is not None and self._since >= self._cold_after:
            self._since = 0
            for name in self.names():
                self.drop(name)

    def drop(self, name: str) -> None:
        """Let the page cache forget a file; pages that are mapped now it keeps."""
        with self.spent.counting():
            file = os.open(self.path / name, os.O_RDONLY)
            try:
                os.fsync(file)  # what is not on the disk yet is kept
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
        self.dropped += 1


class _Dropped:
    """A writer whose content leaves the page cache as it is published."""

    def __init__(self, writer: StoreWriter, store: Dropping, name: str) -> None:
        self._writer, self._store, self._name = writer, store, name

    def write(self, data: Bytes) -> None:
        self._writer.write(data)

    def commit(self) -> None:
        self._writer.commit()
        self._store.drop(self._name)

    def abort(self) -> None:
        self._writer.abort()


def join(way: str, cache: str, memory: int, rows: int, enter: Path | None = None) -> dict[str, Any]:
    """Warm up, and join once."""
    schema = next(lazy(0, 1, 1, TEXT_WIDTH)).schema
    spec = JoinSpec(schema, schema, parse_on("key"))
    drive(spec, _rows(WARMING, Made()), 1 << 20, store=Dropping(way, None))
    pa.default_memory_pool().release_unused()
    if enter is not None:
        enter.write_text(str(os.getpid()))
    made, store, disk = Made(), Dropping(way, memory if cache == COLD else None), from_disk()
    with Made().counting() as all_of_it:
        run = drive(spec, _rows(rows, made), memory, store=store)
    beside = (made, store.spent)
    return {
        "clock": all_of_it.elapsed - sum(each.elapsed for each in beside),
        "processor": all_of_it.processor - sum(each.processor for each in beside),
        "pairs": run.result[0],
        "dropped": store.dropped,
        "disk": from_disk() - disk,
    }


def _rows(rows: int, made: Made) -> Iterator[Any]:
    return arrivals(*(made.counted(WORKLOADS[WORKLOAD](side, rows)) for side in (0, 1)))


def from_disk() -> int:
    """Bytes that this process has had read from a disk so far, as Linux says; 0 elsewhere."""
    try:
        found = re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page_cache", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--cgroup", metavar="DIR", type=Path, help="in groups of this directory")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="runs of each (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="size of the inputs, 1 being full")
    parser.add_argument("--join", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--enter", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.join:
        way, cache, memory, rows = args.join
        json.dump(join(way, cache, int(memory), int(rows), args.enter), sys.stdout)
        return
    print(HEADING)
    print(*lines(measured(Settings(repeat=args.repeat, scale=args.scale), args.cgroup), args.scale == 1), sep="\n")


if __name__ == "__main__":
    main()
