"""In which common form two columns are compared.

Equality is Spark SQL's and DuckDB's: by value across types. Each pair of types has one form that both columns are
brought into, and two rows match exactly when their forms are the same bits.

======================================  ============================================================================
columns                                 common form
======================================  ============================================================================
integers, any widths                    a 64-bit word
decimals with decimals or integers      a word, or two or four, at the *smaller* scale
a float with any number                 a double; every NaN is one value, and so are both zeros
dates; a date with a naive timestamp    a day
timestamps, times of day, durations     ticks of the *coarser* unit; zoned only with zoned, naive only with naive
strings; binaries                       bytes; a string never equals a binary
booleans                                0 or 1
null                                    comparable with everything, equal to nothing
======================================  ============================================================================

Why the smaller scale and the coarser unit? A value that cannot be written there has no partner on the other side, which
has only such values: so nothing is ever multiplied, nothing overflows, and most keys fit a word. The same holds for a
value beyond the word's range: it simply matches nothing.

Dictionaries and run-end encoded columns are compared as their values, extension types as their storage,
and with none of another name or other parameters. Nested types, unions and intervals are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
from pyarrow import types

COARSENESS = {"ns": 0, "us": 1, "ms": 2, "s": 3}
"""How coarse a unit of time is; each is a thousand of the one before."""

WORD_BITS = 64
WORD_DIGITS = 18
"""Every decimal of so many digits fits a signed word."""


class KeyKind(Enum):
    """What the bits of a common form mean."""

    NOTHING = "nothing"
    BOOL = "bool"
    NUMBER = "number"
    FLOAT = "float"
    DAY = "day"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"
    TIME = "time"
    DURATION = "duration"
    STRING = "string"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class KeyType:
    """The common form of two columns.

    >>> common_key_type(pa.int32(), pa.uint8())
    KeyType(kind=<KeyKind.NUMBER: 'number'>, bits=64, scale=0, unsigned=False, unit='')
    """

    kind: KeyKind
    bits: int | None = WORD_BITS
    """How many bits a value takes: 64, 128 or 256, or None if that varies."""
    scale: int = 0
    """Of a number: its unit is 10 to the power of minus `scale`."""
    unsigned: bool = False
    """Of a number: words range from 0 to 2^64, not from -2^63 to 2^63."""
    unit: str = ""
    """Of a time: s, ms, us or ns."""

    @property
    def fits_word(self) -> bool:
        """Whether a 64-bit word says everything about a value."""
        return self.bits == WORD_BITS


def common_key_type(left: pa.DataType, right: pa.DataType) -> KeyType | None:
    """The form in which two columns are compared, or None if they cannot be.

    >>> common_key_type(pa.decimal128(38, 10), pa.decimal64(12, 2)).scale
    2
    >>> common_key_type(pa.string(), pa.int64()) is None
    True
    """
    told_alike = alike(left, right)
    (left, _), (right, _) = plain_type(left), plain_type(right)
    if types.is_null(left) or types.is_null(right):
        return KeyType(KeyKind.NOTHING)
    if not told_alike:
        return None
    if _is_number(left) and _is_number(right):
        return _common_number(left, right)
    if (types.is_date(left) and _is_naive_day(right)) or (types.is_date(right) and _is_naive_day(left)):
        return KeyType(KeyKind.DAY)
    kind = _kind(left)
    if kind is None or kind is not _kind(right):
        return None
    if kind in (KeyKind.STRING, KeyKind.BINARY):
        return KeyType(kind, bits=None)
    if kind is KeyKind.BOOL:
        return KeyType(kind)
    return KeyType(kind, unit=max(left.unit, right.unit, key=COARSENESS.__getitem__))


def type_of_both(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """A type that has room for the values of two that can be compared; None if there is none.

    >>> type_of_both(pa.int32(), pa.int64()), type_of_both(pa.int32(), pa.decimal128(7, 2))
    (DataType(int64), Decimal128Type(decimal128(12, 2)))
    >>> type_of_both(pa.date32(), pa.timestamp("us")), type_of_both(pa.dictionary(pa.int8(), pa.string()), pa.string())
    (TimestampType(timestamp[us]), DataType(string))
    """
    if left == right or types.is_null(right):
        return left
    if types.is_null(left):
        return right
    if types.is_dictionary(left) and types.is_dictionary(right):
        values = type_of_both(left.value_type, right.value_type)
        index = max(left.index_type, right.index_type, key=lambda each: each.bit_width)
        return None if values is None else pa.dictionary(index, values, left.ordered and right.ordered)
    plain = without_view(plain_type(left)[0]), without_view(plain_type(right)[0])
    if plain != (left, right):
        return type_of_both(*plain)
    if _is_number(left) and _is_number(right):
        if types.is_floating(left) or types.is_floating(right):
            both = types.is_floating(left) and types.is_floating(right)
            return max(left, right, key=lambda each: each.bit_width) if both else pa.float64()
        some_decimal = types.is_decimal(left) or types.is_decimal(right)
        if some_decimal or {types.is_signed_integer(left), types.is_signed_integer(right)} == {True, False}:
            scale = max(_scale(left), _scale(right))
            digits = scale + max(_whole_digits(left), _whole_digits(right))
            return (
                None if digits > 76 else pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
            )
    if types.is_timestamp(left) and types.is_timestamp(right) and left.tz and right.tz and left.tz != right.tz:
        return pa.timestamp(min(left.unit, right.unit, key=COARSENESS.__getitem__), "UTC")
    for day, moment in ((left, right), (right, left)):
        if types.is_date(day) and types.is_timestamp(moment):
            return moment  # a day is its midnight, as where the two are compared
    try:
        schemas = [pa.schema([("key", each)]) for each in (left, right)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _whole_digits(number: pa.DataType) -> int:
    """How many digits numbers of a type have before the point, at most."""
    if types.is_decimal(number):
        return int(number.precision - number.scale)
    return {8: 3, 16: 5, 32: 10, 64: 20 if types.is_uint64(number) else 19}[number.bit_width]


def plain_type(found: pa.DataType) -> tuple[pa.DataType, pa.DataType | None]:
    """The type of the values themselves, and the extension type around them, if there is one."""
    extension = None
    while True:
        if types.is_dictionary(found) or types.is_run_end_encoded(found):
            found = found.value_type
        elif isinstance(found, pa.BaseExtensionType):
            extension = extension or found
            found = found.storage_type
        else:
            return found, extension


def alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether what is stored means the same in both, as far as extension types tell.

    A UUID is no other kind of thing that happens to be stored in 16 bytes, and the number of a month none of a day: so
    neither the names may differ nor, where the storage is the same, the parameters that are kept beside it.

    >>> day, month = (pa.opaque(pa.int64(), f"period[{unit}]", "pandas") for unit in "DM")
    >>> alike(day, day), alike(day, month), alike(day, pa.int64())
    (True, False, True)
    """
    one, other = plain_type(left)[1], plain_type(right)[1]
    if one is None or other is None or one == other:
        return True
    return bool(one.extension_name == other.extension_name and one.storage_type != other.storage_type)


