"""The store on disk: one flat file per name in a private directory, published by rename and read by mapping.

Such a directory belongs to one process and does not outlive it. It is removed when it is closed or forgotten, and when
the interpreter exits. A process that is killed cannot clean up, so whoever next makes a directory beside it does: each
holds a lock file, and the system drops the lock with the process. A process number alone would not tell the dead from
the living: numbers are used again, and containers that share a temporary directory number their processes
independently.

    parent/watersmeet-<pid>-<token>/        mode 0700
        .lock                               locked while the owner lives; always removed last
        ...                                 flat files
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import secrets
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyarrow as pa

from watersmeet.core.errors import ProtocolError, SpillError
from watersmeet.memory import format_bytes
from watersmeet.spill.locks import OPEN_LOCK, is_my_own, is_same_file, lock_if_possible, try_lock
from watersmeet.spill.store import Bytes, Counted, Descriptor, StoreWriter, already_there, check_name, missing

try:
    import fcntl
    import resource
except ImportError:  # pragma: no cover - Windows
    fcntl = resource = None  # type: ignore[assignment]

_LOCK = ".lock"
_OURS = re.compile(r"watersmeet-[0-9]+-[0-9a-f]{16}")


class PrivateDirectory:
    """Make `parent/watersmeet-<pid>-<token>`, after sweeping those whose owners have died.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     private = PrivateDirectory(Path(parent))
    ...     existed = private.path.is_dir()
    ...     private.close()
    ...     existed, os.listdir(parent)
    (True, [])
    """

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        self._made = _Made()
        # First of all, so that an interruption while it is being made leaves nothing either.
        self._finalizer = weakref.finalize(self, self._made.remove)
        self._made.make(parent)

    @property
    def path(self) -> Path:
        """Where it is."""
        assert self._made.path is not None
        return self._made.path

    def close(self) -> None:
        """Remove it with all its files. In a forked child this does nothing: the directory is the parent's."""
        self._finalizer()


def sweep(parent: Path) -> None:
    """Remove the directories in `parent` whose owners have died; those of the living and of other users stay."""
    with os.scandir(parent) as entries:
        candidates = [entry for entry in entries if _OURS.fullmatch(entry.name)]
    for entry in candidates:
        with suppress(OSError):  # another process may be sweeping the same one, which is as good
            if entry.is_dir(follow_symlinks=False) and is_my_own(entry.stat(follow_symlinks=False)):
                _remove_if_dead(Path(entry.path))


class _Made:
    """What there is to remove, apart from the object whose end says when."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._lock: int | None = None
        self._owner = os.getpid()

    def make(self, parent: Path) -> None:
        """A new directory, locked."""
        while True:
            self.path = parent / f"watersmeet-{self._owner}-{secrets.token_hex(8)}"
            self.path.mkdir(mode=0o700)
            lock = self.path / _LOCK
            try:
                self._lock = os.open(lock, OPEN_LOCK | os.O_CREAT | os.O_EXCL, 0o600)
                # A sweeper may have met the directory before it was locked and taken it away: then try another name.
                if lock_if_possible(self._lock) and is_same_file(self._lock, lock):
                    return
            except FileNotFoundError:
                if not parent.is_dir():
                    raise
            except BaseException:
                self.remove()
                raise
            self._unlock()

    def remove(self) -> None:
        """All of it, unless this is a forked child: the directory is its parent's."""
        if self.path is None or os.getpid() != self._owner:
            return
        if fcntl is None:  # pragma: no cover - Windows, where a file that is open cannot be removed
            self._unlock()
        _empty(self.path)
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        _close(lock)


def _remove_if_dead(path: Path) -> None:
    try:
        lock = os.open(path / _LOCK, OPEN_LOCK)
    except FileNotFoundError:
        # Being made, or all but removed. Files without a lock are not ours to judge: this fails unless it is empty.
        path.rmdir()
        return
    if fcntl is None:  # pragma: no cover - Windows refuses to remove what its owner has open, elsewhere we cannot know
        _close(lock)
        if os.name == "nt":
            (path / _LOCK).unlink()
            _empty(path)
        return
    try:
        if try_lock(lock):
            _empty(path)
    finally:
        _close(lock)


def _empty(path: Path) -> None:
    """Remove the files, then the lock, then the directory: interrupted anywhere, a later sweep can finish it."""
    with suppress(OSError):
        for name in sorted(os.listdir(path), key=lambda name: name == _LOCK):
            os.unlink(path / name)
        path.rmdir()


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)


_FULL = {errno.ENOSPC, errno.EFBIG} | {getattr(errno, "EDQUOT", errno.ENOSPC)}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}

