"""From several inputs to rows that Spark shuffles as one: in a common layout, tagged, each to the task of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.spark.io.source import TICK
from watersmeet.spark.plan.control_rows import OVER, SIGN_CODES, sign_code
from watersmeet.spark.plan.grouping import group_of, grouping_key, hashed_to
from watersmeet.spark.plan.row_layout import TAG, RowLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY_HASH = "key_hash"
_KIND = "kind"
_PLACE = "place"
_SIGN = "sign"
_WAKE = "wake"
_AT = "at"
_ROWS_TO_A_WAKE = 64
"""Rows for each group, on average, until one of them wakes all groups: so waking adds one row to so many."""


@dataclass(frozen=True)
class Tagging:
    """How the rows of several inputs are tagged and sent to their groups."""

    schemas: tuple[st.StructType, ...]
    """Of the inputs, without their columns of signs."""
    keys: tuple[Sequence[int], ...]
    """The columns of each input whose equality decides the group. An input without any is copied to all groups; if none
    has any, all rows are of group 0."""
    groups: int
    signs: bool = False
    """Whether the last column of each input holds signs, and the rows carry them to every group."""
    needed: tuple[Sequence[int], ...] = ()
    """More columns of each input without which a row meets nothing."""
    preserved: tuple[bool, ...] = ()
    """Of which inputs rows come out that meet nothing: those that cannot are not left out. None, unless given."""
    wakes: bool = False
    """Whether now and then a row wakes all groups, those that have no rows of their own, too."""
    ticks: tuple[bool, ...] = ()
    """Which inputs may give signs of life, told in their last column; these go to the first group."""
    timed: bool = False
    """Whether rows carry the time of their micro-batch, in a column behind all others."""

    @cached_property
    def layout(self) -> RowLayout:
        """Which slot each column of each input is carried in."""
        types = [tuple(field.dataType for field in schema.fields) for schema in self.schemas]
        return RowLayout.of(*types, wakes=self.wakes and self.groups > 1, ticks=any(self.ticks))

    def shuffled(self, *frames: DataFrame, carry_sign: bool) -> DataFrame:
        """The rows of all, each group's in a task of its own: tag, slots, and the sign if it is to be carried."""
        tagged = [self._tagged(frame, number, carry_sign) for number, frame in enumerate(frames)]
        rows = reduce(lambda one, other: one.union(other), tagged)
        if places_by_id():
            return rows.repartitionById(self.groups, fn.expr(f"cast({TAG} div {self.layout.kinds} as int)"))
        # Spark sends a row where the hash of the expression says, and the tag was made with that same hash.
        return rows.repartition(self.groups, fn.col(_KEY_HASH)).drop(_KEY_HASH)

    def _tagged(self, frame: DataFrame, number: int, carry_sign: bool) -> DataFrame:
        """One input's rows in the common layout, those that can meet nothing left out."""
        sign = fn.col(_SIGN) if self._has_signs(number) else fn.lit(0).cast("tinyint")
        plain = self._known(frame, number, sign)
        slots = self._slots(number)
        carried = [sign.alias(_SIGN)] if carry_sign else []
        if self.timed:
            # Of a streaming query this is when the batch began, also if it is carried out once more.
            carried.append(fn.unix_micros(fn.current_timestamp()).alias(_AT))
        by_id = places_by_id()
        own = self._group(number) if by_id else self._key_hash(number)
        if self._ticks(number):
            own = fn.when(sign != 0, fn.lit(0 if by_id else hashed_to(self.groups)[0])).otherwise(own)
        everywhere: list[Column] = []
        if self.signs or self.layout.wakes or self._is_copied(number):
            everywhere = [fn.lit(value) for value in (range(self.groups) if by_id else hashed_to(self.groups))]
        placed = self._placed(plain, [*slots, *carried], own, everywhere, sign, number)
        kept = [f"slot{slot}" for slot in range(self.layout.count)]
        kept += [*([_SIGN] if carry_sign else []), *([_AT] if self.timed else [])]
        place = fn.col(_PLACE)
        group = place if by_id else group_of([place], self.groups)
        tag = (group * self.layout.kinds + fn.col(_KIND)).cast("int").alias(TAG)
        return placed.select(tag, *kept, *([] if by_id else [place.alias(_KEY_HASH)]))

    def _known(self, frame: DataFrame, number: int, sign: Column) -> DataFrame:
        """One input's rows that can meet others, or are wanted all the same, their columns named by their places."""
        names = [f"c{i}" for i in range(len(self.schemas[number].fields))]
        signs = self._has_signs(number)
        plain = frame.toDF(*names, *([_SIGN] if signs else []))  # by position: names may repeat
        if signs:
            plain = plain.withColumn(_SIGN, sign_code(fn.col(_SIGN)))
        if self._ticks(number):
            plain = plain.where(fn.col(_SIGN).isin(0, SIGN_CODES[TICK]))
        needed = (*self.keys[number], *(self.needed[number] if self.needed else ()))
        for key in () if self.preserved and self.preserved[number] else needed:
            known = fn.col(f"c{key}").isNotNull()
            plain = plain.where(known | (sign != 0) if signs else known)
        return plain

    def _ticks(self, number: int) -> bool:
        return bool(self.ticks) and self.ticks[number]

    def _has_signs(self, number: int) -> bool:
        return self.signs or self._ticks(number)

    def _slots(self, number: int) -> list[Column]:
        """An input's columns in the common layout."""
        return [self._slot(number, slot).alias(f"slot{slot}") for slot in range(self.layout.count)]

    def _placed(
        self,
        plain: DataFrame,
        columns: list[Column],
        own: Column,
        everywhere: list[Column],
        sign: Column,
        number: int,
    ) -> DataFrame:
        """Rows with the place they go to, and their kind: a sign goes to every place, some rows wake all of them."""
        kind = fn.lit(number)
        if self._ticks(number):
            kind = fn.when(sign != 0, fn.lit(self.layout.first_tick + number)).otherwise(kind)
        if self.layout.wakes and not self._is_copied(number):
            plain = plain.withColumn(_WAKE, self._wakes(number, self.groups))
            itself = fn.struct(own.alias(_PLACE), kind.alias(_KIND))
            waking = fn.lit(len(self.schemas)).alias(_KIND)
            woken = [fn.struct(place.alias(_PLACE), waking) for place in everywhere]
            places = fn.when(fn.col(_WAKE), fn.array(itself, *woken)).otherwise(fn.array(itself))
            return plain.select(fn.inline(places), *columns)
        if self._is_copied(number):
            own = fn.explode(fn.array(*everywhere))
        elif self.signs and self.groups > 1:
            own = fn.explode(fn.when(self._has_one_place(number, sign), fn.array(own)).otherwise(fn.array(*everywhere)))
        return plain.select(own.alias(_PLACE), kind.alias(_KIND), *columns)

    def _wakes(self, number: int, woken: int) -> Column:
        """Whether a row wakes others, so many at once."""
        # By the rows' values, which differ in a batch and from one batch to the next. Drawn by lot it would be another
        # plan each time: Spark puts a new seed into it for every batch, which Java then compiles anew.
        times = (fn.col(f"c{column}") for column in self.needed[number])
        salt = fn.xxhash64(self._key_hash(number), *times)
        return fn.pmod(salt, fn.lit(_ROWS_TO_A_WAKE * woken)) == 0

    def _has_one_place(self, number: int, sign: Column) -> Column:
        """Whether a row goes to one group: an ordinary one, or one that says that its own key is over."""
        if not self.keys[number]:
            return sign == 0
        over = sign == SIGN_CODES[OVER]
        for key in self.keys[number]:
            over = over & fn.col(f"c{key}").isNotNull()
        return (sign == 0) | over

    def _is_copied(self, number: int) -> bool:
        return self.groups > 1 and not self.keys[number]

    def _comparable(self, number: int) -> list[Column]:
        found = []
        keyed = [(schema, keys) for schema, keys in zip(self.schemas, self.keys, strict=True) if keys]
        for place, own in enumerate(self.keys[number]):
            types = [schema.fields[keys[place]].dataType for schema, keys in keyed]
            found.append(grouping_key(fn.col(f"c{own}"), types))
        return found

    def _group(self, number: int) -> Column:
        return group_of(self._comparable(number), self.groups) if self.keys[number] else fn.lit(0)

    def _key_hash(self, number: int) -> Column:
        return fn.hash(*self._comparable(number)) if self.keys[number] else fn.lit(0)

    def _slot(self, number: int, slot: int) -> Column:
        column = self.layout.column_in(number, slot)
        if column is not None:
            return fn.col(f"c{column}")
        for schema, slots in zip(self.schemas, self.layout.slots, strict=True):
            if slot in slots:
                return fn.lit(None).cast(schema.fields[slots.index(slot)].dataType)
        raise AssertionError("every slot is some input's")


def places_by_id() -> bool:
    """Whether rows can be sent to a task by its number, as from Spark 4.1 on."""
    from pyspark.sql import DataFrame

    return hasattr(DataFrame, "repartitionById")
