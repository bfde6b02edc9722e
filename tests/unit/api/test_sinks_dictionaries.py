"""Results with dictionaries, as pandas' categories are, in files that have one dictionary for each column."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

import watersmeet as wm
from watersmeet.api import sinks

KIND = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([("k", pa.int64()), ("kind", KIND)])


def rows(*kinds: str | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(len(kinds))), pa.array(kinds, pa.string()).cast(KIND)], schema=SCHEMA)


def test_dictionaries_grow_from_batch_to_batch(tmp_path: Path) -> None:
    batches = [rows(None), rows("b", None, "a"), rows("a", "c"), rows("a"), rows(), rows(None, "d", "b")]
    assert sinks.write(batches, SCHEMA, tmp_path / "found.arrow") == 10
    found = pyarrow.feather.read_table(tmp_path / "found.arrow")
    assert found.schema == SCHEMA
    assert found.to_pylist() == pa.Table.from_batches(batches).to_pylist()


def test_what_indices_cannot_number_is_a_sentence_and_no_file(tmp_path: Path) -> None:
    batches = [rows(*(f"{start + i}" for i in range(100))) for start in (0, 100)]
    with pytest.raises(wm.SpecError, match="column 'kind' has 200 different values, more than int8 indices of its"):
        sinks.write(batches, SCHEMA, tmp_path / "found.arrow")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["found.arrow", "found.feather", "found.ipc", "found.parquet"])
def test_categories_of_frames_are_written_in_every_format(name: str, tmp_path: Path) -> None:
    """Rows without a partner come in another batch than pairs, and with another dictionary."""
    left = pd.DataFrame({"id": range(300), "ts": range(300), "town": pd.Categorical([f"t{i % 7}" for i in range(300)])})
    right = pd.DataFrame({"id": range(0, 300, 2), "ts": range(0, 300, 2), "kind": pd.Categorical(["a", "b", "c"] * 50)})

    def join() -> wm.Result:
        return wm.window_join(left, right, on="id", time="ts", window=5, how="left", memory="8 MiB")

    join().write(tmp_path / name)
    found = pd.read_parquet(tmp_path / name) if name.endswith("parquet") else pd.read_feather(tmp_path / name)
    expected = join().pandas()
    assert found["kind"].dtype == "category"
    for frame in (found, expected):
        frame[["town", "kind"]] = frame[["town", "kind"]].astype(object)
    pd.testing.assert_frame_equal(
        found.sort_values("id", ignore_index=True), expected.sort_values("id", ignore_index=True), check_dtype=False
    )


@pytest.mark.parametrize("schema", [False, True], ids=["its own schema", "a schema given"])
def test_ordered_categories_come_out_without_an_order_in_place_of_a_wrong_one(schema: bool) -> None:
    grades = pd.Categorical(["high", "low", "mid"], categories=["low", "mid", "high"], ordered=True)
    left = pa.table({"id": [1, 2, 3], "grade": pa.array(grades)})
    assert left.schema.field("grade").type.ordered
    source = wm.source(iter(left.to_batches()), schema=left.schema) if schema else left
    found = wm.join(source, pa.table({"id": [3, 1, 2]}), on="id", memory="8 MiB").pandas()
    assert dict(zip(found["id"], found["grade"], strict=True)) == {1: "high", 2: "low", 3: "mid"}
    assert not found["grade"].cat.ordered
