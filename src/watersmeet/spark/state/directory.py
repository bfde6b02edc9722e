"""The state of a streaming join on disk: whose it is, which batches it has seen, and what each group holds.

```
state/
  state.json                        the join and the query that it belongs to
  runs/000001                       the second start of the query, and the batch it began with
  batches/000000000012              batch 12 has begun; says in which run of the query
  marks/                            of a window join: the times that its inputs have reached (see `watermarks`)
  routing/                          which slot has which group, and where hot keys are (see `master_task`)
  group-0003/                       group-5f0c77a1-0003 once the keys were divided into another number of groups
    manifest-000000000012-77a1c2d3  what the group holds after batch 12 of run 77a1c2d3: the names of segments
    operator-12-77a1c2d3-5f0c-0     a segment, written once
```

Nothing but `state.json` is ever rewritten (`offline.repartition` says when): a file is written under a name of its own
and renamed when it is whole, and a task that is run again begins from the batch before. A manifest appears after all
that it names has reached the disk, and a task answers after that, so Spark never counts a batch as done whose state a
power cut can take back. A group that was given no row in a batch has no manifest of it: its state is that of the last
one before.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from watersmeet.core.errors import SnapshotError
from watersmeet.spark.state.described import differences, only_new_columns
from watersmeet.spark.state.files import (
    checked_json,
    make_directory,
    names_in,
    publish,
    read_json,
    read_json_if_there,
    refuse_link_in,
    remove,
    sync,
    understood,
)
from watersmeet.spark.state.lineage import Lineage, enter, token
from watersmeet.spark.state.remote import CACHE_BYTES, Place, in_bucket, store_at
from watersmeet.spill.store import check_name

FORMAT = 6
SEGMENTS = "segments"
"""In the manifest of an operator: the names of its segments."""
ROWS = "rows"
"""In the manifest of an operator whose rows are all in runs: how many there are of each input."""
RESULTS = "results"
"""In the manifest of an operator that may give other results when it is repeated: the names of the files that keep what
the batch gave, until it is over."""
HOMES = "homes"
"""In `state.json`: whether there are, or were, keys that are split."""
_MANIFEST = "manifest-"
_NAME = re.compile(r"\.?[a-z]+-(?P<batch>\d+)-(?P<token>[0-9a-f]{8})")
MOST_GROUPS = 1 << 20
"""Into which keys can be divided."""
_DIVISION = re.compile(r"[0-9a-f]{0,32}")
_SWEEP_EVERY = 8
"""Batches between two sweeps of a group: reading all its manifests costs more than the room they take."""
_KNOWN: dict[str, tuple[int, frozenset[str]]] = {}
"""Of manifests that this process has read: when they were written, and the files that they name."""
_MOST_KNOWN = 4_096
_BEGUN: dict[str, tuple[Any, Lineage, str, int, Mapping[str, Any], bool]] = {}
"""Of state in buckets: the last batch that this process has begun there, and what it was told."""
_REFUSED: set[tuple[str, str]] = set()
"""Starts of queries that this process has refused, by the state directory: they begin none there. Somebody may put the
directory away that was in their way while tasks of such a start are still to come."""
_LOOKED_FOR = 2
"""In a bucket whose listings may lag behind: manifests of so many batches before this one are asked for by name."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who keeps state: a join, its number of groups, and the query it runs in."""

    fingerprint: str
    groups: int
    query: str
    word: str = "partitions"
    """What the user calls the number of groups."""
    tick: int | None = None
    """Of a window join: nanoseconds of a unit of the inputs' times, for people; None if they are integers."""
    describe: Callable[[], dict[str, Any]] | None = None
    """What the join is, for those who look into its state without the query: see `described`."""
    by_id: bool = True
    """Whether Spark is given the numbers of groups, as from 4.1 on; else it hashes the key's hash once more."""
    grows: bool = False
    """Whether inputs may have columns behind those that the state knows (see `task.new_columns`)."""
    splits: bool = True
    """Whether hot keys may have homes of their own, which rows are sent to (see `rebalance.routing`)."""
    made: int = 0
    """When the query was put together, on the driver: see `lineage`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: its number, and the run of the query (from one start to the next) that it is part of."""

    number: int
    run: str


