from __future__ import annotations

import datetime as dt
import gzip
import json
import subprocess
import sys
import threading
from collections import UserDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from waiting import PATIENCE, Sleepers, until
from watersmeet import join
from watersmeet.core.errors import ProtocolError, SourceError, SpecError
from watersmeet.sources import Source, as_source, iterators, source
from watersmeet.sources.base import pieces
from watersmeet.sources.conform import conform

TABLE = pa.table(
    {"id": range(20_000), "price": [i / 4 for i in range(20_000)], "name": [f"n{i}" for i in range(20_000)]}
)


def read(data: object, **options: object) -> pa.Table:
    made = source(data, **options)  # type: ignore[arg-type]
    batches = list(made.batches())
    for batch in batches:
        assert batch.schema.equals(made.schema(), check_metadata=True)
        assert batch.num_rows > 0
        batch.validate(full=True)
    return pa.Table.from_batches(batches, made.schema())


def breaks(data: object, **options: object) -> str:
    """The one sentence of the error that reading raises."""
    with pytest.raises(SourceError) as caught:
        read(data, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_ndjson(table: pa.Table, path: Path, opener: Callable[..., object] = open) -> None:
    with opener(path, "wt") as file:  # type: ignore[attr-defined]
        file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())


def write(table: pa.Table, path: Path) -> Path:
    name = path.name
    if name.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=7000)
    elif name.endswith(".csv.gz"):
        plain = path.with_suffix("")
        pyarrow.csv.write_csv(table, plain)
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    elif name.endswith((".csv", ".tsv")):
        options = pyarrow.csv.WriteOptions(delimiter="\t" if name.endswith(".tsv") else ",")
        pyarrow.csv.write_csv(table, path, options)
    elif name.endswith(".jsonl.gz"):
        write_ndjson(table, path, gzip.open)
    elif name.endswith((".ndjson", ".jsonl", ".json")):
        write_ndjson(table, path)
    else:
        new = pyarrow.ipc.new_stream if name.endswith(".arrows") else pyarrow.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table)
    return path


EXTENSIONS = [
    *("parquet", "csv", "csv.gz", "tsv", "ndjson", "jsonl", "json", "jsonl.gz", "arrow", "arrows", "ipc", "feather"),
    "PARQUET",
]


