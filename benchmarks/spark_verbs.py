"""Who else joins on Spark: by windows, several inputs, and with a table; ours, and what Spark has for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

MEMORY = "512 MiB"
PARTITIONS = 2
WINDOW = 200
"""Seconds that the times of two rows may differ by."""
SKEWED_MS = 400
"""Milliseconds, where one key has many rows: about 240 of the other side at the usual size."""
CLUSTER_WINDOW = 60
"""Seconds, where the load of groups is uneven."""
CLUSTER_GROUPS = 16
MANY = ("a", "b", "c", "d")
MANY_SCHEMA = "p long, q long, number long, watersmeet_event string"
ONE_KEY = ("p", "p")
CHAIN = ("q", "p")
"""A row's column, and that of the next input which it has to be equal to."""
_TIMED = "id long, at timestamp, number long"
_STREAM = "id long, number long, measure double"


def outer(spark: Any, who: str, place: Path, files: int) -> Any:
    """The same, and left rows without a partner."""
    return windowed(spark, who, place, files, how="left")


def windowed(spark: Any, who: str, place: Path, files: int, how: str = "inner") -> Any:
    """Rows of one key whose times differ by `WINDOW` seconds at most; they come in the order of their times."""
    from pyspark.sql import functions as fn

    from watersmeet.spark import window_join

    left, right = (_files(spark, _TIMED, place / side, files) for side in ("left", "right"))
    if who == "ours":
        span = f"{WINDOW} s"
        given = {"memory": MEMORY, "state": place / "state", "how": how}
        return window_join(left, right, on="id", time="at", window=span, **given)
    other = right.withColumnsRenamed({"id": "id_right", "at": "at_right", "number": "number_right"})
    span = f"interval {WINDOW} seconds"
    close = fn.expr(f"id = id_right and at_right >= at - {span} and at_right <= at + {span}")
    late = "1 second"
    return left.withWatermark("at", late).join(other.withWatermark("at_right", late), close, how).drop("id_right")


def skewed(spark: Any, who: str, place: Path, files: int) -> Any:
    """Rows of one key whose times are close, in two tasks: with work that moves between them, and without."""
    from watersmeet.spark import parallel_join, window_join

    left, right = (_files(spark, _TIMED, place / side, files) for side in ("left", "right"))
    given: dict[str, Any] = {"time": "at", "window": f"{SKEWED_MS} ms", "memory": MEMORY, "state": place / "state"}
    if who in ("split", "static"):
        return window_join(left, right, on="id", partitions=PARTITIONS, split=who == "split", **given)
    return parallel_join(left, right, on="id", slots=(PARTITIONS, PARTITIONS), reorganize="2 s", **given)


def hot(spark: Any, who: str, place: Path, files: int) -> Any:
    """Rows of one key, all of them kept, in two tasks: with hot keys split, and without."""
    from watersmeet.spark import join

    left, right = (_files(spark, _TIMED, place / side, files) for side in ("left", "right"))
    return join(
        left, right, on="id", partitions=PARTITIONS, memory=MEMORY, state=place / "state", split=who == "split"
    )  # fmt: skip


def clustered(spark: Any, who: str, place: Path, files: int) -> Any:
    """Rows of one key whose times are close, in two slots: groups move or not, and are tuned inside or not."""
    from watersmeet import Grain
    from watersmeet.spark import parallel_join

    moves, tuned = who.split()
    left, right = (_files(spark, _TIMED, place / side, files) for side in ("left", "right"))
    options = {} if tuned == "tuned" else {"grain": Grain(partitions=1, bucket_rows=1 << 31)}
    return parallel_join(
        left, right, on="id", time="at", window=f"{CLUSTER_WINDOW} s", slots=(PARTITIONS, PARTITIONS),
        groups=CLUSTER_GROUPS, reorganize="2 s" if moves == "moving" else "1 day", memory=MEMORY, state=place / "state",
        **options,
    )  # fmt: skip


def on_one_key(spark: Any, who: str, place: Path, files: int) -> Any:
    """Four inputs that share a key."""
    return _many(spark, who, place, files, ONE_KEY)


def chained(spark: Any, who: str, place: Path, files: int) -> Any:
    """Four inputs, each joined with the next on a key of their own."""
    return _many(spark, who, place, files, CHAIN)


def _many(spark: Any, who: str, place: Path, files: int, ends: tuple[str, str]) -> Any:
    from watersmeet.spark import multijoin

    inputs = {name: _files(spark, MANY_SCHEMA, place / name, files) for name in MANY}
    pairs = list(pairwise(MANY))
    if who == "ours":
        on = [f"{one}.{ends[0]} = {other}.{ends[1]}" for one, other in pairs]
        return multijoin(inputs, on=on, memory=MEMORY, state=place / "state")
    rows = {
        name: frame.where("watersmeet_event is null").select(
            *(frame[each].alias(f"{each}_{name}") for each in ("p", "q", "number"))
        )
        for name, frame in inputs.items()
    }

    def add(joined: Any, pair: tuple[str, str]) -> Any:
        one, other = pair
        return joined.join(rows[other], joined[f"{ends[0]}_{one}"] == rows[other][f"{ends[1]}_{other}"])

    return reduce(add, pairs, rows[MANY[0]])


def looked_up(spark: Any, who: str, place: Path, files: int) -> Any:
    """A stream and a table: the relation of ours, or the same rows as Parquet for a join of stream and table."""
    from watersmeet.spark import lookup_join

    stream = _files(spark, _STREAM, place / "left", files)
    tables = place.parent.parent / "table"
    if who == "ours":
        memory = int((tables / "memory").read_text())
        return lookup_join(stream, tables / "relation", memory=memory, state=place / "state")
    return stream.join(spark.read.parquet(str(tables / "parquet")), "id")


VERBS: Mapping[str, Callable[[Any, str, Path, int], Any]] = {
    "window": windowed,
    "outer": outer,
    "skew": skewed,
    "hot": hot,
    "cluster": clustered,
    "one-key": on_one_key,
    "chain": chained,
    "lookup": looked_up,
}
"""By the first word of a contestant's name; the second says who it is."""


def _files(spark: Any, schema: str, place: Path, files: int) -> Any:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(place))
