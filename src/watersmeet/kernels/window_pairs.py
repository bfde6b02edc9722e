"""Which pairs of rows with equal hashes are close enough in time."""

from __future__ import annotations

from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.kernels.addressed import WORDS, _described, _number, fetch, read64
from watersmeet.kernels.compile import inlined, kernel
from watersmeet.kernels.window_index import last_time

_AHEAD = 24


@inlined
def _place(sources: Any, words: Any, code: Any) -> Any:
    """Where the value of a row in a column of words lies."""
    which, row = _number(code)
    shift = sources[which, 2]
    at, origin = _described(sources, which, row >> shift)
    return origin + read64(at + words) + 8 * (row & ((1 << shift) - 1))


@kernel
def within(
    looking: Int64, numbers: Any, probes: Int32, found: Int64, rows: Any, column: int, window: Int64, keep: Bool
) -> None:
    """Which rows that were found meet the rows that look for them, each of which came after what it looks for?

    `numbers` are those of rows that look, of which `probes` tells which found what; their times are in a column, and
    their floors in the next. `window` is theirs, as in `window_index.scan`. Where both lie, `kernels.addressed` says.
    """
    words = 8 * WORDS * np.int64(column)
    floors = words + 8 * WORDS
    counted, behind, ahead = window[0], window[5], window[6]
    count = rows.shape[0]
    for i in range(count):
        if i + _AHEAD < count:
            fetch(_place(found, words, rows[i + _AHEAD]))
            fetch(_place(looking, words, numbers[probes[i + _AHEAD]]))
            fetch(_place(looking, floors, numbers[probes[i + _AHEAD]]))
        time = read64(_place(found, words, rows[i]))
        who = numbers[probes[i]]
        own, floor = read64(_place(looking, words, who)), read64(_place(looking, floors, who))
        keep[i] = time >= floor and (
            counted != 0
            or (
                time <= last_time(own, floor, window[1], window[2], window[3], window[4])
                and (time <= own - behind or time >= own + ahead)
            )
        )
