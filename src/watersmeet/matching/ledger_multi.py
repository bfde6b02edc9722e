"""Which combinations of several inputs were emitted? The one place that decides.

Every row received and every flush takes the next tick of a logical clock. A combination has been emitted exactly if

1. *together*: all its rows were in memory at one tick, or
2. *visited*: one input's row was brought from disk at a tick at which the rows of all others were in memory.

(`tests/conformance/test_multiway.py` breaks both, and is noticed.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.errors import BudgetError
from watersmeet.kernels.combinations import met_in_memory, met_on_visit
from watersmeet.matching.found_combinations import InputRows
from watersmeet.memory import Reservation

_VISIT_BYTES = 24


class VisitLedger:
    """The visits of each input's disk to the memory of all others."""

    def __init__(self, inputs: int, claim: Reservation) -> None:
        self._visits = [np.empty((0, 3), np.int64) for _ in range(inputs)]
        """(tick, first ordinal, first ordinal beyond)."""
        self._claim = claim

    def try_reserve(self) -> bool:
        """Claim memory for one more visit; without it none may begin."""
        return self._claim.try_grow(_VISIT_BYTES)

    def record(self, number: int, tick: int, low: int, high: int) -> None:
        """Rows of these ordinals have now met all that was in memory at a tick; memory was reserved for it."""
        before = self._visits[number]
        if len(before) and before[-1, 0] == tick and before[-1, 2] == low:
            before[-1, 2] = high
        elif high > low:
            self._visits[number] = np.vstack([before, np.array([[tick, low, high]], np.int64)])
            return
        self._claim.shrink(_VISIT_BYTES)

    def fresh(self, inputs: Sequence[InputRows], ids: Int64) -> Bool:
        """Which combinations have not been emitted."""
        arrived, departed, ordinals = _stays(inputs, ids)
        met = together(arrived, departed)
        for number, visits in enumerate(self._visits):
            if len(visits):
                met = visited(visits, number, arrived, departed, ordinals[number], met)
        return ~met

    def to_state(self) -> list[Any]:
        """The visits for a snapshot."""
        return [visits.tolist() for visits in self._visits]

    def load(self, state: list[Any]) -> None:
        """Take over a snapshot's visits."""
        for number, visits in enumerate(state):
            if not self._claim.try_grow(_VISIT_BYTES * len(visits)):
                raise BudgetError("the snapshot's visits do not fit; allow as much memory as when it was taken")
            self._visits[number] = np.array(visits, np.int64).reshape(-1, 3)

    def check(self, clock: int, rows: Sequence[int]) -> None:
        """Assert that nothing is recorded of the future or beyond what is on disk."""
        for visits, count in zip(self._visits, rows, strict=True):
            assert (visits[:, 0] <= clock).all() and (np.diff(visits[:, 0]) >= 0).all()
            assert (visits[:, 1] < visits[:, 2]).all() and (visits[:, 2] <= count).all()


def apart_in_memory(inputs: Sequence[InputRows], ids: Int64) -> Bool:
    """Which combinations have not been emitted, where no input's disk makes visits."""
    arrived, departed, _ = _stays(inputs, ids)
    return ~together(arrived, departed)


def _stays(inputs: Sequence[InputRows], ids: Int64) -> tuple[Int64, Int64, Int64]:
    """When the rows of combinations arrived in memory and left it, and their ordinals on disk, by input."""
    stays = [rows.stays(mine) for rows, mine in zip(inputs, ids, strict=True)]
    arrived, departed, ordinals = (np.stack([stay[i] for stay in stays]) for i in range(3))
    return arrived, departed, ordinals


def together(arrived: Int64, departed: Int64) -> Bool:
    """All rows of a combination were in memory at one tick; `arrived` and `departed` are by input and combination."""
    met = np.zeros(arrived.shape[1], np.bool_)
    met_in_memory(arrived, departed, met)
    return met


def visited(visits: Int64, number: int, arrived: Int64, departed: Int64, ordinals: Int64, met: Bool) -> Bool:
    """A visit of one input's disk brought its row, by its ordinal there, when the rows of all others were in memory; or
    the combination had been met before.
    """
    met_on_visit(arrived, departed, ordinals, number, visits, met)
    return met
