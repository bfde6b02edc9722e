"""What a store is: named, write-once bytes, and counts of what went in and out; and the store that lives in memory."""

from __future__ import annotations

import os
import re
import threading
from typing import Protocol, TypeAlias

import pyarrow as pa

from watersmeet.core.closing import Closing
from watersmeet.core.errors import ProtocolError, SegmentError, SpillError

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
"""What a writer takes: anything contiguous that offers the buffer protocol."""

# Flat, and never hidden: hidden names are the stores' own (locks, unpublished files).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}")


_counting = threading.Lock()
"""Of all stores: a lock of its own would keep a store from being pickled."""


class StoreWriter(Protocol):
    """Content on its way into a store, invisible until `commit`."""

    def write(self, data: Bytes) -> None:
        """Add bytes at the end; on failure the writer aborts itself and raises `SpillError`."""

    def commit(self) -> None:
        """Publish the whole content under its name, at once; on failure nothing is published."""

    def abort(self) -> None:
        """Leave nothing behind; harmless after a commit or another abort."""


class Store(Protocol):
    """Keeps bytes, not meaning. Threads may use it at once, each with names of its own."""

    @property
    def bytes_written(self) -> int:
        """All bytes ever taken, those of aborted writers too."""

    @property
    def bytes_read(self) -> int:
        """All bytes that readers said they read."""

    @property
    def bytes_held(self) -> int:
        """Bytes that take up room now, unpublished ones too."""

    @property
    def peak_held(self) -> int:
        """The most bytes that were ever held at once."""

    def create(self, name: str) -> StoreWriter:
        """Begin a new name; one that exists is refused, for content never changes."""

    def open(self, name: str) -> pa.Buffer:
        """The whole content, read-only and uncopied; `SegmentError` if there is none. Counts nothing as read."""

    def remove(self, name: str) -> None:
        """Forget a name; `SegmentError` if there is none. Buffers that are open stay readable."""

    def names(self) -> list[str]:
        """What is published, sorted."""

    def shown(self, name: str) -> str:
        """What errors call it: its name where it lies, which is another one in a part of a store."""

    @property
    def maps(self) -> bool:
        """Whether what `open` gives is mapped, so that its pages can be let go and come back when they are read."""

    def descriptor(self, name: str) -> Descriptor | None:
        """An open file of the whole content, to read parts of it from; None if there is none, or there are too many."""

    def count_read(self, size: int) -> None:
        """Told by a reader: so many bytes of an open buffer were read."""

    def release(self, buffer: pa.Buffer, offset: int, length: int) -> None:
        """Told by a reader: this part of what `open` gave need not stay in memory; it remains readable."""

    def close(self) -> None:
        """Remove everything that is private to this store; harmless when repeated."""


class Descriptor:
    """An open file, closed when it is forgotten."""

    open_now = 0
    """How many there are in this process."""

    def __init__(self, number: int) -> None:
        self.number = number
        with _counting:
            Descriptor.open_now += 1

    def __del__(self) -> None:
        os.close(self.number)
        with _counting:
            Descriptor.open_now -= 1


class Counted(Closing):
    """The counts every real store keeps, and its use as a context manager."""

    def __init__(self) -> None:
        self.bytes_written = 0
        self.bytes_read = 0
        self.bytes_held = 0
        self.peak_held = 0

    def count_written(self, size: int) -> None:
        """So many bytes were taken, and are held from now on."""
        with _counting:
            self.bytes_written += size
            self.bytes_held += size
            self.peak_held = max(self.peak_held, self.bytes_held)

    def count_dropped(self, size: int) -> None:
        """So many bytes are held no longer."""
        with _counting:
            self.bytes_held -= size

    def shown(self, name: str) -> str:
        """The name itself."""
        return name

    def count_read(self, size: int) -> None:
        """So many bytes of an open buffer were read."""
        with _counting:
            self.bytes_read += size

    def descriptor(self, name: str) -> Descriptor | None:
        """Nothing that is kept is an open file, unless a store says so."""
        return None

    def close(self) -> None:
        """Remove everything that is private to this store."""
        raise NotImplementedError


def check_name(name: str) -> None:
    """Refuse names that would not be flat files everywhere."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ProtocolError(
            f"{name!r} cannot name spilled bytes; use 200 or fewer of letters, digits and _ . = + -, a letter first"
        )


def missing(name: str, where: str) -> SegmentError:
    """The error for content that is not there."""
    return SegmentError(
        f"spill segment {name!r} is missing from {where}; if it was removed while in use, run the join again "
        f"or restore an older snapshot"
    )


def already_there(name: str, where: str) -> SpillError:
    """The error for a name that would be rewritten."""
    return SpillError(f"{name!r} is in {where} already, and spilled bytes are never rewritten; choose another name")


def nbytes(data: Bytes) -> int:
    """How many bytes a bytes-like thing holds."""
    return memoryview(data).nbytes


class MemoryStore(Counted):
    """A store without a disk, for simulations and tests.

    >>> store = MemoryStore()
    >>> writer = store.create("a"); writer.write(b"some "); writer.write(b"bytes"); store.names()
    []
    >>> writer.commit(); store.names(), store.open("a").to_pybytes(), store.bytes_held
    (['a'], b'some bytes', 10)
    """

    _WHERE = "the store in memory"

    def __init__(self) -> None:
        super().__init__()
        self._content: dict[str, pa.Buffer] = {}
        self._writers: dict[str, _MemoryWriter] = {}
        self._closed = False

    def create(self, name: str) -> StoreWriter:
        """Begin a new name."""
        self._check_open()
        check_name(name)
        if name in self._content or name in self._writers:
            raise already_there(name, self._WHERE)
        writer = _MemoryWriter(self, name)
        self._writers[name] = writer
        return writer

    def open(self, name: str) -> pa.Buffer:
        """The whole content."""
        self._check_open()
        if name not in self._content:
            raise missing(name, self._WHERE)
        return self._content[name]

    def remove(self, name: str) -> None:
        """Forget a name."""
        self.count_dropped(self.open(name).size)
        del self._content[name]

    def names(self) -> list[str]:
        """What is published, sorted."""
        return sorted(self._content)

    maps = False

    def release(self, buffer: pa.Buffer, offset: int, length: int) -> None:
        """Nothing to do: what is held in memory is held."""

    def close(self) -> None:
        """Forget everything."""
        for writer in list(self._writers.values()):
            writer.abort()
        self._content.clear()
        self.bytes_held = 0
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise SpillError(f"{self._WHERE} is closed and holds nothing any more; make a new one")


class _MemoryWriter:
    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store = store
        self._name = name
        self._size = 0
        # An Arrow stream, for its memory is aligned like a mapped file's.
        self._sink: pa.BufferOutputStream | None = pa.BufferOutputStream()

    def write(self, data: Bytes) -> None:
        self._open_sink().write(data)
        size = nbytes(data)
        self._size += size
        self._store.count_written(size)

    def commit(self) -> None:
        content = self._open_sink().getvalue()
        self._end()
        self._store._content[self._name] = content

    def abort(self) -> None:
        if self._sink is not None:
            self._end()
            self._store.count_dropped(self._size)

    def _end(self) -> None:
        self._sink = None
        del self._store._writers[self._name]

    def _open_sink(self) -> pa.BufferOutputStream:
        if self._sink is None:
            raise ProtocolError(f"the writer of {self._name!r} has been committed or aborted; create a new one")
        return self._sink
