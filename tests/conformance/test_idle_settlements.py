"""Settlements in idle time that arrivals interrupt, and that end early when memory is full."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.protocol import Arrive, End, Snapshot, Status
from watersmeet.core.spec import JoinSpec, band, parse_on
from watersmeet.joins.confluence import Confluence
from watersmeet.matching.debts import Debts
from watersmeet.matching.reading import Pages
from watersmeet.matching.settlement import Settlement
from watersmeet.policies.settling import Settling
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.store import MemoryStore, Store

SCHEMA = pa.schema({"key": pa.int64(), "row": pa.int64(), "note": pa.string()})
IDLE = Settling(idle_hashes_per_row=1 << 20, passes_saved=1 << 40, least_rows=1 << 20)
"""Rows settle in every idle moment, and before they are written."""
NOTE = "n" * 400
ROWS = 600
CASES = 6
MOST_POLLS = 200_000


def run(seed: int, width: int | None = None, pages: Pages | None = None, store: Store | None = None) -> Counter[str]:
    """Rows come few at a time, with some idle polls between: each pair is found once; returns what happened."""
    random = np.random.default_rng(seed)
    keys = [random.integers(0, ROWS // 2, ROWS) for _ in (0, 1)]
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("key" if width is None else band("key", width)))
    memory, store = Confluence.least_memory(spec), store or MemoryStore()
    options: dict[str, Any] = {"settling": IDLE, "pages": pages, "fan_in": int(random.choice([3, 32]))}
    join = Confluence(spec, memory, store, **options)
    found: Counter[tuple[int, int]] = Counter()
    events: Counter[str] = Counter()

    def poll(fuel: int) -> Status:
        events["polls"] += 1
        assert events["polls"] < MOST_POLLS, f"seed {seed}: it goes on and on"
        step = join.poll(0.0, fuel)
        join.check()
        if step.out is not None:
            found.update(zip(*(step.out.column(name).to_pylist() for name in ("row", "row_right")), strict=True))
        return step.status

    sent = [0, 0]
    while sent != [ROWS, ROWS]:
        side = int(random.integers(2)) if min(ROWS - sent[0], ROWS - sent[1]) else int(sent[0] == ROWS)
        stop = min(ROWS, sent[side] + int(random.integers(1, 30)))
        rows = np.arange(sent[side], stop)
        join.receive(Arrive(side, pa.record_batch([keys[side][rows], rows, [NOTE] * len(rows)], schema=SCHEMA)))
        sent[side] = stop
        while poll(64) is Status.HAS_OUTPUT:
            pass
        for _ in range(int(random.integers(4))):
            while poll(1) is Status.HAS_OUTPUT:
                pass
        if random.random() < 0.2:
            events += join.events
            saved = join.snapshot()
            state = json.loads(json.dumps(saved.state))
            saved = Snapshot(saved.algorithm, saved.fingerprint, state, saved.segments)
            join = Confluence.restore(spec, saved, memory, store, **options)
    for side in (0, 1):
        join.receive(End(side))
    while poll(64) is not Status.DONE:
        pass
    close = np.abs(keys[0][:, None] - keys[1][None, :]) <= (width or 0)
    assert found == Counter(zip(*(each.tolist() for each in np.nonzero(close)), strict=True)), f"seed {seed}"
    return events + join.events


def test_a_settlement_that_ends_early_meets_no_run_that_was_read_for_it(tmp_path: Path) -> None:
    """Hashes of several runs are read at once: of those that it is not to meet any more, too."""
    events: Counter[str] = Counter()
    for seed in range(CASES):
        with FileStore(tmp_path) as store:
            events += run(seed, store=store)
    assert events["cut short"] > CASES, events


@pytest.mark.parametrize("pages", [None, Pages(hashes=16, rows=4)], ids=["bytes", "pages"])
@pytest.mark.parametrize("width", [None, 1], ids=["equality", "band"])
def test_a_settlement_that_ends_early_loses_and_repeats_nothing(width: int | None, pages: Pages | None) -> None:
    events = sum((run(seed, width, pages) for seed in range(CASES)), Counter())
    assert events["cut short"] > CASES and events["settled in idle time"] > events["cut short"], events
    assert events["merged"] > 0 and events["settled before a flush"] > 0, events


def nothing_was_met(debts: Debts, side: int, entries: Any, upto: int) -> None:
    """What a settlement did before it was cut short is forgotten."""


def everything_was_met(debts: Debts, side: int, entries: Any, upto: int) -> None:
    """A settlement that was cut short is taken for a whole one."""
    debts.have_settled(side, upto)


def one_run_more_was_met(settlement: Settlement) -> list[Any] | None:
    """The run behind the last one is taken for met."""
    return settlement._entries[: settlement._stop + 1] if settlement._stop < len(settlement._entries) else None


def later_rows_have_met(debts: Debts, side: int, entries: Any, upto: int) -> None:
    """Rows that came since the settlement began are taken for those that took part."""
    real_have_met(debts, side, entries, debts._tables[side].rows)


def run_at_hand_is_left(settlement: Settlement) -> bool:
    """A settlement ends in the midst of a run."""
    cut = real_cut_short(settlement)
    settlement._stop = min(settlement._stop, settlement._at)
    return cut


real_have_met, real_cut_short = Debts.have_met, Settlement.cut_short

MUTANTS: dict[str, tuple[type[Any], str, Any]] = {
    "what was met is forgotten": (Debts, "have_met", nothing_was_met),
    "all was met": (Debts, "have_met", everything_was_met),
    "one run more was met": (Settlement, "met", property(one_run_more_was_met)),
    "later rows have met the runs": (Debts, "have_met", later_rows_have_met),
    "the run at hand is left": (Settlement, "cut_short", run_at_hand_is_left),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(AssertionError, match="seed"):
        sum((run(seed) for seed in range(2 * CASES)), Counter())
