"""State seen from outside: shown, read, checked, divided anew under a running query's feet. With Spark and without."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.divided_streams import Stream, cut
from spark.frames import KEYS, random_frames
from spark.test_streams import Streams
from watersmeet.checks.canonical import canonical_rows
from watersmeet.cli.main import run
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.spec import JoinSpec, band, parse_on
from watersmeet.core.windows import WindowJoinSpec, age, landmark, parse_windows
from watersmeet.spark.offline.opened import OpenedState
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.state.described import described, spec_of
from watersmeet.spark.task.placement import Placement


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _tables(rows: int = 400) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(8)
    times = pa.array(np.sort(rng.integers(0, 900, rows)) * 10**6, pa.timestamp("us", "UTC"))
    return [
        pa.record_batch({"id": rng.integers(0, 50, rows), "ts": times, name: [f"{name} {i}" for i in range(rows)]})
        for name in ("a", "b")
    ]


def _filled(place: Path, spec: JoinSpec, tables: list[pa.RecordBatch], groups: int = 3) -> Path:
    stream = Stream(place, spec, groups)
    for number, of_batch in enumerate(zip(*(cut(table, 4) for table in tables), strict=True)):
        stream.batch(number, list(of_batch))
    return place


def _rows(batches: Any) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch))


def test_specs_are_told_whole() -> None:
    left = pa.schema({"id": pa.decimal128(9, 2), "ts": pa.timestamp("us", "UTC"), "tags": pa.list_(pa.string())})
    for window in ("10 min", ("1 min", landmark("1 day")), age("1 s", "5 s")):
        slide = "1 s" if window == "10 min" else None
        windows = parse_windows(window, "ts", slide=slide, lateness="2 s", late="drop", idle=30, emit="final")
        spec = WindowJoinSpec(left, left, parse_on("id"), "left", suffixes=("_l", "_r"), window=windows)
        told = json.loads(json.dumps(described("window_join", spec, "confluence", (("delay", 2),))))
        assert spec_of(told) == spec
        assert spec_of(told).fingerprint == spec.fingerprint
    spec = JoinSpec(left, left, (*parse_on("id"), band("ts", timedelta(seconds=1))), "semi")
    assert spec_of(json.loads(json.dumps(described("join", spec, "confluence")))) == spec
    with pytest.raises(SnapshotError, match=r"what wms\.multijoin keeps cannot be looked into"):
        spec_of({"verb": "multijoin"})


def test_rows_of_a_side_are_all_there_and_found_by_their_keys(tmp_path: Path) -> None:
    tables = _tables()
    state = _filled(tmp_path / "state", JoinSpec(tables[0].schema, tables[1].schema, parse_on("id")), tables)
    for side, table in zip(("left", "right"), tables, strict=True):
        for groups in (3, 5):
            repartition(state, groups)
            rows = StateRows(OpenedState(state), side)
            assert _rows(rows.read()) == Counter(canonical_rows(table))
            assert rows.schema == table.schema
            wanted = table.filter(pa.compute.equal(table["id"], 7))
            some = StateRows(OpenedState(state), side, "id = 7")
            assert len(some.groups()) == 1
            assert _rows(some.read()) == Counter(canonical_rows(wanted))
            assert wanted.num_rows
    since = "ts >= '1970-01-01 00:05:00Z' and id != 7 and a is not null"
    found = _rows(StateRows(OpenedState(state), "left", since).read())
    expected = Counter(
        row for row, values in zip(canonical_rows(tables[0]), tables[0].to_pylist(), strict=True)
        if values["ts"].timestamp() >= 300 and values["id"] != 7
    )  # fmt: skip
    assert found == expected
    for where, told in [
        ("id", "is not understood; write 'column = value'"), ("b = 3", "column 'b' is not kept by the join"),
        ("id = seven", "'seven' is no value of column 'id'"),
    ]:  # fmt: skip
        with pytest.raises(SpecError, match=told):
            StateRows(OpenedState(state), "left", where)


def test_a_state_is_shown_read_and_checked_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tables = _tables()
    windows = parse_windows("5 min", "ts")
    spec = WindowJoinSpec(tables[0].schema, tables[1].schema, parse_on("id"), "left", window=windows)
    state = str(_filled(tmp_path / "state", spec, tables))
    assert run(["state", state, "show"]) == 0
    shown = capsys.readouterr().out
    assert "wms.window_join on id = id, left, by confluence" in shown
    assert "timestamp[us, tz=UTC]" in shown
    assert "watermarks  left 1970-01-01 00:14:" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert run(["state", state, "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["groups"] == 3 == len(told["by group"])
    assert sum(told["rows"]) == sum(sum(each["rows"]) for each in told["by group"]) > 100
    assert run(["state", state, "read", "--side", "left", "--where", "id = 7", "-o", str(tmp_path / "x.csv")]) == 0
    assert " rows in " in capsys.readouterr().err
    assert run(["state", state, "verify"]) == 0
    assert "all sound" in capsys.readouterr().out
    assert run(["state", state, "repartition", "--partitions", "4"]) == 0
    assert "start the query with partitions=4" in capsys.readouterr().out
    assert run(["state", state, "verify"]) == 0
    capsys.readouterr()
    assert run(["state", state, "read", "--side", "left", "--where", "nobody = 1"]) == 2
    assert "column 'nobody' is not kept by the join" in capsys.readouterr().err


def test_whatever_is_altered_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = _tables()
    spec = JoinSpec(tables[0].schema, tables[1].schema, parse_on("id"), "semi")
    state = _filled(tmp_path / "state", spec, tables, 2)
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.parent.name != "batches")
    checked = 0
    for path in files:
        before = path.read_bytes()
        if path.name == "state.json" or path.name.startswith("."):
            continue
        checked += 1
        for place in (len(before) // 3, len(before) - 1) if len(before) > 2 else ():
            if path.name.startswith("operator") and place == len(before) - 1:
                path.write_bytes(before[:-9])
            else:
                path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
            needed = run(["state", str(state), "verify"])
            told = "".join(capsys.readouterr())
            padding = needed == 0 and before[place] == 0 and path.name.startswith("operator")
            assert padding or (needed == 1 and path.name in told), (path, place, told)
        path.unlink()
        gone = run(["state", str(state), "verify"])
        told = "".join(capsys.readouterr())
        # Of a manifest that is gone nobody can tell: its batch may have been killed, or a later one stands for it.
        assert path.name.startswith("manifest") or (gone == 1 and (path.name in told or path.parent.name in told)), (
            path,
            told,
        )
        path.write_bytes(before)
    assert checked > 8 and run(["state", str(state), "verify"]) == 0


def test_spark_sends_rows_where_we_say(spark: Any) -> None:
    from pyspark.sql import functions as fn

    from watersmeet.spark.plan.grouping import group_of, grouping_key

    rng = np.random.default_rng(4)
    frames = random_frames(spark, rng, list(KEYS), (120, 120))
    names = [f"k{i}" for i in range(len(KEYS))]
    joins = [[name] for name in names] + [["k0", "k7", "k3"]]
    types = {name: [frame.schema[name].dataType for frame in frames] for name in names}
    tables = []
    for frame in frames:
        groups = [group_of([grouping_key(fn.col(key), types[key]) for key in keys], 13) for keys in joins]
        tables.append(frame.select(*names, *(each.alias(f"g{i}") for i, each in enumerate(groups))).toArrow())
    schemas = [
        pa.schema([(name, _as_spark_has_it(table.schema.field(name).type)) for name in names]) for table in tables
    ]
    for number, keys in enumerate(joins):
        placement = Placement(JoinSpec(*schemas, parse_on(keys)), by_id=True)
        for side, table in enumerate(tables):
            own = [table[key].combine_chunks().cast(schemas[side].field(key).type) for key in keys]
            ours = placement.groups(own, side, 13)
            # A key that is NULL meets nobody, wherever its row is.
            known = np.logical_and.reduce([np.asarray(key.is_valid()) for key in own])
            assert known.sum() > 60
            assert (ours[known] == table[f"g{number}"].to_numpy()[known]).all(), (list(KEYS)[number], side)


def _as_spark_has_it(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) and type_.tz else type_


def test_a_query_goes_on_with_other_numbers_of_partitions(spark: Any, tmp_path: Path) -> None:
    from watersmeet.spark import register_state

    rng = np.random.default_rng(12)
    streams = Streams(spark, tmp_path, ["k0"])
    register_state(spark)
    for partitions in (2, 5, 3):
        streams.options["partitions"] = partitions
        frames = random_frames(spark, rng, ["string"], (150, 120), 9)
        frames = [frame.select("k0", f"{'lr'[side]}_number") for side, frame in enumerate(frames)]
        streams.add(*frames)
        if partitions != 2:
            done = repartition(tmp_path / "state", partitions)
            assert done.rows > 200
        if partitions == 3:  # what Spark had not noted as done is carried out once more, in other groups
            last = max(int(each.name) for each in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
            for name in (str(last), f".{last}.crc"):
                (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
        streams.run()
        assert streams.found() == streams.expected()
    reader = spark.read.format("watersmeet-state").option("side", "right")
    kept = reader.load(str(tmp_path / "state"))
    right = streams.frames()[1].where("k0 is not null")
    assert sorted(map(str, kept.collect())) == sorted(map(str, right.collect()))
    key = right.first()["k0"]
    some = reader.option("where", f"k0 = '{key}'").load(str(tmp_path / "state"))
    assert some.count() == right.where(right["k0"] == key).count() > 0
    assert some.rdd.getNumPartitions() == 1
