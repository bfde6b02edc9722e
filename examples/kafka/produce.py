"""Fill the topics `orders` and `shipments`; make them, and the topic of results, if they are not there.

    python examples/kafka/produce.py 127.0.0.1:9092 [--rows 1000] [--seed 1]

Every order is shipped in none, one or two parcels, up to an hour later. Run it again with another seed for more.
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = {"orders": 2, "shipments": 3, "matched": 2, "matched-soon": 2}
_START = datetime(2026, 1, 1, tzinfo=UTC)


def rows_of(count: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Orders and shipments, each in the order in which they happened."""
    rng = random.Random(seed)
    orders, shipments = [], []
    for number in range(count):
        at = _START + timedelta(seconds=20 * number)
        order = seed * 1_000_000 + number
        orders.append({"order_id": order, "amount": round(rng.uniform(1, 500), 2), "ts": at.isoformat()})
        for parcel in range(rng.choice([0, 1, 1, 2])):
            left = at + timedelta(seconds=rng.randrange(3600))
            shipments.append({"order_id": order, "parcel": parcel, "shipped": left.isoformat()})
    shipments.sort(key=lambda row: str(row["shipped"]))
    return orders, shipments


def make_topics(servers: str) -> None:
    """Make those that are not there."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    there = admin.list_topics(timeout=30).topics
    missing = [NewTopic(name, count, 1) for name, count in TOPICS.items() if name not in there]
    for name, done in admin.create_topics(missing).items() if missing else ():
        try:
            done.result(30)
        except KafkaException as error:
            raise SystemExit(f"topic {name} could not be made: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("servers", help="the broker's address")
    parser.add_argument("--rows", type=int, default=1000, help="how many orders")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make_topics(given.servers)
    producer = Producer({"bootstrap.servers": given.servers, "linger.ms": 5})
    sent = dict(zip(("orders", "shipments"), rows_of(given.rows, given.seed), strict=True))
    for topic, rows in sent.items():
        for row in rows:
            producer.produce(topic, json.dumps(row).encode(), key=str(row["order_id"]))
            producer.poll(0)
    if producer.flush(60):
        raise SystemExit("the broker did not take all messages within a minute")
    print(*(f"{len(rows)} messages into {topic}" for topic, rows in sent.items()), sep="\n")


if __name__ == "__main__":
    main()
