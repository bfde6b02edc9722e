"""Cases of the conformance suites as streams on Spark: cut into batches, in files that Spark reads, with restarts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark.frames import rows_in
from spark.window_oracle import is_plain
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.errors import SourceError, SpecError
from watersmeet.core.spec import Output
from watersmeet.spark import figures
from watersmeet.spark.io.source import EVENT
from watersmeet.spark.plan.types import arrow_schema, spark_schema

Rng = np.random.Generator
Batch = list[pa.RecordBatch]
"""A table for each input."""
T = TypeVar("T")


def cases(make: Callable[[int], T | None], count: int, first: int) -> Iterator[T]:
    """So many cases that Spark can have, from a seed on."""
    seed = first
    while count:
        case = make(seed)
        seed += 1
        if case is not None:
            count -= 1
            yield case


def as_sparks(table: pa.RecordBatch) -> pa.RecordBatch | None:
    """The rows in the types in which Spark has them; None if it has no such types, or could not tell columns apart."""
    names = [name.lower() for name in table.schema.names]
    if len(set(names)) < len(names) or not all(is_plain(field.type) for field in table.schema):
        return None
    try:
        schema = arrow_schema(spark_schema(table.schema, "a case"), "a case")
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type, safe=False) for column, field in zip(table.columns, schema, strict=True)],
            schema=schema,
        )
    except (SourceError, SpecError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def respecified(spec: T, tables: Sequence[pa.RecordBatch | None]) -> T | None:
    """A spec about tables of other types; None if it cannot be, or does not ask for rows."""
    if any(table is None or is_refused(table) for table in tables) or spec.output is not Output.ROWS:  # type: ignore[attr-defined]
        return None
    schemas = [table.schema for table in tables if table is not None]
    try:
        if hasattr(spec, "schemas"):
            return replace(spec, schemas=tuple(schemas))  # type: ignore[type-var]
        return replace(spec, left=schemas[0], right=schemas[1])  # type: ignore[type-var]
    except SpecError:
        return None


def is_refused(table: pa.RecordBatch) -> bool:
    """Whether there is a column of a type that Parquet files do not hold for Spark, or that it does not have yet."""
    return any(_is_refused(field.type) for field in table.schema)


def _is_refused(type_: pa.DataType) -> bool:
    empty = pa.types.is_struct(type_) and not type_.num_fields
    inside = any(_is_refused(type_.field(i).type) for i in range(type_.num_fields))
    return pa.types.is_null(type_) or pa.types.is_time(type_) or empty or inside


def cut(tables: Sequence[pa.RecordBatch], rng: Rng, fewest: int = 2, most: int = 5) -> list[Batch]:
    """Tables as so many batches."""
    count = int(rng.integers(fewest, most + 1))
    cuts = [[0, *sorted(rng.integers(0, table.num_rows + 1, count - 1)), table.num_rows] for table in tables]
    return [
        [table.slice(at[i], at[i + 1] - at[i]) for table, at in zip(tables, cuts, strict=True)] for i in range(count)
    ]


class Replayed:
    """Directories of files, one for each input, that a query works off, and goes on with when there are more."""

    def __init__(self, spark: Any, place: Path, joined: Callable[[list[Any]], Any]) -> None:
        self.spark, self.place, self.joined = spark, place, joined
        self.seen: list[pa.Table] = []
        self.told: list[dict[str, Any]] = []
        self.written = 0

    def add(self, tables: Batch) -> None:
        """One more batch: a file for each input."""
        for number, table in enumerate(tables):
            directory = self.place / str(number)
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{self.written:04d}.parquet"
            pq.write_table(pa.Table.from_batches([table]), path)
            os.utime(path, (1e9 + self.written,) * 2)
        self.schemas = [spark_schema(table.schema, "a case") for table in tables]
        self.written += 1

    def run(self) -> None:
        """Work off all files, a batch each."""
        readers = [self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1) for schema in self.schemas]
        frames = [reader.parquet(str(self.place / str(number))) for number, reader in enumerate(readers)]
        writer = self.joined(frames).writeStream.foreachBatch(self.see).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self.told += [figures(progress)["state"] for progress in query.recentProgress if progress.numInputRows]

    def see(self, frame: Any, number: int) -> None:
        """Take the results of a batch."""
        assert number == len(self.seen)
        self.seen.append(frame.toArrow())

    def run_all(self, batches: list[Batch], rng: Rng) -> Counter[Any]:
        """All batches, with a restart somewhere; all results."""
        restart = int(rng.integers(1, len(batches)))
        for part in (batches[:restart], batches[restart:]):
            for tables in part:
                self.add(tables)
            self.run()
        assert len(self.seen) == len(batches)
        return rows_in(pa.concat_tables(self.seen))


def with_ends(batches: list[Batch], rng: Rng) -> list[Batch]:
    """With the column of signs: now and then an input is silent, and at last all of them end, one after the other."""
    found = []
    for tables in batches:
        signed = []
        for table in tables:
            ticks = int(rng.random() < 0.3)
            signed.append(_with_signs(table, ["tick"] * ticks))
        found.append(signed)
    order = rng.permutation(len(batches[0]))
    nothing = [table.slice(0, 0) for table in batches[0]]
    ends = [["end"] * int(number == order[0]) for number in range(len(nothing))]
    found.append([_with_signs(table, signs) for table, signs in zip(nothing, ends, strict=True)])
    found.append([_with_signs(table, [] if signs else ["end"]) for table, signs in zip(nothing, ends, strict=True)])
    return found


def _with_signs(table: pa.RecordBatch, signs: list[str]) -> pa.RecordBatch:
    nothing = [pa.nulls(len(signs), field.type) for field in table.schema]
    columns = [pa.concat_arrays([column, more]) for column, more in zip(table.columns, nothing, strict=True)]
    columns.append(pa.array([None] * table.num_rows + signs, pa.string()))
    return pa.RecordBatch.from_arrays(columns, [*table.schema.names, EVENT])


def combined(
    tables: Sequence[pa.RecordBatch], kept: Sequence[Sequence[int]], rows: list[tuple[int, ...]]
) -> Counter[Any]:
    """The results that are made of these rows of each input."""
    values = [canonical_rows(table, columns) for table, columns in zip(tables, kept, strict=True)]
    return Counter(tuple(v for table, i in zip(values, each, strict=True) for v in table[i]) for each in rows)
