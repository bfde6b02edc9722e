"""A state directory, opened by somebody who is not the query: whose it is, and each group's operator as of a batch;
what it holds, as figures; and every checksum of it, checked: what is damaged or missing is named, and nothing is
changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet import planner
from watersmeet.core.errors import ProtocolError, SegmentError, SnapshotError, SpecError, SpillError
from watersmeet.core.protocol import Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.runs.matched_bits import check_bits
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.io.state_view import StateView
from watersmeet.spark.rebalance.routing import routing_name
from watersmeet.spark.state.described import many_spec_of, options_of, spec_of
from watersmeet.spark.state.directory import (
    FORMAT,
    RESULTS,
    ROWS,
    SEGMENTS,
    Batch,
    GroupState,
    check_groups,
    group_name,
    group_number,
    manifests,
)
from watersmeet.spark.state.files import NOT_UNDERSTOOD, names_in, read_json, understood
from watersmeet.spark.state.lineage import Lineage, known_runs
from watersmeet.spark.state.remote import CACHE_BYTES, Place, place_of
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.placement import Placement
from watersmeet.spark.task.stored_rows import hash_tells_key
from watersmeet.spill.segment import Segment
from watersmeet.spill.store import Store

MEMORY = 64 << 20
"""For an operator that is opened to be looked into; it holds little, for its rows are mapped."""
_MOST_MEMORY = 1 << 44
_RETAIN = 100


@dataclass(frozen=True, slots=True)
class Version:
    """A group after a batch: what its manifest says."""

    group: int
    batch: int
    manifest: Mapping[str, Any]


class OpenedState:
    """A state directory, read only."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = os.fspath(place)
        """What was asked for."""
        self.path: Place = place_of(self.place)
        if not (self.path / "state.json").exists():
            raise SpecError(f"{self.path} is not the state directory of a join: there is no state.json in it")
        self.owner = read_json(self.path / "state.json")
        with understood(self.path / "state.json"):
            check_groups(self.owner)
        if self.owner.get("format") != FORMAT:
            raise SnapshotError(
                f"the state in {self.path} has format {self.owner.get('format')}, and this version of Watersmeet reads "
                f"{FORMAT}; use the version that wrote it"
            )

    # --- whose it is ---

    @property
    def groups(self) -> int:
        """How many groups the keys are divided into."""
        return int(self.owner["groups"])

    @property
    def division(self) -> str:
        """Which division of the keys into groups counts."""
        return str(self.owner.get("division", ""))

    @property
    def described(self) -> dict[str, Any]:
        """What the join is."""
        found: dict[str, Any] | None = self.owner.get("described")
        if found is None:
            raise SnapshotError(
                f"the state in {self.path} does not tell what is joined: an older version of Watersmeet has begun "
                f"it; 'watersmeet state {self.path} show' and 'verify' work all the same"
            )
        return found

    @cached_property
    def spec(self) -> JoinSpec:
        """What is joined."""
        with understood(self.path / "state.json"):
            return spec_of(self.described)

    @property
    def verb(self) -> str:
        """What the user called."""
        with understood(self.path / "state.json"):
            return str(self.described["verb"])

    @property
    def algorithm(self) -> str:
        """What joins."""
        with understood(self.path / "state.json"):
            return str(self.described["algorithm"])

    @cached_property
    def placement(self) -> Placement:
        """Which group a row belongs to."""
        return Placement(self.spec, bool(self.owner.get("by_id", True)))

    @cached_property
    def hash_tells_key(self) -> bool:
        """Whether a row's key is told by its hash, and kept nowhere else."""
        return hash_tells_key(self.spec)

    # --- versions ---

    @cached_property
    def lineage(self) -> Lineage:
        """The runs of the query."""
        with understood(self.path / "runs"):
            return known_runs(self.path / "runs")

    def batches(self) -> list[int]:
        """The batches that are known to have begun."""
        return sorted(int(name) for name in names_in(self.path / "batches") if name.isdecimal())

    def group_numbers(self) -> list[int]:
        """The groups that have a directory."""
        found = (group_number(name, self.division) for name in names_in(self.path))
        return sorted(number for number in found if number is not None)

    def group_path(self, number: int) -> Place:
        """A group's directory."""
        return self.path / group_name(number, self.division)

    @cached_property
    def homes(self) -> dict[int, frozenset[int]]:
        """Groups of hot keys that are split: the sides whose rows count there, the others being copies."""
        routing, _ = StateView(self.place).routing(self.lineage)
        found = {} if routing is None else routing.sides_in_homes()
        if found is None:
            raise SnapshotError(
                f"a hot key of the state in {self.path} is on its way to other groups: until its window has passed, "
                f"rows of it are in both; try again when the query has gone on for that long"
            )
        return found

    def counted(self, group: int) -> frozenset[int]:
        """The sides whose rows count in a group."""
        return frozenset({0, 1}) if group < self.groups else self.homes.get(group, frozenset())

    def version(self, group: int, batch: int) -> Version | None:
        """A group as it was after a batch; None if it had no rows by then."""
        path = self.group_path(group)
        found = manifests(names_in(path), self.lineage)
        last = max((each for each in found if each <= batch), default=None)
        return None if last is None else Version(group, last, read_json(path / found[last]))

    def versions(self, batch: int | None = None) -> Iterator[Version]:
        """All groups as they were after a batch, or after the last."""
        for number in self.group_numbers():
            found = self.version(number, 1 << 60 if batch is None else batch)
            if found is not None:
                yield found

    # --- what is in them ---

    def store(self, version: Version) -> VersionedStore:
        """The segments of a version."""
        with understood(self.group_path(version.group)):
            return VersionedStore(self.group_state(version.group, version.batch + 1), version.manifest["files"])

    def group_state(self, number: int, batch: int) -> GroupState:
        """A group as somebody sees it who works at a batch."""
        return GroupState(self.group_path(number), Batch(batch, "reader"), _RETAIN, self.lineage, CACHE_BYTES)

    def open(self, version: Version, store: VersionedStore | None = None) -> Confluence | None:
        """A group's operator; None if nothing is left of it. It has to be closed."""
        with understood(self.group_path(version.group)):
            if version.manifest["snapshot"] is None:
                return None
            self.refuse_others()
        join = self.restored(self.kind, self.spec, version, store or self.store(version))
        assert isinstance(join, Confluence)
        return join

    def restored(self, kind: type[Any], spec: Any, version: Version, store: VersionedStore) -> Any:
        """A group's operator of some class."""
        with understood(self.group_path(version.group)):
            return self._restored(kind, spec, version, store)

    def _restored(self, kind: type[Any], spec: Any, version: Version, store: VersionedStore) -> Any:
        snapshot = Snapshot.from_json(version.manifest["snapshot"])
        if any(join.startswith(f"{snapshot.fingerprint}-") for join in self.owner.get("earlier", ())):
            raise SnapshotError(
                f"{self.group_path(version.group)} has rows from before the inputs had their last columns, which they "
                f"get with the next rows of the group; run the query until all groups have had rows, or until then "
                f"use 'show' and 'verify'"
            )
        memory = max(MEMORY, snapshot.state["memory"])
        if memory > _MOST_MEMORY:
            raise ValueError(f"it was to work in {memory} bytes of memory, which no machine has")
        try:
            return kind.restore(spec, snapshot, memory, store, **options_of(self.described))
        except SegmentError as error:
            raise store.named(error) from error

    @property
    def kind(self) -> type[Any]:
        """The class of the operators."""
        listed: Mapping[str, type[Any]] = (
            planner.ALGORITHMS if self.verb == "join" else planner.WINDOW_ALGORITHMS
        )  # fmt: skip
        with understood(self.path / "state.json"):
            return listed[self.algorithm]

    def refuse_others(self) -> None:
        """An error where rows are not kept in sorted runs, which are what can be read and divided."""
        known = self.verb in ("join", "window_join", "parallel_join") and self.spec.near is None
        if not known or not issubclass(self.kind, Confluence):
            raise SnapshotError(
                f"{self.path} is the state of a wms.{self.verb} by {self.algorithm!r}, whose rows cannot be read from "
                f"outside; those of wms.join and wms.window_join by 'confluence' on equalities and bands can"
            )


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A group after the last batch in which it had rows."""

    number: int
    batch: int
    rows: tuple[int, ...] | None
    """Of each input; None where that cannot be told without its rows being read."""
    nbytes: int
    runs: int
    """Segments that it consists of."""


def figures(state: OpenedState) -> dict[str, Any]:
    """All there is to be told of a state."""
    with understood(state.path):
        return _figures(state)


def _figures(state: OpenedState) -> dict[str, Any]:
    view = StateView(state.place)
    batches = state.batches()
    groups = [_group(state, version) for version in state.versions()]
    rows: list[tuple[int, ...]] = []
    with suppress(SnapshotError):  # a hot key is on its way, and nobody can tell which rows are copies
        rows = [_counted_rows(state, group) for group in groups if group.rows is not None]
    reached = view.reached(batches[-1]) if batches else None
    described: dict[str, Any] = state.owner.get("described") or {}
    return {
        "place": str(state.path),
        "verb": described.get("verb"),
        "algorithm": described.get("algorithm"),
        "inputs": [{"name": each["name"], "columns": each["columns"]} for each in described.get("inputs", ())],
        "on": _conditions(described),
        "how": described.get("how"),
        "query": state.owner["query"],
        "format": state.owner["format"],
        "version": state.owner.get("version"),
        "runs of the query": len(state.lineage.runs),
        "batches": {"kept from": batches[0], "last": batches[-1]} if batches else None,
        "groups": state.groups,
        "rows": [sum(each) for each in zip(*rows, strict=True)] if rows else None,
        "bytes": sum(group.nbytes for group in groups),
        "files": sum(len(names_in(state.group_path(number))) for number in state.group_numbers()),
        "watermarks": None if reached is None else list(reached),
        "dated": view.dated,
        "hot keys": view.extras().get("hot", []),
        "by group": [
            {"group": each.number, "batch": each.batch, "rows": each.rows, "bytes": each.nbytes, "runs": each.runs}
            for each in groups
        ],
    }


def _counted_rows(state: OpenedState, group: GroupFigures) -> tuple[int, ...]:
    """A group's rows of each side, without copies of rows of hot keys."""
    assert group.rows is not None
    if group.number < state.groups:
        return group.rows
    return tuple(count if side in state.counted(group.number) else 0 for side, count in enumerate(group.rows))


