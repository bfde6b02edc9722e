"""Inputs of a window join that fall silent, and such as tell the time between their rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from waiting import until
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import Arrive, End, Punctuate, Status
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.engine.shell import Operator
from watersmeet.planner import WINDOW_ALGORITHMS, build_window
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
LEFT, RIGHT = 0, 1


def join_of(name: str = "confluence", **words: Any) -> Operator:
    window = parse_windows(words.pop("window", 10), "t", **words)
    spec = WindowJoinSpec(SCHEMA, SCHEMA, parse_on("k"), window=window)
    return build_window(spec, 4 << 20, MemoryStore(), name)


def tell(join: Operator, now: float, side: int | None = None, times: list[int] | None = None) -> list[tuple[int, int]]:
    """Rows of one key, or nothing but a look at the clock; the pairs of times that come of it."""
    if side is not None:
        batch = pa.record_batch({"k": [1] * len(times or []), "t": times or []}, schema=SCHEMA)
        join.receive(Arrive(side, batch))
    found = []
    while True:
        step = join.poll(now, 1000)
        join.check()
        if step.out is not None:
            found += list(zip(step.out["t"].to_pylist(), step.out["t_right"].to_pylist(), strict=True))
        if step.status is not Status.HAS_OUTPUT:
            return found


@pytest.mark.parametrize("name", WINDOW_ALGORITHMS)
def test_a_silent_input_holds_the_other_no_longer_than_idle(name: str) -> None:
    joins = {idle: join_of(name, idle=idle) for idle in (None, 30)}
    for join in joins.values():
        tell(join, 0.0, RIGHT, [0])
        for second in range(0, 400, 2):
            tell(join, float(second), LEFT, [*range(100 * second, 100 * second + 100)])
    assert joins[None].window_rows > 19_000
    assert joins[30].window_rows < 6_000 and joins[30].events["overtaken"] > 50


def test_what_it_says_then_is_late_until_it_has_caught_up() -> None:
    join = join_of(idle=30, lateness=5)
    tell(join, 0.0, RIGHT, [0])
    tell(join, 1.0, LEFT, [100])
    assert join.wake_at() == 30.0
    assert tell(join, 29.0, LEFT, [101]) == [] and join.timed.newest == [101, 0]
    assert tell(join, 30.0) == [] and join.timed.newest == [101, 101] and join.wake_at() is None
    tell(join, 31.0, LEFT, [200])
    assert join.timed.newest == [200, 200]
    # What it says now is late before 195; and from now on it is waited for.
    assert tell(join, 32.0, RIGHT, [194, 195]) == [(200, 194), (200, 195)] and join.timed.late == [0, 1]
    tell(join, 33.0, LEFT, [300])
    assert join.timed.newest == [300, 200] and join.wake_at() == 62.0


def test_nobody_is_overtaken_by_one_that_fell_silent_before() -> None:
    join = join_of(idle=30)
    tell(join, 0.0, LEFT, [100])
    tell(join, 1.0, RIGHT, [50])
    tell(join, 1000.0)
    assert join.timed.newest == [100, 50]  # the left one fell silent first, and is ahead


def test_asked_late_the_answer_is_the_same() -> None:
    """An input that was overtaken while nobody polled has been overtaken none the less."""
    found = []
    for looks in ([], [31.0, 35.0]):
        join = join_of(idle=30, late="drop")
        tell(join, 0.0, RIGHT, [0])
        tell(join, 1.0, LEFT, [100, 101])
        for now in looks:
            tell(join, now)
        found.append((sorted(tell(join, 40.0, RIGHT, [95, 101])), join.timed.late))
    assert found[0] == found[1] == ([(100, 101), (101, 101)], [0, 1])


def test_an_input_that_never_said_anything_holds_nobody() -> None:
    join = join_of(idle=30)
    tell(join, 5.0, LEFT, [0])
    assert join.wake_at() is not None and round(join.wake_at() or 0.0) == 35
    for second in range(40, 240):
        tell(join, float(second), LEFT, [*range(100 * second, 100 * second + 100)])
    assert join.window_rows < 6_000


@pytest.mark.parametrize("name", WINDOW_ALGORITHMS)
def test_a_punctuation_tells_how_far_an_input_has_come(name: str) -> None:
    join = join_of(name, lateness=5, late="drop")
    tell(join, 0.0, LEFT, [*range(100)])
    assert join.window_rows == 100
    join.receive(Punctuate(RIGHT, wm.Punctuation({"t": wm.between(None, 79)}).pattern))
    tell(join, 0.0)
    assert join.timed.timing.late_before(join.timed.newest[RIGHT]) == 80
    assert tell(join, 0.0, RIGHT, [79]) == [] and join.timed.late == [0, 1]
    assert len(tell(join, 0.0, RIGHT, [80])) == 21
    join.receive(Punctuate(RIGHT, wm.Punctuation({"t": wm.between(None, 10_000)}).pattern))
    tell(join, 0.0, LEFT, [200])
    assert join.window_rows <= 2, "what nobody can meet any more is forgotten"


def test_a_punctuation_is_a_sign_of_life() -> None:
    join = join_of(idle=30)
    tell(join, 0.0, RIGHT, [0])
    tell(join, 10.0, LEFT, [100])
    join.receive(Punctuate(RIGHT, wm.Punctuation({"k": 7}).pattern))  # says nothing about the time
    tell(join, 25.0)
    tell(join, 50.0, LEFT, [200])
    assert join.timed.newest == [200, 0] and join.wake_at() == 55.0


def test_a_punctuation_stands_between_the_rows_it_was_sent_between() -> None:
    join = join_of(late="drop")
    for times in ([1, 2], None, [3, 9]):
        if times is None:
            join.receive(Punctuate(LEFT, wm.Punctuation({"t": wm.between(None, 5)}).pattern))
        else:
            join.receive(Arrive(LEFT, pa.record_batch({"k": [1, 1], "t": times}, schema=SCHEMA)))
    tell(join, 0.0)
    assert join.timed.late == [1, 0] and join.window_rows == 3


def test_a_punctuation_that_is_no_time_is_refused() -> None:
    with pytest.raises(SpecError, match="says 'noon' of 't', which is no int64; correct the source"):
        join_of().receive(Punctuate(LEFT, wm.Punctuation({"t": wm.between(None, "noon")}).pattern))


def test_a_snapshot_remembers_who_fell_silent() -> None:
    join = join_of(idle=30)
    tell(join, 0.0, RIGHT, [0])
    tell(join, 1.0, LEFT, [100])
    restored = type(join).restore(join.spec, join.snapshot(), 4 << 20, join.store)
    assert restored.wake_at() == 30.0
    tell(restored, 30.0)
    assert restored.timed.newest == [100, 100]


def test_live_the_clock_takes_a_silent_input_out_of_the_watermark() -> None:
    """The right input says one thing and then nothing until the left one's rows have been forgotten."""
    met, forgotten = [], []

    def left() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": [1], "t": [0]})
        until(lambda: met, "both first rows have come: on a busy machine the right one may be long in coming")
        start = 1000
        while not forgotten:
            yield pa.record_batch({"k": [1], "t": [start]})
            start += 1000
            time.sleep(0.01)

    def right() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": [1], "t": [0]})
        while not forgotten:
            time.sleep(0.01)
        yield pa.record_batch({"k": [1], "t": [0]})

    def look(progress: Any) -> None:
        if progress.rows_out:
            met.append(progress.rows_out)
        if progress.reached and progress.reached[1]:
            forgotten.append(progress.reached)

    result = wm.window_join(
        left(), right(), on="k", time="t", window=10, idle=timedelta(milliseconds=200), late="drop", on_progress=look
    )
    rows = result.table().to_pylist()
    assert forgotten and {"k": 1, "t": 0, "t_right": 0} in rows
    assert len(rows) == 1 and result.progress.late == (0, 1)