def told_type(type_: pa.DataType) -> str:
    """A type as errors call it: an extension type with its parameters, which Arrow leaves out.

    >>> told_type(pa.int64())
    'int64'
    """
    if isinstance(type_, pa.ExtensionType):
        return f"{type_.extension_name} {type_.__arrow_ext_serialize__().decode(errors='replace')}".rstrip()
    return str(type_)


def way_out(left: pa.DataType, right: pa.DataType) -> str:
    """What to do about keys that cannot be compared.

    >>> way_out(pa.int64(), pa.string())
    'cast one of them first'
    >>> way_out(pa.list_(pa.int64()), pa.list_(pa.int64()))
    'lists, structs and maps are no keys: join on values inside of them, in columns of their own'
    """
    if types.is_nested(plain_type(left)[0]) or types.is_nested(plain_type(right)[0]):
        return "lists, structs and maps are no keys: join on values inside of them, in columns of their own"
    return "cast one of them first"


def without_view(plain: pa.DataType) -> pa.DataType:
    """Text or bytes of another layout for text or bytes that are views, of which Arrow knows less."""
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(plain, plain)


def _kind(plain: pa.DataType) -> KeyKind | None:
    """The kind of a type that is compared only with its like."""
    if types.is_boolean(plain):
        return KeyKind.BOOL
    if types.is_timestamp(plain):
        return KeyKind.TIMESTAMP if plain.tz is None else KeyKind.INSTANT
    if types.is_time(plain):
        return KeyKind.TIME
    if types.is_duration(plain):
        return KeyKind.DURATION
    if types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain):
        return KeyKind.STRING
    if (
        types.is_binary(plain)
        or types.is_large_binary(plain)
        or types.is_binary_view(plain)
        or types.is_fixed_size_binary(plain)
    ):
        return KeyKind.BINARY
    return None


def _is_number(plain: pa.DataType) -> bool:
    return bool(types.is_integer(plain) or types.is_floating(plain) or types.is_decimal(plain))


def _is_naive_day(plain: pa.DataType) -> bool:
    return bool(types.is_date(plain) or (types.is_timestamp(plain) and plain.tz is None))


def _common_number(left: pa.DataType, right: pa.DataType) -> KeyType:
    if types.is_floating(left) or types.is_floating(right):
        return KeyType(KeyKind.FLOAT)
    scale = min(_scale(left), _scale(right))
    if types.is_decimal(left) and types.is_decimal(right):
        digits = min(left.precision - left.scale, right.precision - right.scale) + scale
        bits = WORD_BITS if digits <= WORD_DIGITS else 128 if digits <= 38 else 256
        return KeyType(KeyKind.NUMBER, bits, scale)
    # A partner of an integer is one itself, so a word is enough; which word, a uint64 on one side decides, unless
    # the other side is signed and leaves it nothing to match beyond 2^63.
    some_signed = types.is_signed_integer(left) or types.is_signed_integer(right)
    unsigned = not some_signed and (types.is_uint64(left) or types.is_uint64(right))
    return KeyType(KeyKind.NUMBER, scale=scale, unsigned=unsigned)


def _scale(number: pa.DataType) -> int:
    return int(number.scale) if types.is_decimal(number) else 0