_PLENTY = 4096
_PIECE = 64 << 10
"""Bytes that are written at a time. Linux may keep what is written at once as one piece of its page cache, and map all
of it when a byte is read: larger pieces would let much more of a file count as the process's memory."""


class FileStore(Counted):
    """Keeps each name as a file in a private directory under `directory` (or the system's temporary one).

    The directory is removed on `close`, when the store is forgotten, and when the interpreter exits, also after an
    interrupt; what a killed process left is swept by the next store under the same `directory`. A forked child may read
    and write, but removes nothing at its end; a pickled store is another handle on the same directory, which never
    removes it either.

    `open` maps the file and keeps no descriptor. Removed files, also those of a closed store, stay readable through
    buffers that are still open, and their room on disk is free only when the last of these is gone. (So it is on POSIX
    systems; Windows refuses to remove a mapped file.)

    With `durable`, a committed name survives a crash of the machine: file and directory are synced before `commit`
    returns.

    >>> store = FileStore()
    >>> writer = store.create("a"); writer.write(b"bytes"); writer.commit()
    >>> store.open("a").to_pybytes(), store.names()
    (b'bytes', ['a'])
    >>> store.close(); store.path.exists()
    False
    """

    def __init__(self, directory: Path | str | None = None, *, durable: bool = False) -> None:
        super().__init__()
        parent = Path(tempfile.gettempdir() if directory is None else directory).absolute()
        try:
            private = PrivateDirectory(parent)
        except OSError as error:
            raise spill_error(error, f"make a private directory in the spill directory {parent}") from error
        self._adopt(private.path, durable, private)

    def _adopt(self, path: Path, durable: bool, private: PrivateDirectory | None) -> None:
        self.path = path
        self.durable = durable
        self._private = private
        self._sizes: dict[str, int] = {}
        self._writers: dict[str, _FileWriter] = {}
        self._closed = False

    @classmethod
    def _attach(cls, path: Path, durable: bool) -> FileStore:
        store = cls.__new__(cls)
        Counted.__init__(store)
        store._adopt(path, durable, None)
        return store

    @classmethod
    def at(cls, directory: Path | str, *, durable: bool = False) -> FileStore:
        """A store of the files in a directory that is there already and that stays: `close` removes nothing."""
        return cls._attach(Path(directory), durable)

    def __reduce__(self) -> tuple[Callable[[Path, bool], FileStore], tuple[Path, bool]]:
        return FileStore._attach, (self.path, self.durable)

    def create(self, name: str) -> StoreWriter:
        """Begin a new name."""
        self._check_open()
        check_name(name)
        if name in self._writers or (self.path / name).exists():
            raise already_there(name, str(self.path))
        writer = _FileWriter(self, name)
        self._writers[name] = writer
        return writer

    def open(self, name: str) -> pa.Buffer:
        """The whole content, mapped. The mapping outlives the file."""
        self._check_open()
        check_name(name)
        try:
            with pa.memory_map(str(self.path / name), "r") as mapped:
                return mapped.read_buffer()
        except FileNotFoundError as error:
            raise missing(name, str(self.path)) from error
        except OSError as error:
            raise spill_error(error, f"map {name!r} in {self.path}") from error

    def remove(self, name: str) -> None:
        """Remove the file; buffers that are open stay readable."""
        self._check_open()
        check_name(name)
        try:
            os.unlink(self.path / name)
        except FileNotFoundError as error:
            raise missing(name, str(self.path)) from error
        except OSError as error:
            raise spill_error(error, f"remove {name!r} from {self.path}") from error
        self.count_dropped(self._sizes.pop(name, 0))

    def names(self) -> list[str]:
        """What is published, sorted."""
        self._check_open()
        try:
            return sorted(name for name in os.listdir(self.path) if not name.startswith("."))
        except OSError as error:
            raise spill_error(error, f"list {self.path}") from error

    def descriptor(self, name: str) -> Descriptor | None:
        """The file, opened for reading; None once a quarter of all files that this process may open are."""
        self._check_open()
        check_name(name)
        if Descriptor.open_now >= _most_open():
            return None
        try:
            return Descriptor(os.open(self.path / name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
        except FileNotFoundError as error:
            raise missing(name, str(self.path)) from error
        except OSError:
            return None  # it is mapped, and can be read there

    @property
    def maps(self) -> bool:
        """Where the system takes such advice."""
        return _madvise() is not None

    def release(self, buffer: pa.Buffer, offset: int, length: int) -> None:
        """Let go of mapped pages, which count as this process's memory until then; they are mapped again when read.

        `buffer` must be what `open` gave.
        """
        advise = _madvise()
        if advise is None or length <= 0:
            return
        # Whole system pages around the part: a neighbour that is let go too costs only another mapping.
        start = (buffer.address + offset) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, buffer.address + offset + length - start, mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Abort what is being written and, in the process that made it, remove the directory."""
        for writer in list(self._writers.values()):
            writer.abort()
        self._closed = True
        self._sizes.clear()
        self.bytes_held = 0
        if self._private is not None:
            self._private.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SpillError(f"the spill store in {self.path} is closed and its files are gone; make a new store")


class _FileWriter:
    """Writes a hidden file, and renames it on commit."""

    def __init__(self, store: FileStore, name: str) -> None:
        self._store = store
        self._name = name
        self._owner = os.getpid()
        self._hidden = store.path / f".{name}.{self._owner}"
        self._size = 0
        self._descriptor: int | None = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(self._hidden, flags, 0o600)
        except OSError as error:
            raise spill_error(error, f"create {name!r} in {store.path}") from error

    def write(self, data: Bytes) -> None:
        descriptor = self._open_descriptor()
        rest = memoryview(data).cast("B")
        try:
            while rest:
                # May take less than all, on a disk that is nearly full.
                written = os.write(descriptor, rest[:_PIECE])
                self._size += written
                self._store.count_written(written)
                rest = rest[written:]
        except OSError as error:
            size = self._size + rest.nbytes
            self.abort()
            raise self._failure(error, size) from error
        except BaseException:
            self.abort()
            raise

    def commit(self) -> None:
        descriptor = self._open_descriptor()
        store = self._store
        final = store.path / self._name
        try:
            if store.durable:
                os.fsync(descriptor)
            self._descriptor = None
            os.close(descriptor)  # network disks may say only here that they are full
            os.replace(self._hidden, final)
            if store.durable:
                _sync_directory(store.path)
        except BaseException as error:
            # It may have its name already: not durably, or the answer to the renaming was lost, as on a network. Nobody
            # else writes this name, so it is ours to take back.
            with suppress(OSError):
                final.unlink()
            self.abort()
            if isinstance(error, OSError):
                raise self._failure(error, self._size) from error
            raise
        del store._writers[self._name]
        store._sizes[self._name] = self._size

    def abort(self) -> None:
        if self._store._writers.get(self._name) is not self:
            return
        del self._store._writers[self._name]
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        if self._owner == os.getpid():  # a forked child drops its copy of the writer, not the parent's file
            with suppress(OSError):
                os.unlink(self._hidden)
        self._store.count_dropped(self._size)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise ProtocolError(f"the writer of {self._name!r} has been committed or aborted; create a new one")
        return self._descriptor

    def _failure(self, error: OSError, size: int) -> SpillError:
        return spill_error(error, f"write {format_bytes(size)} or more as {self._name!r} in {self._store.path}")


def spill_error(error: OSError, attempt: str) -> SpillError:
    """A sentence for an operating system's refusal: what was tried, why it failed, and what to do.

    >>> print(spill_error(OSError(errno.ENOSPC, "no space"), "write 1 MiB as 'a' in /s"))
    could not write 1 MiB as 'a' in /s: the disk is full (no space); free space there or choose another spill directory
    """
    if error.errno in _FULL:
        why, remedy = "the disk is full", "free space there or choose another spill directory"
    elif error.errno in _FORBIDDEN:
        why, remedy = "it is not permitted", "choose a spill directory that this user may write to"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        why, remedy = "a file is where a directory should be", "move that file away or name another directory"
    elif error.errno == errno.ENOENT:
        why, remedy = "the directory is not there", "create it, and let nothing remove it while the join runs"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        why, remedy = "too many files are open", "raise the limit on open files (ulimit -n)"
    else:
        why, remedy = "the disk failed", "check the disk or choose another spill directory"
    reason = error.strerror or str(error) or type(error).__name__
    failure = SpillError(f"could not {attempt}: {why} ({reason}); {remedy}")
    failure.errno = error.errno
    return failure


def _sync_directory(path: Path) -> None:
    if os.name == "nt":  # pragma: no cover - Windows cannot sync a directory
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _most_open() -> int:
    """How many files may be open for reading: others need some, too."""
    if resource is None:  # pragma: no cover
        return 0
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _PLENTY if limit == resource.RLIM_INFINITY else min(_PLENTY, limit // 4)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The system's madvise: Python offers it only on its own mappings, each of which would hold a descriptor open."""
    if sys.platform == "win32" or not hasattr(mmap, "MADV_DONTNEED"):  # pragma: no cover
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):  # pragma: no cover
        return None
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise.restype = ctypes.c_int
    return advise
