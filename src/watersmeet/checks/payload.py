"""Random payload columns of every Arrow type: whatever they hold must come out of a join as it went in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.keys import encoded

Rng: TypeAlias = np.random.Generator

_NAN = float("nan")
_WORDS = ["", "a", "bb", "Wasser", "ποταμός", "川" * 7, "a string that is longer than twelve bytes", "q" * 100]
_BYTES = [b"", b"\x00", b"\xff\xfe", b"river" * 9]
_FLOATS = [0.0, -0.0, 1.5, _NAN, float("inf"), 1e-300]
_PERSON = pa.struct({"name": pa.string(), "age": pa.int8(), "tags": pa.list_(pa.string())})

# Type, then values to draw from; None is added by chance. Small pools: the rows are told apart by other columns.
_POOLS: list[tuple[pa.DataType, Sequence[Any]]] = [
    (pa.null(), [None]),
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 0, 127]),
    (pa.uint16(), [0, 65535]),
    (pa.int32(), [-(2**31), -1, 0, 7]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float16(), [np.float16(v) for v in (0.0, -0.0, 1.5)]),
    (pa.float32(), [0.0, -0.0, 1.5, _NAN]),
    (pa.float64(), _FLOATS),
    (pa.decimal128(20, 4), [Decimal("0.0001"), Decimal("-12345678.9")]),
    (pa.decimal256(60, 2), [Decimal("1.01"), Decimal(10) ** 50]),
    (pa.date32(), [date(1970, 1, 1), date(2400, 2, 29)]),
    (pa.time64("us"), [time(0), time(23, 59, 59, 999_999)]),
    (pa.timestamp("us", "Asia/Tokyo"), [datetime(2001, 2, 3), datetime(1950, 1, 1)]),
    (pa.duration("ms"), [timedelta(0), timedelta(days=-3)]),
    (pa.month_day_nano_interval(), [(1, 2, 3), (0, 0, -1)]),
    (pa.string(), _WORDS),
    (pa.large_string(), _WORDS),
    (pa.string_view(), _WORDS),
    (pa.binary(), _BYTES),
    (pa.large_binary(), _BYTES),
    (pa.binary_view(), _BYTES),
    (pa.binary(5), [b"12345", b"\x00" * 5]),
    (pa.binary(0), [b""]),
    (pa.dictionary(pa.int8(), pa.string()), _WORDS[:5]),
    (pa.dictionary(pa.int32(), pa.int64()), [5, 6, 7]),
    (pa.run_end_encoded(pa.int16(), pa.string()), ["same", "same", "other"]),
    (pa.list_(pa.int32()), [[], [1], [2, None, 3]]),
    (pa.large_list(pa.string()), [[], ["", "x"], [None]]),
    (pa.list_(pa.float64(), 2), [[0.0, _NAN], [None, -0.0]]),
    (pa.list_(pa.list_(pa.string())), [[[]], [["a", "b"], None, []], []]),
    (_PERSON, [{"name": "Ada", "age": 36, "tags": ["x"]}, {"name": None, "age": None, "tags": []}]),
    (pa.struct([]), [{}]),
    (pa.list_(_PERSON), [[{"name": "Bo", "age": 1, "tags": None}], [], [None]]),
    (pa.map_(pa.string(), pa.int32()), [[], [("k", 1), ("l", None)]]),
]
PAYLOAD_TYPES = tuple(kind for kind, _ in _POOLS)
"""All types of payload that cases are made of."""


def random_payload(rng: Rng, rows: int) -> pa.Array:
    """A column of a random type, with or without NULLs.

    >>> len(random_payload(np.random.default_rng(1), 5))
    5
    """
    kind, values = _POOLS[int(rng.integers(len(_POOLS)))]
    null = rng.random(rows) < float(rng.choice([0.0, 0.2, 1.0], p=[0.45, 0.5, 0.05]))
    positions = rng.integers(0, len(values), rows)
    try:
        return _pool(kind, len(values)).take(pa.array(positions, pa.int64(), mask=null))
    except pa.ArrowNotImplementedError:  # Arrow cannot take from views and run-end encoded arrays
        return pa.array([None if n else values[p] for p, n in zip(positions, null, strict=True)], kind)


@cache
def _pool(kind: pa.DataType, size: int) -> pa.Array:
    values = next(values for other, values in _POOLS if other == kind and len(values) == size)
    if pa.types.is_dictionary(kind):
        return encoded(pa.array(values, kind.value_type), kind)
    return pa.array(values, kind)


WIDE_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.string_view())


def wide_column(rng: Rng, rows: int, width: int, longest: int, kind: pa.DataType) -> pa.Array:
    """Text or bytes of about `width` each, all different and now and then `longest`: what makes a table fill a budget.

    >>> wide_column(np.random.default_rng(1), 2, 8, 100, pa.binary()).type
    DataType(binary)
    """
    sizes = rng.integers(width // 2, width + width // 2 + 1, rows)
    if rng.random() < 0.15:
        sizes[rng.random(rows) < 0.05] = longest
    letters = rng.integers(97, 123, max(longest, 2 * width) + 1, dtype=np.uint8).tobytes().decode()
    texts = [f"{row}{letters[:size]}" for row, size in enumerate(sizes.tolist())]
    return pa.array(texts, pa.string()).cast(kind)
