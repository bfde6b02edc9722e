from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.core.bands import common_band_form
from watersmeet.core.errors import SpecError
from watersmeet.core.keys import KeyKind, KeyType, common_key_type
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.records.keys import KeyCodec

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LOWEST, HIGHEST = -(2**63), 2**63 - 1
CONTEXT = Context(prec=100)


def raw(values: Iterable[int | None], found: pa.DataType) -> pa.Array:
    """An array of a temporal type from its ticks."""
    return pa.array(values, pa.int32() if found.bit_width == 32 else pa.int64()).view(found)


def integers(found: pa.DataType) -> pa.Array:
    low, high = np.iinfo(found.to_pandas_dtype()).min, np.iinfo(found.to_pandas_dtype()).max
    wished = [0, 1, -1, 5, 100, 127, -128, 255, 1500, 2**53, 2**53 + 1, 10**18, 10**19, LOWEST, HIGHEST, 2**63]
    return pa.array(sorted({low, high, *(value for value in wished if low <= value <= high)}), found)


def floats(found: pa.DataType) -> pa.Array:
    values = [0.0, -0.0, 1.0, -1.0, 5.0, 1.5, 0.1, 100.0, 255.0, math.inf, -math.inf, math.nan, -math.nan, 2048.0]
    if found != pa.float16():
        values += [2.0**53, 2.0**63, 2.0**64, -(2.0**63), 1e18, 1e19]
    if found == pa.float64():
        values += [0.1 + 0.2, 0.3, 5e-324, 1e300, float(2**53 + 2), 12345678901234567.89]
    return pa.array(np.array(values, found.to_pandas_dtype()), found)


def decimals(found: pa.DataType) -> pa.Array:
    top = 10**found.precision - 1
    units = {0, 1, -1, top, -top, 10 ** min(found.precision - 1, 12), 123, 1230, 12300, LOWEST, HIGHEST, 2**63, 2**64}
    for value in (1, 5, 100, 1500, -128, 255, 2**53, 10**18, 10**19, 2**63, 2**64 - 1, LOWEST, 2**100, -(2**127)):
        units.add(int(Fraction(value) * Fraction(10) ** found.scale))
    units.add(int(Fraction(3, 2) * Fraction(10) ** found.scale))
    units.add(int(Fraction(1, 10) * Fraction(10) ** found.scale))
    inside = sorted(unit for unit in units if abs(unit) <= top)
    return pa.array([Decimal(unit).scaleb(-found.scale, CONTEXT) for unit in inside], found)


NUMBERS = {
    found: integers(found)
    for found in map(pa.type_for_alias, ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))
}
NUMBERS |= {found: floats(found) for found in (pa.float16(), pa.float32(), pa.float64())}
NUMBERS |= {
    found: decimals(found)
    for found in (
        pa.decimal32(9, 2),
        pa.decimal64(18, 0),
        pa.decimal64(16, 5),
        pa.decimal128(4, 2),
        pa.decimal128(18, 4),
        pa.decimal128(38, 10),
        pa.decimal128(38, 38),
        pa.decimal128(38, 0),
        pa.decimal128(5, -2),
        pa.decimal128(6, -19),
        pa.decimal256(12, 3),
        pa.decimal256(76, 38),
        pa.decimal256(76, 0),
        pa.decimal256(40, -30),
    )
}

DAY = 86_400
SECONDS = [0, 1, -1, 60, DAY, -DAY, 20_000 * DAY, 20_000 * DAY + 1, 9_223_372_036]


