"""A join of several inputs: who is joined with whom, on what, and what comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.core.keys import KeyType, common_key_type
from watersmeet.core.spec import Output

MOST_INPUTS = 16


@dataclass(frozen=True, slots=True)
class Edge:
    """An equality between columns of two inputs, which are told by their numbers."""

    first: int
    first_column: str
    second: int
    second_column: str

    def column(self, side: int) -> str:
        """The column's name at one end."""
        return self.second_column if side else self.first_column

    def input(self, side: int) -> int:
        """The input at one end."""
        return self.second if side else self.first


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of an input in the form in which edges compare it; edges that compare alike share one."""

    column: str
    form: KeyType


def parse_edges(on: str | Sequence[str], names: Sequence[str]) -> tuple[Edge, ...]:
    """Edges from what people write.

    >>> parse_edges("r.a = s.b", ["r", "s"])
    (Edge(first=0, first_column='a', second=1, second_column='b'),)
    """
    texts = [on] if isinstance(on, str) else on
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        raise SpecError(f"on={on!r} is not understood; write a list such as ['orders.id = items.order_id']")
    return tuple(_parse_edge(text, names) for text in texts)


def _parse_edge(text: str, names: Sequence[str]) -> Edge:
    ends = [end.strip() for end in text.split("=")]
    if len(ends) != 2:
        raise SpecError(f"join condition {text!r} is not understood; write 'input.column = other.column'")
    (first, first_column), (second, second_column) = (_parse_end(end, text, names) for end in ends)
    if first == second:
        raise SpecError(f"join condition {text!r} is within one input; filter {names[first]!r} by it before the join")
    return Edge(first, first_column, second, second_column)


def _parse_end(end: str, text: str, names: Sequence[str]) -> tuple[int, str]:
    # The longest name that fits: inputs may be called "a" and "a.b".
    fitting = [i for i, name in enumerate(names) if end.startswith(f"{name}.") and len(end) > len(name) + 1]
    if not fitting:
        raise SpecError(
            f"{end!r} in join condition {text!r} names no input; the inputs are {', '.join(names)}: "
            f"write '{names[0]}.column'"
        )
    found = max(fitting, key=lambda i: len(names[i]))
    return found, end[len(names[found]) + 1 :]


@dataclass(frozen=True)
class MultiSpec:
    """A join of two or more inputs, with every question of names and types settled.

    A column keeps its name in the output if no other input has one of that name; else it is `input_column`. Columns of
    one name that are joined with each other come out once.

    >>> r, s = pa.schema({"a": pa.int64(), "v": pa.string()}), pa.schema({"a": pa.int32(), "v": pa.bool_()})
    >>> MultiSpec(("r", "s"), (r, s), parse_edges("r.a = s.a", ["r", "s"])).schema.names
    ['a', 'r_v', 's_v']
    """

    names: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]
    edges: tuple[Edge, ...]
    output: Output = Output.ROWS

    def __post_init__(self) -> None:
        count = len(self.names)
        if not 2 <= count <= MOST_INPUTS:
            raise SpecError(f"a join of several inputs takes 2 to {MOST_INPUTS} of them, not {count}")
        if len(set(self.names)) < count or not all(self.names):
            raise SpecError(f"every input needs a name of its own, and they are called {', '.join(self.names)}")
        if len(self.schemas) != count:
            raise SpecError(f"there are {count} inputs and {len(self.schemas)} schemas")
        for edge in self.edges:
            types = [self.key_field(edge.input(side), edge.column(side)).type for side in (0, 1)]
            if common_key_type(*types) is None:
                first, second = (f"{self.names[edge.input(side)]}.{edge.column(side)}" for side in (0, 1))
                raise SpecError(
                    f"{first} ({types[0]}) cannot be compared with {second} ({types[1]}); cast one of them first"
                )
        self._refuse_cross_products()
        _ = self.schema

    @classmethod
    def of(cls, schemas: Mapping[str, pa.Schema], on: str | Sequence[str], output: Output = Output.ROWS) -> MultiSpec:
        """The join of inputs by name."""
        names = tuple(schemas)
        return cls(names, tuple(schemas.values()), parse_edges(on, names), output)

    def _refuse_cross_products(self) -> None:
        reached, waiting = {0}, [0]
        while waiting:
            at = waiting.pop()
            for other in self.neighbours(at):
                if other not in reached:
                    reached.add(other)
                    waiting.append(other)
        apart = [name for i, name in enumerate(self.names) if i not in reached]
        if apart:
            raise SpecError(
                f"nothing joins {', '.join(apart)} with {', '.join(n for n in self.names if n not in apart)}, so every "
                f"row would meet every row; add a condition between them"
            )

    def input(self, number: int) -> pa.Schema:
        """The schema of one input."""
        return self.schemas[number]

    def keys(self, number: int) -> tuple[str, ...]:
        """The column of each attribute of one input."""
        return tuple(attribute.column for attribute in self.attributes[number])

    def neighbours(self, number: int) -> list[int]:
        """The inputs that one is joined with directly."""
        found = [edge.input(1 - side) for edge in self.edges for side in (0, 1) if edge.input(side) == number]
        return list(dict.fromkeys(found))

    def key_field(self, number: int, name: str) -> pa.Field:
        """A column that is joined on."""
        schema = self.schemas[number]
        found = schema.get_all_field_indices(name)
        if len(found) == 1:
            return schema.field(found[0])
        called = self.names[number]
        if found:
            raise SpecError(f"join column {name!r} is in {called} {len(found)} times; rename all but one")
        raise SpecError(f"join column {name!r} is not in {called}; it has {', '.join(schema.names) or 'no columns'}")

    @cached_property
    def forms(self) -> tuple[KeyType, ...]:
        """In which form each edge compares its columns."""
        found = []
        for edge in self.edges:
            types = [self.key_field(edge.input(side), edge.column(side)).type for side in (0, 1)]
            form = common_key_type(*types)
            assert form is not None, "checked when the spec was made"
            found.append(form)
        return tuple(found)

    @cached_property
    def attributes(self) -> tuple[tuple[Attribute, ...], ...]:
        """What each input is joined on: its columns in the forms that edges compare."""
        found: list[list[Attribute]] = [[] for _ in self.names]
        for edge, form in zip(self.edges, self.forms, strict=True):
            for side in (0, 1):
                attribute = Attribute(edge.column(side), form)
                if attribute not in found[edge.input(side)]:
                    found[edge.input(side)].append(attribute)
        return tuple(tuple(each) for each in found)

    def attribute_of(self, edge: int, side: int) -> int:
        """The number of an edge's attribute among those of the input at one end."""
        ends = self.edges[edge]
        return self.attributes[ends.input(side)].index(Attribute(ends.column(side), self.forms[edge]))

    @property
    def on_one_attribute(self) -> bool:
        """Whether all inputs are joined on one and the same value, so that equal hashes are equal partitions."""
        return all(len(each) == 1 for each in self.attributes) and len(set(self.forms)) == 1

    @cached_property
    def kept(self) -> tuple[tuple[int, ...], ...]:
        """Which columns of each input reach the output: all, but joined columns of one name only once."""
        first: dict[tuple[int, str], tuple[int, str]] = {}

        def root(end: tuple[int, str]) -> tuple[int, str]:
            while first.get(end, end) != end:
                end = first[end]
            return end

        for edge in self.edges:
            if edge.first_column == edge.second_column:
                low, high = sorted((root((edge.first, edge.first_column)), root((edge.second, edge.second_column))))
                first[high] = low
        return tuple(
            tuple(i for i, name in enumerate(schema.names) if root((number, name)) == (number, name))
            for number, schema in enumerate(self.schemas)
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema; with row numbers asked for, a column for each input."""
        if self.output is Output.PAIRS:
            return pa.schema([pa.field(name, pa.int64(), nullable=False) for name in self.names])
        fields = [(number, self.schemas[number].field(i)) for number, kept in enumerate(self.kept) for i in kept]
        by_name: dict[str, set[int]] = {}
        for number, field in fields:
            by_name.setdefault(field.name, set()).add(number)
        named = [
            field.with_name(f"{self.names[number]}_{field.name}") if len(by_name[field.name]) > 1 else field
            for number, field in fields
        ]
        seen: set[str] = set()
        for field in named:
            if field.name in seen:
                raise SpecError(f"the output would have two columns named {field.name!r}; rename one of them")
            seen.add(field.name)
        return pa.schema(named)

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins."""
        parts = [*self.names, *(schema.to_string() for schema in self.schemas), repr(self.edges), self.output.value]
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:16]
