"""From Kafka's messages to rows and back: which message a row came in, and which rows a result is made of.

```
messages ──from_kafka──▶ rows, origin ──a join──▶ results, origin, origin_right ──to_kafka──▶ key, value, headers
```

A message is named by its topic, partition and offset, as long as the topic is there. So a result of a join is named by
the messages that its rows came in. Whoever finds it, in whichever attempt, batch or run, finds the same name, and no
other result has it. That is the id that `to_kafka` gives to results: Kafka's sink may write a batch again after a
failure, and a reader who has seen an id drops what comes under it again.

An origin goes through the join as one number, eight bytes a row: the partition in the upper 15 bits, the offset in the
48 below. As text, `3.1042` is offset 1042 of partition 3, and `3.1042-0.17` a result of two rows; where a row has no
partner, the place is empty: `3.1042-`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ID_HEADER = "watersmeet-id"
"""The header of a message that names the result in it."""
_MESSAGE = ("topic", "partition", "offset")
"""What names a message; of one that was put aside, each is told in a header that begins with `watersmeet-`."""
_OFFSET_BITS = 48
_CORRUPT, _PARSED = "watersmeet_corrupt", "watersmeet_parsed"
_SHOWN = 80
"""Characters of a poisoned message that the error shows."""

Decode = str | st.StructType | Callable[[Column], Column]


def from_kafka(
    messages: DataFrame,
    topic: str,
    schema: Decode,
    *,
    poisoned: str = "error",
    origin: str = "origin",
    time: str | None = None,
) -> DataFrame:
    """Rows out of the messages of a topic, each with its origin.

        messages = spark.readStream.format("kafka").option("subscribe", "orders").options(...).load()
        orders = wms.from_kafka(messages, "orders", "order_id long, amount double")

    :param messages: what Spark's Kafka source reads, as a stream or a batch, of this topic alone: a message of another
        ends the query, for its offset would be taken for one of this.
    :param schema: the columns of a JSON object: what it lacks is NULL, what it has besides is ignored. Or, for other
        formats, a function that makes a struct of the column of values, and NULL of those that it cannot read.
    :param poisoned: what becomes of a message that is not of this schema, or has no value: `"error"` ends the query
        with a sentence that names it; `"skip"` leaves it out, and `poisoned` is a stream of those.
    :param origin: the column that says which message a row came in. Where both inputs of a join have it, that of the
        right one gets the suffix: `origin_right`.
    :param time: what to call the time of the message, if it is wanted.
    """
    if poisoned not in ("error", "skip"):
        raise SpecError(f"poisoned must be 'error' or 'skip', not {poisoned!r}")
    parsed = _parsed(messages, schema)
    columns = [field for field in _struct(parsed).fields if field.name != _CORRUPT]
    added = [origin, *([time] if time is not None else [])]
    for name in added:
        if [field.name for field in columns].count(name) + added.count(name) > 1:
            raise SpecError(f"topic {topic!r} would have two columns {name!r}; name the other one by origin= or time=")
    wanted = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns)
    for_bad = fn.raise_error(_sentence(wanted)) if poisoned == "error" else fn.lit(None)
    rows = fn.when(_is_bad(parsed), for_bad).otherwise(fn.array(fn.col(_PARSED)))
    carried = [_origin(topic).alias(origin), *([] if time is None else [fn.col("timestamp").alias(time)])]
    # A generator and no filter: Spark would put a filter below the parsing, and parse every message twice.
    return parsed.select(fn.inline(rows), *carried).drop(_CORRUPT)


def poisoned(messages: DataFrame, schema: Decode) -> DataFrame:
    """The messages that `from_kafka` skips, as Kafka's sink takes them: to be put aside, by a query of their own.

        aside = wms.poisoned(messages, "order_id long, amount double")
        aside.writeStream.format("kafka").option("topic", "orders-poisoned").options(...).start()

    Key, value and, if they were read, headers are those of the message. Headers `watersmeet-topic`,
    `watersmeet-partition` and `watersmeet-offset` say where it is.
    """
    parsed = _parsed(messages, schema)
    told = fn.array(*(_header(f"watersmeet-{name}", fn.col(name)) for name in _MESSAGE))
    if "headers" in messages.columns:
        told = fn.concat(fn.coalesce(fn.col("headers"), fn.array().cast(_HEADERS)), told)
    return parsed.where(_is_bad(parsed)).select("key", "value", told.alias("headers"))


def to_kafka(
    results: DataFrame,
    *,
    origins: Sequence[str] = ("origin", "origin_right"),
    key: str | Sequence[str] | None = None,
) -> DataFrame:
    """Results as Kafka's sink takes them: JSON objects, each with an id that it has however often it is written.

        wms.to_kafka(joined).writeStream.format("kafka").option("topic", "matched").options(...).start()

    The id is in the header `watersmeet-id`, and is the key of the message unless columns are named for that.

    :param origins: the columns that say which message each row of a result came in: those of all inputs that rows come
        from, for otherwise several results would have one id. Of a semi or anti join that is `["origin"]`. They are
        not part of the value.
    :param key: a column whose value as text, or several whose values as a JSON object, are the messages' keys.
    """
    kinds = {field.name: field.dataType for field in results.schema.fields}
    for name in origins:
        if kinds.get(name) != st.LongType():
            raise SpecError(
                f"the results have no column {name!r} of origins, as from_kafka adds it; name one of each input "
                f"whose rows are in the results: origins=[...] (they have {', '.join(results.columns)})"
            )
    names = [key] if isinstance(key, str) else list(key or ())
    for name in names:
        if name not in kinds:
            raise SpecError(f"key column {name!r} is not in the results; they have {', '.join(results.columns)}")
    if not origins:
        raise SpecError("results without origins have no ids; name at least one column: origins=['origin']")
    ids = fn.concat_ws("-", *(fn.coalesce(_as_text(fn.col(f"`{name}`")), fn.lit("")) for name in origins))
    kept = [fn.col(f"`{name}`") for name in results.columns if name not in origins]
    value = fn.to_json(fn.struct(*kept), {"ignoreNullFields": "false"})
    if not names:
        keys = ids
    elif isinstance(key, str):
        keys = fn.col(f"`{key}`").cast("string")
    else:
        keys = fn.to_json(fn.struct(*(f"`{name}`" for name in names)), {"ignoreNullFields": "false"})
    return results.select(keys.alias("key"), value.alias("value"), fn.array(_header(ID_HEADER, ids)).alias("headers"))


_HEADERS = "array<struct<key:string,value:binary>>"


def _header(name: str, value: Column) -> Column:
    return fn.struct(fn.lit(name).alias("key"), fn.encode(value.cast("string"), "UTF-8").alias("value"))


def _parsed(messages: DataFrame, schema: Decode) -> DataFrame:
    """The messages with what was read of each, as a struct that is NULL, or says so, where it could not be read."""
    missing = {"value", "timestamp", *_MESSAGE} - set(messages.columns)
    if missing:
        raise SpecError(
            f"messages are what Spark's Kafka source reads, and these have no {', '.join(sorted(missing))}; they have "
            f"{', '.join(messages.columns)}"
        )
    if isinstance(schema, str | st.StructType):
        columns = st.DataType.fromDDL(schema) if isinstance(schema, str) else schema
        if not isinstance(columns, st.StructType):
            raise SpecError(
                f"the schema of messages is a list of columns, such as 'id long, at timestamp', not {schema!r}"
            )
        told = st.StructType([*columns.fields, st.StructField(_CORRUPT, st.StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        read = fn.from_json(fn.col("value").cast("string"), told, options)
    else:
        read = schema(fn.col("value"))
    parsed = messages.select("*", read.alias(_PARSED))
    _struct(parsed)
    return parsed


def _struct(parsed: DataFrame) -> st.StructType:
    found = parsed.schema[_PARSED].dataType
    if not isinstance(found, st.StructType):
        raise SpecError(f"the function that reads values must make structs of them, not {found.simpleString()}")
    return found


def _is_bad(parsed: DataFrame) -> Column:
    """Whether a message could not be read."""
    nothing = fn.col(_PARSED).isNull()
    if _CORRUPT not in _struct(parsed).names:
        return nothing
    return nothing | fn.col(_PARSED)[_CORRUPT].isNotNull()


def _sentence(wanted: str) -> Column:
    """What is wrong with a message that could not be read."""
    shown = fn.coalesce(
        fn.concat(fn.lit("'"), fn.substring(fn.col("value").cast("string"), 1, _SHOWN), fn.lit("'")), fn.lit("no value")
    )
    return fn.concat(
        fn.lit("message "), fn.col("offset"), fn.lit(" of partition "), fn.col("partition"), fn.lit(" of topic '"),
        fn.col("topic"), fn.lit(f"' is not a row of {wanted}: it has "), shown,
        fn.lit(
            "; correct what sends such messages, or take poisoned='skip' and put them aside with "
            "watersmeet.spark.poisoned"
        ),
    )  # fmt: skip


def _origin(topic: str) -> Column:
    """Partition and offset as one number; an error for a message that this would not name."""
    packed = fn.shiftleft(fn.col("partition").cast("long"), _OFFSET_BITS).bitwiseOR(fn.col("offset"))
    other = fn.concat(
        fn.lit(f"a message of topic '{topic}' was expected, and one of '"), fn.col("topic"),
        fn.lit("' came; read each topic by itself"),
    )  # fmt: skip
    large = fn.concat(
        fn.lit("offset "), fn.col("offset"), fn.lit(f" of topic '{topic}' is beyond what an origin can name")
    )
    named = (fn.col("offset") < 1 << _OFFSET_BITS) & (fn.col("partition") < 1 << 63 - _OFFSET_BITS)
    return (
        fn.when(fn.col("topic") != topic, fn.raise_error(other)).when(~named, fn.raise_error(large)).otherwise(packed)
    )


def _as_text(origin: Column) -> Column:
    offset = origin.bitwiseAND(fn.lit((1 << _OFFSET_BITS) - 1))
    return fn.concat(fn.shiftright(origin, _OFFSET_BITS), fn.lit("."), offset)
