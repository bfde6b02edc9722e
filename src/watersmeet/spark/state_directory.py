"""The state of a streaming join on disk: whose it is, which batches it has seen, and what each group holds.

```
state/
  state.json               the join and the query that it belongs to
  batches/000000000012     batch 12 has begun; says in which run of the query
  group-0003/
    manifest-000000000012  what the group holds after batch 12: the names of segments
    left-12-77a1-5f0c-0    a segment, written once
```

Nothing is ever rewritten: a file is written under a name of its own and renamed when it is whole, and a task that is
run again begins from the batch before. A group that was given no row in a batch has no manifest of it: its
state is that of the last one before.
"""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.errors import SnapshotError
from watersmeet.spark.runs import Run
from watersmeet.spill.file_store import FileStore, spill_error

FORMAT = 1
_MANIFEST = "manifest-"
_SWEEP_EVERY = 8
"""Batches between two sweeps of a group: reading all its manifests costs more than the room they take."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who keeps state: a join, its number of groups, and the query it runs in."""

    fingerprint: str
    groups: int
    query: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: its number, and the run of the query (from one start to the next) that it is part of."""

    number: int
    run: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a group holds after a batch: the runs of each side, from the oldest to the newest."""

    batch: int
    runs: tuple[tuple[Run, ...], tuple[Run, ...]]

    @classmethod
    def nothing(cls) -> Held:
        """What a group holds before its first row."""
        return cls(-1, ((), ()))

    def segments(self) -> set[str]:
        """The names of all segments."""
        return {segment.name for runs in self.runs for run in runs for segment in run.segments}


class StateDirectory:
    """A join's state as a task of one batch sees it; refuses a state that is not the one this batch goes on from."""

    def __init__(self, path: Path, owner: Owner, batch: Batch, retain: int) -> None:
        self.path = path
        self.batch = batch
        self._retain = max(2, retain)
        self._batches = path / "batches"
        self._check_owner(owner)
        self._begin()

    def group(self, number: int) -> GroupState:
        """The state of one group of keys."""
        path = self.path / f"group-{number:04d}"
        _make(path)
        return GroupState(path, self.batch, self._retain)

    def _check_owner(self, owner: Owner) -> None:
        target = self.path / "state.json"
        text = {"format": FORMAT, "join": owner.fingerprint, "groups": owner.groups, "query": owner.query}
        if not target.exists():
            if self.batch.number > 0:
                raise SnapshotError(
                    f"there is no state in {self.path}, but the query goes on with batch {self.batch.number}; put the "
                    f"state directory back, or start again with a new checkpoint"
                )
            _make(self._batches)
            _publish(target, json.dumps(text).encode(), first_wins=True)
        found = _read(target)
        if found.get("format") != FORMAT:
            raise SnapshotError(f"the state in {self.path} has another format; start again with a new directory")
        if found["query"] != owner.query:
            raise SnapshotError(
                f"the state in {self.path} belongs to query {found['query']}, not to this one ({owner.query}); choose "
                f"another state directory, or start the query with the checkpoint that belongs to the state"
            )
        if found["join"] != owner.fingerprint:
            raise SnapshotError(
                f"the state in {self.path} belongs to another join: inputs, conditions or suffixes are not those it "
                f"was begun with; change them back, or start again with a new state directory and checkpoint"
            )
        if found["groups"] != owner.groups:
            raise SnapshotError(
                f"the state in {self.path} has {found['groups']} groups, not {owner.groups}; "
                f"join with partitions={found['groups']}"
            )

    def _begin(self) -> None:
        """Take note that the batch has begun, once the one before is found to have been here."""
        number, run = self.batch.number, self.batch.run
        seen = sorted(int(name) for name in _names(self._batches) if name.isdigit())
        if number > 0 and number - 1 not in seen:
            there = f"goes up to batch {seen[-1]}" if seen else "knows of no batch"
            raise SnapshotError(
                f"the state in {self.path} {there}, but the query goes on with batch {number} and "
                f"needs batch {number - 1}; put back the state that belongs to the checkpoint, or start both again"
            )
        newer = [each for each in seen if each > number]
        if any(self._run_of(each) == run for each in newer):
            raise SnapshotError(
                f"batch {number} has been finished by another attempt, and the query has gone on to {newer[-1]}; "
                f"this attempt comes too late and changes nothing"
            )
        if number in seen and self._run_of(number) == run:
            return
        if number in seen or newer:  # the query was started again, and goes back
            self._forget_from(number, run)
            for each in newer:
                _remove(self._mark(each))
        _publish(self._mark(number), run.encode())
        for each in seen:
            if each < number - self._retain:
                _remove(self._mark(each))

    def _forget_from(self, number: int, run: str) -> None:
        """Drop what an earlier run of the query kept of this batch and of later ones."""
        for group in sorted(self.path.glob("group-*")):
            for batch in manifests(group):
                path = manifest_path(group, batch)
                if batch > number or (batch == number and path.exists() and _read(path).get("run") != run):
                    _remove(path)
            for name in _names(group):
                if not name.startswith(_MANIFEST) and batch_of(name) >= number and token(run) not in name.split("-"):
                    _remove(group / name)

    def _mark(self, number: int) -> Path:
        return self._batches / f"{number:012d}"

    def _run_of(self, number: int) -> str:
        try:
            return self._mark(number).read_text()
        except OSError:
            return ""


