"""A data source that replays a finite table as a slow, bursty, stalling stream, the same rows for the same offsets.

    from watersmeet import spark as wms

    wms.register(spark)
    orders = (spark.readStream.format("watersmeet")
              .option("rowsPerSecond", 3000).option("rowsPerBatch", 10_000).option("stalls", "9000:1.5")
              .load("orders.parquet"))

An offset names rows by their numbers. So a batch that is replayed has the rows that it had, whatever the clock says;
and a query that is started again goes on at the row, and at the second of the pace, where it was.

| option | meaning |
|---|---|
| `path` | a file or glob: Parquet, CSV, NDJSON, Arrow IPC |
| `rows`, `keys`, `skew`, `width`, `seed`, `columns` | instead of a path: so many generated rows, of so many keys |
| `rowsPerSecond`, `rowsPerBurst`, `stalls` | the pace: `"9000:1.5"` is a silence of 1.5 s after 9,000 rows |
| `startsAt` | when second 0 is: seconds since 1970, or a file that will appear; lets several streams keep step |
| `rowsPerBatch` | admission control: a micro-batch takes no more |
| `rowsPerTask` | how many rows one task reads at most |
| `events`, `tickSeconds` | whether the stream tells of its silences and its end |

With `events`, there is one more column, `watersmeet_event`. It is NULL in all rows of the table. A row with "end"
follows the last of them, once. Rows with "tick" come while the stream is silent, and after its end until the query is
stopped, every `tickSeconds`: so micro-batches go on, and the silence can be used. All else in such rows is NULL.

A query with the trigger `availableNow` takes the whole table up to its end, batch by batch, without regard to the
pace, and without a tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from watersmeet.core.errors import SourceError, SpecError
from watersmeet.sources.conform import conform
from watersmeet.sources.numbered_rows import GeneratedRows, NumberedRows, Part, Recipe, rows_of_files
from watersmeet.sources.pace import ENDLESS, Pace
from watersmeet.spark.plan.types import arrow_schema, spark_schema
from watersmeet.spark.task.worker import use_own_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

ROWS_PER_TASK = 131_072
TEXT_ROWS_PER_BATCH = 131_072
"""Of files that the driver reads and holds until a batch is done, unless a limit is given."""
TICK_SECONDS = 0.25
_GENERATED = ("keys", "skew", "width", "seed", "columns")
_KNOWN = (
    "path", "rows", *_GENERATED, "rowsPerSecond", "rowsPerBurst", "stalls", "startsAt", "rowsPerBatch", "rowsPerTask",
    "events", "tickSeconds",
)  # fmt: skip


@dataclass(frozen=True)
class SourceOptions:
    """What a stream of the data source is asked to be.

    >>> options = SourceOptions.parse({"rows": "1000", "rowsPerSecond": "50", "stalls": "100: 1.5, 400: 2"})
    >>> options.recipe.rows, options.pace.stalls
    (1000, ((100, 1.5), (400, 2.0)))
    """

    path: str | None
    recipe: Recipe | None
    pace: Pace
    starts_at: float | Path | None
    """When second 0 is, in seconds since 1970, or the file whose appearance it is; the first question unless given."""
    rows_per_batch: int | None
    rows_per_task: int
    events: bool
    tick_seconds: float

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Understand the options; names in any case."""
        options = {name.lower(): value.strip() for name, value in given.items()}
        known = {name.lower(): name for name in _KNOWN}
        for name in options:
            if name not in known:
                raise SpecError(f"the watersmeet source has no option {name!r}; it takes {', '.join(_KNOWN)}")

        def take(name: str, kind: Callable[[str], T], default: T) -> T:
            return default if name.lower() not in options else _converted(name, options[name.lower()], kind)

        return cls(
            path=options.get("path"),
            recipe=_recipe(options, take),
            pace=Pace(take("rowsPerSecond", float, None), take("rowsPerBurst", _count, 1), take("stalls", _stalls, ())),
            starts_at=take("startsAt", _moment, None),
            rows_per_batch=take("rowsPerBatch", _count, None),
            rows_per_task=take("rowsPerTask", _count, ROWS_PER_TASK),
            events=take("events", _truth, False),
            tick_seconds=take("tickSeconds", _seconds, TICK_SECONDS),
        )

    def table(self, schema: pa.Schema | None = None) -> NumberedRows:
        """The rows; from files, brought to a schema if one is given."""
        if self.path is not None:
            return rows_of_files(self.path, schema)
        assert self.recipe is not None, "one of the two is given"
        return GeneratedRows(self.recipe)