class StateDirectory:
    """A join's state as a task of one batch sees it; refuses a state that is not the one this batch goes on from."""

    def __init__(self, path: Place, owner: Owner, batch: Batch, retain: int, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self.batch = batch
        self.groups = owner.groups
        self._retain = max(2, retain)
        self._cache_bytes = cache_bytes
        self._batches = path / "batches"
        self._division = ""
        self._divided_after = -1
        self._has_homes = False
        self._earlier: Mapping[str, Any] = {}
        who = batch, owner.fingerprint, owner.groups, owner.query, owner.by_id, owner.splits
        known = _BEGUN.get(str(path)) if in_bucket(path) else None
        if known is not None and known[0] == who:
            # Another task of this process has asked. What has changed since is told by names: those of a run that is
            # not the last any more are void, whatever it still writes.
            self._lineage, self._division, self._divided_after, self._earlier, self._has_homes = known[1:]
            return
        for name in ("batches", "runs"):
            refuse_link_in(path, name)
        self._check_owner(owner)
        self._lineage = enter(path / "runs", batch.run, batch.number, owner.made)
        self._begin()
        if in_bucket(path):
            _BEGUN[str(path)] = (
                who, self._lineage, self._division, self._divided_after, self._earlier, self._has_homes
            )  # fmt: skip

    @property
    def lineage(self) -> Lineage:
        """The runs of the query up to this one."""
        return self._lineage

    @property
    def retain(self) -> int:
        """How many batches the query may go back."""
        return self._retain

    @property
    def division(self) -> str:
        """Which division of the keys into groups counts."""
        return self._division

    def note_homes(self) -> None:
        """Take note that keys are split, so that nobody goes on without sending their rows to where they are."""
        target = self.path / "state.json"
        if not self._has_homes:
            publish(target, checked_json({**read_json(target), HOMES: True}))
            self._has_homes = True

    def group(self, number: int) -> GroupState:
        """The state of one group of keys."""
        path = self.path / group_name(number, self._division)
        make_directory(path)
        return GroupState(path, self.batch, self._retain, self._lineage, self._cache_bytes, self._earlier)

    def _check_owner(self, owner: Owner) -> None:
        target = self.path / "state.json"
        text = {"format": FORMAT, "join": owner.fingerprint, "groups": owner.groups, "query": owner.query}
        if owner.tick is not None:
            text["tick"] = owner.tick
        text["by_id"] = owner.by_id
        found = read_json_if_there(target)
        if found is None:
            if self.batch.number > 0:
                raise SnapshotError(
                    f"there is no state in {self.path}, but the query goes on with batch {self.batch.number}; put the "
                    f"state directory back, or start again with a new checkpoint"
                )
            if (str(self.path), self.batch.run) in _REFUSED:
                raise SnapshotError(
                    f"this start of the query was refused because of what was in {self.path}, which is not there any "
                    f"more; it begins no state of its own. Start the query again"
                )
            make_directory(self._batches)
            if owner.describe is not None:
                text |= {"described": owner.describe(), "version": metadata.version("watersmeet")}
            publish(target, checked_json(text), first_wins=True)
            found = read_json(target)
        try:
            has_grown = self._refuse_unfit(found, owner)
        except SnapshotError:
            if self.batch.number == 0:  # later ones begin no state
                _REFUSED.add((str(self.path), self.batch.run))
            raise
        self._has_homes = found.get(HOMES, False)
        if has_grown:
            assert owner.describe is not None
            earlier = {**found.get("earlier", {}), found["join"]: found["described"]}
            found |= {"join": owner.fingerprint, "described": owner.describe(), "earlier": earlier}
            publish(target, checked_json(found))
        self._division, self._divided_after = found.get("division", ""), found.get("divided_after", -1)
        self._earlier = found.get("earlier", {})

    def _refuse_unfit(self, found: Mapping[str, Any], owner: Owner) -> bool:
        """An error if the state that was found is another's; else whether its inputs have new columns now."""
        if found.get("format") != FORMAT:
            raise SnapshotError(
                f"the state in {self.path} has format {found.get('format')}, and this version of Watersmeet reads "
                f"{FORMAT}; go on with the version that wrote it, or start again with a new directory and checkpoint"
            )
        with understood(self.path / "state.json"):
            check_groups(found)
            _ = found["query"], found["join"]
        if found["query"] != owner.query:
            raise SnapshotError(
                f"the state in {self.path} belongs to query {found['query']}, not to this one ({owner.query}); choose "
                f"another state directory, or start the query with the checkpoint that belongs to the state"
            )
        has_grown = (
            owner.grows
            and owner.describe is not None
            and found["join"] != owner.fingerprint
            and "described" in found
            and only_new_columns(found["described"], owner.describe())
        )
        if found["join"] != owner.fingerprint and not has_grown:
            told = ""
            if owner.describe is not None and "described" in found:
                told = f" ({'; '.join(differences(found['described'], owner.describe()))})"
            raise SnapshotError(
                f"the state in {self.path} belongs to another join: inputs, conditions, suffixes or algorithm are not "
                f"those it was begun with{told}; change them back, or start "
                f"again with a new state directory and checkpoint"
            )
        if found["groups"] != owner.groups:
            raise SnapshotError(
                f"the state in {self.path} has {found['groups']} groups, not {owner.groups}; "
                f"join with {owner.word}={found['groups']}, or divide it anew with "
                f"'watersmeet state {self.path} repartition --partitions {owner.groups}'"
            )
        if found.get("by_id", owner.by_id) != owner.by_id:
            older, newer = ("4.0", "4.1 and later")[:: 1 if owner.by_id else -1]
            raise SnapshotError(
                f"the state in {self.path} was begun with PySpark {older}, and {newer} sends rows to other groups; go "
                f"on with the version that it was begun with, or start again with a new directory and checkpoint"
            )
        if found.get(HOMES, False) and not owner.splits:
            raise SnapshotError(
                f"the state in {self.path} has hot keys that are split over several groups, and without split=True no "
                f"row is sent there; say so, or put the keys together with 'watersmeet state {self.path} repartition'"
            )
        return bool(has_grown)

    def _begin(self) -> None:
        """Take note that the batch has begun, once the one before is found to have been here."""
        number, run = self.batch.number, self.batch.run
        names = names_in(self._batches)
        seen = sorted(int(name) for name in names if name.isdecimal())
        if number > 0 and number - 1 not in seen:
            there = f"goes up to batch {seen[-1]}" if seen else "knows of no batch"
            raise SnapshotError(
                f"the state in {self.path} {there}, but the query goes on with batch {number} and "
                f"needs batch {number - 1}; put back the state that belongs to the checkpoint, or start both again"
            )
        if self._division and number - 1 > self._divided_after and self._division_of(number - 1) != self._division:
            raise SnapshotError(
                f"the state in {self.path} was divided anew as of batch {self._divided_after}, while the query went on "
                f"to batch {number - 1}, whose rows are missing; put back a copy of the state and divide that, with "
                f"the query stopped, or start again with a new state directory and checkpoint"
            )
        if self._division and number < self._divided_after:
            raise SnapshotError(
                f"the query goes back to batch {number}, and the state in {self.path} was divided anew as of batch "
                f"{self._divided_after}: of those before it, only the last was kept; put back a copy from before"
            )
        newer = [each for each in seen if each > number]
        earlier = self._lineage.before(run)
        if any(self._run_of(each) not in earlier for each in newer):
            raise SnapshotError(
                f"batch {number} has been finished by another attempt, and the query has gone on to {newer[-1]}; "
                f"this attempt comes too late and changes nothing"
            )
        if number in seen and self._run_of(number) == run:
            return
        if number in seen or newer:  # the query was started again, and goes back
            self._forget_from(number, {token(each) for each in earlier}, replayed=not newer)
            for each in newer:
                remove(self._mark(each))
        publish(self._mark(number), f"{run} {self._division}".strip().encode())
        for name in names:
            begun = name.removeprefix(".").partition(".")[0]  # hidden: left by a task that was killed
            if begun.isdecimal() and int(begun) < number - self._retain:
                remove(self._batches / name)

    def _forget_from(self, number: int, tokens: set[str], replayed: bool = False) -> None:
        """Drop what earlier runs of the query kept of this batch and of later ones.

        Of a batch that is only replayed, all stays until it is swept: a version that carries its results may have
        reached the sink, or may be published at this very moment, by a task that has outlived its driver.
        """
        for group in names_in(self.path):
            if group_number(group, self._division) is None:
                continue
            refuse_link_in(self.path, group)
            for name in names_in(self.path / group):
                if batch_of(name) >= number + replayed and token_of(name) in tokens:
                    remove(self.path / group / name)

    def _mark(self, number: int) -> Place:
        return self._batches / f"{number:012d}"

    def _run_of(self, number: int) -> str:
        return self._mark_of(number)[0]

    def _division_of(self, number: int) -> str:
        """The division of groups that a batch was begun with."""
        return self._mark_of(number)[1]

    def _mark_of(self, number: int) -> tuple[str, str]:
        try:
            run, _, division = self._mark(number).read_text().partition(" ")
        except (OSError, ValueError):  # gone, or no text any more: then it is no run's
            return "", ""
        return run, division


class GroupState:
    """One group's versions, as a task of one batch sees them."""

    def __init__(
        self,
        path: Place,
        batch: Batch,
        retain: int,
        lineage: Lineage,
        cache_bytes: int = CACHE_BYTES,
        earlier: Mapping[str, Any] | None = None,
    ) -> None:
        """`earlier` is what the join was when inputs had fewer columns, by its fingerprint."""
        self.store = store_at(path, cache_bytes)
        self._path = path
        self._batch = batch
        self._retain = retain
        self._lineage = lineage
        self._attempt = f"{token(batch.run)}-{uuid.uuid4().hex[:12]}"
        self._earlier = earlier or {}
        self._written = 0
        self._last = -1
        """The batch of which the group's state was, when this one began."""

    @property
    def place(self) -> str:
        """The group's directory."""
        return str(self._path)

    @property
    def batch(self) -> Batch:
        """The batch that is at work."""
        return self._batch

    @property
    def attempt(self) -> str:
        """What tells this attempt at the batch from all others."""
        return self._attempt

    def columns_before(self, fingerprint: str) -> list[int] | None:
        """How many columns each input had in a version of this join; None if it had as many as now."""
        for join, told in self._earlier.items():
            if join.startswith(f"{fingerprint}-"):
                return [len(each["columns"]) for each in told["inputs"]]
        return None

    def file(self, kind: str) -> str:
        """A new file's name, which no other attempt uses."""
        self._written += 1
        return f"{kind}-{self._batch.number}-{self._attempt}-{self._written - 1}"

    def latest(self) -> dict[str, Any] | None:
        """The last manifest from before the batch; None if there is none."""
        names = names_in(self._path)
        if in_bucket(self._path):
            names += self._unlisted(names)
        earlier = [each for each in manifests(names, self._lineage).items() if each[0] < self._batch.number]
        self._last = earlier[-1][0] if earlier else -1
        # A batch whose segments are here has ended, or this one would not have begun: its manifest must be here, too.
        for name in names:
            batch = batch_of(name)
            if self._last < batch < self._batch.number and _is_segment(name) and _is_valid(name, self._lineage):
                raise SnapshotError(
                    f"the manifest of batch {batch} is missing from {self._path}, where segment {name!r} of "
                    f"that batch is; put it back, or start again with a new state directory and checkpoint"
                )
        return self._load(*earlier[-1]) if earlier else None

    def _unlisted(self, names: Sequence[str]) -> list[str]:
        """Manifests of the last batches that are there and were not listed."""
        found = []
        for batch in range(max(0, self._batch.number - _LOOKED_FOR), self._batch.number):
            run = self._lineage.run_for(batch)
            name = None if run is None else manifest_name(batch, run)
            newest = max(manifests(names, self._lineage), default=-1)
            if name is not None and batch > newest and (self._path / name).is_file():
                found.append(name)
        return found

    def published(self) -> dict[str, Any] | None:
        """The manifest of this very batch, if an attempt of this run has published it.

        The same of an earlier run, if this one only repeats the batch, becomes this run's: what it carries may have
        reached the sink.
        """
        number = self._batch.number
        own = manifest_name(number, self._batch.run)
        if (self._path / own).exists():
            return self._load(number, own)
        for run in self._lineage.repeated(number):
            name = manifest_name(number, run)
            if (self._path / name).exists():
                found = self._load(number, name)
                if RESULTS in found:
                    publish(self._path / own, checked_json(found), first_wins=True)
                    return self._load(number, own)
        return None

    def publish_once(self, content: dict[str, Any]) -> dict[str, Any]:
        """Make this what the group holds after the batch, unless another attempt was first; returns what holds now."""
        number, run = self._batch.number, self._batch.run
        whole = {"format": FORMAT, "batch": number, "run": run, "attempt": self._attempt, **content}
        # What was merged away within the batch is never needed, so only what is named is brought to the disk.
        sync(self._path / name for name in sorted(files_of(whole)) if self._attempt in name)
        first = publish(self._path / manifest_name(number, run), checked_json(whole), first_wins=True)
        if self._last // _SWEEP_EVERY < number // _SWEEP_EVERY:  # whichever batches the group has rows in
            self.sweep()
        if first and in_bucket(self._path):
            return whole  # as it is there: one request less
        return self._load(number, manifest_name(number, run))

    def remove(self, names: Iterable[str]) -> None:
        """Drop files that no version needs."""
        for name in names:
            remove(self._path / name)

    def sweep(self) -> None:
        """Drop versions that nobody can go back to, and files that no version needs: those of dead attempts, too."""
        oldest = self._batch.number - self._retain
        names = names_in(self._path)
        versions = manifests(names, self._lineage)
        needed_from = max((batch for batch in versions if batch <= oldest), default=0)
        needed = set[str]()
        for batch, name in versions.items():
            if batch >= needed_from:
                needed |= {name} | self._files_of(batch, name)
        for name in names:
            if name not in needed and -1 < batch_of(name) <= oldest:
                remove(self._path / name)

    def _files_of(self, batch: int, name: str) -> frozenset[str]:
        """What a version needs; manifests that this process has read before, and nobody has touched, are not read."""
        path = f"{self._path}/{name}"
        stamp = os.stat(path).st_mtime_ns if os.path.exists(path) else 0  # noqa: PTH110, PTH116 - of hundreds
        found = _KNOWN.get(path)
        if found is None or found[0] != stamp:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            found = _KNOWN[path] = stamp, files_of(self._load(batch, name))
        return found[1]

    def _load(self, batch: int, name: str) -> dict[str, Any]:
        path = self._path / name
        found = read_json(path)
        if found.get("format") != FORMAT or found.get("batch") != batch:
            raise SnapshotError(f"{path} is not the manifest of batch {batch}; put back the one that was there")
        return found


def files_of(manifest: dict[str, Any]) -> frozenset[str]:
    """What a version needs."""
    found = frozenset([*manifest[SEGMENTS], *manifest.get(RESULTS, ())])
    for name in found:
        check_name(name)  # none that leads out of the group's directory
    return found


def check_groups(owner: Mapping[str, Any]) -> None:
    """An error if what `state.json` says of groups cannot be."""
    groups, division = owner["groups"], owner.get("division", "")
    if not isinstance(groups, int) or not 0 < groups <= MOST_GROUPS or not isinstance(division, str):
        raise SnapshotError(f"state.json tells of {groups!r:.40} groups; put back a sound copy of it")
    group_name(0, division)


def manifests(names: Iterable[str], lineage: Lineage) -> dict[int, str]:
    """Of the names in a group's directory, those of valid manifests, by their batches and in order."""
    found = {batch_of(name): name for name in names if name.startswith(_MANIFEST) and _is_valid(name, lineage)}
    return dict(sorted(found.items()))


def group_name(number: int, division: str = "") -> str:
    """What the directory of a group is called.

    >>> group_name(3), group_name(3, "5f0c77a1")
    ('group-0003', 'group-5f0c77a1-0003')
    """
    if not _DIVISION.fullmatch(division):
        raise SnapshotError(f"{division!r} is no division of keys into groups; put back a sound copy of state.json")
    return f"group-{division}-{number:04d}" if division else f"group-{number:04d}"


def group_number(name: str, division: str = "") -> int | None:
    """The number of the group of a directory; None if it is none of this division.

    >>> group_number("group-0003"), group_number("group-5f0c77a1-0003"), group_number("group-5f0c77a1-0003", "5f0c77a1")
    (3, None, 3)
    """
    found = name.removeprefix(group_name(0, division)[:-4])
    return int(found) if found != name and re.fullmatch("[0-9]{4,9}", found) else None


def manifest_name(batch: int, run: str) -> str:
    """What the manifest of a batch is called."""
    return f"{_MANIFEST}{batch:012d}-{token(run)}"


def batch_of(name: str) -> int:
    """The batch of a segment or manifest, hidden or not; -1 for any other file.

    >>> batch_of("operator-12-77a1c2d3-5f0c-0"), batch_of(".manifest-000000000012-77a1c2d3.5f0c"), batch_of("notes.txt")
    (12, 12, -1)
    """
    found = _NAME.match(name)
    return int(found["batch"]) if found else -1


def token_of(name: str) -> str:
    """The token of the run that wrote a segment or manifest; empty for any other file."""
    found = _NAME.match(name)
    return found["token"] if found else ""


def _is_valid(name: str, lineage: Lineage) -> bool:
    return lineage.answers_for(batch_of(name), token_of(name))


def _is_segment(name: str) -> bool:
    return not name.startswith((".", _MANIFEST))
