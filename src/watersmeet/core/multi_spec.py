"""A join of several inputs: who is joined with whom, on what, and what comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from watersmeet.core.bands import BandForm, Width, common_band_form, width_in_words
from watersmeet.core.errors import SpecError
from watersmeet.core.keys import KeyType, common_key_type, told_type, way_out
from watersmeet.core.many_windows import ManyWindows, Units
from watersmeet.core.spec import Band, Output, equated

MOST_INPUTS = 16

ManyOn: TypeAlias = "str | Band | Sequence[str | Band]"
"""What a join of several inputs is on: `"r.a = s.b"`, `band("r.a = s.b", width)`, or a list of these."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A condition between columns of two inputs, which are told by their numbers."""

    first: int
    first_column: str
    second: int
    second_column: str
    width: Width | None = None
    """How far values may be apart; None: they must be equal."""

    def words(self, names: Sequence[str]) -> str:
        """As people write it.

        >>> Edge(0, "a", 1, "b").words(["r", "s"])
        'r.a = s.b'
        """
        sign = "=" if self.width is None else "≈"
        return f"{names[self.first]}.{self.first_column} {sign} {names[self.second]}.{self.second_column}"

    def column(self, side: int) -> str:
        """The column's name at one end."""
        return self.second_column if side else self.first_column

    def input(self, side: int) -> int:
        """The input at one end."""
        return self.second if side else self.first


