"""Bursty traffic from two multiplicative cascades: the b-model for volumes over time, PQRS for keys and times together.

The b-model [1]_ cuts a stretch of time into halves again and again; of each part's volume, a random half gets the share
`b`, the other the rest: 0.5 is even, 0.7 is bursty at every scale. PQRS [2]_ does the same in a square of time and
keys: each quarter of each part gets its own share, so that rows that come together have keys that lie together.

.. [1] M. Wang, T. Madhyastha, N. H. Chan, S. Papadimitriou and C. Faloutsos. Data mining meets performance evaluation:
   Fast algorithms for modeling bursty traffic. ICDE 2002.
.. [2] M. Wang, A. Ailamaki and C. Faloutsos. Capturing the spatio-temporal behavior of real traffic data. Performance
   Evaluation 49, 2002.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watersmeet.core.arrays import Float64, Int64
from watersmeet.core.errors import SpecError

_PQRS_BITS = 24


def b_model(total: int, levels: int, bias: float, seed: int = 0) -> Int64:
    """Volumes of 2 to the power of `levels` intervals, which sum up to `total`.

    >>> volumes = b_model(10_000, levels=3, bias=0.7)
    >>> len(volumes), int(volumes.sum()), int(volumes.max())
    (8, 10000, 3430)
    """
    if not 0.5 <= bias < 1:
        raise SpecError(f"the bias of a b-model is at least 0.5 and below 1, not {bias!r}")
    random = np.random.default_rng([seed, 0xB])
    shares = np.ones(1)
    for _ in range(levels):
        first = np.where(random.random(len(shares)) < 0.5, bias, 1 - bias)
        shares = np.stack([shares * first, shares * (1 - first)], axis=1).reshape(-1)
    # Rounded so that nothing is lost: each interval gets what brings the running sum to its own rounded value.
    volumes: Int64 = np.diff(np.rint(np.cumsum(np.append(0.0, shares)) * total)).astype(np.int64)
    return volumes


@dataclass(frozen=True, slots=True)
class Quarters:
    """The shares of PQRS: rows that come early or late, with low or high keys."""

    early_low: float = 0.45
    late_low: float = 0.15
    early_high: float = 0.1
    late_high: float = 0.3

    def __post_init__(self) -> None:
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-9:
            raise SpecError(f"the four shares of PQRS are parts of 1, not {self.shares}")

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """All four."""
        return self.early_low, self.late_low, self.early_high, self.late_high


def pqrs(
    count: int, quarters: Quarters | None = None, seed: int = 0, levels: int = _PQRS_BITS
) -> tuple[Float64, Float64]:
    """Times and keys of so many rows, all in [0, 1), in the order of their times.

    >>> times, keys = pqrs(1000)
    >>> bool((np.diff(times) >= 0).all()), len(keys)
    (True, 1000)
    """
    shares = (quarters or Quarters()).shares
    random = np.random.default_rng([seed, 0x9])
    below = np.cumsum(shares)
    times, keys = np.zeros(count), np.zeros(count)
    for level in range(1, levels + 1):
        quarter = np.searchsorted(below[:3], random.random(count), side="right")
        times += (quarter & 1) * 2.0**-level
        keys += (quarter >> 1) * 2.0**-level
    order = np.argsort(times, kind="stable")
    return times[order], keys[order]


def bursty(
    rate: float,
    duration: float,
    bias: float = 0.6,
    domain: int = 10_000_000,
    quarters: Quarters | None = None,
    most: int = 70_000,
    seed: int = 0,
) -> tuple[Float64, Int64]:
    """Times in seconds and keys of rows that come `rate` times a second on average, as the thesis on exact window joins
    makes them: the b-model tells how many fall into each interval, at most about `most`, and PQRS where in it.

    >>> times, keys = bursty(rate=100, duration=60, seed=3)
    >>> len(times), bool((np.diff(times) >= 0).all()), bool(keys.max() < 10_000_000)
    (6000, True, True)
    """
    total = round(rate * duration)
    levels = 1
    while total * bias**levels > most:
        levels += 1
    volumes = b_model(total, levels, bias, seed)
    length = duration / len(volumes)
    times, keys = [np.empty(0)], [np.empty(0)]
    for number, volume in enumerate(volumes.tolist()):
        inside, where = pqrs(volume, quarters, seed=_seed_of(seed, number))
        times.append((number + inside) * length)
        keys.append(where)
    return np.concatenate(times), (np.concatenate(keys) * domain).astype(np.int64)


def _seed_of(seed: int, number: int) -> int:
    """A seed for each interval."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
