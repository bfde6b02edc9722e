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


def test_random_turns_are_drawn_by_the_seed(metadata: Any) -> None:
    def run(seed: int) -> Any:
        return metadata.forgetting_nothing(0.05, seed, "ordered", quotas=(5, 5), at_random=True)

    first, again, other = run(1), run(1), run(2)
    in_turns = metadata.forgetting_nothing(0.05, 1, "ordered", quotas=(5, 5))
    assert np.array_equal(first.curves["rows"][1], again.curves["rows"][1])
    assert not np.array_equal(first.curves["rows"][1], in_turns.curves["rows"][1])
    assert first.values["total"] == in_turns.values["total"] != other.values["total"]


def test_each_row_is_checked_against_what_is_over(metadata: Any) -> None:
    """Beside the rows that its look-up visits, and those that a purge goes through: none, where rows are all news."""
    news, _ = metadata._streams(0.05, 1, "ordered")
    operator = metadata.MetadataMJoin(metadata._spec(True), 1 << 26, metadata.MemoryStore(), streams="random")
    operator.receive(metadata.Arrive(0, metadata._batch(news)))
    metadata._Watch(operator).work_off()
    assert operator.cost.comparisons == len(news) == operator.cost.inserts
