"""`make memory`: every verb in its budget, as the operating system counts: by how much does a process grow?

make memory                                         all verbs, with all, half, a tenth and a hundredth of their input
make memory ARGS="--only asof --rows 20000"         some of them, with fewer rows

Each run has a process of its own, which makes its rows as they are asked for, does a little of the same first so that
kernels are loaded, and then says how much larger than that it has been. A run is good if that is at most 1.15 times its
budget and 16 MB, and if the number of its results is right. With `--cgroup DIR`, a directory of the memory controller
in which groups can be made, each runs again in one that has this much more than the idle process, and no swap; what the
group held at most is told, pages of files apart from the process's own, as the system takes those back.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.control_group import ControlGroup
from benchmarks.memory import environment
from benchmarks.resident import Sampler, forget_peak, peak

import watersmeet as wm

ROWS = 100_000
WIDTH = 100
SHARES = {"all": 1.0, "half": 0.5, "a tenth": 0.1, "a hundredth": 0.01}
LEAST = 1 << 20
WARMING = 200_000
"""Rows that are joined before, in the least memory."""
KEYS = 0.5
"""Keys for each row: a key is in two rows of an input, and has four pairs."""


def allowed(budget: int) -> float:
    """Bytes by which a process may grow."""
    return 1.15 * budget + 16e6


def stream(rows: int, step: int, name: str) -> Any:
    """Rows that are made when they are asked for; in the order of `at`, and with each key twice."""
    keys = max(1, int(rows * KEYS))
    types = pa.schema({"id": pa.int64(), "at": pa.int64(), "x": pa.float64(), "y": pa.float64(), name: pa.string()})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 2_000):
            some = range(start, min(rows, start + 2_000))
            ids = [i * step % keys for i in some]
            points = [[float(10 * each) for each in ids], [0.0] * len(ids)]
            texts = [f"{i:0{WIDTH}d}" for i in some]
            yield pa.RecordBatch.from_arrays([pa.array(each) for each in (ids, some, *points, texts)], schema=types)

    return wm.source(batches(), name=name, schema=types)


def _two(verb: Callable[..., Any], part: int = 1, **options: Any) -> Callable[[int, int, Path], int]:
    """`part`: of the second input there is one row for so many of the first, with as few keys."""

    def run(rows: int, budget: int, place: Path) -> int:
        out = verb(stream(rows, 7, "a"), stream(rows // part, 11, "b"), memory=budget, spill=place, **options)
        return sum(batch.num_rows for batch in out)

    return run


def _many(rows: int, budget: int, place: Path) -> int:
    inputs = {name: stream(rows // 2, step, name) for name, step in (("a", 7), ("b", 11), ("c", 13))}
    out = wm.multijoin(inputs, on=["a.id = b.id", "b.id = c.id"], memory=budget, spill=place)
    return sum(batch.num_rows for batch in out)


def _lookup(rows: int, budget: int, place: Path) -> int:
    relation = wm.Relation.build(
        stream(rows, 11, "b"), "id", place / "relation", memory=max(budget, 8 << 20), durable=False
    )
    out = wm.lookup_join(stream(rows, 7, "a"), relation, on="id", memory=budget, spill=place)
    return sum(batch.num_rows for batch in out)


def _queries(rows: int, budget: int, place: Path) -> int:
    queries = [wm.WindowQuery(f"q{i}", window=rows // (i + 1), left=f"id >= {i}") for i in range(8)]
    out = wm.window_queries(
        stream(rows, 7, "a"), stream(rows, 11, "b"), on="id", time="at", queries=queries, memory=budget, spill=place
    )
    return sum(batch.num_rows for batch in out)


VERBS: dict[str, Callable[[int, int, Path], int]] = {
    "join": _two(wm.join, on="id"),
    "join, full": _two(wm.join, on="id", how="full"),
    "join, anti": _two(wm.join, part=2, on="id", how="anti"),
    "near": _two(wm.join, on=[wm.near(["x", "y"], 0.5)]),
    "window_join": _two(wm.window_join, on="id", time="at", window=ROWS),
    "asof_join": _two(wm.asof_join, on="id", time="at"),
    "multijoin": _many,
    "lookup_join": _lookup,
    "queries": _queries,
}


def _one_to_a_million(rows: int, budget: int, place: Path) -> int:
    def many() -> Iterator[pa.RecordBatch]:
        for start in range(0, 10 * rows, 5_000):
            yield pa.record_batch({"id": [0] * 5_000, "b": range(start, start + 5_000)})

    one = pa.table({"id": [0], "a": ["the one row"]})
    other = wm.source(many(), schema=pa.schema({"id": pa.int64(), "b": pa.int64()}))
    return sum(batch.num_rows for batch in wm.join(one, other, on="id", memory=budget, spill=place))


def _wide_rows(rows: int, budget: int, place: Path) -> int:
    def some() -> Iterator[pa.RecordBatch]:
        for i in range(max(1, rows // 10_000)):
            yield pa.record_batch({"id": [i], "text": ["x" * (10 << 20)]})

    sides = [wm.source(some(), schema=pa.schema({"id": pa.int64(), "text": pa.string()})) for _ in range(2)]
    return sum(batch.num_rows for batch in wm.join(*sides, on="id", memory=budget, spill=place))


def _many_columns(rows: int, budget: int, place: Path) -> int:
    columns = max(10, rows // 10)

    def some(name: str) -> Any:
        types = pa.schema([("id", pa.int64()), *((f"{name}{i}", pa.int64()) for i in range(columns))])
        made = (pa.RecordBatch.from_arrays([pa.array([i])] * (columns + 1), schema=types) for i in range(20))
        return wm.source(made, schema=types)

    return sum(batch.num_rows for batch in wm.join(some("a"), some("b"), on="id", memory=budget, spill=place))


def _many_files(rows: int, budget: int, place: Path) -> int:
    each = max(1, rows // 1_000)
    files = min(rows, 1_000)
    for side in "ab":
        for i in range(files):
            ids = range(i * each, (i + 1) * each)
            pq.write_table(
                pa.table({"id": ids, side: [f"{k:0{WIDTH}d}" for k in ids]}), place / f"{side}-{i:04d}.parquet"
            )
    out = wm.join(f"{place}/a-*.parquet", f"{place}/b-*.parquet", on="id", memory=budget, spill=place)
    return sum(batch.num_rows for batch in out)


ODD: dict[str, tuple[Callable[[int, int, Path], int], int]] = {
    "one row to a million": (_one_to_a_million, 4 << 20),
    "rows of 10 MiB": (_wide_rows, 256 << 20),
    "10,000 columns": (_many_columns, 64 << 20),
    "1,000 files": (_many_files, 4 << 20),
}
"""With a budget each."""


def child(name: str, rows: int, budget: int) -> None:
    """Run once with a little, then with all, and tell how it grew."""
    run = VERBS[name] if name in VERBS else ODD[name][0]
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "first").mkdir()
        if name in VERBS:  # it spills, as it will
            run(WARMING, LEAST, Path(place) / "first")
        else:
            run(rows // 10, budget, Path(place) / "first")
        gc.collect()
        pa.default_memory_pool().release_unused()
        sampler = Sampler()
        before = sampler.now()
        kept = forget_peak()
        sampler.start()
        begun = time.monotonic()
        (Path(place) / "then").mkdir()
        found = run(rows, budget, Path(place) / "then")
        most = max(sampler.stop(), peak() if kept else 0)
    print(json.dumps({"rows": found, "growth": most - before, "idle": before, "seconds": time.monotonic() - begun}))


def measured(name: str, rows: int, budget: int, cgroup: str | None = None, idle: int = 0) -> dict[str, Any]:
    """What a process says of itself; or what went wrong."""
    line = [sys.executable, "-W", "ignore", __file__, "--child", name, "--rows", str(rows), "--budget", str(budget)]
    seen: dict[str, int] = {}
    if cgroup is None:
        done = subprocess.run(line, capture_output=True, text=True, env=environment(), check=False)
    else:
        with ControlGroup(Path(cgroup), int(idle + allowed(budget))) as group:
            done = group.run(line, environment())
            seen = {"own": group.own, "cached": group.cached}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found | seen


def runs(rows: int, only: str | None) -> Iterator[tuple[str, str, int]]:
    """Names, shares and budgets."""
    held = rows * (WIDTH + 50) * 2
    for name in VERBS:
        if only is None or only in name:
            for share, factor in SHARES.items():
                yield name, share, max(LEAST, int(held * factor))
    for name, (_, budget) in ODD.items():
        if only is None or only in name:
            yield name, "", budget


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="of each input (default %(default)s)")
    parser.add_argument("--only", help="verbs whose name has this in it")
    parser.add_argument("--cgroup", metavar="DIR", help="also within groups of this directory")
    parser.add_argument("--minutes", type=float, default=600, help="at most so long (default %(default)s)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.rows, args.budget)
        return 0
    bad, counts, until = 0, dict[str, set[int]](), time.monotonic() + 60 * args.minutes
    for name, share, budget in runs(args.rows, args.only):
        if time.monotonic() > until:
            break
        found = measured(name, args.rows, budget)
        told = ", ".join(map(str, found.get("error", ())))
        good = not told and found["growth"] <= allowed(budget)
        if not told:
            counts.setdefault(name, set()).add(found["rows"])
            good &= len(counts[name]) == 1 and found["rows"] > 0  # whatever the budget, the same results
            told = f"grew {found['growth'] / 1e6:7.1f} of {allowed(budget) / 1e6:7.1f} MB, {found['rows']:,} rows"
            if args.cgroup:
                inside = measured(name, args.rows, budget, args.cgroup, found["idle"])
                if "error" in inside:
                    told += f"; in a group: {inside['error']}"
                else:
                    own, cached = inside["own"] / 1e6, inside["cached"] / 1e6
                    told += f"; in a group of {(found['idle'] + allowed(budget)) / 1e6:.0f} MB: {own:.0f} MB its own, "
                    told += f"{cached:.0f} MB of files"
                    good &= inside["rows"] == found["rows"]
                good &= "error" not in inside
        bad += not good
        print(f"{'good' if good else 'BAD':<5}{name:<22}{share:<12}{budget / 1e6:7.1f} MB: {told}", flush=True)
    print(f"{bad} bad")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
