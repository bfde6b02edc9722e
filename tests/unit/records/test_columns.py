"""Payload of any Arrow type goes through a table's columns unchanged: the values, their nulls, and their type."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from watersmeet.checks.canonical import canonical_column
from watersmeet.memory import Budget
from watersmeet.records.columns import BytesColumn, FixedColumn, ObjectColumn, estimated_width, gathered
from watersmeet.records.types import from_stored, stored_type, to_stored
from watersmeet.tables.hash_table import Layout, SideTable

NAN = float("nan")
WORDS = ["", "a", "Wasser", "ποταμός", "川" * 7, "longer than twelve bytes, so not inline in a view", "q" * 300, "\0x"]
BYTES = [b"", b"\x00", b"\xff\xfe", b"river" * 30, b"0123456789abc"]
PERSON = pa.struct({"name": pa.string(), "age": pa.int8(), "tags": pa.list_(pa.string())})
PEOPLE = [
    {"name": "Ada", "age": 36, "tags": ["x", None]},
    {"name": None, "age": None, "tags": []},
    {"name": "", "age": 1, "tags": None},
]


class Celsius(pa.ExtensionType):
    """A type of the user's own."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, f"watersmeet.test.celsius.{storage}")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Celsius:
        return cls(storage)


CASES: list[tuple[pa.DataType, Sequence[Any]]] = [
    (pa.null(), [None]),
    (pa.bool_(), [True, False]),
    *[(type_, [0, 1, 127]) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
    (pa.int64(), [-(2**63), -1, 2**63 - 1]),
    *[(type_, [0, 1, 255]) for type_ in (pa.uint8(), pa.uint16(), pa.uint32())],
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float16(), [np.float16(v) for v in (0.0, -0.0, 1.5, NAN)]),
    (pa.float32(), [0.0, -0.0, 1.5, NAN, float("inf")]),
    (pa.float64(), [0.0, -0.0, 1.5, NAN, 5e-324]),
    (pa.decimal32(7, 2), [Decimal("-12345.67"), Decimal("0.01")]),
    (pa.decimal64(18, 3), [Decimal("999999999999999.999"), Decimal("0.001")]),
    (pa.decimal128(38, 4), [Decimal(10) ** 33, Decimal("-0.0001")]),
    (pa.decimal256(76, 2), [Decimal(10) ** 73, Decimal("-1.01")]),
    (pa.decimal128(5, -2), [Decimal(1200), Decimal(-100)]),
    (pa.date32(), [date(1, 1, 1), date(2400, 2, 29)]),
    (pa.date64(), [date(1970, 1, 1), date(2024, 12, 31)]),
    (pa.time32("s"), [time(0), time(23, 59, 59)]),
    (pa.time32("ms"), [time(1, 2, 3, 4000)]),
    (pa.time64("us"), [time(23, 59, 59, 999_999)]),
    (pa.time64("ns"), [time(0), time(12)]),
    (pa.timestamp("s"), [datetime(2001, 2, 3), datetime(1950, 1, 1)]),
    (pa.timestamp("ns", "Europe/Berlin"), [datetime(2001, 2, 3), datetime(1950, 1, 1)]),
    (pa.duration("us"), [timedelta(0), timedelta(days=-3)]),
    (pa.month_day_nano_interval(), [(1, 2, 3), (0, 0, -1)]),
    (pa.string(), WORDS),
    (pa.large_string(), WORDS),
    (pa.string_view(), WORDS),
    (pa.binary(), BYTES),
    (pa.large_binary(), BYTES),
    (pa.binary_view(), BYTES),
    (pa.binary(0), [b""]),
    (pa.binary(1), [b"a", b"\0"]),
    (pa.binary(8), [b"12345678"]),
    (pa.binary(13), [b"13 bytes wide", b"\0" * 13]),
    (pa.list_(pa.int32()), [[], [1], [2, None, 3]]),
    (pa.large_list(pa.string()), [[], ["", "x"], [None]]),
    (pa.list_(pa.float64(), 2), [[0.0, NAN], [None, -0.0]]),
    (pa.list_(pa.int8(), 0), [[]]),
    (pa.list_(pa.list_(pa.string())), [[[]], [["a", "b"], None, []], []]),
    (pa.list_view(pa.int32()), [[], [1], [2, None, 3]]),
    (pa.large_list_view(pa.string()), [[], ["a", None]]),
    (PERSON, PEOPLE),
    (pa.struct([]), [{}]),
    (pa.list_(PERSON), [PEOPLE, [], [None]]),
    (pa.map_(pa.string(), pa.int32()), [[], [("k", 1), ("l", None)]]),
    (pa.map_(pa.int8(), PERSON), [[(1, PEOPLE[0])], []]),
    (pa.dictionary(pa.int8(), pa.string()), WORDS),
    (pa.dictionary(pa.uint16(), pa.large_string()), WORDS),
    (pa.dictionary(pa.int64(), pa.int32()), [5, 6, 7]),
    (pa.dictionary(pa.int32(), pa.float64()), [0.5, 1.5, NAN]),
    (pa.dictionary(pa.uint8(), pa.date32()), [date(2020, 1, 1), date(2020, 1, 2)]),
    (pa.dictionary(pa.int32(), pa.decimal128(10, 2)), [Decimal("1.25"), Decimal("3.50")]),
    (pa.dictionary(pa.int8(), pa.string(), ordered=True), ["low", "high"]),
    (pa.run_end_encoded(pa.int16(), pa.string()), ["same", "other"]),
    (pa.run_end_encoded(pa.int64(), pa.float64()), [0.5, 1.5]),
    (pa.struct({"v": pa.string_view(), "d": pa.dictionary(pa.int8(), pa.string())}), [{"v": w, "d": w} for w in WORDS]),
    (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a", "b", None], [], ["a"]]),
    (pa.list_(pa.binary_view()), [BYTES, []]),
    (pa.map_(pa.string(), pa.string_view()), [[("k", "v" * 20)], []]),
    (pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=2**127).bytes]),
    (pa.json_(), ['{"a": 1}', "[]"]),
    (Celsius(pa.float32()), [1.5, -273.0]),
    (Celsius(pa.string()), WORDS),
    (Celsius(pa.list_(pa.int8())), [[1], [], [2, None]]),
    (pa.bool8(), [0, 1]),
]


