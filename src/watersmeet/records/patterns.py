"""A punctuation's pattern in terms of a join's keys: values, or a range, of the key columns' own types."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.errors import SpecError
from watersmeet.core.keys import plain_type
from watersmeet.core.promises import ANY, Among, Range
from watersmeet.core.spec import JoinSpec


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """Keys of one side: some values (an array for each key column), or the range of the one key column there is.

    All in plain types, whatever encoding the columns have.
    """

    side: int
    values: Sequence[pa.Array] | None = None
    low: pa.Array | None = None
    """One value; None: no bound."""
    high: pa.Array | None = None
    low_open: bool = False
    high_open: bool = False

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        low, high = (None if bound is None else encoded([bound]) for bound in (self.low, self.high))
        values = None if self.values is None else encoded(self.values)
        return [self.side, values, low, high, self.low_open, self.high_open]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> KeyPattern:
        """From a snapshot."""
        side, values, low, high, low_open, high_open = state
        return cls(
            side,
            None if values is None else decoded(values),
            None if low is None else decoded(low)[0],
            None if high is None else decoded(high)[0],
            low_open,
            high_open,
        )


def read_pattern(spec: JoinSpec, side: int, pattern: Mapping[str, object]) -> KeyPattern | None:
    """What a pattern says of the keys; None if it says nothing about them that a join could use.

    It can use values for all key columns and, where there is one key column, a range; other columns must be left open.

    >>> schema = pa.schema({"id": pa.int64(), "v": pa.string()})
    >>> from watersmeet.core.spec import parse_on
    >>> spec = JoinSpec(schema, schema, parse_on("id"))
    >>> read_pattern(spec, 0, {"id": Among((3, 4))}).values[0].to_pylist()
    [3, 4]
    >>> read_pattern(spec, 0, {"v": "x"}) is None
    True
    """
    schema, name = spec.input(side), spec.names[side]
    for column in pattern:
        if column not in schema.names:
            raise SpecError(
                f"a punctuation of {name} is about column {column!r}, which is not there; it has "
                f"{', '.join(schema.names)}"
            )
    known = {column: value for column, value in pattern.items() if value is not ANY}
    keys = spec.keys(side)
    if set(known) != set(keys):
        return None
    values = [known[key] for key in keys]
    types = [schema.field(key).type for key in keys]
    if len(keys) == 1 and isinstance(values[0], Range):
        span = values[0]
        low, high = (
            None if bound is None else _typed([bound], types[0], keys[0], name) for bound in (span.low, span.high)
        )
        return (
            None if low is None and high is None else KeyPattern(side, None, low, high, span.low_open, span.high_open)
        )
    if any(isinstance(value, Range) or (isinstance(value, Among) and len(keys) > 1) for value in values):
        return None
    lists = [list(value.values) if isinstance(value, Among) else [value] for value in values]
    return KeyPattern(
        side, [_typed(some, type_, key, name) for some, type_, key in zip(lists, types, keys, strict=True)]
    )


def _typed(values: list[object], type_: pa.DataType, column: str, name: str) -> pa.Array:
    try:
        return pa.array(values, plain_storage(type_))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as problem:
        raise SpecError(
            f"a punctuation of {name} gives {values[0]!r} for column {column!r}, which holds {type_}: {problem}"
        ) from None


def plain_array(array: pa.Array) -> pa.Array:
    """Values without their encoding, in a type that Arrow can take rows of.

    >>> plain_array(pa.array(["a", "b"], pa.string_view())).type
    DataType(large_string)
    """
    while True:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif array.type == pa.string_view():
            array = pc.cast(array, pa.large_string())
        elif array.type == pa.binary_view():
            array = pc.cast(array, pa.large_binary())
        else:
            return array


def plain_storage(type_: pa.DataType) -> pa.DataType:
    """The type of what `plain_array` gives."""
    plain, _ = plain_type(type_)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(plain, plain)


def encoded(columns: Sequence[pa.Array]) -> str:
    """Arrays of one length as text that JSON can carry."""
    batch = pa.RecordBatch.from_arrays(list(columns), names=[str(i) for i in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def decoded(text: str) -> list[pa.Array]:
    """The arrays of such a text."""
    columns: list[pa.Array] = pa.ipc.open_stream(base64.b64decode(text)).read_next_batch().columns
    return columns
