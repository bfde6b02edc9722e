"""What is joined, on what, and what comes out: checked once, before any row is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import pyarrow as pa

from watersmeet.core.bands import BandForm, NearForm, Width, common_band_form, common_near_form, width_in_words
from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.keys import common_key_type, told_type, type_of_both, way_out
from watersmeet.core.kinds import Kind, kind_of
from watersmeet.core.promises import Promises


class Output(Enum):
    """What a run is asked for; whatever is not asked for is never built."""

    ROWS = "rows"
    PAIRS = "pairs"
    """Row numbers: two int64 columns `left` and `right`, counted from 0 in each input's order of arrival."""
    COUNTS = "counts"
    """No batches at all; `Step.cost.results` counts."""


@dataclass(frozen=True, slots=True)
class Equal:
    """An equality between a column of the left and a column of the right input."""

    left: str
    right: str

    def column(self, side: int) -> str:
        """The column's name on one side."""
        return self.right if side else self.left


@dataclass(frozen=True, slots=True)
class Band:
    """Values of a column of the left and a column of the right input that differ by no more than `width`.

    The bounds belong to the band. NULL and NaN are close to nothing. Beside dates and timestamps the width is a
    `timedelta`.
    """

    left: str
    right: str
    width: Width

    def __post_init__(self) -> None:
        width = plain_number(self.width)
        object.__setattr__(self, "width", width)
        if isinstance(width, bool) or not isinstance(width, int | float | Decimal | timedelta):
            raise SpecError(f"the width of a band must be a number or a timedelta, not {width!r}")
        not_a_number = width != width
        if not_a_number or (width < timedelta() if isinstance(width, timedelta) else width < 0):
            raise SpecError(f"the width of a band must be zero or more, not {width!r}")

    def column(self, side: int) -> str:
        """The column's name on one side."""
        return self.right if side else self.left


def band(on: str, width: Width) -> Band:
    """A condition for `on`: two columns whose values differ by `width` at most.

    >>> band("price", 0.05)
    Band(left='price', right='price', width=0.05)
    >>> band("bought = sold", timedelta(minutes=5)).right
    'sold'
    """
    if not isinstance(on, str):
        raise SpecError(f"a band is on a column or on 'left_column = right_column', not on {on!r}")
    return Band(*_two_names(on), width)


@dataclass(frozen=True, slots=True)
class Near:
    """Points of both inputs, in two or three columns each, whose distance is no more than `radius`.

    The distance is Euclid's, and exact (`core.bands`); NULL, NaN and infinities are near nothing.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    radius: int | float | Decimal

    def __post_init__(self) -> None:
        radius = plain_number(self.radius)
        object.__setattr__(self, "radius", radius)
        if isinstance(radius, bool) or not isinstance(radius, int | float | Decimal):
            raise SpecError(f"the radius of near must be a number, not {radius!r}")
        if not 0 <= radius <= _LARGEST_RADIUS:  # NaN, too
            raise SpecError(f"the radius of near must be from 0 to {_LARGEST_RADIUS:g}, not {radius!r}")
        if not 2 <= len(self.left) <= 3:
            raise SpecError(
                f"near is of two or three dimensions, not of {len(self.left)} columns; with one, use wm.band"
            )
        for names in (self.left, self.right):
            if len(set(names)) < len(names):
                raise SpecError(f"near has {', '.join(names)}: each dimension is a column of its own")

    def columns(self, side: int) -> tuple[str, ...]:
        """The columns' names on one side."""
        return self.right if side else self.left


_LARGEST_RADIUS = 1e300


