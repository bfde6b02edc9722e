"""From two inputs to rows that Spark sends to the slots of a parallel join, as the master says in each batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.spark.plan.grouping import hashed_to
from watersmeet.spark.plan.row_layout import TAG, RowLayout
from watersmeet.spark.plan.tagging import Tagging, places_by_id
from watersmeet.spark.rebalance.routing import Role
from watersmeet.spark.task.worker import is_connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HASH = "key_hash"
_SLOT = "slot"
_WAKE = "wake"
_PLACES = "array<struct<place: int, kind: int>>"
ANSWER = f"routing struct<slots: array<int>, wakes: {_PLACES}, hot: map<int, array<array<{_PLACES}>>>>"
"""What the master answers, in Spark's words (see `master_task`)."""


@dataclass(frozen=True)
class RoutedTagging(Tagging):
    """How rows are tagged, and sent to the slots of their groups; the hash of its key is behind the slots of a row."""

    @cached_property
    def layout(self) -> RowLayout:
        """Which slot each column of each input is carried in."""
        types = [tuple(field.dataType for field in schema.fields) for schema in self.schemas]
        return RowLayout.of(*types, wakes=True, roles=len(Role))

    def routed(self, left: DataFrame, right: DataFrame, answer: Column, slots: int) -> DataFrame:
        """The rows of both, each slot's in a task of its own."""
        rows = self._routed(left, 0, answer, slots).union(self._routed(right, 1, answer, slots))
        slot = answer.getField("slots")[fn.expr(f"cast({TAG} div {self.layout.kinds} as int)")]
        if not places_by_id():  # Spark sends a row where the hash of the expression says
            return rows.repartition(slots, fn.array(*map(fn.lit, hashed_to(slots)))[slot])
        if is_connected(rows.sparkSession):  # Spark Connect knows no subqueries among the arguments
            return rows.withColumn(_SLOT, slot).repartitionById(slots, fn.col(_SLOT)).drop(_SLOT)
        return rows.repartitionById(slots, slot)

    def _routed(self, frame: DataFrame, number: int, answer: Column, slots: int) -> DataFrame:
        plain = self._known(frame, number, fn.lit(0))
        plain = plain.withColumn(_HASH, self._key_hash(number)).withColumn(_WAKE, self._wakes(number, slots))
        key = fn.col(_HASH)
        own = fn.struct(fn.pmod(key, fn.lit(self.groups)).alias("place"), fn.lit(number).alias("kind"))
        choices = fn.try_element_at(answer.getField("hot"), key)[number]
        choice = fn.pmod(self._row_hash(number), fn.size(choices)).cast("int")
        places = fn.when(choices.isNull(), fn.array(own)).otherwise(choices[choice])
        woken = fn.when(fn.col(_WAKE), fn.concat(places, answer.getField("wakes"))).otherwise(places)
        placed = plain.select(fn.inline(woken), *self._slots(number), key)
        tag = (fn.col("place") * self.layout.kinds + fn.col("kind")).cast("int").alias(TAG)
        return placed.select(tag, *(f"slot{slot}" for slot in range(self.layout.count)), _HASH)

    def _row_hash(self, number: int) -> Column:
        """Differs from row to row of one key, as far as the rows do."""
        fields = self.schemas[number].fields
        return fn.xxhash64(*(fn.col(f"c{i}") for i, field in enumerate(fields) if _is_hashable(field.dataType)))


def _is_hashable(found: st.DataType) -> bool:
    """Whether Spark can hash values of a type: not if there are maps in them, or variants."""
    return "map<" not in found.simpleString() and "variant" not in found.simpleString()