def storage_of(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def build(type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """An array of any type from Python values."""
    if isinstance(type_, pa.BaseExtensionType):
        return type_.wrap_array(build(type_.storage_type, values))
    if pa.types.is_dictionary(type_):
        encoded = pa.array(values, type_.value_type).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(type_.index_type), encoded.dictionary, ordered=type_.ordered
        )
    if pa.types.is_run_end_encoded(type_):
        return pc.run_end_encode(pa.array(values, type_.value_type), run_end_type=type_.run_end_type)
    return pa.array(values, type_)


def column_of(type_: pa.DataType, pool: Sequence[Any], rows: int, nulls: float, seed: int = 1) -> pa.Array:
    rng = np.random.default_rng(seed)
    return build(type_, [None if rng.random() < nulls else pool[int(rng.integers(len(pool)))] for _ in range(rows)])


def table_of(types: Sequence[pa.DataType], memory: int = 1 << 20, bits: int = 2, chunk: int = 1024) -> SideTable:
    return SideTable([stored_type(type_) for type_ in types], Budget(memory), Layout(bits, 16, chunk), "left")


def put(table: SideTable, columns: Sequence[pa.Array], seed: int = 7, first_tick: int = 1) -> Any:
    """Append rows with random hashes; returns their numbers."""
    count = len(columns[0])
    hashes = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count)
    parts, stored = table.parts_of(hashes), [to_stored(column) for column in columns]
    assert table.reserve(parts, stored)
    return table.append(hashes, parts, stored, np.arange(first_tick, first_tick + count))


def assert_same(found: pa.Array, given: pa.Array) -> None:
    found.validate(full=True)
    assert found.type == given.type
    assert values_of(found) == values_of(given)


def values_of(column: pa.Array) -> list[Any]:
    try:
        return canonical_column(column)
    except pa.ArrowNotImplementedError:  # Arrow can encode more than it can decode
        return [repr(value) for value in column.to_pylist()]


IDS = [f"{type_}-{i}" for i, (type_, _) in enumerate(CASES)]


