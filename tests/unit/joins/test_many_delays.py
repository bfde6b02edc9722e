"""How long results of several inputs may wait, step by step, and what is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from conformance.ways import BUSY, LATE_AND_BUSY
from watersmeet.core.delays import Marks
from watersmeet.core.errors import SpecError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, Status
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.policies.settling import Settling
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
ON = ["r.k = s.k", "s.k = u.k"]
WINDOWS = parse_many_windows(1 << 40, "rsu", time="t")
IDLE = (Status.NEED_INPUT, Status.HAS_WORK)


def batch(first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    return pa.record_batch([numbers, numbers], SCHEMA)


def make(window: Any = None, settling: Settling = BUSY, delay: Any = "2 s") -> ManyConfluence:
    spec = MultiSpec.of(dict.fromkeys("rsu", SCHEMA), ON, window=window)
    memory = ManyConfluence.least_memory(spec)
    return ManyConfluence(spec, memory, MemoryStore(), floor=0, settling=settling, delay=delay)


def work(join: ManyConfluence, now: float) -> int:
    """Poll until nothing is to be done; returns the rows of all results."""
    rows = 0
    while True:
        step = join.poll(now, fuel=1000)
        join.check()
        rows += 0 if step.out is None else step.out.num_rows
        if step.status in IDLE:
            return rows


def send(join: ManyConfluence, number: int, first: int, count: int, now: float) -> int:
    join.receive(Arrive(number, batch(first, count)))
    return work(join, now)


def fill(join: ManyConfluence, event: str, now: float) -> int:
    """Let rows of two inputs come until they have left memory; returns how many of each did."""
    sent = 0
    while not join.events[event]:
        for number in (0, 1):
            assert send(join, number, sent, 500, now) == 0
        sent += 500
    return sent


@pytest.mark.parametrize("window", [None, WINDOWS], ids=["all rows", "windows"])
def test_rows_settle_when_the_oldest_has_owed_for_as_long_as_it_may(window: Any) -> None:
    join = make(window)
    fill(join, "flushed", now=0.0)
    assert work(join, 10.0) == 0
    found = send(join, 2, 0, 1, now=10.0) + send(join, 2, 1, 1, now=11.0)
    assert found == 0 and join.owes and join.wake_at() == pytest.approx(join.owed_since.first(0) + 2.0)
    before = join.events["settled by delay"]
    due = join.wake_at()
    assert due is not None and work(join, due - 0.01) == 0
    assert work(join, max(due, 12.0)) == 2
    assert join.events["settled by delay"] == before + 1 and not join.owes and join.wake_at() is None
    told = join.report().lateness
    assert told is not None and told.owing == 0 and told.most == pytest.approx(2.0)
    assert 0.9 < told.p50 <= told.p99 < 2.3
    if window is not None:
        figures = join.report().window
        assert figures is not None and figures.delays == (told.p50, told.p99)


def test_what_came_since_the_last_settlement_may_wait_as_long_again() -> None:
    join = make()
    fill(join, "flushed", now=0.0)
    work(join, 8.0)
    assert send(join, 2, 0, 1, now=9.0) == 0
    assert work(join, 11.0) == 1
    settled = join.events["settled by delay"]
    assert send(join, 2, 1, 1, now=11.5) == 0 and join.wake_at() == 13.5
    assert join.events["settled by delay"] == settled
    assert work(join, 13.5) == 1


def test_rows_that_were_written_before_they_had_settled_do_not_wait_longer() -> None:
    join = make(settling=LATE_AND_BUSY, delay=50.0)
    fill(join, "flushed owing", now=1.0)
    assert join.owes and join.flushing.owing_on_disk > 0 and join.wake_at() == 51.0
    send(join, 2, 0, 3, now=40.0)
    assert join.events["settled by delay"] == 0
    assert work(join, 51.0) == 3
    assert join.events["settled by delay"] == 1 and not join.owes
    told = join.report().lateness
    assert told is not None and told.most == pytest.approx(11.0)


def test_without_a_delay_nothing_settles_by_it() -> None:
    join = make(delay=None)
    fill(join, "flushed", now=0.0)
    send(join, 2, 0, 1, now=10.0)
    assert join.owes and join.wake_at() is None and work(join, 1e9) == 0
    told = join.report().lateness
    assert told is not None and told.owing == join.owing > 0


def test_two_inputs_hold_it_for_rows_that_were_written_before_they_had_settled() -> None:
    from watersmeet.core.spec import JoinSpec, parse_on

    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("k"))
    join = Confluence(
        spec, Confluence.least_memory(spec), MemoryStore(), floor=0, settling=LATE_AND_BUSY, delay=50.0
    )  # fmt: skip
    first, now = 0, 1.0
    while not join.events["flushed owing"] and first < 1 << 20:
        for side in (0, 1):
            join.receive(Arrive(side, batch(first + (1 << 30) * side, 500)))
            while join.poll(now, fuel=1000).status not in IDLE:
                pass
        first += 500
    assert join.debts.owing_runs(0) or join.debts.owing_runs(1)
    assert join.wake_at() == 51.0
    while join.poll(51.0, fuel=1000).status not in IDLE:
        pass
    assert join.events["settled by delay"] > 0 and not any(map(join.debts.owes, (0, 1)))


def test_rows_that_share_a_mark_came_with_the_first_of_them() -> None:
    marks = Marks()
    for tick in range(1, 5001):
        marks.add(10 * tick, now=float(tick))
    ticks = np.arange(1, 50_001, 7)
    told = marks.times(ticks)
    assert told is not None
    real = -(-ticks // 10)
    assert (told <= real).all() and (told > real - 2).all()
    marks.forget(20_000)
    assert marks.first is not None and 2000 <= marks.first <= 2001
    marks.forget(50_000)
    assert marks.first is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": "1 s", "algorithm": "mjoin"}, "algorithm mjoin has no option 'delay'"),
    ],
)
def test_a_delay_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        wm.multijoin({name: batch(0, 1) for name in "rsu"}, on=ON, **options)


def test_a_delay_is_for_confluence() -> None:
    inputs = {name: pa.table(batch(0, 3).to_pydict()) for name in "rsu"}
    few = dict.fromkeys("rsu", 1000)
    result = wm.multijoin(inputs, on=ON, delay=1, rows=few)
    choice = result.explain().choice
    assert choice is not None and choice.algorithm == "confluence"
    assert result.table().num_rows == 3
    with pytest.raises(SpecError, match="bounds no delay"):
        wm.multijoin(inputs, on=[wm.band("r.k = s.k", 1), "s.k = u.k"], delay=1).table()
