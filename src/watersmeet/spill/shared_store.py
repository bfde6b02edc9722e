"""One store for several operators: each sees its own names only."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.spill.store import Descriptor, Store, StoreWriter


class SharedStore:
    """A part of another store, whose names all begin alike; closing it leaves the other open.

    >>> from watersmeet.spill.store import MemoryStore
    >>> whole = MemoryStore()
    >>> part = SharedStore(whole, "n1-")
    >>> part.create("run").commit(); part.names(), whole.names()
    (['run'], ['n1-run'])
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @property
    def bytes_written(self) -> int:
        """Bytes written to the whole store."""
        return self._store.bytes_written

    @property
    def bytes_read(self) -> int:
        """Bytes read from the whole store."""
        return self._store.bytes_read

    @property
    def bytes_held(self) -> int:
        """Bytes in the whole store."""
        return self._store.bytes_held

    @property
    def peak_held(self) -> int:
        """The most bytes that were in the whole store."""
        return self._store.peak_held

    def create(self, name: str) -> StoreWriter:
        """Begin to write."""
        return self._store.create(self._prefix + name)

    def open(self, name: str) -> pa.Buffer:
        """The whole content under a name."""
        return self._store.open(self._prefix + name)

    def remove(self, name: str) -> None:
        """Drop a name."""
        self._store.remove(self._prefix + name)

    def names(self) -> list[str]:
        """This part's names."""
        return [name.removeprefix(self._prefix) for name in self._store.names() if name.startswith(self._prefix)]

    def shown(self, name: str) -> str:
        """The name in the whole store."""
        return self._store.shown(self._prefix + name)

    def count_read(self, size: int) -> None:
        """Count a read."""
        self._store.count_read(size)

    @property
    def maps(self) -> bool:
        """As the store behind it does."""
        return self._store.maps

    def descriptor(self, name: str) -> Descriptor | None:
        """The same of what the shared store has under that name."""
        return self._store.descriptor(self._prefix + name)

    def release(self, buffer: pa.Buffer, offset: int, length: int) -> None:
        """Let part of what was opened leave memory."""
        self._store.release(buffer, offset, length)

    def close(self) -> None:
        """Nothing: the store belongs to whoever made it."""
