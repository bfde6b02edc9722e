"""A join's description: what is refused before any row is read, and what the output will look like."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import Equal, JoinSpec, Output, parse_on

ORDERS = pa.schema({"id": pa.int64(), "day": pa.date32(), "note": pa.string()})
ITEMS = pa.schema({"order": pa.int32(), "day": pa.date32(), "note": pa.binary(), "price": pa.float64()})


def spec(on: Any = "id = order", left: pa.Schema = ORDERS, right: pa.Schema = ITEMS, **more: Any) -> JoinSpec:
    return JoinSpec(left, right, parse_on(on), **more)


@pytest.mark.parametrize(
    ("on", "conditions"),
    [
        ("id", [("id", "id")]),
        (" id ", [("id", "id")]),
        ("id = order", [("id", "order")]),
        ("id=order", [("id", "order")]),
        ("id == order", [("id", "order")]),
        (["id==id"], [("id", "id")]),
        (Equal("id", "order"), [("id", "order")]),
        (["id"], [("id", "id")]),
        (["id", "day"], [("id", "id"), ("day", "day")]),
        (["id = order", ("day", "day_right"), Equal("a", "b")], [("id", "order"), ("day", "day_right"), ("a", "b")]),
        (("id", "day", "note"), [("id", "id"), ("day", "day"), ("note", "note")]),
        ((("id", "order"),), [("id", "order")]),
        (["a b = c d"], [("a b", "c d")]),
    ],
)
def test_conditions_as_people_write_them(on: Any, conditions: list[tuple[str, str]]) -> None:
    assert parse_on(on) == tuple(Equal(*pair) for pair in conditions)


@pytest.mark.parametrize("on", ["", " ", "=", "id =", "= id", ["id", ""], "id === order", "a = b = c", "id == "])
def test_half_a_condition_is_refused(on: Any) -> None:
    with pytest.raises(SpecError, match=r"is not understood; write 'column' or 'left_column = right_column'"):
        parse_on(on)


@pytest.mark.parametrize("on", [7, [], (), {"id": "order"}, {"id"}, [["id", "order"]], [None], [("a", "b", "c")]])
def test_conditions_of_another_kind_are_refused(on: Any) -> None:
    with pytest.raises(SpecError, match="is not understood"):
        parse_on(on)


def test_two_names_in_a_tuple_could_mean_two_things() -> None:
    with pytest.raises(SpecError, match=r"ambiguous; write \['id', 'day'\] for two columns, or 'id = day' for one"):
        parse_on(("id", "day"))


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="join column 'ident' is not in left; it has id, day, note"):
        spec("ident = order")
    with pytest.raises(SpecError, match=r"join column 'id' is not in items\.csv; it has order, day, note, price"):
        spec("id", names=("orders.csv", "items.csv"))
    with pytest.raises(SpecError, match="join column 'id' is not in left; it has no columns"):
        spec("id", left=pa.schema([]))


def test_a_key_that_is_there_twice_is_refused() -> None:
    twice = pa.schema([("id", pa.int64()), ("v", pa.int8()), ("id", pa.int64())])
    with pytest.raises(SpecError, match="join column 'id' is in right 2 times; rename all but one"):
        spec("id", right=twice)
    with pytest.raises(SpecError, match="join column 'id' is in left 2 times"):
        spec("id", left=twice, right=ORDERS)


def test_a_payload_column_that_is_there_twice_is_refused() -> None:
    twice = pa.schema([("id", pa.int64()), ("v", pa.int8()), ("v", pa.int16())])
    with pytest.raises(SpecError, match="two columns named 'v'"):
        spec("id", left=twice, right=ORDERS)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.bool_(), pa.int8()),
        (pa.time32("s"), pa.timestamp("s")),
        (pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int8()})),
        (pa.month_day_nano_interval(), pa.month_day_nano_interval()),
        (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
    ],
    ids=str,
)
def test_types_that_cannot_be_compared_are_refused_with_both_named(left: pa.DataType, right: pa.DataType) -> None:
    with pytest.raises(SpecError, match=r"cannot be compared with column 'k' of b\.csv") as refusal:
        spec("id = k", left=pa.schema({"id": left}), right=pa.schema({"k": right}), names=("a.csv", "b.csv"))
    assert f"column 'id' of a.csv ({left})" in str(refusal.value)
    todo = "lists, structs and maps are no keys" if pa.types.is_nested(left) else "cast one of them first"
    assert f"({right}); {todo}" in str(refusal.value)


def test_every_condition_is_checked_not_only_the_first() -> None:
    with pytest.raises(SpecError, match="'note' of left"):
        spec(["id = order", "note"])


@pytest.mark.parametrize("how", ["outer", "INNER", "", None, 3])
def test_unknown_kinds_of_join_are_refused(how: Any) -> None:
    with pytest.raises(SpecError, match=f"there is no how={how!r}; choose inner, left, right, full, semi or anti"):
        spec(how=how)


def required(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, type_, nullable=False) for name, type_ in columns.items()])


@pytest.mark.parametrize(
    ("how", "columns", "nullable"),
    [
        ("inner", ["id", "v", "v_right", "w"], []),
        ("left", ["id", "v", "v_right", "w"], ["v_right", "w"]),
        ("right", ["id", "v", "v_right", "w"], ["v"]),
        ("full", ["id", "v", "v_right", "w"], ["v", "v_right", "w"]),
        ("semi", ["id", "v"], []),
        ("anti", ["id", "v"], []),
    ],
)
def test_columns_of_the_optional_side_may_be_null(how: str, columns: list[str], nullable: list[str]) -> None:
    left, right = required(id=pa.int64(), v=pa.string()), required(id=pa.int32(), v=pa.bool_(), w=pa.int8())
    schema = spec("id", left=left, right=right, how=how).schema
    assert schema.names == columns
    assert [field.name for field in schema if field.nullable] == nullable
    assert schema.field("id").type == (pa.int32() if how == "right" else pa.int64())


def test_numbers_of_rows_may_be_null_where_a_side_is_optional() -> None:
    schemas = {how: spec("id = order", how=how, output=Output.PAIRS).schema for how in ("full", "right", "anti")}
    assert {how: [(field.name, field.nullable) for field in schema] for how, schema in schemas.items()} == {
        "full": [("left", True), ("right", True)],
        "right": [("left", True), ("right", False)],
        "anti": [("left", False)],
    }


def test_a_key_of_both_has_a_type_that_holds_both() -> None:
    def key(left: pa.DataType, right: pa.DataType) -> pa.DataType:
        return spec("k", left=pa.schema({"k": left}), right=pa.schema({"k": right}), how="full").schema.field("k").type

    assert key(pa.int8(), pa.float32()) == pa.float64()
    assert key(pa.int64(), pa.uint64()) == pa.decimal128(20, 0)
    assert key(pa.decimal128(30, 10), pa.decimal128(38, 0)) == pa.decimal256(48, 10)
    assert key(pa.dictionary(pa.int8(), pa.string()), pa.string()) == pa.string()
    assert key(pa.dictionary(pa.int8(), pa.int32()), pa.dictionary(pa.int16(), pa.uint32())) == pa.dictionary(
        pa.int16(), pa.decimal128(10, 0)
    )
    assert key(pa.run_end_encoded(pa.int16(), pa.int8()), pa.int64()) == pa.int64()
    assert key(pa.string_view(), pa.large_string()) == pa.large_string()
    assert key(pa.binary(3), pa.binary_view()) == pa.binary()
    assert key(pa.uuid(), pa.binary(16)) == pa.binary(16)
    assert key(pa.null(), pa.dictionary(pa.int8(), pa.string_view())) == pa.dictionary(pa.int8(), pa.string_view())
    assert key(pa.timestamp("us"), pa.date32()) == key(pa.date64(), pa.timestamp("us")) == pa.timestamp("us")
    assert key(pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Berlin")) == pa.timestamp("ms", "UTC")
    assert key(pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("ms", "Asia/Tokyo")) == pa.timestamp("ms", "Asia/Tokyo")
    with pytest.raises(SpecError, match=r"how='full' makes one column of 'k' .* and no type holds both; cast one"):
        key(pa.decimal256(76, 0), pa.decimal128(38, 20))


@pytest.mark.parametrize("suffixes", [("",), ("a", "b", "c"), ("a", None), (1, 2)])
def test_suffixes_are_two_strings(suffixes: Any) -> None:
    with pytest.raises(SpecError, match="suffixes must be two strings"):
        spec(suffixes=suffixes)


def test_no_condition_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one condition"):
        JoinSpec(ORDERS, ITEMS, ())


def test_the_output_has_all_columns_and_suffixes_where_names_clash() -> None:
    assert spec().schema == pa.schema(
        [
            ("id", pa.int64()),
            ("day", pa.date32()),
            ("note", pa.string()),
            ("order", pa.int32()),
            ("day_right", pa.date32()),
            ("note_right", pa.binary()),
            ("price", pa.float64()),
        ]
    )
    assert spec(suffixes=("_o", "_i")).schema.names == ["id", "day_o", "note_o", "order", "day_i", "note_i", "price"]


def test_a_key_of_one_name_on_both_sides_comes_once_and_is_the_left_one() -> None:
    right = pa.schema({"id": pa.int32(), "note": pa.string()})
    made = spec("id", right=right)
    assert made.kept == ((0, 1, 2), (1,))
    assert made.schema.names == ["id", "day", "note", "note_right"]
    assert made.schema.field("id").type == pa.int64()
    both = spec(["id", "day = id"], right=pa.schema({"id": pa.null()}))
    assert both.kept[1] == (), "it is a key of one name in one condition, which is enough"


def test_keys_are_listed_by_side_in_the_order_of_the_conditions() -> None:
    made = spec(["day", "id = order"])
    assert made.keys(0) == ("day", "id")
    assert made.keys(1) == ("day", "order")
    assert made.input(0) is ORDERS and made.input(1) is ITEMS


def test_fields_keep_their_nullability_and_metadata() -> None:
    field = pa.field("v", pa.string(), nullable=False, metadata={"unit": "litre"})
    left = pa.schema([pa.field("id", pa.int64(), nullable=False), field])
    made = spec("id", left=left, right=left)
    assert [f.nullable for f in made.schema] == [False, False, False]
    assert made.schema.field("v_right").metadata == {b"unit": b"litre"}


def test_a_suffix_that_makes_another_clash_is_refused() -> None:
    left = pa.schema({"id": pa.int64(), "v": pa.int8(), "v_right": pa.int8()})
    with pytest.raises(SpecError, match=r"two columns named 'v_right'; rename one, or choose other suffixes"):
        spec("id", left=left, right=pa.schema({"id": pa.int64(), "v": pa.int8()}))
    with pytest.raises(SpecError, match="two columns named 'day'"):
        spec(suffixes=("", ""))


def test_pairs_are_two_row_numbers() -> None:
    schema = spec(output=Output.PAIRS).schema
    assert schema.names == ["left", "right"]
    assert schema.types == [pa.int64(), pa.int64()]
    assert not any(field.nullable for field in schema)
    clash = pa.schema({"id": pa.int64(), "v": pa.int8(), "v_right": pa.int8()})
    assert spec("id", left=clash, right=clash, output=Output.PAIRS).schema == schema


DIFFERENT = {
    "the usual": {},
    "another condition": {"on": "id = price"},
    "conditions in another order": {"on": ["day", "id = order"]},
    "another left column": {"left": ORDERS.append(pa.field("more", pa.int8()))},
    "another right column": {"right": ITEMS.append(pa.field("more", pa.int8()))},
    "another type": {"left": ORDERS.set(0, pa.field("id", pa.int32()))},
    "not null": {"left": ORDERS.set(0, pa.field("id", pa.int64(), nullable=False))},
    "another output": {"output": Output.PAIRS},
    "counts": {"output": Output.COUNTS},
    "other suffixes": {"suffixes": ("_left", "")},
    "suffixes the other way round": {"suffixes": ("", "_left")},
}


def test_fingerprints_tell_joins_apart() -> None:
    prints = {name: spec(**change).fingerprint for name, change in DIFFERENT.items()}
    assert len(set(prints.values())) == len(prints), prints
    assert spec().fingerprint == prints["the usual"]
    assert spec(names=("a.csv", "b.csv")).fingerprint == prints["the usual"], "what errors say is no part of a join"


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_a_fingerprint_is_the_same_in_every_process(seed: str) -> None:
    code = """
import pyarrow as pa
from watersmeet.core.spec import JoinSpec, parse_on
left = pa.schema({"id": pa.int64(), "day": pa.date32(), "note": pa.string()})
right = pa.schema({"order": pa.int32(), "day": pa.date32(), "note": pa.binary(), "price": pa.float64()})
print(JoinSpec(left, right, parse_on("id = order")).fingerprint)
"""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == spec().fingerprint
