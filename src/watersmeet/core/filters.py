"""Conditions on the rows of one input, as people write them: `"amount > 100 and country in ('DE', 'AT')"`.

```
condition   condition or condition · condition and condition · not condition · ( condition )
            column < value · <= · > · >= · = · != · column in (value, ...) · column not in (value, ...)
            column is null · column is not null · and a column in the place of a value
value       12 · -0.5 · 'text' ('' for a quote in it) · true · false; dates and timestamps as 'text'
column      a word, or "anything in quotes"
```

They mean what they mean in SQL: a comparison with NULL is neither true nor false, and a row passes if all in all the
condition is true. Of floats NaN equals NaN and is above all numbers, as Spark and DuckDB have it, and -0.0 equals 0.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.bands import tick_nanoseconds
from watersmeet.core.errors import SpecError
from watersmeet.core.keys import common_key_type, plain_type, type_of_both, without_view

Value: TypeAlias = "int | float | Decimal | str | bool"

COMPARISONS = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"!=": "=", "<=": ">", ">=": "<"}
"""Of what always has an order: one holds where the other does not."""
_DEEPEST = 100
"""So deep may conditions stand in each other."""
_LONGEST = 400
"""Numbers of more digits are infinite to a double."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name, where a value might stand."""

    name: str


@dataclass(frozen=True, slots=True)
class Compare:
    """A column compared with a value, or with another column."""

    column: str
    operator: str
    value: Any
    """What was written, or once the column's type is known, a scalar of that type."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """A column whose value is one of several."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column without a value."""

    column: str


@dataclass(frozen=True, slots=True)
class Known:
    """True or false, whatever the value, and NULL where there is none: a comparison that all values answer alike."""

    column: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Not:
    """What does not hold."""

    condition: Filter