class TestFiles:
    @pytest.mark.parametrize("extension", EXTENSIONS)
    def test_round_trip(self, tmp_path: Path, extension: str) -> None:
        path = write(TABLE, tmp_path / f"rows.{extension.lower()}").rename(tmp_path / f"rows.{extension}")
        made = source(str(path))
        assert made.schema_known
        assert made.name == str(path)
        assert made.schema() == TABLE.schema
        batches = list(made.batches())
        assert pa.Table.from_batches(batches).equals(TABLE)
        assert max(batch.num_rows for batch in batches) <= 8192
        assert len(batches) >= 3

    @pytest.mark.parametrize("extension", EXTENSIONS)
    def test_batches_are_as_small_as_asked(self, tmp_path: Path, extension: str) -> None:
        path = write(TABLE.slice(0, 1000), tmp_path / f"rows.{extension.lower()}")
        sizes = [batch.num_rows for batch in source(path, batch_rows=100).batches()]
        assert max(sizes) == 100
        assert sum(sizes) == 1000

    @pytest.mark.parametrize("extension", ["parquet", "arrow", "arrows"])
    def test_wide_rows_come_in_batches_of_about_a_mebibyte(self, tmp_path: Path, extension: str) -> None:
        table = pa.table({"id": range(4000), "text": [f"{i:04}" * 512 for i in range(4000)]})
        path = tmp_path / f"wide.{extension}"
        if extension == "parquet":
            pq.write_table(table, path, use_dictionary=False, compression="none")
        else:
            write(table, path)
        sizes = [batch.nbytes for batch in source(path).batches()]
        assert len(sizes) >= 8
        assert max(sizes) <= 1.1 * 2**20

    @pytest.mark.parametrize("extension", ["parquet", "csv", "ndjson", "arrow"])
    def test_glob_reads_files_in_order_of_names(self, tmp_path: Path, extension: str) -> None:
        for at in (2, 0, 1):
            write(TABLE.slice(at * 50, 50), tmp_path / f"part-{at}.{extension}")
        assert read(str(tmp_path / f"part-*.{extension}")).equals(TABLE.slice(0, 150).combine_chunks())
        assert read(str(tmp_path / "**" / "part-?.*")).num_rows == 150

    def test_a_name_with_brackets_is_a_name_if_the_file_exists(self, tmp_path: Path) -> None:
        path = write(TABLE.slice(0, 5), tmp_path / "part[1].csv")
        assert read(path).num_rows == 5

    def test_no_file(self, tmp_path: Path) -> None:
        assert breaks(tmp_path / "none.csv", name="left") == f"left: {tmp_path}/none.csv does not exist"
        assert breaks(str(tmp_path / "none*.csv")) == f"{tmp_path}/none*.csv matches no file"
        assert "is a directory" in breaks(tmp_path)

    def test_unknown_extension_lists_the_known_ones(self, tmp_path: Path) -> None:
        (tmp_path / "rows.xlsx").write_text("?")
        told = breaks(tmp_path / "rows.xlsx")
        assert "rows.xlsx" in told
        for known in (".parquet", ".csv.gz", ".ndjson", ".arrows"):
            assert known in told

    @pytest.mark.parametrize("extension", ["parquet", "csv", "ndjson", "arrow", "arrows", "csv.gz", "jsonl.gz"])
    @pytest.mark.parametrize("content", [b"", b"\x00\xff\x01 nonsense \x00 \xff" * 9], ids=["empty", "garbage"])
    def test_unreadable_file_is_named(self, tmp_path: Path, extension: str, content: bytes) -> None:
        path = tmp_path / f"broken.{extension}"
        path.write_bytes(content)
        if extension == "csv" and content:  # any bytes are a CSV file with one column
            path.write_bytes(b'a,b\n1,2,3\n"')
        assert str(path) in breaks(path, name="left")

    def test_torn_file_is_named(self, tmp_path: Path) -> None:
        for extension in ("parquet", "arrow", "arrows", "csv.gz"):
            path = write(TABLE, tmp_path / f"torn.{extension}")
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            told = breaks(path, name="left")
            assert told.startswith("left")
            assert str(path) in told

    def test_altered_offsets_in_a_mapped_file_are_refused(self, tmp_path: Path) -> None:
        table = pa.table({"text": ["aa", "bb", "cc"]})
        path = write(table, tmp_path / "rows.arrow")
        content = path.read_bytes()
        offsets = b"".join(n.to_bytes(4, "little") for n in (0, 2, 4, 6))
        assert content.count(offsets) == 1
        path.write_bytes(content.replace(offsets, offsets[:8] + b"\xff\xff\x00\x00" + offsets[12:]))
        assert breaks(path, name="left").startswith(f"left broke off after 0 rows: {path}: ")

    def test_unpermitted_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(TABLE, tmp_path / "rows.arrow")

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "open", refuse)
        assert breaks(path) == f"{path} cannot be read: Permission denied"

    @pytest.mark.parametrize("extension", ["parquet", "arrow"])
    def test_another_type_in_a_later_file(self, tmp_path: Path, extension: str) -> None:
        write(pa.table({"id": [1], "v": [2]}), tmp_path / f"a.{extension}")
        write(pa.table({"id": [1], "v": ["x"]}), tmp_path / f"b.{extension}")
        made = source(str(tmp_path / f"*.{extension}"), name="left")
        with pytest.raises(SourceError) as caught:  # before any row is read
            made.schema()
        assert str(caught.value) == (
            f"left: {tmp_path}/b.{extension} has other columns than {tmp_path}/a.{extension}: column 'v' has string, "
            f"where int64 was expected"
        )

    @pytest.mark.parametrize("extension", ["parquet", "csv", "ndjson"])
    def test_another_column_in_a_later_file(self, tmp_path: Path, extension: str) -> None:
        write(pa.table({"id": [1], "v": [2]}), tmp_path / f"a.{extension}")
        write(pa.table({"id": [1], "w": [3]}), tmp_path / f"b.{extension}")
        told = breaks(str(tmp_path / f"*.{extension}"))
        assert f"b.{extension}" in told
        assert "column 'w' is not expected; the columns are id, v" in told

    def test_a_column_missing_in_a_later_file(self, tmp_path: Path) -> None:
        write(pa.table({"id": [1], "v": [2]}), tmp_path / "a.csv")
        write(pa.table({"id": [1]}), tmp_path / "b.csv")
        assert "b.csv has other columns" in (told := breaks(str(tmp_path / "*.csv")))
        assert "column 'v' (int64) is missing" in told

    def test_csv_types_of_the_first_file_are_imposed(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,v\n1,0.5\n")
        (tmp_path / "b.csv").write_text("v,id\n7,2\n")  # by itself v would be int64; the order is another, too
        assert read(str(tmp_path / "*.csv")).to_pydict() == {"id": [1, 2], "v": [0.5, 7.0]}
        (tmp_path / "c.csv").write_text("v,id\nmany,3\n")
        told = breaks(str(tmp_path / "*.csv"))
        assert "c.csv" in told
        assert "column 'v'" in told
        assert "'many'" in told

    def test_csv_value_of_another_type_far_down(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,v\n" + "1,2\n" * 100_000 + "1,x\n")
        told = breaks(tmp_path / "a.csv", name="left")
        assert told.startswith("left broke off after ")
        assert "column 'v'" in told
        assert "schema=" in told
        assert read(tmp_path / "a.csv", schema=pa.schema({"id": pa.int8(), "v": pa.string()})).num_rows == 100_001

    @pytest.mark.parametrize("extension", ["csv", "tsv", "csv.gz", "ndjson", "jsonl.gz"])
    @pytest.mark.parametrize(
        ("values", "type_"),
        [
            ([2**64 - 1, None, 2**64 - 2, 7], pa.uint64()),
            ([1, 2**63], pa.uint64()),
            ([-(2**63) - 1, 2**64 - 1], pa.decimal128(38, 0)),
            ([10**38 - 1, None, 3], pa.decimal128(38, 0)),
            ([2**63 - 1, -(2**63), None], pa.int64()),
            ([0.5, None, 2.0], pa.float64()),
        ],
        ids=str,
    )
    def test_whole_numbers_in_text_files_stay_as_they_are(
        self, tmp_path: Path, extension: str, values: list[int | None], type_: pa.DataType
    ) -> None:
        path = tmp_path / f"a.{extension}"
        if "csv" in extension or extension == "tsv":
            mark = "\t" if extension == "tsv" else ","
            lines = ["x", "id", "v"], *([str(at), "" if v is None else str(v), "0.5"] for at, v in enumerate(values))
            text = "".join(mark.join(line) + "\n" for line in lines)
        else:
            text = "".join(json.dumps({"x": at, "id": v, "v": 0.5}) + "\n" for at, v in enumerate(values))
        path.write_bytes(gzip.compress(text.encode()) if extension.endswith("gz") else text.encode())
        found = read(path)
        assert found.schema.types == [pa.int64(), type_, pa.float64()]
        assert found["id"].to_pylist() == values
        assert found.num_rows == len(values)
        if "json" in extension:
            assert read(path, punctuated=True)["id"].to_pylist() == values

    @pytest.mark.parametrize("extension", ["csv", "ndjson"])
    @pytest.mark.parametrize(("whole", "other"), [(2**64 - 1, 0.5), (10**38 + 1, 1)])
    def test_whole_numbers_that_no_type_keeps_are_refused(
        self, tmp_path: Path, extension: str, whole: int, other: float
    ) -> None:
        path = tmp_path / f"a.{extension}"
        path.write_text(f"id\n{other}\n{whole}\n" if extension == "csv" else f'{{"id": {other}}}\n{{"id": {whole}}}\n')
        assert breaks(path) == (
            f"{path} cannot be read: column 'id' has {whole}, which a double would round, and no type holds it beside "
            f"the other numbers; pass a schema with wm.source(..., schema=...)"
        )
        assert read(path, schema=pa.schema({"id": pa.float64()}))["id"].to_pylist() == [other, float(whole)]
        path.write_text(path.read_text().replace(str(whole), str(10**22)))  # which a double holds
        assert sorted(map(float, read(path)["id"].to_pylist())) == [other, 1e22]

    @pytest.mark.parametrize("extension", ["csv", "ndjson"])
    @pytest.mark.parametrize(("first", "late"), [(5, 2**63), (2**63, -5), (2**63, 0.5), (-(2**64), 0.5)])
    def test_a_whole_number_far_down_that_does_not_fit(
        self, tmp_path: Path, extension: str, first: int, late: float
    ) -> None:
        path = tmp_path / f"a.{extension}"
        line = "{},x\n" if extension == "csv" else '{{"id": {}, "v": "x"}}\n'
        head = "id,v\n" if extension == "csv" else ""
        path.write_text(head + line.format(first) * 100_000 + line.format(late))
        told = breaks(path, name="left")
        assert told.startswith("left broke off after ")
        assert str(path) in told
        assert "column 'id', " in told
        assert "pass the types" in told

    def test_whole_numbers_inside_of_nested_values_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.ndjson").write_text('{"id": 1, "v": {"w": [18446744073709551615]}}\n')
        assert "column 'v' has whole numbers beyond int64 in its values; pass a schema" in breaks(tmp_path / "a.ndjson")

    def test_csv_gaps_and_newlines(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('id,empty,text\n1,,"a\nb"\n,,c\n' + "3,,d\n" * 100_000 + "4,late,e\n")
        table = read(tmp_path / "a.csv")
        assert table.schema.types == [pa.int64(), pa.string(), pa.string()]
        assert table["id"][1].as_py() is None
        assert table["text"][0].as_py() == "a\nb"
        assert table["empty"][-1].as_py() == "late"

    @pytest.mark.parametrize("extension", ["csv", "tsv", "csv.gz"])
    def test_csv_gaps_of_text_are_null_and_quoted_ones_are_not(self, tmp_path: Path, extension: str) -> None:
        table = pa.table({"id": ["a", None, "", "NA", "null"], "v": [0.5, None, float("nan"), -0.0, 1.0]})
        found = read(write(table, tmp_path / f"a.{extension}"))
        assert str(found.to_pydict()) == str(table.to_pydict())  # as text, where NaN is what it is

    def test_csv_gaps_may_be_quoted_among_numbers(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('"id","at","v"\n"1","2026-01-01","x"\n"","",""\n"3","2026-01-03",""\n')
        found = read(tmp_path / "a.csv")
        day = dt.date(2026, 1, 1)
        assert found.to_pydict() == {"id": [1, None, 3], "at": [day, None, day.replace(day=3)], "v": ["x", None, None]}
        (tmp_path / "b.csv").write_text('id,at,v\n4,2026-01-04,""\n')
        assert read(str(tmp_path / "*.csv"))["v"].to_pylist() == ["x", None, None, ""]
        (tmp_path / "c.csv").write_text('text,gaps\n"",\n"",\n')
        assert read(tmp_path / "c.csv").to_pydict() == {"text": ["", ""], "gaps": [None, None]}

    def test_csv_rows_without_a_key_do_not_meet(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('id,v\nA,1\n,2\n"",3\n')
        (tmp_path / "b.csv").write_text('id,w\nA,1\n,2\n"",3\n')
        with join(tmp_path / "a.csv", tmp_path / "b.csv", on="id") as result:
            assert sorted(result.table()["id"].to_pylist()) == ["", "A"]

    @pytest.mark.parametrize("extension", ["csv", "tsv", "csv.gz"])
    def test_csv_without_rows_joins_with_anything(self, tmp_path: Path, extension: str) -> None:
        nothing = write(pa.table({"id": pa.nulls(0), "w": pa.nulls(0)}), tmp_path / f"b.{extension}")
        assert read(nothing).schema == pa.schema({"id": pa.null(), "w": pa.null()})
        for key in (1, "x", 0.5, dt.date(2026, 1, 1)):
            with join(pa.table({"id": [key]}), nothing, on="id", how="left") as result:
                assert result.table().to_pylist() == [{"id": key, "w": None}]
            with join(nothing, pa.table({"id": [key]}), on="id", how="full") as result:
                assert result.table()["w"].to_pylist() == [None]

    def test_csv_types_are_those_of_the_first_file_with_rows(self, tmp_path: Path) -> None:
        for name, text in {"a": "", "b": "", "c": "1,0.5\n", "d": "", "e": "2,3\n"}.items():
            (tmp_path / f"{name}.csv").write_text("id,v\n" + text)
        assert read(str(tmp_path / "*.csv")).to_pydict() == {"id": [1, 2], "v": [0.5, 3.0]}
        assert read(str(tmp_path / "[ab].csv")).schema.types == [pa.null(), pa.null()]
        (tmp_path / "b.csv").write_text("id,w\n")
        assert breaks(str(tmp_path / "*.csv")) == (
            f"{tmp_path}/*.csv: {tmp_path}/b.csv has other columns than {tmp_path}/c.csv: "
            f"column 'w' is not expected; the columns are id, v"
        )

    def test_csv_with_nothing_but_gaps_is_text(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,v\n" + ",\n" * 200_000 + "late,1\n")
        assert read(tmp_path / "a.csv").schema.types == [pa.string(), pa.string()]

    @pytest.mark.parametrize("word", ["NA", "NULL", "n/a", "#N/A"])
    def test_csv_words_among_numbers_are_text(self, tmp_path: Path, word: str) -> None:
        (tmp_path / "a.csv").write_text(f"id,v\n1,2\n{word},3\n")
        assert read(tmp_path / "a.csv")["id"].to_pylist() == ["1", word]
        (tmp_path / "a.csv").write_text("id,v\n" + "1,2\n" * 100_000 + f"{word},3\n")
        told = breaks(tmp_path / "a.csv")
        assert "column 'id'" in told
        assert f"'{word}'" in told

    def test_ndjson_missing_fields_are_null_and_new_ones_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ndjson"
        path.write_text('{"id": 1, "v": 2}\n{"id": 2}\n')
        assert read(path)["v"].to_pylist() == [2, None]
        path.write_text('{"id": 1}\n' * 50_000 + '{"id": 2, "v": 3}\n')
        assert "is not expected; the columns are id" in (told := breaks(path))
        assert "schema=" in told
        assert read(path, schema=pa.schema({"id": pa.int64(), "v": pa.int64()}))["v"].null_count == 50_000

    def test_json_that_is_not_lines(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('[{"id": 1}]')
        assert "one JSON object a line" in breaks(tmp_path / "a.json")

    def test_row_longer_than_a_block(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("id,v\n1," + "x" * 600_000 + "\n")
        assert "longer than 256 KiB" in breaks(tmp_path / "a.csv")

    def test_schema_that_does_not_fit_a_file(self, tmp_path: Path) -> None:
        path = write(pa.table({"id": [1]}), tmp_path / "a.parquet")
        assert "other columns than the schema asked for" in breaks(path, schema=pa.schema({"id": pa.string()}))
        assert read(path, schema=pa.schema({"id": pa.int16()})).schema.types == [pa.int16()]

    def test_files_are_closed(self, tmp_path: Path) -> None:
        path = write(TABLE, tmp_path / "a.parquet")
        fds = Path("/proc/self/fd")
        if not fds.exists():
            pytest.skip("no /proc here")

        def still_open() -> int:
            return sum(1 for fd in fds.iterdir() if fd.is_symlink() and fd.readlink() == path)

        made = source(path)
        made.schema()
        made.close()
        assert still_open() == 0
        batches = source(path).batches()
        next(batches)
        assert still_open() == 1
        batches.close()  # type: ignore[attr-defined]
        assert still_open() == 0

    def test_streaming_a_large_file_takes_little_memory(self, tmp_path: Path) -> None:
        """In a process of its own, as the allocator's peak is the process's."""
        script = """
import sys, pyarrow as pa, pyarrow.parquet as pq
from watersmeet.sources import source
from watersmeet.sources.generators import rows, unique
pq.write_table(rows(unique(400_000), width=100), sys.argv[1], use_dictionary=False, compression="none")
before = pa.default_memory_pool().bytes_allocated()
peak = total = 0
for batch in source(sys.argv[1]).batches():
    total += batch.num_rows
    peak = max(peak, pa.default_memory_pool().bytes_allocated() - before)
print(total, peak)
"""
        command = [sys.executable, "-c", script, str(tmp_path / "big.parquet")]
        total, peak = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
        assert total == 400_000
        assert (tmp_path / "big.parquet").stat().st_size > 50e6
        assert peak < 8e6


class Streams:
    """Something foreign that speaks Arrow's stream interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class TestTablesAndFrames:
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda t: t,
            lambda t: t.to_batches()[0],
            lambda t: t.to_reader(),
            lambda t: Streams(t),
            lambda t: t.to_pandas(),
            lambda t: [t.slice(0, 7), t.slice(7)],
            lambda t: iter(t.to_batches(max_chunksize=999)),
            lambda t: (part for part in [t.slice(0, 7).to_pandas(), t.slice(7)]),
            lambda t: t.to_pylist(),
            lambda t: iter(t.to_pylist()),
        ],
        ids=["table", "batch", "reader", "c-stream", "pandas", "list", "batches", "frames", "dicts", "dict-iterator"],
    )
    def test_round_trip(self, wrap: Callable[[pa.Table], object]) -> None:
        assert read(wrap(TABLE)).equals(TABLE)

    def test_polars(self) -> None:
        table = read(pl.from_arrow(TABLE))
        assert table.schema.types == [pa.int64(), pa.float64(), pa.large_string()]
        assert table.cast(TABLE.schema).equals(TABLE)
        assert "collect()" in breaks(pl.LazyFrame({"id": [1]}))

    def test_slices_of_a_table_are_not_copies(self) -> None:
        addresses = {chunk.buffers()[1].address for chunk in TABLE["id"].chunks}
        before = pa.total_allocated_bytes()
        batches = list(source(TABLE).batches())
        assert {batch.column(0).buffers()[1].address for batch in batches} == addresses
        assert pa.total_allocated_bytes() == before

    def test_pandas_index_and_metadata_stay_behind(self) -> None:
        frame = pd.DataFrame({"id": [1, 2]}, index=[7, 8])
        made = source(frame)
        assert made.schema().names == ["id"]
        assert made.schema().metadata is None

    def test_pandas_column_of_mixed_types(self) -> None:
        assert "column mixed" in breaks(pd.DataFrame({"mixed": [1, "x"]}), name="left")

    def test_neither_pandas_nor_polars_is_imported(self) -> None:
        script = (
            "import sys, pyarrow as pa; from watersmeet.sources import source; "
            "list(source(pa.RecordBatch.from_arrays([pa.nulls(3)], ['id'])).batches()); "
            "sys.exit(bool({'pandas', 'polars'} & set(sys.modules)))"
        )
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

    def test_every_type_passes_through(self) -> None:
        table = pa.table(
            {
                "nested": pa.array([{"a": [1, None]}, None, {"a": []}]),
                "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
                "dictionary": pa.array(["x", None, "x"]).dictionary_encode(),
                "decimal": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
                "zoned": pa.array([0, 1, None], pa.timestamp("ms", "Europe/Vienna")),
                "view": pa.array(["x", None, "y" * 40], pa.string_view()),
                "null": pa.nulls(3),
            }
        )
        assert read(table, batch_rows=2).equals(table)

    def test_schema_casts_safely(self) -> None:
        schema = pa.schema({"price": pa.float32(), "id": pa.int32(), "name": pa.large_string()})
        assert read(TABLE, schema=schema).schema == schema
        assert "does not fit into int8" in breaks(TABLE, schema=pa.schema({**types(TABLE), "id": pa.int8()}))
        assert "column 'id' has int64, where string was expected" in breaks(
            TABLE, schema=pa.schema({**types(TABLE), "id": pa.string()})
        )
        assert "column 'price' is not expected; the columns are id" in breaks(
            TABLE, schema=pa.schema({"id": pa.int64()})
        )

    def test_null_where_none_is_allowed(self) -> None:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        assert "has a null" in breaks(pa.table({"id": [1, None]}), schema=schema)
        assert "row 2: column 'id' has a null" in breaks(iter([{"id": 1}, {"id": None}]), schema=schema)

    def test_stream_without_a_table(self) -> None:
        assert "holds no table" in breaks(pl.Series([1, 2]))

    def test_reader_that_breaks_off(self) -> None:
        def some() -> Iterator[pa.RecordBatch]:
            yield from TABLE.to_batches(max_chunksize=100)[:3]
            raise ValueError("the line went dead")

        told = breaks(pa.RecordBatchReader.from_batches(TABLE.schema, some()), name="left")
        assert told.startswith("left broke off after 300 rows: ")
        assert "the line went dead" in told

    @pytest.mark.parametrize("data", [None, 5, {"id": [1]}, b"bytes", object()])
    def test_what_holds_no_rows(self, data: object) -> None:
        assert "a path or glob" in breaks(data, name="left")

    def test_as_source(self) -> None:
        assert isinstance(as_source(TABLE, "left"), Source)
        unnamed, named = source(TABLE), source(TABLE, name="orders")
        assert as_source(unnamed, "left") is unnamed
        assert unnamed.name == "left"
        assert as_source(named, "left").name == "orders"
        assert "already" in breaks(named)

    def test_bad_options(self) -> None:
        with pytest.raises(SpecError, match="batch_rows"):
            source(TABLE, batch_rows=0)
        with pytest.raises(SpecError, match="schema"):
            source(TABLE, schema={"id": "int64"})  # type: ignore[arg-type]

    def test_read_once(self) -> None:
        made = source(TABLE)
        list(made.batches())
        with pytest.raises(ProtocolError, match="already been read"):
            made.batches()

    def test_pieces_ignore_what_slicing_cannot_shrink(self) -> None:
        words = pa.array([f"{i:0100}" for i in range(50_000)])
        batch = pa.record_batch({"word": pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), words)})
        assert [piece.num_rows for piece in pieces(batch)] == [1000]

    @pytest.mark.parametrize("rows", [1, 64])
    def test_small_batches_pass_as_they_are(self, rows: int) -> None:
        """Nothing is made anew for them, whether they have buffers of their own or are slices of a large batch."""
        slices = pa.table({"id": range(rows * 300), "text": ["x" * 600] * (rows * 300)}).to_batches(max_chunksize=rows)
        own = [pa.record_batch({"id": range(rows), "text": ["y"] * rows}) for _ in range(10)]
        given = [*slices, *own]
        assert all(made is batch for made, batch in zip(source(iter(given)).batches(), given, strict=True))

    def test_few_wide_rows_are_cut(self) -> None:
        wide = pa.record_batch({"text": ["x" * 300_000] * 60})
        assert max(batch.nbytes for batch in source(iter([wide] * 3)).batches()) <= 1 << 20

    def test_slices_that_grow_wide_are_found_out(self) -> None:
        """Slices of one batch show the same buffers: after 64 of them, the next is measured again."""
        rows = ["x"] * 8 * 200 + ["x" * 300_000] * 8 * 100
        made = list(source(iter(pa.table({"text": rows}).to_batches(max_chunksize=8))).batches())
        assert pa.Table.from_batches(made)["text"].to_pylist() == rows
        large = [batch for batch in made if batch.nbytes > 1 << 20]
        assert len(large) <= 64

    def test_small_batches_among_others_are_brought_to_the_schema(self) -> None:
        """The shortcut is only for what is right: another order, other types or notes take the long way."""
        first = pa.record_batch({"id": [1], "name": ["a"]})
        turned = pa.record_batch({"name": ["b"], "id": pa.array([2], pa.int32())})
        noted = pa.record_batch({"id": [3], "name": ["c"]}).replace_schema_metadata({"from": "elsewhere"})
        table = read(iter([first, turned, first.slice(0, 0), noted]))
        assert table.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
        strict = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        assert "has a null" in breaks(
            iter([pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=strict)]), schema=strict
        )


def types(table: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(table.schema.names, table.schema.types, strict=True))


class TestIterators:
    def test_first_dict_does_not_wait_for_the_second(self) -> None:
        gate = threading.Event()

        def slow() -> Iterator[dict[str, int]]:
            yield {"id": 1}
            assert gate.wait(PATIENCE), "the first row was not given before the second"
            yield {"id": 2}

        assert iterators.GROUP_SECONDS < 0.05
        batches = source(slow(), schema=pa.schema({"id": pa.int64()})).batches()
        assert next(batches).to_pylist() == [{"id": 1}]
        gate.set()
        assert [batch.to_pylist() for batch in batches] == [[{"id": 2}]]

    def test_the_end_of_a_burst_does_not_wait_either(self) -> None:
        gate = threading.Event()

        def bursty() -> Iterator[dict[str, int]]:
            yield from ({"id": i} for i in range(5000))
            assert gate.wait(PATIENCE), "the end of the burst was held back"

        seen = 0
        batches = source(bursty()).batches()
        while seen < 5000:
            batch = next(batches)
            assert batch.num_rows <= 1024
            seen += batch.num_rows
        gate.set()
        assert list(batches) == []

    def test_fast_dicts_come_in_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(iterators, "GROUP_SECONDS", PATIENCE)  # however slow the machine, they are fast
        sizes = [batch.num_rows for batch in source({"id": i} for i in range(50_000)).batches()]
        assert sizes == [1024] * 48 + [50_000 - 48 * 1024]

    def test_dicts_that_come_in_time_come_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(iterators, "GROUP_SECONDS", PATIENCE)  # however slow the machine, they come in time
        monkeypatch.setattr(iterators, "threading", SimpleNamespace(**vars(threading) | {"Condition": Sleepers}))
        reader = threading.current_thread()

        def counted() -> Iterator[dict[str, int]]:
            yield {"id": 0}
            for i in range(1, 50):
                until(lambda: made._pump and made._pump._changed.holds(reader), "the reader waits, though it has a row")
                yield {"id": i}

        made = source(counted())
        assert [batch.num_rows for batch in made.batches()] == [50]

    def test_the_reader_sets_the_pace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(iterators, "threading", SimpleNamespace(**vars(threading) | {"Condition": Sleepers}))
        pulled = 0

        def counted() -> Iterator[dict[str, int]]:
            nonlocal pulled
            for pulled in range(1, 100_001):
                yield {"id": pulled}

        made = source(counted())
        batches = made.batches()  # to be kept: without it the source is closed
        given = next(batches).num_rows
        pump = made._pump
        until(lambda: pump._changed.holds(pump._thread) or pump._ended, "the thread has pulled all that it will")
        assert given + 1024 <= pulled <= given + 1024 + 1
        made.close()

    def test_close_ends_a_waiting_reader_and_the_generator(self) -> None:
        gate, cleaned = threading.Event(), threading.Event()

        def waiting() -> Iterator[dict[str, int]]:
            try:
                yield {"id": 1}
                assert gate.wait(PATIENCE), "the reader was not ended before the generator went on"
                yield {"id": 2}
            finally:
                cleaned.set()

        made = source(waiting())
        batches = made.batches()
        next(batches)
        rest: list[pa.RecordBatch] = []
        reader = threading.Thread(target=lambda: rest.extend(batches))
        reader.start()
        made.close()
        until(lambda: not reader.is_alive(), "the reader ends")
        assert not cleaned.is_set(), "and did so although the generator waits"
        assert rest == []
        gate.set()
        until(cleaned.is_set, "the generator is closed")

    def test_schema_comes_from_the_first_item(self) -> None:
        made = source(iter([{"id": 1, "name": "x"}, {"id": 2}]), name="left")
        assert not made.schema_known
        assert made.schema() == pa.schema({"id": pa.int64(), "name": pa.string()})
        assert made.schema_known
        assert pa.Table.from_batches(made.batches()).to_pylist() == [{"id": 1, "name": "x"}, {"id": 2, "name": None}]

    def test_a_given_schema_is_known_before_any_item(self) -> None:
        def never() -> Iterator[dict[str, int]]:
            raise AssertionError("pulled")
            yield

        made = source(never(), schema=pa.schema({"id": pa.int32()}))
        assert made.schema_known
        assert made.schema().types == [pa.int32()]
        assert source([TABLE]).schema_known

    def test_empty(self) -> None:
        assert "is empty" in breaks(iter([]), name="left")
        assert read(iter([]), schema=TABLE.schema).num_rows == 0
        assert read(iter([TABLE.slice(0, 0)])).schema == TABLE.schema
        assert read(TABLE.slice(0, 0)).num_rows == 0

    def test_extra_key(self) -> None:
        told = breaks(iter([{"id": 1}, {"id": 2, "v": 3}]), name="left")
        assert told.startswith("left, row 2: column 'v' is not expected; the columns are id")
        assert "column 'v'" in breaks([{"id": 1}, {"id": 2, "v": 3}])

    def test_key_that_was_none_at_first(self) -> None:
        told = breaks(iter([{"id": 1, "v": None}, {"id": 2, "v": 0.5}]), name="left")
        assert told == (
            "left, row 2: column 'v' has 0.5 (float), but began with nothing but nulls, so its type is not known; "
            "pass a schema with wm.source(..., schema=...)"
        )
        told = breaks(iter([pa.table({"v": pa.nulls(1)}), pa.table({"v": [1]})]), name="left")
        assert told.startswith("left, batch 2: column 'v' has int64, but began with nothing but nulls")
        schema = pa.schema({"id": pa.int64(), "v": pa.float64()})
        assert read(iter([{"id": 1, "v": None}, {"id": 2, "v": 0.5}]), schema=schema)["v"].to_pylist() == [None, 0.5]
        assert read([{"id": 1, "v": None}, {"id": 2, "v": 0.5}])["v"].to_pylist() == [None, 0.5]

    @pytest.mark.parametrize(
        "first, later",
        [
            (1, 2.5),
            (1, "x"),
            (1, True),
            ("x", 1),
            (True, 1),
            (0.5, 2**60 + 1),
            (1, 2**70),
            ([1], [1.5]),
            ({"a": 1}, {"a": 1, "b": 2}),
            (dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)),
            (dt.date(2024, 1, 1), 5),
        ],
        ids=str,
    )
    def test_a_value_that_would_change_its_meaning(self, first: object, later: object) -> None:
        told = breaks(iter([{"v": first}, {"v": first}, {"v": later}]), name="left")
        assert told.startswith("left, row 3: column 'v' has ")
        assert str(pa.array([first]).type) in told

    @pytest.mark.parametrize(
        "type_, value",
        [
            (pa.int8(), 5),
            (pa.float64(), 5),
            (pa.int64(), 5.0),
            (pa.decimal128(10, 2), 5),
            (pa.large_string(), "x"),
            (pa.dictionary(pa.int32(), pa.string()), "x"),
            (pa.timestamp("s"), dt.datetime(2024, 1, 1)),
            (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
            (pa.struct({"a": pa.int32(), "b": pa.string()}), {"a": 1, "b": None}),
            (pa.list_(pa.float32()), [0.5]),
            (pa.float16(), 0.5),
        ],
        ids=str,
    )
    def test_values_that_fit_a_given_type(self, type_: pa.DataType, value: object) -> None:
        table = read(iter([{"v": value}, {}]), schema=pa.schema({"v": type_}))
        assert table.schema.types == [type_]
        assert table["v"].to_pylist() == [value, None]

    def test_batch_of_another_type(self) -> None:
        items = [pa.table({"id": [1], "v": [1]}), pa.table({"id": [2], "v": ["x"]})]
        assert breaks(iter(items), name="left").startswith(
            "left, batch 2: column 'v' has string, where int64 was expected"
        )
        naive, zoned = (pa.table({"t": pa.array([0], pa.timestamp("us", zone))}) for zone in (None, "UTC"))
        assert "column 't' has timestamp[us, tz=UTC]" in breaks(iter([naive, zoned]))

    def test_batches_that_can_be_cast(self) -> None:
        items = [pa.table({"id": [1], "v": [0.5]}), pa.table({"v": pa.array([2], pa.int8()), "id": [2]})]
        assert read(iter(items)).to_pydict() == {"id": [1, 2], "v": [0.5, 2.0]}

    def test_columns_of_one_name(self) -> None:
        twice = pa.record_batch([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
        other = pa.record_batch([pa.array([3]), pa.array([1]), pa.array([2])], names=["b", "a", "a"])
        assert conform(other, twice.schema).equals(twice)
        assert "is there 1 times, where 2 were expected" in breaks(
            iter([twice, pa.record_batch({"a": [1], "b": [2]})]), name="left"
        )

    @pytest.mark.parametrize("items", [[1], ["x"], [None], [TABLE, {"id": 1}], [[1, 2]]])
    def test_items_of_no_known_kind(self, items: list[object]) -> None:
        assert f"as item {len(items)}" in breaks(iter(items), name="left")

    @pytest.mark.parametrize("kind", [dict, UserDict])
    def test_an_iterator_may_give_one_dict_again_and_again(self, kind: type) -> None:
        def reused() -> Iterator[object]:
            row = kind()
            for number in range(3000):
                row["id"] = number
                yield row

        assert read(reused())["id"].to_pylist() == list(range(3000))

    @pytest.mark.parametrize("values", [[2**63], [None, 1, 2**64 - 1]])
    def test_whole_numbers_beyond_int64_are_unsigned(self, values: list[int | None]) -> None:
        schema = pa.schema({"v": pa.uint64()})
        rows = [{"v": value} for value in values]
        assert read(rows).schema == schema
        assert read(rows)["v"].to_pylist() == values
        assert read(iter(rows), schema=schema)["v"].to_pylist() == values
        assert read(iter(rows[-1:])).schema == schema

    def test_dicts_mixed_with_something_else(self) -> None:
        assert breaks(iter([{"id": 1}, TABLE]), name="left") == "left gives Table as row 2; it began with dicts"
        assert "mixes dicts with int" in breaks([{"id": 1}, 2], name="left")
        assert "not a string" in breaks(iter([{1: 2}]))
        assert "no Arrow type" in breaks(iter([{"v": object()}]))
        assert "no common type" in breaks([{"v": 1}, {"v": "x"}])
        told = "column 'v' has whole numbers beyond int64 that need another type, such as decimal128(38, 0); pass"
        for values in ([-1, 2**63], [2**64]):
            assert told in breaks([{"v": value} for value in values])
        assert "no common type" in breaks([{"v": dt.date(2024, 1, 1)}, {"v": dt.datetime(2024, 1, 1, 5)}])

    @pytest.mark.parametrize("kind", ["dicts", "tables"])
    def test_source_that_raises_midway(self, kind: str) -> None:
        original = ValueError("the pump is dry\nand more")

        def failing() -> Iterator[object]:
            for i in range(3):
                yield {"id": i} if kind == "dicts" else pa.table({"id": [i]})
            raise original

        made = source(failing(), name="left")
        seen = 0

        def read_on() -> None:
            nonlocal seen
            for batch in made.batches():
                seen += batch.num_rows

        with pytest.raises(SourceError, match=r"^left broke off after 3 rows: the pump is dry$") as caught:
            read_on()
        assert seen == 3
        assert caught.value.__cause__ is original

    def test_source_that_raises_at_once(self) -> None:
        def failing() -> Iterator[object]:
            raise KeyError("id")
            yield

        assert breaks(failing(), name="left") == "left broke off after 0 rows: KeyError: 'id'"
        assert breaks(failing(), name="left", schema=TABLE.schema) == "left broke off after 0 rows: KeyError: 'id'"
