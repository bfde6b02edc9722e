"""An operator's store in the state directory: its own names, on files that no two attempts share.

An operator names its segments by what happened, so two attempts at one batch use the same names. Here a name
stands for a file of this attempt's own or for one of an earlier batch; which, is part of the manifest. A file that an
earlier version may need is only forgotten, and is removed when that version is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SegmentError
from watersmeet.spark.state.directory import GroupState
from watersmeet.spill.segment import sealed_checksum
from watersmeet.spill.store import Bytes, Descriptor, StoreWriter, already_there, check_name, missing


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a manifest says of a segment."""

    file: str
    nbytes: int
    checksum: int

    def __post_init__(self) -> None:
        check_name(self.file)  # none that leads out of the group's directory


class VersionedStore:
    """The segments of one group's operator, as of one attempt at one batch."""

    def __init__(self, group: GroupState, files: Mapping[str, Any] | None = None) -> None:
        self._group = group
        self._files = {name: StoredFile(*each) for name, each in (files or {}).items()}
        self._own: set[str] = set()
        self.bytes_written = 0
        self.bytes_read = 0
        self.bytes_held = sum(each.nbytes for each in self._files.values())
        self.peak_held = self.bytes_held

    def go_on(self, group: GroupState) -> None:
        """Belong to the next batch from now on: what was written is an earlier version's."""
        self._group = group
        self._own.clear()
        self.bytes_written = 0

    def files(self, names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        """Which file stands behind each name, for a manifest."""
        found = ((name, self._files[name]) for name in names)
        return {name: (each.file, each.nbytes, each.checksum) for name, each in found}

    @property
    def group(self) -> GroupState:
        """Whose segments these are."""
        return self._group

    def share(self, other: VersionedStore, names: Iterable[str]) -> None:
        """Know files of an earlier version, too."""
        for name in names:
            self._files[name] = other._files[name]
            self.bytes_held += self._files[name].nbytes

    def put_in_place(self, name: str, other: str) -> None:
        """Let what was written under another name be found under this one from now on."""
        self.remove(name)
        self._files[name] = self._files.pop(other)

    def file_of(self, name: str) -> str:
        """The file that stands behind a name."""
        return self._files[name].file

    def path_of(self, name: str) -> str:
        """The file of this machine that stands behind a name, whether or not it is there."""
        found = self._files.get(name)
        return f"{self._group.store.path}/{found.file if found else ''}"

    def size(self, name: str) -> int:
        """Bytes of a segment."""
        return self._files[name].nbytes

    def abandon(self) -> None:
        """Remove what this attempt has written."""
        self._group.remove(self._own)
        self._own.clear()

    def named(self, error: SegmentError) -> SegmentError:
        """An error of a segment, as one of the state that it is part of."""
        text, damaged = str(error), f"the state in {self._group.place} is damaged and the query cannot go on"
        return error if damaged in text else SegmentError(f"{damaged}: {text}")

    # --- what a store does ---

    def create(self, name: str) -> StoreWriter:
        """Begin a new name."""
        check_name(name)
        if name in self._files:
            raise already_there(name, self._group.place)
        file = self._group.file("operator")
        return _Writer(self, name, file, self._group.store.create(file))

    def wrote(self, name: str, file: str) -> None:
        """A writer has committed."""
        content = self._group.store.open(file)
        self._files[name] = StoredFile(file, content.size, sealed_checksum(content))
        self._own.add(file)
        self.bytes_held += content.size
        self.peak_held = max(self.peak_held, self.bytes_held)

    def open(self, name: str) -> pa.Buffer:
        """The whole content, mapped."""
        found = self._files.get(name)
        if found is None:
            raise missing(name, self._group.place)
        try:
            content = self._group.store.open(found.file)
            if content.size != found.nbytes or sealed_checksum(content) != found.checksum:
                raise SegmentError(f"segment {found.file!r} is not the one that the manifest names; it was altered")
        except SegmentError as error:
            raise SegmentError(
                f"the state in {self._group.place} is damaged and the query cannot go on from it: {error}"
            ) from error
        return content

    def remove(self, name: str) -> None:
        """Forget a name; the file goes only if it is this attempt's own."""
        found = self._files.pop(name, None)
        if found is None:
            raise missing(name, self._group.place)
        self.bytes_held -= found.nbytes
        if found.file in self._own:
            self._own.remove(found.file)
            self._group.remove([found.file])

    def names(self) -> list[str]:
        """What is published, sorted."""
        return sorted(self._files)

    def shown(self, name: str) -> str:
        """The file that stands behind a name, with its directory: operators of all groups use the same names."""
        return f"{self._group.place}/{self._files[name].file}" if name in self._files else name

    def count_read(self, size: int) -> None:
        """So many bytes of an open buffer were read."""
        self.bytes_read += size

    @property
    def maps(self) -> bool:
        """As the store behind it does."""
        return self._group.store.maps

    def descriptor(self, name: str) -> Descriptor | None:
        """None: workers keep files mapped between batches."""
        return None

    def release(self, buffer: pa.Buffer, offset: int, length: int) -> None:
        """Let part of a mapped file leave this process's memory."""
        self._group.store.release(buffer, offset, length)

    def close(self) -> None:
        """Nothing is private to this store."""


class _Writer:
    def __init__(self, store: VersionedStore, name: str, file: str, out: StoreWriter) -> None:
        self._store, self._name, self._file, self._out = store, name, file, out

    def write(self, data: Bytes) -> None:
        self._out.write(data)
        self._store.bytes_written += memoryview(data).nbytes

    def commit(self) -> None:
        self._out.commit()
        self._store.wrote(self._name, self._file)

    def abort(self) -> None:
        self._out.abort()