@pytest.mark.parametrize("shape", ["whole", "nulls and slices", "all null"])
@pytest.mark.parametrize(("type_", "pool"), CASES, ids=IDS)
def test_any_type_comes_back_as_it_went_in(type_: pa.DataType, pool: Sequence[Any], shape: str) -> None:
    column = column_of(type_, pool, 90, {"whole": 0.0, "nulls and slices": 0.3, "all null": 1.0}[shape])
    if shape == "nulls and slices":
        column = column.slice(17, 50)
    table = table_of([type_])
    assert len(put(table, [column.slice(5, 0)])) == 0
    rows = put(table, [column])
    table.check()
    assert_same(from_stored(table.gather(0, rows), type_), column)
    order = np.random.default_rng(2).integers(0, len(rows), 200)  # repeats, any order
    again = from_stored(table.gather(0, rows[order]), type_)
    again.validate(full=True)
    expected = canonical_column(column)
    assert canonical_column(again) == [expected[i] for i in order]
    assert_same(from_stored(table.gather(0, rows[:0]), type_), column.slice(0, 0))


@pytest.mark.parametrize(("type_", "pool"), CASES, ids=IDS)
def test_rows_of_many_batches_stand_together_and_leave_by_partitions(type_: pa.DataType, pool: Sequence[Any]) -> None:
    table = table_of([type_, pa.int64()])
    given: dict[int, Any] = {}
    for batch in range(20):  # enough for small pieces to be merged
        column = column_of(type_, pool, 11, 0.2, seed=batch)
        number = pa.array(np.arange(11 * batch, 11 * batch + 11))
        rows = put(table, [column, number], seed=batch, first_tick=11 * batch)
        given.update(zip(rows.tolist(), canonical_column(column), strict=True))
        if batch == 9:
            gone = table.rows_of(1)
            table.drop(1)
            for row in gone.tolist():
                del given[row]
        table.check()
    assert table.rows == len(given) > 100
    alive = np.concatenate([table.rows_of(part) for part in range(4)])
    assert sorted(alive.tolist()) == sorted(given)
    found = canonical_column(from_stored(table.gather(0, alive), type_))
    assert found == [given[row] for row in alive.tolist()]
    for part in range(4):
        table.drop(part)
    table.trim(1 << 30)
    assert set(table._heap._pool.peek()) == set() and table.rows == 0


def in_dictionary(values: pa.Array, index: pa.DataType = pa.int8()) -> pa.Array:  # noqa: B008
    return pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1] * 12, index), values)


def in_runs(values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([20, 48], pa.int32()), values)


VIEWS = pa.array(["short", "longer than twelve bytes"]).cast(pa.string_view())
UUIDS = pa.uuid().wrap_array(pa.array([b"a" * 16, b"b" * 16], pa.binary(16)))
NUMBERS = in_dictionary(pa.array([10, 20]))
OFFSETS = list(range(0, 49, 4))
MADE_BY_HAND: dict[str, pa.Array] = {
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 1, 0] * 8, pa.int8()),
        pa.array([0, 0, 1, 1, 2, 2] * 8, pa.int32()),
        [pa.array([10, None, 12]), pa.array(["x", "yy", None])],
    ),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1] * 12, pa.int8()), [pa.array([1, None, 3, 4] * 12), pa.array(["a", "b", "c", None] * 12)]
    ),
    "union with type codes of its own": pa.UnionArray.from_sparse(
        pa.array([5, 7] * 24, pa.int8()), [pa.array(range(48)), pa.array(["a"] * 48)], ["n", "s"], [5, 7]
    ),
    "dense union of dictionaries and views": pa.UnionArray.from_dense(
        pa.array([0, 1] * 24, pa.int8()), pa.array([0, 0, 1, 1] * 12, pa.int32()), [NUMBERS, VIEWS]
    ),
    "sparse union of dictionaries": pa.UnionArray.from_sparse(
        pa.array([0, 1] * 24, pa.int8()), [NUMBERS, pa.array(["a"] * 48)]
    ),
    "dictionary of structs": in_dictionary(pa.array([{"a": 1}, {"a": None}])),
    "dictionary of lists": in_dictionary(pa.array([[1], [2, None]]), pa.uint16()),
    "dictionary of views": in_dictionary(VIEWS),
    "dictionary of an extension type": in_dictionary(UUIDS),
    "dictionary of booleans": in_dictionary(pa.array([True, False])),
    "dictionary of nulls": in_dictionary(pa.nulls(2)),
    "dictionary with a null in it": in_dictionary(pa.array(["x", None])),
    "extension type over a dictionary": Celsius(NUMBERS.type).wrap_array(NUMBERS),
    "runs of structs": in_runs(pa.array([{"a": 1}, {"a": None}])),
    "runs of views": in_runs(VIEWS),
    "runs of a dictionary": in_runs(pa.array(["a", "b"]).dictionary_encode()),
    "runs of nulls": in_runs(pa.nulls(2)),
    "struct of runs": pa.StructArray.from_arrays([in_runs(pa.array([1.5, None]))], names=["r"]),
    "struct of dictionaries": pa.StructArray.from_arrays(
        [NUMBERS, pa.array(range(48))], names=["d", "n"], mask=pa.array([True, False, False] * 16)
    ),
    "list of dictionaries": pa.ListArray.from_arrays(OFFSETS, NUMBERS, mask=pa.array([True, False, False] * 4)),
    "list of an extension type": pa.ListArray.from_arrays([0, 1, 1, 2], UUIDS),
    "list of fixed size of dictionaries": pa.FixedSizeListArray.from_arrays(NUMBERS, 4),
    "map to dictionaries": pa.MapArray.from_arrays(OFFSETS, pa.array([f"k{i}" for i in range(48)]), NUMBERS),
    "list view of dictionaries": pa.ListViewArray.from_arrays([5, 0, 40, 0] * 3, [3, 2, 8, 0] * 3, NUMBERS),
    "list view of views": pa.LargeListViewArray.from_arrays([1, 0, 0], [1, 2, 0], VIEWS),
    "structs all null, with a dictionary of nothing": pa.array(
        [None] * 48, pa.struct({"d": pa.dictionary(pa.int8(), pa.string())})
    ),
}


