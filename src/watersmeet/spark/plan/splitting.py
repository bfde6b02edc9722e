"""Rows on their way to slots: each to the groups that the master's answer says, hot keys to their homes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.core.spec import JoinSpec
from watersmeet.spark.plan.grouping import hashed_to
from watersmeet.spark.plan.row_layout import TAG, RowLayout
from watersmeet.spark.plan.tagging import SIGN, Tagging, places_by_id
from watersmeet.spark.rebalance.master_task import MasterTask
from watersmeet.spark.rebalance.routing import BOTH, Role, tracked_side
from watersmeet.spark.task.worker import is_connected, portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HASH = "key_hash"
_SLOT = "slot"
_WAKE = "wake"
_PLACES = "array<struct<place: int, kind: int>>"
ANSWER = (
    f"routing struct<slots: array<int>, wakes: {_PLACES}, signs: array<{_PLACES}>, "
    f"hot: map<int, array<array<{_PLACES}>>>, refused: string>"
)
"""What the master answers, in Spark's words (see `master_task`)."""


def answered(master: MasterTask, session: Any) -> Column:
    """What the master answers, as a subquery of the batch's plan."""
    one: DataFrame = session.range(0, 1, 1, 1)
    return one.mapInArrow(portable(master, session), ANSWER).scalar()


def splits_keys(spec: JoinSpec, groups: int, asked: bool) -> bool:
    """Whether hot keys can be split: rows must be sent by numbers, and one side's rows have to be in one group each."""
    if spec.band is not None or spec.near is not None or not spec.equalities:
        return False
    return asked and groups > 1 and tracked_side(spec.kind) != BOTH and places_by_id()


@dataclass(frozen=True)
class RoutedTagging(Tagging):
    """How rows are tagged, and sent to the slots of their groups; the hash of its key is behind the slots of a row."""

    @cached_property
    def layout(self) -> RowLayout:
        """Which slot each column of each input is carried in."""
        types = [tuple(field.dataType for field in schema.fields) for schema in self.schemas]
        return RowLayout.of(*types, wakes=True, roles=len(Role))

    def routed(self, left: DataFrame, right: DataFrame, answer: Column, slots: int, *, moves: bool) -> DataFrame:
        """The rows of both, each slot's in a task of its own; where groups do not move, their numbers tell the slot."""
        rows = self._routed(left, 0, answer, slots).union(self._routed(right, 1, answer, slots))
        if not moves:  # without a second subquery, which Spark would carry out by itself
            return rows.repartitionById(slots, fn.expr(f"cast({TAG} div {self.layout.kinds} as int) % {slots}"))
        slot = answer.getField("slots")[fn.expr(f"cast({TAG} div {self.layout.kinds} as int)")]
        if not places_by_id():  # Spark sends a row where the hash of the expression says
            return rows.repartition(slots, fn.array(*map(fn.lit, hashed_to(slots)))[slot])
        if is_connected(rows.sparkSession):  # Spark Connect knows no subqueries among the arguments
            return rows.withColumn(_SLOT, slot).repartitionById(slots, fn.col(_SLOT)).drop(_SLOT)
        return rows.repartitionById(slots, slot)

    def _routed(self, frame: DataFrame, number: int, answer: Column, slots: int) -> DataFrame:
        sign = fn.col(SIGN) if self.signs else fn.lit(0)
        plain = self._known(frame, number, sign).withColumn(_HASH, self._key_hash(number))
        key = fn.col(_HASH)
        own = fn.struct(fn.pmod(key, fn.lit(self.groups)).alias("place"), fn.lit(number).alias("kind"))
        choices = fn.try_element_at(answer.getField("hot"), key)[number]
        choice = fn.pmod(self._row_hash(number), fn.size(choices)).cast("int")
        refused = answer.getField("refused")
        places = fn.when(refused.isNotNull(), fn.raise_error(refused))
        places = places.when(choices.isNull(), fn.array(own)).otherwise(choices[choice])
        if self.wakes:
            plain = plain.withColumn(_WAKE, self._wakes(number, slots))
            places = fn.when(fn.col(_WAKE), fn.concat(places, answer.getField("wakes"))).otherwise(places)
        if self.signs:  # they go to every group
            places = fn.when(sign == 0, places).otherwise(answer.getField("signs")[number])
        carried = [sign.alias(SIGN)] if self.signs else []
        placed = plain.select(fn.inline(places), *self._slots(number), key, *carried)
        tag = (fn.col("place") * self.layout.kinds + fn.col("kind")).cast("int").alias(TAG)
        return placed.select(
            tag, *(f"slot{slot}" for slot in range(self.layout.count)), _HASH, *([SIGN] if carried else [])
        )

    def _row_hash(self, number: int) -> Column:
        """Differs from row to row of one key, as far as the rows do."""
        fields = self.schemas[number].fields
        return fn.xxhash64(*(fn.col(f"c{i}") for i, field in enumerate(fields) if _is_hashable(field.dataType)))


def _is_hashable(found: st.DataType) -> bool:
    """Whether Spark can hash values of a type: not if there are maps in them, or variants."""
    return "map<" not in found.simpleString() and "variant" not in found.simpleString()
