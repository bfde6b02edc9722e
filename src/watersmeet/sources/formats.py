"""How each file format is opened: a schema at once, then batches with little memory."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet as pq

from watersmeet.core.errors import SourceError
from watersmeet.sources.base import BATCH_BYTES, pieces
from watersmeet.sources.whole_numbers import exact_types, texts_of_json, with_types

TEXT_BLOCK = 1 << 18
"""Bytes of CSV or JSON parsed at a time, of which several blocks are read ahead; no row may be longer."""
PARQUET_BUFFER = 1 << 16
"""Bytes read at a time from each column chunk, instead of the whole chunk."""
RELEASE_BYTES = 8 << 20
"""After so many bytes, memory that is no longer needed is given back."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that is open: what it holds, its rows, and how to close it."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    close: Callable[[], None]
    blank: bool = False
    """It has no row, nor anything else that tells the types of its columns: they are those of nulls."""


Opener = Callable[[Path, "pa.Schema | None", int], Opened]
"""Opens a path; a schema, where one is already known, is imposed by formats that have no types of their own."""


@dataclass(frozen=True, slots=True)
class Format:
    """One file format."""

    open: Opener
    typed: bool
    """Whether a file carries its own schema, so that reading it costs next to nothing."""


def open_parquet(path: Path, schema: pa.Schema | None, batch_rows: int) -> Opened:
    """Parquet, a few pages at a time: neither a row group nor a column chunk is ever held whole."""
    file = pq.ParquetFile(path, pre_buffer=False, buffer_size=PARQUET_BUFFER)
    meta = file.metadata
    size = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
    fit = max(1, BATCH_BYTES * meta.num_rows // max(1, size))
    batches = file.iter_batches(batch_size=max(1, min(batch_rows, fit)), use_threads=False)
    return Opened(file.schema_arrow, _releasing(batches), file.close)


def _releasing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; what the allocator keeps of earlier pages goes back to the system every few MiB.

    Left alone, it held 70 MB for a file that needs 12.
    """
    since = 0
    for batch in batches:
        yield batch
        since += batch.nbytes
        if since >= RELEASE_BYTES:
            pa.default_memory_pool().release_unused()
            since = 0


def open_csv(path: Path, schema: pa.Schema | None, batch_rows: int, delimiter: str = ",") -> Opened:
    """Comma-separated text with a header; types come from the first 256 KiB unless they are known already."""

    def reader(types: Mapping[str, pa.DataType], quoted_gaps: bool | None = None) -> pyarrow.csv.CSVStreamingReader:
        return pyarrow.csv.open_csv(
            path,
            pyarrow.csv.ReadOptions(use_threads=False, block_size=TEXT_BLOCK),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            # A gap is NULL in text, too: as '' it would be a value, and rows without a key would meet each other.
            # Nothing else is: PyArrow would take NaN for a missing number, and NA for one among numbers, not texts.
            pyarrow.csv.ConvertOptions(
                column_types=dict(types),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=gaps_are_quoted if quoted_gaps is None else quoted_gaps,
            ),
            memory_pool=pa.system_memory_pool(),  # gives memory back at once, where the default one hoards
        )

    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    gaps_are_quoted = _gaps_are_quoted(path, delimiter, partial(reader, types))
    opened = reader(types)
    empty = [field.name for field in opened.schema if schema is None and pa.types.is_null(field.type)]
    if empty:
        blank = len(empty) == len(opened.schema) and next(opened, None) is None
        opened.close()
        if blank:
            return Opened(opened.schema, iter(()), opened.close, blank)
        # Nothing but gaps in the first block: text is the one type that can hold whatever follows.
        opened = reader(dict.fromkeys(empty, pa.string()))
    if schema is None:
        exact = exact_types(opened.schema, partial(_first_texts, reader))
        if exact:
            opened.close()
            opened = reader(dict.fromkeys(empty, pa.string()) | exact)
    return Opened(opened.schema, opened, opened.close)


def _gaps_are_quoted(path: Path, delimiter: str, reader: Callable[[bool], pyarrow.csv.CSVStreamingReader]) -> bool:
    """Whether `""` stands for a gap in a file's first block: among numbers, dates or the like it has no other meaning.

    PyArrow takes it for the same in all columns of a file.
    """
    with pa.input_stream(path) as file:
        block = bytes(file.read(TEXT_BLOCK))
    between = rf"[{re.escape(delimiter)}\r\n]".encode()
    if not re.search(between + rb'""(?:' + between + rb"|$)", block):
        return False
    try:
        with reader(False) as strict, reader(True) as loose:
            pairs = zip(strict.schema.types, loose.schema.types, strict=True)
            return any(one != other and not pa.types.is_null(other) for one, other in pairs)
    except pa.ArrowInvalid:  # the types are given
        return True


def _first_texts(
    reader: Callable[[Mapping[str, pa.DataType]], pyarrow.csv.CSVStreamingReader], names: list[str]
) -> pa.RecordBatch:
    """What some columns have in the first block of a CSV file, as text."""
    with reader(dict.fromkeys(names, pa.string())) as opened:
        return opened.read_next_batch()


def open_tsv(path: Path, schema: pa.Schema | None, batch_rows: int) -> Opened:
    """Tab-separated text."""
    return open_csv(path, schema, batch_rows, delimiter="\t")


def open_ndjson(path: Path, schema: pa.Schema | None, batch_rows: int) -> Opened:
    """One JSON object a line; fields and types come from the first 256 KiB unless they are known already."""
    how = pyarrow.json.ReadOptions(use_threads=False, block_size=TEXT_BLOCK)
    if schema is None:
        with pyarrow.json.open_json(path, how, memory_pool=pa.system_memory_pool()) as first:
            schema = first.schema
        schema = with_types(schema, exact_types(schema, lambda names: texts_of_json(_first_lines(path), names)))
    strict = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    opened = pyarrow.json.open_json(path, how, strict, memory_pool=pa.system_memory_pool())
    return Opened(opened.schema, map(_validated, opened), opened.close)


def _first_lines(path: Path) -> bytes:
    """What PyArrow tells the types of a JSON file by."""
    with pa.input_stream(path) as file:
        block = file.read(TEXT_BLOCK)
    return bytes(block if len(block) < TEXT_BLOCK else block[: block.rfind(b"\n") + 1])


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose text is UTF-8: the reader of JSON takes any bytes for it."""
    batch.validate(full=True)
    return batch


def open_ipc(path: Path, schema: pa.Schema | None, batch_rows: int) -> Opened:
    """Arrow's own format, file or stream (told apart by the first bytes), mapped rather than read."""
    found, raw, mapping = map_ipc(path)
    return Opened(found, _mapped_batches(raw, mapping, batch_rows), lambda: None)


def map_ipc(path: Path) -> tuple[pa.Schema, Iterator[pa.RecordBatch], mmap.mmap]:
    """A file in Arrow's own format: its schema, its batches as they are and not yet checked, and the mapping."""
    with path.open("rb") as file:
        magic = file.read(6)
        if not magic:
            raise pa.ArrowInvalid("the file is empty")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffer = pa.py_buffer(mapping)
    if magic == b"ARROW1":
        file_reader = pyarrow.ipc.open_file(buffer)
        return file_reader.schema, map(file_reader.get_batch, range(file_reader.num_record_batches)), mapping
    stream_reader = pyarrow.ipc.open_stream(buffer)
    return stream_reader.schema, iter(stream_reader), mapping


def _mapped_batches(raw: Iterator[pa.RecordBatch], mapping: mmap.mmap, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Pieces of mapped batches, checked, as kernels trust offsets; pages that were read are not kept resident.

    A page that is dropped comes back from the file if someone still looks at it, so views stay valid.
    """
    since = 0
    for batch in raw:
        for piece in pieces(batch, batch_rows):
            piece.validate(full=True)
            yield piece
            since += piece.nbytes
            if since >= RELEASE_BYTES and hasattr(mmap, "MADV_DONTNEED"):
                mapping.madvise(mmap.MADV_DONTNEED)
                since = 0


_PARQUET = Format(open_parquet, typed=True)
_CSV = Format(open_csv, typed=False)
_TSV = Format(open_tsv, typed=False)
_NDJSON = Format(open_ndjson, typed=False)
_IPC = Format(open_ipc, typed=True)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        ".parquet": _PARQUET,
        ".csv": _CSV,
        ".csv.gz": _CSV,
        ".tsv": _TSV,
        ".tsv.gz": _TSV,
        ".ndjson": _NDJSON,
        ".ndjson.gz": _NDJSON,
        ".jsonl": _NDJSON,
        ".jsonl.gz": _NDJSON,
        ".json": _NDJSON,
        ".arrow": _IPC,
        ".arrows": _IPC,
        ".ipc": _IPC,
        ".feather": _IPC,
    }
)


def format_of(path: Path) -> Format:
    """The format that a file's name tells.

    >>> format_of(Path("orders.CSV.gz")) is FORMATS[".csv"]
    True
    """
    name = path.name.lower()
    for extension, known in FORMATS.items():
        if name.endswith(extension):
            return known
    raise SourceError(f"the format of {path} is not known; file names must end in one of {', '.join(FORMATS)}")


def explain(reason: str, path: Path, schema: pa.Schema | None) -> str:
    """PyArrow's reason in the reader's words: columns by name, and what can be done.

    >>> explain("In CSV column #0: CSV conversion error to int64: 'x'", Path("a.csv"), pa.schema({"id": pa.int64()}))
    "column 'id', CSV conversion error to int64: 'x'; pass the types with wm.source(..., schema=...)"
    """
    names = [] if schema is None else schema.names
    if "straddl" in reason:
        return "a row is longer than 256 KiB"
    if "Column() changed from object" in reason:
        return "it must hold one JSON object a line"
    csv = re.match(r"In CSV column #(\d+): ", reason)
    if csv and len(names := _names_at_start(path) or names) > int(csv[1]):
        reason = f"column {names[int(csv[1])]!r}, {reason[csv.end() :]}"
    json = re.search(r"Column\(/([^)]*)\) changed", reason)
    if json:
        reason = f"column {json[1]!r}: {reason.removeprefix('JSON parse error: ')}"
    unexpected = "unexpected field" in reason
    if unexpected:
        strange = [name for name in _names_at_start(path) if name not in names]
        field = f"column {strange[0]!r}" if strange else "a field of a later row"
        reason = f"{field} is not expected; the columns are {', '.join(names)}"
    value = re.match(r"Failed to convert JSON to (.+?)(?:, couldn't parse)?:", reason)
    if value and schema is not None:  # of which column is left out; its type is said
        columns = [field.name for field in schema if str(field.type) == value[1]]
        reason = f"column {' or '.join(map(repr, columns))}, {reason}" if columns else reason
    if csv or json or unexpected or "Failed to convert JSON" in reason:
        reason += "; pass the types with wm.source(..., schema=...)"
    return reason


def _names_at_start(path: Path) -> list[str]:
    """A text file's own columns, which PyArrow's errors count or leave out; none if even its start cannot be read."""
    try:
        opened = format_of(path).open(path, None, 1)
    except (OSError, pa.ArrowException, SourceError, ValueError):
        return []
    opened.close()
    return list(opened.schema.names)
