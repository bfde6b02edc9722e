"""What the experiments charge is what the papers say: bytes, seeks, rows compared, buffers, at any scale."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.cli import reproduce
from watersmeet.core.cost import Cost
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import Arrive, Stall, Status
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.drivers.cost_model import FREE, CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.hmj import HMJ
from watersmeet.joins.progressive.rpj import RPJ
from watersmeet.joins.window.ah_ewj import AHEWJ
from watersmeet.joins.window.rpwj import RPWJ
from watersmeet.sources.schedules import Schedule, poisson
from watersmeet.spill.store import MemoryStore


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of the experiments."""
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return lambda name: importlib.import_module(f"experiments.{name}")


def keys(rows: int, values: int, seed: int, gap: float = 0.001) -> Schedule:
    """Two inputs of random keys."""
    random = np.random.default_rng(seed)
    tables = [pa.table({"key": random.integers(0, values, rows)}) for _ in (0, 1)]
    return Schedule(tables, [poisson(rows, 1 / gap, seed + side) for side in (0, 1)])


# --- the model ---


def test_a_disk_by_bytes_takes_no_note_of_pages() -> None:
    model = CostModel().by_bytes(access=0.01, bandwidth=1000.0, row=100)
    few, many = Cost(seeks=2, disk_rows=5, pages_read=2), Cost(seeks=2, disk_rows=5, pages_read=200)
    assert model.seconds(few) == model.seconds(many) == (0.0, pytest.approx(0.02 + 0.5))


def test_a_run_behind_another_is_a_seek_where_partitions_have_places_of_their_own() -> None:
    cost = Cost(seeks=1, pages_written=10, runs=4)
    apart = CostModel(run=0.01)
    assert apart.seconds(cost)[1] - CostModel().seconds(cost)[1] == pytest.approx(4 * 0.01)


def test_a_faster_processor_changes_nothing_of_the_disk() -> None:
    model = CostModel(nested=1e-6, probe=1e-6)
    cost = Cost(hashes=1, inserts=1, comparisons=1, probes=1, nested=1, seeks=1, pages_read=1)
    slow, fast = model.seconds(cost), model.faster(4).seconds(cost)
    assert (fast[0], fast[1]) == (pytest.approx(slow[0] / 4), slow[1])


# --- what is counted ---


def test_rows_that_arrive_are_compared_with_their_partition_on_the_other_side() -> None:
    """With one partition that is every row of the other side that came before, in whole batches."""
    schedule = keys(300, 50, seed=3)
    trace = simulate("xjoin", schedule, on="key", memory="4 MiB", cost=FREE, quantum=0, grain=Grain(partitions=1))
    order = np.argsort(np.concatenate(schedule.times), kind="stable")
    side = (order >= len(schedule.times[0])).astype(int)
    before = [np.cumsum(side == 0) - (side == 0), np.cumsum(side == 1) - (side == 1)]
    assert trace.cost.nested == sum(int(before[1 - s][i]) for i, s in enumerate(side))
    assert trace.cost.pages_written == 0


@pytest.mark.parametrize("join", ["xjoin", "hmj", "rpj"])
def test_a_flush_of_several_partitions_counts_the_runs_behind_the_first(join: str) -> None:
    options: dict[str, Any] = {"on": "key", "memory": "96 KiB", "cost": FREE, "flush": "all"}
    trace = simulate(join, keys(4000, 500, seed=5), grain=Grain(partitions=4, page_bytes=1024), **options)
    assert trace.cost.runs > 0
    alone = simulate(join, keys(4000, 500, seed=5), grain=Grain(partitions=1, page_bytes=1024), **options)
    assert alone.cost.runs == 0 < alone.cost.pages_written


