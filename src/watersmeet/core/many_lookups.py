"""One stream looked up in several relations, or several streams in one: what is joined, on what, what comes out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.spec import Equal, Output

ARRIVED = pa.field("\x00arrived", pa.int64(), nullable=False)
"""A column that rows have on their way from relation to relation: when they came, in microseconds."""


@dataclass(frozen=True)
class Link:
    """One relation of a chain."""

    name: str
    relation: pa.Schema
    on: tuple[Equal, ...]
    how: str = "inner"


@dataclass(frozen=True)
class ChainSpec:
    """A stream that is looked up in several relations, in order; what one adds to a row the next can be asked by.

    A relation's column keeps its name, unless the stream or a relation before it has one of that name; then the
    relation's own name is appended.

    >>> orders = pa.schema({"customer": pa.int64(), "sku": pa.int64()})
    >>> customers, skus = pa.schema({"id": pa.int64(), "name": pa.string()}), pa.schema({"sku": pa.int64()})
    >>> skus = skus.append(pa.field("name", pa.string()))
    >>> links = (Link("buyer", customers, (Equal("customer", "id"),)), Link("product", skus, (Equal("sku", "sku"),)))
    >>> ChainSpec(orders, links).schema.names
    ['customer', 'sku', 'id', 'name', 'name_product']
    """

    stream: pa.Schema
    links: tuple[Link, ...]
    output: Output = Output.ROWS
    stream_name: str = "stream"

    def __post_init__(self) -> None:
        if not self.links:
            raise SpecError("name at least one relation to look rows up in")
        _ = self.stages

    @property
    def names(self) -> tuple[str, ...]:
        """What the stream and the relations are called."""
        return (self.stream_name, *(link.name for link in self.links))

    @cached_property
    def stages(self) -> tuple[LookupSpec, ...]:
        """The look-ups, each with the rows that the one before it gives."""
        stages: list[LookupSpec] = []
        rows = self.stream.append(ARRIVED)
        for number, link in enumerate(self.links):
            output = self.output if number == len(self.links) - 1 else Output.ROWS
            names = (self.stream_name, link.name)
            stages.append(LookupSpec(rows, link.relation, link.on, link.how, output, ("", f"_{link.name}"), names))
            rows = stages[-1].schema
        return tuple(stages)

    def input(self, side: int) -> pa.Schema:
        """The schema of the only input."""
        return self.stream

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema."""
        return self.stages[-1].schema.remove(len(self.stream))

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal chains."""
        parts = [stage.fingerprint for stage in self.stages]
        return hashlib.sha256("\x00".join(["chain", *parts]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SharedSpec:
    """Several streams that are looked up in one relation, each for itself.

    >>> customers = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> on = (Equal("id", "id"),)
    >>> streams = [pa.schema({"id": pa.int64(), column: pa.int64()}) for column in ("order", "visit")]
    >>> SharedSpec(("orders", "visits"), tuple(LookupSpec(each, customers, on) for each in streams)).schemas[1].names
    ['id', 'visit', 'name']
    """

    names: tuple[str, ...]
    streams: tuple[LookupSpec, ...]

    def __post_init__(self) -> None:
        if not self.streams or len(self.names) != len(self.streams):
            raise SpecError("name at least one stream")
        if len({(each.relation.to_string(), each.output) for each in self.streams}) > 1:
            raise SpecError("streams that share a relation mean the same columns of it, and ask for rows or for counts")

    def input(self, side: int) -> pa.Schema:
        """The schema of a stream."""
        return self.streams[side].stream

    @property
    def output(self) -> Output:
        """What all streams ask for."""
        return self.streams[0].output

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The output's schema for each stream."""
        return tuple(each.schema for each in self.streams)

    @property
    def schema(self) -> pa.Schema:
        """The output's schema for the first stream; that of each is in `schemas`."""
        return self.streams[0].schema

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal look-ups."""
        parts = [each.fingerprint for each in self.streams]
        return hashlib.sha256("\x00".join(["shared", *self.names, *parts]).encode()).hexdigest()[:16]
