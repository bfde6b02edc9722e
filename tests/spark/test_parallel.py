"""The parallel join of DataFrames: what the oracle gives, while groups move, keys are split, and slots change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.clicks import Clicks, expected_rows, tables_of, with_key
from watersmeet.core.errors import SpecError
from watersmeet.spark import parallel_join
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad, TopKey
from watersmeet.spark.rebalance.routing import Routing
from watersmeet.spark.state.files import read_json

HOT = 7


class Told(Clicks):
    """After some batches, what the slots have told is replaced: the master believes it."""

    def __init__(self, *args: Any, lies: dict[int, Callable[[Routing], list[SlotLoad]]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.lies = lies

    def _see(self, frame: Any, number: int) -> None:
        super()._see(frame, number)
        places = self.place / "state" / "routing"
        if number in self.lies:
            told = sorted(places.glob(f"load-{number}-*"))
            assert told, "no slot has told what it did"
            prefix = told[0].name.rpartition("-")[0]
            for file in told:
                file.unlink()
            [routing] = places.glob(f"routing-{number}-*")
            for load in self.lies[number](Routing.from_json(read_json(routing))):
                (places / f"{prefix}-{load.slot}").write_text(json.dumps(load.to_json()))


def test_groups_move_keys_are_split_and_slots_change(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    key = spark.sql(f"select hash({HOT}L) as key").first()["key"]
    group = key % 6

    def one_is_idle(routing: Routing) -> list[SlotLoad]:
        return [SlotLoad(0, 900.0, {number: GroupLoad(10, 10, 100.0) for number in routing.groups_of(0)})]

    def one_key_is_all(routing: Routing) -> list[SlotLoad]:
        return [SlotLoad(0, 900.0, {group: GroupLoad(9, 9, 900.0, TopKey(key, 0.9, (9, 4)))})]

    lies = {1: one_is_idle, 2: one_key_is_all}
    clicks = Told(spark, tmp_path, parallel_join, slots=(2, 2), groups=6, reorganize="0 s", memory="512 KiB", lies=lies)
    for number in range(5):
        clicks.add(_mixed(rng, number))
    first = clicks.run()
    clicks.options["slots"] = (1, 3)
    clicks.add(_mixed(rng, 5))
    clicks.run()
    clicks.options["slots"] = (1, 1)
    clicks.add(_mixed(rng, 6))
    last = clicks.run()
    assert clicks.found() == expected_rows(clicks.batches)
    assert first[2]["moved"] > 0
    assert first[3]["hot_keys"] == 1
    assert [each["slots"] for each in first] == [2] * 5
    assert last[0]["slots"] == 1
    told = first + last
    assert all(each["left_rows"] == each["right_rows"] == 398 for each in told), told  # copies are counted once
    assert all(each["written"] > 0 and each["state_bytes"] > 0 for each in told)  # rows are in runs between batches
    assert sum(each["left_late"] for each in told) > 5
    assert all(0 < each["memory"] <= each["budget"] == 512 << 10 for each in told)


def _mixed(rng: np.random.Generator, number: int) -> list[Any]:
    """Rows of many keys, and as many of one."""
    found = []
    for table in tables_of(rng, number):
        hot = with_key(table.slice(200), HOT, 100)
        found.append(pa.Table.from_batches([table.slice(0, 300), hot]).combine_chunks().to_batches()[0])
    return found


def test_words_that_do_not_fit(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, 2)], "id long, t long")
    with pytest.raises(SpecError, match=r"join batch DataFrames with window_join"):
        parallel_join(frame, frame, on="id", time="t", window=5)
    stream = spark.readStream.format("rate").load().selectExpr("value as id", "value as t")
    given: dict[str, Any] = {"time": "t", "window": 5, "state": tmp_path}
    with pytest.raises(SpecError, match=r"slots must be the fewest and the most tasks, such as \(1, 8\), not \(3, 2\)"):
        parallel_join(stream, stream, on="id", slots=(3, 2), **given)
    with pytest.raises(SpecError, match=r"groups must be a whole number, at least as many as there may be slots \(8\)"):
        parallel_join(stream, stream, on="id", groups=5, **given)
    with pytest.raises(SpecError, match=r"reorganize must be a length of time such as '20 s', not 20"):
        parallel_join(stream, stream, on="id", reorganize=20, **given)
