"""Which partitions of which inputs leave memory when it is full, in a join of several inputs.

With k inputs and a share f of their rows in memory, a new row finds all its partners with probability f to the power of
k - 1 if rows were flushed without regard to each other. If all inputs flush the same partitions, and are joined on one
attribute, it finds all of them or none, with probability f [1]_.

.. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
   Information Sources, VLDB 2003, section 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError

Victims: TypeAlias = "dict[int, list[int]]"
"""Partitions by input."""
ManyFlush: TypeAlias = "Callable[[Int64, Int64, int], Victims]"
"""From the rows in memory and on disk, by input and partition, and a tick, to those that are to leave."""

_SHARE = 8
"""One part in so many of the rows in memory leaves at once: going through the indexes pays only for many."""
_LEAST_ROWS = 64
"""Fewer rows than these are not worth a run of their own."""


def coordinated(in_memory: Int64, on_disk: Int64, tick: int) -> Victims:
    """The same partitions of all inputs, those first of which something is on disk already.

    >>> coordinated(np.array([[400, 500], [400, 100]]), np.array([[0, 0], [0, 3]]), 1)
    {0: [1], 1: [1]}
    """
    rows = in_memory.sum(axis=0)
    begun = on_disk.sum(axis=0) > 0
    order = np.lexsort((np.arange(len(rows)), -rows, ~begun))
    return _of_all_inputs(in_memory, [int(part) for part in order if rows[part]])


def _of_all_inputs(in_memory: Int64, order: list[int]) -> Victims:
    wanted = max(_LEAST_ROWS, -(-int(in_memory.sum()) // _SHARE))
    victims: Victims = {}
    for part in order:
        if wanted <= 0:
            break
        for number in np.flatnonzero(in_memory[:, part]):
            victims.setdefault(int(number), []).append(part)
        wanted -= int(in_memory[:, part].sum())
    return victims


def largest(in_memory: Int64, on_disk: Int64, tick: int) -> Victims:
    """The partitions that have most rows, whosever they are.

    >>> largest(np.array([[400, 500], [400, 100]]), np.zeros((2, 2), np.int64), 1)
    {0: [1]}
    """
    return _one_by_one(in_memory, np.argsort(-in_memory.ravel(), kind="stable"))


def scattered(in_memory: Int64, on_disk: Int64, tick: int) -> Victims:
    """Any partitions, drawn by a generator that the tick seeds."""
    return _one_by_one(in_memory, np.random.default_rng(tick).permutation(in_memory.size))


def _one_by_one(in_memory: Int64, order: NDArray[np.intp]) -> Victims:
    wanted = max(_LEAST_ROWS, -(-int(in_memory.sum()) // _SHARE))
    victims: Victims = {}
    for place in order:
        number, part = divmod(int(place), in_memory.shape[1])
        if wanted > 0 and in_memory[number, part]:
            victims.setdefault(number, []).append(part)
            wanted -= int(in_memory[number, part])
    return victims


POLICIES: Mapping[str, ManyFlush] = {"coordinated": coordinated, "largest": largest, "random": scattered}


def many_flush(name: str, on_one_attribute: bool) -> ManyFlush:
    """The policy of a name; `auto` is `coordinated` where that is possible, else `largest`."""
    if name == "auto":
        name = "coordinated" if on_one_attribute else "largest"
    if name not in POLICIES:
        raise SpecError(f"flush={name!r} is not known; choose auto, {', '.join(sorted(POLICIES))}")
    if name == "coordinated" and not on_one_attribute:
        raise SpecError(
            "flush='coordinated' needs inputs that are all joined on one attribute, and these are joined on several; "
            "choose 'largest' or 'random'"
        )
    return POLICIES[name]
