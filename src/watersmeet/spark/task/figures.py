"""What the tasks of a batch did, on its way to `StreamingQueryProgress.observedMetrics`.

Spark's observed metrics are aggregates over rows. So each task hands out one more row, which holds its figures and
nothing else; Spark collects these rows and adds the figures up, and then they are left out. In the rows of results, the
column of figures is a NULL list, which costs four bytes of offset and a bit, and the collecting skips it. Spark carries
out every aggregate of an observation for every row, equal ones as often as they are named: so there is one for all
figures, and they are observed as one struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as fn

from watersmeet.spark.task.context import QUERY
from watersmeet.spark.task.delays import CLASSES, STEPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

COLUMN = "watersmeet_figures"
PREFIX = "watersmeet "
"""Of the name under which a join's figures are observed; the name of its state directory follows."""
OBSERVED = "figures"
"""What the struct of all figures is observed as."""
DIRECTORIES: dict[str, str] = {}
"""Of joins that were made in this process: where each keeps its state, by the name under which it is observed."""
_ARROW_TYPE = pa.list_(pa.field("element", pa.int64()))
_LARGEST = ("memory", "task_ms")
"""Figures of which the largest task speaks for the batch; the others are added up."""
_SHARES = {"p50": 0.5, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one task did, in rows and bytes."""

    rows: Sequence[int]
    """Of each input."""
    results: int
    memory: int
    """The most that was reserved at once."""
    written: int
    """Bytes written to the state, merging included."""
    state_rows: int
    """Rows in the state; with an operator that keeps some in memory, all that have come as long as it is not done."""
    state_bytes: int
    spilled: int = 0
    """Bytes that left memory before the end of the batch."""
    work_left: int = 0
    """Of a progressive join: 1 if there was reactive work left when the fuel was used up."""
    reactive: int = 0
    """Of a progressive join: results found with the fuel that the batch's rows left over, with what is on disk."""
    task_ms: int = 0
    """How long the task took, in milliseconds: from its first row to its last result, handing over included."""
    late: Sequence[int] = ()
    """Of a window join: rows of each input that came too late."""
    delays: Sequence[Sequence[int]] = ()
    """Results by input and class of delay."""

    def as_list(self) -> list[int]:
        """Rows and late rows of each input, the other figures in the order of the fields, then delays of each input."""
        late = self.late or [0] * len(self.rows)
        delays = [count for counts in self.delays or ([0] * CLASSES,) * 2 for count in counts]
        return [*self.rows, *late, *(getattr(self, name) for name in SCALARS), *delays]


SCALARS = tuple(field.name for field in fields(Figures) if field.name not in ("rows", "late", "delays"))


def figure_names(inputs: Sequence[str] = ("left", "right"), *, late: bool = False) -> list[str]:
    """The names of a join's figures, in their order; those of late rows only if they are to be told.

    >>> figure_names()[:5]
    ['left_rows', 'right_rows', '', '', 'results']
    """
    return [*(f"{each}_rows" for each in inputs), *(f"{each}_late" if late else "" for each in inputs), *SCALARS]


def with_figures(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Results with the column of figures, empty."""
    for batch in batches:
        yield batch.append_column(COLUMN, pa.nulls(batch.num_rows, _ARROW_TYPE))


def figures_row(schema: pa.Schema, done: Sequence[int]) -> pa.RecordBatch:
    """The row that carries a task's figures.

    >>> [row] = figures_row(pa.schema({"id": pa.int8()}), [1, 2]).to_pylist()
    >>> row["id"], row["watersmeet_figures"]
    (None, [1, 2])
    """
    arrays = [pa.nulls(1, field.type) for field in schema]
    row = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return row.append_column(COLUMN, pa.array([done], _ARROW_TYPE))


def observed(
    frame: DataFrame, directory: str, budget: int, names: Sequence[str], delays_of: Sequence[str] = ()
) -> DataFrame:
    """Results alone, the figures of these names having been added up under the name of the join's directory.

    A figure without a name is left out. Behind the others, there may be the delays of some inputs.
    """

    def told(tasks: Column) -> Column:
        totals = [_total(tasks, i, each in _LARGEST).alias(each) for i, each in enumerate(names) if each]
        totals.append(fn.lit(budget).alias("budget"))
        for number, side in enumerate(delays_of):
            first = len(names) + number * CLASSES + 1  # SQL counts from one
            counts = fn.aggregate(tasks, fn.array_repeat(fn.lit(0).cast("long"), CLASSES), _adder(first))
            totals += [_percentile(counts, share).alias(f"{side}_delay_{p}_ms") for p, share in _SHARES.items()]
        return fn.struct(*totals)

    path = Path(directory)
    name = path.parent.name if path.name == QUERY else path.name
    DIRECTORIES[name] = directory
    tasks = fn.collect_list(fn.col(COLUMN))  # skips NULL: rows of results cost one look
    figures_of_all = fn.transform(fn.array(tasks), told)[0]
    return frame.observe(PREFIX + name, figures_of_all.alias(OBSERVED)).where(fn.col(COLUMN).isNull()).drop(COLUMN)


def figures(progress: StreamingQueryProgress) -> dict[str, dict[str, Any]]:
    """What the joins of a query did in a batch: the figures of each, by the name of its state directory.

    `query.lastProgress` and a listener's `event.progress` have them as `observedMetrics["watersmeet NAME"]["figures"]`,
    but under Spark Connect not by their names; this understands either.
    """
    return {
        name.removeprefix(PREFIX): _named(_named(row)[OBSERVED])
        for name, row in (progress.observedMetrics or {}).items()
        if name.startswith(PREFIX)
    }


def _named(row: Any) -> dict[str, Any]:
    """A row's values by their names, which Spark Connect puts beside them."""
    known: dict[str, Any] = row.asDict() if hasattr(row, "asDict") else dict(row)
    if set(known) == {"values", "schema"}:
        names = [field["name"] for field in known["schema"]["fields"]]
        return dict(zip(names, known["values"], strict=True))
    return known


def _total(tasks: Column, place: int, largest: bool) -> Column:
    values = fn.transform(tasks, lambda task: task[place])
    if largest:
        return fn.array_max(values)
    return fn.aggregate(values, fn.lit(0).cast("long"), lambda total, value: total + value)


def _adder(first: int) -> Callable[[Column, Column], Column]:
    return lambda total, task: fn.zip_with(total, fn.slice(task, first, CLASSES), lambda a, b: a + b)


def _percentile(counts: Column, share: float) -> Column:
    """`delays.percentile` in SQL: the middle of the class in which the sum of counts reaches the share."""
    total = fn.aggregate(counts, fn.lit(0).cast("long"), lambda sum_, count: sum_ + count)
    start = fn.struct(fn.lit(0).cast("long").alias("seen"), fn.lit(0).cast("int").alias("place"))
    end = fn.aggregate(
        fn.transform(counts, lambda count: fn.struct(count.alias("count"), total.alias("total"))),
        start,
        lambda at, each: fn.struct(
            (at["seen"] + each["count"]).alias("seen"),
            (at["place"] + fn.when(at["seen"] + each["count"] < fn.lit(share) * each["total"], 1).otherwise(0)).alias(
                "place"
            ),
        ),
    )
    return fn.when(total > 0, fn.pow(fn.lit(2.0), end["place"] / fn.lit(STEPS)))