@pytest.mark.parametrize("kind", [AHEWJ, RPWJ])
def test_window_joins_count_the_rows_that_they_move_and_compare(kind: Any) -> None:
    random = np.random.default_rng(7)
    times = [poisson(3000, 1000.0, seed) for seed in (1, 2)]
    tables = [
        pa.table(
            {"key": random.integers(0, 500, 3000), "ts": pa.array((each * 1e6).astype(np.int64), pa.timestamp("us"))}
        )
        for each in times
    ]
    window = parse_windows(timedelta(seconds=2), "ts")
    spec = WindowJoinSpec(tables[0].schema, tables[1].schema, parse_on("key"), output=Output.COUNTS, window=window)
    counted = {}
    for parts in (1, 4):
        operator = kind(spec, 96 * 1024, MemoryStore(), grain=Grain(partitions=parts, table_rows=16))
        trace = simulate(operator, Schedule(tables, times), cost=FREE, quantum=0.01, wait=0.5)
        counted[parts] = trace.cost
        assert trace.cost.disk_rows > 0 and trace.cost.pages_read > 0 and operator.events["dumps"] > 0
        page = operator.sizing.page_bytes / operator.tables[0].row_bytes
        # What is moved fits on the pages that were counted, and reaches to more than the runs before the last.
        pages = trace.cost.pages_read + trace.cost.pages_written
        assert trace.cost.disk_rows <= 4 * pages * page
        assert trace.cost.disk_rows >= trace.cost.seeks
    assert counted[4].nested < counted[1].nested / 2, (
        "in four partitions a row is compared with a quarter of the others"
    )


# --- the machines ---


@pytest.mark.parametrize("network", ["reliable", "unreliable"])
@pytest.mark.parametrize("scale", [0.7, 0.1, 0.05, 0.013, 0.001])
def test_at_any_scale_the_disk_has_the_same_part_in_all_time(scale: float, network: str, modules: Any) -> None:
    """Seeks for runs and visits, of which there are as many, pages, transfers, data, memory: all shrink alike."""
    streams, rpj = modules("rpj_streams"), modules("papers").RPJ
    whole, small = streams.machine(1.0, "reliable"), streams.machine(scale, network)
    rows = streams.schedule(scale, 1, "harmony", 1, network).total_rows
    assert rows < 0.8 * rpj.tuples, "it is smaller"
    part = small.seek / whole.seek
    assert rows / rpj.tuples == pytest.approx(part, rel=1e-3)
    assert small.memory_rows / whole.memory_rows == pytest.approx(part, rel=1e-3)
    assert small.page_rows / whole.page_rows == pytest.approx(part)
    assert small.page_bytes / whole.page_bytes == pytest.approx(part)
    model, in_full = small.cost("rpj"), whole.cost("rpj")
    assert model.run / in_full.run == pytest.approx(part), "a seek to a run"
    assert model.random_page / in_full.random_page == pytest.approx(part)
    assert model.sequential_page / in_full.sequential_page == pytest.approx(part)
    left = [each.rows_for("rpj") / each.memory_rows for each in (whole, small)]
    assert left[0] == pytest.approx(left[1], rel=0.01), "beside the pages for merging"
    compared = [each.nested * each.memory_rows / each.partitions for each in (whole, small)]
    assert compared[0] == pytest.approx(compared[1], rel=1e-3)


@pytest.mark.parametrize("scale", [0.7, 0.1, 0.05, 0.013, 0.001])
def test_at_any_scale_diners_disk_has_the_same_part_in_all_time(scale: float, modules: Any) -> None:
    streams, diner = modules("diner_streams"), modules("papers").DINER
    rows = streams.tuples(scale)
    in_memory = round(diner.memory_share * 2 * rows)
    whole, small = streams.machine(10_000, 100.0), streams.machine(in_memory, 1.0, scale)
    part = small.seek / whole.seek
    assert rows / diner.tuples == pytest.approx(part, rel=1e-3)
    assert small.page_rows / whole.page_rows == pytest.approx(part)
    assert small.page_bytes / whole.page_bytes == pytest.approx(part)
    assert small.memory_rows / whole.memory_rows == pytest.approx(part, rel=5e-3)
    assert streams.new_arrivals(scale) / diner.max_new_arrivals == pytest.approx(part, rel=0.03)
    assert small.partitions == whole.partitions


def test_the_papers_processor_and_sub_partitions(modules: Any) -> None:
    machine, papers = modules("rpj_streams").machine(1.0, "reliable"), modules("papers")
    model = machine.cost("rpj")
    assert model.nested == pytest.approx(papers.COMPARISON / 5 / 2.4)
    assert machine.cost("rpj").probe == 0.0 < machine.cost("confluence").probe
    assert model.run == machine.seek


def test_diners_blocks_shrink_with_made_up_data_and_not_with_real_ones(modules: Any) -> None:
    streams = modules("diner_streams")
    real, made = streams.machine(1000, 10.0), streams.machine(1000, 10.0, scale=0.1)
    assert (real.page_rows, made.page_rows) == (51, 5)
    assert made.seek == pytest.approx(0.1 * real.seek, rel=0.03)
    blocks = [
        dict(streams.contestant("DINER", machine, scale).options)["max_outer_blocks"]
        for machine, scale in ((streams.machine(10_000, 10.0), 1.0), (made, 0.1))
    ]
    assert blocks[0] == 19 and abs(blocks[1] - 19) <= 1, "the same part of the memory"


