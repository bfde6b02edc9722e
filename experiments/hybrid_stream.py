"""A stream whose volume comes in bursts and whose keys come in clusters: b-model over time, PQRS over time and keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def b_model(total: int, levels: int, bias: float, rng: np.random.Generator) -> Int64:
    """A volume over 2^levels intervals: each half of any stretch gets a share of `bias`, the other half the rest.

    >>> b_model(1000, 3, 0.5, np.random.default_rng(0)).tolist()
    [125, 125, 125, 125, 125, 125, 125, 125]
    """
    shares = np.ones(1)
    for _ in range(levels):
        first = np.where(rng.random(len(shares)) < 0.5, bias, 1 - bias)
        shares = np.column_stack([shares * first, shares * (1 - first)]).ravel()
    ends = np.rint(np.cumsum(shares) * total).astype(np.int64)
    return np.diff(ends, prepend=0)


def pqrs(count: int, bits: int, quadrants: tuple[float, ...], rng: np.random.Generator) -> tuple[Float64, Int64]:
    """Points in a square of time and keys, by time: each falls into one of four quadrants, and of their quadrants.

    Returns the times, from 0 to 1, and the keys, below 2^bits.
    """
    chosen = rng.choice(4, (count, bits), p=np.array(quadrants) / sum(quadrants))
    weights = 2.0 ** -np.arange(1, bits + 1)
    times = (chosen >= 2) @ weights + rng.random(count) * weights[-1]
    keys = ((chosen & 1) @ (1 << np.arange(bits - 1, -1, -1))).astype(np.int64)
    order = np.argsort(times, kind="stable")
    return times[order], keys[order]


def bursty_keys(
    rows: int, seconds: float, keys: int, bias: float, quadrants: tuple[float, ...], longest: int, seed: int
) -> tuple[Float64, Int64]:
    """When rows arrive, and with what keys."""
    rng = np.random.default_rng([seed, 6])
    levels = 0
    while rows * max(bias, 1 - bias) ** levels > longest and levels < 12:
        levels += 1
    volumes = b_model(rows, levels, bias, rng)
    length = seconds / len(volumes)
    bits = (keys - 1).bit_length()
    times, found = [], []
    for number, volume in enumerate(volumes.tolist()):
        when, which = pqrs(volume, bits, quadrants, rng)
        times.append((number + when) * length)
        found.append(which)
    return np.concatenate(times), np.concatenate(found) * keys >> bits
