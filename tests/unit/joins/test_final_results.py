"""`emit="final"`: results in the order of their times, none before its time has passed, within the budget."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import Arrive, End, Punctuate, Stall, Status
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.engine.held_results import HeldResults
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.memory import Budget
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})


def join_of(memory: int | None = None, **words: Any) -> WindowConfluence:
    window = parse_windows(words.pop("window", 10), "t", emit="final", **words)
    spec = WindowJoinSpec(SCHEMA, SCHEMA, parse_on("k"), window=window)
    return WindowConfluence(spec, memory or WindowConfluence.least_memory(spec) + (1 << 20), MemoryStore())


def work_off(join: WindowConfluence, now: float = 0.0) -> list[tuple[int, int]]:
    found = []
    while True:
        step = join.poll(now, 1000)
        join.check()
        if step.out is not None:
            found += list(zip(step.out["t"].to_pylist(), step.out["t_right"].to_pylist(), strict=True))
        if step.status not in (Status.HAS_OUTPUT, Status.HAS_WORK):
            return found


def tell(join: WindowConfluence, side: int, times: list[int], now: float = 0.0) -> list[tuple[int, int]]:
    join.receive(Arrive(side, pa.record_batch({"k": [1] * len(times), "t": times}, schema=SCHEMA)))
    return work_off(join, now)


def test_a_result_comes_once_none_of_an_earlier_time_can_follow() -> None:
    join = join_of(lateness=3)
    assert tell(join, 0, [10, 20]) == []
    assert tell(join, 1, [12, 11]) == []  # the pair of 10 and 12 has time 12, and the right input is at 9
    assert tell(join, 1, [15]) == [(10, 11)]  # it is at 12 now, which may still come
    assert tell(join, 1, [16]) == [(10, 12)]
    assert tell(join, 1, [24]) == [(10, 15), (10, 16)]
    join.receive(End(0))
    assert sorted(work_off(join)) == [(20, 11), (20, 12), (20, 15), (20, 16)]
    join.receive(End(1))
    assert work_off(join) == [(20, 24)]


def test_a_punctuation_and_a_silence_let_results_go() -> None:
    join = join_of(idle=30)
    tell(join, 0, [10, 20], now=0.0)
    assert tell(join, 1, [10], now=1.0) == []
    join.receive(Punctuate(1, wm.Punctuation({"t": wm.between(None, 15)}).pattern))
    assert work_off(join, 1.0) == [(10, 10)]
    assert tell(join, 1, [18], now=2.0) == []
    assert tell(join, 0, [40], now=3.0) == []  # the right input is at 18, which may still come
    assert sorted(tell(join, 0, [41], now=40.0)) == [(10, 18), (20, 10), (20, 18)]


@pytest.mark.parametrize("memory", [None, 16 << 20], ids=["least", "plenty"])
def test_what_waits_is_within_the_budget_or_on_disk(memory: int | None) -> None:
    count, lag = 3_000, 900
    rng = np.random.default_rng(4)
    times = [np.sort(rng.integers(0, count, count)) for _ in (0, 1)]
    spec = WindowJoinSpec(
        SCHEMA, SCHEMA, parse_on("k"), window=parse_windows(60, "t", lateness=lag, emit="final", late="error")
    )
    join = WindowConfluence(spec, memory or WindowConfluence.least_memory(spec), MemoryStore(), floor=0)
    found = []
    for start in range(0, count, 100):
        for side in (0, 1):
            some = times[side][start : start + 100]
            batch = pa.record_batch([pa.array(np.arange(start, start + 100) % 7), pa.array(some)], schema=SCHEMA)
            join.receive(Arrive(side, batch))
            found += work_off(join)
            assert join.budget.peak <= join.budget.total
    assert join.held is not None and join.held.rows > 1_000
    for side in (0, 1):
        join.receive(End(side))
        found += work_off(join)
    keys = np.arange(count) % 7
    meet = (keys[:, None] == keys) & (np.abs(times[0][:, None] - times[1]) <= 60)
    expected = Counter((int(times[0][i]), int(times[1][j])) for i, j in zip(*np.nonzero(meet), strict=True))
    assert Counter(found) == expected
    assert all(max(one) <= max(other) for one, other in pairwise(found))
    assert bool(join.events["held on disk"]) == (memory is None)


def test_a_silence_settles_what_holds_results_back() -> None:
    join = join_of(memory=WindowConfluence.least_memory(join_of().spec), window=2_000)
    found = []
    for start in range(0, 6_000, 200):
        for side in (0, 1):
            found += tell(join, side, [*range(start, start + 200)][::20])
    join.receive(Stall())
    found += work_off(join)
    # All but the last row's are final: it may yet meet rows of its own time.
    assert {max(pair) for pair in found} == {*range(0, 5_980, 20)}


@pytest.mark.parametrize("pieces", [1, 40, 400])
def test_held_results_come_in_order_whatever_they_came_in(pieces: int) -> None:
    rng = np.random.default_rng(pieces)
    schema = pa.schema({"n": pa.int64(), "word": pa.dictionary(pa.int8(), pa.string())})
    times = rng.integers(0, 500, 2_000)
    budget = Budget(40_000)
    store = MemoryStore()
    held = HeldResults(schema, budget, 10_000, store, 1_024, lambda names: [store.remove(name) for name in names])
    found: list[int] = []
    for number, part in enumerate(np.array_split(np.arange(2_000), pieces)):
        for some in np.array_split(part, -(-len(part) // 100)):
            words = pa.array([f"word {i % 150}" for i in some], schema.field("word").type)
            held.add(times[some], pa.record_batch([pa.array(some), words], schema=schema))
            held.check()
        budget.check()
        if number == pieces // 2:
            state = held.to_state()
            budget = Budget(40_000)
            held = HeldResults(schema, budget, 10_000, store, 1_024, lambda names: [store.remove(n) for n in names])
            held.load(state)
    while held.rows:
        held.prepare(before=1_000, limit=2_048)
        out = held.hand_out()
        assert out.num_rows == 1 or out.nbytes <= 2_048
        assert out["word"].to_pylist() == [f"word {n % 150}" for n in out["n"].to_pylist()]
        found += out["n"].to_pylist()
        held.check()
    assert sorted(found) == list(range(2_000)) and (np.diff(times[found]) >= 0).all()
    assert store.names() == [] and store.bytes_written > 0


def test_joins_that_hand_out_at_once_say_so() -> None:
    table = pa.table({"k": [1], "t": [1]})
    with pytest.raises(SpecError, match="ewj hands out results as it finds them, and cannot do emit='final'"):
        wm.window_join(table, table, "k", window=5, time="t", emit="final", algorithm="ewj")


def test_the_verb() -> None:
    left = pa.table({"k": [1, 2, 1, 2], "t": [9, 3, 7, 1]})
    right = pa.table({"k": [2, 1, 2, 1], "t": [1, 8, 4, 2]})
    result = wm.window_join(left, right, "k", time="t", window=3, lateness=10, emit="final")
    rows = result.table()
    later = np.maximum(rows["t"].to_numpy(), rows["t_right"].to_numpy())
    assert rows.num_rows == 6 and (np.diff(later) >= 0).all()