@pytest.mark.parametrize("name", MADE_BY_HAND)
def test_encodings_within_encodings_come_back_as_they_went_in(name: str) -> None:
    whole = MADE_BY_HAND[name]
    for column in (whole, whole.slice(1), whole.slice(2, len(whole) - 3), whole.slice(0, 0)):
        table = table_of([whole.type])
        rows = put(table, [column])
        assert_same(from_stored(table.gather(0, rows), whole.type), column)
        turned = from_stored(table.gather(0, rows[::-1].copy()), whole.type)
        turned.validate(full=True)
        assert values_of(turned) == values_of(column)[::-1]


def test_columns_lie_side_by_side_without_disturbing_each_other() -> None:
    columns = [column_of(type_, pool, 64, 0.25, seed=i) for i, (type_, pool) in enumerate(CASES)]
    table = table_of([column.type for column in columns], memory=1 << 24)
    rows = put(table, columns)
    for i, column in enumerate(columns):
        assert_same(from_stored(table.gather(i, rows), column.type), column)


def test_dictionaries_of_different_batches_are_told_apart() -> None:
    type_ = pa.dictionary(pa.int8(), pa.string())
    first = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", "b"]))
    second = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), pa.array(["b", None, "a"]))
    table = table_of([type_])
    rows = np.concatenate([put(table, [first], seed=1), put(table, [second], seed=2, first_tick=4)])
    found = from_stored(table.gather(0, rows), type_)
    assert found.type == type_
    assert found.to_pylist() == ["a", "b", None, "b", None, "a"]


def test_more_values_than_a_dictionary_index_can_number_is_an_error_not_a_wrong_value() -> None:
    type_ = pa.dictionary(pa.int8(), pa.int64())
    table = table_of([type_])
    parts = [build(type_, range(100 * i, 100 * i + 100)) for i in range(2)]
    rows = np.concatenate([put(table, [part], seed=i) for i, part in enumerate(parts)])
    with pytest.raises(OverflowError, match="200 values cannot be numbered by int8"):
        from_stored(table.gather(0, rows), type_)
    assert from_stored(table.gather(0, rows[50:150]), type_).to_pylist() == list(range(50, 150))


