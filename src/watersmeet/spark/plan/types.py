"""Spark's types as the Arrow types in which tasks see them, and the other way round.

Written out here, and not asked of Spark, so that the same columns always have the same types: whatever the session's
time zone or its choice of wide offsets, a join that is started again finds the state it left.

And Arrow's types as the Spark types that hold every value of them, for what is read from files. Where Spark has no such
type, the next wider one is taken: unsigned integers become signed ones, half floats floats. Nanoseconds become
microseconds; a value that would lose digits by it is an error when it is read.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import types as st

from watersmeet.core.errors import SourceError, SpecError

_TO_ARROW: dict[type[st.DataType], pa.DataType] = {
    st.NullType: pa.null(),
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: pa.timestamp("us", "UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
    st.DayTimeIntervalType: pa.duration("us"),
    st.StringType: pa.string(),
    st.CharType: pa.string(),
    st.VarcharType: pa.string(),
}
if hasattr(st, "TimeType"):  # from Spark 4.1 on
    _TO_ARROW[st.TimeType] = pa.time64("ns")


def arrow_schema(schema: st.StructType, name: str) -> pa.Schema:
    """The Arrow schema of a DataFrame's rows; `name` is what errors call the DataFrame.

    >>> arrow_schema(st.StructType().add("id", "long").add("tags", st.ArrayType(st.StringType(), False)), "left").names
    ['id', 'tags']
    """
    return pa.schema([pa.field(field.name, _arrow_type(field.dataType, field.name, name)) for field in schema.fields])


def _arrow_type(found: st.DataType, column: str, name: str) -> pa.DataType:
    if isinstance(found, st.DecimalType):
        return pa.decimal128(found.precision, found.scale)
    if isinstance(found, st.ArrayType):
        return pa.list_(_field("element", found.elementType, found.containsNull, column, name))
    if isinstance(found, st.MapType):
        key = _field("key", found.keyType, False, column, name)
        return pa.map_(key, _field("value", found.valueType, found.valueContainsNull, column, name))
    if isinstance(found, st.StructType):
        return pa.struct([_field(each.name, each.dataType, each.nullable, column, name) for each in found.fields])
    plain = _TO_ARROW.get(type(found))
    if plain is None:
        raise SpecError(
            f"column {column!r} of {name} is of type {found.simpleString()}, which cannot be handed to a join task; "
            f"leave it out, or cast it to a type that Arrow has"
        )
    return plain


def _field(child: str, found: st.DataType, nullable: bool, column: str, name: str) -> pa.Field:
    return pa.field(child, _arrow_type(found, column, name), nullable=nullable)


_SPARK_DECIMAL_DIGITS = 38

_TO_SPARK: dict[pa.DataType, st.DataType] = {
    pa.null(): st.NullType(),
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.string_view(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.binary_view(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
}

_KINDS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], st.DataType]]] = [
    (pa.types.is_dictionary, lambda found: _spark_type(found.value_type)),
    (pa.types.is_fixed_size_binary, lambda found: st.BinaryType()),
    (pa.types.is_timestamp, lambda found: st.TimestampNTZType() if found.tz is None else st.TimestampType()),
    (pa.types.is_duration, lambda found: st.DayTimeIntervalType()),
    (pa.types.is_time, lambda found: st.TimeType()),
    (pa.types.is_decimal, lambda found: _decimal(found)),
    (pa.types.is_map, lambda found: st.MapType(_spark_type(found.key_type), _spark_type(found.item_type))),
    (pa.types.is_list, lambda found: st.ArrayType(_spark_type(found.value_type))),
    (pa.types.is_large_list, lambda found: st.ArrayType(_spark_type(found.value_type))),
    (pa.types.is_fixed_size_list, lambda found: st.ArrayType(_spark_type(found.value_type))),
    (
        pa.types.is_struct,
        lambda found: st.StructType([st.StructField(each.name, _spark_type(each.type)) for each in found]),
    ),
]


class _NoSparkType(Exception):
    """Spark has nothing for this type, or for a part of it."""


def spark_schema(schema: pa.Schema, name: str) -> st.StructType:
    """The Spark schema for rows of this Arrow schema; `name` is what errors call their source.

    >>> columns = pa.schema({"id": pa.uint32(), "tags": pa.list_(pa.large_string())})
    >>> spark_schema(columns, "orders").simpleString()
    'struct<id:bigint,tags:array<string>>'
    """
    fields = []
    for field in schema:
        try:
            fields.append(st.StructField(field.name, _spark_type(field.type)))
        except _NoSparkType:
            raise SourceError(
                f"column {field.name!r} of {name} is of type {field.type}, which Spark does not have; leave it out"
            ) from None
    return st.StructType(fields)


def _spark_type(found: pa.DataType) -> st.DataType:
    plain = _TO_SPARK.get(found)
    if plain is not None:
        return plain
    for is_kind, make in _KINDS:
        if is_kind(found):
            return make(found)
    raise _NoSparkType


def _decimal(found: pa.DataType) -> st.DataType:
    # A negative scale stands for zeros that Spark writes out.
    precision, scale = found.precision - min(0, found.scale), max(0, found.scale)
    if precision > _SPARK_DECIMAL_DIGITS or scale > precision:
        raise _NoSparkType
    return st.DecimalType(precision, scale)
