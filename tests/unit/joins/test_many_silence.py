"""Inputs of a window join of several that fall silent: they hold back the others for so long, and no longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm
from waiting import until
from watersmeet.core.errors import SpecError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, Status
from watersmeet.planner import WINDOWED_MULTIWAY
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
ON = ["r.k = s.k", "s.k = u.k"]
R, S, U = range(3)


def join_of(name: str = "confluence", window: Any = 10, **words: Any) -> Any:
    windows = parse_many_windows(window, "rsu", "t", **words)
    return WINDOWED_MULTIWAY[name](
        MultiSpec.of(dict.fromkeys("rsu", SCHEMA), ON, window=windows), 4 << 20, MemoryStore()
    )


def tell(join: Any, now: float, number: int | None = None, times: list[int] | None = None) -> list[tuple[int, ...]]:
    """Rows of one key, or nothing but a look at the clock; the times of the combinations that come of it."""
    if number is not None:
        batch = pa.record_batch({"k": [1] * len(times or []), "t": times or []}, schema=SCHEMA)
        join.receive(Arrive(number, batch))
    found = []
    while True:
        step = join.poll(now, 1000)
        join.check()
        if step.out is not None:
            found += list(zip(*(step.out[f"{name}_t"].to_pylist() for name in "rsu"), strict=True))
        if step.status is not Status.HAS_OUTPUT:
            return found


@pytest.mark.parametrize("name", WINDOWED_MULTIWAY)
def test_a_silent_input_holds_the_others_no_longer_than_idle(name: str) -> None:
    joins = {idle: join_of(name, idle=idle) for idle in (None, 30)}
    for join in joins.values():
        tell(join, 0.0, U, [0])
        for second in range(0, 400, 2):
            for number in (R, S):  # of rows that find nobody: the windows of two inputs are far apart
                tell(join, float(second), number, [*range(100 * second + 50 * number, 100 * second + 50 * number + 40)])
    assert joins[None].window_rows > 15_000
    assert joins[30].window_rows < 5_000 and joins[30].events["overtaken"] > 50


@pytest.mark.parametrize("name", WINDOWED_MULTIWAY)
def test_it_follows_the_one_that_has_come_least_far(name: str) -> None:
    join = join_of(name, idle=30, lateness=5)
    tell(join, 0.0, U, [0])
    tell(join, 1.0, R, [100])
    tell(join, 2.0, S, [98])
    assert join.timed.clock.newest == [100, 98, 0] and join.wake_at() == 30.0
    tell(join, 29.0, R, [100])
    assert join.timed.clock.newest == [100, 98, 0]
    assert tell(join, 30.0) == [] and join.timed.clock.newest == [100, 98, 98], "s is waited for anyway"
    tell(join, 31.0, S, [99])
    assert join.timed.clock.newest == [100, 99, 99]
    # What it says now is late before 94; and from now on it is waited for.
    assert len(tell(join, 31.5, U, [93, 94])) == 2 * 2 + 2 * 2 and join.timed.late == [0, 0, 1]
    tell(join, 32.0, S, [200])
    assert join.timed.clock.newest == [100, 200, 99]


def test_one_after_the_other_is_overtaken_and_the_last_to_speak_never() -> None:
    join = join_of(idle=30)
    tell(join, 0.0, U, [5])
    tell(join, 10.0, S, [50])
    tell(join, 20.0, R, [100])
    assert join.wake_at() == 30.0
    tell(join, 30.0)
    assert join.timed.clock.newest == [100, 50, 50] and join.wake_at() == 40.0
    tell(join, 40.0)
    assert join.timed.clock.newest == [100, 100, 100] and join.wake_at() is None
    tell(join, 1000.0)
    tell(join, 1001.0, U, [300])
    assert join.timed.clock.newest == [100, 100, 300], "r fell silent after s, and both before u"
    tell(join, 1002.0)
    assert join.timed.clock.newest == [300, 300, 300]


@pytest.mark.parametrize("name", WINDOWED_MULTIWAY)
def test_asked_late_the_answer_is_the_same(name: str) -> None:
    """An input that was overtaken while nobody polled has been overtaken none the less."""
    found = []
    for looks in ([], [31.0, 32.0, 35.0]):
        join = join_of(name, idle=30, late="drop")
        tell(join, 0.0, U, [0])
        tell(join, 1.0, R, [100, 101])
        tell(join, 2.0, S, [99])
        for now in looks:
            tell(join, now)
        found.append((sorted(tell(join, 40.0, U, [98, 101])), join.timed.late))
    # By then s has been overtaken, too, and so u is behind r: its row of 98 is late.
    assert found[0] == found[1] == ([(100, 99, 101), (101, 99, 101)], [0, 0, 1])


@pytest.mark.parametrize("name", WINDOWED_MULTIWAY)
def test_a_snapshot_remembers_who_fell_silent(name: str) -> None:
    join = join_of(name, idle=30)
    tell(join, 0.0, U, [0])
    tell(join, 1.0, R, [100])
    tell(join, 2.0, S, [100])
    restored = type(join).restore(join.spec, join.snapshot(), 4 << 20, join.store)
    assert restored.wake_at() == 30.0
    tell(restored, 30.0)
    assert restored.timed.clock.newest == [100, 100, 100]


def test_without_idle_a_join_is_the_one_that_it_was() -> None:
    spec, silent = join_of().spec, join_of(idle=30).spec
    assert spec.fingerprint == "a8ec5ea96173b886" != silent.fingerprint


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="a window of rows knows no time, so idle has no meaning; leave it out"):
        parse_many_windows(wm.rows(5), "rs", idle=3)
    with pytest.raises(SpecError, match="idle=0 would take every input for silent"):
        parse_many_windows(5, "rs", "t", idle=0)
    tables = dict.fromkeys("rs", pa.table({"k": [1]}))
    with pytest.raises(
        SpecError, match=r"time, lateness, late and idle belong to a join by windows; give window=\.\.\."
    ):
        wm.multijoin(tables, "r.k = s.k", idle="3 s")


@pytest.mark.parametrize("name", WINDOWED_MULTIWAY)
def test_live_the_clock_takes_a_silent_input_out_of_the_watermark(name: str) -> None:
    """One input says one thing and then nothing until the rows of the others have been forgotten."""
    met: list[int] = []
    forgotten: list[Any] = []

    def fast() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": [1], "t": [0]})
        until(lambda: met, "all first rows have come: on a busy machine the silent one may be long in coming")
        start = 1000
        while not forgotten:
            yield pa.record_batch({"k": [1], "t": [start]})
            start += 1000
            time.sleep(0.01)

    def silent() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": [1], "t": [0]})
        while not forgotten:
            time.sleep(0.01)
        yield pa.record_batch({"k": [1], "t": [0]})

    def look(progress: Any) -> None:
        if progress.rows_out:
            met.append(progress.rows_out)
        if progress.reached and progress.reached[U]:
            forgotten.append(progress.reached)

    result = wm.multijoin(
        {"r": fast(), "s": fast(), "u": silent()}, ON, time="t", window=10, idle="200 ms", late="drop",
        algorithm=name, on_progress=look,
    )  # fmt: skip
    rows = result.table().to_pylist()
    assert forgotten and {"k": 1, "r_t": 0, "s_t": 0, "u_t": 0} in rows
    assert [row["u_t"] for row in rows] == [0] and result.progress.late == (0, 0, 1)
