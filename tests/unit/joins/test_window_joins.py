"""Window joins step by step: expiry, spilling, what is left on disk, what progress says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.checks.windows import conform_windows
from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError
from watersmeet.core.protocol import Arrive, End, Stall, Status
from watersmeet.core.spec import Output, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.drivers.cost_model import FREE
from watersmeet.engine.shell import Operator
from watersmeet.engine.sizing import Grain
from watersmeet.joins.window.ewj import EWJ
from watersmeet.planner import WINDOW_ALGORITHMS, build_window, choose_window
from watersmeet.runs.window_segments import FOREVER
from watersmeet.sources.schedules import Schedule
from watersmeet.spill.store import MemoryStore

SPILLING = [name for name, join in WINDOW_ALGORITHMS.items() if join.spills]
SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.float64()})


def spec_of(window: object, output: Output = Output.COUNTS) -> WindowJoinSpec:
    time = None if isinstance(window, type(wm.rows(1))) else "t"
    return WindowJoinSpec(SCHEMA, SCHEMA, parse_on("k"), output=output, window=parse_windows(window, time))


def rows(start: int, count: int, keys: int = 50) -> pa.RecordBatch:
    times = np.arange(start, start + count)
    return pa.record_batch([times * 7 % keys, times, times * 0.5], schema=SCHEMA)


def work_off(join: object, now: float = 0.0) -> Cost:
    cost = Cost()
    while True:
        step = join.poll(now, 1000)  # type: ignore[attr-defined]
        join.check()  # type: ignore[attr-defined]
        cost += step.cost
        if step.status is not Status.HAS_OUTPUT:
            return cost


@pytest.mark.parametrize("name", ["ewj", "ah_ewj"])
def test_memory_is_shared_by_what_rows_take_strings_included(name: str) -> None:
    """Rows of 400 bytes on the right, of 8 on the left: equally many are no equal shares."""
    left, right = SCHEMA, SCHEMA.append(pa.field("note", pa.string()))
    spec = WindowJoinSpec(left, right, parse_on("k"), window=parse_windows(5000, "t"))
    join: Any = build_window(spec, 2 << 20, MemoryStore(), name)
    for start in range(0, 1000, 100):
        batch = rows(start, 100)
        join.receive(Arrive(0, batch))
        join.receive(Arrive(1, batch.append_column("note", pa.array(["." * 400] * 100))))
        work_off(join)
    narrow, wide = join.tables
    assert narrow.rows == wide.rows == 1000, "nothing has left memory"
    assert wide.nbytes - narrow.nbytes >= 400 * 1000
    assert join.recent_bytes == join.budget.free + narrow.held + wide.held
    assert join.recent_bytes <= join.budget.total and wide.held >= wide.nbytes
    # Fresh rows of both are as many; those of the right fill their share of the memory first.
    join.fresh_rows[:] = [1000, 1000]
    shares = [table.mean_row_bytes * 1000 for table in join.tables]
    assert shares == pytest.approx([narrow.nbytes, wide.nbytes])
    if name == "ah_ewj":
        join.shares = replace(join.shares, fresh=0.9 * shares[1] / join.recent_bytes)
    else:
        memory = join.recent - join.tails[1].capacity * wide.block_bytes
        join.thresholds = replace(join.thresholds, probe=0.9 * shares[1] / memory)
    assert [join.probe_due(side) for side in (0, 1)] == [False, True]


def expected(count: int, window: int, keys: int = 50) -> int:
    times = np.arange(count)
    near = np.abs(times[:, None] - times[None, :]) <= window
    return int((near & ((times * 7 % keys)[:, None] == (times * 7 % keys)[None, :])).sum())


def on_disk(join: Operator) -> int:
    return sum(join.events[name] for name in ("scans", "md-tasks", "dd-tasks", "settled in a silence"))


def small_memory(name: str) -> int:
    """Much less than windows of some hundreds of rows take."""
    return max(66_000, WINDOW_ALGORITHMS[name].least_memory(spec_of(300)))


@pytest.mark.parametrize("name", WINDOW_ALGORITHMS)
def test_state_stays_bounded_however_long_it_runs(name: str) -> None:
    store = MemoryStore()
    join = WINDOW_ALGORITHMS[name](spec_of(300), 200_000 if name == "symmetric_window" else small_memory(name), store)
    results, held, segments = 0, [], []
    for start in range(0, 12_000, 200):
        for side in (0, 1):
            join.receive(Arrive(side, rows(start, 200)))
            results += work_off(join).results
        held.append(join.window_rows)
        segments.append(len(store.names()))
    for side in (0, 1):
        join.receive(End(side))
    results += work_off(join).results
    assert results == expected(12_000, 300)
    assert max(held[30:]) <= max(held[5:30]) * 1.2 < 4_000
    if join.spills:
        assert 0 < max(segments) < 40 and join.events["expired segments"] + join.events["expired runs"] > 5
        assert store.names() == [], "nothing is left on disk"


@pytest.mark.parametrize("name", sorted({*WINDOW_ALGORITHMS} - {"confluence"}))
def test_fewer_buckets_find_the_same_with_more_comparisons(name: str) -> None:
    comparisons = []
    for bucket_rows in (None, 20, 1 << 31):
        grain = Grain(partitions=1, bucket_rows=bucket_rows)
        join = build_window(spec_of(300), 1 << 20, MemoryStore(), name, grain=grain)
        cost = Cost()
        for start in range(0, 3_000, 200):
            for side in (0, 1):
                join.receive(Arrive(side, rows(start, 200, 1_000)))
                cost += work_off(join)
        assert cost.results == expected(3_000, 300, 1_000)
        comparisons.append(cost.comparisons)
    tuned, coarse, untuned = comparisons
    assert tuned < 3 * 3_000
    assert 5 * tuned < coarse < untuned / 10
    assert untuned > 3_000 * 300, "every row is compared with the other side's whole window"


def test_any_case_is_joined_alike_with_few_buckets() -> None:
    assert conform_windows(WINDOW_ALGORITHMS["ah_ewj"], cases=3, grain=Grain(bucket_rows=30)).cases == 3


@pytest.mark.parametrize("name", SPILLING)
def test_windows_that_fit_never_touch_the_disk(name: str) -> None:
    join = WINDOW_ALGORITHMS[name](spec_of(100), 1 << 20, MemoryStore())
    for start in range(0, 20_000, 500):
        for side in (0, 1):
            join.receive(Arrive(side, rows(start, 500)))
            assert work_off(join).pages_written == 0
    assert join.window_rows < 3_000 and not join.events["dumps"] and not join.events["flushed"]


@pytest.mark.parametrize("name", SPILLING)
def test_a_silence_is_used_for_the_disk(name: str) -> None:
    join = WINDOW_ALGORITHMS[name](spec_of(2_000), small_memory(name), MemoryStore())
    for start in range(0, 2_000, 100):
        for side in (0, 1):
            join.receive(Arrive(side, rows(start, 100)))
            work_off(join)
    before = on_disk(join)
    join.receive(Stall())
    step = join.poll(0.0, 10)
    phases = []
    while step.status is Status.HAS_WORK:
        phases.append(join.phase)  # between two tasks it is none of them
        step = join.poll(0.0, 1000)
    assert step.status is Status.NEED_INPUT and on_disk(join) > before
    assert phases.count("reactive") > len(phases) / 2


def test_a_window_too_large_for_memory_says_so() -> None:
    join = WINDOW_ALGORITHMS["symmetric_window"](spec_of(10**6), 60_000, MemoryStore())
    join.receive(Arrive(0, rows(0, 10_000)))
    with pytest.raises(BudgetError, match="use algorithm='confluence'"):
        work_off(join)


@pytest.mark.parametrize("name", ["ah_ewj", "ewj"])
def test_long_rows_in_the_least_memory_are_all_remembered(name: str) -> None:
    """A page holds two of them: what is on disk is many small segments, unless they become one."""
    schema = pa.schema({"k": pa.int64(), "t": pa.int64(), "v": pa.string()})
    spec = WindowJoinSpec(schema, schema, parse_on("k"), output=Output.ROWS, window=parse_windows(10**6, "t"))
    join = WINDOW_ALGORITHMS[name](spec, WINDOW_ALGORITHMS[name].least_memory(spec), MemoryStore())
    count, results = 400, 0
    for side in (0, 1):
        for start in range(0, count, 100):
            times = range(start, start + 100)
            columns = [[time % 50 for time in times], list(times), ["long" * 200 for _ in times]]
            join.receive(Arrive(side, pa.record_batch([pa.array(each) for each in columns], schema=schema)))
            results += work_off(join).results
    for side in (0, 1):
        join.receive(End(side))
    results += work_off(join).results
    assert results == count * count // 50
    assert join.events["segments joined"] > 0


def test_auto() -> None:
    assert choose_window(spec_of(wm.rows(100)), 1 << 20)[0].name == "confluence"
    chosen, reason = choose_window(spec_of(100), 1 << 20)
    assert chosen.name == "confluence" and "merges what does not" in reason
    assert build_window(spec_of(100), 1 << 20, MemoryStore()).reason == reason


def test_progress_of_a_window_join() -> None:
    left = pa.Table.from_batches([rows(0, 5_000)])
    late = pa.table({"k": [99], "t": [0], "v": [0.0]}, SCHEMA)  # whatever has expired by then, it meets nothing
    with wm.window_join(left, pa.concat_tables([left, late]), on="k", time="t", window=100, memory="4 MiB") as result:
        found = sum(batch.num_rows for batch in result)
        progress = result.progress
    assert found == progress.rows_out == expected(5_000, 100)
    assert progress.late == (0, 1) and progress.delays is not None and 0 <= progress.delays[0] <= progress.delays[1]
    assert "delay" in str(progress) and progress.algorithm == "confluence"


def test_delays_in_the_simulator_are_those_of_the_later_row() -> None:
    tables = [pa.Table.from_batches([rows(0, 3_000)]) for _ in (0, 1)]
    schedule = Schedule(tables, [np.arange(3_000) / 100, np.arange(3_000) / 100])
    windows = parse_windows(200, "t")
    free = wm.simulate("ah_ewj", schedule, on="k", memory="4 MiB", windows=windows, delays=True, cost=FREE, quantum=0)
    assert free.delays is not None and free.delays.count == free.total == expected(3_000, 200)
    assert free.delays.mean == 0.0
    slow = wm.simulate("ah_ewj", schedule, on="k", memory=66_000, windows=windows, delays=True)
    assert slow.delays is not None and slow.total == free.total
    assert slow.delays.mean > 0.001


@pytest.mark.parametrize("name", SPILLING)
@pytest.mark.parametrize("text", [pa.binary(9), pa.string()], ids=str)
def test_rows_come_back_from_the_disk_as_they_were(name: str, text: pa.DataType) -> None:
    """With pages that are large enough for values to be taken straight from where they lie."""
    count, window = 20_000, 6_000
    schema = SCHEMA.append(pa.field("text", text))

    def some(start: int, rows: int) -> pa.RecordBatch:
        times = np.arange(start, start + rows)
        texts = [f"{time:09}" for time in times.tolist()]
        return pa.record_batch(
            [times * 7919 % 3_001, times, times * 0.5, pa.array(texts, pa.string()).cast(text)], schema=schema
        )

    spec = WindowJoinSpec(schema, schema, parse_on("k"), window=parse_windows(window, "t"))
    join = WINDOW_ALGORITHMS[name](spec, 1 << 20, MemoryStore())
    assert name == "confluence" or join.disks[0].by_places  # type: ignore[attr-defined]
    found = []
    events = [Arrive(side, some(start, 500)) for start in range(0, count, 500) for side in (0, 1)]
    for event in [*events, End(0), End(1)]:
        join.receive(event)
        step = join.poll(0.0, 100_000)
        while step.status is Status.HAS_OUTPUT or step.out is not None:
            found += [step.out] if step.out is not None else []
            step = join.poll(0.0, 100_000)
    table = pa.Table.from_batches(found)
    left, right = table["t"].to_numpy(), table["t_right"].to_numpy()
    for times, suffix in ((left, ""), (right, "_right")):
        assert (table[f"v{suffix}"].to_numpy() == times * 0.5).all()
        assert (table[f"text{suffix}"].cast(pa.string()).to_numpy().astype(np.int64) == times).all()
    assert (left % 3_001 == right % 3_001).all(), "7919 is prime to 3001, so keys are equal where times are"
    assert len(table) == sum(
        max(0, count - abs(shift)) for shift in range(-6_002, 6_003, 3_001) if abs(shift) <= window
    )
    assert len(np.unique(left * count + right)) == len(table)
    assert join.events["dumps"] + join.events["flushed"] > 3


@pytest.mark.parametrize("name", WINDOW_ALGORITHMS)
def test_it_tells_how_far_each_input_has_come(name: str) -> None:
    join = build_window(spec_of(300), 1 << 20, MemoryStore(), name)
    join.receive(Arrive(1, rows(1000, 20)))
    work_off(join)
    window = join.report().window
    assert window is not None and window.reached == (None, 1019) and not window.dated
    counted = build_window(spec_of(wm.rows(10)), 1 << 20, MemoryStore(), name).report().window
    assert counted is not None and counted.reached is None


@pytest.mark.parametrize("name", WINDOW_ALGORITHMS)
def test_dates_are_told_in_seconds_since_1970(name: str) -> None:
    table = pa.table({"k": [1, 2], "t": pa.array([1_700_000_000_000, 1_700_000_002_500], pa.timestamp("ms"))})
    result = wm.window_join(table, table[:1], on="k", time="t", window="1 min", algorithm=name)
    result.table()
    assert result.progress.dated and result.progress.reached == (1_700_000_002.5, 1_700_000_000)


class WatchedTail(EWJ):
    """Has its segments in another order than that of their ages, and looks at the tail when it has been refilled."""

    refills: ClassVar[list[tuple[int, int, bool]]] = []
    """Of each, blocks that were brought back, seeks that it took, and whether all that are left on disk are younger."""

    def _refill(self, side: int) -> None:
        seeks, blocks, tail = self.meter.seeks, self.events["tail refilled"], self.tails[side]
        self.disks[side].pieces.reverse()  # segments that became one come last, and may be the oldest
        super()._refill(side)
        self.disks[side].pieces.reverse()
        copied = self.copies.numbers(side)
        absent = [
            int(piece.latest[place])
            for piece in self.disks[side].pieces
            for place in range(len(piece.left))
            if piece.left[place] < FOREVER
            and piece.number + place not in copied
            and self.copies.lives(side, piece, place)
        ]
        newest = int(tail.table.latest[tail.table.live()].max(initial=0))
        refilled = self.events["tail refilled"] - blocks
        self.refills.append((refilled, self.meter.seeks - seeks, not refilled or newest <= min(absent, default=newest)))


def test_the_tail_has_the_oldest_blocks_and_reads_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where segments stand does not tell which blocks expire first."""
    monkeypatch.setattr(WatchedTail, "refills", [])
    monkeypatch.setattr("watersmeet.joins.window.ewj.tail_blocks", lambda *_: 6)
    join = WatchedTail(spec_of(4_000), 96 << 10, MemoryStore())
    for start in range(0, 12_000, 200):
        for side in (0, 1):
            join.receive(Arrive(side, rows(start, 200, keys=2_000)))
            work_off(join)
    refilled = [(blocks, seeks) for blocks, seeks, _ in join.refills if blocks]
    assert len(refilled) > 5 and all(seeks <= blocks for blocks, seeks in refilled), refilled
    assert all(oldest for _, _, oldest in join.refills)

    disk = join.disks[0]
    piece = max(disk.pieces, key=lambda each: len(each.left))
    last, before = len(piece.left) - 1, join.meter.seeks
    assert last > 1
    together = list(join._read_together(disk, piece, 0, last))
    assert join.meter.seeks == before + 1
    for place, pages in together:
        alone = list(disk.pages_of(piece, int(piece.firsts[place]), piece.stop(place)))
        ticks = [[tick for page in of_block for tick in page.ticks.tolist()] for of_block in (pages, alone)]
        assert ticks[0] == ticks[1] and len(ticks[0]) == piece.stop(place) - piece.firsts[place]
