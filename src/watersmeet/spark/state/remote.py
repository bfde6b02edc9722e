"""State on a file system that is not mounted: anything that PyArrow's file systems reach.

Small files are read and written where they are. Segments are kept in a directory of this machine, too, which all its
workers share, and are mapped from there. What is written is uploaded before anything names it; what is not at hand is
fetched. The directory is bounded: those that were used longest ago go first, and are fetched again when needed.

An object store has no renames. So an object is written under its final name, which nobody looks for until a manifest,
written last, names it. In S3, a name is written only if it is new where that matters (`state.s3`), and small objects
take one request each. Elsewhere PyArrow offers no way to do that: of two that write the same name at the same time, the
last one wins, so they must have written the same, or be told apart by what they find afterwards.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import fs

from watersmeet.core.errors import SpecError, SpillError
from watersmeet.spark.state.s3 import Bucket
from watersmeet.spill.file_store import FileStore, spill_error
from watersmeet.spill.private import make_private, open_new, refuse_strangers
from watersmeet.spill.store import StoreWriter, check_name, missing

_FETCHED_FILE = re.compile(r"^fetch\+file:(//)?(?=/)")
_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:")
_CHUNK = 8 << 20
_LOOKS = 16
"""A process looks at the whole cache each time it has added one part in so many of what it may hold."""
_UNFINISHED = 3600.0
"""Seconds after which a file that was never finished was left by a process that died."""
CACHE_BYTES = 4 << 30


def is_remote(state: str) -> bool:
    """Whether a state directory is named by an address, not by a path.

    >>> is_remote("s3://bucket/state"), is_remote("/mnt/state"), is_remote("fetch+file:///mnt/state")
    (True, False, True)
    """
    return bool(_SCHEME.match(state))


@dataclass(frozen=True)
class RemotePath:
    """A place in a remote file system, with as much of `Path` as state needs."""

    system: fs.FileSystem
    path: str
    address: str
    """What the user called it, for messages and for the name of the local directory."""
    bucket: Bucket | None = None
    """Where it is in S3, and how that is asked; None: all is PyArrow's."""

    @classmethod
    def of(cls, address: str) -> RemotePath:
        """The place that an address names; `fetch+file:///dir` is a mounted directory that is treated as remote."""
        local = _FETCHED_FILE.match(address)
        if local:
            return cls(fs.LocalFileSystem(), address[local.end() :].rstrip("/"), address.rstrip("/"))
        plain, question, options = address.partition("?")
        try:
            system, path = fs.FileSystem.from_uri(_with_one_request(address))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError) as error:
            raise SpecError(
                f"state={address!r} is not reached by PyArrow ({error}); name a directory that all workers see, or "
                f"an address that PyArrow has a file system for, such as s3://bucket/state"
            ) from error
        return cls(system, path.rstrip("/"), f"{plain.rstrip('/')}{question}{options}", Bucket.of(address))

    def __truediv__(self, name: str) -> RemotePath:
        plain, question, options = self.address.partition("?")
        return RemotePath(self.system, f"{self.path}/{name}", f"{plain}/{name}{question}{options}", self.bucket)

    @property
    def key(self) -> str:
        """Of an object in a bucket."""
        return self.path.partition("/")[2]

    def __str__(self) -> str:
        """For messages: a secret stays one.

        >>> str(RemotePath(fs.LocalFileSystem(), "bucket/x", "s3://me:secret@bucket/x"))
        's3://me:...@bucket/x'
        """
        return re.sub(r"^([^:/]+://[^:/@]+):[^@/]*@", r"\1:...@", self.address)

    @property
    def name(self) -> str:
        """The last part."""
        return self.path.rpartition("/")[2]

    def exists(self) -> bool:
        """Whether there is a file or directory."""
        if self.bucket is not None:
            return self.bucket.exists(self.key) or bool(self.bucket.names(self.key))
        with _told(f"look for {self}"):
            return bool(self.system.get_file_info(self.path).type != fs.FileType.NotFound)

    def is_file(self) -> bool:
        """Whether there is a file."""
        if self.bucket is not None:
            return self.bucket.exists(self.key)
        return bool(self.system.get_file_info(self.path).type == fs.FileType.File)

    def is_dir(self) -> bool:
        """Whether there is a directory; a bucket needs none."""
        return self.bucket is not None or bool(self.system.get_file_info(self.path).type == fs.FileType.Directory)

    def mkdir(self) -> None:
        """Make the directory and those above it; harmless if it is there."""
        with _told(f"make the state directory {self}"):
            self.system.create_dir(self.path, recursive=True)

    def names(self) -> list[str]:
        """The names in the directory."""
        if self.bucket is not None:
            return self.bucket.names(self.key)
        return [info.base_name for info in self.infos()]

    def infos(self) -> list[fs.FileInfo]:
        """What is known of the files in the directory."""
        with _told(f"list {self}"):
            found: list[fs.FileInfo] = self.system.get_file_info(fs.FileSelector(self.path, allow_not_found=False))
        return found

    def read_bytes(self) -> bytes:
        """The content."""
        if self.bucket is not None:
            return self.bucket.get(self.key)
        with self.system.open_input_stream(self.path) as stream:
            content: bytes = stream.read()
        return content

    def read_text(self) -> str:
        """The content as text."""
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> None:
        """Write a file, which is there when this returns."""
        if self.bucket is not None:
            self.bucket.put(self.key, content)
            return
        with _told(f"write {self}"), self.system.open_output_stream(self.path) as stream:
            stream.write(content)

    def write_new(self, content: bytes) -> bool:
        """Write a file if there is none; whether it was written. Whoever is refused may have written it nevertheless.

        Outside of S3 two that ask at the same time may both be told that they were first.
        """
        if self.bucket is not None:
            return self.bucket.put(self.key, content, if_absent=True)
        if self.exists():
            return False
        self.write_bytes(content)
        return True

    def unlink(self) -> None:
        """Remove a file; `FileNotFoundError` if there is none, where that is told."""
        if self.bucket is not None:
            self.bucket.delete(self.key)
            return
        self.system.delete_file(self.path)


