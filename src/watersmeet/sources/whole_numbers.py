"""Whole numbers in text files that int64 has no room for: PyArrow takes them for doubles, and so for their neighbours.

A column of doubles is looked at once more, as text, and no further than the first block, by which its type is told.
Where all of it are whole numbers, a type is found that keeps each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.sources.base import PASS_A_SCHEMA

_LONG = r"^[+-]?0*[1-9][0-9]{18,}$"
"""As many digits as int64 can have, or more."""
_DIGITS = 38
"""Of a decimal128."""


def exact_types(schema: pa.Schema, texts_of: Callable[[list[str]], pa.RecordBatch]) -> dict[str, pa.DataType]:
    """The columns of a schema found by PyArrow where doubles would round whole numbers beyond int64, and better types.

    :param texts_of: from the names of columns to what they have in the first block, as text.
    """
    suspects = {field.name: field.type for field in schema if _has_doubles(field.type)}
    if not suspects:
        return {}
    found = {}
    texts = texts_of(list(suspects))
    for field, column in zip(texts.schema, texts.columns, strict=True):
        exact = exact_type(column, field.name) if field.name in suspects else None
        if exact is not None and suspects[field.name] != pa.float64():
            raise ValueError(f"column {field.name!r} has whole numbers beyond int64 in its values; {PASS_A_SCHEMA}")
        if exact is not None:
            found[field.name] = exact
    return found


def with_types(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """A schema with other types for some of its columns."""
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in schema])


def exact_type(texts: pa.Array, name: str) -> pa.DataType | None:
    """The type that keeps the whole numbers of a column as they are; None if they are none, or fit doubles.

    >>> exact_type(pa.array(["18446744073709551615", "7"]), "id")
    DataType(uint64)
    >>> exact_type(pa.array(["18446744073709551615", "-7"]), "id")
    Decimal128Type(decimal128(38, 0))
    >>> exact_type(pa.array(["0.5", "7"]), "price")
    """
    texts = pc.utf8_trim_whitespace(texts)
    long = pc.unique(texts.filter(pc.match_substring_regex(texts, _LONG))).to_pylist()
    beyond = [text for text in long if not -(2**63) <= Decimal(text) < 2**63]
    if not beyond:
        return None
    if pc.all(pc.match_substring_regex(texts, r"^[0-9]+$")).as_py() and max(map(Decimal, beyond)) < 2**64:
        return pa.uint64()
    if pc.all(pc.match_substring_regex(texts, r"^[+-]?[0-9]+$")).as_py() and all(
        -(10**_DIGITS) < Decimal(text) < 10**_DIGITS for text in beyond
    ):
        return pa.decimal128(_DIGITS, 0)
    for text in beyond:
        if Decimal(float(text)) != Decimal(text):
            raise ValueError(
                f"column {name!r} has {text[:50]}, which a double would round, and no type holds it beside the other "
                f"numbers; {PASS_A_SCHEMA}"
            )
    return None


def texts_of_json(block: bytes, names: list[str]) -> pa.RecordBatch:
    r"""The numbers in columns of JSON lines, as they are written; those inside of nested values one after the other.

    >>> texts_of_json(b'{"id": 18446744073709551615}\n{"id": null}\n{"id": 1.50}', ["id"]).to_pydict()
    {'id': ['18446744073709551615', '1.50']}
    """
    found: dict[str, list[str]] = {name: [] for name in names}
    if re.search(rb"(?<![0-9.])[0-9]{19}", block):  # else no whole number is beyond int64
        decoder = json.JSONDecoder(parse_int=_Written, parse_float=_Written, parse_constant=_Written, strict=False)
        text = block.decode(errors="replace")
        at = _after_space(text, 0)
        while at < len(text):
            row, end = decoder.raw_decode(text, at)
            at = _after_space(text, end)
            for name in names:
                found[name].extend(_numbers(row[name]) if name in row else ())
    most = max(map(len, found.values()))
    columns = [pa.array(texts + [None] * (most - len(texts)), pa.string()) for texts in found.values()]
    return pa.record_batch(columns, names)


class _Written(str):
    """A number as it is written."""

    __slots__ = ()


def _numbers(value: object) -> Iterator[str]:
    if isinstance(value, _Written):
        yield str(value)
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _has_doubles(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_has_doubles(field.type) for field in type_)
    if pa.types.is_list(type_):
        return _has_doubles(type_.value_type)
    return bool(type_ == pa.float64())
