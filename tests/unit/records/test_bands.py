"""Bands: what they accept, and words, intervals and proofs that agree with the oracle on every pair."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import watersmeet as wm
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.core.bands import parse_width
from watersmeet.core.spec import Band, Equal, JoinSpec, Output, parse_on
from watersmeet.planner import ALGORITHMS, build
from watersmeet.records.bands import BandCodec
from watersmeet.records.keys import KeyCodec
from watersmeet.spill.store import MemoryStore

HUGE = 10**24


def spec_of(left: pa.DataType, right: pa.DataType, width: Any) -> JoinSpec:
    return JoinSpec(pa.schema({"p": left}), pa.schema({"p": right}), (Band("p", "p", width),), output=Output.PAIRS)


def pairs_by_words(spec: JoinSpec, left: pa.Array, right: pa.Array) -> list[tuple[int, int]]:
    """All pairs by the codec alone: interval, double arithmetic, proof."""
    codec = BandCodec.of(spec)
    words, known = codec.words(0, left)
    others, others_known = codec.words(1, right)
    low, high = codec.bounds(words)
    close = (low[:, np.newaxis] <= others) & (others <= high[:, np.newaxis])
    close &= (np.ones(len(left), bool) if known is None else known)[:, np.newaxis]
    close &= np.ones(len(right), bool) if others_known is None else others_known
    if codec.in_doubles:
        l, r = (each.cast(pa.float64()).to_numpy(zero_copy_only=False) for each in (left, right))
        with np.errstate(invalid="ignore", over="ignore"):
            close &= np.abs(l[:, np.newaxis] - r) <= codec.form.width
    i, j = np.nonzero(close)
    if not codec.exact and len(i):
        truly = codec.within(left.take(pa.array(i)), right.take(pa.array(j)))
        if truly is not None:
            i, j = i[truly], j[truly]
    return list(zip(i.tolist(), j.tolist(), strict=True))


@pytest.mark.parametrize(
    "left, right, width, expected",
    [
        (pa.array([1, 5, None]), pa.array([3, 4], pa.int8()), 2, {(0, 0), (1, 0), (1, 1)}),
        (pa.array([1]), pa.array([3]), 1.99, set()),
        (pa.array([0], pa.int64()), pa.array([2**63], pa.uint64()), 2**63, {(0, 0)}),
        (pa.array([-1], pa.int64()), pa.array([2**63], pa.uint64()), 2**63, set()),
        (pa.array([-(2**63)]), pa.array([2**63 - 1]), 2**64 - 1, {(0, 0)}),
        (pa.array([-(2**63)]), pa.array([2**63 - 1]), 2**64 - 2, set()),
        (pa.array([2**64 - 1, 5], pa.uint64()), pa.array([2**64 - 3], pa.uint64()), 2, {(0, 0)}),
        (pa.array([1.0]), pa.array([1.05]), 0.05, set()),  # the difference of the doubles is a little more
        (pa.array([0.3]), pa.array([0.1]), 0.2, {(0, 0)}),  # and here it rounds to less
        (pa.array([-0.0, math.nan, math.inf]), pa.array([0.0, math.nan, math.inf]), 0, {(0, 0)}),
        (pa.array([1.0, math.inf]), pa.array([-math.inf, 2.0]), math.inf, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        (pa.array([Decimal("1.00")]), pa.array([Decimal("1.0500")]), 0.05, {(0, 0)}),  # exact numbers, exact width
        (pa.array([Decimal("1.00")]), pa.array([Decimal("1.0501")]), Decimal("0.05"), set()),
        (pa.array([HUGE, HUGE + 2], pa.decimal128(38, 0)), pa.array([HUGE], pa.decimal128(38, 9)), 1, {(0, 0)}),
        (pa.array([date(2024, 2, 28)]), pa.array([date(2024, 3, 1)]), timedelta(days=2), {(0, 0)}),
        (pa.array([date(2024, 2, 28)]), pa.array([date(2024, 3, 1)]), timedelta(days=1, hours=23), set()),
        (
            pa.array([date(2024, 3, 1)]),
            pa.array([datetime(2024, 3, 1, 0, 0, 1), datetime(2024, 2, 29, 23, 59, 58)]),
            timedelta(seconds=1),
            {(0, 0)},
        ),
        (  # a second that no nanosecond timestamp can tell, and yet it is close to the last one that can
            pa.array([9_223_372_037], pa.timestamp("s")),
            pa.array([2**63 - 1, 2**63 - 10**9], pa.timestamp("ns")),
            timedelta(microseconds=500_000),
            {(0, 0)},
        ),
        (pa.array([None, None]), pa.array([1, 2]), 5, set()),
    ],
)
def test_what_is_close(left: pa.Array, right: pa.Array, width: Any, expected: set[tuple[int, int]]) -> None:
    spec = spec_of(left.type, right.type, width)
    assert set(reference_pairs(pa.table({"p": left}), pa.table({"p": right}), spec)) == expected
    assert set(pairs_by_words(spec, left, right)) == expected
    swapped = spec_of(right.type, left.type, width)
    assert {(i, j) for j, i in pairs_by_words(swapped, right, left)} == expected


doubles = st.lists(st.floats(width=64), min_size=1, max_size=8)
widths = st.floats(min_value=0, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(doubles, doubles, widths)
@example([1.7976931348623157e308], [-1.7976931348623157e308, float("inf")], 1.7976931348623157e308)
def test_no_pair_of_doubles_is_outside_the_interval(left: list[float], right: list[float], width: float) -> None:
    spec = spec_of(pa.float64(), pa.float64(), width)
    arrays = pa.array(left), pa.array(right)
    wanted = reference_pairs(pa.table({"p": arrays[0]}), pa.table({"p": arrays[1]}), spec)
    assert pairs_by_words(spec, *arrays) == wanted


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-(10**37), 10**37), min_size=1, max_size=6),
    st.lists(st.integers(-(10**37), 10**37), min_size=1, max_size=6),
    st.integers(0, 10**37),
    st.sampled_from([(0, 0), (0, 9), (9, 2), (20, 0)]),
)
def test_wide_decimals_are_exact(left: list[int], right: list[int], width: int, scales: tuple[int, int]) -> None:
    arrays = [
        pa.array([Decimal(value).scaleb(-scale) for value in values], pa.decimal128(38, scale))
        for values, scale in zip((left, right), scales, strict=True)
    ]
    spec = spec_of(arrays[0].type, arrays[1].type, width)
    wanted = reference_pairs(pa.table({"p": arrays[0]}), pa.table({"p": arrays[1]}), spec)
    assert pairs_by_words(spec, *arrays) == wanted


@pytest.mark.parametrize(
    "left, right, width",
    [
        (pa.string(), pa.string(), 1),
        (pa.int64(), pa.int64(), timedelta(1)),
        (pa.timestamp("s"), pa.timestamp("s"), 60),
        (pa.timestamp("s"), pa.timestamp("s", "UTC"), timedelta(1)),
        (pa.time32("s"), pa.duration("s"), timedelta(1)),
        (pa.bool_(), pa.int8(), 1),
    ],
)
def test_columns_and_widths_that_do_not_go_together(left: pa.DataType, right: pa.DataType, width: Any) -> None:
    with pytest.raises(wm.SpecError, match="cannot be within"):
        spec_of(left, right, width)


@pytest.mark.parametrize("width", [-1, -0.1, math.nan, True, "1", None, timedelta(-1), Decimal("NaN")])
def test_widths_that_are_none(width: Any) -> None:
    with pytest.raises(wm.SpecError, match="width of a band"):
        wm.band("p", width)


def test_what_people_write() -> None:
    band = wm.band("bought = sold", 2)
    assert (band.left, band.right, band.width) == ("bought", "sold", 2)
    assert parse_on(["sym", band]) == (Equal("sym", "sym"), band)
    assert parse_on(band) == (band,)
    with pytest.raises(wm.SpecError, match="not understood"):
        wm.band("= x", 1)
    with pytest.raises(wm.SpecError, match="takes one band"):
        JoinSpec(pa.schema({"p": pa.int8()}), pa.schema({"p": pa.int8()}), (wm.band("p", 1), wm.band("p", 2)))


def test_both_columns_of_a_band_reach_the_output() -> None:
    schema = pa.schema({"sym": pa.string(), "price": pa.float64()})
    assert JoinSpec(schema, schema, parse_on(["sym", wm.band("price", 1)])).schema.names == [
        "sym",
        "price",
        "price_right",
    ]


def test_width_is_part_of_the_fingerprint() -> None:
    assert spec_of(pa.int8(), pa.int8(), 1).fingerprint != spec_of(pa.int8(), pa.int8(), 2).fingerprint


@pytest.mark.parametrize("name", sorted(name for name, kind in ALGORITHMS.items() if not kind.joins_ranges))
def test_joins_on_equal_values_refuse_bands(name: str) -> None:
    with pytest.raises(wm.SpecError, match="joins on equal values only"):
        build(spec_of(pa.int64(), pa.int64(), 1), 1 << 20, MemoryStore(), name)
    with pytest.raises(wm.SpecError, match="joins on equal values only"):
        wm.join(pa.table({"p": [1]}), pa.table({"p": [1]}), on=wm.band("p", 1), algorithm=name)


@pytest.mark.parametrize("on", [wm.band("p", 1), ["q", wm.band("p", 1)]], ids=["alone", "beside"])
def test_bands_go_to_confluence_unless_told_otherwise(on: Any) -> None:
    rows = pa.table({"p": [1, 2, 9], "q": [4, 4, 4]})
    result = wm.join(rows, rows, on=on, delay="1 s")
    assert result.table().num_rows == 5
    assert result.progress.algorithm == "confluence"


def test_join_beside_an_equality() -> None:
    buys = pa.table({"sym": ["a", "b", "a"], "price": [1.0, 1.0, 9.0]})
    sells = pa.table({"sym": ["a", "a"], "price": [1.5, 8.5]})
    found = wm.join(buys, sells, on=["sym", wm.band("price", 0.5)], memory="8 MiB").table().sort_by("price")
    assert found.to_pydict() == {"sym": ["a", "a"], "price": [1.0, 9.0], "price_right": [1.5, 8.5]}


def test_widths_in_words() -> None:
    assert parse_width("2") == 2 and isinstance(parse_width("2"), int)
    assert parse_width("0.05") == Decimal("0.05")
    assert parse_width("5 min") == timedelta(minutes=5)
    for text in ("", "x", "-1", "5 parsecs"):
        with pytest.raises(wm.SpecError, match="not understood"):
            parse_width(text)


@pytest.mark.parametrize("name", sorted(name for name, kind in ALGORITHMS.items() if kind.joins_ranges))
def test_equal_hashes_beside_a_band_prove_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = KeyCodec._hashed
    alike = staticmethod(lambda readers, columns: (np.zeros(len(columns[0]), np.int64), hashed(readers, columns)[1]))
    monkeypatch.setattr(KeyCodec, "_hashed", alike)
    rng = np.random.default_rng(8)
    tables = [
        pa.table({"sym": rng.choice(["a", "b", "ab", ""], 300), "price": rng.integers(0, 50, 300)}) for _ in range(2)
    ]
    on = ["sym", wm.band("price", 2)]
    found = wm.join(*tables, on=on, memory="1 MiB", algorithm=name).table()
    spec = JoinSpec(tables[0].schema, tables[1].schema, parse_on(on))
    assert found.num_rows == len(reference_pairs(tables[0], tables[1], spec)) > 0
