"""The state of a join as a batch DataFrame.

    wms.register_state(spark)
    spark.read.format("watersmeet-state").option("side", "left").load("state/orders").where("order_id = 7")

| option | meaning |
|---|---|
| `path` | the state directory, or its address |
| `side` | `left` or `right` |
| `input` | instead of it, the name of one of several inputs |
| `where` | a condition, as `watersmeet state DIR read --where` takes it: one on the keys reads one group |
| `batch` | as it was after this batch, as long as that is kept; unless given, as it is |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from watersmeet.core.errors import SpecError
from watersmeet.spark.offline.opened import OpenedState
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.plan.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "watersmeet-state"


def register_state(spark: SparkSession) -> None:
    """Let a session read `format("watersmeet-state")`."""
    spark.dataSource.register(StateTable)


class GroupPartition(InputPartition):
    """What one task reads: a group."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StateTable(DataSource):
    """`format("watersmeet-state")`: the rows that one input of a join has left behind."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def schema(self) -> st.StructType:
        """The columns that the join keeps, in Spark's types."""
        return spark_schema(self._rows().schema, "the state")

    def reader(self, schema: st.StructType) -> DataSourceReader:
        """The rows, group by group."""
        return StateReader(dict(self.options))

    def _rows(self) -> StateRows:
        return rows_of(dict(self.options))


class StateReader(DataSourceReader):
    """Reads a group in each task."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A partition for each group in which there may be such rows."""
        return [GroupPartition(number) for number in rows_of(self._options).groups()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a group."""
        if isinstance(partition, GroupPartition):
            batch = self._options.get("batch")
            yield from rows_of(self._options).read([partition.number], None if batch is None else int(batch))


def rows_of(options: dict[str, str]) -> StateRows:
    """What options ask for."""
    known = {"path", "side", "input", "where", "batch"}
    odd = sorted(set(options) - known)
    if odd:
        raise SpecError(f"the option {odd[0]!r} is not known; there are {', '.join(sorted(known))}")
    if "path" not in options:
        raise SpecError("say which state: load('the state directory')")
    if not options.get("batch", "0").isdecimal():
        raise SpecError(f"batch={options['batch']!r} is no number of a batch")
    if "side" in options and "input" in options:
        raise SpecError("say either side or input, not both")
    side = options.get("input", options.get("side", "left"))
    return StateRows(OpenedState(options["path"]), side, options.get("where"))
