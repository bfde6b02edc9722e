"""What a stream is looked up in, on what, and what comes out for each of its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import Equal, JoinSpec, On, Output, parse_on

HOW = ("inner", "left", "semi", "anti")


def settle_how(how: str, on_miss: str | None) -> str:
    """The kind of join that `how` and `on_miss` ask for together.

    >>> settle_how("inner", "keep"), settle_how("left", "drop"), settle_how("semi", None)
    ('left', 'inner', 'semi')
    """
    if how not in HOW:
        raise SpecError(f"how={how!r} is not supported; choose {', '.join(HOW)}")
    if on_miss is None:
        return how
    if on_miss not in ("keep", "drop"):
        raise SpecError(f"on_miss={on_miss!r} is not understood; choose 'keep' or 'drop'")
    if how in ("inner", "left"):
        return "left" if on_miss == "keep" else "inner"
    if (how == "semi") != (on_miss == "drop"):
        raise SpecError(f"how={how!r} and on_miss={on_miss!r} contradict each other; leave one of them out")
    return how


@dataclass(frozen=True)
class LookupSpec:
    """A join of a stream with a relation, with every question of names and types settled.

    Each row of the stream meets the relation as it is when the row arrives. `inner` gives the pairs, `left` also the
    rows that find nothing, with NULLs beside them; `semi` gives the rows that find something, `anti` those that do not.

    >>> stream, products = pa.schema({"sku": pa.int32()}), pa.schema({"sku": pa.int64(), "name": pa.string()})
    >>> LookupSpec(stream, products, (Equal("sku", "sku"),), how="left").schema.names
    ['sku', 'name']
    """

    stream: pa.Schema
    relation: pa.Schema
    on: tuple[Equal, ...]
    how: str = "inner"
    output: Output = Output.ROWS
    suffixes: tuple[str, str] = ("", "_right")
    names: tuple[str, str] = ("stream", "relation")

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise SpecError(f"how={self.how!r} is not supported; choose {', '.join(HOW)}")
        if self.output is Output.PAIRS:
            raise SpecError(
                "a look-up gives rows or counts; the rows of a relation that changes have no lasting numbers"
            )
        _ = self.schema

    @cached_property
    def pairs(self) -> JoinSpec:
        """The stream and the relation as the two inputs of an inner join."""
        return JoinSpec(self.stream, self.relation, self.on, suffixes=self.suffixes, names=self.names)

    @property
    def left(self) -> pa.Schema:
        """The stream's columns."""
        return self.stream

    def input(self, side: int) -> pa.Schema:
        """The schema of the only input."""
        return self.stream

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema; names that clash carry the suffixes, what may be missing may be NULL."""
        if self.how in ("semi", "anti"):
            return self.stream
        schema = self.pairs.schema
        if self.how == "inner":
            return schema
        own = len(self.stream)
        return pa.schema([field if i < own else field.with_nullable(True) for i, field in enumerate(schema)])

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal look-ups."""
        parts = [self.stream.to_string(), self.relation.to_string(), repr(self.on), self.how, self.output.value]
        return hashlib.sha256("\x00".join(["lookup", *parts, *self.suffixes]).encode()).hexdigest()[:16]


def lookup_conditions(on: On | None, keys: Sequence[str], name: str = "the relation") -> tuple[Equal, ...]:
    """The conditions in the order of the relation's key columns; all of these must be met, and no others.

    >>> lookup_conditions(["day = order_day", "id"], ["id", "order_day"])
    (Equal(left='id', right='id'), Equal(left='day', right='order_day'))
    """
    if on is None:
        return tuple(Equal(key, key) for key in keys)
    found: dict[str, Equal] = {}
    for condition in parse_on(on):
        if not isinstance(condition, Equal):
            raise SpecError("a look-up is on equal keys; bands and points are joined by wm.join")
        found[condition.right] = condition
    if sorted(found) != sorted(keys):
        raise SpecError(
            f"{name} is laid out by {', '.join(keys)}, and can be looked up by all of these alone, not by "
            f"{', '.join(found)}; build a relation for that"
        )
    return tuple(found[key] for key in keys)
