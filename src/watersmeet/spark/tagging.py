"""From two inputs to rows that Spark shuffles as one: in a common layout, tagged, each to the task of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.spark.grouping import group_of, grouping_key, hashed_to
from watersmeet.spark.row_layout import TAG, RowLayout
from watersmeet.spark.signs import sign_code

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY_HASH = "key_hash"
_SIGN = "sign"


@dataclass(frozen=True)
class Tagging:
    """How the rows of two inputs are tagged and sent to their groups."""

    schemas: tuple[st.StructType, st.StructType]
    """Of the inputs, without their columns of signs."""
    keys: tuple[Sequence[int], Sequence[int]]
    """The columns of each input whose equality decides the group; without any, all rows are of group 0."""
    groups: int
    signs: bool
    """Whether the last column of each input holds signs, and the rows carry them to every group."""

    @property
    def layout(self) -> RowLayout:
        """Which slot each column of each input is carried in."""
        left, right = (tuple(field.dataType for field in schema.fields) for schema in self.schemas)
        return RowLayout.of(left, right)

    def shuffled(self, left: DataFrame, right: DataFrame, *, carry_sign: bool) -> DataFrame:
        """The rows of both, each group's in a task of its own: tag, slots, and the sign if it is to be carried."""
        rows = self._tagged(left, 0, carry_sign).union(self._tagged(right, 1, carry_sign))
        if places_by_id():
            return rows.repartitionById(self.groups, fn.shiftright(fn.col(TAG), 1))
        # Spark sends a row where the hash of the expression says, and the tag was made with that same hash.
        return rows.repartition(self.groups, fn.col(_KEY_HASH)).drop(_KEY_HASH)

    def _tagged(self, frame: DataFrame, side: int, carry_sign: bool) -> DataFrame:
        """One input's rows in the common layout, those without a key left out."""
        fields = self.schemas[side].fields
        names = [f"c{i}" for i in range(len(fields))]
        plain = frame.toDF(*names, *([_SIGN] if self.signs else []))  # by position: names may repeat
        sign = fn.col(_SIGN) if self.signs else fn.lit(0).cast("tinyint")
        if self.signs:
            plain = plain.withColumn(_SIGN, sign_code(fn.col(_SIGN)))
        for key in self.keys[side]:
            known = fn.col(f"c{key}").isNotNull()
            plain = plain.where(known | (sign != 0) if self.signs else known)
        slots = [self._slot(side, slot).alias(f"slot{slot}") for slot in range(self.layout.count)]
        carried = [sign.alias(_SIGN)] if carry_sign else []
        if places_by_id():
            place = self._place(self._group(side), [fn.lit(group) for group in range(self.groups)], sign)
            placed = plain.select(place.alias(TAG), *slots, *carried)
            return placed.withColumn(TAG, (fn.col(TAG) * 2 + side).cast("int"))
        everywhere = [fn.lit(value) for value in hashed_to(self.groups)] if self.signs else []
        place = self._place(self._key_hash(side), everywhere, sign)
        tag = (group_of([fn.col(_KEY_HASH)], self.groups) * 2 + side).cast("int").alias(TAG)
        slot_names = [f"slot{slot}" for slot in range(self.layout.count)]
        hashed = plain.select(place.alias(_KEY_HASH), *slots, *carried)
        return hashed.select(tag, *slot_names, *([_SIGN] if carry_sign else []), _KEY_HASH)

    def _place(self, own: Column, everywhere: Sequence[Column], sign: Column) -> Column:
        """Where a row goes: to its own group, or a sign to every one."""
        if not self.signs or self.groups == 1:
            return own
        return fn.explode(fn.when(sign == 0, fn.array(own)).otherwise(fn.array(*everywhere)))

    def _comparable(self, side: int) -> list[Column]:
        found = []
        for own, other in zip(self.keys[side], self.keys[1 - side], strict=True):
            types = self.schemas[side].fields[own].dataType, self.schemas[1 - side].fields[other].dataType
            found.append(grouping_key(fn.col(f"c{own}"), *types))
        return found

    def _group(self, side: int) -> Column:
        return group_of(self._comparable(side), self.groups) if self.keys[side] else fn.lit(0)

    def _key_hash(self, side: int) -> Column:
        return fn.hash(*self._comparable(side)) if self.keys[side] else fn.lit(0)

    def _slot(self, side: int, slot: int) -> Column:
        column = self.layout.column_in(side, slot)
        if column is not None:
            return fn.col(f"c{column}")
        other = self.layout.column_in(1 - side, slot)
        assert other is not None, "every slot is some side's"
        return fn.lit(None).cast(self.schemas[1 - side].fields[other].dataType)


def places_by_id() -> bool:
    """Whether rows can be sent to a task by its number, as from Spark 4.1 on."""
    from pyspark.sql import DataFrame

    return hasattr(DataFrame, "repartitionById")