def _recipe(options: Mapping[str, str], take: Callable[..., object]) -> Recipe | None:
    if ("path" in options) == ("rows" in options):
        raise SpecError("the watersmeet source needs either a path, as in .load('orders.parquet'), or the option rows")
    if "path" in options:
        for name in _GENERATED:
            if name in options:
                raise SpecError(f"option {name} is for generated rows, but there is a path; leave one of them out")
        return None
    rows = take("rows", _natural, 0)
    values: dict[str, object] = {
        "rows": rows,
        "keys": take("keys", _count, max(1, int(rows))),  # type: ignore[call-overload]
        "skew": take("skew", _seconds, 0.0),
        "width": take("width", _natural, 52),
        "seed": take("seed", _natural, 0),
        "columns": take("columns", _columns, ("key", "number", "measure", "text")),
    }
    assert set(values) == {field.name for field in fields(Recipe)}
    return Recipe(**values)  # type: ignore[arg-type]


def _converted(name: str, text: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(text)
    except ValueError as error:
        said = f"; {error}" if isinstance(error, _Wanted) else ""
        raise SpecError(f"option {name} is not understood: {text!r}{said}") from None


class _Wanted(ValueError):
    """What an option must look like."""


def _natural(text: str) -> int:
    if not text.isascii() or not text.replace("_", "").isdigit():
        raise _Wanted("give a whole number")
    return int(text)


def _count(text: str) -> int:
    number = _natural(text)
    if number < 1:
        raise _Wanted("give a whole number from 1 on")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise _Wanted("give a number of at least 0")
    return number


def _moment(text: str) -> float | Path:
    if Path(text).is_absolute():
        return Path(text)
    try:
        return float(text)
    except ValueError:
        raise _Wanted("give seconds since 1970, or the absolute path of a file that will appear") from None


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _Wanted("give true or false")
    return text.lower() == "true"


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) != 4 or len(set(names)) != 4 or not all(names):
        raise _Wanted("give four names with commas between, for the key, a number, a measure and a text")
    return names


def _stalls(text: str) -> tuple[tuple[int, float], ...]:
    found = []
    for each in filter(str.strip, text.split(",")):
        rows, colon, seconds = each.partition(":")
        if not colon:
            raise _Wanted("give ROWS:SECONDS with commas between, as in 1000:0.5, 4000:2")
        found.append((_natural(rows.strip()), _seconds(seconds)))
    return tuple(found)


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # Spark 4.0 and 4.1 know no admission control; `register` says so
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]


FORMAT = "watersmeet"
EVENT = "watersmeet_event"
END = "end"
TICK = "tick"


def register(spark: SparkSession) -> None:
    """Let a session read `format("watersmeet")`."""
    if ReadLimit is object:
        raise SpecError(
            "the watersmeet data source needs PySpark 4.2 or later; read the files with Spark's own readers"
        )
    use_own_python(spark)  # Spark remembers the Python that is to run a source when it is registered
    spark.dataSource.register(ReplayedTable)


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a stream has been taken: rows, ticks, and whether its end has been told."""

    rows: int
    ticks: int
    ended: bool
    table: str
    """The identity of the table: with another one, the same numbers would be other rows."""


class ReplayedTable(DataSource):
    """`format("watersmeet")`: a table as a stream, or the same rows as a batch."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def schema(self) -> st.StructType:
        """The table's own schema in Spark's types, and the column of events."""
        options = SourceOptions.parse(self.options)
        table = options.table()
        table.close()
        found = spark_schema(table.schema, table.name)
        return found.add(EVENT, st.StringType()) if options.events else found

    def streamReader(self, schema: st.StructType) -> DataSourceStreamReader:  # noqa: N802, as Spark names it
        """The table as a stream."""
        return ReplayReader(SourceOptions.parse(self.options), schema)

    def reader(self, schema: st.StructType) -> DataSourceReader:
        """The table as a batch, whatever its pace."""
        return WholeReader(SourceOptions.parse(self.options), schema)


class RowsPartition(InputPartition):
    """What one task reads: rows, and the events after them."""

    def __init__(self, part: Part | None, events: Sequence[str] = ()) -> None:
        self.part = part
        self.events = tuple(events)


