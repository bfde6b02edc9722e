"""Every verb as a table of a declarative pipeline.

A join is made where the file is loaded, not in the function below `@dp.table`: to make it, Watersmeet asks Spark for
the columns of its inputs, which Spark does not answer inside such functions. So inputs are what is there before the
pipeline runs: files, topics, tables of others.

`{query}` in the state's path stands for the id of the table's query. A full refresh gives a table a new query, and so
its join begins with an empty state of its own.
"""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from watersmeet import spark as wms

spark: Any = SparkSession.active()
place = spark.conf.get("spark.watersmeet.example.place")
ORDERS = "order_id long, customer long, amount double, ts timestamp"
SHIPMENTS = "order_id long, parcel int, shipped timestamp"
RETURNS = "order_id long, refund double"


def files(name: str, schema: str) -> Any:
    return spark.readStream.schema(schema).parquet(f"{place}/in/{name}")


def ending(name: str, schema: str) -> Any:
    """A stream that ends as soon as a file with the word `end` lies in a folder beside it."""
    return wms.with_events(files(name, schema), spark.readStream.text(f"{place}/in/{name}-control"))


def told(table: str) -> dict[str, Any]:
    """What all joins are told."""
    return {"memory": "8 MiB", "state": f"{place}/state/{table}/{{query}}"}


orders, shipments = files("orders", ORDERS), files("shipments", SHIPMENTS)
times = {"on": "order_id", "time": "ts = shipped", "lateness": "2 days"}
soon = {**times, "window": ("30 minutes", "0 s")}

all_matched = wms.join(orders, shipments, on="order_id", **told("matched"))
matched_soon = wms.window_join(orders, shipments, **soon, **told("matched_soon"))
matched_in_slots = wms.parallel_join(orders, shipments, **soon, slots=(1, 2), **told("matched_in_slots"))
first_shipments = wms.asof_join(orders, shipments, **times, direction="forward", how="left", **told("first_shipped"))
named = wms.lookup_join(orders, f"{place}/in/customers.rel", on="customer", how="left", **told("named_orders"))
three = {"o": ending("orders", ORDERS), "s": ending("shipments", SHIPMENTS), "r": ending("returns", RETURNS)}
whole = wms.multijoin(three, on=["o.order_id = s.order_id", "s.order_id = r.order_id"], **told("returned"))


@dp.table
def matched() -> Any:
    return all_matched


@dp.table(name="matched_soon")
def _() -> Any:
    return matched_soon


@dp.table(name="matched_in_slots")
def _() -> Any:
    return matched_in_slots


@dp.table
def first_shipped() -> Any:
    return first_shipments


@dp.table
def named_orders() -> Any:
    return named


@dp.table
def returned() -> Any:
    return whole