def _conditions(described: dict[str, Any]) -> list[str]:
    found = []
    for each in described.get("on", ()):
        if "width" in each:
            width = each["width"]["value"] if isinstance(each["width"], dict) else each["width"]
            found.append(f"|{each['left']} - {each['right']}| <= {width}")
        else:
            found.append(f"{each['left']} = {each['right']}")
    return found


def _group(state: OpenedState, version: Version) -> GroupFigures:
    files: dict[str, Any] = version.manifest["files"]
    rows = tuple(version.manifest[ROWS]) if ROWS in version.manifest else _counted(state, version)
    nbytes = sum(nbytes for _, nbytes, _ in files.values())
    return GroupFigures(version.group, version.batch, rows, nbytes, len(version.manifest[SEGMENTS]))


def _counted(state: OpenedState, version: Version) -> tuple[int, ...] | None:
    """Rows of each input, where runs tell: of state that is elsewhere, all of them would have to be fetched."""
    described = state.owner.get("described")
    if described is None or not isinstance(state.path, Path):
        return None
    asof = described["verb"] == "asof_join"
    many = described["verb"] == "multijoin" and state.algorithm == ManyConfluence.name
    timed = described["verb"] in ("window_join", "parallel_join") and issubclass(state.kind, Confluence)
    if not asof and not timed and not many:
        return None
    if version.manifest["snapshot"] is None:
        return (0,) * len(described["inputs"])
    try:
        join: Any
        if asof or many:
            kind, spec = (ManyConfluence, many_spec_of(described)) if many else (AsofJoin, state.spec)
            join = state.restored(kind, spec, version, state.store(version))
        else:
            join = state.open(version)
    except (SegmentError, SnapshotError):
        return None
    try:
        return (join.left.count, join.right.count) if asof else tuple(sum(run.rows for run in of) for of in join.runs)
    finally:
        join.close()


