"""Points: what `near` accepts; exact distances at the very edge; and strips in which near points are neighbours."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import watersmeet as wm
from watersmeet.core.spec import JoinSpec, Near, parse_on
from watersmeet.kernels.sort_keys import ask_under_all
from watersmeet.matching.reach import NearKeys
from watersmeet.records.bands import NearCodec

DOUBLES = st.one_of(
    st.floats(-1e300, 1e300), st.integers(-40, 40).map(float), st.sampled_from([5e-324, 1e-200, 1.0, 1e200, 0.1, 0.3])
)
RADII = st.one_of(st.integers(0, 60).map(float), st.floats(0, 1e300), st.sampled_from([5e-324, 1e-200, 0.5, 1e200]))


def codec_of(types: list[tuple[pa.DataType, pa.DataType]], radius: Any) -> NearCodec:
    left, right = (pa.schema({f"{'lr'[side]}{d}": pair[side] for d, pair in enumerate(types)}) for side in (0, 1))
    return NearCodec(JoinSpec(left, right, (Near(tuple(left.names), tuple(right.names), radius),)))


def near_exactly(left: list[Any], right: list[Any], radius: Fraction) -> bool:
    return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(left, right, strict=True)) <= radius**2


@given(st.lists(st.tuples(DOUBLES, DOUBLES), min_size=2, max_size=3), RADII)
@example([(0.0, 3.0), (0.0, 4.0)], 5.0)
@example([(0.1, 0.4), (0.7, 1.1)], 0.5)
@example([(1.0, 0.0), (0.0, 1e-200)], 1.0)
@example([(1.0, 0.0), (0.0, 5e-324)], 1.0)
@example([(5e-324, 0.0), (0.0, 5e-324)], 5e-324)
@example([(1e300, 0.0), (1e-300, 0.0)], 1e300)
@example([(1.7e308, -1.7e308), (0.0, 0.0)], 1e300)
@example([(0.0, -0.0), (2.0, 2.0)], 0.0)
@example([(2.0**53, 1.0), (0.0, 0.0)], 2.0**53 - 1)
def test_doubles_are_compared_without_rounding(pairs: list[tuple[float, float]], radius: float) -> None:
    types = [(pa.float64(), pa.float64())] * len(pairs)
    left, right = zip(*pairs, strict=True)
    # The edge itself, for these two points: the doubles around their distance.
    root = (
        math.sqrt(min(1e300, sum((a - b) ** 2 for a, b in pairs))) if all(abs(a - b) < 1e150 for a, b in pairs) else 0
    )
    for each in {radius, root, math.nextafter(root, 0.0), math.nextafter(root, math.inf)}:
        found = codec_of(types, each).close([pa.array([a]) for a in left], [pa.array([b]) for b in right])
        assert bool(found[0]) == near_exactly(list(left), list(right), Fraction(each)), (pairs, each)


WHOLE = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9), st.sampled_from([-(2**63), 2**63 - 1, 2**62]))


@given(st.lists(st.tuples(WHOLE, WHOLE), min_size=2, max_size=3), st.one_of(st.integers(0, 20), st.integers(0, 2**66)))
@example([(0, 3), (0, 4)], 5)
@example([(-(2**63), 2**63 - 1), (0, 0)], 2**64 - 1)
@example([(-(2**63), 2**63 - 1), (0, 0)], 2**64 - 2)
@example([(0, 3 * 2**40), (0, 4 * 2**40)], 5 * 2**40)
@example([(0, 3 * 2**40), (1, 4 * 2**40)], 5 * 2**40)
def test_whole_numbers_and_decimals_are_compared_exactly(pairs: list[tuple[int, int]], radius: int) -> None:
    left, right = zip(*pairs, strict=True)
    expected = near_exactly(list(left), list(right), Fraction(radius))
    found = codec_of([(pa.int64(), pa.int64())] * len(pairs), radius).close(
        [pa.array([a]) for a in left], [pa.array([b]) for b in right]
    )
    assert bool(found[0]) == expected
    # One dimension in thousandths, which leaves 64 bits behind.
    wide = [(pa.decimal128(38, 3), pa.int64()), *[(pa.int64(), pa.int64())] * (len(pairs) - 1)]
    columns = [pa.array([Decimal(left[0])], pa.decimal128(38, 3)), *(pa.array([a]) for a in left[1:])]
    assert bool(codec_of(wide, radius).close(columns, [pa.array([b]) for b in right])[0]) == expected


def test_a_radius_beside_exact_numbers_is_what_is_written() -> None:
    tenths = pa.array([Decimal("0.0"), Decimal("0.3")], pa.decimal128(5, 1))
    table = pa.table({"x": tenths, "y": [0, 0]})
    assert wm.join(table, table, on=wm.near(["x", "y"], 0.3)).table().num_rows == 4
    floats = pa.table({"x": [0.0, 0.1 + 0.2], "y": [0.0, 0.0]})
    assert wm.join(floats, floats, on=wm.near(["x", "y"], 0.3)).table().num_rows == 2, "0.1 + 0.2 is a little more"


def test_what_has_no_place_is_near_nothing() -> None:
    odd = [1.0, None, math.nan, math.inf, -math.inf]
    table = pa.table({"x": odd, "y": [0.0] * 5, "z": [2] * 5})
    assert wm.join(table, table, on=wm.near(["x", "y", "z"], 1e300)).table().num_rows == 1
    kept = wm.join(table, table, on=wm.near(["x", "y", "z"], 1e300), how="anti").table()
    assert kept.num_rows == 4


@given(
    st.lists(st.tuples(DOUBLES, st.floats(-1, 1)), min_size=1, max_size=30),
    st.one_of(st.floats(1e-300, 1e300), st.integers(1, 9).map(float), st.just(5e-324)),
)
def test_values_that_are_close_lie_in_neighbouring_strips(values: list[tuple[float, float]], radius: float) -> None:
    with np.errstate(over="ignore"):
        one = np.array([value for value, _ in values])
        other = one + np.array([share for _, share in values]) * radius
    near = np.isfinite(other)
    near[near] = [
        abs(Fraction(a) - Fraction(b)) <= Fraction(radius) for a, b in zip(one[near], other[near], strict=True)
    ]
    one, other = one[near], other[near]
    for dimensions, beside in ((2, False), (3, False), (2, True), (3, True)):
        names = ["x", "y", "z"][:dimensions]
        schema = pa.schema({"k": pa.int64(), **dict.fromkeys(names, pa.float64())})
        on = [*(["k"] if beside else []), wm.near(names, radius)]
        codec = NearKeys(JoinSpec(schema, schema, parse_on(on)))
        assert codec.shifts is not None and len(set(codec.shifts.tolist())) == 3 ** (dimensions - 1)
        keys = []
        for side, column in enumerate((one, other)):
            numbers = [pa.array(np.zeros(len(column), np.int64))] if beside else []
            keys.append(
                codec.hash(side, [*numbers, pa.array(np.zeros(len(column))), *[pa.array(column)] * (dimensions - 1)])[0]
            )
        for mine, theirs in zip(keys[0].view(np.uint64), keys[1].view(np.uint64), strict=True):
            assert ((mine + codec.shifts) == theirs).sum() == 1


@given(st.lists(st.integers(2**40, 2**49), max_size=40), st.integers(2, 3))
def test_rows_stand_under_all_their_keys_in_order(numbers: list[int], dimensions: int) -> None:
    schema = pa.schema(dict.fromkeys("xyz"[:dimensions], pa.int64()))
    shifts = NearKeys(JoinSpec(schema, schema, parse_on(wm.near(schema.names, 3)))).shifts
    assert shifts is not None
    order = np.sort(np.array(numbers, np.uint64)) << np.uint64(14)
    keys, rows = np.zeros(len(order) * len(shifts), np.uint64), np.zeros(len(order) * len(shifts), np.int64)
    keys[: len(order)], rows[: len(order)] = order, np.arange(len(order))
    ask_under_all(keys, rows, len(order), shifts)
    assert keys.tolist() == sorted((order[:, None] + shifts).ravel().tolist())
    assert sorted(zip(rows.tolist(), keys.tolist(), strict=True)) == sorted(
        (row, (key + shift) % 2**64) for row, key in enumerate(order.tolist()) for shift in shifts.tolist()
    )


@pytest.mark.parametrize(
    ("columns", "radius", "sentence"),
    [
        ("x", 1, "near is on a list of two or three columns"),
        (["x"], 1, "near is of two or three dimensions, not of 1 columns; with one, use wm.band"),
        (["x", "x"], 1, "each dimension is a column of its own"),
        (["x", "y"], math.nan, "the radius of near must be from 0 to 1e"),
        (["x", "y"], math.inf, "the radius of near must be from 0 to 1e"),
        (["x", "y"], -1, "the radius of near must be from 0 to 1e"),
        (["x", "y"], True, "the radius of near must be a number"),
    ],
)
def test_what_cannot_be_near_is_refused(columns: Any, radius: Any, sentence: str) -> None:
    with pytest.raises(wm.SpecError, match=sentence):
        wm.near(columns, radius)


def test_who_cannot_join_points_says_so() -> None:
    table = pa.table({"x": [1], "y": [1.0], "t": [1], "s": ["a"]})
    near = wm.near(["x", "y"], 1)
    with pytest.raises(wm.SpecError, match="diner does not join points"):
        wm.join(table, table, on=near, algorithm="diner")
    with pytest.raises(wm.SpecError, match="a window join does not join points"):
        wm.window_join(table, table, on=near, time="t", window=5)
    with pytest.raises(wm.SpecError, match="points that are near each other are joined"):
        wm.asof_join(table, table, on=["s", near], time="t")
    with pytest.raises(wm.SpecError, match="bands and points are joined"):
        wm.lookup_join(table, table, on=near)
    with pytest.raises(wm.SpecError, match="one near, and no band beside it"):
        wm.join(table, table, on=[near, wm.band("t", 1)])
    with pytest.raises(wm.SpecError, match="near takes columns of numbers"):
        wm.join(table, table, on=wm.near(["x", "s"], 1))
    with pytest.raises(wm.SpecError, match="is not understood"):
        wm.multijoin({"a": table, "b": table}, on=wm.near(["a.x = b.x", "a.y = b.y"], 1))  # type: ignore[arg-type]
