"""The data source: the same offsets give the same rows, batches keep to their limit, silences and the end are told."""

from __future__ import annotations

import datetime as dt
import os
import pickle
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark.frames import rows_in, rows_of
from watersmeet.core.errors import SourceError, SpecError
from watersmeet.sources.pace import ENDLESS, Pace
from watersmeet.spark import register
from watersmeet.spark.io.source import EVENT, ReplayedTable, ReplayReader, SourceOptions
from watersmeet.spark.plan.types import spark_schema

ROWS = 2500


def numbers(rows: int = ROWS) -> pa.Table:
    return pa.table({"id": range(rows), "name": [f"n{i % 7}" for i in range(rows)]})


def write(place: Path, kind: str) -> str:
    """Two files of one format; a glob for them."""
    table = numbers()
    for i, part in enumerate((table.slice(0, 900), table.slice(900))):
        path = place / f"part{i}.{kind}"
        if kind == "parquet":
            pq.write_table(part, path, row_group_size=400)
        elif kind == "arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, part.schema) as writer:
                writer.write_table(part, max_chunksize=333)
        elif kind == "arrows":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, part.schema) as writer:
                writer.write_table(part, max_chunksize=333)
        elif kind == "csv":
            pyarrow.csv.write_csv(part, path)
        else:
            path.write_text("".join(f'{{"id": {i}, "name": "n{i % 7}"}}\n' for i in part["id"].to_pylist()))
    return str(place / f"part*.{kind}")


def reader(**options: Any) -> ReplayReader:
    given = {name: str(value) for name, value in options.items()}
    source = ReplayedTable(given)
    found = source.streamReader(source.schema())
    assert isinstance(found, ReplayReader)
    return found


