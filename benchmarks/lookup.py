"""A fast stream against a table on disk ten times larger than memory: rows per second, delay, bytes read."""

from __future__ import annotations

import importlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm
from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import BATCH_ROWS
from benchmarks.peer import engine
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.delays import Delays
from watersmeet.core.lookup import LookupSpec, lookup_conditions
from watersmeet.core.protocol import LEFT, Arrive, End, Status
from watersmeet.planner import LOOKUPS
from watersmeet.sources import generators
from watersmeet.spill import MemoryStore

RELATION_ROWS, STREAM_ROWS = 5_000_000, 2_000_000
RELATION_TEXT, STREAM_TEXT = 104, 40
"""With a key, an integer and a float that makes rows of 128 and of 64 bytes."""
SHARE = 0.1
"""Of the relation: the memory."""
FUEL = 1 << 16
PEER_ROWS = 40 * BATCH_ROWS
"""Peers take seconds for a chunk; they are asked for so many rows."""
SQLITE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Served:
    """One run over a stream."""

    rows_a_second: float
    found: int
    mean: float = 0.0
    """Delay from a row's arrival to its last partner, in seconds, as are its quantiles."""
    p50: float = 0.0
    p99: float = 0.0
    read: int = 0
    hits: float = 0.0
    cold_p99: float = 0.0
    """With the rows at the beginning, when nothing is in memory yet."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The relation in all the forms that contestants want."""

    ranges: wm.Relation
    hashes: wm.Relation
    parquet: Path
    sqlite: Path
    memory: int


def lookup(settings: Settings) -> Iterator[Figure]:
    """A stream of 2M rows against a relation of 5M rows of 128 bytes, in a tenth of its size."""
    with tempfile.TemporaryDirectory() as directory:
        inputs = _inputs(Path(directory), settings)
        wrong = 0
        for name, keys in _streams(settings).items():
            stream = _stream(keys)
            runs = take_turns(_contestants(inputs, stream, settings), settings.repeat)
            yield from _figures(name, runs)
            ours = [
                run for who, each in runs.items() if not who.startswith(("duckdb", "polars", "sqlite")) for run in each
            ]
            wrong += sum(run.found != stream.num_rows for run in ours if run.found >= 0)
            if name == "Zipf":
                yield from _at_half_rate(inputs, stream, settings)
        yield exactness(wrong)


def _streams(settings: Settings) -> dict[str, np.ndarray[Any, Any]]:
    rows, domain = settings.rows(STREAM_ROWS), settings.rows(RELATION_ROWS)
    return {"Zipf": generators.zipf(rows, domain, 1.0, 2), "uniform": generators.uniform(rows, domain, 2)}


def _stream(keys: np.ndarray[Any, Any]) -> pa.Table:
    return generators.rows(keys, STREAM_TEXT, 3).rename_columns(["key", "amount", "price", "note"])


def _relation_rows(settings: Settings) -> Iterator[pa.RecordBatch]:
    keys = generators.unique(settings.rows(RELATION_ROWS), 1)
    for start in range(0, len(keys), 1 << 16):
        yield from generators.rows(keys[start : start + (1 << 16)], RELATION_TEXT, start).to_batches()


def _inputs(directory: Path, settings: Settings) -> Inputs:
    parquet, sqlite = directory / "relation.parquet", directory / "relation.db"
    schema = next(_relation_rows(settings)).schema
    with pq.ParquetWriter(parquet, schema, compression="none") as writer:
        for batch in _relation_rows(settings):
            writer.write_batch(batch)
    segment = max(16 << 10, settings.rows(1 << 20))
    relations = [
        wm.Relation.build(
            parquet, on="key", path=directory / kind, partition=kind, segment=min(1 << 20, segment), durable=False
        )
        for kind in ("range", "hash")
    ]
    if settings.peers:
        with sqlite3.connect(sqlite) as connection:
            connection.execute("CREATE TABLE relation (key INTEGER PRIMARY KEY, number INT, measure REAL, text TEXT)")
            for batch in _relation_rows(settings):
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                connection.executemany("INSERT INTO relation VALUES (?, ?, ?, ?)", rows)
        connection.close()
    return Inputs(relations[0], relations[1], parquet, sqlite, max(2 << 20, int(relations[0].nbytes * SHARE)))


def _contestants(inputs: Inputs, stream: pa.Table, settings: Settings) -> dict[str, Callable[[], Served]]:
    contestants: dict[str, Callable[[], Served]] = {
        "range": lambda: drive(inputs.ranges, stream, inputs.memory),
        "hash": lambda: drive(inputs.hashes, stream, inputs.memory),
        "meshjoin": lambda: drive(inputs.ranges, stream, inputs.memory, "meshjoin"),
    }
    few = stream.slice(0, PEER_ROWS)
    if settings.peers:
        contestants["duckdb"] = lambda: _duckdb(inputs.parquet, few)
        contestants["polars"] = lambda: _polars(inputs.parquet, few)
        contestants["sqlite"] = lambda: _sqlite(inputs.sqlite, stream.slice(0, SQLITE_ROWS))
    for algorithm in ("partitioned", "meshjoin"):  # kernels are compiled
        drive(inputs.ranges, stream.slice(0, 2 * BATCH_ROWS), inputs.memory, algorithm)
    return contestants


