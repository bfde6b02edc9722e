"""Orders and shipments out of two topics, joined, into a third topic and into Parquet files.

    python examples/kafka/pipeline.py 127.0.0.1:9092 /tmp/shop --jars "$(sh scripts/servers.sh jars connector)"

`matched` gets every order with every one of its shipments, however late (`wms.join`); `matched-soon` those that left
within half an hour, by a join that forgets what is older (`wms.window_join`). The folder gets the first of these as
Parquet files, too. Stop it at any moment, in any way, and start it again: it goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from watersmeet import spark as wms

ORDERS = "order_id long, amount double, ts timestamp"
SHIPMENTS = "order_id long, parcel int, shipped timestamp"


def session(jars: str) -> Any:
    """A Spark on this machine."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("orders and shipments").config("spark.jars", jars)
    builder = builder.config("spark.sql.shuffle.partitions", 2).config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.enabled", False).config("spark.ui.showConsoleProgress", False)
    return builder.config("spark.log.level", "ERROR").getOrCreate()


class Pipeline:
    """Three queries over two topics, with all that they remember below one folder."""

    def __init__(self, spark: Any, servers: str, place: Path, once: bool) -> None:
        self._spark, self._servers, self._place, self._once = spark, servers, place, once

    def rows(self, topic: str, schema: str) -> Any:
        """A topic from its beginning, at most 10,000 messages in a batch."""
        messages = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 10_000)
            .load()
        )
        return wms.from_kafka(messages, topic, schema)

    def matched(self, name: str) -> Any:
        """Each order with each of its shipments; every query has a state of its own."""
        orders, shipments = self.rows("orders", ORDERS), self.rows("shipments", SHIPMENTS)
        return wms.join(orders, shipments, on="order_id", memory="64 MiB", state=self._place / "state" / name)

    def matched_soon(self, name: str) -> Any:
        """Each order with its shipments of the half hour after it."""
        orders, shipments = self.rows("orders", ORDERS), self.rows("shipments", SHIPMENTS)
        return wms.window_join(
            orders, shipments, on="order_id", time="ts = shipped", window=("30 minutes", "0 s"), lateness="2 days",
            memory="64 MiB", state=self._place / "state" / name,
        )  # fmt: skip

    def into_topic(self, results: Any, topic: str) -> Any:
        """Start writing: at least once, with ids by which a reader knows what it has seen."""
        writer = wms.to_kafka(results).writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", self._servers).option("topic", topic)
        return self._start(writer, topic)

    def into_files(self, results: Any, name: str) -> Any:
        """Start writing: exactly once."""
        writer = results.drop("origin", "origin_right").writeStream.format("parquet")
        return self._start(writer.option("path", str(self._place / "rows" / name)), name)

    def _start(self, writer: Any, name: str) -> Any:
        writer = writer.queryName(name).option("checkpointLocation", str(self._place / "checkpoint" / name))
        return (writer.trigger(availableNow=True) if self._once else writer).start()

    def start(self) -> list[Any]:
        """Start all of them."""
        return [
            self.into_topic(self.matched("matched"), "matched"),
            self.into_topic(self.matched_soon("matched-soon"), "matched-soon"),
            self.into_files(self.matched("files"), "files"),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("servers", help="the broker's address")
    parser.add_argument("place", type=Path, help="a folder for state, checkpoints and files")
    parser.add_argument("--jars", required=True, help="Spark's connector for Kafka, as scripts/servers.sh prints it")
    parser.add_argument("--once", action="store_true", help="stop when all that is there now has been taken")
    given = parser.parse_args()
    spark = session(given.jars)
    with wms.Watch(spark):  # says what each batch did
        for query in Pipeline(spark, given.servers, given.place.absolute(), given.once).start():
            query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