_RUN = b"watersmeet sorted run"
_SEGMENT = b"watersmeet segment"


@dataclass(slots=True)
class Verified:
    """What was found."""

    files: int = 0
    nbytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """A sentence for each file that is not what was written."""
    left_over: list[str] = field(default_factory=list)
    """Directories that no version needs, of a division that was killed."""


def verify(state: OpenedState, told: Callable[[int, int], None] | None = None) -> Verified:
    """Check all small files, and all segments that a version of a group names.

    :param told: is given the number of groups that are done, and of all.
    """
    found = Verified()
    for directory in ("runs", "versions", "marks", routing_name(state.division)):
        for path in _small_files(state, directory):
            _check(found, partial(read_json, path))
    batches = state.batches()
    for number in batches:
        _check(found, partial(_check_mark, state, number), state.path / "batches" / f"{number:012d}")
    for name in names_in(state.path):
        if name.startswith("group-") and group_number(name, state.division) is None:
            found.left_over.append(str(state.path / name))
    numbers = state.group_numbers()
    for done, number in enumerate(numbers):
        if batches:
            _check(found, state.group_state(number, batches[-1]).latest)
        _verify_group(state, number, found)
        if told is not None:
            told(done + 1, len(numbers))
    return found


def _check_mark(state: OpenedState, number: int) -> None:
    """The run that has begun a batch must be known."""
    mark = state.path / "batches" / f"{number:012d}"
    run = mark.read_text().partition(" ")[0]
    if run not in (each for each, _ in state.lineage.runs):
        raise SnapshotError(
            f"{mark} says that run {run} has begun the batch, and {state.path / 'runs'} does not know it; put back the "
            f"file of that run"
        )


