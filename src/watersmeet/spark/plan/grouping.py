"""To which group of keys a row belongs: rows whose keys are equal must meet, whatever their types.

Spark hashes a value by its type: 1 as int, long, decimal and double are four hashes. So keys are first brought to one
type per condition. It may round, for equal values round alike, and a group that holds more than equal values is fine.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError

_BINARY_COLLATION = "UTF8_BINARY"


def group_of(keys: Sequence[Column], groups: int) -> Column:
    """The group of rows with these keys, each brought into its common type."""
    return fn.pmod(fn.hash(*keys), fn.lit(groups))


def grouping_key(key: Column, types: Sequence[st.DataType]) -> Column:
    """A key in the type in which it is hashed, so that it meets equal keys of inputs that have it in these types."""
    if any(isinstance(found, st.NullType) for found in types):
        return fn.lit(0)  # a NULL equals nothing
    alike = all(found == types[0] for found in types)
    if all(_is_number(found) for found in types):
        if all(isinstance(found, st.IntegralType) for found in types):
            return key.cast("long")
        if alike and isinstance(types[0], st.DecimalType):
            return key
        double = key.cast("double")
        # One zero and one NaN.
        return (
            fn.when(double == fn.lit(0.0), fn.lit(0.0)).when(fn.isnan(double), fn.lit(float("nan"))).otherwise(double)
        )
    if {type(found) for found in types} == {st.DateType, st.TimestampNTZType}:
        return key.cast("timestamp_ntz")
    return key


def check_collation(found: st.DataType, column: str, name: str) -> None:
    """Refuse keys under a collation: our strings are equal when their bytes are."""
    if isinstance(found, st.StringType) and getattr(found, "collation", _BINARY_COLLATION) != _BINARY_COLLATION:
        raise SpecError(
            f"join column {column!r} of {name} is a {found.simpleString()}, but keys are compared by their bytes; "
            f"join on lower({column}) or on another column without a collation"
        )


def _is_number(found: st.DataType) -> bool:
    return isinstance(found, st.NumericType)


def hashed_to(groups: int) -> list[int]:
    """For each group the smallest number whose hash, as Spark takes it of an int, belongs to that group.

    >>> len(set(hashed_to(7))), hashed_to(1)
    (7, [0])
    """
    found: dict[int, int] = {}
    number = 0
    while len(found) < groups:
        found.setdefault(_spark_hash(number) % groups, number)
        number += 1
    return [found[group] for group in range(groups)]


def _spark_hash(number: int) -> int:
    """Spark's `hash` of one int: Murmur3 in 32 bits with seed 42, as a signed number.

    >>> _spark_hash(0), _spark_hash(1)
    (933211791, -559580957)
    """
    mask = 0xFFFFFFFF
    word = number * 0xCC9E2D51 & mask
    word = (word << 15 | word >> 17) & mask
    word = word * 0x1B873593 & mask
    state = 42 ^ word
    state = (state << 13 | state >> 19) & mask
    state = (state * 5 + 0xE6546B64) & mask
    state ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & mask
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
