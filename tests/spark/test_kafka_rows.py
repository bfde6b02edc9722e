"""Messages to rows and results to messages; what Kafka's source would read is a table here, and no broker is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn

import watersmeet as wm
from watersmeet import spark as wms

MESSAGES = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
ROW = "id long, name string"
GOOD: dict[bytes, tuple[Any, Any]] = {
    b'{"id": 7, "name": "cup"}': (7, "cup"),
    b'{"name": "no number"}': (None, "no number"),
    b'{"id": null, "more": [1, 2]}': (None, None),
    b"{}": (None, None),
    ' {"id": 8, "name": "käse"}\n'.encode(): (8, "käse"),
}
BAD: Sequence[bytes | None] = (
    None, b"", b" ", b"null", b"7", b'"text"', b"not JSON", b'{"id": 7', b'{"id": "seven"}', b'{"id": 7.5}',
    b"\xff\xfe{", b'{"id": 99999999999999999999}', b'[{"id": 7}]', b"[]",
)  # fmt: skip


def _messages(spark: Any, values: Sequence[bytes | None], topic: str = "orders", partition: int = 2) -> Any:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [(b"k", value, topic, partition, 100 + i, at, 0) for i, value in enumerate(values)]
    return spark.createDataFrame(rows, MESSAGES)


def test_rows_know_the_messages_they_came_in(spark: Any) -> None:
    found = wms.from_kafka(_messages(spark, [*GOOD]), "orders", ROW, time="sent")
    assert found.columns == ["id", "name", "origin", "sent"]
    rows = found.collect()
    assert [(row.id, row.name) for row in rows] == [*GOOD.values()]
    assert [row.origin for row in rows] == [(2 << 48) + 100 + i for i in range(len(GOOD))]
    assert {row.sent.astimezone(UTC).day for row in rows} == {2}


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_poisoned_message_is_named(spark: Any, value: bytes | None) -> None:
    messages = _messages(spark, [b'{"id": 1}', value])
    with pytest.raises(PySparkException) as caught:
        wms.from_kafka(messages, "orders", ROW).select("name").collect()
    said = str(caught.value)
    assert "message 101 of partition 2 of topic 'orders' is not a row of id bigint, name string: it has " in said
    assert "watersmeet.spark.poisoned" in said and ("no value" in said) == (value is None)


def test_what_is_skipped_and_what_is_put_aside_are_all_messages(spark: Any) -> None:
    values = [value for pair in zip(BAD, [*GOOD] * 3, strict=False) for value in pair]
    messages = _messages(spark, values)
    kept = wms.from_kafka(messages, "orders", ROW, poisoned="skip").collect()
    aside = wms.poisoned(messages, ROW)
    assert aside.columns == ["key", "value", "headers"], "with a topic, the sink would send them back"
    told = [({head.key: bytes(head.value).decode() for head in row.headers}, row.value) for row in aside.collect()]
    assert [value for _, value in told] == [*BAD]
    assert all((head["watersmeet-topic"], head["watersmeet-partition"]) == ("orders", "2") for head, _ in told)
    offsets = sorted([row.origin % 2**48 for row in kept] + [int(head["watersmeet-offset"]) for head, _ in told])
    assert offsets == [*range(100, 100 + len(values))]


def test_headers_of_poisoned_messages_stay(spark: Any) -> None:
    kept = fn.array(fn.struct(fn.lit("trace").alias("key"), fn.encode(fn.lit("t1"), "UTF-8").alias("value")))
    messages = _messages(spark, [b"x"])
    [one] = wms.poisoned(messages.withColumn("headers", kept), ROW).collect()
    assert [head.key for head in one.headers] == [
        "trace",
        "watersmeet-topic",
        "watersmeet-partition",
        "watersmeet-offset",
    ]
    none = fn.lit(None).cast("array<struct<key:string,value:binary>>")
    [one] = wms.poisoned(messages.withColumn("headers", none), ROW).collect()
    assert len(one.headers) == 3


def test_other_formats_are_read_by_a_function(spark: Any) -> None:
    def read(value: Any) -> Any:
        parts = fn.split(value.cast("string"), ";")
        row = fn.struct(parts[0].cast("long").alias("id"), parts[1].alias("name"))
        return fn.when(fn.size(parts) == 2, row)

    messages = _messages(spark, [b"1;one", b"two", b"3;three"])
    found = wms.from_kafka(messages, "orders", read, poisoned="skip").collect()
    assert [(row.id, row.name, row.origin % 2**48) for row in found] == [(1, "one", 100), (3, "three", 102)]
    assert [bytes(row.value) for row in wms.poisoned(messages, read).collect()] == [b"two"]
    with pytest.raises(wm.SpecError, match="must make structs of them, not bigint"):
        wms.from_kafka(messages, "orders", lambda value: fn.length(value).cast("long"))


def test_every_result_has_an_id_of_its_own(spark: Any) -> None:
    left = wms.from_kafka(_messages(spark, [b'{"id": %d}' % (i % 5) for i in range(20)], "a", 0), "a", "id long")
    values = [b'{"id": %d, "note": "n"}' % (i % 6) for i in range(18)]
    right = wms.from_kafka(_messages(spark, values, "b", 32_767), "b", "id long, note string")
    full = wms.join(left, right, on="id", how="full", partitions=2, memory="4 MiB")
    messages = wms.to_kafka(full)
    assert messages.columns == ["key", "value", "headers"]
    found = messages.collect()
    ids = [row.key for row in found]
    assert len(set(ids)) == len(ids) == 20 * 3 + 3
    # The same rows have the same ids: the one of the first of either input with key 0, and of one without a partner.
    assert {"0.100-32767.100", "0.100-32767.106", "-32767.105"} <= set(ids)
    assert all(bytes(row.headers[0].value).decode() == row.key for row in found)
    assert json.loads(found[ids.index("-32767.105")].value) == {"id": 5, "note": "n"}
    semi = wms.join(left, right, on="id", how="semi", partitions=2, memory="4 MiB")
    with pytest.raises(wm.SpecError, match="no column 'origin_right' of origins"):
        wms.to_kafka(semi)
    keyed = wms.to_kafka(semi, origins=["origin"], key="id").collect()
    assert {row.key for row in keyed} == {"0", "1", "2", "3", "4"}
    assert {bytes(row.headers[0].value).decode() for row in keyed} == {f"0.{100 + i}" for i in range(20)}
    several = wms.to_kafka(full, key=["id", "note"]).collect()
    assert json.loads(several[0].key).keys() == {"id", "note"}


def test_messages_that_an_origin_would_not_name_are_refused(spark: Any) -> None:
    with pytest.raises(PySparkException, match="of topic 'orders' was expected, and one of 'other' came"):
        wms.from_kafka(_messages(spark, [b"{}"], "other"), "orders", ROW).collect()
    far = _messages(spark, [b"{}"]).withColumn("offset", fn.lit(1 << 48).cast("long"))
    with pytest.raises(PySparkException, match=f"offset {1 << 48} of topic 'orders' is beyond"):
        wms.from_kafka(far, "orders", ROW).collect()


def test_mistakes_are_sentences(spark: Any) -> None:
    messages = _messages(spark, [b"{}"])
    with pytest.raises(wm.SpecError, match="poisoned must be 'error' or 'skip', not 'drop'"):
        wms.from_kafka(messages, "orders", ROW, poisoned="drop")
    with pytest.raises(wm.SpecError, match="would have two columns 'id'; name the other one"):
        wms.from_kafka(messages, "orders", ROW, origin="id")
    with pytest.raises(wm.SpecError, match="would have two columns 'at'"):
        wms.from_kafka(messages, "orders", ROW, origin="at", time="at")
    with pytest.raises(wm.SpecError, match="these have no offset, partition; they have key, value"):
        wms.from_kafka(messages.drop("partition", "offset"), "orders", ROW)
    with pytest.raises(wm.SpecError, match="is a list of columns"):
        wms.from_kafka(messages, "orders", "bigint")
    rows = wms.from_kafka(messages, "orders", ROW)
    with pytest.raises(wm.SpecError, match="key column 'nr' is not in the results"):
        wms.to_kafka(rows, origins=["origin"], key="nr")
    with pytest.raises(wm.SpecError, match="results without origins have no ids"):
        wms.to_kafka(rows, origins=[])


def test_a_message_is_parsed_once(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for poisoned in ("error", "skip"):
        wms.from_kafka(_messages(spark, [*GOOD]), "orders", ROW, poisoned=poisoned).where("id > 3").explain("simple")
        assert capsys.readouterr().out.count("from_json(") == 1
