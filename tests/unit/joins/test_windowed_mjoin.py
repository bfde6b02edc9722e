"""MJoin by windows: what a combination is, and that expired rows go, from memory and from disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import LateRowError, SpecError
from watersmeet.core.many_windows import ManyWindows, parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Status
from watersmeet.core.report import WindowFigures
from watersmeet.core.spec import Output
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
from watersmeet.planner import build_multiway
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
ON = ["r.k = s.k", "s.k = u.k"]


def make(windows: ManyWindows, memory: int = 1 << 20, store: MemoryStore | None = None) -> WindowedMJoin:
    spec = MultiSpec.of(dict.fromkeys("rsu", SCHEMA), ON, Output.PAIRS, windows)
    return WindowedMJoin(spec, memory, store or MemoryStore())


def feed(join: WindowedMJoin, number: int, times: Any, key: Any = 7) -> list[tuple[int, ...]]:
    keys = key if isinstance(key, np.ndarray) else [key] * len(times)
    join.receive(Arrive(number, pa.record_batch({"k": keys, "t": times}, SCHEMA)))
    return drain(join)


def drain(join: WindowedMJoin | ManyConfluence) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    while True:
        step = join.poll(0.0, 10_000)
        if step.out is not None:
            found += [tuple(row.values()) for row in step.out.to_pylist()]
        if step.status is not Status.HAS_OUTPUT:
            join.check()
            return found


def test_the_newest_row_decides_whichever_arrives_last() -> None:
    windows = parse_many_windows({"r": 3, "s": 1, "u": 5}, "rsu", time="t")
    join = make(windows)
    assert feed(join, 0, [10]) == feed(join, 1, [12]) == []
    assert feed(join, 2, [8, 13, 14]) == [(0, 0, 0), (0, 0, 1)]  # at 14 the row of s is too old, and so is that of r


def test_windows_of_rows_go_by_the_order_of_arrival() -> None:
    join = make(ManyWindows((wm.rows(2), wm.rows(1), wm.rows(9))))
    feed(join, 0, [0, 0, 0])
    feed(join, 1, [0, 0])
    assert feed(join, 2, [0]) == [(2, 1, 0), (1, 1, 0)]
    assert feed(join, 1, [0]) == [(2, 2, 0), (1, 2, 0)]


@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_a_batch_of_the_own_input_moves_only_its_own_window(chunk: int) -> None:
    join = make(ManyWindows((wm.rows(4),) * 3))
    for number in (0, 1):
        feed(join, number, [0] * 4, 1)
    found = [pair for _ in range(0, 6, chunk) for pair in feed(join, 2, [0] * min(chunk, 6), 1)]
    assert len(found) == 16 * len({row for _, _, row in found})


def test_late_rows_are_kept_dropped_or_refused() -> None:
    for late, expected in (("keep", [(2, 1, 1)]), ("drop", [])):
        join = make(parse_many_windows(2, "rsu", time="t", lateness=1, late=late))
        feed(join, 0, [10, 16, 17])
        feed(join, 1, [10, 17])
        feed(join, 2, [20], key=99)
        # In time would be 19 and later, which meets 17 at best: the row of 16 counts as expired, though it lies close.
        assert feed(join, 2, [17]) == expected
        assert join.timed.late == [0, 0, 1]
    join = make(parse_many_windows(2, "rsu", time="t", late="error"))
    feed(join, 0, [10])
    with pytest.raises(LateRowError, match="row 2 of r"):
        feed(join, 0, [9])


def test_rows_stay_until_the_slowest_input_has_passed_them() -> None:
    join = make(parse_many_windows(5, "rsu", time="t"))
    times = np.arange(2_000)
    for number in (0, 1):
        for start in range(0, 2_000, 100):
            assert feed(join, number, times[start : start + 100], times[start : start + 100]) == []
    assert join.events["expired rows"] == 0 and join.window_rows == 4_000
    found = [row for at in range(0, 2_000, 50) for row in feed(join, 2, times[at : at + 50], times[at : at + 50])]
    assert found == [(row, row, row) for row in range(2_000)]
    assert join.events["expired rows"] > 3_000


@pytest.mark.parametrize("counted", [True, False], ids=["rows", "time"])
@pytest.mark.parametrize("memory", [1 << 22, 160 << 10], ids=["in memory", "spilling"])
def test_state_stays_as_large_as_the_windows(counted: bool, memory: int) -> None:
    window = 1_000
    windows = ManyWindows((wm.rows(window),) * 3) if counted else parse_many_windows(window - 1, "rsu", time="t")
    store = MemoryStore()
    join = make(windows, memory, store)
    random = np.random.default_rng(1)
    held, stored = [], []
    for begin in range(0, 16_000, 250):
        for number in range(3):
            feed(join, number, np.arange(begin, begin + 250), random.integers(0, 4_000, 250))
        held.append(join.window_rows)
        stored.append(len(store.names()))
    settled = held[20:]
    assert min(settled) >= 3 * window, "all windows are remembered"
    if memory > 1 << 20:
        blocks = 3 * join.sizing.layout.partitions * join.sizing.layout.block_rows
        assert max(settled) <= min(3 * window * 1.25 + 3 * 250 + blocks, 3 * 2.5 * window)
        assert not any(stored)
    else:
        assert max(settled) < 3 * 3 * window, "runs go when their newest row has expired"
        assert max(stored[40:]) <= max(stored[20:40]) + 3, "and so do their files"
        assert join.events["expired runs"] > 20
    for number in range(3):
        join.receive(End(number))
    drain(join)
    assert join.phase == "done"


def test_confluence_keeps_windows_of_many_times_the_memory() -> None:
    rows, window = 120_000, 40_000
    spec = MultiSpec.of(dict.fromkeys("rsu", SCHEMA), ON, Output.PAIRS, parse_many_windows(window - 1, "rsu", "t"))
    store = MemoryStore()
    join = ManyConfluence(spec, 400 << 10, store, fan_in=4)
    held, stored, found = [], [], list[tuple[int, ...]]()
    for begin in range(0, rows, 2_000):
        times = np.arange(begin, begin + 2_000)
        for number, behind in enumerate((0, window // 2, 0)):  # every row of s comes half a window late
            batch = pa.record_batch([times - behind, times], schema=SCHEMA)
            join.receive(Arrive(number, batch))
            found += drain(join)
        held.append(join.window_rows)
        stored.append(len(store.names()))
    for number in range(3):
        join.receive(End(number))
    found += drain(join)
    assert sorted(found) == [(row, row + window // 2, row) for row in range(rows - window // 2)]
    assert all(join.events[each] for each in ("flushed", "merged", "expired runs")), join.events
    assert 3 * window <= max(held) < 3 * 2 * window and join.budget.peak <= 400 << 10
    assert max(stored[40:]) <= max(stored[20:40]) + 8, "what has expired goes, its files, too"


def test_what_windows_cannot_be_is_refused() -> None:
    tables = {name: pa.table({"k": [1], "t": [1], "when": ["noon"]}) for name in "rsu"}

    def refuse(words: str, **options: Any) -> None:
        with pytest.raises(SpecError, match=words):
            wm.multijoin(tables, on=ON, memory="8 MiB", **options)

    refuse("tree knows no windows", window=5, time="t", algorithm="tree")
    refuse("miner knows no windows", window=5, time="t", algorithm="miner")
    refuse("needs time=", window=5)
    refuse("has no meaning", window=wm.rows(5), time="t")
    refuse("let all do the same", window={"r": 5, "s": wm.rows(5), "u": 5}, time="t")
    refuse("there is none for u", window={"r": 5, "s": 5}, time="t")
    refuse("there is no input x", window={"r": 5, "s": 5, "u": 5, "x": 1}, time="t")
    refuse("not for several inputs", window=wm.landmark("1 d"), time="t")
    refuse("cannot tell the time", window=5, time="when")
    refuse("does not go with a time column", window="5 min", time="t")
    refuse("belong to a join by windows", time="t")
    refuse("late='never'", window=5, time="t", late="never")


def test_the_planner_takes_confluence_for_windows_and_mjoin_if_asked() -> None:
    spec = MultiSpec.of(dict.fromkeys("rsu", SCHEMA), ON, window=parse_many_windows(5, "rsu", "t"))
    join = build_multiway(spec, 1 << 20, MemoryStore())
    assert isinstance(join, ManyConfluence) and "window" in join.reason
    assert isinstance(build_multiway(spec, 1 << 20, MemoryStore(), "mjoin"), WindowedMJoin)


def test_progress_tells_late_rows_and_what_is_remembered() -> None:
    tables = {name: pa.table({"k": [1, 1], "t": [5, 1]}) for name in "rsu"}
    result = wm.multijoin(tables, on=ON, window=10, time="t", memory="8 MiB")
    assert result.table().num_rows == 8
    assert result.progress.late == (1, 1, 1) and result.progress.window_rows is not None


def test_it_tells_how_far_each_input_has_come() -> None:
    join = make(parse_many_windows(5, "rsu", time="t"))
    assert join.report().window == WindowFigures((0, 0, 0), 0, (0.0, 0.0), reached=(None, None, None))
    feed(join, 0, [10, 30, 20])
    feed(join, 2, [7])
    window = join.report().window
    assert window is not None
    assert window.late == (1, 0, 0) and window.reached == (30, None, 7) and not window.dated
    counted = make(ManyWindows((wm.rows(2),) * 3)).report().window
    assert counted is not None and counted.reached is None


def test_times_of_different_units_are_told_in_seconds_since_1970() -> None:
    clicks, orders, payments = (
        pa.table({"k": [1], "t": pa.array([second * 10**9 // nanoseconds], pa.timestamp(unit))})
        for unit, nanoseconds, second in (("s", 10**9, 1_700_000_000), ("ms", 10**6, 1_700_000_001), ("ns", 1, 3))
    )
    inputs = {"clicks": clicks, "orders": orders, "payments": payments}
    on = ["clicks.k = orders.k", "orders.k = payments.k"]
    result = wm.multijoin(inputs, on=on, time="t", window="1 min", memory="8 MiB")
    result.table()
    assert result.progress.dated and result.progress.reached == (1_700_000_000, 1_700_000_001, 3)
