"""Bringing a batch to a schema: by name, casting only where no value can change its meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import pyarrow as pa


class Mismatch(Exception):
    """One column does not fit; a source turns this into a sentence that names itself and the batch."""

    def __init__(self, said: str, untyped: bool = False) -> None:
        super().__init__(said)
        self.untyped = untyped
        """The column had nothing but nulls when its type was settled."""

    @classmethod
    def of_types(cls, column: str, found: object, expected: pa.DataType) -> Mismatch:
        """A column has something of another type than the one expected."""
        if pa.types.is_null(expected):
            return cls(
                f"column {column!r} has {found}, but began with nothing but nulls, so its type is not known", True
            )
        return cls(f"column {column!r} has {found}, where {expected} was expected")


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with exactly this schema, without a copy where the types already agree.

    >>> batch = pa.record_batch({"b": ["x"], "a": pa.array([1], pa.int32())})
    >>> conform(batch, pa.schema({"a": pa.int64(), "b": pa.string()})).schema.types
    [DataType(int64), DataType(string)]
    """
    if batch.schema.equals(schema, check_metadata=True) and all(field.nullable for field in schema):
        return batch
    order = positions(batch.schema, schema)
    columns = [fit(batch.column(at), field) for at, field in zip(order, schema, strict=True)]
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def positions(found: pa.Schema, expected: pa.Schema) -> list[int]:
    """Where each expected column lies in what was found; columns may come in another order, but none more or less."""
    if found.names == expected.names:
        return list(range(len(expected)))
    for field in found:
        if field.name not in expected.names:
            raise Mismatch(f"column {field.name!r} is not expected; the columns are {', '.join(expected.names)}")
    for field in expected:
        if field.name not in found.names:
            raise Mismatch(f"column {field.name!r} ({field.type}) is missing; there are {', '.join(found.names)}")
    for name in expected.names:
        counts = [schema.names.count(name) for schema in (found, expected)]
        if counts[0] != counts[1]:
            raise Mismatch(f"column {name!r} is there {counts[0]} times, where {counts[1]} were expected")
    where = {name: iter(found.get_all_field_indices(name)) for name in found.names}
    return [next(where[name]) for name in expected.names]


def without_order(schema: pa.Schema) -> pa.Schema:
    """The same columns, categories without the order of their dictionary: each batch of results has one of its own.

    >>> ordered = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    >>> without_order(pa.schema({"grade": ordered})).types[0].ordered
    False
    """
    for at, field in enumerate(schema):
        if pa.types.is_dictionary(field.type) and field.type.ordered:
            schema = schema.set(at, field.with_type(pa.dictionary(field.type.index_type, field.type.value_type)))
    return schema


def fit(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column cast to a field's type, or a `Mismatch` that says why it cannot be."""
    if pa.types.is_dictionary(column.type) and column.type.ordered:
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary)
    if column.type != field.type:
        if not castable(column.type, field.type):
            raise Mismatch.of_types(field.name, column.type, field.type)
        try:
            column = column.cast(field.type, safe=True)
        except (pa.ArrowException, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise Mismatch(
                f"column {field.name!r} has {column.type} that does not fit into {field.type}: {reason}"
            ) from error
    if not field.nullable and column.null_count:
        raise Mismatch(f"column {field.name!r} has a null, where none is allowed")
    return column


def castable(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a value of one type can mean the same in the other: a number as a number, never text as a number.

    >>> castable(pa.int32(), pa.float64()), castable(pa.string(), pa.int64()), castable(pa.null(), pa.int64())
    (True, False, True)
    """
    if found == expected or pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return castable(found.value_type, expected)
    if pa.types.is_dictionary(expected):
        return castable(found, expected.value_type)
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(expected):
        return (found.tz is None) == (expected.tz is None)  # a cast between the two would invent a zone
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        fields = {field.name: field.type for field in expected}  # a field too many would be lost without a word
        return all(field.name in fields and castable(field.type, fields[field.name]) for field in found)
    if pa.types.is_map(found) and pa.types.is_map(expected):
        return castable(found.key_type, expected.key_type) and castable(found.item_type, expected.item_type)
    if _is_list(found) and _is_list(expected):
        return castable(found.value_type, expected.value_type)
    return any(family(found) and family(expected) for family in _FAMILIES)


def _any_of(*tests: Callable[[Any], bool]) -> Callable[[pa.DataType], bool]:
    return lambda type_: any(test(type_) for test in tests)


_is_list = _any_of(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_FAMILIES: Sequence[Callable[[pa.DataType], bool]] = (
    _any_of(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    _any_of(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    _any_of(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
)

_WITHOUT_INFERENCE = (
    pa.types.is_decimal,
    pa.types.is_float16,
    pa.types.is_map,
    pa.types.is_dictionary,
    pa.types.is_union,
    lambda type_: isinstance(type_, pa.BaseExtensionType),
)


def inferred(values: Sequence[object]) -> pa.Array:
    """Python values as a column of the type that they have in common.

    PyArrow looks for one of whole numbers no further than int64.

    >>> inferred([1, None]).type, inferred([1, 2**63]).type
    (DataType(int64), DataType(uint64))
    """
    try:
        return pa.array(values)
    except OverflowError:
        if not set(map(type, values)) <= {int, NoneType}:  # a fraction among them would be cut
            raise
        return pa.array(values, pa.uint64())


def from_values(values: Sequence[object], field: pa.Field) -> pa.Array:
    """Python values as a column of a field's type.

    Asked for integers, PyArrow cuts 5.5 to 5, and among dates it takes a number or a time of day for a date, without a
    word. So the values' own type is found first and cast safely, save for types that cannot be found from values.
    """
    try:
        if any(test(field.type) for test in _WITHOUT_INFERENCE):
            column = pa.array(values, type=field.type)
        else:
            column = inferred(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Mismatch.of_types(field.name, "a value that does not fit", field.type) from error
    check_kinds(values, field)
    return fit(column, field)


def check_kinds(values: Sequence[object], field: pa.Field) -> None:
    """Values of several Python types must each fit by themselves: a date and a datetime have no type in common."""
    samples = dict(zip(map(type, values), values, strict=True))
    samples.pop(NoneType, None)
    if len(samples) > 1 and pa.types.is_temporal(field.type):
        for value in samples.values():
            fit(pa.array([value]), field)