def _small_files(state: OpenedState, directory: str) -> Iterator[Any]:
    if not (state.path / directory).exists():
        return
    for name in names_in(state.path / directory):
        if name.isdecimal() or name.startswith(("known-", "routing-", "version-")):
            yield state.path / directory / name


def _verify_group(state: OpenedState, number: int, found: Verified) -> None:
    path = state.group_path(number)
    seen = set[str]()
    for batch, name in manifests(names_in(path), state.lineage).items():
        manifest = _check(found, partial(read_json, path / name))
        if manifest is not None:
            _check(found, partial(_verify_version, state, Version(number, batch, manifest), seen, found), path / name)
            found.files -= 1  # it was counted when it was read


def _verify_version(state: OpenedState, version: Version, seen: set[str], found: Verified) -> None:
    """Check all segments that a manifest names, but those that were seen."""
    path, store, manifest = state.group_path(version.group), state.store(version), version.manifest
    for segment, (file, nbytes, _) in manifest["files"].items():
        if file not in seen:
            seen.add(file)
            _check(found, partial(_check_content, store, segment), path / file)
            found.nbytes += nbytes
    for file in manifest.get(RESULTS, ()):
        if file not in seen and file in names_in(path):  # they go when the batch is over
            seen.add(file)
            _check(found, partial(_check_content, store.group.store, file), path / file)


def _check(found: Verified, check: Callable[[], Any], where: Place | None = None) -> Any:
    """What a check gives; None if it finds damage, which is noted."""
    found.files += 1
    try:
        return check()
    except (SegmentError, SnapshotError, SpillError, ProtocolError) as error:
        found.damaged.append(str(error))
    except NOT_UNDERSTOOD as error:
        found.damaged.append(f"{where} is not what Watersmeet writes ({type(error).__name__}: {error})")
    return None


def _check_content(store: VersionedStore | Store, name: str) -> None:
    """Read a segment through; an error if it is not what was written."""
    buffer: pa.Buffer = store.open(name)
    begins = buffer.slice(0, min(64, buffer.size)).to_pybytes()
    try:
        if begins.startswith(_RUN):
            run = SortedRun(store, name, ())
            run.check_hashes(0, run.rows)
            run.check_all_blocks()
            let_go([run])
        elif begins.startswith(_SEGMENT):
            segment = Segment.open(store, name)
            for page in range(segment.pages):
                segment.read_page(page)
            for array in segment.arrays:
                segment.array(array)
            segment.close()
        else:
            check_bits(store.shown(name), buffer)
    except SegmentError as error:
        raise (store.named(error) if isinstance(store, VersionedStore) else error) from error
