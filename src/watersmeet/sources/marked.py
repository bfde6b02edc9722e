"""Inputs with punctuations among their rows: iterators, and files of XML or NDJSON with inline markers."""

from __future__ import annotations

import gzip
import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from xml.parsers import expat

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from watersmeet.core.errors import ProtocolError, SourceError
from watersmeet.core.promises import ANY, Among, Promises, Punctuation, Range
from watersmeet.sources.base import BATCH_ROWS, PASS_A_SCHEMA, UNNAMED, BaseSource, expanded
from watersmeet.sources.conform import from_values
from watersmeet.sources.tables import as_table
from watersmeet.sources.whole_numbers import exact_types, texts_of_json, with_types

Item: TypeAlias = "pa.RecordBatch | Punctuation"

TEXT_BLOCK = 1 << 18
"""Bytes of text parsed at a time."""
LONGEST_ROW = 16 << 20
"""Bytes of a row at most: a file of a few bytes may unfold to one that no memory holds."""
MARKER = "punct:"
"""What the name of a punctuation begins with, in XML and in NDJSON."""


class MarkedSource(BaseSource):
    """A source with punctuations among its rows; `batches` gives the rows alone."""

    def __init__(self, name: str, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS) -> None:
        super().__init__(name, schema, batch_rows)
        self.promises = Promises(punctuated=True)

    def marked_batches(self) -> Iterator[Item]:
        """Rows in small batches, with the punctuations in their places; can be asked for once."""
        if self._begun:
            raise ProtocolError(f"{self.name} has already been read; make a new source to read it again")
        self._begun = True
        return self.guarded(self._fitted_items())

    def _fitted_items(self) -> Iterator[Item]:
        schema = self.schema()
        for number, item in enumerate(self._items(), 1):
            if isinstance(item, Punctuation):
                yield self._checked(item, schema)
            else:
                yield from self._fitted(item, schema, number)

    def _checked(self, punctuation: Punctuation, schema: pa.Schema) -> Punctuation:
        for column in punctuation.pattern:
            if column not in schema.names:
                raise SourceError(
                    f"{self.name}: a punctuation is about column {column!r}; there are {', '.join(schema.names)}"
                )
        return punctuation

    def _read(self) -> Iterator[pa.RecordBatch]:
        return (item for item in self._items() if not isinstance(item, Punctuation))

    @abstractmethod
    def _items(self) -> Iterator[Item]:
        """Rows and punctuations, in order."""


class MarkedIterator(MarkedSource):
    """Batches, tables or dicts as they come, and punctuations among them.

    >>> hits = MarkedIterator([{"sno": 79}, {"sno": 81}, Punctuation({"sno": 79})], "hits")
    >>> [item if isinstance(item, Punctuation) else item.to_pylist() for item in hits.marked_batches()]
    [[{'sno': 79}], [{'sno': 81}], Punctuation(sno = 79)]
    """

    def __init__(
        self,
        items: Iterable[object],
        name: str = UNNAMED,
        schema: pa.Schema | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        super().__init__(name, schema, batch_rows)
        self._at_once = isinstance(items, list | tuple)
        self.waits = self._at_once
        self._source = self.drains = iter(items)
        self._ahead: list[object] = []

    @property
    def schema_known(self) -> bool:
        """True once a schema was given; a list never keeps anyone waiting."""
        return self._schema is not None or self._at_once

    def _find_schema(self) -> pa.Schema:
        for item in self._source:
            self._ahead.append(item)
            if not isinstance(item, Punctuation):
                return self._batches_of(item, None)[0].schema
        raise SourceError(f"{self.name} has no rows, so its columns are not known; {PASS_A_SCHEMA}")

    def _items(self) -> Iterator[Item]:
        ahead, self._ahead = self._ahead, []
        for some in (ahead, self._source):
            for item in some:
                if isinstance(item, Punctuation):
                    yield item
                else:
                    yield from self._batches_of(item, self._schema)

    def _batches_of(self, item: object, schema: pa.Schema | None) -> list[pa.RecordBatch]:
        if isinstance(item, Mapping):
            if schema is None:
                return [pa.RecordBatch.from_pylist([dict(item)])]
            strange = next((name for name in item if name not in schema.names), None)
            if strange is not None:
                raise SourceError(f"{self.name}: a row has the column {strange!r}; there are {', '.join(schema.names)}")
            columns = [from_values([item.get(field.name)], field) for field in schema]
            return [pa.RecordBatch.from_arrays(columns, schema=schema)]
        table = as_table(item, self.name)
        if table is None:
            raise SourceError(
                f"{self.name} gives an item of type {type(item).__name__}; give batches, tables, dicts or punctuations"
            )
        return table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]


