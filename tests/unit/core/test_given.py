"""Numbers of NumPy's are taken wherever Python's are, and truth values, which are no numbers, are not."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.api.run import Settings
from watersmeet.core.asof import parse_asof
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.windows import parse_seconds, parse_windows
from watersmeet.drivers.shedding import check_shed
from watersmeet.memory import parse_memory
from watersmeet.policies.promises import PrioritySchedule, PurgePolicy

TIMES = pa.table({"k": [1, 1, 2], "ts": [0, 4, 5]})

WHOLE: dict[str, Callable[[Any], Any]] = {
    "band": lambda n: wm.band("k", n),
    "near": lambda n: wm.near(["k", "ts"], n),
    "rows": wm.rows,
    "landmark": wm.landmark,
    "landmark since": lambda n: wm.landmark(since=n),
    "age": lambda n: wm.age(n, n),
    "window": lambda n: parse_windows((n, wm.rows(n)), "ts", slide=n, lateness=n, idle=n),
    "windows of several": lambda n: parse_many_windows({"r": n, "s": n}, ["r", "s"], "ts", n),
    "as-of": lambda n: parse_asof("ts", tolerance=n, lateness=(n, None)),
    "memory": parse_memory,
    "settings": lambda n: Settings.of(n, None, 1.0, None, None, n),
    "delay": lambda n: parse_seconds(n, "delay"),
    "batch_rows": lambda n: wm.source(TIMES, batch_rows=n).batch_rows,
    "purge_every": PurgePolicy,
    "quotas": lambda n: PrioritySchedule(quotas=(n, n)).choose((9, 9)),
}


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.uint64])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_numpy_are_those_of_python(name: str, kind: type[Any]) -> None:
    made, usual = WHOLE[name](kind(3)), WHOLE[name](3)
    assert repr(made) == repr(usual), "nothing of NumPy's is left that would reach fingerprints or words"


@pytest.mark.parametrize("true", [True, np.True_])
@pytest.mark.parametrize("name", [name for name in WHOLE if name != "quotas"])
def test_truth_values_are_no_numbers(name: str, true: object) -> None:
    with pytest.raises(wm.SpecError):
        WHOLE[name](true)


def test_floats_of_numpy_are_those_of_python() -> None:
    assert repr(wm.band("k", np.float32(0.5))) == repr(wm.band("k", 0.5))
    assert repr(wm.near(["k", "ts"], np.float64(0.5))) == repr(wm.near(["k", "ts"], 0.5))
    assert repr(parse_asof("ts", tolerance=np.float32(0.5))) == repr(parse_asof("ts", tolerance=0.5))
    assert (parse_seconds(np.float32(0.5), "delay"), check_shed(np.float32(0.5))) == (0.5, 0.5)
    exact = pa.table({"x": pa.array([Decimal("0.1"), Decimal("0.5")]), "y": [0, 0]})
    assert len(wm.join(exact, exact, on=wm.near(["x", "y"], np.float64(0.4))).table()) == 4


def test_joins_take_numbers_that_were_computed(tmp_path: Path) -> None:
    four = np.int64(4)
    settings = {"memory": np.int64(32 << 20), "spool": np.int64(1 << 20), "spill": tmp_path, "wait": np.int64(1)}
    assert len(wm.join(TIMES, TIMES, on="k", threads=np.int64(2), **settings).table()) == 5
    assert len(wm.window_join(TIMES, TIMES, on="k", time="ts", window=four, lateness=four, **settings).table()) == 5
    assert len(wm.asof_join(TIMES, TIMES, on="k", time="ts", tolerance=four, **settings).table()) == 3
    relation = wm.Relation.build(TIMES, "k", tmp_path / "rel", partition="hash", partitions=np.int64(2))
    assert relation.latest.partitions == 2


@pytest.mark.parametrize("given", [5, "", b"spilled", "~nobody-has-this-name/x"])
def test_what_names_no_directory_is_refused(given: Any, tmp_path: Path) -> None:
    said = "must be the path of a directory, not "
    with pytest.raises(wm.SpecError, match=f"^spill {said}"):
        wm.join(TIMES, TIMES, on="k", spill=given)
    with pytest.raises(wm.SpecError, match=f"^path {said}"):
        wm.Relation.build(TIMES, "k", given)
    with pytest.raises(wm.SpecError, match=f"^spill {said}"):
        wm.Relation.build(TIMES, "k", tmp_path / "rel", spill=given)


def test_rows_may_spill_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "spilled").mkdir()
    assert Settings.of("1 MiB", "~/spilled", 1.0, None).spill == tmp_path / "spilled"