def rows_between(source: ReplayReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    """What the tasks read, each with a reader and a partition that were pickled."""
    parts = pickle.loads(pickle.dumps([*source.partitions(start, end)]))
    far = pickle.loads(pickle.dumps(source))
    return pa.Table.from_batches([batch for part in parts for batch in far.read(part)], source._rows.output)


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows", "csv", "ndjson", "generated"])
def test_the_same_offsets_give_the_same_rows(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"rows": 20_000, "keys": 50, "seed": 4, "skew": 1.1, "width": 3}
    rows, ids = (20_000, "number") if kind == "generated" else (ROWS, "id")
    if kind != "generated":
        options = {"path": write(tmp_path, kind), "rowsPerTask": 700}
    first = reader(**options)
    offsets = [first.initialOffset()]
    while len(offsets) < 2 or offsets[-1] != offsets[-2]:
        offsets.append(first.latestOffset(offsets[-1], ReadMaxRows(rows // 5 + 3)))
    assert [offset["rows"] for offset in offsets] == [*range(0, rows, rows // 5 + 3), rows, rows]
    pairs = list(pairwise(offsets))
    seen = [rows_between(first, *pair) for pair in pairs]
    everything = pa.concat_tables(seen)
    assert everything.num_rows == rows
    if kind != "generated":
        assert everything["id"].to_pylist() == list(range(ROWS))
        assert everything["name"].to_pylist() == numbers()["name"].to_pylist()
    again = reader(**options)  # another process, after a failure, and in another order
    for pair, found in reversed(list(zip(pairs, seen, strict=True))):
        assert rows_between(again, *pair).equals(found)
    again.commit(offsets[2])
    with_other_cuts = rows_between(again, {**offsets[0], "rows": 17}, {**offsets[0], "rows": rows - 5})
    assert with_other_cuts.equals(everything.slice(17, rows - 22))
    assert len(set(everything[ids].to_pylist())) > rows // 2


def test_another_table_under_the_same_name_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(numbers(), path)
    start = reader(path=path).initialOffset()
    pq.write_table(numbers(ROWS + 1), path)
    with pytest.raises(SourceError, match="is not the table that the query began with"):
        reader(path=path).latestOffset(start, ReadAllAvailable())


# -- pace and events ---------------------------------------------------------------------------------------------------


@settings(max_examples=settings().max_examples)
@given(
    rate=some.none() | some.floats(0.01, 1e6),
    burst=some.integers(1, 400),
    stalls=some.lists(some.tuples(some.integers(0, 3000), some.floats(0, 50)), max_size=4).map(sorted),
)
def test_a_row_is_ready_when_it_is_due_and_not_before(
    rate: float | None, burst: int, stalls: list[tuple[int, float]]
) -> None:
    pace = Pace(rate, burst, tuple(stalls))
    due = pace.due(np.arange(3000))
    assert (np.diff(due) >= 0).all()
    for row in range(0, 3000, 119):
        assert pace.ready(due[row]) > row
        before = due[row] * (1 - 1e-6) - 1e-6
        assert before < 0 or pace.ready(before) <= row
    assert due[-1] >= sum(seconds for after, seconds in stalls if -(-after // burst) * burst <= 2999 // burst * burst)


def test_ticks_while_it_is_silent_and_one_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("watersmeet.spark.io.source.time.time", lambda: clock[0])
    options = {"rows": 100, "rowsPerSecond": 10, "stalls": "50:3", "events": "true", "tickSeconds": 1}
    stream = reader(**options)
    offset = stream.initialOffset()
    told = []
    while "end" not in told:
        following = stream.latestOffset(offset, ReadMaxRows(15))
        found = rows_between(stream, offset, following)
        told += [row[EVENT] or "row" for row in found.to_pylist()]
        assert all(row["key"] is None for row in found.to_pylist() if row[EVENT])
        offset = following
        clock[0] += 0.5
        if len(told) == 60:  # started again somewhere: it goes on at the pace, not from its beginning
            stream = reader(**options)
    silence = told.index("tick")
    assert told[:silence] == ["row"] * 50
    assert Counter(told) == {"row": 100, "tick": told.count("tick"), "end": 1}
    assert told[-1] == "end"
    assert 2 <= told.count("tick") <= 4
    clock[0] += 1
    later = stream.latestOffset(offset, ReadMaxRows(15))
    assert rows_between(stream, offset, later)[EVENT].to_pylist() == ["tick"], "what is left to be done needs batches"
    stream.prepareForTriggerAvailableNow()
    clock[0] += 1
    assert stream.latestOffset(later, ReadMaxRows(15)) == later


def test_without_events_a_silent_stream_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.spark.io.source.time.time", lambda: 5.0)
    stream = reader(rows=10, rowsPerSecond=1)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(start, ReadAllAvailable())["rows"] == 10


def test_streams_that_begin_together_keep_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("watersmeet.spark.io.source.time.time", lambda: clock[0])
    early, late = (reader(rows=1000, rowsPerSecond=10, startsAt=102) for _ in range(2))
    start = early.initialOffset()
    assert early.latestOffset(start, ReadAllAvailable())["rows"] == 0
    clock[0] = 112
    assert [each.latestOffset(start, ReadAllAvailable())["rows"] for each in (early, late)] == [100, 100]


def test_a_stream_begins_when_a_file_appears(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = [100.0]
    monkeypatch.setattr("watersmeet.spark.io.source.time.time", lambda: clock[0])
    stream = reader(rows=1000, rowsPerSecond=10, startsAt=tmp_path / "begin", events="true")
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    clock[0] = 150
    ticked = stream.latestOffset(start, ReadAllAvailable())
    assert (ticked["rows"], ticked["ticks"]) == (0, 1), "there are batches before it begins"
    (tmp_path / "begin").touch()
    os.utime(tmp_path / "begin", (151, 151))
    clock[0] = 161
    assert stream.latestOffset(ticked, ReadAllAvailable())["rows"] == 100


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, said",
    [
        ({}, "needs either a path"),
        ({"path": "a.csv", "rows": "5"}, "needs either a path"),
        ({"path": "a.csv", "seed": "5"}, "option seed is for generated rows"),
        ({"rows": "many"}, "option rows is not understood: 'many'; give a whole number"),
        ({"rows": "5", "rowsPerSecond": "0"}, "rowsPerSecond must be more than 0"),
        ({"rows": "5", "rowsPerSecond": "fast"}, "option rowsPerSecond is not understood: 'fast'"),
        ({"rows": "5", "rowsPerBatch": "0"}, "give a whole number from 1 on"),
        ({"rows": "5", "events": "maybe"}, "give true or false"),
        ({"rows": "5", "stalls": "10"}, "give ROWS:SECONDS"),
        ({"rows": "5", "stalls": "10:1, 5:1"}, "stalls must be in the order of their rows"),
        ({"rows": "5", "columns": "a, b"}, "give four names"),
        ({"rows": "5", "startsAt": "soon"}, "give seconds since 1970, or the absolute path of a file"),
        ({"rows": "5", "speed": "9"}, "has no option 'speed'; it takes path, rows, "),
    ],
)
def test_bad_options_are_sentences(options: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        SourceOptions.parse(options)


def test_a_type_that_spark_lacks_is_named() -> None:
    with pytest.raises(SourceError, match=r"column 'gap' of a.arrow is of type month_day_nano_interval, which Spark"):
        spark_schema(pa.schema({"gap": pa.month_day_nano_interval()}), "a.arrow")


# -- on Spark ----------------------------------------------------------------------------------------------------------


def test_every_type_comes_through(spark: Any, tmp_path: Path) -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    columns = {
        "u8": pa.array([1, 255, None], pa.uint8()),
        "u64": pa.array([1, 2**64 - 1, None], pa.uint64()),
        "half": pa.array(np.array([0.5, -2.0, 7.0], np.float16)),
        "words": pa.array(["a", None, "a"]).dictionary_encode(),
        "large": pa.array(["a", "é", None], pa.large_string()),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "money": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
        "at": pa.array([dt.datetime(2024, 1, 1, 5, tzinfo=zone), None, None], pa.timestamp("ms", "Europe/Athens")),
        "wall": pa.array([dt.datetime(2024, 1, 1, 5), None, None], pa.timestamp("ns")),
        "day": pa.array([dt.date(2024, 1, 1), None, None], pa.date64()),
        "span": pa.array([dt.timedelta(seconds=5), None, None], pa.duration("s")),
        "tags": pa.array([["a", None], [], None], pa.large_list(pa.string())),
        "pair": pa.array([{"x": 1, "y": [1.5]}, None, {"x": None, "y": None}]),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int16())),
        "nothing": pa.nulls(3),
    }
    path = tmp_path / "types.arrow"
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    register(spark)
    frame = spark.read.format("watersmeet").load(str(path))
    found = frame.toArrow()
    expected = table.set_column(3, "words", columns["words"].dictionary_decode())
    assert [field.dataType.simpleString() for field in frame.schema][:3] == ["smallint", "decimal(20,0)", "float"]
    assert frame.count() == 3
    for name in table.schema.names:
        wanted = expected[name].to_pylist()
        if name == "map":
            wanted = [None if each is None else sorted(each) for each in wanted]
        assert found[name].to_pylist() == wanted, name


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_stream_of_files_on_spark(spark: Any, tmp_path: Path, kind: str) -> None:
    register(spark)
    path = write(tmp_path, kind)
    options = {"rowsPerBatch": "1000", "rowsPerTask": "300", "events": "true"}
    stream = spark.readStream.format("watersmeet").options(**options).load(path)
    assert stream.columns == ["id", "name", EVENT]
    seen: list[pa.Table] = []
    writer = stream.writeStream.foreachBatch(lambda frame, _: seen.append(frame.toArrow()))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [each.num_rows for each in seen] == [1000, 1000, 501]
    found = pa.concat_tables(seen)
    assert found[EVENT].to_pylist().count("end") == 1
    ordinary = found.filter(pa.compute.is_null(found[EVENT])).drop_columns(EVENT)
    assert rows_in(ordinary) == rows_in(numbers())
    assert rows_of(spark.read.format("watersmeet").load(path)) == rows_in(numbers())


def test_what_is_wrong_is_said_when_the_stream_is_made(spark: Any, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(Exception, match="option rowsPerBatch is not understood: '-3'"):
        spark.readStream.format("watersmeet").option("rows", 5).option("rowsPerBatch", -3).load()
    with pytest.raises(Exception, match=r"SourceError: .*nowhere.parquet does not exist"):
        spark.readStream.format("watersmeet").load(str(tmp_path / "nowhere.parquet"))


def test_endless_is_more_than_any_table() -> None:
    assert reader(rows=10).latestOffset(reader(rows=10).initialOffset(), ReadMaxRows(ENDLESS))["rows"] == 10