@dataclass(frozen=True, slots=True)
class Both:
    """What holds together."""

    conditions: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Of which one holds, or more."""

    conditions: tuple[Filter, ...]


Filter: TypeAlias = "Compare | OneOf | IsNull | Known | Not | Both | Either"
Atom: TypeAlias = "Compare | OneOf | IsNull | Known"

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) | '(?P<text>(?:[^']|'')*)' | "(?P<quoted>[^"]+)"
    | (?P<word>[^\W\d][\w.$]*) | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)


def parse_filter(text: str, what: str = "the filter") -> Filter:
    """A condition from what people write.

    >>> parse_filter("amount > 100"), parse_filter("not country in ('DE', 'AT')").condition.values
    (Compare(column='amount', operator='>', value=100), ('DE', 'AT'))
    >>> parse_filter("amount >", "left of 'fast'")
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: left of 'fast', 'amount >', breaks off; a value or a column should follow
    """
    if not isinstance(text, str) or not text.strip():
        raise SpecError(f"{what} must be a condition such as 'amount > 100', not {text!r}")
    return _Parser(text, what).parse()


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, text: str, what: str) -> None:
        self._told = f"{what}, {text!r},"
        self._tokens = list(self._read(text))
        self._at = 0
        self._depth = 0

    def _read(self, text: str) -> Iterator[tuple[str, str]]:
        place, end = 0, len(text.rstrip())
        while place < end:
            match = _TOKEN.match(text, place)
            if match is None:
                raise SpecError(f"{self._told} is not understood from {text[place:].strip()[:20]!r} on")
            place = match.end()
            kind = match.lastgroup
            assert kind is not None
            found = match[kind]
            if kind == "word" and found.lower() in ("and", "or", "not", "in", "is", "null", "true", "false"):
                yield "sign", found.lower()
            else:
                yield kind, {"<>": "!=", "==": "="}.get(found, found) if kind == "sign" else found

    def parse(self) -> Filter:
        """The whole of it."""
        found = self._either()
        if self._at < len(self._tokens):
            raise SpecError(f"{self._told} should end before {self._tokens[self._at][1]!r}, or go on with and, or")
        return found

    def _takes(self, *signs: str) -> bool:
        """Whether these signs are next; then they are read."""
        if self._tokens[self._at : self._at + len(signs)] == [("sign", sign) for sign in signs]:
            self._at += len(signs)
            return True
        return False

    def _need(self, sign: str) -> None:
        if not self._takes(sign):
            raise SpecError(f"{self._told} lacks a {sign!r}")

    def _either(self) -> Filter:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise SpecError(f"{self._told} has more than {_DEEPEST} parentheses in each other; write it flatter")
        found = [self._both()]
        while self._takes("or"):
            found.append(self._both())
        self._depth -= 1
        return found[0] if len(found) == 1 else Either(tuple(found))

    def _both(self) -> Filter:
        found = [self._single()]
        while self._takes("and"):
            found.append(self._single())
        return found[0] if len(found) == 1 else Both(tuple(found))

    def _single(self) -> Filter:
        negated = False
        while self._takes("not"):
            negated = not negated
        if self._takes("("):
            found = self._either()
            self._need(")")
        else:
            found = self._comparison()
        return Not(found) if negated else found

    def _comparison(self) -> Filter:
        first = self._operand()
        if isinstance(first, Column):
            if self._takes("is", "not", "null"):
                return Not(IsNull(first.name))
            if self._takes("is", "null"):
                return IsNull(first.name)
            negated = self._takes("not", "in")
            if negated or self._takes("in"):
                found = OneOf(first.name, self._values())
                return Not(found) if negated else found
        operator = self._next("a comparison such as = or <")
        if operator[0] != "sign" or operator[1] not in COMPARISONS:
            raise SpecError(f"{self._told} has {operator[1]!r} where a comparison such as = or < should be")
        second = self._operand()
        if isinstance(first, Column):
            return Compare(first.name, operator[1], second)
        if isinstance(second, Column):
            return Compare(second.name, _MIRRORED[operator[1]], first)
        raise SpecError(f"{self._told} compares two values, and no column")

    def _values(self) -> tuple[Value, ...]:
        self._need("(")
        found = [self._operand()]
        while self._takes(","):
            found.append(self._operand())
        self._need(")")
        if any(isinstance(value, Column) for value in found):
            raise SpecError(f"{self._told} has a column among the values of in; write column = column")
        return tuple(value for value in found if not isinstance(value, Column))

    def _operand(self) -> Value | Column:
        kind, found = self._next("a value or a column")
        if kind == "number":
            return _number(found)
        if kind == "text":
            return found.replace("''", "'")
        if kind in ("word", "quoted"):
            return Column(found)
        if found in ("true", "false"):
            return found == "true"
        if found == "null":
            raise SpecError(f"{self._told} compares with null, which nothing equals; write is null, or is not null")
        raise SpecError(f"{self._told} has {found!r} where a value or a column should be")

    def _next(self, wanted: str) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise SpecError(f"{self._told} breaks off; {wanted} should follow")
        self._at += 1
        return self._tokens[self._at - 1]


def _number(text: str) -> int | float | Decimal:
    """A number from words; one that a double would round as the decimal that it is.

    >>> _number("12"), _number("0.5"), _number("0.30000000000000000001"), _number("9" * 5000)
    (12, 0.5, Decimal('0.30000000000000000001'), inf)
    """
    rounded = float(text)
    if len(text) > _LONGEST:  # no column has so many digits, and Python reads no more than some thousands
        return rounded
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return rounded if "e" in text.lower() or Decimal(repr(rounded)) == Decimal(text) else Decimal(text)


def atoms(condition: Filter) -> Iterator[Atom]:
    """What a condition is made of, from left to right."""
    if isinstance(condition, Not):
        yield from atoms(condition.condition)
    elif isinstance(condition, Both | Either):
        for each in condition.conditions:
            yield from atoms(each)
    else:
        yield condition


def bind(condition: Filter, schema: pa.Schema, what: str, name: str) -> Filter:
    """A condition whose values have the types of their columns; `what` and `name` say whose, and of which input."""
    if isinstance(condition, Not):
        return Not(bind(condition.condition, schema, what, name))
    if isinstance(condition, Both | Either):
        return replace(condition, conditions=tuple(bind(each, schema, what, name) for each in condition.conditions))
    type_ = _type_of(condition.column, schema, what, name)
    if isinstance(condition, OneOf):
        found = [_bound(Compare(condition.column, "=", value), type_, what) for value in condition.values]
        if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
            return Either(tuple(found))  # a value may be finer than the column's type, and then equals none of its own
        same = tuple(each.value for each in found if isinstance(each, Compare))
        return OneOf(condition.column, same) if same else Known(condition.column, False)
    if isinstance(condition, Compare) and isinstance(condition.value, Column):
        other = _type_of(condition.value.name, schema, what, name)
        told = f"{what} cannot compare column {condition.column!r} ({type_}) with {condition.value.name!r} ({other})"
        _try(condition.operator, pa.nulls(0, type_), pa.nulls(0, other), f"{told}; cast one of them first")
        return condition
    return _bound(condition, type_, what) if isinstance(condition, Compare) else condition


def _type_of(column: str, schema: pa.Schema, what: str, name: str) -> pa.DataType:
    found = schema.get_all_field_indices(column)
    if len(found) != 1:
        often = "which is not in" if not found else f"which is {len(found)} times in"
        raise SpecError(f"{what} asks for column {column!r}, {often} {name}; it has {', '.join(schema.names)}")
    return _compared_as(schema.field(found[0]).type)


def _try(operator: str, left: Any, right: Any, otherwise: str) -> None:
    try:
        _compared(operator, left, right)
    except (pa.ArrowException, TypeError):
        raise SpecError(otherwise) from None


def _bound(compare: Compare, type_: pa.DataType, what: str) -> Compare | Known:
    """A comparison with a scalar of a type that can be compared with the column's."""
    value = compare.value
    told = f"{what} compares column {compare.column!r} ({type_}) with {value!r}; "
    if pa.types.is_boolean(type_) != isinstance(value, bool):
        raise SpecError(f"{told}true and false go with columns of booleans")
    numeric = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        if not numeric:
            raise SpecError(f"{told}write the value as 'text'")
        if not pa.types.is_floating(type_):
            return _exact(compare, type_)
        scalar = pa.scalar(float(value))
    elif isinstance(value, str):
        if numeric:
            raise SpecError(f"{told}write the number without quotes")
        scalar = _read(value, type_, told)
    else:
        scalar = pa.scalar(value)
    _try(compare.operator, pa.nulls(0, type_), scalar, f"{told}values of this type cannot be compared")
    return replace(compare, value=scalar)


