"""When rows arrive: times in seconds from the start, for the simulator, and for live runs that keep to them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.sources.base import BATCH_ROWS, pieces
from watersmeet.sources.generators import zipf

Times: TypeAlias = npt.NDArray[np.float64]

_GAP_LEVELS = 1000
"""How many different gaps `zipf_gaps` draws from."""


def constant(n: int, gap: float) -> Times:
    """A row every `gap` seconds, the first after one gap.

    >>> constant(3, 0.5).tolist()
    [0.5, 1.0, 1.5]
    """
    _check("n", n, 0)
    _check("gap", gap, 0)
    return gap * np.arange(1, n + 1, dtype=np.float64)


def poisson(n: int, rate: float, seed: int = 0) -> Times:
    """A Poisson process: independent gaps, `rate` rows a second on average.

    >>> bool(abs(poisson(10_000, rate=100)[-1] - 100) < 5)
    True
    """
    _check("n", n, 0)
    _check("rate", rate, 0, above=True)
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def bursts(n: int, size: int, gap: float, pause: float, seed: int | None = None) -> Times:
    """Bursts of `size` rows, `gap` seconds apart, and `pause` seconds of silence between one burst and the next.

    With a seed, `size` and `pause` are means: sizes are geometric, pauses exponential.

    >>> bursts(4, size=2, gap=1, pause=10).tolist()
    [1.0, 2.0, 13.0, 14.0]
    """
    _check("n", n, 0)
    _check("size", size, 1)
    _check("gap", gap, 0)
    _check("pause", pause, 0)
    gaps = np.full(n, float(gap))
    if seed is None:
        gaps[size::size] += pause
    else:
        random = np.random.default_rng(seed)
        begins = np.cumsum(random.geometric(1 / size, n))  # n bursts are enough, as each has a row at least
        begins = begins[begins < n]
        gaps[begins] += random.exponential(pause, len(begins))
    return np.cumsum(gaps)


def zipf_gaps(n: int, low: float, high: float, skew: float, seed: int = 0) -> Times:
    """Gaps between `low` and `high` seconds, Zipf-skewed to `low`: most rows come fast, a few let wait.

    >>> gaps = np.diff(zipf_gaps(1000, low=0.01, high=1.0, skew=1.0))
    >>> bool(np.median(gaps) < 0.2), bool(gaps.min() >= 0.0099), bool(gaps.max() <= 1.0001)
    (True, True, True)
    """
    _check("n", n, 0)
    _check("low", low, 0)
    _check("high", high, low)
    _check("skew", skew, 0)
    level = (zipf(n, _GAP_LEVELS, skew, seed) - 1) / (_GAP_LEVELS - 1)
    return np.cumsum(low + (high - low) * level)


def fragments(
    n: int, fragments: int, gaps: float | Sequence[float], delay: float | Sequence[float], seed: int | None = None
) -> Times:
    """`n` rows in `fragments` equal parts, with a silence after each that lasts `delay` times as long as the part did.

    `gaps` and `delay` are one number, or one for each fragment. With a seed, the gaps are means of a Poisson process.

    >>> fragments(4, fragments=2, gaps=1.0, delay=0.5).tolist()
    [1.0, 2.0, 4.0, 5.0]
    """
    _check("n", n, 0)
    _check("fragments", fragments, 1)
    of_fragment = np.arange(n) * fragments // max(n, 1)
    mean = _for_each("gaps", gaps, fragments)[of_fragment]
    each = mean if seed is None else np.random.default_rng(seed).exponential(mean)
    lasted = np.bincount(of_fragment, weights=each, minlength=fragments)
    silence = np.concatenate([[0.0], np.cumsum(lasted * _for_each("delay", delay, fragments))[:-1]])
    times: Times = np.cumsum(each) + silence[of_fragment]
    return times


def _for_each(what: str, value: float | Sequence[float], count: int) -> Times:
    values = np.asarray(value, dtype=np.float64)
    if values.ndim > 1 or (values.ndim == 1 and len(values) != count):
        raise SpecError(f"{what} must be one number or {count}, one for each fragment, not {value!r}")
    for number in np.atleast_1d(values):
        _check(what, float(number), 0)
    return np.broadcast_to(values, count)


def _check(what: str, value: float, least: float, above: bool = False) -> None:
    if not (np.isfinite(value) and (value > least if above else value >= least)):
        raise SpecError(f"{what} must be {'more than' if above else 'at least'} {least}, not {value!r}")


@dataclass(frozen=True)
class Schedule:
    """The rows of each input and the second at which each of them arrives.

    >>> left, right = pa.table({"id": [1, 2]}), pa.table({"id": [2]})
    >>> schedule = Schedule([left, right], [constant(2, 0.5), constant(1, 3.0)])
    >>> schedule.total_rows, schedule.end_time
    (3, 3.0)
    """

    inputs: Sequence[pa.Table]
    times: Sequence[Times]

    def __post_init__(self) -> None:
        if not self.inputs or len(self.inputs) != len(self.times):
            raise SpecError(
                f"a schedule needs one array of times for each input, and got {len(self.times)} for {len(self.inputs)}"
            )
        times = tuple(np.asarray(each, dtype=np.float64) for each in self.times)
        for side, (table, when) in enumerate(zip(self.inputs, times, strict=True)):
            if when.ndim != 1 or len(when) != table.num_rows:
                raise SpecError(f"input {side} has {table.num_rows} rows, but times of shape {when.shape}")
            if len(when) and not (np.isfinite(when).all() and when[0] >= 0):
                raise SpecError(f"the times of input {side} must be finite seconds from 0 on")
            back = np.flatnonzero(np.diff(when) < 0)
            if len(back):
                at = int(back[0])
                raise SpecError(
                    f"the times of input {side} go back after row {at}: from {when[at]:g} to {when[at + 1]:g}"
                )
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "times", times)

    @property
    def total_rows(self) -> int:
        """The rows of all inputs."""
        return sum(len(each) for each in self.times)

    @property
    def end_time(self) -> float:
        """When the last row of all arrives; 0 if there is none."""
        return max((float(each[-1]) for each in self.times if len(each)), default=0.0)

    def paced(
        self, side: int, speed: float = 1.0, batch_rows: int = BATCH_ROWS, start: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """One input in real time, `speed` times as fast: sleeps until a row is due, then yields all that are.

        Second 0 is the first time that a batch is asked for, or `start` on the clock of `time.monotonic`, by which
        several inputs keep step.
        """
        _check("speed", speed, 0, above=True)
        _check("batch_rows", batch_rows, 1)
        return self._paced(side, speed, batch_rows, start)

    def _paced(self, side: int, speed: float, batch_rows: int, start: float | None) -> Iterator[pa.RecordBatch]:
        table, due = self.inputs[side], self.times[side] / speed
        origin = time.monotonic() if start is None else start
        given = 0
        while given < len(due):
            now = time.monotonic() - origin
            if due[given] > now:
                time.sleep(due[given] - now)
                now = max(time.monotonic() - origin, float(due[given]))  # whatever a clock's last digit says
            ready = int(np.searchsorted(due, now, side="right"))
            for batch in table.slice(given, ready - given).to_batches(max_chunksize=batch_rows):
                yield from pieces(batch, batch_rows)
            given = ready
