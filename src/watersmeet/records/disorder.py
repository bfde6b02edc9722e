"""How far a column of times is from being in order."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Int64
from watersmeet.core.bands import Width, tick_nanoseconds
from watersmeet.core.keys import plain_type

_FAR = 1 << 61


def disorder(column: pa.ChunkedArray) -> Width | None:
    """By how much a value is older than the newest before it, at most; None if that cannot be told.

    >>> disorder(pa.chunked_array([[1, 5], [3, 6]])), disorder(pa.chunked_array([[0.5, 0.25]]))
    (2, None)
    """
    plain, _ = plain_type(column.type)
    if plain != column.type:
        return None
    dated = pa.types.is_timestamp(plain) or pa.types.is_date(plain)
    if not dated and not (pa.types.is_integer(plain) and plain != pa.uint64()):
        return _zero_if_sorted(column, plain)
    newest, most = -_FAR, 0
    for chunk in column.chunks:
        times = _words(chunk)
        if not len(times):
            continue
        if times[0] >= newest and (times[1:] >= times[:-1]).all():
            newest = int(times[-1])
            if times[0] <= -_FAR or newest >= _FAR:
                return None
            continue
        if times.min() <= -_FAR or times.max() >= _FAR:
            return None
        reached = np.maximum(np.maximum.accumulate(times), newest)
        most = max(most, int((reached - times).max()))
        newest = int(reached[-1])
    if not dated:
        return most
    # A length of time is told in microseconds; a little more lateness than there is does no harm.
    return timedelta(microseconds=-(-most * tick_nanoseconds(plain) // 1000))


def _words(chunk: pa.Array) -> Int64:
    if chunk.null_count:
        chunk = chunk.drop_null()
    if pa.types.is_integer(chunk.type):
        return np.asarray(chunk).astype(np.int64, copy=False)
    return np.asarray(chunk.view(pa.int32() if chunk.type.bit_width == 32 else pa.int64())).astype(np.int64, copy=False)


def _zero_if_sorted(column: pa.ChunkedArray, plain: pa.DataType) -> Width | None:
    """Lengths of fractions are rounded: it is safe to tell that there is no disorder, and nothing else."""
    if not (pa.types.is_floating(plain) or pa.types.is_decimal(plain)):
        return None
    last = None
    for chunk in column.chunks:
        values = chunk.drop_null()
        if pa.types.is_floating(plain):
            values = values.filter(pc.invert(pc.is_nan(values)))
        if not len(values):
            continue
        if last is not None and values[0].as_py() < last:
            return None
        if len(values) > 1 and not pc.all(pc.less_equal(values[:-1], values[1:])).as_py():
            return None
        last = values[-1].as_py()
    return 0
