"""Bad input on the command line: one sentence, a code that is not zero, nothing half-written, no spill left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import watersmeet.spill
from simulate.stores import FaultyStore, flip_byte, truncate_at
from waiting import is_in, until
from watersmeet.cli import main as cli
from watersmeet.spill import FileStore

PRECIOUS = b"an older result"
MEMORY = "200KiB"
"""Much less than the large inputs need."""


def large(first: int, rows: int = 5000) -> pa.Table:
    return pa.table({"id": range(first, first + rows), "text": [f"row {i} ".ljust(60, "x") for i in range(rows)]})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of inputs, good and bad, that no test changes."""
    folder = tmp_path_factory.mktemp("inputs")
    pq.write_table(large(0), folder / "a.parquet", row_group_size=500)
    pq.write_table(large(2500), folder / "b.parquet", row_group_size=500)
    pq.write_table(large(0, 600), folder / "few.parquet")
    pq.write_table(pa.table({"id": range(10), "list": [[i] for i in range(10)]}), folder / "lists.parquet")
    pq.write_table(pa.table({"id": [1, 2], "text": ["x" * 300_000, "y"]}), folder / "wide.parquet")
    (folder / "twice.csv").write_text("id,id,v\n1,2,3\n")
    (folder / "words.csv").write_text("id,v\none,1\ntwo,2\n")
    (folder / "empty.csv").write_text("")
    (folder / "empty.parquet").write_bytes(b"")
    (folder / "notes.txt").write_text("id\n1\n")
    lines = [json.dumps({"id": i, "text": "z" * 60}) for i in range(5000)]
    (folder / "late.ndjson").write_text("\n".join([*lines, '{"id": 5000, "te']) + "\n")
    (folder / "broken.ndjson").write_text("this is no JSON\n")
    # More than the reader takes at once, so that rows have come out of it before it breaks off.
    rows = "".join(f"{i},{'w' * 60}\n" for i in range(30_000))
    (folder / "late.csv").write_text("id,text\n" + rows + "30000,many,too,many\n")
    with pa.OSFile(str(folder / "whole.arrow"), "wb") as file, pa.ipc.new_file(file, large(0).schema) as writer:
        writer.write_table(large(0), max_chunksize=500)
    whole = (folder / "whole.arrow").read_bytes()
    (folder / "torn.arrow").write_bytes(whole[: len(whole) // 2])
    content = bytearray((folder / "a.parquet").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)  # pages damaged, footer whole
    (folder / "altered.parquet").write_bytes(content)
    (folder / "torn.parquet").write_bytes(bytes(content)[:-100])
    return folder


class Refusal:
    """Runs a command line that must be refused, and looks at what is left."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        (folder / "spill").mkdir()

    def __call__(
        self, left: Path | str, right: Path | str, *more: str, on: str = "id", code: int = 2, old: bool = True
    ) -> str:
        """The one line that was said; with or without an older output in its place."""
        out = self.folder / "out.parquet"
        if old:
            out.write_bytes(PRECIOUS)
        places = ["--spill", str(self.folder / "spill"), "-o", str(out)]
        assert cli.run(["join", str(left), str(right), "--on", on, *more, *places]) == code
        output = self.capsys.readouterr()
        assert output.out == ""
        # On a slow machine a line of progress may come first.
        *progress, sentence = output.err.splitlines(keepends=True)
        assert all(" rows in " in line for line in progress), output.err
        assert sentence.startswith("watersmeet: ") and sentence.endswith("\n"), output.err
        assert "Traceback" not in output.err and "unexpected" not in output.err
        self.nothing_is_left(PRECIOUS if old else None)
        return sentence

    def nothing_is_left(self, content: bytes | None) -> None:
        left = sorted(path.name for path in self.folder.iterdir())
        assert left == (["spill"] if content is None else ["out.parquet", "spill"])
        assert content is None or (self.folder / "out.parquet").read_bytes() == content
        assert list((self.folder / "spill").iterdir()) == []


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(tmp_path, capsys)


# -- columns and types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "on", "says"),
    [
        ("a.parquet", "words.csv", "id = ident", "join column 'ident' is not in "),
        ("words.csv", "a.parquet", "v = key", "join column 'key' is not in "),
        ("twice.csv", "a.parquet", "id", "join column 'id' is in "),
        ("a.parquet", "twice.csv", "text = id", "2 times; rename all but one"),
        ("a.parquet", "words.csv", "id", "(int64) cannot be compared with column 'id' of "),
        ("lists.parquet", "lists.parquet", "list", "(list<element: int64>) cannot be compared with column 'list' of "),
        ("a.parquet", "b.parquet", "id =", "join condition 'id =' is not understood"),
        ("a.parquet", "b.parquet", "", "join condition '' is not understood"),
    ],
)
def test_columns(left: str, right: str, on: str, says: str, inputs: Path, refused: Refusal) -> None:
    assert says in refused(inputs / left, inputs / right, on=on)


def test_columns_that_clash_after_their_suffixes(inputs: Path, refused: Refusal) -> None:
    said = refused(inputs / "a.parquet", inputs / "b.parquet", "--suffixes", "_x", "_x")
    assert "two columns named 'text_x'; rename one, or choose other suffixes" in said


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    "name",
    ["empty.csv", "empty.parquet", "torn.parquet", "torn.arrow", "altered.parquet", "broken.ndjson", "notes.txt"],
)
def test_a_file_that_cannot_be_read_is_named(name: str, side: int, inputs: Path, refused: Refusal) -> None:
    files = [inputs / "a.parquet", inputs / "a.parquet"]
    files[side] = inputs / name
    assert str(inputs / name) in refused(*files)


@pytest.mark.parametrize("name", ["late.csv", "late.ndjson"])
def test_a_source_that_breaks_off_after_rows_were_spilled(
    name: str, inputs: Path, refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watched(monkeypatch)
    said = refused(inputs / name, inputs / "b.parquet", "--memory", MEMORY, old=False)
    assert str(inputs / name) in said
    if name == "late.csv":
        assert "broke off after" in said
        assert [store.bytes_written > 0 for store in stores] == [True], "it had spilled by then"


def test_a_source_that_raises_what_nobody_expects(
    inputs: Path, refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watersmeet.api import run as opening

    def rows() -> Any:
        yield from ({"id": i} for i in range(100))
        raise ZeroDivisionError("the sensor is gone\nfor good")

    as_source = opening.as_source
    monkeypatch.setattr(opening, "as_source", lambda data, name: as_source(rows() if data == "sensor" else data, name))
    said = refused("sensor", inputs / "a.parquet")
    assert "sensor broke off after 100 rows: the sensor is gone" in said


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ("", "memory '' is not understood; write a number and a unit, such as '64 MiB' or '2GB'"),
        ("64 parsecs", "memory '64 parsecs' is not understood"),
        ("-5MiB", "is not understood"),
        ("0", "memory must be more than nothing"),
        ("20KiB", "memory of 20 KiB is too small for this join; allow at least "),
    ],
)
def test_memory(memory: str, says: str, inputs: Path, refused: Refusal) -> None:
    assert says in refused(inputs / "a.parquet", inputs / "b.parquet", f"--memory={memory}")


def test_the_memory_that_is_called_enough_is_enough(
    inputs: Path, refused: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = inputs / "few.parquet"
    said = refused(few, few, "--memory", "20KiB")
    least = said.split("(")[1].split(" bytes")[0].replace(",", "")
    stores, out = watched(monkeypatch), str(tmp_path / "out.csv")
    assert cli.run(["join", str(few), str(few), "--on", "id", "-o", out, "--quiet", "--memory", least]) == 0
    assert pyarrow.csv.read_csv(out).num_rows == 600
    assert stores[0].bytes_written > 0


def test_memory_that_runs_out_where_nothing_is_spilled(inputs: Path, refused: Refusal) -> None:
    said = refused(inputs / "a.parquet", inputs / "b.parquet", "--memory", MEMORY, "--algorithm", "symmetric_hash")
    assert "symmetric_hash keeps all rows in memory" in said and "algorithm='xjoin'" in said


def test_a_row_wider_than_the_memory(inputs: Path, refused: Refusal) -> None:
    said = refused(inputs / "wide.parquet", inputs / "a.parquet", "--memory", MEMORY)
    assert "a row of " in said and "of memory are too little; allow more memory" in said


# -- the disk ---------------------------------------------------------------------------------------------------------


def watched(monkeypatch: pytest.MonkeyPatch, **faults: Any) -> list[FaultyStore]:
    """Let every store that is made fail in some way; they are listed as they are made."""
    made: list[FaultyStore] = []

    def make(directory: Path | None = None) -> FaultyStore:
        made.append(FaultyStore(FileStore(directory), **faults))
        return made[-1]

    monkeypatch.setattr(watersmeet.spill, "FileStore", make)
    return made


@pytest.mark.parametrize(
    ("operation", "fail_at"), [("create", 1), ("write", 1), ("write", 8), ("write", 30), ("commit", 1), ("commit", 4)]
)
def test_a_full_disk(
    operation: str, fail_at: int, inputs: Path, refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watched(monkeypatch, fail_at=fail_at, operation=operation, lasting=True)
    files = (inputs / "a.parquet", inputs / "b.parquet")
    said = refused(*files, "--memory", MEMORY, code=1, old=fail_at > 1)
    assert "the disk is full (No space left on device); free space there or choose another spill directory" in said
    assert [store.failures for store in stores] == [1]


@pytest.mark.parametrize(
    ("damage", "fail_at"),
    [(truncate_at(0), 1), (truncate_at(1000), 2), (flip_byte(300), 1), (flip_byte(-1), 2)],
    ids=["emptied", "torn", "altered", "bad end"],
)
def test_a_damaged_segment(
    damage: Any, fail_at: int, inputs: Path, refused: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watched(monkeypatch, fail_at=fail_at, operation="commit", damage=damage)
    files = (inputs / "a.parquet", inputs / "b.parquet")
    said = refused(*files, "--memory", MEMORY, code=1, old=fail_at > 1)
    assert "watersmeet: spill segment 'run-" in said and "cannot be used" in said
    assert "run the join again" in said
    assert [store.failures for store in stores] == [1]


def test_a_segment_that_somebody_removed(inputs: Path, refused: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(FaultyStore):
        def open(self, name: str) -> pa.Buffer:
            self.inner.remove(name)
            return super().open(name)

    monkeypatch.setattr(watersmeet.spill, "FileStore", lambda directory: Forgetful(FileStore(directory)))
    said = refused(inputs / "a.parquet", inputs / "b.parquet", "--memory", MEMORY, code=1)
    assert "spill segment 'run-" in said and "is missing from" in said


def test_the_same_inputs_are_joined_where_nothing_is_wrong(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watched(monkeypatch)
    (tmp_path / "spill").mkdir()
    words = ["join", str(inputs / "a.parquet"), str(inputs / "b.parquet"), "--on", "id", "--memory", MEMORY, "--quiet"]
    assert cli.run([*words, "--spill", str(tmp_path / "spill"), "-o", str(tmp_path / "out.parquet")]) == 0
    assert sorted(pq.read_table(tmp_path / "out.parquet")["id"].to_pylist()) == list(range(2500, 5000))
    [store] = stores
    assert store.calls["commit"] >= 7 and store.calls["open"] > 0, "there is something to break"
    assert list((tmp_path / "spill").iterdir()) == []


# -- a process that is killed -----------------------------------------------------------------------------------------


STUCK = """
import time
from watersmeet.api import run as opening
from watersmeet.cli import main as cli

def rows():
    yield from ({"id": i, "text": "x" * 100} for i in range(20_000))
    time.sleep(3600)

as_source = opening.as_source
opening.as_source = lambda data, name: as_source(rows() if data == "stuck" else data, name)
cli.main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nobody can be killed here")
def test_what_a_killed_run_spilled_is_swept_by_the_next(inputs: Path, tmp_path: Path) -> None:
    spill, out = tmp_path / "spill", tmp_path / "out.parquet"
    spill.mkdir()
    out.write_bytes(PRECIOUS)
    words = ["--on", "id", "--memory", MEMORY, "--quiet", "--spill", str(spill), "-o", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, "join", "stuck", str(inputs / "a.parquet"), *words],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        until(lambda: process.poll() is not None or is_in(spill, "run-*"), "it spills")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert any(spill.iterdir()), "it had no time to clean up"
    assert out.read_bytes() == PRECIOUS
    assert cli.run(["join", str(inputs / "a.parquet"), str(inputs / "b.parquet"), *words]) == 0
    assert list(spill.iterdir()) == []
    assert pq.read_table(out).num_rows == 2500
