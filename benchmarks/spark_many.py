"""Four streams joined on Spark: in one operator of ours, and by Spark's tree of joins of two."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings
from benchmarks.spark_equi import MOST_REPEATS
from benchmarks.spark_inputs import in_turn
from benchmarks.spark_verbs import MANY
from benchmarks.spark_warm import Measured
from watersmeet.core.arrays import Int64

ROWS = 500_000
FILES = 5


def spark_4way(settings: Settings) -> Iterator[Figure]:
    """4 x 500k rows on Spark, local[2], 400k rows a batch, on one key and as a chain."""
    rows = settings.rows(ROWS)
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place = Path(directory)
        keys = _write(place / "all", rows)
        for kind, expected in {"one-key": _on_one_key(keys), "chain": _chained(keys)}.items():
            names = [f"{kind} ours", *([f"{kind} heap"] if settings.peers else [])]
            measured = Measured.of(names, place, 1, min(MOST_REPEATS, settings.repeat))
            peer, label = f"{kind} heap", f"Spark's tree, {kind.replace('-', ' ')}"
            yield measured.rate(peer, label, Target(">=", 5.0, of_ratio=True))
            yield measured.cpu(peer, label)
            yield measured.state(peer, label, Target("<=", 1 / 3, of_ratio=True))
            yield measured.memory(peer, label)
            yield exactness(measured.wrong(expected), f"wrong runs, by row count, {kind}")


def _write(place: Path, rows: int) -> list[tuple[Int64, Int64]]:
    """Files of four inputs, the last with a row that says that there are no more; returns the two keys of each."""
    rng = np.random.default_rng(1)
    sides = []
    for name in MANY:
        p, q = rng.integers(0, rows, rows), rng.integers(0, rows, rows)
        (place / name).mkdir(parents=True)
        for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
            events = pa.nulls(len(part), pa.string())
            table = pa.table({"p": p[part], "q": q[part], "number": part, "watersmeet_event": events})
            if number + 1 == FILES:
                end = {each: pa.nulls(1, pa.int64()) for each in ("p", "q", "number")}
                table = pa.concat_tables([table, pa.table({**end, "watersmeet_event": ["end"]})])
            path = place / name / f"{number:06d}.parquet"
            pq.write_table(table, path)
            in_turn(path, number)
        sides.append((p, q))
    return sides


def _on_one_key(keys: list[tuple[Int64, Int64]]) -> int:
    """How many combinations share `p`."""
    counts = [np.bincount(p, minlength=len(p)) for p, _ in keys]
    return int(np.prod(counts, axis=0).sum())


def _chained(keys: list[tuple[Int64, Int64]]) -> int:
    """How many combinations have each input's `q` equal to the next one's `p`."""
    paths = np.ones(len(keys[0][0]), np.int64)
    for (_, q), (p, _) in pairwise(keys):
        ending = np.bincount(q, weights=paths, minlength=len(q)).astype(np.int64)
        paths = ending[p]
    return int(paths.sum())