class MarkedNdjson(MarkedSource):
    r"""A file of one JSON object a line, some of which are punctuations.

    A punctuation is an object with one key that begins with `punct:`; its value is the pattern. In a pattern, a value
    stands for itself, `"*"` for anything, a list for one of its values, and an object with some of `"ge"`, `"gt"`,
    `"le"` and `"lt"` for a range.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "hits.ndjson"
    >>> _ = path.write_text('{"sno": 79, "ip": "64.58.76.224"}\n{"punct:record": {"sno": 79, "ip": "*"}}\n')
    >>> [item if isinstance(item, Punctuation) else item.to_pylist() for item in MarkedNdjson(path).marked_batches()]
    [[{'sno': 79, 'ip': '64.58.76.224'}], Punctuation(sno = 79)]
    """

    def __init__(
        self, path: Path, name: str = UNNAMED, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS
    ) -> None:
        super().__init__(str(path) if name == UNNAMED else name, schema, batch_rows)
        self._path = path
        if not path.is_file():
            raise SourceError(f"{self.name} does not exist")

    def _find_schema(self) -> pa.Schema:
        with _opened(self._path) as file:
            for block in _blocks(file):
                plain = b"".join(line for line in block.splitlines(keepends=True) if not _MARKED_LINE.match(line))
                if plain.strip():
                    found = pyarrow.json.read_json(pa.py_buffer(plain)).schema
                    return with_types(found, exact_types(found, partial(texts_of_json, plain)))
        raise SourceError(f"{self.name} has no rows, so its columns are not known; {PASS_A_SCHEMA}")

    def _items(self) -> Iterator[Item]:
        with _opened(self._path) as file:
            for block in _blocks(file):
                start = 0
                for marker in _MARKED_LINE.finditer(block):
                    yield from self._rows(block[start : marker.start()])
                    start = block.find(b"\n", marker.start())
                    start = len(block) if start < 0 else start + 1
                    yield self._punctuation(block[marker.start() : start])
                yield from self._rows(block[start:])

    def _rows(self, text: bytes) -> Iterator[pa.RecordBatch]:
        if text.strip():
            how = pyarrow.json.ParseOptions(explicit_schema=self.schema(), unexpected_field_behavior="error")
            options = pyarrow.json.ReadOptions(use_threads=False, block_size=max(1, len(text)))
            table = pyarrow.json.read_json(pa.py_buffer(text), options, how)
            table.validate(full=True)  # or what is no UTF-8 would pass for text
            yield from table.to_batches()

    def _punctuation(self, line: bytes) -> Punctuation:
        try:
            marker = json.loads(line)
            ((_, pattern),) = marker.items()
            return Punctuation({name: self._typed(name, value) for name, value in pattern.items()})
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError, ArithmeticError) as error:
            told = line[:_SHOWN].decode(errors="replace").strip()
            raise SourceError(f"{self.name}: {told!r} is no punctuation: {error}") from None

    def _typed(self, name: str, value: Any) -> object:
        if value == "*":
            return ANY
        if isinstance(value, list):
            return Among(tuple(self._value(name, each) for each in value))
        if isinstance(value, dict):
            unknown = set(value) - {"ge", "gt", "le", "lt"}
            if unknown or not value:
                raise ValueError(f"a range has ge, gt, le and lt, not {', '.join(sorted(unknown)) or 'nothing'}")
            low, high = value.get("ge", value.get("gt")), value.get("le", value.get("lt"))
            bounds = [None if bound is None else self._value(name, bound) for bound in (low, high)]
            return Range(bounds[0], bounds[1], "gt" in value, "lt" in value)
        return self._value(name, value)

    def _value(self, name: str, value: Any) -> object:
        """In the column's type: a date, say, is a string in JSON."""
        schema = self.schema()
        if name not in schema.names or not isinstance(value, str):
            return value
        return pc.cast(pa.array([value]), schema.field(name).type)[0].as_py()


