"""How long results took, as counts by duration: small, and added up over any number of tasks.

A pair is complete when the later of its two rows has come. Its delay is the time from that row's own timestamp, in a
column that the user names, until the pair is found; it is counted for the input that the later row came on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64

STEPS = 4
"""Classes for each doubling, so a class is a fifth wider than the one before."""
CLASSES = 24 * STEPS
"""From a millisecond to 4.6 hours; shorter and longer ones are counted in the first and the last class."""


def class_of(milliseconds: Int64) -> Int64:
    """The class of each delay.

    >>> class_of(np.array([-5, 0, 1, 2, 1000, 1 << 40])).tolist()
    [0, 0, 0, 4, 40, 95]
    """
    places = np.floor(np.log2(np.maximum(milliseconds, 1)) * STEPS + 0.5).astype(np.int64)
    return np.minimum(places, CLASSES - 1)


def milliseconds_of(place: float) -> float:
    """The middle of a class.

    >>> milliseconds_of(0), milliseconds_of(40)
    (1.0, 1024.0)
    """
    return float(2.0 ** (place / STEPS))


def percentile(counts: Sequence[int], share: float) -> float | None:
    """The delay in milliseconds, to within a tenth, that this share of all results did not exceed; None without any.

    >>> percentile([0] * 8 + [3, 1] + [0] * 86, 0.5), percentile([0] * 96, 0.5)
    (4.0, None)
    """
    total = sum(counts)
    if not total:
        return None
    return milliseconds_of(int(np.searchsorted(np.cumsum(counts), share * total)))


class Delays:
    """Counts the delays of results, by the input that completed them.

    >>> seconds = pa.timestamp("s", "UTC")
    >>> delays = Delays(("a", "b"))
    >>> delays.count(pa.record_batch({"a": pa.array([8, 9], seconds), "b": pa.array([9, 1], seconds)}), now=10.0)
    >>> [sum(counts) for counts in delays.counts], percentile(delays.counts[0], 0.5)
    ([1, 1], 1024.0)
    """

    def __init__(self, columns: tuple[str, ...] | None) -> None:
        self._columns = columns
        self._counts = np.zeros((2, CLASSES), np.int64)

    @property
    def counts(self) -> list[list[int]]:
        """By input and class."""
        found: list[list[int]] = self._counts.tolist()
        return found

    def count(self, results: pa.RecordBatch, now: float) -> None:
        """Count results that were found now, in seconds since 1970; those without both times are left out."""
        if self._columns is None or not results.num_rows:
            return
        times = [_milliseconds(results.column(name)) for name in self._columns]
        known = ~(np.isnan(times[0]) | np.isnan(times[1]))
        left, right = times[0][known], times[1][known]
        delays = np.floor(now * 1000 - np.maximum(left, right)).astype(np.int64)
        for number, chosen in enumerate((left >= right, left < right)):
            self._counts[number] += np.bincount(class_of(delays[chosen]), minlength=CLASSES)


def _milliseconds(times: pa.Array) -> NDArray[np.float64]:
    """Timestamps in milliseconds since 1970, NaN for NULL."""
    units = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
    found: NDArray[np.float64] = times.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64)
    return found * units[times.type.unit]
