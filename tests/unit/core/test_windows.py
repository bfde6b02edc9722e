"""What windows mean, before any row is joined."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.checks.oracle.windows import reference_window_pairs
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import LateRowError, SpecError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import parse_edges
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import Bounds, Rows, WindowJoinSpec, parse_span, parse_windows


def spec_of(left: pa.Table, right: pa.Table, **windows: object) -> WindowJoinSpec:
    return WindowJoinSpec(left.schema, right.schema, parse_on("k"), window=parse_windows(**windows))  # type: ignore[arg-type]


def pairs(left: list[int], right: list[int], order: str, **windows: object) -> list[tuple[int, int]]:
    """Rows of one key with these times, in this order of arrival."""
    tables = [pa.table({"k": [1] * len(times), "t": pa.array(times, pa.int64())}) for times in (left, right)]
    either = windows["window"]
    if not isinstance(either[0] if isinstance(either, tuple) else either, Rows):
        windows = {"time": "t", **windows}
    return reference_window_pairs(tables[0], tables[1], spec_of(*tables, **windows), ["lr".index(c) for c in order])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("10 min", timedelta(minutes=10)),
        ("90s", timedelta(seconds=90)),
        ("1.5 hours", timedelta(hours=1.5)),
        ("2 days", timedelta(days=2)),
        ("250 ms", timedelta(milliseconds=250)),
        ("12", 12),
    ],
)
def test_spans(text: str, expected: object) -> None:
    assert parse_span(text) == expected


@pytest.mark.parametrize("bad", ["ten minutes", "10 parsecs", -1, timedelta(seconds=-1), 1.5, True, None])
def test_what_is_no_span(bad: object) -> None:
    with pytest.raises(SpecError, match=r"^slide ('?[A-Za-z0-9. ]+'? is not understood; write a length|must be zero)"):
        parse_span(bad, "slide")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (lambda: parse_windows("10 rows", "t"), "window '10 rows' is not understood; write a length of time such as"),
        (lambda: parse_windows(5, "t", slide="x"), "slide 'x' is not understood; write a length of time such as"),
        (lambda: parse_windows(5, "t", lateness="x"), "lateness 'x' is not understood; write a length of time such as"),
        (lambda: parse_many_windows(5, ["r"], "t", "x"), "lateness 'x' is not understood; write a length of time such"),
        (lambda: parse_asof("t", lateness="x"), "lateness 'x' is not understood; write a length of time such as"),
        (lambda: parse_asof("t", tolerance="x"), "tolerance 'x' is not understood; write a length of time such as"),
        (lambda: wm.landmark("x"), "landmark 'x' is not understood; write a length of time such as"),
        (lambda: wm.age("1 s", "x"), "age 'x' is not understood; write a length of time such as"),
        (lambda: wm.landmark("9" * 30 + " d"), "landmark '9999"),
    ],
)
def test_what_is_not_understood_is_called_by_its_name(asked: Callable[[], object], sentence: str) -> None:
    with pytest.raises(SpecError, match=f"^{sentence}"):
        asked()


@pytest.mark.parametrize("span", ["10 s", timedelta(seconds=10)])
def test_spans_are_told_as_people_write_them(span: Any) -> None:
    numbers, dates = pa.schema(INTEGERS), pa.schema({"k": pa.int64(), "t": pa.timestamp("s")})
    with pytest.raises(SpecError, match=r"^window '10 s' does not go with a time column of int64; give a whole number"):
        WindowJoinSpec(numbers, numbers, parse_on("k"), window=parse_windows(span, "t"))
    with pytest.raises(SpecError, match=r"^tolerance '10 s' does not go with a time column of int64; give a number of"):
        AsofSpec(numbers, numbers, parse_on("k"), times=parse_asof("t", tolerance=span))
    with pytest.raises(SpecError, match="cannot be within '10 s' of column 't' of right"):
        JoinSpec(numbers, numbers, (wm.band("t", timedelta(seconds=10)),))
    with pytest.raises(SpecError, match=r"^slide '1500 ms' is finer than the time columns"):
        WindowJoinSpec(dates, dates, parse_on("k"), window=parse_windows(span, "t", slide="1.5 s"))


@pytest.mark.parametrize("bounds", [Bounds(7), Bounds(7, step=5), Bounds(0, step=12), Bounds(3, since=4), Bounds(0)])
def test_lower_and_upper_are_two_views_of_one_relation(bounds: Bounds) -> None:
    for stored in range(-40, 40):
        held = [time for time in range(-60, 80) if bounds.lower(time) <= stored]
        assert held == [time for time in range(-60, 80) if time <= bounds.upper(stored)]


def test_the_windows_of_the_inputs_may_differ() -> None:
    # A left row may be 3 older than the right one, a right row 1 older than the left one; the bounds belong to it.
    assert pairs([10], [6, 8, 9, 10, 13, 14], "lrrrrrr", window=(3, 1)) == [(0, 2), (0, 3), (0, 4)]


def test_the_order_of_arrival_does_not_matter_if_no_row_is_late() -> None:
    for order in ("llrr", "rrll", "lrlr"):
        assert pairs([0, 5], [4, 9], order, window=4) == [(0, 0), (1, 0), (1, 1)]


def test_a_window_that_slides_keeps_rows_until_it_moves() -> None:
    # At time 19 the window of 5 that moves by 10 is still the one of time 10: it begins at 5.
    assert pairs([4, 5], [19], "llr", window=5, slide=10) == [(1, 0)]
    assert pairs([4, 5, 15], [20], "lllr", window=5, slide=10) == [(2, 0)]


def test_ages() -> None:
    assert pairs([0, 5, 8, 10], [10], "llllr", window=wm.age(2, 5)) == [(1, 0), (2, 0)]
    assert pairs([0, 5, 10], [10], "lllr", window=(wm.age(5, 6), 0)) == [(1, 0), (2, 0)]


def test_landmarks() -> None:
    assert pairs([9, 10, 19], [19, 20], "lllrr", window=wm.landmark(10)) == [(1, 0), (2, 0)]
    assert pairs([9, 10], [500], "llr", window=wm.landmark(since=10)) == [(1, 0)]


def test_rows_count_in_the_order_of_arrival() -> None:
    assert pairs([0, 0, 0], [0, 0], "lllrr", window=wm.rows(2)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert pairs([0, 0], [0, 0, 0], "rrrll", window=(wm.rows(2), wm.rows(1))) == [(0, 2), (1, 2)]


def test_late_rows() -> None:
    # The left's 30 tells that rows from 28 on are to come: the right's 10 has expired when the left's 12 comes.
    late = {"window": 5, "lateness": 2}
    assert pairs([30, 12], [10, 29], "rlrl", **late) == [(0, 1)]
    assert pairs([30, 26], [25], "rll", **late) == [(0, 0), (1, 0)]
    assert pairs([30, 26], [25], "rll", **late, late="drop") == [(0, 0)]
    # It is kept, though, and meets what comes later.
    assert pairs([30, 26], [27], "llr", **late) == [(0, 0), (1, 0)]


def test_rows_without_a_time_meet_nothing_and_hold_nothing_up() -> None:
    left = pa.table({"k": [1, 1], "t": pa.array([None, 5], pa.int64())})
    right = pa.table({"k": [1], "t": pa.array([5], pa.int64())})
    assert reference_window_pairs(left, right, spec_of(left, right, window=3, time="t"), [0, 0, 1]) == [(1, 0)]
    assert wm.window_join(left, right, on="k", time="t", window=3, memory="8 MiB").table().num_rows == 1


def test_units() -> None:
    left = pa.schema({"k": pa.int64(), "t": pa.timestamp("s")})
    right = pa.schema({"k": pa.int64(), "t": pa.timestamp("us")})
    spec = WindowJoinSpec(left, right, parse_on("k"), window=parse_windows("1 min", "t", "5 s", "10 s"))
    assert spec.bounds == (Bounds(60_000_000, 5_000_000), Bounds(60_000_000, 5_000_000))
    assert spec.lateness == 10_000_000
    days = pa.schema({"k": pa.int64(), "t": pa.date32()})
    assert WindowJoinSpec(days, days, parse_on("k"), window=parse_windows("3 days", "t")).bounds[0].span == 3
    since = wm.landmark(since=datetime(1970, 1, 2, tzinfo=UTC))
    zoned = pa.schema({"k": pa.int64(), "t": pa.timestamp("ms", "UTC")})
    assert WindowJoinSpec(zoned, zoned, parse_on("k"), window=parse_windows(since, "t")).bounds[0].since == 86_400_000


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.date32(), pa.timestamp("ns")])
def test_a_landmark_may_be_a_date(type_: pa.DataType) -> None:
    schema = pa.schema({"k": pa.int64(), "t": type_})
    told = [
        WindowJoinSpec(schema, schema, parse_on("k"), window=parse_windows(wm.landmark(since=since), "t")).bounds[0]
        for since in (date(1970, 1, 3), datetime(1970, 1, 3))
    ]
    assert told[0] == told[1] and told[0].since


@pytest.mark.parametrize("since", ["2026-01-01", 1.5, True, np.datetime64("2026-01-01")])
def test_landmarks_that_are_no_moment_are_refused(since: Any) -> None:
    with pytest.raises(SpecError, match=r"^since must be a date, a datetime, or a whole number of units, not "):
        wm.landmark(since=since)


INTEGERS = {"k": pa.int64(), "t": pa.int64()}
TIMES = {"k": pa.int64(), "t": pa.timestamp("ms")}


@pytest.mark.parametrize(
    "columns, windows, message",
    [
        (INTEGERS, {"window": 5}, "needs time"),
        (INTEGERS, {"window": "5 s", "time": "t"}, "does not go with a time column of int64"),
        ({"k": pa.int64(), "t": pa.uint64()}, {"window": 5, "time": "t"}, "all must be integers, and none uint64"),
        (INTEGERS, {"window": wm.landmark(since=date(2026, 1, 1)), "time": "t"}, "int64; give a whole number of units"),
        (TIMES, {"window": wm.landmark(since=5), "time": "t"}, "give a date or a datetime"),
        (INTEGERS, {"window": wm.landmark(since=-(10**30)), "time": "t"}, "is too far from now"),
        (TIMES, {"window": 5, "time": "t"}, "does not go with a time column of timestamp"),
        (TIMES, {"window": "5 s", "time": "t", "slide": "10 us"}, "finer than the time columns"),
        (TIMES, {"window": "5 s", "time": "u"}, "'u' is not in left"),
        (INTEGERS, {"window": 5, "time": "t", "slide": 0}, "more than nothing"),
        (INTEGERS, {"window": (5, wm.rows(3)), "time": "t"}, "let both do the same"),
        (INTEGERS, {"window": wm.rows(3), "time": "t"}, "knows no time"),
        (INTEGERS, {"window": wm.rows(3), "lateness": 4}, "knows no time"),
        (INTEGERS, {"window": wm.age(5, 3), "time": "t"}, "holds nothing"),
        (INTEGERS, {"window": wm.landmark(5), "time": "t", "slide": 3}, "does not slide"),
        (INTEGERS, {"window": 5, "time": "t", "late": "maybe"}, "'keep', 'drop' or 'error'"),
        (INTEGERS, {"window": (1, 2, 3), "time": "t"}, "two windows"),
        (INTEGERS, {"window": 1 << 62, "time": "t"}, "too long"),
        ({"k": pa.int64(), "t": pa.float64()}, {"window": 5, "time": "t"}, "cannot tell the time"),
        ({"k": pa.int64(), "t": pa.time32("s")}, {"window": "5 s", "time": "t"}, "cannot tell the time"),
    ],
)
def test_what_cannot_be_is_refused(columns: dict[str, pa.DataType], windows: dict[str, object], message: str) -> None:
    schema = pa.schema(columns)
    with pytest.raises(SpecError, match=message):
        WindowJoinSpec(schema, schema, parse_on("k"), window=parse_windows(**windows))  # type: ignore[arg-type]


def test_what_finds_rows_by_equal_values_needs_some() -> None:
    table = pa.table({"k": [1], "t": [1]})
    for on in (None, wm.band("k", 3)):
        with pytest.raises(SpecError, match="ah_ewj finds rows by equal values, and the join asks for none"):
            wm.window_join(table, table, on, window=5, time="t", algorithm="ah_ewj")
    with pytest.raises(SpecError, match="a join needs at least one condition"):
        wm.join(table, table, on=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"window": wm.rows(3), "idle": "1 s"}, "knows no time, so idle has no meaning"),
        ({"window": wm.rows(3), "emit": "final"}, "a window of rows knows no"),
        ({"window": 5, "time": "t", "emit": "late"}, "emit='late' is not understood; write 'early' or 'final'"),
        ({"window": 5, "time": "t", "emit": "final", "late": "keep"}, "say late='drop' or late='error'"),
        ({"window": 5, "time": "t", "idle": 0}, "idle=0 would take every input for silent"),
        ({"window": 5, "time": "t = "}, "time='t = ' is not understood; write a column of both inputs"),
        ({"window": 5, "time": 7}, "time=7 is not understood; write a column of both inputs"),
        ({"window": 5, "time": "t", "idle": "soon"}, "'soon' is not understood"),
        ({"window": 5, "time": "t", "idle": -1}, "idle must be zero or more, not -1"),
    ],
)
def test_what_silence_and_final_results_cannot_be(windows: dict[str, object], message: str) -> None:
    schema = pa.schema(INTEGERS)
    with pytest.raises(SpecError, match=message):
        WindowJoinSpec(schema, schema, parse_on("k"), window=parse_windows(**windows))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "window"),
    [
        (pa.array([0, 4, None, 9, 30]), 5),
        (pa.array([0, 4, None, 9, 30], pa.timestamp("ms", "UTC")), "5 ms"),
        (pa.array([0, 4, None, 9, 30], pa.timestamp("ms")), wm.landmark(since=datetime(1970, 1, 1, 0, 0, 0, 9000))),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"how": "full", "emit": "final"}, {"algorithm": "ah_ewj"}], ids=str)
def test_times_may_be_in_a_dictionary(times: pa.Array, window: object, options: dict[str, Any]) -> None:
    plain = pa.table({"k": [1, 1, 1, 1, 1], "t": times, "n": range(5)})
    coded = plain.set_column(1, "t", times.dictionary_encode())

    def joined(*inputs: pa.Table) -> list[Any]:
        found = wm.window_join(*inputs, on="k", time="t", window=window, **options).table().to_pylist()
        return sorted(map(str, found))

    expected = joined(plain, plain)
    assert len(expected) > 3
    assert joined(coded, plain) == joined(plain, coded) == joined(coded, coded) == expected


def test_two_signs_mean_what_one_does() -> None:
    assert parse_windows(5, "t == at").time == parse_windows(5, "t = at").time == ("t", "at")
    assert parse_edges("r.a == s.b", ["r", "s"]) == parse_edges("r.a = s.b", ["r", "s"])


def test_another_window_is_another_join() -> None:
    schema = pa.schema(INTEGERS)
    specs = [WindowJoinSpec(schema, schema, parse_on("k"), window=parse_windows(each, "t")) for each in (5, 6, 5)]
    assert specs[0].fingerprint == specs[2].fingerprint != specs[1].fingerprint


def test_late_rows_may_end_the_join() -> None:
    left = pa.table({"k": [1, 1], "t": [100, 5]})
    with pytest.raises(LateRowError, match="row 2 of left comes later"):
        wm.window_join(left, left, on="k", time="t", window=3, late="error", memory="8 MiB").table()


def test_a_time_beyond_all_reason_is_refused() -> None:
    left = pa.table({"k": [1], "t": [1 << 62]})
    with pytest.raises(SpecError, match="too far from now"):
        wm.window_join(left, left, on="k", time="t", window=3, memory="8 MiB").table()


def test_a_least_age_that_is_finer_than_the_times_is_rounded_up() -> None:
    side = pa.schema({"id": pa.int64(), "t": pa.timestamp("s")})
    spec = WindowJoinSpec(side, side, parse_on("id"), window=parse_windows(wm.age("4.5 s", "9.5 s"), "t"))
    assert (spec.bounds[0].least, spec.bounds[0].span) == (5, 9)
