"""Files that somebody has written to do harm: an error in a sentence, soon, and nothing else."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import SourceError
from watersmeet.sources import marked

BOMB = """<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">{}]><s><r><id>&{};</id></r></s>""".format(
    "".join(
        f'<!ENTITY {"abcdefghij"[i + 1]} "{("&" + "abcdefghij"[i] + ";") * 10}">' for i in range(9)
    ),
    "j",
)  # fmt: skip
SECRET = "nobody may read this"


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in wm.source(path, **options).batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("schema", [None, pa.schema({"id": pa.string()})], ids=["types told", "schema given"])
@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        '<!DOCTYPE s SYSTEM "{secret}"><s><r><id>1</id></r></s>',
        '<!DOCTYPE s [<!ENTITY x SYSTEM "file://{secret}">]><s><r><id>&x;</id></r></s>',
        '<!DOCTYPE s [<!ENTITY % x SYSTEM "file://{secret}"> %x;]><s><r><id>1</id></r></s>',
        "<s><r><id>&nobody;</id></r></s>",
        '<?xml version="1.0" encoding="nobody-knows"?><s><r><id>1</id></r></s>',
        '<?xml version="1.0" encoding="utf-7"?><s><r><id>1</id></r></s>',
        f"<s><r>{'<a>' * 100_000}",
        f"{'<a>' * 100_000}",
        "<s><r><id>1</id><id>2</id></r></s>",
    ],
    ids=["bomb", "doctype", "entity", "parameter", "unknown", "encoding", "utf-7", "deep", "deep root", "twice"],
)
def test_xml(text: str, schema: pa.Schema | None, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"<!ENTITY y '{SECRET}'>")
    path = tmp_path / "a.xml"
    path.write_text(text.replace("{secret}", str(tmp_path / "secret")))
    tracemalloc.start()
    try:
        with pytest.raises(SourceError) as told:
            rows(path, schema=schema)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20, "it was not unfolded"
    finally:
        tracemalloc.stop()
    assert SECRET not in str(told.value)


def test_attributes_and_comments_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text("<s a='1'><!-- <r><id>9</id></r> --><r b='2'><id c='3'>1<![CDATA[<r>]]></id></r></s>")
    assert rows(path) == [{"id": "1<r>"}]


@pytest.mark.parametrize("name", ["a.xml.gz", "a.ndjson.gz"])
def test_a_few_bytes_that_unfold_to_many(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without an end, of which a thousandth is on disk."""
    monkeypatch.setattr(marked, "LONGEST_ROW", 1 << 20)
    begin = b"<s><r><id>" if name.startswith("a.xml") else b'{"id": "'
    path = tmp_path / name
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(64):
            file.write(bytes([65]) * (1 << 20))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="longer than 1 MiB"):
            rows(path, punctuated=True)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_rows_that_are_long_are_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(f"<s><r><id>{'a' * 1_000_000}</id></r><r><id>b</id></r></s>")
    assert [len(row["id"]) for row in rows(path)] == [1_000_000, 1]


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson", "a.xml", "marked.ndjson"])
def test_what_is_no_utf_8(name: str, tmp_path: Path) -> None:
    text = {"a.csv": b"id,name\n1,\xff\xfe\n", "a.xml": b"<s><r><id>\xff</id></r></s>"}
    path = tmp_path / name
    path.write_bytes(text.get(name, b'{"id": "\xff\xfe"}\n'))
    if name == "a.csv":  # keeps what is no text as bytes
        assert rows(path) == [{"id": 1, "name": b"\xff\xfe"}]
        return
    with pytest.raises(SourceError, match=r"UTF-?8|no XML"):
        rows(path, punctuated=name.startswith("marked"))


@pytest.mark.parametrize(
    "line",
    [
        '{"punct:r": ' + "[" * 100_000 + "}",
        '{"punct:r": {"id": ' + '{"ge":' * 100_000 + "}}",
        '{"punct:r": {"id": ' + "9" * 10_000 + "}}",
        '{"punct:r": {"nobody": 1}}',
        '{"punct:r": [1]}',
        '{"punct:r": {"id": {"nobody": 1}}}',
    ],
    ids=["lists", "ranges", "number", "column", "list", "range"],
)
def test_punctuations(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(f'{{"id": 1}}\n{line}\n')
    with pytest.raises(SourceError) as told:
        list(wm.source(path, punctuated=True).marked_batches())
    assert len(str(told.value)) < 1_000


@pytest.mark.parametrize("value", ["9" * 400, "-" + "9" * 40, "1e400", "-1e400", "0x10", "NaN", "٣"])
@pytest.mark.parametrize("name", ["a.csv", "a.ndjson", "a.xml"])
def test_numbers_that_no_type_holds(name: str, value: str, tmp_path: Path) -> None:
    """They become floating-point numbers or text, or are refused; never another number."""
    path = tmp_path / name
    texts = {"a.csv": f"id\n{value}\n", "a.xml": f"<s><r><id>{value}</id></r></s>", "a.ndjson": f'{{"id":{value}}}\n'}
    path.write_text(texts[name])
    try:
        ((found,),) = [tuple(row.values()) for row in rows(path)]
    except SourceError:
        return
    assert str(found) == value or found != found or found == (16 if value == "0x10" else float(value))


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "..", "a/b", "a\\b", "-rf", "CON", "x" * 300, "\x1b[2J"])
def test_names_of_columns_and_inputs_are_no_names_of_files(name: str, tmp_path: Path) -> None:
    """All that is spilled lies in the private directory, whatever columns and inputs are called."""
    spill = tmp_path / "spill"
    spill.mkdir()
    sides = [pa.table({name: [i % 500 for i in range(3000)], f"{name} {side}": ["wide" * 50] * 3000}) for side in "lr"]
    sources = [wm.source(side, name=name) for side in sides]
    result = wm.join(*sources, on=name, memory="1MiB", spill=spill)
    count = sum(batch.num_rows for batch in result)
    assert count == 500 * 6 * 6 and result.progress.spilled > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spill"] and list(spill.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["a\0.csv", "\0", "~nobody-has-this-name/a.csv", "[", "**" * 50 + "/x.csv", "x" * 5000 + ".csv"]
)
def test_paths_that_cannot_be(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError) as told:
        wm.source(path)
    assert len(str(told.value)) < 500
