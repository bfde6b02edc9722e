"""The rows of every input, read out of the state of as-of joins and joins of several inputs, and shown. No Spark."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark.divided_streams import cut
from spark.test_repartition_asof import Stream as AsofStream
from spark.test_repartition_many import CHAIN, ONE, STAR, ManyStream
from watersmeet.checks.canonical import canonical_rows
from watersmeet.cli.main import run
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.many_windows import parse_many_windows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import parse_on
from watersmeet.spark.offline.opened import OpenedState, figures
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.offline.state_source import rows_of
from watersmeet.spark.state.described import described
from watersmeet.spark.state.directory import FORMAT
from watersmeet.spark.state.files import checked_json

NAMES = ("r", "s", "t")


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes most of the time, and nothing here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _three(type_: pa.DataType) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(2)
    tables = []
    for number, name in enumerate(NAMES):
        keys = pa.array([None if i % 13 == 0 else int(each) for i, each in enumerate(rng.integers(0, 30, 150))])
        columns = {"id": keys.cast(type_), "b": rng.integers(0, 25, 150), name: [f"{name} {i}" for i in range(150)]}
        tables.append(pa.record_batch({**columns, "ref": columns["id"]} if number == 2 else columns))
    return tables


def _filled(place: Path, spec: MultiSpec, tables: list[pa.RecordBatch], groups: int) -> Path:
    stream = ManyStream(place, spec, groups)  # type: ignore[arg-type]
    for number, of_batch in enumerate(zip(*(cut(table, 4) for table in tables), strict=True)):
        stream.batch(number, list(of_batch))
    return place


def _read(rows: StateRows, **told: Any) -> Counter[Any]:
    return Counter(row for batch in rows.read(**told) for row in canonical_rows(batch))


def _of(table: pa.RecordBatch, rows: StateRows) -> Counter[Any]:
    return Counter(canonical_rows(table.select(rows.schema.names)))


@pytest.mark.parametrize("on", [ONE, CHAIN, STAR], ids=["one", "chain", "star"])
@pytest.mark.parametrize("type_", [pa.int64(), pa.string()], ids=str)
def test_every_row_of_every_input_is_read_once(on: list[str], type_: pa.DataType, tmp_path: Path) -> None:
    tables = _three(type_)
    spec = MultiSpec.of(dict(zip(NAMES, (table.schema for table in tables), strict=True)), on)
    state = _filled(tmp_path / "state", spec, tables, 4)
    for groups in (4, 2):
        repartition(state, groups)
        for name, table in zip(NAMES, tables, strict=True):
            rows = StateRows(OpenedState(state), name)
            # A row whose key is NULL meets nobody, and is not kept.
            joined = {column for each in spec.attributes[NAMES.index(name)] for column in [each.column]}
            for column in joined:
                table = table.filter(table.column(column).is_valid())
            assert rows.schema.names == [each for each in table.schema.names if each in rows.schema.names]
            assert {name, *joined} <= set(rows.schema.names)
            assert _read(rows) == _of(table, rows), (name, groups)
            some = StateRows(OpenedState(state), name, "b = 7")
            assert _read(some) == _of(table.filter(pa.compute.equal(table["b"], 7)), some)
    with pytest.raises(SpecError, match=r"'left' is no input of the join in .*; it has r, s, t"):
        StateRows(OpenedState(state), "left")


def test_rows_of_several_inputs_in_windows_are_read_as_long_as_they_are_remembered(tmp_path: Path) -> None:
    tables = [table.append_column("at", pa.array(range(table.num_rows))) for table in _three(pa.string())]
    window = parse_many_windows(1_000, NAMES, "at")
    inputs = dict(zip(NAMES, (table.schema for table in tables), strict=True))
    spec = MultiSpec.of(inputs, CHAIN, window=window)
    state = _filled(tmp_path / "state", spec, tables, 4)
    for name, table in zip(NAMES, tables, strict=True):
        rows = StateRows(OpenedState(state), name)
        for each in spec.attributes[NAMES.index(name)]:
            table = table.filter(table.column(each.column).is_valid())
        assert _read(rows) == _of(table, rows), name
    told = figures(OpenedState(state))
    assert all(len(group["rows"]) == len(NAMES) for group in told["by group"])
    # s is sent by both of its values, and lies in one group; the others are copied.
    assert told["rows"][1] == sum(each.num_rows for each in StateRows(OpenedState(state), "s").read())


def test_the_state_of_three_inputs_is_shown_with_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    tables = _three(pa.int64())
    spec = MultiSpec.of(dict(zip(NAMES, (table.schema for table in tables), strict=True)), ONE)
    state = str(_filled(tmp_path / "state", spec, tables, 2))
    assert run(["state", state, "show"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name} rows" in shown for name in NAMES), shown
    assert run(["state", state, "show", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(each["rows"]) for each in told["by group"]] == [3, 3]
    assert told["rows"] == [sum(of) for of in zip(*(each["rows"] for each in told["by group"]), strict=True)]
    assert f"{' + '.join(map(str, told['rows']))} rows" in shown
    assert run(["state", state, "read", "--input", "t", "--where", "id = 7", "-o", str(tmp_path / "t.csv")]) == 0
    capsys.readouterr()
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 1 + tables[2]["id"].to_pylist().count(7) > 1
    rows = rows_of({"path": state, "input": "t", "where": "id = 7"})
    assert sum(batch.num_rows for batch in rows.read()) == tables[2]["id"].to_pylist().count(7)
    with pytest.raises(SpecError, match="either side or input"):
        rows_of({"path": state, "input": "t", "side": "left"})


def test_rows_that_are_not_in_runs_are_refused(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "ts": pa.int64()})
    spec = MultiSpec.of(dict.fromkeys(NAMES, schema), ONE, window=parse_many_windows(10, NAMES, "ts"))
    told = {"groups": 1, "query": "query", "described": described("multijoin", spec, "mjoin")}
    (tmp_path / "state.json").write_bytes(checked_json({"format": FORMAT, **told}))
    with pytest.raises(SnapshotError, match=r"wms\.multijoin by 'mjoin', whose rows are not all in runs"):
        StateRows(OpenedState(tmp_path), "r")


@pytest.mark.parametrize("type_", [pa.int64(), pa.string()], ids=str)
def test_rows_of_an_asof_join_are_those_that_wait_and_those_that_may_be_asked_for(
    type_: pa.DataType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(5)
    tables = []
    for name, rows in (("l", 240), ("r", 400)):
        ids = pa.array(rng.integers(0, 12, rows)).cast(type_)
        tables.append(pa.record_batch({"id": ids, "t": np.sort(rng.integers(0, 900, rows)), name: np.arange(rows)}))
    spec = AsofSpec(tables[0].schema, tables[1].schema, parse_on("id"), "left", times=parse_asof("t", lateness=200))
    stream = AsofStream(tmp_path / "state", spec, 3, memory=1 << 20)
    answered: list[int] = []
    for number, of_batch in enumerate(zip(*(cut(table, 4) for table in tables), strict=True)):
        for out in stream.batch(number, list(of_batch)):
            answered += out.column("l").to_pylist()
    state = OpenedState(tmp_path / "state")
    waiting = tables[0].filter(pa.array([number not in set(answered) for number in range(240)]))
    left = StateRows(state, "left")
    assert _read(left) == _of(waiting, left)
    assert len(answered) > 50 and waiting.num_rows > 25
    right = StateRows(state, "right")
    kept = _read(right)
    assert not kept - _of(tables[1], right)
    newest = tables[1].filter(pa.compute.greater(tables[1]["t"], 700))
    assert not _of(newest, right) - kept, "what may still be asked for is there"
    for side, every in (("left", waiting), ("right", None)):
        some = StateRows(state, side, "id = 3")
        assert len(some.groups()) == 1
        found = [row for batch in some.read() for row in batch.to_pylist()]
        assert found and all(str(row["id"]) == "3" for row in found)
        assert every is None or len(found) == [str(each) for each in every["id"].to_pylist()].count("3")
    assert run(["state", str(tmp_path / "state"), "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [waiting.num_rows, kept.total()]
