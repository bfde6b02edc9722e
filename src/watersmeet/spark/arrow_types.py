"""Spark's types as the Arrow types in which tasks see them.

Written out here, and not asked of Spark, so that the same columns always have the same types: whatever the session's
time zone or its choice of wide offsets, a join that is started again finds the state it left.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError

_PLAIN: dict[type[st.DataType], pa.DataType] = {
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
    _PLAIN[st.TimeType] = pa.time64("ns")


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
    plain = _PLAIN.get(type(found))
    if plain is None:
        raise SpecError(
            f"column {column!r} of {name} is of type {found.simpleString()}, which cannot be handed to a join task; "
            f"leave it out, or cast it to a type that Arrow has"
        )
    return plain


def _field(child: str, found: st.DataType, nullable: bool, column: str, name: str) -> pa.Field:
    return pa.field(child, _arrow_type(found, column, name), nullable=nullable)