@pytest.mark.parametrize("on", [None, wm.band("k", 2)], ids=["time", "band"])
@pytest.mark.parametrize("memory", [None, 64 << 20], ids=["least", "plenty"])
def test_without_an_equality_time_or_values_find_rows(on: Any, memory: int | None) -> None:
    count, window = 6_000, (40, 15) if memory else (4_000, 1_500)
    rng = np.random.default_rng(3)
    times = [np.sort(rng.integers(0, 20_000, count)) for _ in (0, 1)]
    keys = [rng.integers(0, 50, count) for _ in (0, 1)]
    spec = WindowJoinSpec(SCHEMA, SCHEMA, parse_on(on), window=parse_windows(window, "t"))
    kind = WINDOW_ALGORITHMS["confluence"]
    options = {"floor": 0} if memory is None else {}
    join = kind(spec, memory or kind.least_memory(spec), MemoryStore(), **options)
    found = 0
    for start in range(0, count, 100):
        for side in (0, 1):
            some = slice(start, start + 100)
            join.receive(Arrive(side, pa.record_batch([keys[side][some], times[side][some]], schema=SCHEMA)))
            found += work_off(join)
    for side in (0, 1):
        join.receive(End(side))
        found += work_off(join)
    apart = times[1] - times[0][:, None]
    meet = (apart <= window[0]) & (apart >= -window[1])
    if on is not None:
        meet &= np.abs(keys[1] - keys[0][:, None]) <= 2
    assert found == int(meet.sum())
    if memory is None:
        assert join.events["expired runs"] > 3 and join.events["flushed"] > 3
        assert sum(count for name, count in join.events.items() if name.startswith("settled")) > 3
    else:
        # Few more are looked at than are found: rows are sorted by what tells them apart.
        assert join.cost.comparisons < 100 * found


def work_off(join: Any) -> int:
    found = 0
    while True:
        step = join.poll(0.0, 1000)
        join.check()
        found += step.cost.results
        if step.status is not Status.HAS_OUTPUT:
            return found


@pytest.mark.parametrize("name", WINDOW_ALGORITHMS)
@pytest.mark.parametrize("told", ["by a promise", "by a row without a key"])
def test_all_that_an_input_said_counts_before_more_rows_are_asked_for(name: str, told: str) -> None:
    """However little fuel there is: whoever has been overtaken is behind all of it."""
    join = join_of(name, idle=30)
    tell(join, 0.0, LEFT, [0])
    by_row = told == "by a row without a key"
    times, keys = ([50, 51, 100], [1, 1, None]) if by_row else ([50, 51], [1, 1])
    join.receive(Arrive(RIGHT, pa.record_batch({"k": keys, "t": times}, schema=SCHEMA)))
    if not by_row:
        join.receive(Punctuate(RIGHT, wm.Punctuation({"t": wm.between(None, 99)}).pattern))
    while join.poll(60.0, 1).status is Status.HAS_OUTPUT:
        join.check()
    tell(join, 61.0, LEFT, [99])
    assert join.timed.newest == [100, 100] and join.timed.late == [1, 0]
