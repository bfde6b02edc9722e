"""Trees of joins, and the model that chooses between one join and several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import SpecError
from watersmeet.core.join_tree import left_deep, parse_shape
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.policies.splitting import Costs, Estimates, plan

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.int64()})
CHAIN = MultiSpec.of(dict.fromkeys("rstu", SCHEMA), ["r.a = s.a", "s.b = t.b", "t.a = u.a"])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((("r", "s"), "t"), "must hold each of r, s, t, u once"),
        ((("r", "s"), ("t", "t")), "must hold each of"),
        ((("r", "x"), ("t", "u")), "'x', which is no input"),
        ((("r",), "s"), "takes two or more inputs"),
        ((("r", "t"), ("s", "u")), "no condition joins them with"),
        ("r", "must hold each of"),
    ],
)
def test_trees_that_cannot_be_are_refused(shape: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_shape(shape, CHAIN)  # type: ignore[arg-type]


def test_a_left_deep_tree_takes_inputs_as_conditions_reach_them() -> None:
    star = MultiSpec.of(dict.fromkeys("rst", SCHEMA), ["r.a = t.a", "t.b = s.b"])
    assert left_deep(star).describe(star.names) == "((r ⋈ t) ⋈ s)"
    assert left_deep(CHAIN).describe(CHAIN.names) == "(((r ⋈ s) ⋈ t) ⋈ u)"


def test_the_papers_formulas() -> None:
    costs = Costs(hash=1.0, move=2.0, comparison=4.0)
    made = Estimates.of(CHAIN, {"r": 10, "s": 20, "t": 30, "u": 40}, [0.5, 0.1, 0.25])
    # r and s leave 100 of 200 combinations, t and u 300 of 1,200.
    assert made.split_cost(CHAIN, {0, 1}, {2, 3}, costs) == (100 + 300) * 7
    assert made.discard_cost(CHAIN, {0, 1}, {2, 3}, costs) == (0.5 * 200 + 0.75 * 1200) * 4
    # A single input has no conditions of its own, and loses nothing.
    assert made.discard_cost(CHAIN, {0}, {1, 2, 3}, costs) == pytest.approx((0.9 + 0.75) * 24_000 * 4)


def test_a_split_pays_when_conditions_are_selective_and_not_when_they_inflate() -> None:
    rows = dict.fromkeys("rstu", 1000.0)
    assert plan(CHAIN, Estimates.of(CHAIN, rows)).tree.describe("rstu") == "((r ⋈ s) ⋈ (t ⋈ u))"
    assert plan(CHAIN, Estimates.of(CHAIN, rows, [0.95, 0.95, 0.95])).single


def test_estimates_must_fit() -> None:
    with pytest.raises(SpecError, match="none of u"):
        Estimates.of(CHAIN, dict.fromkeys("rst", 10))
    with pytest.raises(SpecError, match="3 conditions and 1 selectivities"):
        Estimates.of(CHAIN, dict.fromkeys("rstu", 10), [0.5])


@pytest.mark.parametrize("shares", [0.5, "abc", ["a", 1, 1], [-1, 0, 0], [0, 2, 0], [float("nan"), 0, 0], [None, 0, 0]])
def test_what_is_no_share_of_the_pairs_is_refused(shares: Any) -> None:
    with pytest.raises(SpecError, match=r"^selectivities"):
        Estimates.of(CHAIN, dict.fromkeys("rstu", 10), shares)


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf"), "10", None])
@pytest.mark.parametrize("asked", [{}, {"window": wm.rows(3)}, {"how": {"r": "left"}}])
def test_what_is_no_number_of_rows_is_refused(count: object, asked: dict[str, object]) -> None:
    inputs = {name: pa.table({"a": [1], name: [1]}) for name in "rst"}
    rows = {"r": count, "s": 1, "t": 1}
    with pytest.raises(SpecError, match=r"rows={'r': .*} is no number of rows; write about how many there are"):
        wm.multijoin(inputs, on=["r.a = s.a", "s.a = t.a"], rows=rows, **asked).table()  # type: ignore[arg-type]


@pytest.mark.parametrize("tree", [None, (("r", "s"), ("t", "u")), (("r", "s", "t"), "u"), ("r", ("s", "t", "u"))])
def test_every_tree_gives_what_one_join_gives(tree: object) -> None:
    rng = np.random.default_rng(3)
    inputs = {
        name: pa.table({"a": rng.integers(0, 40, 200), "b": rng.integers(0, 60, 200), name: np.arange(200)})
        for name in "rstu"
    }
    on = ["r.a = s.a", "s.b = t.b", "t.a = u.a"]
    order = [(name, "ascending") for name in "rstu"]
    options = {} if tree is None else {"tree": tree}
    one = wm.multijoin(inputs, on=on).table().sort_by(order)
    other = wm.multijoin(inputs, on=on, algorithm="tree", **options)
    assert other.table().sort_by(order).equals(one)
    assert one.num_rows > 1000
    assert other.progress.algorithm == "tree"


def test_auto_follows_estimates_and_says_so() -> None:
    inputs = {name: pa.table({"a": [1, 2], "b": [3, 4]}) for name in "rstu"}
    on = ["r.a = s.a", "s.b = t.b", "t.a = u.a"]
    assert wm.multijoin(inputs, on=on).progress.algorithm is None  # not begun
    result = wm.multijoin(inputs, on=on, rows=dict.fromkeys("rstu", 1000))
    assert result.table().num_rows == 2
    assert result.progress.algorithm == "tree"
    assert "intermediate results" in str(result.progress.reason)