# --- the input buffer ---


def test_the_trace_tells_when_more_rows_wait_than_there_is_room_for() -> None:
    slow = replace(FREE, move=0.003)
    schedule = keys(500, 100, seed=9)
    free = simulate("xjoin", schedule, on="key", memory="4 MiB", cost=slow, quantum=0)
    assert free.overflow is None and free.peak_input_buffer > 100
    bound = simulate("xjoin", schedule, on="key", memory="4 MiB", cost=slow, quantum=0, buffer_rows=50)
    assert bound.overflow is not None
    at = int(np.searchsorted(bound.time, bound.overflow))
    assert bound.input_buffer[at] > 50 >= bound.input_buffer[:at].max()
    assert bound.total == free.total, "the run goes on"
    roomy = simulate("xjoin", schedule, on="key", memory="4 MiB", cost=slow, quantum=0, buffer_rows=1000)
    assert roomy.overflow is None


@pytest.mark.parametrize("kind", [RPJ, HMJ])
def test_a_join_lets_as_many_rows_wait_as_it_is_told(kind: Any) -> None:
    """DINER's authors do not say that RPJ and HMJ would not; in their own papers arrivals wait for the whole task."""
    schema = pa.schema({"key": pa.int64()})
    spec = JoinSpec(schema, schema, parse_on("key"), output=Output.COUNTS)
    found = {}
    for options in ({}, {"patience": 77}, {"prompt": False}):
        join = kind(spec, 96 * 1024, MemoryStore(), **options)
        for side in (0, 1):
            join.receive(Arrive(side, pa.record_batch({"key": np.arange(6000) % 50})))
            while join.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
        assert join.cost.pages_written > 0
        join.receive(Stall())
        assert join.poll(0.0, 1).status is not Status.NEED_INPUT
        found[tuple(options)] = join.patience
        join.close()
    assert found == {(): 0, ("patience",): 77, ("prompt",): sys.maxsize}


def test_hmj_merges_all_partitions_before_it_looks_at_arrivals_if_it_is_told_to() -> None:
    schema = pa.schema({"key": pa.int64()})
    spec = JoinSpec(schema, schema, parse_on("key"), output=Output.COUNTS)
    gaps = {}
    for whole_stage in (False, True):
        grain = Grain(partitions=4)
        join = HMJ(spec, 96 * 1024, MemoryStore(), prompt=False, whole_stage=whole_stage, flush="all", grain=grain)
        for number in range(8):
            join.receive(Arrive(number % 2, pa.record_batch({"key": np.arange(1500) % 700})))
            while join.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
        join.receive(Stall())
        waiting = []
        while (status := join.poll(0.0, 64).status) is not Status.NEED_INPUT:
            if status is Status.HAS_WORK:
                waiting.append(join.patience)
        gaps[whole_stage] = waiting.count(0)
        assert waiting.count(sys.maxsize) > 4
        assert join.patience == 0, "all is merged"
        join.close()
    assert gaps[False] >= 3 and gaps[True] == 0, "between one partition and the next"
    with pytest.raises(SpecError, match="give prompt=False"):
        HMJ(spec, 96 * 1024, MemoryStore(), whole_stage=True)


# --- further cells ---


def test_partitioned_joins_compare_rows_with_a_whole_segment(modules: Any) -> None:
    hybrid = modules("hybrid")
    slow = hybrid.run(0.01, 1, join="range", rate=1000).values
    fast = hybrid.run(0.01, 1, join="range", rate=1000, faster=2.0).values
    assert slow["cpu"] == pytest.approx(2 * fast["cpu"], rel=0.05)
    # 1,000 rows a second are compared with some 12,000 each, 49 ns a time: more than half of all time.
    assert 0.2 < slow["cpu"] / (0.8 * 3600 - 360) < 2.0


def test_six_inputs_hash_a_tuple_once(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = modules("mjoin_plans")
    charged: list[Cost] = []

    class Watching(CostModel):
        def seconds(self, cost: Cost) -> tuple[float, float]:
            charged.append(cost)
            return super().seconds(cost)

    monkeypatch.setattr(plans, "CostModel", Watching)
    plans.six(0.01, 1, plan="single")
    assert charged and all(cost.hashes == cost.inserts for cost in charged)
