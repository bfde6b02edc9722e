"""The oracle against answers worked out by hand: everything else is measured against it."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from watersmeet.checks.oracle.nested_loops import ReferenceJoin, reference_join, reference_pairs
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError
from watersmeet.core.protocol import Arrive, End
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.spill.store import MemoryStore

NAN = float("nan")
DAY_NS = 86_400 * 10**9


def pairs_of(left: pa.Array, right: pa.Array) -> list[tuple[int, int]]:
    tables = pa.table({"k": left}), pa.table({"k": right})
    return reference_pairs(*tables, JoinSpec(tables[0].schema, tables[1].schema, parse_on("k")))


def ticks(values: list[int], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


@pytest.mark.parametrize(
    "left, right, expected",
    [
        (pa.array([None, 1]), pa.array([None, 1, None]), [(1, 1)]),
        (pa.array([NAN, 0.0, -0.0]), pa.array([-0.0, NAN], pa.float32()), [(0, 1), (1, 0), (2, 0)]),
        (pa.array([0.1]), pa.array([0.1], pa.float32()), []),
        (pa.array([2**53, 2**53 + 1, 3]), pa.array([2.0**53, 3.0, 3.5]), [(0, 0), (1, 0), (2, 1)]),
        (pa.array([2**64 - 1, 5], pa.uint64()), pa.array([-1, 5], pa.int64()), [(1, 1)]),
        (pa.array([Decimal("1.50"), Decimal("2.00")]), pa.array([2, 1]), [(1, 0)]),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.500"), Decimal("1.501")]), [(0, 0)]),
        (pa.array([Decimal("0.1")]), pa.array([0.1, 0.10000000000000002]), [(0, 0)]),
        (pa.array(["", "é", "a\x00"]), pa.array(["a", "", "é"], pa.string_view()), [(0, 1), (1, 2)]),
        (pa.array([b"ab"]), pa.array([b"ab", b"ac"], pa.binary(2)), [(0, 0)]),
        (pa.array([True, False]), pa.array([False]), [(1, 0)]),
        (ticks([7, 8], pa.timestamp("s")), ticks([7 * 10**9, 8 * 10**9 + 1], pa.timestamp("ns")), [(0, 0)]),
        (ticks([7], pa.timestamp("ms", "UTC")), ticks([7000], pa.timestamp("us", "Asia/Tokyo")), [(0, 0)]),
        (ticks([1, 2], pa.date32()), ticks([DAY_NS, 2 * DAY_NS + 1], pa.timestamp("ns")), [(0, 0)]),
        (ticks([86_400_000], pa.date64()), ticks([1], pa.date32()), [(0, 0)]),
        (ticks([3], pa.time32("s")), ticks([3 * 10**9], pa.time64("ns")), [(0, 0)]),
        (ticks([3], pa.duration("s")), ticks([3000, 3001], pa.duration("ms")), [(0, 0)]),
        (pa.array(["x", None, "y"]).dictionary_encode(), pa.array(["y", "x"]), [(0, 1), (2, 0)]),
        (pc.run_end_encode(pa.array([4, 4, 5])), pa.array([5, 4]), [(0, 1), (1, 1), (2, 0)]),
        (pa.nulls(2), pa.array([1, None]), []),
        (pa.array([np.float16(1.5)]), pa.array([1.5]), [(0, 0)]),
        (pa.array([], pa.int8()), pa.array([1]), []),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_equality(left: pa.Array, right: pa.Array, expected: list[tuple[int, int]]) -> None:
    assert pairs_of(left, right) == expected
    assert sorted(pairs_of(right, left)) == sorted((j, i) for i, j in expected)


def test_composite_keys_match_in_all_parts_and_null_in_any_part_matches_nothing() -> None:
    left = pa.table({"a": [1, 1, None], "b": ["x", "y", "x"]})
    right = pa.table({"c": [1.0, 1.0, None], "d": ["y", "x", "x"]})
    spec = JoinSpec(left.schema, right.schema, parse_on(["a = c", "b = d"]))
    assert reference_pairs(left, right, spec) == [(0, 1), (1, 0)]


def test_rows_of_types_that_arrow_cannot_take() -> None:
    left = pa.table({"k": [1, 2], "v": pa.array(["a", None], pa.string_view())})
    right = pa.table({"k": [2, 1, 1], "v": pc.run_end_encode(pa.array(["p", "p", "q"]))})
    joined = reference_join(left, right, JoinSpec(left.schema, right.schema, parse_on("k")))
    assert joined.to_pylist() == [
        {"k": 1, "v": "a", "v_right": "p"},
        {"k": 1, "v": "a", "v_right": "q"},
        {"k": 2, "v": None, "v_right": "p"},
    ]


def one_column_spec(output: Output = Output.ROWS) -> JoinSpec:
    return JoinSpec(pa.schema({"k": pa.int64()}), pa.schema({"k": pa.int64()}), parse_on("k"), output=output)


def test_pairs_as_a_table() -> None:
    table = pa.table({"k": [5, 6]})
    assert reference_join(table, table, one_column_spec(Output.PAIRS)).to_pylist() == [
        {"left": 0, "right": 0},
        {"left": 1, "right": 1},
    ]


def test_the_operator_refuses_rows_after_the_end_and_more_than_its_memory() -> None:
    spec = one_column_spec()
    join = ReferenceJoin(spec, 1024, MemoryStore())
    join.receive(Arrive(0, pa.record_batch({"k": list(range(1000))})))
    with pytest.raises(BudgetError, match="rows kept needs"):
        join.poll(0.0, 1)
    join.receive(End(0))
    with pytest.raises(ProtocolError, match="left has ended"):
        join.receive(Arrive(0, pa.record_batch({"k": [1]})))


def test_a_snapshot_of_another_join_is_refused() -> None:
    store = MemoryStore()
    snapshot = ReferenceJoin(one_column_spec(), 1024, store).snapshot()
    with pytest.raises(SnapshotError, match="another join"):
        ReferenceJoin.restore(one_column_spec(Output.PAIRS), snapshot, 1024, store)