@pytest.mark.parametrize("type_", [pa.string(), pa.large_binary(), pa.string_view()], ids=str)
def test_a_string_longer_than_a_chunk_gets_several(type_: pa.DataType) -> None:
    sizes = [10, 5000, 0, 1024, 1023, 1025, 70_000, 3]
    values = [("abcdefghij" * (size // 10 + 1))[:size] for size in sizes]
    column = pa.array([v.encode() if type_ == pa.large_binary() else v for v in values], type_)
    table = table_of([type_])
    rows = put(table, [column])
    table.check()
    assert_same(from_stored(table.gather(0, rows), type_), column)
    held = table._heap._pool._claim.held
    assert held >= sum(sizes)
    for part in range(4):
        table.drop(part)
    table.check()
    assert table.trim(1 << 30) > sum(sizes)
    assert table._heap._pool._claim.held == 0
    rows = put(table, [column], seed=9)
    assert_same(from_stored(table.gather(0, rows), type_), column)


def test_a_value_that_cannot_fit_is_refused_and_leaves_the_table_usable() -> None:
    table = table_of([pa.string()], memory=1 << 16)
    column = pa.array(["x" * (1 << 17)])
    assert not table.reserve(np.zeros(1, np.int32), [column])
    table.trim(1 << 30)
    small = pa.array(["fits"] * 5)
    assert table.gather(0, put(table, [small])).equals(small)
    table.check()


def test_nested_values_are_counted_as_they_come_and_go() -> None:
    type_ = pa.list_(pa.int64())
    budget = Budget(1 << 20)
    table = SideTable([type_], budget, Layout(1, 16, 1024), "left")
    column = pa.array([list(range(50))] * 40, type_)
    put(table, [column])
    held = budget.breakdown()["left nested values"]
    assert held >= column.nbytes
    put(table, [column], seed=8)
    assert budget.breakdown()["left nested values"] >= 2 * column.nbytes
    table.drop(0)
    table.drop(1)
    assert budget.breakdown()["left nested values"] == 0
    assert not table.reserve(np.zeros(1, np.int32), [pa.array([list(range(200_000))], type_)])
    table.trim(1 << 30)
    assert budget.breakdown()["left nested values"] == 0, "a refused claim leaves nothing behind"


def test_what_values_take_does_not_depend_on_who_has_looked_at_them_before() -> None:
    """Once somebody has asked Arrow whether an array has NULLs, copies of it have no bitmap if it has none."""
    taken = []
    for looked_at in (False, True):
        values = pa.array([None, *[b""] * 15], pa.binary(0)).slice(4, 9)
        if looked_at:
            assert values.null_count == 0
        budget = Budget(1 << 20)
        table = SideTable([values.type], budget, Layout(0, 8, 256), "left")
        assert table.reserve(np.zeros(9, np.int32), [values])
        taken.append(budget.used)
    assert taken[0] == taken[1]


def test_each_layout_serves_its_types() -> None:
    kinds = {
        pa.int16(): FixedColumn,
        pa.bool_(): FixedColumn,
        pa.decimal256(60, 2): FixedColumn,
        pa.binary(13): FixedColumn,
        pa.string(): BytesColumn,
        pa.large_binary(): BytesColumn,
        pa.binary(0): ObjectColumn,
        pa.null(): ObjectColumn,
        pa.list_(pa.int8()): ObjectColumn,
        pa.list_(pa.int8(), 3): ObjectColumn,
    }
    table = table_of(list(kinds))
    assert [type(column) for column in table._columns] == list(kinds.values())
    assert [column.row_bytes for column in table._columns] == [
        width - (kind is ObjectColumn) for width, kind in zip(map(estimated_width, kinds), kinds.values(), strict=True)
    ]


def test_a_row_that_is_used_again_forgets_that_it_was_null() -> None:
    table = table_of([pa.int64(), pa.string()], bits=0)
    nothing = [pa.nulls(16, pa.int64()), pa.nulls(16, pa.string())]
    before = put(table, nothing)
    table.drop(0)
    some = [pa.array(range(16)), pa.array([str(i) for i in range(16)])]
    after = put(table, some, first_tick=17)
    assert sorted(after.tolist()) == sorted(before.tolist()), "the same block"
    assert table.gather(0, after).to_pylist() == list(range(16))
    assert table.gather(1, after).equals(some[1])


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        pa.array([3, 1, 2] * 9),
        pa.array([True, False, True] * 9),
        pa.array(["ab", "", "川" * 7] * 9),
        pa.array([b"x" * 40, b"", b"yz"] * 9, pa.large_binary()),
        pa.array([b"abc", b"def", b"ghi"] * 9, pa.binary(3)),
        pa.array([Decimal("1.5"), Decimal(-2), Decimal(0)] * 9),
        pa.array([[1], [], [2, 3]] * 9),
    ],
    ids=lambda value: str(value.type),
)
def test_rows_of_a_batch_are_gathered_as_arrow_would(array: pa.Array, nulls: bool) -> None:
    if nulls:
        array = pa.concat_arrays([array, pa.nulls(2, array.type)])
    rows = np.array([5, 0, 5, len(array) - 8, 2], np.int32)
    for each in (array, array.slice(4), array.slice(7, 19)):
        some = rows % len(each)
        found = gathered(each, some.astype(np.int32))
        assert found.equals(each.take(pa.array(some)))
        found.validate(full=True)
    assert len(gathered(array, rows[:0])) == 0
