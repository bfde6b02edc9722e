"""Rows that are let go where a join cannot keep up: no more than may, and what is missing is what was said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from conformance.drivers import SCHEMA, made, pairs_of, shed_case
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.drivers import inbox as inboxes
from watersmeet.drivers.shedding import LEAST_BYTES, Losses, loss_bytes


def losses_of(memory: int) -> Losses:
    return Losses(JoinSpec(SCHEMA, SCHEMA, parse_on("id")), 0.5, memory)


def told_and_true(rng: np.random.Generator, losses: Losses, distinct: int, skew: float) -> tuple[Any, int]:
    """What is said to be lost, and what is, when some rows of some batches of two inputs are let go."""
    tables = [made(rng, 6_000, distinct, skew) for _ in range(2)]
    kept: list[list[pa.RecordBatch]] = [[], []]
    for start in range(0, 6_000, 500):
        for side in rng.permutation(2).tolist():
            batch, shed = tables[side].slice(start, 500), start == 3_000 or bool(rng.random() < 0.2)
            losses.count(side, batch, shed=shed)
            if not shed:
                kept[side].append(batch)
    left, right = (pa.Table.from_batches(each, SCHEMA).combine_chunks().to_batches()[0] for each in kept)
    return losses.figures(), pairs_of(*tables) - pairs_of(left, right)


@pytest.mark.parametrize("seed", range(20))
def test_lost_pairs_are_counted_exactly_where_all_keys_have_a_place(seed: int) -> None:
    rng = np.random.default_rng([seed, 0x5E])
    distinct, skew = int(rng.choice([1, 50, 3_000])), float(rng.choice([1, 3]))
    figures, lost = told_and_true(rng, losses_of(1 << 20), distinct, skew)
    assert figures.exact and figures.pairs == figures.pairs_low == lost
    assert sum(figures.rows) > 0


def test_lost_pairs_are_within_the_interval_where_keys_are_sketched() -> None:
    inside = useful = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 0x5F])
        figures, lost = told_and_true(rng, losses_of(1 << 18), 5_000, float(rng.choice([1, 2])))
        assert not figures.exact
        inside += figures.pairs_low <= lost <= figures.pairs_high
        useful += figures.pairs_high - figures.pairs_low < 2 * lost
    assert inside == 40, "once in a thousand times it may be wrong, and these are always the same"
    assert useful > 30, "an interval that has room for everything tells nothing"


def test_a_key_that_came_before_places_were_taken_is_counted_ever_after() -> None:
    losses = losses_of(LEAST_BYTES)
    first = pa.record_batch([pa.array([7] * 10), pa.array(range(10))], schema=SCHEMA)
    losses.count(0, first)
    losses.count(0, made(np.random.default_rng(3), 5_000, 1 << 40, 1))
    losses.count(1, first, shed=True)
    assert losses.figures().pairs_low == 100


def test_counting_takes_what_is_set_aside_for_it() -> None:
    for memory in (1 << 20, 64 << 20, 1 << 30):
        assert 0.4 * loss_bytes(memory) <= losses_of(loss_bytes(memory)).nbytes <= loss_bytes(memory)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_missing_is_what_was_said(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first result is held, rows come: as many are let go as may be, and then the readers wait."""
    monkeypatch.setattr(inboxes, "SHED_AFTER", 0.0)
    assert shed_case(seed)["rows shed"], "nobody had to wait"


def test_no_row_goes_where_the_join_keeps_up() -> None:
    table = made(np.random.default_rng(5), 3_000, 500, 1)
    result = wm.join((table for _ in range(1)), (table for _ in range(1)), on="id", shed=0.5)
    assert result.table().num_rows == pairs_of(table, table)
    assert result.progress.shed is not None and result.progress.shed.rows == (0, 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shed": 1}, "shed must be a share of the rows between 0 and 1"),
        ({"shed": True}, "shed must be a share"),
        ({"shed": 0.1, "how": "left"}, "shed is for inner joins"),
        ({"shed": 0.1, "on": wm.band("id", 1)}, "what shed costs is counted by equal keys, and id need only be close"),
    ],
)
def test_what_cannot_be_shed_is_refused(options: dict[str, Any], sentence: str) -> None:
    def source() -> Any:
        return wm.source(iter([]), schema=SCHEMA)

    with pytest.raises(wm.SpecError, match=sentence):
        wm.join(source(), source(), **{"on": "id", **options})


def test_tables_and_files_wait() -> None:
    table = pa.table({"id": [1]})
    with pytest.raises(wm.SpecError, match="shed is for iterators, whose rows may come too fast"):
        wm.join(table, table, on="id", shed=0.1)
