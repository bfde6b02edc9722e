"""A Kafka broker: one process, broker and controller in one (KRaft), whose files outlive it."""

from __future__ import annotations

import json
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from servers.process import JVM, Guarded, Unavailable, fetched, free_ports, java
from waiting import PATIENCE, until

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENTS://127.0.0.1:{port}
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={place}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
num.network.threads=1
num.io.threads=2
log.cleaner.enable=false
"""


_WAITING = 50_000
"""Messages that wait to be sent when there is room for more again; the client holds twice as many."""


@dataclass(frozen=True)
class Message:
    """A message of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]


class Broker:
    """A broker below a folder, on a port that it keeps when it is started again."""

    def __init__(self, place: Path, port: int | None = None) -> None:
        self._libraries, self._java = fetched("kafka"), java()
        self._place = place
        self._port, controller = free_ports(2, port)
        self._process: Guarded | None = None
        self._settings = place / "broker.properties"
        self._settings.write_text(_SETTINGS.format(port=self._port, controller=controller, place=place))
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")  # "-t -x" is no option
        told = ["format", "--ignore-formatted", "-t", cluster, "-c", str(self._settings)]
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", *told),
            capture_output=True, text=True, cwd=place, timeout=PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"Kafka could not lay out its storage: {(done.stdout + done.stderr).strip()[-300:]}")

    def _command(self, main: str, *words: str) -> list[str]:
        return [self._java, *JVM, "-cp", f"{self._libraries}/*", main, *words]

    @property
    def address(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = self._command("kafka.Kafka", str(self._settings))
        process = self._process = Guarded(command, self._place / "broker.log", self._place)

        def answers() -> bool:
            assert process.is_alive(), f"the broker ended: {process.last_words()}"
            try:
                return bool(self._admin().list_topics(timeout=1).brokers)
            except Exception:
                return False

        until(answers, f"a broker answers at {self.address}")

    def stop(self, at_once: bool = False) -> None:
        """End it, as an operator would, or at once, as a power cut would."""
        if self._process is not None:
            self._process.stop(at_once)
            self._process = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(at_once=True)

    # -- topics and messages

    def _admin(self) -> AdminClient:
        # What the client says on its own is that nobody answers yet.
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def make_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """A new topic."""
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): told for key, told in settings.items()})
        admin = self._admin()  # a client that nobody holds ends, and what it was asked for with it
        admin.create_topics([topic])[name].result(PATIENCE)
        until(lambda: self.partitions(name) == partitions, f"topic {name} is there")

    def add_partitions(self, name: str, total: int) -> None:
        """Let a topic have so many partitions from now on."""
        admin = self._admin()
        admin.create_partitions([NewPartitions(name, total)])[name].result(PATIENCE)
        until(lambda: self.partitions(name) == total, f"topic {name} has {total} partitions")

    def partitions(self, name: str) -> int:
        """How many partitions a topic has; 0 if there is no such topic."""
        found = self._admin().list_topics(timeout=PATIENCE).topics.get(name)
        return 0 if found is None else len(found.partitions)

    def send(self, topic: str, rows: Iterable[Mapping[str, Any] | bytes | None], partitions: Sequence[int]) -> None:
        """Messages with these rows as JSON, or as they are, to the partitions in turns; returns when all are stored."""
        wrong: list[str] = []

        def told(error: object, _: object) -> None:
            if error is not None:
                wrong.append(str(error))

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        for number, row in enumerate(rows):
            value = json.dumps(row).encode() if isinstance(row, Mapping) else row
            place = partitions[number % len(partitions)]
            try:
                producer.produce(topic, value, partition=place, on_delivery=told)
            except BufferError:  # it holds as many as it may
                until(lambda: producer.poll(0.1) and len(producer) < _WAITING, f"{topic} takes messages")
                producer.produce(topic, value, partition=place, on_delivery=told)
            producer.poll(0)
        assert producer.flush(PATIENCE) == 0, f"not all messages reached {topic}"
        assert not wrong, f"{len(wrong)} messages did not reach {topic}: {wrong[0]}"

    def messages(self, topic: str) -> list[Message]:
        """All that a topic holds now."""
        told = {"bootstrap.servers": self.address, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
        consumer = Consumer({**told, "enable.partition.eof": False, "log_level": 0})
        try:
            places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(self.partitions(topic))]
            left = {}
            for place in places:
                first, end = consumer.get_watermark_offsets(place, timeout=PATIENCE)
                if end > first:
                    left[place.partition] = end
            consumer.assign(places)
            found: list[Message] = []
            while left:
                message = consumer.poll(PATIENCE)
                assert message is not None and message.error() is None, f"{topic} cannot be read: {message}"
                headers = {name: (value or b"").decode() for name, value in message.headers() or []}
                at = message.partition(), message.offset()
                found.append(Message(*at, message.key(), message.value(), headers))
                if at[1] + 1 >= left[at[0]]:
                    del left[at[0]]
            return found
        finally:
            consumer.close()
