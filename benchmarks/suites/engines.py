"""How each rival is asked: the same tables, the same words, as many threads, as much memory where it can be told."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.inputs import BATCH_ROWS
from benchmarks.suites.model import OURS, Inputs, Question
from benchmarks.symmetric_peer import endless, symmetric_stream
from watersmeet.core.errors import WatersmeetError

_EXHAUSTED = ("out of memory", "resources exhausted", "unable to allocate", "memory allocation", "failed to allocate")


def is_exhausted(said: str) -> bool:
    """Whether an engine's last words are about memory.

    >>> is_exhausted("Resources exhausted: Failed to allocate additional 2.0 MB"), is_exhausted("no such column")
    (True, False)
    """
    return any(each in said.lower() for each in _EXHAUSTED)


def duckdb(question: Question, inputs: Inputs, spill: Path) -> Iterator[pa.RecordBatch]:
    """DuckDB, in any order of rows, which lets it use less memory."""
    with _engine("duckdb").connect() as connection:
        for name, value in {
            "threads": inputs.threads,
            "memory_limit": f"'{inputs.memory}B'",
            "temp_directory": f"'{spill}'",
            "preserve_insertion_order": "false",
        }.items():
            connection.execute(f"SET {name}={value}")
        for table in question.tables:
            if table in inputs.loaded:
                connection.register(table, inputs.loaded[table])
            else:
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{inputs.path(table)}')")
        yield from connection.sql(question.sql).to_arrow_reader(BATCH_ROWS)


def datafusion(
    question: Question, inputs: Inputs, spill: Path, options: Mapping[str, str] | None = None
) -> Iterator[pa.RecordBatch]:
    """DataFusion, its memory a pool that those share who can spill."""
    module = _engine("datafusion")
    runtime = module.RuntimeEnvBuilder().with_disk_manager_specified(str(spill)).with_fair_spill_pool(inputs.memory)
    config = module.SessionConfig().with_target_partitions(inputs.threads)
    for name, value in (options or {}).items():
        config = config.set(name, value)
    context = module.SessionContext(config, runtime)
    for table in question.tables:
        if table in inputs.loaded:
            context.register_record_batches(table, [inputs.loaded[table].to_batches(BATCH_ROWS)])
        else:
            context.register_parquet(table, f"{inputs.place}/{table}/")
    for batch in context.sql(question.sql).execute_stream():
        yield batch.to_pyarrow()


def datafusion_merge(question: Question, inputs: Inputs, spill: Path) -> Iterator[pa.RecordBatch]:
    """DataFusion by sorting and merging, which can spill where its hash join cannot."""
    return datafusion(question, inputs, spill, {"datafusion.optimizer.prefer_hash_join": "false"})


def polars(question: Question, inputs: Inputs, spill: Path) -> Iterator[pa.RecordBatch]:
    """Polars' streaming engine, which takes no limit."""
    module = _engine("polars")
    frames = {
        table: module.from_arrow(inputs.loaded[table]).lazy()
        if table in inputs.loaded
        else module.scan_parquet(inputs.path(table))
        for table in question.tables
    }
    lazy = module.SQLContext(frames).execute(question.sql, eager=False)
    for frame in lazy.collect_batches(maintain_order=False, engine="streaming"):
        yield from frame.to_arrow().to_batches()


def pandas(question: Question, inputs: Inputs, spill: Path) -> Iterator[pa.RecordBatch]:
    """Pandas, all at once, from frames with Arrow's arrays in memory."""
    if question.pandas is None:
        raise WatersmeetError(f"{question.name} has not been put to pandas")
    frame = question.pandas(inputs.loaded)
    yield from pa.Table.from_pandas(frame, preserve_index=False).to_batches()


def symmetric(question: Question, inputs: Inputs, spill: Path) -> Iterator[pa.RecordBatch]:
    """DataFusion's symmetric hash join of two streams of times and numbers, which it is told have no end."""
    files = {table: inputs.place / f"{table}.csv" for table in question.tables}
    return symmetric_stream(endless(files, question.csv), question.sql)


def _engine(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WatersmeetError(f"{name} is not there; pip install watersmeet[bench] brings it") from error


ENGINES: Mapping[str, Callable[[Question, Inputs, Path], Iterator[pa.RecordBatch]]] = {
    "duckdb": duckdb,
    "datafusion": datafusion,
    "datafusion merge": datafusion_merge,
    "polars": polars,
    "pandas": pandas,
    "symmetric": symmetric,
}


def answers(contestant: str, question: Question, inputs: Inputs) -> Iterator[pa.RecordBatch]:
    """The result, batch by batch; `ours` may be followed by the name of an algorithm."""
    name, _, algorithm = contestant.partition(" ")
    if name == OURS:
        yield from question.ours(inputs, algorithm or "auto")
        return
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as spill:
        yield from ENGINES[contestant](question, inputs, Path(spill))