def near(on: Sequence[str], radius: int | float | Decimal) -> Near:
    """A condition for `on`: points that are `radius` apart at most, in two or three dimensions.

    >>> near(["x", "y"], 0.5)
    Near(left=('x', 'y'), right=('x', 'y'), radius=0.5)
    >>> near(["east = x", "north = y"], 10).right
    ('x', 'y')
    """
    if isinstance(on, str) or not isinstance(on, Sequence) or not all(isinstance(each, str) for each in on):
        raise SpecError(f"near is on a list of two or three columns, such as ['x', 'y'], not on {on!r}")
    names = [_two_names(each) for each in on]
    return Near(tuple(left for left, _ in names), tuple(right for _, right in names), radius)


Condition: TypeAlias = "Equal | Band | Near"
On: TypeAlias = "str | tuple[str, str] | Condition | Sequence[str | tuple[str, str] | Condition]"


def parse_on(on: On | None) -> tuple[Condition, ...]:
    """Join conditions from what people write; None: there are none.

    >>> parse_on("id")
    (Equal(left='id', right='id'),)
    >>> parse_on(["id", "order_day = day"])
    (Equal(left='id', right='id'), Equal(left='order_day', right='day'))
    """
    if on is None:
        return ()
    if isinstance(on, Equal | Band | Near):
        return (on,)
    if isinstance(on, str):
        return (Equal(*_two_names(on)),)
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(name, str) for name in on):
        raise SpecError(f"on={on!r} is ambiguous; write {list(on)!r} for two columns, or '{on[0]} = {on[1]}' for one")
    if not isinstance(on, Sequence) or not on:
        raise SpecError(f"on={on!r} is not understood; write a column name, 'left = right', or a list of these")
    return tuple(_parse_item(item) for item in on)


def equated(text: str) -> list[str]:
    """What a condition in words says to be equal, be it with one sign or, as programs write it, with two.

    >>> equated("id = order"), equated("r.a == s.b"), equated("id")
    (['id', 'order'], ['r.a', 's.b'], ['id'])
    """
    return [each.strip() for each in re.split("==?", text)]


def _two_names(text: str) -> tuple[str, str]:
    names = equated(text)
    pair = (names[0], names[-1])
    if not all(names) or len(names) > 2:
        raise SpecError(f"join condition {text!r} is not understood; write 'column' or 'left_column = right_column'")
    return pair


def _parse_item(item: object) -> Condition:
    if isinstance(item, tuple) and len(item) == 2 and all(isinstance(name, str) for name in item):
        return Equal(*item)
    if isinstance(item, str | Equal | Band | Near):
        return parse_on(item)[0]
    raise SpecError(f"join condition {item!r} is not understood; write 'column', 'left = right' or a pair of names")


class OutputColumn(NamedTuple):
    """Where the values of a column of the output come from: which column of each input, if any.

    Where both inputs have one, it is the left's, unless there is no left row.
    """

    left: int | None
    right: int | None


