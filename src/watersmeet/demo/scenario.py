"""The demo's two sources: orders and shipments, when their rows come, and when no join could be earlier."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.sources.generators import rows as payload
from watersmeet.sources.generators import zipf
from watersmeet.sources.pace import Pace
from watersmeet.sources.schedules import Schedule, Times

NAMES = ("orders", "shipments")
KEY = "order_id"
COLUMNS = (("line", "amount", "note"), ("parcel", "weight", "address"))
SHARES = (1.0, 0.8)
"""Shipments are fewer than orders, and come slower by as much: both fall silent and end together."""
BURST = 100
LEAST_STALL = 0.2
"""Shorter silences are not seen in a picture."""


@dataclass(frozen=True)
class Timing:
    """How an engine's demo goes when it has all its rows."""

    rows: int
    """Orders."""
    rate: float
    """Orders a second, silences aside."""
    stalls: tuple[tuple[float, float], ...]
    """Both inputs fall silent: after which share of their rows, and for how many seconds."""


@dataclass(frozen=True)
class Scenario:
    """Orders and shipments: some orders have many lines and parcels, most have few; all come in bursts, with stalls.

    >>> scenario = Scenario(Timing(600, 3000.0, ((0.5, 1.0),)), rows=600, seed=1)
    >>> scenario.schedule.total_rows, scenario.schedule.inputs[1].schema.names
    (1080, ['order_id', 'parcel', 'weight', 'address'])
    >>> [round(seconds, 1) for seconds in silences(scenario.schedule)[0]]
    [0.1, 1.1]
    """

    timing: Timing
    rows: int
    seed: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise SpecError(f"the demo needs at least one row of each input, not {self.rows}")

    @cached_property
    def paces(self) -> tuple[Pace, Pace]:
        """How fast each input comes."""
        # Fewer rows make a shorter demo, but a silence must stay long enough to be one.
        part = min(1.0, self.rows / self.timing.rows)

        def pace(share: float) -> Pace:
            stalls = [
                (int(after * self._rows(share)), max(LEAST_STALL, length * part))
                for after, length in self.timing.stalls
            ]
            return Pace(self.timing.rate * share, min(BURST, self._rows(share)), tuple(stalls))

        return pace(SHARES[0]), pace(SHARES[1])

    @cached_property
    def schedule(self) -> Schedule:
        """The rows, and when they come."""
        tables, times = [], []
        for side, (names, share) in enumerate(zip(COLUMNS, SHARES, strict=True)):
            draw, rows = 2 * self.seed + side, self._rows(share)
            keys = zipf(rows, domain=max(1, self.rows // 2), exponent=0.4, seed=draw)
            tables.append(payload(keys, width=64, seed=draw).rename_columns([KEY, *names]))
            times.append(self.paces[side].due(np.arange(rows)))
        return Schedule(tables, times)

    def _rows(self, share: float) -> int:
        return max(1, int(self.rows * share))


def silences(schedule: Schedule) -> list[tuple[float, float]]:
    """From when to when nothing arrives on either input, where that can be seen in a picture."""
    moments = np.concatenate([[0.0], np.sort(np.concatenate(list(schedule.times)))])
    gaps = np.flatnonzero(np.diff(moments) >= LEAST_STALL * 0.9)
    return [(float(moments[at]), float(moments[at + 1])) for at in gaps]


def possible(schedule: Schedule, points: int = 1000) -> tuple[list[float], list[int]]:
    """How many pairs an ideal join would have, at some moments.

    >>> seconds, pairs = possible(Scenario(Timing(600, 3000.0, ((0.5, 1.0),)), rows=600, seed=1).schedule)
    >>> len(seconds) <= 1000, pairs == sorted(pairs)
    (True, True)
    """
    moments = at_best(schedule)
    chosen = np.unique(np.linspace(0, max(0, len(moments) - 1), min(points, len(moments))).astype(np.int64))
    return moments[chosen].tolist(), (chosen + 1).tolist()


def at_best(schedule: Schedule) -> Times:
    """For every pair the moment at which its second row arrives: no join can deliver it earlier."""
    orders, shipments = (
        pa.table({KEY: table[KEY], f"time{side}": when})
        for side, (table, when) in enumerate(zip(schedule.inputs, schedule.times, strict=True))
    )
    pairs = orders.join(shipments, KEY, join_type="inner")
    moments: Times = np.sort(np.maximum(pairs["time0"].to_numpy(), pairs["time1"].to_numpy()))
    return moments