def _with_one_request(address: str) -> str:
    """An address of S3 such that a small file takes one request.

    >>> _with_one_request("s3://bucket/state?region=eu-central-1"), _with_one_request("gs://bucket/state")
    ('s3://bucket/state?region=eu-central-1&allow_delayed_open=true', 'gs://bucket/state')
    """
    if not address.startswith("s3:") or "allow_delayed_open" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}allow_delayed_open=true"


Place = Path | RemotePath
"""Where state is: a directory of this machine or one that is mounted, or an address."""


def in_bucket(place: Place) -> bool:
    """Whether a place is in S3, where names can be written only if they are new, and each request counts."""
    return isinstance(place, RemotePath) and place.bucket is not None


def place_of(state: str) -> Place:
    """The place of a state directory."""
    return RemotePath.of(state) if is_remote(state) else Path(state)


class _told:  # noqa: N801 - used as a statement
    """Errors of a remote file system as sentences."""

    def __init__(self, attempt: str) -> None:
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FileNotFoundError | SpillError):
            return
        if isinstance(error, OSError):
            raise spill_error(error, self._attempt) from error


class Cache:
    """A bounded directory of fetched and uploaded segments, shared by all processes that name it."""

    _grown: ClassVar[dict[Path, int]] = {}
    """Bytes that this process has added since it looked at all files."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        self.root = root
        self.most_bytes = most_bytes

    @classmethod
    def here(cls, most_bytes: int) -> Cache:
        """This machine's, among Spark's local directories if there are any."""
        directories = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        return cls(Path(directories[0] or tempfile.gettempdir()) / f"watersmeet-state-{os.getuid()}", most_bytes)

    def directory(self, place: RemotePath) -> Path:
        """Where the segments of a remote directory are kept."""
        path = self.root / hashlib.sha256(place.address.encode()).hexdigest()[:24]
        try:
            make_private(path)
            refuse_strangers(self.root)  # its name can be guessed
        except OSError as error:
            raise spill_error(error, f"make the directory {path} for fetched state") from error
        return path

    def added(self, path: Path) -> None:
        """Take note of a new file; now and then, remove what was used longest ago until the rest fits."""
        with suppress(OSError):  # no row depends on it: a later file is another occasion
            grown = self._grown.get(self.root, 0) + path.stat().st_size
            self._grown[self.root] = grown
            if grown > self.most_bytes // _LOOKS:
                self._trim(path)
                self._grown[self.root] = 0

    def _trim(self, spared: Path) -> None:
        found = []
        for path in self.root.glob("*/*"):
            if path.name.startswith(".") and time.time() - _changed(path) < _UNFINISHED:
                continue  # it is being written
            with suppress(FileNotFoundError):  # another process was faster
                status = path.stat()
                found.append((status.st_atime_ns, status.st_size, path))
        held = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if held <= self.most_bytes:
                return
            if path != spared:
                with suppress(FileNotFoundError):
                    path.unlink()
                held -= size


def _changed(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0


class RemoteStore(FileStore):
    """The segments of a remote directory, mapped from the cache."""

    _place: RemotePath
    _cache: Cache

    @classmethod
    def of(cls, place: RemotePath, cache: Cache) -> RemoteStore:
        """A store of a remote directory."""
        store = cls._attach(cache.directory(place), False)
        assert isinstance(store, RemoteStore)
        store._place, store._cache = place, cache
        return store

    def create(self, name: str) -> StoreWriter:
        """Begin a new name."""
        return _Uploading(self, name, super().create(name))

    def upload(self, name: str) -> None:
        """Bring a file to where others see it."""
        target = self._place / name
        local = self.path / name
        with _told(f"write {target}"):
            if target.bucket is not None and local.stat().st_size <= _CHUNK:
                target.write_bytes(local.read_bytes())
            else:
                with local.open("rb") as file, self._place.system.open_output_stream(target.path) as stream:
                    while chunk := file.read(_CHUNK):
                        stream.write(chunk)
        self._cache.added(local)

    def open(self, name: str) -> pa.Buffer:
        """The whole content, mapped."""
        check_name(name)
        local = self.path / name
        for _ in range(3):  # another process may need the room before this one has mapped the file
            if not local.exists():
                self._fetch(name)
            with suppress(FileNotFoundError, SpillError):
                os.utime(local, ns=(time.time_ns(), local.stat().st_mtime_ns))  # used now, but not changed
                return super().open(name)
        return super().open(name)

    def _fetch(self, name: str) -> None:
        hidden = self.path / f".{name}.{uuid.uuid4().hex[:12]}"
        source = self._place / name
        try:
            with _told(f"fetch {source}"), open_new(hidden) as file:
                if source.bucket is not None:
                    source.bucket.fetch(source.key, file)
                else:
                    with source.system.open_input_stream(source.path) as stream:
                        while chunk := stream.read(_CHUNK):
                            file.write(chunk)
            hidden.replace(self.path / name)
        except FileNotFoundError as error:
            raise missing(name, str(self._place)) from error
        finally:
            hidden.unlink(missing_ok=True)
        self._cache.added(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file, here and there."""
        (self.path / name).unlink(missing_ok=True)
        try:
            (self._place / name).unlink()
        except FileNotFoundError as error:
            raise missing(name, str(self._place)) from error

    def names(self) -> list[str]:
        """What is published, sorted."""
        return sorted(self._place.names())


class _Uploading:
    """Writes a file of the cache, and uploads it on commit."""

    def __init__(self, store: RemoteStore, name: str, out: StoreWriter) -> None:
        self._store, self._name, self._out = store, name, out

    def write(self, data: Any) -> None:
        self._out.write(data)

    def commit(self) -> None:
        self._out.commit()
        try:
            self._store.upload(self._name)
        except BaseException:
            (self._store.path / self._name).unlink(missing_ok=True)
            raise

    def abort(self) -> None:
        self._out.abort()


def store_at(place: Place, cache_bytes: int) -> FileStore:
    """The store of the segments in a directory."""
    return RemoteStore.of(place, Cache.here(cache_bytes)) if isinstance(place, RemotePath) else FileStore.at(place)
