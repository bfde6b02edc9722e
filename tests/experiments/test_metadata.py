"""The metadata-aware MJoin's experiments: the same results from all contestants, the same numbers from one seed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from watersmeet.cli import reproduce


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(reproduce.find_experiments().parent))
    return importlib.import_module("experiments.metadata")


def test_a_punctuation_ends_what_it_says(metadata: Any) -> None:
    news, reads = metadata._streams(0.02, 1, "ordered")
    over = set()
    for key in reads.tolist():
        if key < 0:
            over.add(-1 - key)
        else:
            assert key not in over
    assert over == set(news.tolist())
    assert sorted(metadata._streams(0.02, 1, "random")[0]) == news.tolist()


def test_all_contestants_find_the_same(metadata: Any) -> None:
    runs = {
        "immediate": metadata.relying(0.02, 1, "random"),
        "batch": metadata.relying(0.02, 1, "random", every=100),
        "random": metadata.relying(0.02, 1, "random", scheduling="random"),
        "xjoin": metadata.forgetting_nothing(0.02, 1, "random"),
    }
    assert len({run.values["total"] for run in runs.values()}) == 1 and runs["xjoin"].values["total"] > 300
    assert runs["immediate"].values["mean rows"] < runs["xjoin"].values["mean rows"]
    again = metadata.relying(0.02, 1, "random")
    assert again.values == runs["immediate"].values
    assert np.array_equal(again.curves["rows"][1], runs["immediate"].curves["rows"][1])
