"""A state directory, opened by somebody who is not the query: whose it is, and each group's operator as of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from watersmeet import planner
from watersmeet.core.errors import SegmentError, SnapshotError, SpecError
from watersmeet.core.protocol import Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.joins.confluence import Confluence
from watersmeet.records.keys import KeyCodec
from watersmeet.spark.offline.placement import Placement
from watersmeet.spark.plan.described import options_of, spec_of
from watersmeet.spark.state.directory import FORMAT, Batch, GroupState, group_name, group_number, manifests
from watersmeet.spark.state.files import names_in, read_json
from watersmeet.spark.state.lineage import Lineage, known_runs
from watersmeet.spark.state.remote import CACHE_BYTES, Place, place_of
from watersmeet.spark.state.store import VersionedStore

MEMORY = 64 << 20
"""For an operator that is opened to be looked into; it holds little, for its rows are mapped."""
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
        return spec_of(self.described)

    @property
    def verb(self) -> str:
        """What the user called."""
        return str(self.described["verb"])

    @property
    def algorithm(self) -> str:
        """What joins."""
        return str(self.described["algorithm"])

    @cached_property
    def placement(self) -> Placement:
        """Which group a row belongs to."""
        return Placement(self.spec, self.owner.get("by_id", True))

    @cached_property
    def hash_tells_key(self) -> bool:
        """Whether a row's key is told by its hash, and kept nowhere else."""
        return bool(self.spec.equalities) and KeyCodec(self.spec).exact

    # --- versions ---

    @cached_property
    def lineage(self) -> Lineage:
        """The runs of the query."""
        return known_runs(self.path / "runs")

    def batches(self) -> list[int]:
        """The batches that are known to have begun."""
        return sorted(int(name) for name in names_in(self.path / "batches") if name.isdigit())

    def group_numbers(self) -> list[int]:
        """The groups that have a directory."""
        found = (group_number(name, self.division) for name in names_in(self.path))
        return sorted(number for number in found if number is not None)

    def group_path(self, number: int) -> Place:
        """A group's directory."""
        return self.path / group_name(number, self.division)

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
        return VersionedStore(self.group_state(version.group, version.batch + 1), version.manifest["files"])

    def group_state(self, number: int, batch: int) -> GroupState:
        """A group as somebody sees it who works at a batch."""
        return GroupState(self.group_path(number), Batch(batch, "reader"), _RETAIN, self.lineage, CACHE_BYTES)

    def open(self, version: Version, store: VersionedStore | None = None) -> Confluence | None:
        """A group's operator; None if nothing is left of it. It has to be closed."""
        if version.manifest["snapshot"] is None:
            return None
        self.refuse_others()
        snapshot = Snapshot.from_json(version.manifest["snapshot"])
        store = store or self.store(version)
        memory = max(MEMORY, snapshot.state["memory"])
        try:
            join = self.kind.restore(self.spec, snapshot, memory, store, **options_of(self.described))
        except SegmentError as error:
            raise store.named(error) from error
        assert isinstance(join, Confluence)
        return join

    @property
    def kind(self) -> type[Any]:
        """The class of the operators."""
        listed: Mapping[str, type[Any]] = (
            planner.ALGORITHMS if self.verb == "join" else planner.WINDOW_ALGORITHMS
        )  # fmt: skip
        return listed[self.algorithm]

    def refuse_others(self) -> None:
        """An error where rows are not kept in sorted runs, which are what can be read and divided."""
        known = self.verb in ("join", "window_join", "parallel_join") and self.spec.near is None
        if not known or not issubclass(self.kind, Confluence):
            raise SnapshotError(
                f"{self.path} is the state of a wms.{self.verb} by {self.algorithm!r}, whose rows cannot be read from "
                f"outside; those of wms.join and wms.window_join by 'confluence' on equalities and bands can"
            )