def _read(text: str, type_: pa.DataType, told: str) -> pa.Scalar:
    """A value from words: strings as they are, and times as they are written; without a zone, in UTC."""
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pa.scalar(text, type_)
    try:
        if pa.types.is_timestamp(type_) and type_.tz is not None:
            try:
                return pa.scalar(text).cast(type_)
            except pa.ArrowException:
                return pc.assume_timezone(pa.scalar(text).cast(pa.timestamp(type_.unit)), "UTC").cast(type_)
        return pa.scalar(text).cast(type_)
    except (pa.ArrowException, TypeError):
        raise SpecError(f"{told}which is no value of this type") from None


def _exact(compare: Compare, type_: pa.DataType) -> Compare | Known:
    """A comparison of whole numbers or decimals with any number, as one with a number that the column can have."""
    value, operator = compare.value, compare.operator
    if not math.isfinite(value):
        return _beyond(compare, value > 0)  # NaN cannot be written
    scale = type_.scale if pa.types.is_decimal(type_) else 0
    units = Fraction(str(value)) * Fraction(10) ** scale
    floor = math.floor(units)
    if units != floor:
        if operator in ("=", "!="):
            return Known(compare.column, operator == "!=")
        operator = "<=" if operator in ("<", "<=") else ">"
    if pa.types.is_decimal(type_):
        most = 10**type_.precision - 1
        least = -most
    else:
        bits, signed = type_.bit_width, pa.types.is_signed_integer(type_)
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= floor <= most:
        return _beyond(compare, floor > most)
    return Compare(compare.column, operator, pa.scalar(Decimal(f"{floor}e{-scale}") if scale else floor, type_))


def _beyond(compare: Compare, above: bool) -> Known:
    """A comparison with what is above all values that the column can have, or below all."""
    operator = compare.operator
    return Known(compare.column, operator == "!=" or (operator in ("<", "<=")) == above and operator != "=")


def values_of(condition: Atom) -> Sequence[Any]:
    """The scalars that an atom compares its column with."""
    if isinstance(condition, OneOf):
        return condition.values
    return [condition.value] if isinstance(condition, Compare) and not isinstance(condition.value, Column) else []


