"""Topics in, topics and files out, against a real broker that is started for it; what it may do to a query meanwhile.

The example's own pipeline is what runs.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from waiting import until
from watersmeet import spark as wms

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka"


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"kafka_{name}", _EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pipeline, produce, read = _script("pipeline"), _script("produce"), _script("read")


class Shop:
    """The example's topics on the broker, under names of their own, and all rows that were sent to them."""

    def __init__(self, broker: Any, suffix: str) -> None:
        self.broker, self.suffix = broker, suffix
        self.orders: list[Any] = []
        self.shipments: list[Any] = []
        for name, partitions in produce.TOPICS.items():
            broker.make_topic(self.topic(name), partitions)

    def topic(self, name: str) -> str:
        return f"{name}-{self.suffix}"

    def sell(self, count: int, seed: int, orders_to: list[int], shipments_to: list[int]) -> None:
        """More rows for both topics, into these partitions."""
        orders, shipments = produce.rows_of(count, seed)
        self.broker.send(self.topic("orders"), orders, orders_to)
        self.broker.send(self.topic("shipments"), shipments, shipments_to)
        self.orders += orders
        self.shipments += shipments

    def pairs(self, within: timedelta | None = None) -> Counter[tuple[int, int]]:
        """What a join of both must give, as order and parcel: by nested loops over all that was sent."""
        by_id: dict[int, list[Any]] = {}
        for row in self.shipments:
            by_id.setdefault(row["order_id"], []).append(row)
        found: Counter[tuple[int, int]] = Counter()
        for order in self.orders:
            for row in by_id.get(order["order_id"], []):
                took = datetime.fromisoformat(row["shipped"]) - datetime.fromisoformat(order["ts"])
                if within is None or timedelta(0) <= took <= within:
                    found[order["order_id"], row["parcel"]] += 1
        return found

    def pipeline(self, spark: Any, place: Path, once: bool = True) -> Any:
        """The example's pipeline over these topics."""
        made = pipeline.Pipeline(spark, self.broker.address, place, once)
        own = made.rows
        made.rows = lambda topic, schema: own(self.topic(topic), schema)
        return made


@pytest.fixture
def shop(broker: Any, request: pytest.FixtureRequest) -> Shop:
    return Shop(broker, request.node.name.replace("test_", "")[:40])


def _in_topic(messages: list[Any]) -> Counter[tuple[int, int]]:
    rows = (json.loads(message.value) for message in messages)
    return Counter((row["order_id"], row["parcel"]) for row in rows)


def _ids(messages: list[Any]) -> list[str]:
    return [message.headers["watersmeet-id"] for message in messages]


def test_a_batch_that_is_written_again_has_the_same_ids(spark: Any, shop: Shop, tmp_path: Path) -> None:
    topic, shop_pipeline = shop.topic("matched"), shop.pipeline(spark, tmp_path)

    def run() -> list[Any]:
        query = shop_pipeline.into_topic(shop_pipeline.matched(topic), topic)
        query.awaitTermination()
        return list(shop.broker.messages(topic))

    shop.sell(300, 1, [0, 1], [0, 1, 2])
    first = run()
    shop.sell(200, 2, [1], [0, 2])
    both = run()
    assert _in_topic(both) == shop.pairs() and len(both) > len(first) + 100
    ids = _ids(both)
    assert len(set(ids)) == len(ids)
    assert all(message.key.decode() == each for message, each in zip(both, ids, strict=True))

    _forget_the_last_batch(tmp_path / "checkpoint" / topic)
    again = run()
    assert len(again) == len(both) + (len(both) - len(first)), "the last batch was written once more"
    assert Counter(_ids(again)) == Counter(ids) + Counter(_ids(both)[i] for i in _after(both, first))
    # A reader that knows the ids has each result once.
    once = list(read.results(shop.broker.address, topic))
    assert Counter((row["order_id"], row["parcel"]) for row in once) == shop.pairs()