@dataclass(frozen=True, slots=True)
class BandEnd:
    """In which form one end of a band is compared: whatever else the band says is not of this column alone."""

    factor: int
    in_doubles: bool
    biased: bool
    nothing: bool

    @classmethod
    def of(cls, form: BandForm, side: int) -> BandEnd:
        """One end of a band."""
        return cls(form.factors[side], form.in_doubles, form.biased, form.nothing)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of an input in the form in which edges compare it; edges that compare alike share one."""

    column: str
    form: KeyType | BandEnd


def input_names(inputs: object) -> tuple[str, ...]:
    """What several inputs are called, of which conditions speak by these names.

    >>> input_names({"orders": ..., "items": ...})
    ('orders', 'items')
    """
    if not isinstance(inputs, Mapping):
        raise SpecError(
            f"inputs must be a dict by name, such as {{'orders': orders, 'items': items}}, not of type "
            f"{type(inputs).__name__}; conditions speak of inputs by their names"
        )
    for name in inputs:
        if not isinstance(name, str) or not name:
            raise SpecError(f"inputs has the name {name!r}, and a name is a string such as 'orders'; rename that input")
    return tuple(inputs)


def parse_edges(on: ManyOn, names: Sequence[str]) -> tuple[Edge, ...]:
    """Edges from what people write.

    >>> parse_edges("r.a = s.b", ["r", "s"])
    (Edge(first=0, first_column='a', second=1, second_column='b', width=None),)
    """
    conditions = [on] if isinstance(on, str | Band) else on
    if (
        not isinstance(conditions, Sequence)
        or not conditions
        or not all(isinstance(each, str | Band) for each in conditions)
    ):
        raise SpecError(f"on={on!r} is not understood; write a list such as ['orders.id = items.order_id']")
    return tuple(_parse_edge(each, names) for each in conditions)


def _parse_edge(condition: str | Band, names: Sequence[str]) -> Edge:
    if isinstance(condition, Band):
        text, ends, width = f"{condition.left} = {condition.right}", [condition.left, condition.right], condition.width
    else:
        text, ends, width = condition, equated(condition), None
    if len(ends) != 2:
        raise SpecError(f"join condition {text!r} is not understood; write 'input.column = other.column'")
    (first, first_column), (second, second_column) = (_parse_end(end, text, names) for end in ends)
    if first == second:
        raise SpecError(f"join condition {text!r} is within one input; filter {names[first]!r} by it before the join")
    return Edge(first, first_column, second, second_column, width)


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


def parse_preserved(how: object, names: Sequence[str]) -> int | None:
    """The input whose rows come out in any case, from what people write; None: there is none.

    >>> parse_preserved({"orders": "left"}, ["items", "orders"]), parse_preserved("inner", ["r", "s"])
    (1, None)
    """
    if how is None or how == "inner":
        return None
    if not isinstance(how, Mapping):
        raise SpecError(f"how={how!r} does not say of which input; write how={{{names[0]!r}: 'left'}}")
    for name, kind in how.items():
        if name not in names:
            raise SpecError(f"how={how!r} names {name!r}, which is no input; the inputs are {', '.join(names)}")
        if kind not in ("left", "inner"):
            raise SpecError(f"how={how!r}: a join of several inputs can be 'left' or 'inner' for one, not {kind!r}")
    preserved = [name for name, kind in how.items() if kind == "left"]
    if len(preserved) > 1:
        raise SpecError(
            f"how={how!r} preserves {len(preserved)} inputs, and a join of several inputs preserves one; choose one of "
            f"them, or join two at a time with wm.join"
        )
    return names.index(preserved[0]) if preserved else None


@dataclass(frozen=True)
class MultiSpec:
    """A join of two or more inputs, with every question of names and types settled.

    A column keeps its name in the output if no other input has one of that name; else it is `input_column`. Columns of
    one name that must be equal come out once.

    >>> r, s = pa.schema({"a": pa.int64(), "v": pa.string()}), pa.schema({"a": pa.int32(), "v": pa.bool_()})
    >>> MultiSpec(("r", "s"), (r, s), parse_edges("r.a = s.a", ["r", "s"])).schema.names
    ['a', 'r_v', 's_v']
    """

    names: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]
    edges: tuple[Edge, ...]
    output: Output = Output.ROWS
    window: ManyWindows | None = None
    """Which rows can meet at all; None: all."""
    preserved: int | None = None
    """The input whose rows come out in any case, with NULLs beside those that are in no result; None: there is none."""

    def __post_init__(self) -> None:
        count = len(self.names)
        if not 2 <= count <= MOST_INPUTS:
            raise SpecError(f"a join of several inputs takes 2 to {MOST_INPUTS} of them, not {count}")
        if len(set(self.names)) < count or not all(self.names):
            raise SpecError(f"every input needs a name of its own, and they are called {', '.join(self.names)}")
        if len(self.schemas) != count:
            raise SpecError(f"there are {count} inputs and {len(self.schemas)} schemas")
        for edge in self.edges:
            if self._form(edge) is None:
                self._refuse_types(edge)
        self._refuse_cross_products()
        _ = self.schema, self.window_units

    @classmethod
    def of(
        cls,
        schemas: Mapping[str, pa.Schema],
        on: ManyOn,
        output: Output = Output.ROWS,
        window: ManyWindows | None = None,
        how: object = None,
    ) -> MultiSpec:
        """The join of inputs by name."""
        names = input_names(schemas)
        edges = parse_edges(on, names)
        return cls(names, tuple(schemas.values()), edges, output, window, parse_preserved(how, names))

    def _form(self, edge: Edge) -> KeyType | BandForm | None:
        types = [self.key_field(edge.input(side), edge.column(side)).type for side in (0, 1)]
        if edge.width is None:
            return common_key_type(*types)
        return common_band_form(types[0], types[1], edge.width)

    def _refuse_types(self, edge: Edge) -> None:
        types = [self.key_field(edge.input(side), edge.column(side)).type for side in (0, 1)]
        first, second = (f"{self.names[edge.input(side)]}.{edge.column(side)}" for side in (0, 1))
        if edge.width is None:
            raise SpecError(
                f"{first} ({told_type(types[0])}) cannot be compared with {second} ({told_type(types[1])}); "
                f"{way_out(types[0], types[1])}"
            )
        raise SpecError(
            f"{first} ({types[0]}) cannot be within {width_in_words(edge.width)} of {second} ({types[1]}); "
            f"a band takes numbers and a number, or dates, timestamps, times or durations and a timedelta"
        )

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
    def forms(self) -> tuple[KeyType | BandForm, ...]:
        """In which form each edge compares its columns."""
        found = []
        for edge in self.edges:
            form = self._form(edge)
            assert form is not None, "checked when the spec was made"
            found.append(form)
        return tuple(found)

    @cached_property
    def window_units(self) -> Units | None:
        """The windows in units of the time columns; None if there are none."""
        return None if self.window is None else self.window.units(self.time_types)

    @property
    def tick(self) -> int | None:
        """Nanoseconds of a unit of time; None if there are no windows, or the time columns hold integers."""
        return None if self.window_units is None else self.window_units.tick

    @property
    def time_types(self) -> list[pa.DataType]:
        """The types of the columns that tell the time; none if windows count rows."""
        if self.window is None or self.window.time is None:
            return []
        return [self.key_field(number, column).type for number, column in enumerate(self.window.time)]

    @property
    def has_bands(self) -> bool:
        """Whether some edges ask for values that are only close."""
        return any(edge.width is not None for edge in self.edges)

    @cached_property
    def attributes(self) -> tuple[tuple[Attribute, ...], ...]:
        """What each input is joined on: its columns in the forms that edges compare."""
        found: list[list[Attribute]] = [[] for _ in self.names]
        for number, edge in enumerate(self.edges):
            for side in (0, 1):
                attribute = self._attribute(number, side)
                if attribute not in found[edge.input(side)]:
                    found[edge.input(side)].append(attribute)
        return tuple(tuple(each) for each in found)

    def _attribute(self, edge: int, side: int) -> Attribute:
        form = self.forms[edge]
        return Attribute(self.edges[edge].column(side), BandEnd.of(form, side) if isinstance(form, BandForm) else form)

    @cached_property
    def _attribute_numbers(self) -> tuple[tuple[int, int], ...]:
        """By edge, for both ends."""
        return tuple(
            (
                self.attributes[edge.first].index(self._attribute(number, 0)),
                self.attributes[edge.second].index(self._attribute(number, 1)),
            )
            for number, edge in enumerate(self.edges)
        )

    def attribute_of(self, edge: int, side: int) -> int:
        """The number of an edge's attribute among those of the input at one end."""
        return self._attribute_numbers[edge][side]

    @property
    def on_one_attribute(self) -> bool:
        """Whether all inputs are joined on one and the same value, so that equal hashes are equal partitions."""
        return not self.has_bands and all(len(each) == 1 for each in self.attributes) and len(set(self.forms)) == 1

    @cached_property
    def kept(self) -> tuple[tuple[int, ...], ...]:
        """Which columns of each input reach the output: all, but equal columns of one name only once."""
        first: dict[tuple[int, str], tuple[int, str]] = {}

        def root(end: tuple[int, str]) -> tuple[int, str]:
            while first.get(end, end) != end:
                end = first[end]
            return end

        for edge in self.edges:
            if edge.first_column == edge.second_column and edge.width is None:
                ends = root((edge.first, edge.first_column)), root((edge.second, edge.second_column))
                low, high = sorted(ends, key=lambda end: (end[0] != self.preserved, end))
                first[high] = low
        return tuple(
            tuple(i for i, name in enumerate(schema.names) if root((number, name)) == (number, name))
            for number, schema in enumerate(self.schemas)
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's schema; with row numbers asked for, a column for each input."""
        if self.output is Output.PAIRS:
            optional = [self._is_optional(number) for number in range(len(self.names))]
            return pa.schema(
                [pa.field(name, pa.int64(), nullable) for name, nullable in zip(self.names, optional, strict=True)]
            )
        fields = [
            (number, field.with_nullable(True) if self._is_optional(number) else field)
            for number, kept in enumerate(self.kept)
            for field in (self.schemas[number].field(i) for i in kept)
        ]
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

    def _is_optional(self, number: int) -> bool:
        """Whether a result may lack a row of this input."""
        return self.preserved not in (None, number)

    @cached_property
    def fingerprint(self) -> str:
        """Stable across processes; equal for equal joins."""
        parts = [*self.names, *(schema.to_string() for schema in self.schemas), repr(self.edges), self.output.value]
        if self.window is not None:
            # What was added later and is not asked for leaves a join the one that it was.
            parts.append(repr(self.window).replace(", idle=None)", ")"))
        if self.preserved is not None:
            parts.append(f"preserves {self.preserved}")
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:16]
