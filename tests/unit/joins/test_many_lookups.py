"""One stream in several relations, several streams in one: what users see, and what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet.core.lookup import LookupSpec, lookup_conditions
from watersmeet.core.many_lookups import ChainSpec, Link, SharedSpec
from watersmeet.core.protocol import Arrive, End, Status
from watersmeet.core.spec import Equal
from watersmeet.joins.lookup.chain import LookupChain
from watersmeet.joins.lookup.shared import SharedLookup
from watersmeet.relation.changes import StoredRelation
from watersmeet.spill import MemoryStore

CUSTOMERS = pa.table(
    {"id": range(500), "name": [f"customer {i}" for i in range(500)], "town": [i % 7 for i in range(500)]}
)
TOWNS = pa.table({"town": range(5), "name": [f"town {i}" for i in range(5)]})
PRODUCTS = pa.table({"sku": range(0, 900, 3), "price": [float(i) for i in range(300)]})


def orders(count: int = 2_000) -> pa.Table:
    rng = np.random.default_rng(4)
    return pa.table(
        {"customer": rng.integers(0, 600, count), "sku": rng.integers(0, 900, count), "n": pa.array(range(count))}
    )


def expected() -> list[tuple[Any, ...]]:
    found = []
    for row in orders().to_pylist():
        customer, sku, n = row.values()
        if sku % 3 or customer >= 500:
            continue
        town = customer % 7
        found.append((n, f"customer {customer}", f"town {town}" if town < 5 else None, sku / 3))
    return found


def test_several_relations_in_one_pass(tmp_path: Path) -> None:
    """Also by what another relation has added, and with files that are laid out first."""
    customers = wm.Relation.build(CUSTOMERS, on="id", path=tmp_path / "c", segment="4 KiB", memory="1 MiB")
    pq.write_table(TOWNS, tmp_path / "towns.parquet")
    result = wm.lookup_join(
        orders(),
        {"customers": customers, "towns": tmp_path / "towns.parquet", "products": PRODUCTS},
        on={"customers": "customer = id", "towns": "town", "products": "sku"},
        how={"towns": "left"},
        memory="1 MiB",
        spill=tmp_path,
    )
    found = result.table()
    assert found.column_names == ["customer", "sku", "n", "id", "name", "town", "name_towns", "price"]
    rows = [(row["n"], row["name"], row["name_towns"], row["price"]) for row in found.to_pylist()]
    assert sorted(rows, key=str) == sorted(expected(), key=str)
    figures = result.progress.lookup
    assert figures is not None and figures.bytes_read > 0 and 0 <= figures.delay_p50 <= figures.delay_p99
    assert result.progress.peak <= 1 << 20
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c", "towns.parquet"], "nothing is left behind"


def test_bad_requests_of_several_are_sentences(tmp_path: Path) -> None:
    tables = {"customers": CUSTOMERS, "products": PRODUCTS}
    on = {"customers": "customer = id", "products": "sku"}
    with pytest.raises(wm.SpecError, match="on names 'product', but there is no such relation"):
        wm.lookup_join(orders(), tables, on={"product": "sku"})
    with pytest.raises(wm.SpecError, match="at least one relation"):
        wm.lookup_join(orders(), {})
    with pytest.raises(wm.SpecError, match="told apart by the names of the dict"):
        wm.lookup_join(orders(), tables, on=on, suffixes=("", "_x"))
    with pytest.raises(wm.SpecError, match="here there is one"):
        wm.lookup_join(orders(), CUSTOMERS, on={"customers": "customer = id"})
    with pytest.raises(wm.BudgetError, match="too small for this join"):
        wm.lookup_join(orders(), tables, on=on, memory="32 KiB").table()
    with pytest.raises(wm.SpecError, match="give the streams by name"):
        wm.shared_lookup_join(orders(), CUSTOMERS, on="customer = id")  # type: ignore[arg-type]
    with pytest.raises(wm.SpecError, match="same columns of the relation"):
        wm.shared_lookup_join({"a": orders(), "b": orders()}, PRODUCTS, on={"a": "sku", "b": "n = price"})


def test_several_streams_of_a_relation(tmp_path: Path) -> None:
    customers = wm.Relation.build(CUSTOMERS, on="id", path=tmp_path / "c", segment="4 KiB", memory="1 MiB")
    visits = pa.table({"who": pa.array([3, 999], pa.int32()), "page": ["a", "b"]})
    result = wm.shared_lookup_join(
        {"orders": orders(), "visits": visits},
        customers,
        on={"orders": "customer = id", "visits": "who = id"},
        on_miss={"visits": "keep"},
        memory="1 MiB",
    )
    found = result.tables()
    assert found["orders"].num_rows == sum(each < 500 for each in orders()["customer"].to_pylist())
    assert all(row["name"] == f"customer {row['customer']}" for row in found["orders"].to_pylist())
    assert sorted(found["visits"]["name"].to_pylist(), key=str) == [None, "customer 3"]
    assert result.progress.rows_in == (2_000, 2) and result.progress.done
    figures = result.progress.lookup
    assert figures is not None and figures.answered == 2_002


def drain(operator: Any, until: Status = Status.NEED_INPUT) -> int:
    rows, status = 0, Status.HAS_OUTPUT
    while status is Status.HAS_OUTPUT:
        step = operator.poll(0.0, 10_000)
        rows += 0 if step.out is None else step.out.num_rows
        status = step.status
        operator.check()
    assert status is until
    return rows


def batch(ids: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def test_streams_share_what_was_read() -> None:
    relation = StoredRelation.in_memory(CUSTOMERS, ("id",), theta=1024)
    spec = LookupSpec(batch([]).schema, relation.schema, lookup_conditions("id", relation.on))
    assert relation.partitions > 10
    ids = np.random.default_rng(1).integers(0, 500, 300).tolist()

    def reads(streams: int) -> int:
        shared = SharedLookup(
            SharedSpec(tuple(map(str, range(streams))), (spec,) * streams),
            1 << 20,
            MemoryStore(),
            relation.reader,
            max_delay=None,
        )
        for number in range(streams):
            shared.receive(Arrive(number, batch(ids)))
        assert drain(shared) == 0, "all wait"
        for number in range(streams):
            shared.receive(End(number))
        assert drain(shared, Status.DONE) == streams * len(ids)
        return shared.cost.seeks

    assert reads(3) == reads(1) == relation.partitions, "each partition once, for all streams"


def test_streams_share_partitions_in_memory() -> None:
    relation = StoredRelation.in_memory(CUSTOMERS, ("id",), theta=1024)
    spec = LookupSpec(batch([]).schema, relation.schema, lookup_conditions("id", relation.on), "semi")
    whole = LookupSpec(batch([]).schema, relation.schema, lookup_conditions("id", relation.on))
    shared = SharedLookup(
        SharedSpec(("a", "b"), (spec, whole)), 1 << 20, MemoryStore(), relation.reader, n_invoke=2, max_delay=None
    )
    shared.receive(Arrive(0, batch([1, 2])))
    assert drain(shared) == 2 and shared.cost.seeks == 1 and shared.answered == 0
    shared.receive(Arrive(1, batch([1, 2, 3])))
    assert drain(shared) == 3 and shared.cost.seeks == 1 and shared.answered == 1 and shared.hits == 3


def test_a_chain_drains_only_what_lies_before_a_change() -> None:
    buyers = StoredRelation.in_memory(CUSTOMERS, ("id",), theta=1024)
    towns = StoredRelation.in_memory(TOWNS, ("town",), theta=1024)
    links = (
        Link("buyers", buyers.schema, (Equal("id", "id"),)),
        Link("towns", towns.schema, (Equal("town", "town"),)),
    )
    chain = LookupChain(
        ChainSpec(batch([]).schema, links), 1 << 20, MemoryStore(), [buyers.reader, towns.reader], max_delay=None
    )
    chain.receive(Arrive(0, batch([1, 2])))
    assert drain(chain) == 0 and chain.cost.seeks == 0, "they wait for their buyers"
    buyers.upsert(pa.record_batch({"id": [400], "name": ["new"], "town": [1]}))
    chain.receive(Arrive(0, batch([3])))
    assert drain(chain) == 0 and chain.cost.seeks == 0, "another partition of the first: nobody has to hurry"
    towns.upsert(pa.record_batch({"town": [2], "name": ["renamed"]}))
    chain.receive(Arrive(0, batch([2])))
    assert drain(chain) == 3 and chain.cost.seeks == 2, "those before the change meet the towns as they were"
    chain.receive(End(0))
    assert drain(chain, Status.DONE) == 1