def _forget_the_last_batch(checkpoint: Path) -> int:
    """Make Spark believe that it was not done, as after a failure between its sink and its log; returns its number."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    return last


def test_a_batch_out_of_a_topic_that_is_written_again_is_in_the_files_once(
    spark: Any, shop: Shop, tmp_path: Path
) -> None:
    shop_pipeline = shop.pipeline(spark, tmp_path)

    def run() -> Counter[tuple[int, int]]:
        shop_pipeline.into_files(shop_pipeline.matched("all"), "all").awaitTermination()
        found = spark.read.parquet(str(tmp_path / "rows" / "all")).collect()
        return Counter((row.order_id, row.parcel) for row in found)

    for seed in (9, 10):
        shop.sell(80, seed, [0, 1], [0, 1, 2])
        assert run() == shop.pairs()
    last = _forget_the_last_batch(tmp_path / "checkpoint" / "all")
    shop.sell(40, 11, [0], [1])
    assert run() == shop.pairs()
    done = [int(path.name) for path in (tmp_path / "checkpoint" / "all" / "commits").iterdir() if path.name.isdigit()]
    assert last in done and max(done) == last + 1, "it was done again, and what came since in the next"


def _after(all_messages: list[Any], first: list[Any]) -> list[int]:
    before = {(message.partition, message.offset) for message in first}
    return [i for i, message in enumerate(all_messages) if (message.partition, message.offset) not in before]


def test_a_broker_that_dies_and_more_partitions_in_mid_run(spark: Any, shop: Shop, tmp_path: Path) -> None:
    shop_pipeline = shop.pipeline(spark, tmp_path, once=False)
    shop.sell(200, 3, [0, 1], [0, 1, 2])
    soon = shop_pipeline.matched_soon("soon")
    query = shop_pipeline.into_files(soon, "soon")
    try:
        query.processAllAvailable()
        shop.broker.stop(at_once=True)  # while nothing is on its way
        assert query.isActive
        shop.broker.start()
        _die_within_a_batch(shop, tmp_path / "checkpoint" / "soon")
        shop.broker.start()
        query.processAllAvailable()
        shop.broker.add_partitions(shop.topic("orders"), 4)
        shop.broker.add_partitions(shop.topic("shipments"), 5)
        shop.sell(200, 5, [0, 2, 3], [4, 3, 1])
        # The source looks for partitions now and then: wait until it has seen them.
        _take_all(query, shop)
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "rows" / "soon")).collect()
    expected = shop.pairs(timedelta(minutes=30))
    assert Counter((row.order_id, row.parcel) for row in found) == expected
    assert 0 < sum(expected.values()) < sum(shop.pairs().values())


def _die_within_a_batch(shop: Shop, checkpoint: Path) -> None:
    """Kill the broker while a batch is on its way: its offsets are written down, and it is not over."""

    def newest(name: str) -> int:
        return max(int(path.name) for path in (checkpoint / name).iterdir() if path.name.isdigit())

    def in_flight() -> bool:
        return newest("offsets") > newest("commits")

    seeds = count(100)
    for _ in range(5):
        # How long the source takes to find the broker again is its own: there is more to take until it has.
        until(lambda: in_flight() or shop.sell(40, next(seeds), [0, 1], [0, 1, 2]), "a batch has begun")
        shop.broker.stop(at_once=True)
        if in_flight():
            return
        shop.broker.start()
    raise AssertionError("every batch was over before the broker was dead")


def _take_all(query: Any, shop: Shop) -> None:
    wanted = {
        shop.topic(name): {
            str(partition): sum(
                1 for message in shop.broker.messages(shop.topic(name)) if message.partition == partition
            )
            for partition in range(shop.broker.partitions(shop.topic(name)))
        }
        for name in ("orders", "shipments")
    }

    def taken() -> bool:
        assert query.exception() is None, query.exception()
        reached: dict[str, Any] = {}
        for source in (query.lastProgress or {"sources": []})["sources"]:
            reached |= json.loads(source["endOffset"] or "{}")
        return reached == wanted

    until(taken, f"the query has taken {wanted}")


def test_a_poisoned_message_stops_the_query_and_is_put_aside(spark: Any, shop: Shop, tmp_path: Path) -> None:
    topic, aside = shop.topic("orders"), shop.topic("aside")
    shop.broker.make_topic(aside)
    shop.sell(30, 6, [0, 1], [0])
    shop_pipeline = shop.pipeline(spark, tmp_path)

    def run() -> Counter[tuple[int, int]]:
        shop_pipeline.into_files(shop_pipeline.matched("all"), "all").awaitTermination()
        found = spark.read.parquet(str(tmp_path / "rows" / "all")).collect()
        return Counter((row.order_id, row.parcel) for row in found)

    assert run() == shop.pairs()
    shop.broker.send(topic, [b"poison", None], [1])
    shop.sell(20, 7, [0, 1], [0])
    with pytest.raises(
        PySparkException, match=f"message 15 of partition 1 of topic '{topic}' is not a row of order_id"
    ):
        run()

    def lenient(messages: Any, name: str, schema: str) -> Any:
        return from_kafka(messages, name, schema, poisoned="skip")

    from_kafka = wms.from_kafka
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wms, "from_kafka", lenient, raising=False)
        assert run() == shop.pairs(), "it goes on where it was"
    messages = spark.readStream.format("kafka").option("kafka.bootstrap.servers", shop.broker.address)
    messages = messages.option("subscribe", topic).option("startingOffsets", "earliest").load()
    writer = wms.poisoned(messages, pipeline.ORDERS).writeStream.format("kafka").option("topic", aside)
    writer = writer.option("kafka.bootstrap.servers", shop.broker.address)
    writer.option("checkpointLocation", str(tmp_path / "aside")).trigger(availableNow=True).start().awaitTermination()
    put_aside = shop.broker.messages(aside)
    assert [message.value for message in put_aside] == [b"poison", None]
    assert [message.headers["watersmeet-offset"] for message in put_aside] == ["15", "16"]


def test_the_examples_of_the_page_run(spark: Any, broker: Any, tmp_path: Path) -> None:
    produce.make_topics(broker.address)
    broker.make_topic("orders-aside")
    orders, shipments = produce.rows_of(40, 8)
    broker.send("orders", orders, [0, 1])
    broker.send("shipments", shipments, [0, 1, 2])
    page = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
    names: dict[str, Any] = {"spark": spark, "servers": broker.address, "place": tmp_path}
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        if number == 2:
            broker.send("orders", [b"poison"], [0])
        exec(compile(block, "kafka.md", "exec"), names)
    assert len(broker.messages("matched")) == len(shipments)
    assert 0 < spark.read.parquet(str(tmp_path / "rows" / "soon")).count() < len(shipments)
    assert [message.value for message in broker.messages("orders-aside")] == [b"poison"]
