"""Sort keys of bands: what a row looks for is never too little, and ends ever further on."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.kernels.sort_keys import words_of_keys
from watersmeet.matching import reach
from watersmeet.matching.reach import BandKeys

NAN, INF = float("nan"), float("inf")
SMALL = 5e-324
DOUBLES = [0.0, -0.0, SMALL, -SMALL, 0.05, 0.1, 0.15, 1.0, 1.05, -1.0, 1e300, -1e300, INF, -INF, NAN, None]
TIMES = [0, 1, -1, 10**9, 2 * 10**9, 17 * 10**17, 17 * 10**17 + 10**9, -(2**63), 2**63 - 1, None]

BANDS: dict[str, tuple[pa.Array, Any]] = {
    "doubles": (pa.array(DOUBLES), 0.05),
    "doubles, no width": (pa.array(DOUBLES), 0),
    "doubles, any distance": (pa.array(DOUBLES), INF),
    "floats": (pa.array(DOUBLES, pa.float32()), 0.05),
    "integers": (pa.array([-(2**63), -3, 0, 2, 5, 2**40, 2**40 + 3, 2**63 - 1, None]), 3),
    "integers, any distance": (pa.array([-(2**63), 0, 2**63 - 1]), 2**64),
    "unsigned": (pa.array([0, 2**63 - 1, 2**63, 2**64 - 1], pa.uint64()), 1),
    "decimals": (pa.array([Decimal(f"{n}.05") for n in (-4, 3, 10**20, 10**20 + 1)], pa.decimal128(38, 2)), 1),
    "timestamps": (pa.array(TIMES, pa.timestamp("ns")), timedelta(seconds=1)),
}


def rows_of(values: pa.Array, beside: bool) -> pa.Table:
    repeated = pa.concat_arrays([values] * (3 if beside else 1))
    names = np.repeat(["a", "b", "c"], len(values)) if beside else ["a"] * len(values)
    return pa.table({"sym": names, "p": repeated})


def found_pairs(
    rows: pa.Table, width: Any, beside: bool
) -> tuple[set[tuple[int, int]], set[tuple[int, int]], BandKeys]:
    """Pairs that keys alone let through, and those that truly match."""
    spec = JoinSpec(rows.schema, rows.schema, parse_on([*(["sym"] if beside else []), wm.band("p", width)]))
    codec = BandKeys(spec)
    columns = [rows[name].combine_chunks() for name in (["sym", "p"] if beside else ["p"])]
    keys, valid = codec.hash(0, columns)
    again, _ = codec.hash(1, columns)
    assert (keys == again).all()
    unsigned = keys.view(np.uint64)
    low, high = codec.bounds(unsigned)
    known = np.ones(len(keys), np.bool_) if valid is None else valid
    inside = (low[:, None] <= unsigned) & (unsigned <= high[:, None]) & known[:, None] & known
    left, right = np.nonzero(inside)
    if codec.decides:
        close = codec.close(unsigned[left], unsigned[right])
        left, right = left[close], right[close]
    truly = set(reference_pairs(rows, rows, spec))
    order = np.flatnonzero(known)[np.argsort(unsigned[known])]
    assert (np.diff(low[order].astype(object)) >= 0).all() and (np.diff(high[order].astype(object)) >= 0).all()
    return set(zip(left.tolist(), right.tolist(), strict=True)), truly, codec


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", BANDS)
def test_keys_let_all_pairs_through(kind: str, beside: bool) -> None:
    rows = rows_of(BANDS[kind][0], beside)
    through, truly, codec = found_pairs(rows, BANDS[kind][1], beside)
    assert truly and truly <= through
    assert through == truly if codec.exact else through >= truly


@pytest.mark.parametrize("end", ["first", "last"])
def test_a_cell_that_is_taken_for_one_word_loses_pairs(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timestamps of years lie in cells of seconds: what looks for its own cell's wrong end looks too short."""

    def rounded(keys: Any, origin: Any, first: Any, last: Any) -> None:
        words_of_keys(keys, origin, first, last)
        (first if end == "first" else last)[:] = last if end == "first" else first

    rng = np.random.default_rng(3)
    ticks = rng.integers(0, 10**17, 400)
    values = pa.array(np.concatenate([ticks, ticks + rng.integers(-(10**9), 10**9, 400)]), pa.timestamp("ns"))
    rows = pa.table({"sym": ["a"] * 800, "p": values})
    through, truly, _ = found_pairs(rows, timedelta(seconds=1), beside=True)
    assert truly <= through
    monkeypatch.setattr(reach, "words_of_keys", rounded)
    through, _, _ = found_pairs(rows, timedelta(seconds=1), beside=True)
    assert not truly <= through


def test_values_of_any_spread_are_told_apart() -> None:
    """Beside an equality a row looks for few more than match: times of a day, prices, small numbers."""
    rng = np.random.default_rng(4)
    day = 17 * 10**17
    some: dict[str, tuple[pa.Array, Any]] = {
        "times of a day": (
            pa.array(rng.integers(day, day + 86_400 * 10**9, 2000), pa.timestamp("ns")),
            timedelta(seconds=9),
        ),
        "prices": (pa.array(rng.uniform(90, 110, 2000)), 0.01),
        "numbers": (pa.array(rng.integers(0, 10_000, 2000)), 2),
    }
    for kind, (values, width) in some.items():
        through, truly, _ = found_pairs(pa.table({"sym": ["a"] * 2000, "p": values}), width, beside=True)
        assert truly <= through and len(through) < 1.01 * len(truly), (kind, len(through), len(truly))


def test_the_origin_is_amid_the_first_values_that_match_anything() -> None:
    schema = pa.schema({"sym": pa.string(), "p": pa.int64()})
    codec = BandKeys(JoinSpec(schema, schema, parse_on(["sym", wm.band("p", 1)])))
    codec.hash(0, [pa.array(["a", None]), pa.array([None, 5])])
    assert codec.origin is None
    codec.hash(1, [pa.array(["a", "b", None, "c"]), pa.array([1000, -(2**62), 77, 1002])])
    assert codec.origin == 1000
    codec.hash(0, [pa.array(["a"]), pa.array([5])])
    assert codec.origin == 1000
