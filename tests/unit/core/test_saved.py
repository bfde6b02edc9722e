"""Snapshots by declaration: what was saved comes back as what was there."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np
import pytest

from watersmeet.core.saved import Saved


class Part(Saved):
    """One number."""

    SAVED = ("number",)

    def __init__(self, number: int = 0) -> None:
        self.number = number


class Layer(Saved):
    """All kinds of attributes."""

    SAVED = ("_counts", "table", "pair", "rows", "queue", "part", "parts", "unknown")

    def __init__(self) -> None:
        self._counts = [0, 0]
        self.table = np.zeros((2, 3), np.int32)
        self.pair = (0, 0)
        self.rows: list[list[int]] = []
        self.queue: deque[list[int]] = deque()
        self.part = Part()
        self.parts = (Part(), Part())
        self.unknown: list[float] | None = None


class Paper(Layer):
    """What it has beyond its layer."""

    SAVED = ("share",)

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.5


def through_json(part: Saved) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(part.to_state()))
    return state


def filled() -> Paper:
    paper = Paper()
    paper._counts, paper.pair, paper.rows, paper.share = [3, 4], (5, 6), [[1, 2], [3]], 0.25
    paper.table = np.arange(6, dtype=np.int32).reshape(2, 3)
    paper.queue.append([7, 8])
    paper.part.number, paper.parts[1].number, paper.unknown = 9, 10, [0.5]
    return paper


def test_everything_comes_back_as_what_it_was() -> None:
    paper, again = filled(), Paper()
    part, parts = again.part, again.parts
    again.load(through_json(paper))
    assert again.to_state() == paper.to_state()
    assert again.table.dtype == np.int32 and np.array_equal(again.table, paper.table)
    assert again.pair == (5, 6) and again.queue == deque([[7, 8]])
    assert again.part is part and again.parts is parts, "others may know them"


def test_layers_come_before_papers_and_names_lose_their_underscores() -> None:
    assert [*Paper().to_state()] == ["counts", *Layer.SAVED[1:], "share"]


def test_a_state_and_a_part_share_nothing() -> None:
    state, again = filled().to_state(), Paper()
    again.load(state)
    again.rows[0][0] = again._counts[0] = 99
    assert state["rows"] == [[1, 2], [3]] and state["counts"] == [3, 4]


def test_what_is_missing_is_noticed() -> None:
    state = filled().to_state()
    del state["share"]
    with pytest.raises(KeyError, match="share"):
        Paper().load(state)
