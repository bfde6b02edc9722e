"""The listener's picture and lines, from figures as Spark reports them. No Spark is needed."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row
from rich.console import Console

from waiting import PATIENCE
from watersmeet.spark.io.watch import Watch, picture
from watersmeet.spark.task.delays import CLASSES, percentile
from watersmeet.spark.task.figures import SCALARS, figures

_FIGURES = dict.fromkeys(SCALARS, 0) | {
    "left_rows": 1_000, "right_rows": 2_000, "results": 500, "memory": 3 << 20, "budget": 4 << 20,
    "spilled": 10 << 20, "state_bytes": 1 << 30, "work_left": 2, "left_delay_p50_ms": 20.0, "left_delay_p99_ms": 1500.0,
    "right_delay_p50_ms": None, "right_delay_p99_ms": None,
}  # fmt: skip


def _event(batch: int, **figures: Any) -> Any:
    row = Row(figures=Row(**(_FIGURES | figures)))
    progress = SimpleNamespace(
        runId="run", batchId=batch, batchDuration=1200, observedMetrics={"watersmeet orders": row, "other": Row(x=1)}
    )
    return SimpleNamespace(progress=progress)


def test_batches_are_added_up_and_a_repeated_one_counts_once() -> None:
    out = io.StringIO()
    with Watch(stream=out) as watch:
        for batch in (0, 1, 1):
            watch.onQueryProgress(_event(batch))
        watch.onQueryProgress(_event(2, left_rows=None, right_rows=None, results=None))
        watch.onQueryTerminated(SimpleNamespace(runId="run"))
    last = out.getvalue().splitlines()[-1]
    assert last == (
        "orders: batch 2, 1.2 s · 2,000 + 4,000 rows in · 1,000 out · memory 3 MiB of 4 MiB · state 1 GiB · "
        "spilled 20 MiB · ended"
    )


def test_it_waits_for_the_last_events_of_queries_that_have_ended_and_is_silent_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("watersmeet.spark.io.watch._PATIENCE", PATIENCE)
    out, removed = io.StringIO(), []
    asked = threading.Event()

    class Streams:
        def addListener(self, listener: Any) -> None:
            pass

        def removeListener(self, listener: Any) -> None:
            removed.append(listener)

        @property
        def active(self) -> list[Any]:
            asked.set()
            return []

    session: Any = SimpleNamespace(streams=Streams(), _sc=None)

    def late(watch: Watch) -> None:
        assert asked.wait(PATIENCE), "the watch was left, and did not look which queries have ended"
        watch.onQueryProgress(_event(0))
        watch.onQueryTerminated(SimpleNamespace(runId="run"))

    with Watch(session, out) as watch:
        watch.onQueryStarted(SimpleNamespace(runId="run"))
        events = threading.Thread(target=late, args=(watch,))
        events.start()
    assert out.getvalue().endswith("ended\n")
    assert removed == [watch]
    events.join()
    watch.onQueryProgress(_event(1))
    assert "batch 1" not in out.getvalue()


def test_figures_are_found_by_their_names_in_either_form() -> None:
    progress = _event(3).progress
    assert figures(progress) == {"orders": _FIGURES}
    fields = [{"name": name, "type": "long"} for name in _FIGURES]
    inner = {"values": list(_FIGURES.values()), "schema": {"fields": fields}}
    outer = Row(values=[inner], schema={"fields": [{"name": "figures", "type": "struct"}]})
    progress.observedMetrics = {"watersmeet orders": outer}
    assert figures(progress) == {"orders": _FIGURES}


def test_the_picture_fits_eighty_columns() -> None:
    watch = Watch(stream=io.StringIO())
    watch.onQueryProgress(_event(123_456, left_rows=10**12, results=10**13))
    watch.joins[("run", "other")] = type(watch.joins["run", "orders"])("a name " * 20)
    console = Console(file=io.StringIO(), width=80)
    console.print(picture(list(watch.joins.values())))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "1,000,000,000,000 rows, delays p50 20 ms, p99 1.5 s" in text
    assert "3 MiB of 4 MiB in the fullest task" in text
    assert "state 1 GiB, spilled 10 MiB, work left in 2 groups" in text
    assert text.count("delays") == 1  # the right side has none


def test_delays_add_up_and_percentiles_are_within_a_tenth() -> None:
    import numpy as np

    from watersmeet.spark.task.delays import class_of, milliseconds_of

    delays = np.random.default_rng(4).lognormal(5, 2, 20_000).astype(np.int64) + 1
    halves = [np.bincount(class_of(half), minlength=CLASSES) for half in (delays[:9_000], delays[9_000:])]
    for share in (0.5, 0.99):
        found = percentile((halves[0] + halves[1]).tolist(), share)
        assert found is not None
        assert abs(found / np.quantile(delays, share) - 1) < 0.12
    assert milliseconds_of(CLASSES - 1) > 3600 * 1000
