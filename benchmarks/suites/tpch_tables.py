"""Tables of TPC-H's sizes and key relations, with the columns its joins need: made here, not by the TPC's program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.suites.model import write_table
from watersmeet.core.arrays import Int64

CUSTOMERS, ORDERS, PARTS, SUPPLIERS = 150_000, 1_500_000, 200_000, 10_000
"""At scale factor 1."""
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
NATIONS = 25
WORDS = 92
"""Of which five make the name of a part; `green` is the first."""
FIRST_DAY, LAST_ORDER = 8035, 10440
"""1992-01-01 and 1998-08-02, in days since 1970."""


def write(place: Path, scale: float) -> None:
    """All tables at a scale factor."""
    made = tables(scale)
    for name, table in made.items():
        write_table(place, name, table)


def tables(scale: float) -> dict[str, pa.Table]:
    """By name, made up from a seed."""
    rng = np.random.default_rng(19_920_101)
    customers, orders, parts, suppliers = (
        max(least, round(full * scale))
        for full, least in ((CUSTOMERS, 30), (ORDERS, 300), (PARTS, 40), (SUPPLIERS, 20))
    )
    made: dict[str, Mapping[str, Any]] = {
        "region": {"r_regionkey": np.arange(len(REGIONS)), "r_name": list(REGIONS)},
        "nation": {
            "n_nationkey": np.arange(NATIONS),
            "n_name": [f"NATION {each:02d}" for each in range(NATIONS)],
            "n_regionkey": np.arange(NATIONS) % len(REGIONS),
        },
        "supplier": {"s_suppkey": np.arange(1, suppliers + 1), "s_nationkey": rng.integers(0, NATIONS, suppliers)},
        "customer": {
            "c_custkey": np.arange(1, customers + 1),
            "c_nationkey": rng.integers(0, NATIONS, customers),
            "c_mktsegment": _of(SEGMENTS, rng.integers(0, len(SEGMENTS), customers)),
        },
        "part": {"p_partkey": np.arange(1, parts + 1), "p_name": _names(rng, parts)},
        "partsupp": _partsupp(rng, parts, suppliers),
    }
    made |= _orders(rng, orders, customers, parts, suppliers)
    return {name: pa.table(dict(columns)) for name, columns in made.items()}


def _of(words: tuple[str, ...], places: Int64) -> pa.Array:
    return pa.array(words).take(pa.array(places))


def _names(rng: np.random.Generator, parts: int) -> pa.Array:
    words = ("green", *(f"shade{each:02d}" for each in range(1, WORDS)))
    return pc.binary_join_element_wise(*(_of(words, rng.integers(0, WORDS, parts)) for _ in range(5)), " ")


def supplier_of(part: Int64, place: Int64, suppliers: int) -> Int64:
    """The one of the four suppliers of a part that has this place."""
    return (part + place * (suppliers // 4 + (part - 1) // suppliers)) % suppliers + 1


def _partsupp(rng: np.random.Generator, parts: int, suppliers: int) -> Mapping[str, Any]:
    part = np.repeat(np.arange(1, parts + 1), 4)
    place = np.tile(np.arange(4), parts)
    cost = rng.integers(100, 100_001, 4 * parts) / 100
    return {"ps_partkey": part, "ps_suppkey": supplier_of(part, place, suppliers), "ps_supplycost": cost}


def _orders(
    rng: np.random.Generator, orders: int, customers: int, parts: int, suppliers: int
) -> dict[str, Mapping[str, Any]]:
    """Orders and their one to seven items; of 32 keys of orders 8 are used, and of customers two in three order."""
    number = np.arange(orders)
    key = number // 8 * 32 + number % 8 + 1
    drawn = rng.integers(0, 2 * (customers // 3), orders)
    customer = 3 * (drawn // 2) + drawn % 2 + 1
    day = rng.integers(FIRST_DAY, LAST_ORDER + 1, orders)
    items = rng.integers(1, 8, orders)
    of = np.repeat(number, items)
    count = len(of)
    part = rng.integers(1, parts + 1, count)
    quantity = rng.integers(1, 51, count)
    price = quantity * (90_000 + part // 10 % 20_001 + 100 * (part % 1_000)) / 100
    return {
        "orders": {
            "o_orderkey": key,
            "o_custkey": customer,
            "o_orderdate": pa.array(day.astype(np.int32)).cast(pa.date32()),
            "o_totalprice": np.bincount(of, price, minlength=orders).round(2),
        },
        "lineitem": {
            "l_orderkey": key[of],
            "l_partkey": part,
            "l_suppkey": supplier_of(part, rng.integers(0, 4, count), suppliers),
            "l_quantity": quantity,
            "l_extendedprice": price,
            "l_discount": rng.integers(0, 11, count) / 100,
            "l_shipdate": pa.array((day[of] + rng.integers(1, 122, count)).astype(np.int32)).cast(pa.date32()),
        },
    }
