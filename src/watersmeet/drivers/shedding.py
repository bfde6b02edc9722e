"""Load shedding: rows are let go where a join cannot keep up, and what that cost is known.

A reader whose queue has been full for a while lets the newest rows go, as long as they are no more than a given share
of all that it has read; else it waits. All rows are counted by key, those that go and those that stay: so it is known
how many pairs were lost. Keys have places of their own as long as the memory for that lasts, and are counted exactly;
the others are sketched, and their losses estimated, with an interval around them (`kernels.counting`).

**The interval.** A line of two sketches of `w` places estimates the pairs of A and B with a variance of at most
(F(A) F(B) + pairs^2) / w, where F is the sum of the squares of the numbers of rows of each key; and F itself is told by
a line's own square. By Chebyshev's inequality a line is more than four deviations off once in 16 times at most, and the
median of seven lines only if four of them are: less than once in a thousand times.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.report import ShedFigures
from watersmeet.core.spec import JoinSpec

LINES = 7
_DEVIATIONS = 4.0
_KEY_BYTES = 8 + 4 * 8
_LEAST_PLACES = 64
_SHARE = 16
"""One part in so many of the memory is for counting."""
_MOST_BYTES = 64 << 20
LEAST_BYTES = 24 << 10


def loss_bytes(memory: int) -> int:
    """What counting takes of the user's memory.

    >>> loss_bytes(64 << 20) >> 20
    4
    """
    return max(LEAST_BYTES, min(memory // _SHARE, _MOST_BYTES))


def check_shed(shed: object) -> float:
    """A share of rows that may go.

    >>> check_shed(0.05)
    0.05
    """
    shed = plain_number(shed)
    if isinstance(shed, bool) or not isinstance(shed, int | float) or not 0 < shed < 1:
        raise SpecError(f"shed must be a share of the rows between 0 and 1, such as 0.05, not {shed!r}")
    return float(shed)


def refuse_unfit(spec: JoinSpec) -> None:
    """An error if it cannot be known what rows that are let go would cost a join."""
    if not spec.kind.is_inner:
        raise SpecError(
            f"shed is for inner joins, which only lose rows by it: with how={spec.how!r}, rows whose partners were let "
            f"go would come out as if they had none"
        )
    if spec.asks_for_close:
        names = ", ".join(spec.close_columns(0))
        raise SpecError(f"what shed costs is counted by equal keys, and {names} need only be close; leave shed= out")


class Losses:
    """What rows that were let go have cost. Readers and the consumer count at once.

    >>> from watersmeet.core.spec import parse_on
    >>> schema = pa.schema({"id": pa.int64()})
    >>> losses = Losses(JoinSpec(schema, schema, parse_on("id")), 0.5, 1 << 16)
    >>> losses.count(0, pa.record_batch({"id": [1, 2, 2]}))
    >>> losses.count(1, pa.record_batch({"id": [2, 3]}), shed=True)
    >>> losses.figures().rows, losses.figures().pairs
    ((0, 2), 2)
    """

    def __init__(self, spec: JoinSpec, share: float, memory: int) -> None:
        # The driver knows this class in every run: kernels are imported only in those that let rows go.
        from watersmeet.kernels.counting import count_rows
        from watersmeet.records.keys import KeyCodec

        self.share = share
        self._codec = KeyCodec(spec)
        self._count_rows = count_rows
        self._columns = [[spec.input(side).get_field_index(name) for name in spec.keys(side)] for side in (0, 1)]
        half = memory // 2
        width = 1 << max(4, (half // (4 * LINES * 8)).bit_length() - 1)
        places = 1 << max(_LEAST_PLACES.bit_length() - 1, (half // _KEY_BYTES).bit_length() - 1)
        self._keys = np.zeros(places, np.uint64)
        self._counts = np.zeros((places, 4), np.int64)
        self._came, self._went = (np.zeros((2, LINES, width), np.int64) for _ in range(2))
        self._taken = 0
        self._lost = 0
        self._sketched = 0
        self._rows = [0, 0]
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What it holds."""
        return self._keys.nbytes + self._counts.nbytes + self._came.nbytes + self._went.nbytes

    def count(self, side: int, batch: pa.RecordBatch, shed: bool = False) -> None:
        """Rows of a side have come, or were let go."""
        hashes, valid = self._codec.hash(side, [batch.column(column) for column in self._columns[side]])
        known = np.ones(len(hashes), np.bool_) if valid is None else valid
        with self._lock:
            lost, self._taken, sketched = self._count_rows(
                hashes.view(np.uint64), known, side, int(shed), self._keys, self._counts, self._taken, self._came,
                self._went,
            )  # fmt: skip
            self._lost += lost
            self._sketched += sketched
            if shed:
                self._rows[side] += batch.num_rows

    def figures(self) -> ShedFigures:
        """What was lost so far."""
        with self._lock:
            rows, counted = (self._rows[0], self._rows[1]), self._lost
            estimate, around = self._estimate() if self._sketched and any(rows) else (0.0, 0.0)
        low = counted + max(0, round(estimate - around))
        return ShedFigures(
            rows, self.share, counted + max(0, round(estimate)), low, max(low, counted + round(estimate + around))
        )

    def _estimate(self) -> tuple[float, float]:
        """Pairs lost of keys without a place, and how far off that may be."""
        came, went = self._came.astype(np.float64), self._went.astype(np.float64)
        stayed = came - went
        # Of each pair that was lost, either the left row was let go, or it stayed and the right one was.
        products = (went[0] * came[1]).sum(axis=1) + (stayed[0] * went[1]).sum(axis=1)
        estimate = float(np.median(products))
        width = came.shape[2]
        deviation = sum(
            (_squares(one) * _squares(other) + max(0.0, estimate) ** 2) ** 0.5 / width**0.5
            for one, other in ((went[0], came[1]), (stayed[0], went[1]))
        )
        return estimate, _DEVIATIONS * deviation


def _squares(sketch: NDArray[Any]) -> float:
    """The sum of the squares of the numbers of rows of each key, a little too much rather than too little."""
    lines = (sketch * sketch).sum(axis=1)
    return float(np.median(lines) * (1 + 4 / sketch.shape[1] ** 0.5))