class _Rows:
    """A table in the columns that Spark was promised."""

    def __init__(self, options: SourceOptions, schema: st.StructType) -> None:
        self.options = options
        named = [field for field in schema.fields if field.name == EVENT]
        if options.events and not named:
            raise SpecError(f"the option events needs a column {EVENT} string in the schema; add it to .schema(...)")
        kept = st.StructType([field for field in schema.fields if not (options.events and field.name == EVENT)])
        self.columns = arrow_schema(kept, options.path or "the generated table")
        self.output = arrow_schema(schema, options.path or "the generated table")

    def open(self) -> NumberedRows:
        """The table itself."""
        return self.options.table(self.columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A partition's rows and events."""
        assert isinstance(partition, RowsPartition)
        if partition.part is not None:
            for batch in partition.part.batches():
                yield self._completed(conform(batch, self.columns))
        if partition.events:
            arrays = [
                pa.array(partition.events) if name == EVENT else pa.nulls(len(partition.events), type_)
                for name, type_ in zip(self.output.names, self.output.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.output)

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.options.events:
            return batch
        arrays = [
            pa.nulls(batch.num_rows, pa.string()) if name == EVENT else batch.column(name) for name in self.output.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)


class WholeReader(DataSourceReader):
    """All rows, no event."""

    def __init__(self, options: SourceOptions, schema: st.StructType) -> None:
        self._rows = _Rows(options, schema)

    def partitions(self) -> list[InputPartition]:
        """A task for every so many rows."""
        table = self._rows.open()
        try:
            parts = table.parts(0, table.reach(ENDLESS), self._rows.options.rows_per_task)
            return [RowsPartition(part) for part in parts] or [RowsPartition(None)]
        finally:
            table.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One task's rows."""
        return self._rows.read(partition)


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream in the driver: how far it may go, and what lies between two offsets."""

    def __init__(self, options: SourceOptions, schema: st.StructType) -> None:
        self._options = options
        self._rows = _Rows(options, schema)
        self._table: NumberedRows | None = None
        self._began: float | None = None
        self._last_change = 0.0
        self._paced = True

    # What a reader learns it learns again after it is pickled for the tasks: they need the columns alone.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first row."""
        return asdict(Offset(0, 0, False, self._opened().identity))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What a micro-batch may take."""
        limit = self._options.rows_per_batch
        if limit is None and self._opened().held_by_driver:
            limit = TEXT_ROWS_PER_BATCH
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch goes."""
        return asdict(self._next(self._understood(start), limit, time.time()))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Left out: how far a silent stream is depends on when it is asked."""
        return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The whole table is there."""
        self._paced = False

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The rows and events between two offsets."""
        begin, stop = self._understood(start), self._understood(end)
        parts: list[InputPartition] = [
            RowsPartition(part) for part in self._opened().parts(begin.rows, stop.rows, self._options.rows_per_task)
        ]
        events = [TICK] * (stop.ticks - begin.ticks) + [END] * (stop.ended - begin.ended)
        return [*parts, RowsPartition(None, events)] if events else parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One task's rows and events."""
        return self._rows.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Rows up to here are not asked for again."""
        self._opened().forget(self._understood(end).rows)

    def stop(self) -> None:
        """Close the files."""
        if self._table is not None:
            self._table.close()

    def _opened(self) -> NumberedRows:
        if self._table is None:
            self._table = self._rows.open()
        return self._table

    def _understood(self, offset: dict[str, Any]) -> Offset:
        found = Offset(**offset)
        if found.table != self._opened().identity:
            raise SourceError(
                f"{self._opened().name} is not the table that the query began with, so the checkpoint's offsets name "
                f"other rows; put the table back, or start with a new checkpoint"
            )
        return found

    def _next(self, start: Offset, limit: ReadLimit, now: float) -> Offset:
        table, most = self._opened(), limit.max_rows if isinstance(limit, ReadMaxRows) else ENDLESS
        ready = self._ready(start, now)
        rows = table.reach(min(start.rows + most, ready)) if ready > start.rows else start.rows
        whole = ready > rows and table.reach(rows + 1) == rows
        ended = start.ended or (self._options.events and whole)
        ticks = start.ticks
        if rows > start.rows or ended != start.ended:
            self._last_change = now
        elif self._ticks() and now - self._last_change >= self._options.tick_seconds:
            self._last_change = now
            ticks += 1
        return Offset(rows, ticks, ended, start.table)

    def _ticks(self) -> bool:
        return self._options.events and self._paced

    def _ready(self, start: Offset, now: float) -> int:
        """How many rows the pace has let come by now."""
        if not self._paced:
            return ENDLESS
        if self._began is None:
            self._last_change = self._last_change or now
            self._began = self._beginning(start, now)
            if self._began is None:
                return start.rows
        return self._options.pace.ready(now - self._began)

    def _beginning(self, start: Offset, now: float) -> float | None:
        """When second 0 was or will be; None as long as that is not known."""
        moment = self._options.starts_at
        if isinstance(moment, Path):
            try:
                return moment.stat().st_mtime
            except FileNotFoundError:
                return None
        # A query that goes on does so in the second in which its last row came.
        return now - self._options.pace.until(start.rows) if moment is None else moment