@dataclass(frozen=True)
class JoinSpec:
    """A join of two inputs, with every question of names and types settled.

    >>> left, right = pa.schema({"id": pa.int64(), "v": pa.string()}), pa.schema({"id": pa.int32(), "v": pa.bool_()})
    >>> JoinSpec(left, right, parse_on("id")).schema.names
    ['id', 'v', 'v_right']
    """

    left: pa.Schema
    right: pa.Schema
    on: tuple[Condition, ...]
    how: str = "inner"
    output: Output = Output.ROWS
    suffixes: tuple[str, str] = ("", "_right")
    names: tuple[str, str] = ("left", "right")
    """What error messages call the inputs."""
    promises: tuple[Promises, Promises] = (Promises(), Promises())
    """What each input promises of its rows."""
    needs_condition: ClassVar[bool] = True
    """Whether there is nothing else than `on` by which rows meet."""

    def __post_init__(self) -> None:
        kind_of(self.how)
        if not self.on and self.needs_condition:
            raise SpecError("a join needs at least one condition")
        if len(self.suffixes) != 2 or not all(isinstance(suffix, str) for suffix in self.suffixes):
            raise SpecError(f"suffixes must be two strings, not {self.suffixes!r}")
        if sum(isinstance(condition, Band) for condition in self.on) > 1:
            raise SpecError("a join takes one band; keep the narrowest, and filter the result by the others")
        if sum(isinstance(condition, Band | Near) for condition in self.on) > 1:
            raise SpecError("a join takes one near, and no band beside it; filter the result by the others")
        for side, promises in enumerate(self.promises):
            promises.check(self.input(side), self.names[side])
        for equal in self.equalities:
            pair = [self._key_field(side, equal.column(side)) for side in (0, 1)]
            if common_key_type(pair[0].type, pair[1].type) is None:
                raise SpecError(
                    f"column {equal.left!r} of {self.names[0]} ({told_type(pair[0].type)}) cannot be compared with "
                    f"column {equal.right!r} of {self.names[1]} ({told_type(pair[1].type)}); "
                    f"{way_out(pair[0].type, pair[1].type)}"
                )
        if self.band is not None and self.band_form is None:
            fields = [self._key_field(side, self.band.column(side)) for side in (0, 1)]
            raise SpecError(
                f"column {self.band.left!r} of {self.names[0]} ({fields[0].type}) cannot be within "
                f"{width_in_words(self.band.width)} of column {self.band.right!r} of {self.names[1]} "
                f"({fields[1].type}); a band takes numbers and a number, or dates, "
                f"timestamps, times or durations and a timedelta"
            )
        if self.near is not None and self.near_form is None:
            columns = [self._key_field(side, name) for side in (0, 1) for name in self.near.columns(side)]
            types = ", ".join(f"{field.name} {field.type}" for field in columns)
            raise SpecError(f"near takes columns of numbers, and these are {types}; cast them first, or leave them out")
        _ = self.schema

    @property
    def equalities(self) -> tuple[Equal, ...]:
        """The conditions that ask for equal values."""
        return tuple(condition for condition in self.on if isinstance(condition, Equal))

    @property
    def band(self) -> Band | None:
        """The condition that asks for close values, if there is one."""
        return next((condition for condition in self.on if isinstance(condition, Band)), None)

    @property
    def near(self) -> Near | None:
        """The condition that asks for points that are near each other, if there is one."""
        return next((condition for condition in self.on if isinstance(condition, Near)), None)

    def close_columns(self, side: int) -> tuple[str, ...]:
        """The names of one side's columns whose values need only be close: of the band, or of points; or none."""
        if self.near is not None:
            return self.near.columns(side)
        return () if self.band is None else (self.band.column(side),)

    @property
    def asks_for_close(self) -> bool:
        """Whether there are values that need only be close, so that rows that match may have any hashes."""
        return bool(self.close_columns(0))

    @cached_property
    def near_form(self) -> NearForm | None:
        """In which form points are compared; None without any."""
        if self.near is None:
            return None
        names = zip(self.near.left, self.near.right, strict=True)
        return common_near_form(
            [(self._key_field(0, left).type, self._key_field(1, right).type) for left, right in names], self.near.radius
        )

    @cached_property
    def band_form(self) -> BandForm | None:
        """In which form the band's columns are compared; None without a band."""
        if self.band is None:
            return None
        fields = [self._key_field(side, self.band.column(side)) for side in (0, 1)]
        return common_band_form(fields[0].type, fields[1].type, self.band.width)

    def input(self, side: int) -> pa.Schema:
        """The schema of one input."""
        return self.right if side else self.left

    def keys(self, side: int) -> tuple[str, ...]:
        """The names of one side's columns in equalities, in the order of the conditions."""
        return tuple(equal.column(side) for equal in self.equalities)

    def _key_field(self, side: int, name: str) -> pa.Field:
        schema = self.input(side)
        found = schema.get_all_field_indices(name)
        if not found:
            raise SpecError(
                f"join column {name!r} is not in {self.names[side]}; it has {', '.join(schema.names) or 'no columns'}"
            )
        if len(found) > 1:
            raise SpecError(f"join column {name!r} is in {self.names[side]} {len(found)} times; rename all but one")
        return schema.field(found[0])

    @property
    def kind(self) -> Kind:
        """What comes out beside the pairs, or in their place."""
        return kind_of(self.how)

    @property
    def foretells(self) -> bool:
        """Whether promises tell when rows without a partner are settled, or which rows are of no more use.

        >>> schema, promises = pa.schema({"id": pa.int64()}), (Promises(), Promises(punctuated=True))
        >>> [JoinSpec(schema, schema, parse_on("id"), how, promises=promises).foretells for how in ("left", "inner")]
        [True, False]
        """
        if self.kind.is_inner or self.asks_for_close:
            return False
        return any(promises.tell_of(self.keys(side)) for side, promises in enumerate(self.promises))

    @cached_property
    def columns(self) -> tuple[OutputColumn, ...]:
        """What the output's columns are made of: all columns, but a key of one name on both sides only once.

        Such a key is the left's, or the right's where right rows are preserved; or either's, where both are. `semi` and
        `anti` have the columns of the left input alone.
        """
        kind = self.kind
        names = [equal.left for equal in self.equalities if equal.left == equal.right]
        shared = {name: self.right.get_field_index(name) for name in names}
        if kind.one_sided:
            return tuple(OutputColumn(i, None) for i in range(len(self.left)))
        left = [
            OutputColumn(i, None)
            if name not in shared or not kind.preserved[1]
            else OutputColumn(i if kind.preserved[0] else None, shared[name])
            for i, name in enumerate(self.left.names)
        ]
        return (*left, *(OutputColumn(None, i) for i, name in enumerate(self.right.names) if name not in shared))

    @cached_property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which columns of each input reach the output."""
        left, right = zip(*self.columns, strict=True) if self.columns else ((), ())
        return tuple(sorted(i for i in left if i is not None)), tuple(sorted(i for i in right if i is not None))

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema; names that clash carry the suffixes."""
        if self.output is Output.PAIRS:
            sides = [side for side in (0, 1) if not (side and self.kind.one_sided)]
            return pa.schema(
                [pa.field(("left", "right")[side], pa.int64(), nullable=self.kind.optional(side)) for side in sides]
            )
        fields = [self._output_field(column) for column in self.columns]
        # Keys that both inputs share stand among the left's columns.
        mine = len(self.left)
        clash = {field.name for field in fields[:mine]} & {field.name for field in fields[mine:]}
        fields = [
            field.with_name(field.name + self.suffixes[place >= mine]) if field.name in clash else field
            for place, field in enumerate(fields)
        ]
        seen: set[str] = set()
        for field in fields:
            if field.name in seen:
                raise SpecError(
                    f"the output would have two columns named {field.name!r}; rename one, or choose other suffixes "
                    f"than {self.suffixes!r}"
                )
            seen.add(field.name)
        return pa.schema(fields)

    def _output_field(self, column: OutputColumn) -> pa.Field:
        places = [(side, place) for side, place in enumerate(column) if place is not None]
        fields = [self.input(side).field(place) for side, place in places]
        if len(fields) == 1:
            return fields[0].with_nullable(True) if self.kind.optional(places[0][0]) else fields[0]
        left, right = fields
        nullable = left.nullable or right.nullable
        both = type_of_both(left.type, right.type)
        if both is None:
            raise SpecError(
                f"how='full' makes one column of {left.name!r} of {self.names[0]} ({left.type}) and of {self.names[1]} "
                f"({right.type}), and no type holds both; cast one of them first, or give it another name"
            )
        return left.with_type(both).with_nullable(nullable)

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins."""
        parts = [self.left.to_string(), self.right.to_string(), repr(self.on), self.how, self.output.value]
        if any(self.promises):
            parts.append(repr(self.promises))
        return hashlib.sha256("\x00".join([*parts, *self.suffixes]).encode()).hexdigest()[:16]
