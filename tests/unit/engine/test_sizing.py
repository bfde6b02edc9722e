"""Dividing memory: by default, and with units that are given."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.drivers.simulate import simulate
from watersmeet.engine.sizing import Grain, Sizing
from watersmeet.planner import build
from watersmeet.sources.generators import uniform
from watersmeet.sources.schedules import Schedule, constant, fragments
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema([("key", pa.int64())])
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("key"), output=Output.COUNTS)


def test_a_grain_is_taken_as_it_is() -> None:
    sizing = Sizing.divide(1 << 20, [40, 40], True, "a join", Grain(partitions=4, page_bytes=1000, pairs=50))
    assert (sizing.layout.partitions, sizing.page_bytes, sizing.pairs) == (4, 1000, 50)
    assert Sizing.divide(1 << 20, [40, 40], True, "a join") == Sizing.divide(1 << 20, [40, 40], True, "a join", Grain())


@pytest.mark.parametrize(
    "grain",
    [
        {"partitions": 3},
        {"partitions": 0},
        {"page_bytes": 1},
        {"fan_in": 1},
        {"block_rows": 0},
        {"pairs": 0},
        {"bucket_rows": 0},
    ],
)
def test_grains_that_cannot_be(grain: dict[str, int]) -> None:
    with pytest.raises(SpecError):
        Grain(**grain)


def test_records_have_memory_of_their_own() -> None:
    grain = Grain(records=100_000)
    for name in ("xjoin", "hmj", "rpj", "diner"):
        plain, aside = (build(SPEC, 1 << 20, MemoryStore(), name, grain=each) for each in (None, grain))
        assert plain.budget.free - aside.budget.free >= 90_000, name
        aside.check()


@pytest.mark.parametrize("algorithm", ["xjoin", "rpj"])
def test_rows_wait_for_a_visit_that_is_not_prompt(algorithm: str) -> None:
    tables = [pa.table({"key": uniform(3000, 500, seed)}) for seed in (1, 2)]
    schedule = Schedule(tables, [fragments(3000, 5, 0.001, 0.3)] * 2)
    buffers = {}
    for prompt in (True, False):
        trace = simulate(algorithm, schedule, on="key", memory=150_000, quantum=0.01, prompt=prompt)
        assert trace.total == int(
            np.bincount(tables[0]["key"], minlength=501) @ np.bincount(tables[1]["key"], minlength=501)
        )
        assert "reactive" in trace.phase
        buffers[prompt] = trace.peak_input_buffer
    assert buffers[True] <= buffers[False]


def test_online_only_ends_with_the_last_arrival() -> None:
    tables = [pa.table({"key": uniform(3000, 500, seed)}) for seed in (1, 2)]
    schedule = Schedule(tables, [constant(3000, 0.001)] * 2)
    whole, online = (simulate("xjoin", schedule, on="key", memory=100_000, online_only=only) for only in (False, True))
    assert online.online == whole.online < whole.total
    assert online.total < whole.total and online.end == pytest.approx(whole.last_arrival, abs=0.5)
    assert "clean-up" in whole.phase and "clean-up" not in online.phase
