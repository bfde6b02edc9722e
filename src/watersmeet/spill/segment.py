"""Segments: rows and arrays in one immutable, checksummed piece that is used where it lies, without being loaded.

    header      64 bytes, always the same
    block       a page (an Arrow record batch) or a NumPy array, padded with zeros to a multiple of 64 bytes
    block       ...
    directory   JSON: where each block lies, its length and checksum, rows per page, the schema, the user's `meta`
    trailer     offset, length and checksum of the directory, end mark

A block's checksum covers its padding, the directory's covers the trailer's numbers, and the sizes must add up to the
file's: no byte can change, and none can be cut off or added, without being noticed. The checksum is zlib's CRC-32,
which is about as fast as writing to the page cache (3.7 GB/s where it was measured).

Plain pages are bare record batch messages, and the schema is in the directory once. Dictionaries travel beside a record
batch, not in it, so that pages of types that contain one are small IPC streams of their own.
"""

from __future__ import annotations

import ast
import base64
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from watersmeet.core.errors import ProtocolError, SegmentError
from watersmeet.spill.store import Store

ALIGNMENT = 64
_HEADER = b"watersmeet segment 1\n".ljust(ALIGNMENT, b"\0")
_END_MARK = b"wm.end.1"
_TRAILER = struct.Struct("<QQI8s")  # the directory's offset, length and checksum, end mark
_POSITION = struct.Struct("<QQ")
_ZEROS = bytes(ALIGNMENT)
_CHECKSUM_DIGITS = len(str(2**32 - 1))
_NONSENSE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError, pa.ArrowException,
)  # fmt: skip
"""What goes wrong where a directory has a right checksum and was not written by us."""
_REMEDY = "run the join again or restore an older snapshot, and check the disk if this comes back"


def text_of(schema: pa.Schema) -> str:
    """A schema for JSON."""
    return base64.b64encode(schema.serialize()).decode("ascii")


