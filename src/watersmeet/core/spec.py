"""What is joined, on what, and what comes out: checked once, before any row is read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.keys import common_key_type


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


On: TypeAlias = "str | tuple[str, str] | Equal | Sequence[str | tuple[str, str] | Equal]"


def parse_on(on: On) -> tuple[Equal, ...]:
    """Join conditions from what people write.

    >>> parse_on("id")
    (Equal(left='id', right='id'),)
    >>> parse_on(["id", "order_day = day"])
    (Equal(left='id', right='id'), Equal(left='order_day', right='day'))
    """
    if isinstance(on, Equal):
        return (on,)
    if isinstance(on, str):
        left, equals, right = on.partition("=")
        pair = (left.strip(), right.strip()) if equals else (on.strip(), on.strip())
        if not all(pair):
            raise SpecError(f"join condition {on!r} is not understood; write 'column' or 'left_column = right_column'")
        return (Equal(*pair),)
    if isinstance(on, tuple) and len(on) == 2 and all(isinstance(name, str) for name in on):
        raise SpecError(f"on={on!r} is ambiguous; write {list(on)!r} for two columns, or '{on[0]} = {on[1]}' for one")
    if not isinstance(on, Sequence) or not on:
        raise SpecError(f"on={on!r} is not understood; write a column name, 'left = right', or a list of these")
    return tuple(_parse_item(item) for item in on)


def _parse_item(item: object) -> Equal:
    if isinstance(item, tuple) and len(item) == 2 and all(isinstance(name, str) for name in item):
        return Equal(*item)
    if isinstance(item, str | Equal):
        return parse_on(item)[0]
    raise SpecError(f"join condition {item!r} is not understood; write 'column', 'left = right' or a pair of names")


@dataclass(frozen=True)
class JoinSpec:
    """A join of two inputs, with every question of names and types settled.

    >>> left, right = pa.schema({"id": pa.int64(), "v": pa.string()}), pa.schema({"id": pa.int32(), "v": pa.bool_()})
    >>> JoinSpec(left, right, parse_on("id")).schema.names
    ['id', 'v', 'v_right']
    """

    left: pa.Schema
    right: pa.Schema
    on: tuple[Equal, ...]
    how: str = "inner"
    output: Output = Output.ROWS
    suffixes: tuple[str, str] = ("", "_right")
    names: tuple[str, str] = ("left", "right")
    """What error messages call the inputs."""

    def __post_init__(self) -> None:
        if self.how != "inner":
            raise SpecError(f"how={self.how!r} is not supported; only 'inner' is")
        if not self.on:
            raise SpecError("a join needs at least one condition")
        if len(self.suffixes) != 2 or not all(isinstance(suffix, str) for suffix in self.suffixes):
            raise SpecError(f"suffixes must be two strings, not {self.suffixes!r}")
        for equal in self.on:
            pair = [self._key_field(side, equal.column(side)) for side in (0, 1)]
            if common_key_type(pair[0].type, pair[1].type) is None:
                raise SpecError(
                    f"column {equal.left!r} of {self.names[0]} ({pair[0].type}) cannot be compared with column "
                    f"{equal.right!r} of {self.names[1]} ({pair[1].type}); cast one of them first"
                )
        _ = self.schema

    def input(self, side: int) -> pa.Schema:
        """The schema of one input."""
        return self.right if side else self.left

    def keys(self, side: int) -> tuple[str, ...]:
        """The names of one side's key columns, in the order of the conditions."""
        return tuple(equal.column(side) for equal in self.on)

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

    @cached_property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which columns of each input reach the output: all, but a key of one name on both sides only once."""
        shared = {equal.right for equal in self.on if equal.left == equal.right}
        right = tuple(i for i, name in enumerate(self.right.names) if name not in shared)
        return tuple(range(len(self.left))), right

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema; names that clash carry the suffixes."""
        if self.output is Output.PAIRS:
            return pa.schema(
                [pa.field("left", pa.int64(), nullable=False), pa.field("right", pa.int64(), nullable=False)]
            )
        sides = [[self.input(side).field(i) for i in self.kept[side]] for side in (0, 1)]
        names = [{field.name for field in fields} for fields in sides]
        clash = names[0] & names[1]
        fields = [
            field.with_name(field.name + self.suffixes[side]) if field.name in clash else field
            for side in (0, 1)
            for field in sides[side]
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

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins."""
        parts = [self.left.to_string(), self.right.to_string(), repr(self.on), self.how, self.output.value]
        return hashlib.sha256("\x00".join([*parts, *self.suffixes]).encode()).hexdigest()[:16]
