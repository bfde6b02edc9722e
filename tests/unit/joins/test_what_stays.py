"""Rows that stay in memory when the others of their memtable leave it, however wide they are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.arrays import Int32
from watersmeet.core.protocol import Arrive, End, Status
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.confluence.flushing import Flushing, Stayed
from watersmeet.policies.keeping import Keeping
from watersmeet.policies.settling import Settling
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"key": pa.int64(), "note": pa.string()})
HOT = 20
ROWS = 400
BATCHES = 40
SETTLED = Settling(passes_saved=1 << 40)
"""Rows settle before they are written, always."""


class Watched(Flushing):
    """Notes how large copies are."""

    most_copied = 0

    def copied(self, side: int, numbers: Int32) -> Stayed:
        stayed = super().copied(side, numbers)
        self.most_copied = max(self.most_copied, sum(column.nbytes for column in stayed.columns))
        return stayed


class Keeper(Confluence):
    """Little evidence is enough for rows to stay."""

    def _make_keeping(self) -> Keeping:
        return Keeping(1 << 10, evidence=1)


@pytest.mark.parametrize("wide", [10, 6000], ids=["as wide as others", "nearly all bytes are theirs"])
def test_frequent_rows_stay_within_the_budget(wide: int) -> None:
    random = np.random.default_rng(2)
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("key"))
    join, expected, found = Keeper(spec, 1 << 20, MemoryStore(), floor=0, settling=SETTLED), 0, 0
    join.flushing = watched = Watched(join)
    seen = [np.zeros(10**6, np.int64) for _ in (0, 1)]
    for number in range(2 * BATCHES):
        side = number % 2
        # A tenth of the rows have keys that are asked for again and again; all others come once.
        keys = np.where(random.random(ROWS) < 0.1, random.integers(0, HOT, ROWS), random.integers(HOT, 10**6, ROWS))
        notes = ["n" * (wide if key < HOT else 200) for key in keys.tolist()]
        expected += int(seen[1 - side][keys].sum())
        np.add.at(seen[side], keys, 1)
        join.receive(Arrive(side, pa.record_batch({"key": keys, "note": notes}, SCHEMA)))
        found += drained(join)
        join.check()
    for side in (0, 1):
        join.receive(End(side))
    assert found + drained(join) == expected
    assert join.events["flushed"] > 3
    assert join.budget.peak <= join.budget.total
    assert watched.most_copied <= join.workspace.block_bytes, "they fit into the buffer that runs are written through"
    assert (join.events["rows that stayed"] > 0) is (wide == 10)
    join.close()


def drained(join: Confluence) -> int:
    rows = 0
    while True:
        step = join.poll(0.0, 1 << 16)
        rows += step.out.num_rows if step.out is not None else 0
        if step.status is not Status.HAS_OUTPUT:
            return rows
