"""Read a topic of results, each of them once, however often it was written.

python examples/kafka/read.py 127.0.0.1:9092 matched
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def results(servers: str, topic: str) -> Iterator[dict[str, Any]]:
    """All results of a topic up to its present end."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers of results", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions]
    ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30) for place in places}
    left = {number: end for number, (first, end) in ends.items() if end > first}
    consumer.assign(places)
    seen: set[bytes] = set()
    while left:
        message = consumer.poll(30)
        if message is None or message.error():
            raise SystemExit(f"{topic} cannot be read: {message and message.error()}")
        if message.offset() + 1 >= left.get(message.partition(), 0):
            left.pop(message.partition(), None)
        named = dict(message.headers())["watersmeet-id"]
        if named not in seen:  # one that was seen before was written again after a failure
            seen.add(named)
            yield {"id": named.decode(), **json.loads(message.value())}
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("servers", help="the broker's address")
    parser.add_argument("topic")
    given = parser.parse_args()
    for result in results(given.servers, given.topic):
        print(json.dumps(result))


if __name__ == "__main__":
    main()