_SHOWN = 200
"""Bytes of a line that an error shows."""
_MARKED_LINE = re.compile(rb'^[ \t]*\{[ \t]*"punct:', re.MULTILINE)


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    return path.open("rb")


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about a block at a time."""
    rest = b""
    while block := file.read(TEXT_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > LONGEST_ROW:
            raise SourceError(f"a line is longer than {LONGEST_ROW >> 20} MiB, which no row is")
    if rest:
        yield rest


class MarkedXml(MarkedSource):
    r"""An XML stream: each child of the root is a row or, if its name begins with `punct:`, a punctuation.

    The children of a row are its columns, and hold text only. In a punctuation, `*` stands for anything, `{3, 4}` for
    one of some values, and `[3, 7]`, `(3, 7]` or `[, 7)` for a range. Types are told by the first rows unless a schema
    is given. Documents that declare entities or a document type are refused.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "hits.xml"
    >>> _ = path.write_text('''<stream:AccessRecord>
    ...   <record><sno> 79 </sno><ipaddr> 64.58.76.224 </ipaddr></record>
    ...   <punct:record><sno> 79 </sno><ipaddr> * </ipaddr></punct:record>
    ... </stream:AccessRecord>''')
    >>> [item if isinstance(item, Punctuation) else item.to_pylist() for item in MarkedXml(path).marked_batches()]
    [[{'sno': 79, 'ipaddr': '64.58.76.224'}], Punctuation(sno = 79)]
    """

    def __init__(
        self, path: Path, name: str = UNNAMED, schema: pa.Schema | None = None, batch_rows: int = BATCH_ROWS
    ) -> None:
        super().__init__(str(path) if name == UNNAMED else name, schema, batch_rows)
        self._path = path
        if not path.is_file():
            raise SourceError(f"{self.name} does not exist")

    def _find_schema(self) -> pa.Schema:
        for records in self._records():
            rows = [values for marked, values in records if not marked]
            if rows:
                names = list(dict.fromkeys(name for row in rows for name in row))
                return pa.schema([(name, _told_type([row.get(name) for row in rows])) for name in names])
        raise SourceError(f"{self.name} has no rows, so its columns are not known; {PASS_A_SCHEMA}")

    def _records(self) -> Iterator[list[tuple[bool, dict[str, str]]]]:
        """Blocks of rows and punctuations as text."""
        reader = _XmlReader()
        with _opened(self._path) as file:
            while block := file.read(TEXT_BLOCK):
                reader.feed(block, False)
                yield reader.take()
            reader.feed(b"", True)
            yield reader.take()

    def _items(self) -> Iterator[Item]:
        for records in self._records():
            rows: list[dict[str, str]] = []
            for marked, values in records:
                if not marked:
                    rows.append(values)
                    continue
                if rows:
                    yield self._batch(rows)
                    rows = []
                yield self._punctuation(values)
            if rows:
                yield self._batch(rows)

    def _batch(self, rows: list[dict[str, str]]) -> pa.RecordBatch:
        schema = self.schema()
        strange = next((name for row in rows for name in row if name not in schema.names), None)
        if strange is not None:
            raise SourceError(f"{self.name}: a row has the column {strange!r}; there are {', '.join(schema.names)}")
        columns = [self._cast(pa.array([row.get(field.name) for row in rows], pa.string()), field) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _cast(self, texts: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return pc.cast(texts, field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
            raise SourceError(f"{self.name}: column {field.name!r}: {problem}; {PASS_A_SCHEMA}") from None

    def _punctuation(self, values: dict[str, str]) -> Punctuation:
        schema = self.schema()
        pattern: dict[str, object] = {}
        for name, text in values.items():
            if name not in schema.names:
                raise SourceError(
                    f"{self.name}: a punctuation is about column {name!r}; there are {', '.join(schema.names)}"
                )
            pattern[name] = self._pattern(text, schema.field(name))
        return Punctuation(pattern)

    def _pattern(self, text: str, field: pa.Field) -> object:
        def value(part: str) -> object:
            return self._cast(pa.array([part.strip()]), field)[0].as_py()

        if text == "*":
            return ANY
        if text.startswith("{") and text.endswith("}"):
            return Among(tuple(value(part) for part in text[1:-1].split(",")))
        span = re.fullmatch(r"([\[(])([^,]*),([^,]*)([\])])", text)
        if span is None:
            return value(text)
        low, high = (value(part) if part.strip() else None for part in span.group(2, 3))
        return Range(low, high, span[1] == "(", span[4] == ")")


class _XmlReader:
    """Rows and punctuations out of XML that comes in pieces. Names may have prefixes that nobody declared."""

    def __init__(self) -> None:
        self._found: list[tuple[bool, dict[str, str]]] = []
        self._path: list[str] = []
        self._record: dict[str, str] = {}
        self._text: list[str] = []
        self._since = 0
        """Bytes that were read since the last row or punctuation."""
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.ExternalEntityRefHandler = self._refuse
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def feed(self, block: bytes, last: bool) -> None:
        self._since += len(block)
        known = len(self._found)
        try:
            self._parser.Parse(block, last)
        except (expat.ExpatError, LookupError, ValueError) as error:  # encodings that nobody knows are the latter
            raise SourceError(f"this is no XML: {error}") from None
        if len(self._found) > known:
            self._since = 0
        elif self._since > LONGEST_ROW:
            raise SourceError(f"a row is longer than {LONGEST_ROW >> 20} MiB, which is not read")

    def take(self) -> list[tuple[bool, dict[str, str]]]:
        found, self._found = self._found, []
        return found

    def _refuse(self, *_: Any) -> int:
        raise SourceError("the document declares a type or entities, which are not read; leave the declaration out")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if len(self._path) == 2:
            self._record = {}
        elif len(self._path) > 3:
            raise SourceError(f"column {self._path[2]!r} has an element {name!r} inside; columns hold text only")

    def _end(self, name: str) -> None:
        depth = len(self._path)
        self._path.pop()
        if depth == 3:
            if name in self._record:
                raise SourceError(f"a row has column {name!r} twice")
            self._record[name] = "".join(self._text).strip()
        elif depth == 2:
            self._found.append((name.startswith(MARKER), self._record))
        self._text.clear()


def _told_type(texts: list[str | None]) -> pa.DataType:
    """The narrowest of whole numbers, numbers and text that holds all values."""
    array = pa.array(texts, pa.string())
    for type_ in (pa.int64(), pa.float64()):
        try:
            pc.cast(array, type_)
        except pa.ArrowInvalid:
            continue
        return type_
    return pa.string()


def is_marked(data: object, punctuated: bool) -> bool:
    """Whether data may have punctuations among its rows: if that is said, or can be seen."""
    if isinstance(data, str | os.PathLike):
        return punctuated or _suffix(data) in _XML
    if isinstance(data, list | tuple):
        return punctuated or any(isinstance(item, Punctuation) for item in data)
    return punctuated and isinstance(data, Iterable) and as_table(data, UNNAMED) is None


def marked_source(data: object, name: str, schema: pa.Schema | None, batch_rows: int) -> MarkedSource:
    """A source of data with punctuations among its rows."""
    if isinstance(data, str | os.PathLike):
        path = expanded(data, name)
        if _suffix(path) in _XML:
            return MarkedXml(path, name, schema, batch_rows)
        if _suffix(path) in _NDJSON:
            return MarkedNdjson(path, name, schema, batch_rows)
        raise SourceError(f"{path} can hold no punctuations; XML (.xml) and NDJSON (.ndjson, .jsonl) files can")
    assert isinstance(data, Iterable)
    return MarkedIterator(data, name, schema, batch_rows)


_XML, _NDJSON = (".xml", ".xml.gz"), (".ndjson", ".jsonl", ".json", ".ndjson.gz", ".jsonl.gz")


def _suffix(path: str | os.PathLike[str]) -> str:
    name = Path(path).name.lower()
    return "".join(Path(name).suffixes[-2:]) if name.endswith(".gz") else Path(name).suffix