def holds(condition: Filter, batch: pa.RecordBatch) -> pa.Array:
    """Whether a bound condition holds of each row: true, false, or NULL if a value that it needs is.

    >>> batch = pa.record_batch({"a": [1, None, 3], "b": ["x", "y", None]})
    >>> holds(bind(parse_filter("a >= 2.5 or b = 'x'"), batch.schema, "it", "left"), batch).to_pylist()
    [True, None, True]
    """
    if isinstance(condition, Not):
        return pc.invert(holds(condition.condition, batch))
    if isinstance(condition, Both | Either):
        join = pc.and_kleene if isinstance(condition, Both) else pc.or_kleene
        found = holds(condition.conditions[0], batch)
        for each in condition.conditions[1:]:
            found = join(found, holds(each, batch))
        return found
    column = plain(batch.column(condition.column))
    if isinstance(condition, IsNull):
        return pc.is_null(column)
    if isinstance(condition, Known):
        return pc.if_else(pc.is_valid(column), condition.holds, pa.scalar(None, pa.bool_()))
    if isinstance(condition, OneOf):
        among = pc.is_in(column, value_set=pa.array(condition.values, column.type))
        return pc.if_else(pc.is_valid(column), among, pa.scalar(None, pa.bool_()))
    other = condition.value
    if isinstance(other, Column):
        other = plain(batch.column(other.name))
    return _compared(condition.operator, column, other)


def _compared(operator: str, left: Any, right: Any) -> Any:
    """Values compared as SQL does: true, false, or NULL.

    Arrow compares floats as IEEE 754 has it, where NaN is in no order with anything. So of floats only what NaN cannot
    spoil is asked of Arrow, equality and the strict orders, and the other three are what those leave.
    """
    left, right = _in_one_type(left, right)
    if not (pa.types.is_floating(left.type) or pa.types.is_floating(right.type)):
        return COMPARISONS[operator](left, right)
    if operator in _OPPOSITE:
        return pc.invert(_compared(_OPPOSITE[operator], left, right))
    found = COMPARISONS[operator](left, right)
    if operator == "=":
        return pc.or_(found, pc.and_(_is_nan(left), _is_nan(right)))
    above, below = (left, right) if operator == ">" else (right, left)
    return pc.or_(found, pc.and_not(_is_nan(above), _is_nan(below)))


def _in_one_type(left: Any, right: Any) -> tuple[Any, Any]:
    """Values of two types in one that has room for both, where there is one.

    Arrow would take the type of one of them, and fail on the first value that it has no room for.

    >>> [each.type for each in _in_one_type(pa.array([1]), pa.array([0.5], pa.float32()))]
    [DataType(double), DataType(double)]
    """
    types = left.type, right.type
    if all(map(pa.types.is_temporal, types)):
        differ = types[0] != types[1] and common_key_type(*types) is not None
        return (_ticks(left), _ticks(right)) if differ else (left, right)
    if pa.types.is_float16(types[0]) or pa.types.is_float16(types[1]):
        types = tuple(pa.float32() if pa.types.is_float16(each) else each for each in types)
    both = type_of_both(*types)
    if both is None or pa.types.is_nested(both):
        return left, right
    if types[0] != types[1] and pa.types.is_floating(both):
        both = pa.float64()
    # An integer beside a float is the nearest double, as in SQL, though it may be rounded.
    left, right = (each if each.type == both else each.cast(both, safe=False) for each in (left, right))
    return left, right


def _ticks(times: Any) -> Any:
    """Times as whole nanoseconds, of which 64 bits have too few."""
    words = pa.int32() if times.type.bit_width == 32 else pa.int64()
    values = times.cast(words) if isinstance(times, pa.Scalar) else times.view(words)
    return pc.multiply(values.cast(pa.decimal128(19)), pa.scalar(Decimal(tick_nanoseconds(times.type))))


def _is_nan(values: Any) -> Any:
    return pc.is_nan(values) if pa.types.is_floating(values.type) else pa.scalar(False)


def plain(column: pa.Array) -> pa.Array:
    """A column's values, without a dictionary."""
    type_ = _compared_as(column.type)
    return column if column.type == type_ else column.cast(type_)


def _compared_as(type_: pa.DataType) -> pa.DataType:
    """The type that a column's values are compared in: not encoded, and no view."""
    return without_view(plain_type(type_)[0])
