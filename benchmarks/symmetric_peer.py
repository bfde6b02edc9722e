"""DataFusion's symmetric hash join over streams that it is told are endless: the same windows, joined as rows come.

DataFusion reads endless streams from files only, so that the rows come from CSV, which it parses meanwhile; how long
that takes alone is measured, too.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from watersmeet.core.errors import WatersmeetError

_COLUMNS = '"key" BIGINT, ts BIGINT, number BIGINT, measure DOUBLE, text VARCHAR'
_QUERY = 'SELECT l.*, r.* FROM l JOIN r ON l."key" = r."key" AND l.ts >= r.ts - {window} AND l.ts <= r.ts + {window}'


@dataclass(frozen=True, slots=True)
class Symmetric:
    """One run."""

    pairs: int
    rate: float
    """Rows a second of both inputs."""
    reading: float
    """Rows a second if they are only read."""


def datafusion_pairs(left: Sequence[pa.RecordBatch], right: Sequence[pa.RecordBatch], window: int) -> Symmetric:
    """All pairs whose times, which count rows, are close; an error if DataFusion would join them in another way."""
    rows = sum(batch.num_rows for side in (left, right) for batch in side)
    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        files = {name: Path(directory) / f"{name}.csv" for name in ("l", "r")}
        for path, batches in zip(files.values(), (left, right), strict=True):
            _write(path, batches)
        context = endless(files, _COLUMNS)
        _, reading = _count(context.sql("SELECT * FROM l UNION ALL SELECT * FROM r").execute_stream())
        pairs, seconds = _count(symmetric_stream(context, _QUERY.format(window=window)))
        return Symmetric(pairs, rows / seconds, rows / reading)


def endless(files: Mapping[str, Path], columns: str) -> Any:
    """A context in which each of these CSV files is a stream without an end, in the order of its column `ts`."""
    context = _engine().SessionContext()
    for name, path in files.items():
        context.sql(
            f"CREATE UNBOUNDED EXTERNAL TABLE {name} ({columns}) STORED AS CSV WITH ORDER (ts ASC) "
            f"LOCATION '{path}' OPTIONS ('format.has_header' 'true')"
        )
    return context


def symmetric_stream(context: Any, query: str) -> Iterator[pa.RecordBatch]:
    """What a query gives, as it comes; an error if DataFusion would join in another way."""
    [plan] = context.sql(f"EXPLAIN {query}").collect()
    if "SymmetricHashJoinExec" not in str(plan.to_pydict()["plan"]):
        raise WatersmeetError("DataFusion does not take its symmetric hash join for these streams")
    for batch in context.sql(query).execute_stream():
        yield batch.to_pyarrow()


def _engine() -> Any:
    try:
        return importlib.import_module("datafusion")
    except ImportError as error:
        raise WatersmeetError("the peer is not there; install datafusion, or leave out --peers") from error


def _count(batches: Iterable[Any]) -> tuple[int, float]:
    began = time.perf_counter()
    rows = sum((batch if isinstance(batch, pa.RecordBatch) else batch.to_pyarrow()).num_rows for batch in batches)
    return rows, time.perf_counter() - began


def _write(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    place = batches[0].schema.get_field_index("text")
    texts = [batch.column(place).cast(pa.binary()).cast(pa.string()) for batch in batches]
    plain = [batch.set_column(place, "text", text) for batch, text in zip(batches, texts, strict=True)]
    with csv.CSVWriter(path, plain[0].schema) as writer:
        for batch in plain:
            writer.write_batch(batch)
