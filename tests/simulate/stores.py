"""A store that fails on purpose, so that tests can fail every operation in turn."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from simulate.faults import Fault, Faults, made_error
from watersmeet.spill.file_store import spill_error
from watersmeet.spill.store import Bytes, Descriptor, Store, StoreWriter, nbytes

OPERATIONS = ("create", "write", "commit", "open", "remove")

Damage = Callable[[bytes], bytes]


def truncate_at(length: int) -> Damage:
    """Damage that tears content off after so many bytes."""
    return lambda content: content[:length]


def flip_byte(position: int, mask: int = 0xFF) -> Damage:
    """Damage that alters one byte.

    >>> flip_byte(1, mask=0x20)(b"ABC")
    b'AbC'
    """

    def damage(content: bytes) -> bytes:
        altered = bytearray(content)
        altered[position] ^= mask
        return bytes(altered)

    return damage


class FaultyStore:
    """Passes everything on to `inner`, except the `fail_at`-th (from 1) call of `operation` (of any, if None).

    That call fails with the system's error number `error`; a write fails half-way. With `lasting`, all later ones fail
    too, like a disk that stays full. With `damage`, the call is a commit that succeeds but publishes damaged content.
    `calls` counts what was asked, so that a first run without a fault tells how many faults there are to try.

    >>> from watersmeet.spill.store import MemoryStore
    >>> store = FaultyStore(MemoryStore(), fail_at=2, operation="write")
    >>> writer = store.create("a"); writer.write(b"one"); writer.write(b"two")
    Traceback (most recent call last):
    watersmeet.core.errors.SpillError: could not write 3 B as 'a' ...
    >>> store.names(), store.calls["write"], store.failures, store.bytes_held
    ([], 2, 1, 0)
    """

    def __init__(
        self,
        inner: Store,
        fail_at: int | None = None,
        operation: str | None = None,
        *,
        error: int = errno.ENOSPC,
        lasting: bool = False,
        damage: Damage | None = None,
    ) -> None:
        if operation is not None and operation not in OPERATIONS:
            raise ValueError(f"a store's operations are {', '.join(OPERATIONS)}, not {operation!r}")
        if damage is not None and operation != "commit":
            raise ValueError("content is damaged when it is committed; say operation='commit'")
        self.inner = inner
        self.error = error
        self.damage = damage
        lasts = 1 << 40 if lasting else 1
        planned = [] if fail_at is None else [Fault(operation or "", fail_at, error=error, lasts=lasts)]
        self.faults = Faults(planned)

    @property
    def calls(self) -> Counter[str]:
        """What was asked, by its kind."""
        return self.faults.calls

    @property
    def failures(self) -> int:
        """How often it has failed."""
        return self.faults.failures

    @property
    def bytes_written(self) -> int:
        """As the inner store counts."""
        return self.inner.bytes_written

    @property
    def bytes_read(self) -> int:
        """As the inner store counts."""
        return self.inner.bytes_read

    @property
    def bytes_held(self) -> int:
        """As the inner store counts."""
        return self.inner.bytes_held

    @property
    def peak_held(self) -> int:
        """As the inner store counts."""
        return self.inner.peak_held

    def create(self, name: str) -> StoreWriter:
        """Begin a new name, or fail."""
        self._call("create", f"create {name!r}")
        return _FaultyWriter(self, name)

    def open(self, name: str) -> pa.Buffer:
        """The whole content, or a failure."""
        self._call("open", f"open {name!r}")
        return self.inner.open(name)

    def remove(self, name: str) -> None:
        """Forget a name, or fail and keep it."""
        self._call("remove", f"remove {name!r}")
        self.inner.remove(name)

    def names(self) -> list[str]:
        """What is published."""
        return self.inner.names()

    def shown(self, name: str) -> str:
        return self.inner.shown(name)

    def count_read(self, size: int) -> None:
        """So many bytes were read."""
        self.inner.count_read(size)

    @property
    def maps(self) -> bool:
        """As the store behind it does."""
        return self.inner.maps

    def descriptor(self, name: str) -> Descriptor | None:
        """As the store behind it has it."""
        return self.inner.descriptor(name)

    def release(self, buffer: pa.Buffer, offset: int, length: int) -> None:
        """This part need not stay in memory."""
        self.inner.release(buffer, offset, length)

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()

    def _is_due(self, operation: str) -> bool:
        """Count a call, and say whether it is one that fails."""
        return self.faults.due(operation) is not None

    def _call(self, operation: str, attempt: str) -> None:
        if self._is_due(operation):
            self._fail(attempt)

    def _fail(self, attempt: str) -> None:
        raise spill_error(made_error(self.error), f"{attempt} (a fault made for a test)")


class _FaultyWriter:
    def __init__(self, store: FaultyStore, name: str) -> None:
        self._store = store
        self._name = name
        self._out = store.inner.create(name)
        self._content = bytearray()

    def write(self, data: Bytes) -> None:
        due = self._store._is_due("write")
        if due:
            self._out.write(bytes(data)[: nbytes(data) // 2])
            self._out.abort()
            self._store._fail(f"write {nbytes(data)} B as {self._name!r}")
        if self._store.damage is None:
            self._out.write(data)
        else:
            self._content += bytes(data)

    def commit(self) -> None:
        due = self._store._is_due("commit")
        damage = self._store.damage
        if damage is not None:
            content = bytes(self._content)
            self._out.write(damage(content) if due else content)
        elif due:
            self._out.abort()
            self._store._fail(f"commit {self._name!r}")
        self._out.commit()

    def abort(self) -> None:
        self._out.abort()
