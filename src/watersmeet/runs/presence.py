"""When rows were in memory, and which rows on disk are meant: the terms in which the ledger decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watersmeet.core.arrays import Int64

FOREVER = np.iinfo(np.int64).max
NOT_ON_DISK = -1
_LEAST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Stay:
    """Rows of one side, one for each pair: their arrivals, departures and ordinals."""

    arrived: Int64
    departed: Int64
    ordinal: Int64
    hash: Int64 | None = None
    """Needed where runs are merged."""

    @classmethod
    def in_memory(cls, arrived: Int64) -> Stay:
        """Rows that have never left."""
        return cls(arrived, np.full(len(arrived), FOREVER), np.full(len(arrived), NOT_ON_DISK))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows on disk: some ordinals, and of them those that stand from one (hash, ordinal) on and before another."""

    low: int
    high: int
    since: tuple[int, int] = (_LEAST, _LEAST)
    until: tuple[int, int] = (FOREVER, FOREVER)
