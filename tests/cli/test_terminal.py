"""What a terminal is shown of somebody's data: text, and nothing that it would obey."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from watersmeet.cli.main import run

CLEAR, TITLE, TURNED = "\x1b[2J", "\x1b]0;title\x07", "‮"


def harmless(text: str) -> bool:
    return all(sign.isprintable() or sign == "\n" for sign in text)


def test_values_and_names_are_shown_and_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pa.table({"id": [1], f"a{CLEAR}": [f"one{TITLE}"], f"b{TURNED}": [f"two{TURNED}"]})
    pq.write_table(table, "a.parquet")
    assert run(["join", "a.parquet", "a.parquet", "--on", "id", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert harmless(told) and "one�]0;title" in told and "two" in told


def test_errors_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({f"a{CLEAR}": [1]}), "a.parquet")
    assert run(["join", "a.parquet", "a.parquet", "--on", f"x{TITLE}"]) == 2
    told = capsys.readouterr().err
    assert harmless(told) and "a�[2J" in told


def test_text_that_is_no_utf_8_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parquet files hold any bytes as text."""
    monkeypatch.chdir(tmp_path)
    text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\x03\0\0\0"), pa.py_buffer(b"a\xffb"))
    pq.write_table(pa.table({"id": [1], "name": text}), "a.parquet")
    assert run(["join", "a.parquet", "a.parquet", "--on", "id", "--quiet"]) == 0
    assert "a�b" in capsys.readouterr().out
