"""The joins of TPC-H's queries 3, 5, 9 and 18 over streams of tables, filters before, no aggregates behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import watersmeet as wm
from benchmarks.suites import tpch_tables
from benchmarks.suites.model import Inputs, Question, Setting, Suite

Filter = Callable[[pa.RecordBatch], Any]


def _question(
    name: str,
    inputs: Mapping[str, Sequence[str]],
    on: Sequence[str],
    columns: Sequence[str],
    filters: Mapping[str, tuple[str, Filter]] | None = None,
) -> Question:
    """A join of these columns of tables, by conditions `table.column = table.column`."""
    filters = filters or {}

    def joined(given: Inputs, algorithm: str) -> Iterable[pa.RecordBatch]:
        streams = {
            table: given.stream(table, names, filters[table][1] if table in filters else None)
            for table, names in inputs.items()
        }
        return wm.multijoin(streams, on=list(on), memory=given.memory, algorithm=algorithm)

    where = " AND ".join([*on, *(words for words, _ in filters.values())])
    return Question(
        name, tuple(inputs), f"SELECT {', '.join(columns)} FROM {', '.join(inputs)} WHERE {where}", columns, joined
    )


def _before(column: str, day: date) -> tuple[str, Filter]:
    return f"{column} < DATE '{day}'", lambda batch: pc.less(batch[column], pa.scalar(day))


def _after(column: str, day: date) -> tuple[str, Filter]:
    return f"{column} > DATE '{day}'", lambda batch: pc.greater(batch[column], pa.scalar(day))


def _is(column: str, word: str) -> tuple[str, Filter]:
    return f"{column} = '{word}'", lambda batch: pc.equal(batch[column], word)


def _in_year(column: str, year: int) -> tuple[str, Filter]:
    first, last = date(year, 1, 1), date(year, 12, 31)
    return (
        f"{column} BETWEEN DATE '{first}' AND DATE '{last}'",
        lambda batch: pc.equal(pc.year(batch[column]), year),
    )


def _has(column: str, word: str) -> tuple[str, Filter]:
    return f"{column} LIKE '%{word}%'", lambda batch: pc.match_substring(batch[column], word)


MARCH = date(1995, 3, 15)
CUSTOMERS_ORDERS = ("customer.c_custkey = orders.o_custkey", "orders.o_orderkey = lineitem.l_orderkey")

Q3 = _question(
    "q3",
    {
        "customer": ("c_custkey",),
        "orders": ("o_orderkey", "o_custkey", "o_orderdate"),
        "lineitem": ("l_orderkey", "l_extendedprice", "l_discount"),
    },
    CUSTOMERS_ORDERS,
    ("l_orderkey", "o_orderdate", "l_extendedprice", "l_discount"),
    {
        "customer": _is("c_mktsegment", "BUILDING"),
        "orders": _before("o_orderdate", MARCH),
        "lineitem": _after("l_shipdate", MARCH),
    },
)
Q5 = _question(
    "q5",
    {
        "customer": ("c_custkey", "c_nationkey"),
        "orders": ("o_orderkey", "o_custkey"),
        "lineitem": ("l_orderkey", "l_suppkey", "l_extendedprice", "l_discount"),
        "supplier": ("s_suppkey", "s_nationkey"),
        "nation": ("n_nationkey", "n_regionkey"),
        "region": ("r_regionkey",),
    },
    (
        *CUSTOMERS_ORDERS,
        "lineitem.l_suppkey = supplier.s_suppkey",
        "customer.c_nationkey = supplier.s_nationkey",
        "supplier.s_nationkey = nation.n_nationkey",
        "nation.n_regionkey = region.r_regionkey",
    ),
    ("n_nationkey", "l_orderkey", "l_extendedprice", "l_discount"),
    {"region": _is("r_name", "ASIA"), "orders": _in_year("o_orderdate", 1994)},
)
Q9 = _question(
    "q9",
    {
        "part": ("p_partkey",),
        "lineitem": ("l_orderkey", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount"),
        "partsupp": ("ps_partkey", "ps_suppkey", "ps_supplycost"),
        "supplier": ("s_suppkey", "s_nationkey"),
        "nation": ("n_nationkey",),
        "orders": ("o_orderkey", "o_orderdate"),
    },
    (
        "part.p_partkey = lineitem.l_partkey",
        "partsupp.ps_partkey = lineitem.l_partkey",
        "partsupp.ps_suppkey = lineitem.l_suppkey",
        "supplier.s_suppkey = lineitem.l_suppkey",
        "supplier.s_nationkey = nation.n_nationkey",
        "orders.o_orderkey = lineitem.l_orderkey",
    ),
    ("n_nationkey", "o_orderdate", "l_quantity", "l_extendedprice", "l_discount", "ps_supplycost"),
    {"part": _has("p_name", "green")},
)
Q18 = _question(
    "q18",
    {
        "customer": ("c_custkey", "c_nationkey"),
        "orders": ("o_orderkey", "o_custkey", "o_orderdate", "o_totalprice"),
        "lineitem": ("l_orderkey", "l_quantity"),
    },
    CUSTOMERS_ORDERS,
    ("c_nationkey", "o_orderdate", "o_totalprice", "l_orderkey", "l_quantity"),
)

SUITE = Suite(
    "tpch",
    "TPC-H's joins at scale factor 1, in a tenth of the memory",
    "Taken from the specification: the tables' sizes and key relations, the distributions of the columns that these "
    "joins use, the filters, and the conditions of queries 3, 5, 9 and 18. The rows are made here, not by the TPC's "
    "program, and results are the joined rows, without aggregates; query 18 joins all orders. Memory is a tenth of the "
    "tables that a query reads. Spark has a heap of 4 GiB and cannot do with less; its growth is that of the JVM.",
    tpch_tables.write,
    (Q3, Q5, Q9, Q18),
    (Setting("a tenth", ("ours", "duckdb", "spark"), share=0.1),),
    warm_scale=0.005,
)
