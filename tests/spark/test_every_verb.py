"""Every verb once, over files that come in two goes, with a restart between them; `make versions` runs it, too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as fn

from spark.shop import COLUMNS, PARCELS, expected_tables, inputs
from watersmeet import spark as wms

ORDERS = "order_id long, customer long, amount double, ts timestamp"
SHIPMENTS = "order_id long, parcel int, shipped timestamp"
RETURNS = "order_id long, refund double"
TIMES: dict[str, Any] = {"on": "order_id", "time": "ts = shipped"}
SOON: dict[str, Any] = {**TIMES, "lateness": "2 days", "window": ("30 minutes", "0 s")}
# Every parcel is shipped within an hour, so none comes late; a row waits until others are newer by as much.
FIRST: dict[str, Any] = {**TIMES, "lateness": "1 hour", "direction": "forward"}


class Files:
    """The inputs as streams whose joins have their state in a folder, or without one in one pass."""

    def __init__(self, spark: Any, place: Path, state: Path | None) -> None:
        self.spark, self.place, self.streaming = spark, place, state is not None
        self.told: dict[str, Any] = {"memory": "8 MiB", **({"state": state} if state else {})}

    def rows(self, name: str, schema: str) -> Any:
        reader = self.spark.readStream if self.streaming else self.spark.read
        return reader.schema(schema).parquet(str(self.place / "in" / name))

    @property
    def both(self) -> tuple[Any, Any]:
        return self.rows("orders", ORDERS), self.rows("shipments", SHIPMENTS)

    def ending(self, name: str, schema: str) -> Any:
        if not self.streaming:
            return self.rows(name, schema)
        signs = self.spark.readStream.text(str(self.place / "in" / f"{name}-control"))
        return wms.with_events(self.rows(name, schema), signs)


def _named(files: Files) -> Any:
    return wms.lookup_join(files.both[0], files.place / "in" / "customers.rel", on="customer", how="left", **files.told)


def _returned(files: Files) -> Any:
    named = {"o": ("orders", ORDERS), "s": ("shipments", SHIPMENTS), "r": ("returns", RETURNS)}
    three = {name: files.ending(*of) for name, of in named.items()}
    return wms.multijoin(three, on=["o.order_id = s.order_id", "s.order_id = r.order_id"], **files.told)


VERBS = {
    "matched": lambda files: wms.join(*files.both, on="order_id", **files.told),
    "matched_soon": lambda files: wms.window_join(*files.both, **SOON, **files.told),
    "matched_in_slots": lambda files: wms.parallel_join(*files.both, **SOON, slots=(1, 2), **files.told),
    "first_shipped": lambda files: wms.asof_join(*files.both, **FIRST, **files.told),
    "named_orders": _named,
    "returned": _returned,
}


def counted(frame: Any, table: str) -> Counter[Any]:
    return Counter(tuple(row) for row in frame.select(*COLUMNS.get(table, PARCELS)).collect())


def check_streamed(found: Counter[Any], table: str, goes: int) -> None:
    """What came out of some goes must be right, and all of it but what still waits for newer rows."""
    expected = expected_tables(goes)[table]
    if table == "first_shipped":
        expected &= found
    assert found == expected and found.total() > 50, (table, found.total(), expected.total())


def expected_of_one_pass(table: str) -> Counter[Any]:
    """The inputs of one go, read at once."""
    expected = expected_tables(1)[table]
    if table == "first_shipped":
        expected = Counter({row: count for row, count in expected.items() if row[1] is not None})
    assert expected.total() > 25
    return expected


@pytest.mark.parametrize("table", VERBS)
def test_a_stream_that_is_stopped_and_goes_on(spark: Any, tmp_path: Path, table: str) -> None:
    for go in (1, 2):
        inputs.add(tmp_path, end=go == 2)
        writer = VERBS[table](Files(spark, tmp_path, tmp_path / "state")).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start(str(tmp_path / "out")).awaitTermination()
    check_streamed(counted(spark.read.parquet(str(tmp_path / "out")), table), table, 2)


@pytest.mark.parametrize("table", [table for table in VERBS if table != "matched_in_slots"])
def test_one_pass(spark: Any, tmp_path: Path, table: str) -> None:
    inputs.add(tmp_path)
    assert counted(VERBS[table](Files(spark, tmp_path, None)), table) == expected_of_one_pass(table)


def test_the_expected_tables_are_those_of_spark(spark: Any, tmp_path: Path) -> None:
    inputs.add(tmp_path)
    orders, shipments = Files(spark, tmp_path, None).both
    pairs = orders.join(shipments, "order_id")
    soon = pairs.where(fn.expr("shipped between ts and ts + interval 30 minutes"))
    assert counted(pairs, "matched") == expected_tables(1)["matched"]
    assert counted(soon, "matched_soon") == expected_tables(1)["matched_soon"]
