"""Which rows a punctuation speaks of: value by value, in plain Python."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from watersmeet.core.promises import Among, Punctuation, Range


def covered_rows(batch: pa.RecordBatch, punctuation: Punctuation) -> list[int]:
    """The numbers of the rows that match a punctuation's pattern.

    >>> covered_rows(pa.record_batch({"id": [3, None, 5, 3]}), Punctuation({"id": 3}))
    [0, 3]
    """
    rows = range(batch.num_rows)
    for name, wanted in punctuation.pattern.items():
        values = batch.column(name).to_pylist()
        rows = [row for row in rows if values[row] is not None and value_matches(values[row], wanted)]  # type: ignore[assignment]
    return list(rows)


def value_matches(value: Any, wanted: object) -> bool:
    """Whether a value is what a pattern has for its column.

    >>> value_matches(float("nan"), float("nan")), value_matches(4, Range(1, 4, high_open=True))
    (True, False)
    """
    if isinstance(wanted, Among):
        return any(value_matches(value, each) for each in wanted.values)
    if not isinstance(wanted, Range):
        return bool(value == wanted) or (value != value and wanted != wanted)
    above = wanted.low is None or _less(wanted.low, value, wanted.low_open)
    return above and (wanted.high is None or _less(value, wanted.high, wanted.high_open))


def _less(one: Any, other: Any, strictly: bool) -> bool:
    """In an order in which NaN is the largest."""
    if one != one or other != other:
        return bool(one == one) if strictly else bool(other != other)
    return bool(one < other) if strictly else bool(one <= other)
