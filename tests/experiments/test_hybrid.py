"""The hybrid joins' experiments: the same pairs from all joins, the same numbers from the same seed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet import reproduce


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return importlib.import_module("experiments.hybrid")


def test_all_joins_find_the_same(hybrid: Any) -> None:
    runs = {join: hybrid.run(0.01, 1, join=join).values for join in hybrid.JOINS}
    assert len({values["pairs"] for values in runs.values()}) == 1 and runs["range"]["pairs"] > 10_000
    assert runs["meshjoin"]["delay"] > 3 * runs["range"]["delay"]
    assert runs["range"]["from memory"] > runs["hash"]["from memory"] > 0
    assert hybrid.run(0.01, 1, join="range").values == runs["range"]


def test_bursts_and_clusters(hybrid: Any) -> None:
    stream = importlib.import_module("experiments.hybrid_stream")
    even, bursty = (stream.b_model(100_000, 8, bias, np.random.default_rng(1)) for bias in (0.5, 0.7))
    assert even.sum() == bursty.sum() == 100_000 and bursty.std() > 10 * even.std()
    times, keys = stream.bursty_keys(20_000, 100.0, 1_000, 0.6, (0.6, 0.1, 0.1, 0.2), 2_000, 3)
    assert (np.diff(times) >= 0).all() and times[0] >= 0 and times[-1] <= 100 and keys.min() >= 0 and keys.max() < 1_000
    assert np.mean(keys < 500) == pytest.approx(0.7, abs=0.03), "the lower half, by the first quadrants"