def drive(
    relation: wm.Relation,
    stream: pa.Table,
    memory: int,
    algorithm: str = "partitioned",
    rate: float | None = None,
    warm_up: int = 0,
) -> Served:
    """Join at the operator's level, as fast as it goes or at a given rate of rows per second; delays are those of
    rows after so many.
    """
    spec = LookupSpec(stream.schema, relation.schema, lookup_conditions("key", relation.on))
    operator = LOOKUPS[algorithm](spec, memory, MemoryStore(), relation.reading())
    found = rows = 0
    cold = Delays()
    began = time.perf_counter()

    def work_off(until: Status) -> int:
        served = 0
        while True:
            step = operator.poll(time.perf_counter() - began, FUEL)
            served += 0 if step.out is None else step.out.num_rows
            if step.status is until or step.status is Status.NEED_INPUT:
                return served

    for batch in stream.to_batches(max_chunksize=BATCH_ROWS):
        if rate is not None:
            while (ahead := rows / rate - (time.perf_counter() - began)) > 0:
                wake = operator.wake_at()
                if wake is not None and wake <= time.perf_counter() - began:
                    found += work_off(Status.NEED_INPUT)
                else:
                    time.sleep(min(ahead, 0.005))
        if rows <= warm_up < rows + batch.num_rows:
            cold, operator.answers.delays = operator.answers.delays, Delays()
        rows += batch.num_rows
        operator.receive(Arrive(LEFT, batch))
        found += work_off(Status.NEED_INPUT)
    operator.receive(End(LEFT))
    found += work_off(Status.DONE)
    seconds = time.perf_counter() - began
    figures = operator.report().lookup
    operator.close()
    return Served(
        rows / seconds,
        found,
        operator.answers.delays.mean,
        figures.delay_p50,
        figures.delay_p99,
        figures.bytes_read,
        figures.hits / rows,
        operator.answers.delays.plus(cold).quantile(0.99),
    )


def _duckdb(parquet: Path, stream: pa.Table) -> Served:
    """Each chunk of the stream joined with the file, on one thread as ours is."""
    found = 0
    with engine().connect() as connection:
        connection.execute("SET threads=1")
        began = time.perf_counter()
        for batch in stream.to_batches(max_chunksize=BATCH_ROWS):
            connection.register("s", pa.Table.from_batches([batch]))
            query = f"SELECT s.*, r.number, r.measure, r.text FROM s JOIN '{parquet}' r ON s.key = r.key"
            found += connection.sql(query).to_arrow_table().num_rows
        return Served(stream.num_rows / (time.perf_counter() - began), found)


def _polars(parquet: Path, stream: pa.Table) -> Served:
    polars = importlib.import_module("polars")
    relation = polars.scan_parquet(parquet)
    found = 0
    began = time.perf_counter()
    for batch in stream.to_batches(max_chunksize=BATCH_ROWS):
        chunk = polars.from_arrow(pa.Table.from_batches([batch])).lazy()
        found += chunk.join(relation, on="key", how="inner").collect(engine="streaming").height
    return Served(stream.num_rows / (time.perf_counter() - began), found)


def _sqlite(file: Path, stream: pa.Table) -> Served:
    """An index look-up for each row."""
    found = 0
    connection = sqlite3.connect(file)
    try:
        began = time.perf_counter()
        for row in zip(*(column.to_pylist() for column in stream.columns), strict=True):
            found += len(connection.execute("SELECT * FROM relation WHERE key = ?", row[:1]).fetchall())
        return Served(stream.num_rows / (time.perf_counter() - began), found)
    finally:
        connection.close()


def _figures(name: str, runs: dict[str, list[Served]]) -> Iterator[Figure]:
    def rate(who: str) -> float | None:
        return middle(runs.get(who), lambda run: run.rows_a_second / 1e3)

    target = Target(">=", 1000) if name == "Zipf" else None
    yield Figure(f"{name}, range", rate("range"), "k rows/s", target=target)
    yield Figure(f"{name}, hash", rate("hash"), "k rows/s")
    for peer, bound in (("duckdb", 5.0), ("polars", 5.0), ("sqlite", 10.0)):
        if peer in runs:
            yield Figure(f"{name}, range; {peer}", rate("range"), "k rows/s", rate(peer), Target(">=", bound, True))
    yield Figure(f"{name}, meshjoin", rate("meshjoin"), "k rows/s")
    delays = [middle(runs[who], lambda run: 1e3 * run.mean) for who in ("range", "meshjoin")]
    yield Figure(f"{name}, mean delay; meshjoin", delays[0], "ms", delays[1], Target("<=", 0.1, True))
    for kind in ("range", "hash"):
        yield Figure(f"{name}, {kind}: from memory", middle(runs[kind], lambda run: 100 * run.hits), "%")
        yield Figure(f"{name}, {kind}: read", middle(runs[kind], lambda run: run.read / 1e6), "MB")
        yield Figure(f"{name}, {kind}: delay, p99", middle(runs[kind], lambda run: 1e3 * run.p99), "ms")


def _at_half_rate(inputs: Inputs, stream: pa.Table, settings: Settings) -> Iterator[Figure]:
    """Delays at half a million rows per second, not at full speed. The first half of the stream is a warm-up, in which
    each segment is checked and mapped when it is first read.
    """
    warm_up = stream.num_rows // 2
    runs = [drive(inputs.ranges, stream, inputs.memory, rate=500_000, warm_up=warm_up) for _ in range(settings.repeat)]
    yield Figure("Zipf, range at 500k rows/s: p50", middle(runs, lambda run: 1e3 * run.p50), "ms")
    p99 = middle(runs, lambda run: 1e3 * run.p99)
    yield Figure("Zipf, range at 500k rows/s: p99", p99, "ms", target=Target("<=", 500))
    yield Figure(
        "Zipf, range at 500k rows/s, with the warm-up: p99", middle(runs, lambda run: 1e3 * run.cold_p99), "ms"
    )
