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
from watersmeet.spark.plan.grid import Axis, Grid
from watersmeet.spark.plan.grouping import group_of, grouping_key, hashed_to
from watersmeet.spark.plan.row_layout import TAG, RowLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY_HASH = "key_hash"
_KIND = "kind"
_PLACE = "place"
SIGN = "sign"
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
    grid: Grid | None = None
    """Where rows are sent by several values: to which groups. Unless given, all keys together are one."""

    @cached_property
    def _grid(self) -> Grid:
        return self.grid or Grid((Axis(tuple(map(tuple, self.keys)), self.groups),))

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
        sign = fn.col(SIGN) if self._has_signs(number) else fn.lit(0).cast("tinyint")
        plain = self._known(frame, number, sign)
        slots = self._slots(number)
        carried = [sign.alias(SIGN)] if carry_sign else []
        if self.timed:
            # Of a streaming query this is when the batch began, also if it is carried out once more.
            carried.append(fn.unix_micros(fn.current_timestamp()).alias(_AT))
        by_id = places_by_id()
        own = self._places(number, by_id)
        if self._ticks(number):
            own = [fn.when(sign != 0, self._everywhere(by_id, 1)[0]).otherwise(place) for place in own]
        everywhere = self._everywhere(by_id) if self.signs or self.layout.wakes else []
        placed = self._placed(plain, [*slots, *carried], own, everywhere, sign, number)
        kept = [f"slot{slot}" for slot in range(self.layout.count)]
        kept += [*([SIGN] if carry_sign else []), *([_AT] if self.timed else [])]
        place = fn.col(_PLACE)
        group = place if by_id else group_of([place], self.groups)
        tag = (group * self.layout.kinds + fn.col(_KIND)).cast("int").alias(TAG)
        return placed.select(tag, *kept, *([] if by_id else [place.alias(_KEY_HASH)]))

    def _known(self, frame: DataFrame, number: int, sign: Column) -> DataFrame:
        """One input's rows that can meet others, or are wanted all the same, their columns named by their places."""
        names = [f"c{i}" for i in range(len(self.schemas[number].fields))]
        signs = self._has_signs(number)
        plain = frame.toDF(*names, *([SIGN] if signs else []))  # by position: names may repeat
        if signs:
            plain = plain.withColumn(SIGN, sign_code(fn.col(SIGN)))
        if self._ticks(number):
            plain = plain.where(fn.col(SIGN).isin(0, SIGN_CODES[TICK]))
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
        own: list[Column],
        everywhere: list[Column],
        sign: Column,
        number: int,
    ) -> DataFrame:
        """Rows with the places they go to, and their kind: a sign goes to every place, some rows wake all of them."""
        kind = fn.lit(number)
        if self._ticks(number):
            kind = fn.when(sign != 0, fn.lit(self.layout.first_tick + number)).otherwise(kind)
        if self.layout.wakes and len(own) < self.groups:
            plain = plain.withColumn(_WAKE, self._wakes(number, self.groups))
            itself = [fn.struct(place.alias(_PLACE), kind.alias(_KIND)) for place in own]
            waking = fn.lit(len(self.schemas)).alias(_KIND)
            woken = [fn.struct(place.alias(_PLACE), waking) for place in everywhere]
            places = fn.when(fn.col(_WAKE), fn.array(*itself, *woken)).otherwise(fn.array(*itself))
            return plain.select(fn.inline(places), *columns)
        place = own[0] if len(own) == 1 else fn.explode(fn.array(*own))
        if self.signs and len(own) < self.groups:
            ordinary = self._goes_home(number, sign)
            place = fn.explode(fn.when(ordinary, fn.array(*own)).otherwise(fn.array(*everywhere)))
        return plain.select(place.alias(_PLACE), kind.alias(_KIND), *columns)

    def _wakes(self, number: int, woken: int) -> Column:
        """Whether a row wakes others, so many at once."""
        # By the rows' values, which differ in a batch and from one batch to the next. Drawn by lot it would be another
        # plan each time: Spark puts a new seed into it for every batch, which Java then compiles anew.
        times = (fn.col(f"c{column}") for column in self.needed[number])
        salt = fn.xxhash64(self._key_hash(number), *times)
        return fn.pmod(salt, fn.lit(_ROWS_TO_A_WAKE * woken)) == 0

    def _goes_home(self, number: int, sign: Column) -> Column:
        """Whether a row goes to groups of its own: an ordinary one, or one that says that its own key is over."""
        if not self.keys[number]:
            return sign == 0
        over = sign == SIGN_CODES[OVER]
        for key in self.keys[number]:
            over = over & fn.col(f"c{key}").isNotNull()
        return (sign == 0) | over

    def _everywhere(self, by_id: bool, count: int | None = None) -> list[Column]:
        """The places of all groups, or of so many."""
        places = range(self.groups) if by_id else hashed_to(self.groups)
        return [fn.lit(place) for place in places[:count]]

    def _places(self, number: int, by_id: bool) -> list[Column]:
        """Where a row goes: to one place if its input has every value that rows are sent by, else to several."""
        grid = self._grid
        if self.groups == 1 or not grid.known(number):
            return self._everywhere(by_id)
        if not by_id and len(grid.axes) == 1:
            return [self._key_hash(number)]  # Spark hashes a place to find its group: so the hash of the key is one
        first = reduce(lambda one, other: one + other, [self._share(number, place) for place in grid.known(number)])
        groups = [first + more if more else first for more in grid.copies(number)]
        return groups if by_id else [fn.array(*self._everywhere(by_id))[group] for group in groups]

    def _share(self, number: int, place: int) -> Column:
        """What its share of one value adds to the number of a row's group."""
        axis, stride = self._grid.axes[place], self._grid.strides[place]
        share = group_of(self._comparable(number, axis), axis.shares)
        return share * stride if stride > 1 else share

    def _comparable(self, number: int, axis: Axis) -> list[Column]:
        """An input's columns of a value, in the types in which they are hashed."""
        found = []
        keyed = [(schema, keys) for schema, keys in zip(self.schemas, axis.columns, strict=True) if keys]
        for place, own in enumerate(axis.columns[number]):
            types = [schema.fields[keys[place]].dataType for schema, keys in keyed]
            found.append(grouping_key(fn.col(f"c{own}"), types))
        return found

    def _key_hash(self, number: int) -> Column:
        keys = [key for place in self._grid.known(number) for key in self._comparable(number, self._grid.axes[place])]
        return fn.hash(*keys) if keys else fn.lit(0)

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