class GroupState:
    """One group's versions, as a task of one batch sees them."""

    def __init__(self, path: Path, batch: Batch, retain: int) -> None:
        self.store = FileStore.at(path)
        self._path = path
        self._batch = batch
        self._retain = retain
        self._attempt = f"{token(batch.run)}-{uuid.uuid4().hex[:12]}"
        self._written = 0

    def name(self, side: int) -> str:
        """A new segment's name, which no other attempt uses."""
        self._written += 1
        return f"{('left', 'right')[side]}-{self._batch.number}-{self._attempt}-{self._written - 1}"

    def before(self) -> Held:
        """What the group held when the batch began."""
        earlier = [batch for batch in manifests(self._path) if batch < self._batch.number]
        held = self._load(earlier[-1]) if earlier else Held.nothing()
        # A batch whose segments are here has ended, or this one would not have begun: its manifest must be here, too.
        for name in self.store.names():
            if not name.startswith(_MANIFEST) and held.batch < batch_of(name) < self._batch.number:
                raise SnapshotError(
                    f"the manifest of batch {batch_of(name)} is missing from {self._path}, where segment {name!r} of "
                    f"that batch is; put it back, or start again with a new state directory and checkpoint"
                )
        return held

    def publish(self, held: Held) -> None:
        """Make this what the group holds after the batch, all at once."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "batch": held.batch,
            "run": self._batch.run,
            "sides": [[run.to_json() for run in runs] for runs in held.runs],
        }
        text = json.dumps(content, separators=(",", ":"))
        line = json.dumps({"checksum": zlib.crc32(text.encode())})
        _publish(manifest_path(self._path, held.batch), f"{text}\n{line}\n".encode())
        if held.batch % _SWEEP_EVERY == 0:
            self.sweep()

    def sweep(self) -> None:
        """Drop versions that nobody can go back to, and segments that no version needs."""
        oldest = self._batch.number - self._retain
        versions = manifests(self._path)
        needed_from = max((batch for batch in versions if batch <= oldest), default=0)
        for batch in versions:
            if batch < needed_from:
                _remove(manifest_path(self._path, batch))
        needed = set[str]().union(*(self._load(batch).segments() for batch in versions if batch >= needed_from))
        for name in _names(self._path):
            plain = name.removeprefix(".")  # hidden: left unfinished by an attempt that was killed
            if not name.startswith(_MANIFEST) and plain not in needed and -1 < batch_of(plain) <= oldest:
                _remove(self._path / name)

    def _load(self, batch: int) -> Held:
        path = manifest_path(self._path, batch)
        found = _read(path)
        if found.get("format") != FORMAT or found.get("batch") != batch:
            raise SnapshotError(f"{path} is not the manifest of batch {batch}; put back the one that was there")
        left, right = (tuple(Run.from_json(run) for run in runs) for runs in found["sides"])
        return Held(batch, (left, right))


def manifests(group: Path) -> list[int]:
    """The batches of which a group has a manifest, in order."""
    return sorted(int(name.removeprefix(_MANIFEST)) for name in _names(group) if name.startswith(_MANIFEST))


def manifest_path(group: Path, batch: int) -> Path:
    """Where a manifest lies."""
    return group / f"{_MANIFEST}{batch:012d}"


def batch_of(name: str) -> int:
    """The batch that wrote a segment, or began to write a manifest; -1 for any other file.

    >>> batch_of("left-12-77a1-5f0c-0"), batch_of("manifest-000000000012.5f0c"), batch_of("notes.txt")
    (12, 12, -1)
    """
    kind, _, rest = name.partition("-")
    number = rest.partition("-")[0].partition(".")[0]
    return int(number) if kind in ("left", "right", "manifest") and number.isdigit() else -1


def token(run: str) -> str:
    """A run of the query, as it is part of its segments' names."""
    return f"{zlib.crc32(run.encode()):08x}"


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError as error:
        raise SnapshotError(
            f"{directory} is missing; put it back, or start again with a new state directory"
        ) from error


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise spill_error(error, f"make the state directory {path}") from error


def _publish(target: Path, content: bytes, first_wins: bool = False) -> None:
    """Write a file under a name of its own, and let it appear whole."""
    hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}")
    rename: Callable[[Path, Path], None] = os.link if first_wins else os.replace
    try:
        try:
            hidden.write_bytes(content)
            with suppress(FileExistsError):
                rename(hidden, target)
        finally:
            hidden.unlink(missing_ok=True)
    except OSError as error:
        raise spill_error(error, f"write {target}") from error


def _read(path: Path) -> dict[str, Any]:
    """A JSON file, and the checksum on its second line if it has one."""
    try:
        text, _, rest = path.read_text().partition("\n")
        found: dict[str, Any] = json.loads(text)
        if rest and json.loads(rest)["checksum"] != zlib.crc32(text.encode()):
            raise ValueError("its checksum differs")
    except FileNotFoundError as error:
        raise SnapshotError(f"{path} is missing; put it back, or start again with a new state directory") from error
    except (OSError, ValueError, KeyError) as error:
        raise SnapshotError(
            f"{path} is damaged ({error}); put back a sound copy, or start again with a new state directory"
        ) from error
    return found


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):  # another task of the batch was faster
        path.unlink()