def schema_of(text: str) -> pa.Schema:
    """What `text_of` has made; `ValueError` if it is something else.

    >>> schema_of(text_of(pa.schema({"id": pa.int64()}))).types
    [DataType(int64)]
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"this is no schema: {error}") from error


@dataclass(frozen=True, slots=True)
class _ArrayBlock:
    offset: int
    length: int
    checksum: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Directory:
    """What is where. Pages are rows of (offset, length, checksum, rows), kept flat because there may be many."""

    schema: pa.Schema
    pages: np.ndarray[Any, np.dtype[np.int64]]
    arrays: Mapping[str, _ArrayBlock]
    meta: Mapping[str, Any]
    size: int  # of the whole segment
    own_size: int  # of the directory and the trailer
    checksum: int  # of the directory itself, and so of everything


@cache
def _dtype(description: str) -> np.dtype[Any]:
    """The type of an array; scans ask for the same ones again and again."""
    found = np.lib.format.descr_to_dtype(ast.literal_eval(description))
    if found.hasobject:
        raise ValueError(f"{description} is a type of Python objects, which no segment holds")
    return found


class SegmentWriter:
    """Writes one segment, which exists once it is sealed and not before.

    As a context manager it aborts what was not sealed.

    >>> from watersmeet.spill.store import MemoryStore
    >>> store = MemoryStore()
    >>> with SegmentWriter(store, "left-0", pa.schema({"id": pa.int64()})) as writer:
    ...     writer.write_page(pa.record_batch({"id": [7, 8]}))
    ...     writer.add_array("hashes", np.array([70, 80]))
    ...     segment = writer.seal({"partition": 3})
    >>> segment.rows, segment.array("hashes").tolist(), segment.meta
    (2, [70, 80], {'partition': 3})
    """

    def __init__(self, store: Store, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.schema = schema
        self.nbytes = 0
        self._store = store
        self._as_streams = _has_dictionaries(schema)
        self._pages: list[tuple[int, int, int, int]] = []
        self._arrays: dict[str, _ArrayBlock] = {}
        self._ended = False
        self._out = store.create(name)
        self._write(_HEADER)

    def write_page(self, batch: pa.RecordBatch) -> None:
        """Add rows; how many make a page is the caller's choice."""
        if not batch.schema.equals(self.schema):
            raise ProtocolError(
                f"segment {self.name!r} holds rows of {_columns(self.schema)}, not of {_columns(batch.schema)}; "
                f"write them to a segment of their own"
            )
        block = _as_stream(batch, self.schema) if self._as_streams else batch.serialize()
        offset, checksum = self._write_block(block, block.size)
        self._pages.append((offset, block.size, checksum, batch.num_rows))

    def add_array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Put an array of any type but `object` beside the rows."""
        if name in self._arrays:
            raise ProtocolError(f"segment {self.name!r} has an array {name!r} already; choose another name")
        if array.dtype.hasobject:
            raise ProtocolError(f"array {name!r} holds Python objects, which cannot be spilled; use a fixed-size type")
        # As plain bytes, for not every type (dates, say) offers its memory by itself.
        block = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        offset, checksum = self._write_block(block.data, block.nbytes)
        dtype = repr(np.lib.format.dtype_to_descr(array.dtype))
        self._arrays[name] = _ArrayBlock(offset, block.nbytes, checksum, dtype, array.shape)

    def seal(self, meta: Mapping[str, Any] | None = None) -> Segment:
        """Publish the segment, with `meta`: anything JSON can say (tuples come back as lists)."""
        directory = {
            "schema": text_of(self.schema),
            "pages": self._pages,
            "arrays": {
                name: (block.offset, block.length, block.checksum, block.dtype, block.shape)
                for name, block in self._arrays.items()
            },
            "meta": dict(meta or {}),
        }
        text = json.dumps(directory, separators=(",", ":"), default=_plain_number).encode() + self._digits_spared()
        position = _POSITION.pack(self.nbytes, len(text))
        checksum = zlib.crc32(position, zlib.crc32(text))
        self._write(text)
        self._write(_TRAILER.pack(self.nbytes - len(text), len(text), checksum, _END_MARK))
        self._guard(self._out.commit)
        self._ended = True
        return Segment(self._store, self.name, _parse(text, self.nbytes, checksum))

    def _digits_spared(self) -> bytes:
        """As many spaces as the checksums are short of their most digits: fewer rows never take more bytes, whatever
        the checksums are, so that who has room for a segment has room for what is left of it.
        """
        checksums = [page[2] for page in self._pages] + [block.checksum for block in self._arrays.values()]
        return b" " * sum(_CHECKSUM_DIGITS - len(str(checksum)) for checksum in checksums)

    def abort(self) -> None:
        """Leave nothing; harmless after `seal`."""
        if not self._ended:
            self._ended = True
            self._out.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _write_block(self, block: Any, size: int) -> tuple[int, int]:
        offset = self.nbytes
        padding = _ZEROS[: -size % ALIGNMENT]
        checksum = zlib.crc32(padding, zlib.crc32(block))
        if size:
            self._write(block)
        if padding:
            self._write(padding)
        return offset, checksum

    def _write(self, data: Any) -> None:
        if self._ended:
            raise ProtocolError(f"segment {self.name!r} has been sealed or aborted; begin another")
        self._guard(lambda: self._out.write(data))
        self.nbytes += memoryview(data).nbytes

    def _guard(self, action: Callable[[], None]) -> None:
        """Nothing half-written stays, whatever goes wrong."""
        try:
            action()
        except BaseException:
            self.abort()
            raise


class Segment:
    """A sealed segment: opening it reads the directory alone, and pages are read in place.

    Each page and array is checked against its checksum when it is first read after opening. What was read stays valid
    for as long as it is referred to, also after `close` and after the store has removed the segment.

    A segment that was pickled, closed or inherited by a forked process opens itself again by its name.
    """

    def __init__(self, store: Store, name: str, directory: _Directory) -> None:
        self.name = name
        self._store = store
        self._directory = directory
        self._as_streams = _has_dictionaries(directory.schema)
        self._rows = int(directory.pages[:, 3].sum())
        self._buffer: pa.Buffer | None = None
        self._verified = bytearray(len(directory.pages))
        self._verified_arrays: set[str] = set()

    @classmethod
    def open(cls, store: Store, name: str) -> Segment:
        """Map a segment and check its two ends; `SegmentError` if it is missing, torn or altered."""
        buffer = store.open(name)
        segment = cls(store, name, _read_directory(store.shown(name), buffer))
        segment._buffer = buffer
        store.count_read(segment._directory.own_size)
        return segment

    @property
    def schema(self) -> pa.Schema:
        """The rows' schema."""
        return self._directory.schema

    @property
    def rows(self) -> int:
        """How many rows there are on all pages."""
        return self._rows

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return len(self._directory.pages)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._directory.arrays)

    @property
    def meta(self) -> Mapping[str, Any]:
        """What `seal` was told."""
        return self._directory.meta

    @property
    def nbytes(self) -> int:
        """The size of the whole segment in the store."""
        return self._directory.size

    @property
    def checksum(self) -> int:
        """A number that changes with any byte of the segment."""
        return self._directory.checksum

    def page_rows(self, page: int) -> int:
        """How many rows a page has."""
        return int(self._directory.pages[page, 3])

    def page_nbytes(self, page: int) -> int:
        """How many bytes a page has."""
        return int(self._directory.pages[page, 1])

    def read_page(self, page: int) -> pa.RecordBatch:
        """A page's rows, uncopied. Every call counts as a read."""
        if not 0 <= page < self.pages:
            raise IndexError(f"segment {self.name!r} has {self.pages} pages, so there is no page {page}")
        offset, length, checksum, _ = self._directory.pages[page].tolist()
        block = self._block(offset, length, checksum, f"page {page}", verify=not self._verified[page])
        self._verified[page] = True
        try:
            if self._as_streams:
                return pa.ipc.open_stream(block).read_next_batch()
            return pa.ipc.read_record_batch(block, self._directory.schema)
        except (pa.ArrowException, StopIteration, OSError) as error:
            raise _damaged(self._shown, f"page {page} holds no rows of its columns ({error})") from error

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """An array, uncopied and read-only. Every call counts as a read."""
        if name not in self._directory.arrays:
            raise KeyError(f"segment {self.name!r} has no array {name!r}; it has {', '.join(self.arrays) or 'none'}")
        entry = self._directory.arrays[name]
        verify = name not in self._verified_arrays
        block = self._block(entry.offset, entry.length, entry.checksum, f"array {name!r}", verify)
        self._verified_arrays.add(name)
        dtype = _dtype(entry.dtype)
        array = np.frombuffer(block, np.uint8).view(dtype) if entry.length else np.empty(entry.shape, dtype)
        array = array.reshape(entry.shape)
        array.flags.writeable = False
        return array

    def mapped(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """All bytes, uncopied and unchecked, among them those of pages that were read. Counts nothing as read."""
        return np.frombuffer(self._mapped(), np.uint8)

    def release(self, page: int | None = None) -> None:
        """Let a page, or everything, leave this process's memory until it is read again.

        Mapped pages that were read count as resident; a reader that passes over a large segment releases each page when
        done with it.
        """
        if self._buffer is None:
            return
        offset, length = (0, self.nbytes) if page is None else self._directory.pages[page, :2].tolist()
        self._store.release(self._buffer, offset, length)

    def close(self) -> None:
        """Drop the mapping. The next read maps the segment again, and checks everything again."""
        self._buffer = None
        self._verified = bytearray(self.pages)
        self._verified_arrays.clear()

    def __reduce__(self) -> tuple[Callable[[Store, str], Segment], tuple[Store, str]]:
        return Segment.open, (self._store, self.name)

    def __repr__(self) -> str:
        return f"<Segment {self.name!r}: {self.rows} rows on {self.pages} pages, {self.nbytes} bytes>"

    @property
    def _shown(self) -> str:
        return self._store.shown(self.name)

    def _block(self, offset: int, length: int, checksum: int, what: str, verify: bool) -> pa.Buffer:
        buffer = self._mapped()
        if verify and zlib.crc32(buffer.slice(offset, length + -length % ALIGNMENT)) != checksum:
            raise _damaged(self._shown, f"{what} was altered after it was written (its checksum differs)")
        self._store.count_read(length)
        return buffer.slice(offset, length)

    def _mapped(self) -> pa.Buffer:
        if self._buffer is None:
            buffer = self._store.open(self.name)
            if _read_directory(self._shown, buffer).checksum != self.checksum:
                raise _damaged(self._shown, "another segment has taken its name")
            self._buffer = buffer
        return self._buffer


def sealed_checksum(buffer: pa.Buffer) -> int:
    """The checksum that a sealed segment ends with, unverified; -1 if there is no room for one."""
    if buffer.size < _TRAILER.size:
        return -1
    checksum: int = _TRAILER.unpack(buffer.slice(buffer.size - _TRAILER.size))[2]
    return checksum


def _read_directory(name: str, buffer: pa.Buffer) -> _Directory:
    """The directory, once both ends of the segment and its size are found to be as written."""
    size = buffer.size
    if size < len(_HEADER) + _TRAILER.size:
        raise _damaged(name, f"it is torn: {size} bytes are too few to be a whole segment")
    offset, length, checksum, end_mark = _TRAILER.unpack(buffer.slice(size - _TRAILER.size))
    if end_mark != _END_MARK:
        raise _damaged(name, f"it is torn or altered: its {size} bytes do not end with the end mark")
    if buffer.slice(0, len(_HEADER)).to_pybytes() != _HEADER:
        raise _damaged(name, "it does not begin as a segment of this version does")
    if offset + length + _TRAILER.size != size:
        raise _damaged(name, f"it is torn or altered: it has {size} bytes, which is not what its end says")
    text = buffer.slice(offset, length).to_pybytes()
    if zlib.crc32(_POSITION.pack(offset, length), zlib.crc32(text)) != checksum:
        raise _damaged(name, "its directory was altered after it was written (its checksum differs)")
    try:
        found = _parse(text, size, checksum)
        _check_places(found, offset)
    except _NONSENSE as error:
        raise _damaged(name, f"its directory makes no sense ({type(error).__name__}: {error})") from error
    return found


def _check_places(directory: _Directory, end: int) -> None:
    """Whatever a directory names lies before it, and arrays have as many values as bytes: nothing else is believed."""
    arrays = directory.arrays
    of_arrays = np.array([(each.offset, each.length) for each in arrays.values()], np.int64).reshape(-1, 2)
    offsets, lengths = np.concatenate([directory.pages[:, :2], of_arrays]).T
    room = end - offsets  # for as many bytes as there are, with their padding
    if ((offsets < 0) | (lengths < 0) | (room < 0) | (lengths > room) | (-lengths % ALIGNMENT > room - lengths)).any():
        raise ValueError(f"it tells of more than the {end} bytes that there are")
    if (directory.pages[:, 3] < 0).any():
        raise ValueError("a page has less than no rows")
    for name, each in arrays.items():
        if any(size < 0 for size in each.shape) or math.prod(each.shape) * _dtype(each.dtype).itemsize != each.length:
            raise ValueError(f"array {name!r} has {each.length} bytes for {each.shape} values of {each.dtype}")


def _parse(text: bytes, size: int, checksum: int) -> _Directory:
    directory = json.loads(text)
    return _Directory(
        schema=schema_of(directory["schema"]),
        pages=np.array(directory["pages"], dtype=np.int64).reshape(-1, 4),
        arrays={
            name: _ArrayBlock(offset, length, crc, dtype, tuple(shape))
            for name, (offset, length, crc, dtype, shape) in directory["arrays"].items()
        },
        meta=directory["meta"],
        size=size,
        own_size=len(text) + _TRAILER.size,
        checksum=checksum,
    )


def _damaged(name: str, what: str) -> SegmentError:
    return SegmentError(f"spill segment {name!r} cannot be used: {what}; {_REMEDY}")


def _as_stream(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _has_dictionaries(schema: pa.Schema) -> bool:
    return any(_contains_dictionary(field.type) for field in schema)


def _contains_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _contains_dictionary(kind.storage_type)
    return pa.types.is_dictionary(kind) or any(
        _contains_dictionary(kind.field(child).type) for child in range(kind.num_fields)
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _plain_number(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ProtocolError(f"a segment's meta can hold what JSON can say, which {value!r} is not; use text or numbers")