def ticks(found: pa.DataType) -> pa.Array:
    unit = UNITS[found.unit]
    values = {second * unit for second in SECONDS} | {1, -1, 999, 1000, 1001, 10**6, 10**9, LOWEST, HIGHEST}
    values |= {HIGHEST // 1000, HIGHEST // 1000 + 1, HIGHEST // 10**6, HIGHEST // 10**9}
    return raw(sorted(values), found)


NAIVE: dict[pa.DataType, pa.Array] = {pa.timestamp(unit): ticks(pa.timestamp(unit)) for unit in UNITS}
DATES: dict[pa.DataType, pa.Array] = {
    pa.date32(): raw([0, 1, -1, 20_000, 2**31 - 1, -(2**31)], pa.date32()),
    pa.date64(): raw([day * DAY * 1000 for day in (0, 1, -1, 20_000, 2**31 - 1, -(2**31))], pa.date64()),
}
ZONED = {
    found: ticks(found)
    for found in (pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Athens"), pa.timestamp("ns", "+05:30"))
}
TIMES = {
    pa.time32("s"): raw([0, 1, 60, DAY - 1], pa.time32("s")),
    pa.time32("ms"): raw([0, 1, 1000, 60_000, DAY * 1000 - 1], pa.time32("ms")),
    pa.time64("us"): raw([0, 1, 1000, 10**6, 60 * 10**6], pa.time64("us")),
    pa.time64("ns"): raw([0, 1, 1000, 10**6, 10**9, 60 * 10**9], pa.time64("ns")),
}
DURATIONS = {pa.duration(unit): ticks(pa.duration(unit)) for unit in UNITS}

TEXTS = ["", "a", "b", "ab", "ab\0", "é", "a" * 7, "a" * 8, "a" * 9, "a" * 16, "a" * 17, "a" * 16 + "b", "x" * 100]
BLOBS = [text.encode() for text in TEXTS]
STRINGS = {found: pa.array(TEXTS, found) for found in (pa.string(), pa.large_string(), pa.string_view())}
BINARIES = {found: pa.array(BLOBS, found) for found in (pa.binary(), pa.large_binary(), pa.binary_view())}
BINARIES |= {
    pa.binary(8): pa.array([b"a" * 8, b"b" * 8], pa.binary(8)),
    pa.binary(3): pa.array([b"ab\0", b"abc"], pa.binary(3)),
}
BOOLS = {pa.bool_(): pa.array([True, False])}

FAMILIES = [NUMBERS, NAIVE | DATES, ZONED, TIMES, DURATIONS, STRINGS, BINARIES, BOOLS]
PLAIN = {found: array for family in FAMILIES for found, array in family.items()}
PAIRS = [pair for family in FAMILIES for pair in itertools.product(family, family)]


def meaning(found: pa.DataType, scalar: pa.Scalar) -> Any:
    """A value that Python compares exactly."""
    if pa.types.is_date(found):
        return Fraction(scalar.value // (1 if found == pa.date32() else DAY * 1000) * DAY)
    if pa.types.is_temporal(found):
        return Fraction(scalar.value, UNITS[found.unit])
    return scalar.as_py()


def oracle(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Which values of the left (rows) equal which of the right (columns)."""
    meanings = [[None if not v.is_valid else meaning(column.type, v) for v in column] for column in (left, right)]

    def same(a: Any, b: Any) -> bool:
        if a is None or b is None:
            return False
        if isinstance(a, float) or isinstance(b, float):
            a, b = float(a), float(b)
            return bool(a == b or (math.isnan(a) and math.isnan(b)))
        if isinstance(a, Decimal) or isinstance(b, Decimal):
            return Fraction(a) == Fraction(b)
        return bool(a == b)

    return np.array([[same(a, b) for b in meanings[1]] for a in meanings[0]], bool).reshape(len(left), len(right))


def codec_for(*pairs: tuple[pa.DataType, pa.DataType]) -> KeyCodec:
    schemas = [pa.schema([(f"k{i}", pair[side]) for i, pair in enumerate(pairs)]) for side in (0, 1)]
    return KeyCodec(JoinSpec(schemas[0], schemas[1], parse_on([f"k{i}" for i in range(len(pairs))])))


def decide(codec: KeyCodec, left: pa.Array, right: pa.Array, expected: np.ndarray) -> None:
    """Hashes and comparison must agree with the expected matrix."""
    (lh, lv), (rh, rv) = codec.hash(0, [left]), codec.hash(1, [right])
    assert lh.dtype == rh.dtype == np.int64
    assert len(lh) == len(left)
    can = np.ones(len(left), bool) if lv is None else lv
    may = np.ones(len(right), bool) if rv is None else rv
    same_hash = (lh[:, None] == rh[None, :]) & can[:, None] & may[None, :]
    if codec.exact:
        np.testing.assert_array_equal(same_hash, expected)
    else:
        assert same_hash[expected].all()
    compare_all(codec, left, right, expected)


def compare_all(codec: KeyCodec, left: pa.Array, right: pa.Array, expected: np.ndarray) -> None:
    """`equal` on every pair of rows without NULL; a gather makes what the caller would pass."""
    rows, columns = (
        np.flatnonzero(side.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64) for side in (left, right)
    )
    i, j = np.repeat(rows, len(columns)), np.tile(columns, len(rows))
    answer = codec.equal([gather(left, i)], [gather(right, j)])
    wanted = expected[i, j]
    if answer is None:
        assert wanted.all()
    else:
        np.testing.assert_array_equal(answer, wanted)
        assert not wanted.all(), "all equal must be told by None"
    i, j = np.nonzero(expected)
    assert codec.equal([gather(left, i)], [gather(right, j)]) is None


def gather(array: pa.Array, rows: np.ndarray) -> pa.Array:
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        large = pa.large_string() if pa.types.is_string_view(array.type) else pa.large_binary()
        return array.cast(large).take(pa.array(rows, pa.int64())).cast(array.type)
    return array.take(pa.array(rows, pa.int64()))


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_every_pair_of_types_decides_as_the_oracle(left: pa.DataType, right: pa.DataType) -> None:
    a, b = PLAIN[left], PLAIN[right]
    decide(codec_for((left, right)), a, b, oracle(a, b))


@pytest.mark.parametrize("found", PLAIN, ids=str)
def test_nulls_match_nothing_and_slices_are_what_they_show(found: pa.DataType) -> None:
    values = PLAIN[found]
    null = pa.nulls(1, found)
    long = pa.concat_arrays([null, values, null, values])
    codec = codec_for((found, found))
    for start, length in [(0, len(long)), (1, len(values)), (3, len(values)), (len(values) + 1, 1), (2, 0)]:
        part = long.slice(start, length)
        decide(codec, part, values, oracle(part, values))
    hashes, valid = codec.hash(0, [long])
    assert valid is not None
    np.testing.assert_array_equal(valid, long.is_valid().to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(hashes[~valid], 0)
    assert codec.hash(0, [long.slice(1, len(values))])[1] is None


@pytest.mark.parametrize("found", [*PLAIN, pa.null()], ids=str)
def test_all_null_and_empty(found: pa.DataType) -> None:
    codec = codec_for((found, found))
    _, valid = codec.hash(0, [pa.nulls(5, found)])
    assert valid is not None
    assert not valid.any()
    hashes, valid = codec.hash(1, [pa.nulls(0, found)])
    assert len(hashes) == 0
    assert valid is None or len(valid) == 0
    assert codec.equal([pa.nulls(0, found)], [pa.nulls(0, found)]) is None


@pytest.mark.parametrize("found", [*PLAIN, pa.list_(pa.int8()), pa.struct([("a", pa.int8())])], ids=str)
def test_null_type_compares_with_everything_and_matches_nothing(found: pa.DataType) -> None:
    codec = codec_for((pa.null(), found))
    column = PLAIN.get(found, pa.nulls(3, found))
    for side, array in ((0, pa.nulls(4)), (1, column)):
        _, valid = codec.hash(side, [array])
        assert valid is not None
        assert not valid.any()


@pytest.mark.parametrize("found", PLAIN, ids=str)
def test_types_of_different_families_cannot_be_compared(found: pa.DataType) -> None:
    (own,) = (family for family in FAMILIES if found in family)
    for other in PLAIN:
        assert (common_key_type(found, other) is not None) == (other in own)
        assert common_key_type(found, other) == common_key_type(other, found)
    for never in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.month_day_nano_interval()):
        assert common_key_type(found, never) is None
        assert common_key_type(never, never) is None


def test_incomparable_keys_are_refused_by_the_spec() -> None:
    with pytest.raises(SpecError, match="cannot be compared"):
        codec_for((pa.string(), pa.binary()))


@pytest.mark.parametrize(
    ("left", "right", "exact"),
    [
        (pa.int64(), pa.uint64(), True),
        (pa.float64(), pa.decimal256(76, 3), True),
        (pa.decimal128(18, 4), pa.decimal128(18, 4), True),
        (pa.decimal128(38, 4), pa.int64(), True),
        (pa.decimal128(38, 4), pa.decimal128(9, 2), True),
        (pa.decimal128(19, 4), pa.decimal128(19, 4), False),
        (pa.decimal256(76, 4), pa.decimal256(76, 4), False),
        (pa.timestamp("ns"), pa.date32(), True),
        (pa.string(), pa.string(), False),
        (pa.binary(8), pa.binary(8), False),
    ],
    ids=str,
)
def test_exact(left: pa.DataType, right: pa.DataType, exact: bool) -> None:
    assert codec_for((left, right)).exact is exact
    assert not codec_for((left, right), (pa.int8(), pa.int8())).exact


@pytest.mark.parametrize(
    "found",
    [
        pa.int64(),
        pa.uint16(),
        pa.float32(),
        pa.decimal128(38, 10),
        pa.date64(),
        pa.string(),
        pa.string_view(),
        pa.binary(8),
    ],
    ids=str,
)
def test_dictionaries_and_runs_are_compared_as_their_values(found: pa.DataType) -> None:
    values = PLAIN[found]
    with_null = pa.concat_arrays([values, pa.nulls(1, found)])
    places = pa.array([0, 1, None, len(values) - 1, len(values), 1, 0] * 9, pa.int8())
    dictionary = pa.DictionaryArray.from_arrays(places, with_null)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3, 4, 9, 20][: len(with_null)], pa.int32()), with_null[-4:])
    nested = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4, 7], pa.int16()), dictionary[1:4])
    as_large = {pa.string_view(): pa.large_string()}.get(found, found)
    settled = with_null.cast(as_large)
    for whole, plain in (
        (dictionary, settled.take(places)),
        (runs, settled[-4:].take(pa.array(np.repeat([0, 1, 2, 3], [3, 1, 5, 11])[: len(runs)]))),
        (nested, settled.take(places)[1:4].take(pa.array([0, 0, 1, 1, 2, 2, 2]))),
    ):
        codec = codec_for((whole.type, found))
        for start, length in ((0, len(whole)), (2, 5), (3, 1), (1, 0)):
            part, same = whole.slice(start, length), plain.slice(start, length)
            hashes, valid = codec.hash(0, [part])
            wanted, wanted_valid = codec_for((as_large, found)).hash(0, [same])
            np.testing.assert_array_equal(hashes, wanted)
            np.testing.assert_array_equal(valid, wanted_valid)
            if not same.null_count:
                assert codec.equal([part], [same.cast(found)]) is None


def test_a_dictionary_larger_than_the_batch_and_an_empty_one() -> None:
    codec = codec_for((pa.dictionary(pa.int32(), pa.string()), pa.string()))
    words = pa.array([f"word {i}" for i in range(100)])
    few = pa.DictionaryArray.from_arrays(pa.array([99, None, 7], pa.int32()), words)
    plain = words.take(few.indices)
    hashes, valid = codec.hash(0, [few])
    np.testing.assert_array_equal(hashes, codec.hash(1, [plain])[0])
    assert valid is not None
    assert valid.tolist() == [True, False, True]
    empty = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), words[:0])
    _, valid = codec.hash(0, [empty])
    assert valid is not None
    assert not valid.any()


def test_extension_types_are_compared_as_their_storage() -> None:
    storage = pa.array([b"0123456789abcdef", None, b"fedcba9876543210"], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    codec = codec_for((pa.uuid(), pa.binary()))
    decide(codec, uuids, storage.cast(pa.binary()), oracle(storage, storage))
    assert common_key_type(pa.uuid(), pa.uuid()) is not None
    assert common_key_type(pa.uuid(), pa.opaque(pa.binary(16), "thing", "vendor")) is None
    assert common_key_type(pa.json_(), pa.string()) is not None


def test_extension_types_of_other_parameters_are_not_compared() -> None:
    days, months = (
        pa.Table.from_pandas(pd.DataFrame({"k": [pd.Period("1970-02", unit)], "x": [1]})).select(["k"]) for unit in "DM"
    )
    day, month = days.schema.field("k").type, months.schema.field("k").type
    assert days["k"].type.storage_type == months["k"].type.storage_type == pa.int64()
    JoinSpec(days.schema, days.schema, parse_on("k"))
    with pytest.raises(SpecError, match=r'period \{"freq": "D"\}\) cannot be compared with .*period \{"freq": "M"\}'):
        JoinSpec(days.schema, months.schema, parse_on("k"))
    assert common_key_type(pa.dictionary(pa.int8(), day), month) is None
    assert common_key_type(day, pa.int64()) == common_key_type(day, day)
    assert common_band_form(day, day, 3) is not None
    assert common_band_form(day, month, 3) is None


def test_composite_keys() -> None:
    pairs = [(pa.int32(), pa.float64()), (pa.string(), pa.large_string()), (pa.decimal128(30, 2), pa.decimal128(38, 4))]
    codec = codec_for(*pairs)
    left = [
        pa.array([1, 1, 2, None, 5], pa.int32()),
        pa.array(["a", "b", "a", "a", "a"]),
        pa.array([Decimal("1.50")] * 5, pa.decimal128(30, 2)),
    ]
    right = [
        pa.array([1.0, 1.0, 2.0, 0.0, 5.0]),
        pa.array(["a", "b", "a", "a", "a"], pa.large_string()),
        pa.array([Decimal("1.5000")] * 4 + [Decimal("1.5001")], pa.decimal128(38, 4)),
    ]
    (lh, lv), (rh, rv) = codec.hash(0, left), codec.hash(1, right)
    assert lv is not None
    assert rv is not None
    assert (lv & rv).tolist() == [True, True, True, False, False]
    np.testing.assert_array_equal(lh[:3], rh[:3])
    assert len(set(lh[:3].tolist())) == 3
    keep = pa.array([0, 1, 2, 4])
    answer = codec.equal([c.take(keep) for c in left], [c.take(keep) for c in right])
    assert answer is not None
    assert answer.tolist() == [True, True, True, False]
    swapped = codec_for((pa.int8(), pa.int8()), (pa.int8(), pa.int8()))
    one, two = pa.array([1], pa.int8()), pa.array([2], pa.int8())
    assert swapped.hash(0, [one, two])[0] != swapped.hash(0, [two, one])[0]
    assert swapped.hash(0, [one, one])[0] != swapped.hash(0, [two, two])[0]


INT64S = st.integers(LOWEST, HIGHEST) | st.integers(-5, 5) | st.sampled_from([2**53, 2**53 + 1, LOWEST, HIGHEST])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(INT64S, max_size=12), st.lists(st.integers(0, 2**64 - 1) | st.integers(2**63 - 3, 2**63 + 3), max_size=12)
)
def test_signed_with_unsigned(signed: list[int], unsigned: list[int]) -> None:
    wrapped = [value % 2**64 for value in signed]
    a, b = pa.array(signed, pa.int64()), pa.array(unsigned + wrapped, pa.uint64())
    decide(codec_for((pa.int64(), pa.uint64())), a, b, oracle(a, b))


@settings(max_examples=60, deadline=None)
@given(st.lists(INT64S, max_size=12), st.lists(st.floats(width=64), max_size=12))
def test_integers_with_floats(ints: list[int], doubles: list[float]) -> None:
    a, b = pa.array(ints, pa.int64()), pa.array([*doubles, *map(float, ints)], pa.float64())
    decide(codec_for((pa.int64(), pa.float64())), a, b, oracle(a, b))


@st.composite
def decimal_columns(draw: st.DrawFn) -> tuple[pa.Array, pa.Array]:
    def one(shared: list[Fraction]) -> pa.Array:
        precision = draw(st.integers(1, 76))
        scale = draw(st.integers(-10, precision) | st.just(2).filter(lambda s: s <= precision))
        make = pa.decimal128 if precision <= 38 and draw(st.booleans()) else pa.decimal256
        top = 10**precision - 1
        units = draw(st.lists(st.integers(-top, top) | st.integers(-min(top, 9), min(top, 9)), max_size=6))
        units += [unit for value in shared if abs(unit := int(value * Fraction(10) ** scale)) <= top]
        return pa.array([Decimal(unit).scaleb(-scale, CONTEXT) for unit in units], make(precision, scale))

    left = one([])
    return left, one([Fraction(value) for value in left.to_pylist()])


@settings(max_examples=200, deadline=None)
@given(decimal_columns())
def test_decimals_of_any_scales(columns: tuple[pa.Array, pa.Array]) -> None:
    left, right = columns
    decide(codec_for((left.type, right.type)), left, right, oracle(left, right))
    doubles = pa.array([float(value) for value in left.to_pylist()], pa.float64())
    decide(codec_for((left.type, pa.float64())), left, doubles, oracle(left, doubles))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.text(max_size=40), max_size=12), st.integers(0, 3))
def test_strings(texts: list[str | None], start: int) -> None:
    a, b = pa.array(texts, pa.string())[start:], pa.array([*texts, "\0"], pa.large_string())
    decide(codec_for((pa.string(), pa.large_string())), a, b, oracle(a, b))


@pytest.fixture(scope="module")
def peer() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


def duckdb_joins(peer: duckdb.DuckDBPyConnection, left: pa.Array, right: pa.Array) -> np.ndarray | None:
    """What DuckDB makes of the same comparison; None if it refuses."""
    try:
        peer.register("l", pa.table({"k": left, "i": range(len(left))}))
        peer.register("r", pa.table({"k": right, "j": range(len(right))}))
        found = peer.execute("select i, j from l join r on l.k = r.k").fetchall()
    except duckdb.Error:
        return None
    matrix = np.zeros((len(left), len(right)), bool)
    for i, j in found:
        matrix[i, j] = True
    return matrix


def modest(found: pa.DataType) -> pa.Array:
    """Values in every type's reach, so that DuckDB's own limits do not decide."""
    if pa.types.is_temporal(found):
        days = found in DATES
        scale = 1 if found == pa.date32() else 1000 * DAY if found == pa.date64() else UNITS[found.unit]
        numbers = [0, 1, 2, 19_000] if days else [0, 1, 2, 60, 3600]
        if pa.types.is_timestamp(found):
            numbers += [DAY, 2 * DAY, 19_000 * DAY]
        fine = [] if scale == 1 or days else [1000, 10**6] if scale == 10**9 else [1, 1000, 10**6]  # it keeps no ns
        return raw([*(number * scale for number in numbers), *fine, None], found)
    fractions = [Decimal(number) for number in ("0", "1", "-1", "5", "1.5", "-0.25", "100")]
    if pa.types.is_floating(found):
        return pa.array(np.array([*map(float, fractions), -0.0, math.nan], found.to_pandas_dtype()), found)
    if pa.types.is_decimal(found):
        units = [Fraction(number) * Fraction(10) ** found.scale for number in fractions]
        fitting = [unit.denominator == 1 and abs(unit) < 10**found.precision for unit in units]
        return pa.array([*itertools.compress(fractions, fitting), None], found)
    if pa.types.is_integer(found):
        return pa.array([0, 1, 5, 100, None], found)
    return pa.concat_arrays([PLAIN[found], pa.nulls(1, found)])


def test_equality_is_duckdbs_wherever_duckdb_has_one(peer: duckdb.DuckDBPyConnection) -> None:
    compared = 0
    for left, right in PAIRS:
        a, b = modest(left), modest(right)
        theirs = duckdb_joins(peer, a, b)
        if theirs is None:
            continue
        compared += 1
        np.testing.assert_array_equal(oracle(a, b), theirs, err_msg=f"{left} = {right}")
        decide(codec_for((left, right)), a, b, theirs)
    assert compared > 250, f"only {compared} pairs of types were compared"


def test_extreme_integers_are_duckdbs_too(peer: duckdb.DuckDBPyConnection) -> None:
    a, b = PLAIN[pa.int64()], PLAIN[pa.uint64()]
    theirs = duckdb_joins(peer, a, b)
    assert theirs is not None
    np.testing.assert_array_equal(theirs, oracle(a, b))


def test_common_forms() -> None:
    assert common_key_type(pa.date32(), pa.timestamp("ns")) == KeyType(KeyKind.DAY)
    assert common_key_type(pa.timestamp("ns"), pa.timestamp("s")) == KeyType(KeyKind.TIMESTAMP, unit="s")
    assert common_key_type(pa.uint64(), pa.uint8()) == KeyType(KeyKind.NUMBER, unsigned=True)
    assert common_key_type(pa.uint64(), pa.int8()) == KeyType(KeyKind.NUMBER)
    assert common_key_type(pa.decimal128(38, 4), pa.decimal256(50, 2)) == KeyType(KeyKind.NUMBER, 128, 2)
