"""Cases of premature dumps: rows that come in a burst, faster than a window join works, wait on disk before they join.

The thesis's joins have two kinds of dumps: blocks of a window that have met the disk (mature), which the operator
writes, and rows that the input buffer has no room for (premature), which the spool writes. A case must have both.
"""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pyarrow as pa

import watersmeet as wm
from conformance.drivers import PATIENCE, held_back

_WIDTH = 48
_STEP = 250


def burst(rng: np.random.Generator, rows: int, distinct: int) -> pa.RecordBatch:
    """Rows in the order of their times, some with the same, some without a key."""
    ids = rng.integers(0, distinct, rows)
    return pa.record_batch(
        {
            "id": pa.array(ids, mask=rng.random(rows) < 0.02),
            "ts": np.sort(rng.integers(0, rows // 2, rows)),
            "n": np.arange(rows),
            "t": pa.array(["." * _WIDTH] * rows),
        }
    )


def pairs_within(left: pa.RecordBatch, right: pa.RecordBatch, window: tuple[int, int]) -> Counter[tuple[int, int]]:
    """By definition: equal keys, and the earlier row no older than its window, which is of that row's own input."""
    by_key: dict[int, list[tuple[int, int]]] = {}
    for key, time, number in zip(*(right[name].to_pylist() for name in ("id", "ts", "n")), strict=True):
        by_key.setdefault(key, []).append((time, number))
    rows = zip(*(left[name].to_pylist() for name in ("id", "ts", "n")), strict=True)
    return Counter(
        (number, other)
        for key, time, number in rows
        if key is not None
        for there, other in by_key.get(key, ())
        if (there - time <= window[0] if time <= there else time - there <= window[1])
    )


def premature_case(seed: int, algorithm: str) -> Counter[str]:
    """Both sources read to their ends while the first result is looked at; then everything is joined."""
    rng = np.random.default_rng([seed, 0x9D])
    count, distinct = int(rng.choice([8_000, 12_000])), int(rng.choice([900, 4_000]))
    tables = [burst(rng, count, distinct) for _ in range(2)]
    window = tuple(int(each) for each in rng.choice([count // 16, count // 4], 2))
    go, done = threading.Event(), (threading.Event(), threading.Event())
    sources = [
        wm.source(held_back(table, _STEP, go, each), schema=table.schema)
        for table, each in zip(tables, done, strict=True)
    ]
    found: Counter[tuple[int, int]] = Counter()
    with wm.window_join(
        *sources, on="id", time="ts", window=window, algorithm=algorithm, memory="768 KiB", spool="1 GiB",
        names=("a", "b"),
    ) as result:  # fmt: skip
        for number, batch in enumerate(result):
            if not number:
                go.set()
                assert all(each.wait(PATIENCE) for each in done), "a source had to wait"
                ahead = result.progress.spool
                assert ahead is not None and ahead.waiting_rows > 0
            found.update(zip(batch["n"].to_pylist(), batch["n_right"].to_pylist(), strict=True))
        progress = result.progress
    assert found == pairs_within(tables[0], tables[1], (window[0], window[1])), f"seed {seed}, {algorithm}"
    assert progress.spool is not None and progress.spool.waiting_rows == 0
    assert progress.peak <= progress.budget
    return +Counter(
        {
            "results": sum(found.values()),
            "premature dumps": int(progress.spool.rows > 0),
            "mature dumps": int(progress.spilled > 0),
        }
    )
