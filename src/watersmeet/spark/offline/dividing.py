"""The state of a join, divided into another number of groups while its query is stopped.

    state.json          groups: 8                             ──▶  groups: 16, division: 5f0c77a1
    group-0000 ...      what batches up to the last have left      removed
    group-5f0c77a1-0000 ...                                        the same rows, each where Spark will send its like

Rows of hot keys that were split come together again; of those that were copied, one is taken.

**Atomic.** All of the new groups is written, and has reached the disk, before one small file, `state.json`, is
replaced: that is the moment. Killed before it, the new directories are nobody's, and the next attempt removes them;
killed after it, so are the old ones.

**Both of the last two batches.** Spark may have finished the last batch that the state knows of, or may carry it out
once more; only its checkpoint knows. So the new groups have two versions: that of the last batch and that of the one
before, with most of their files in common, under the same names of batches and runs as the old ones. Whichever Spark
goes on from, it finds.

**No batch is lost.** If the query went on while its state was divided, what it left since would be in directories that
nobody looks into. So what is known of batches and runs is compared before the moment, and a batch says with which
division it began: one that follows a batch of another division is refused (`state.directory`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.errors import SnapshotError
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.division import Inherited, Known, divided, hand_over_results, inherit
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.matching.debts import RunEntry
from watersmeet.runs.run_set import RunSet
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.spark.offline.opened import MEMORY, OpenedState, Version
from watersmeet.spark.rebalance.routing import routing_name
from watersmeet.spark.state.described import options_of
from watersmeet.spark.state.directory import HOMES, ROWS, Batch, GroupState, group_name
from watersmeet.spark.state.files import checked_json, make_directory, publish, read_json, remove_directory
from watersmeet.spark.state.publication import described
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.placement import keys_of_hashes
from watersmeet.spill.store import Store

_RETAIN = 1 << 40


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """What was done."""

    before: int
    after: int
    rows: int
    nbytes: int
    """Of the rows as they are now."""


class NewGroup:
    """One of the new groups, as of the last batch and as of the one before."""

    def __init__(self, state: OpenedState, number: int, division: str, batches: list[int]) -> None:
        path = state.path / group_name(number, division)
        make_directory(path)
        self.number = number
        self.states: dict[int, GroupState] = {}
        self.stores: dict[int, VersionedStore] = {}
        self.parts: dict[int, list[Inherited]] = {batch: [] for batch in batches}
        self.sets: dict[int, list[tuple[int, list[str], RunSet]]] = {batch: [] for batch in batches}
        """Of several inputs: the input, the names of the runs of a set, and the old set that its rows are of."""
        self.asof: dict[int, tuple[list[list[Any]], list[list[Any]]]] = {batch: ([], []) for batch in batches}
        """Of an as-of join: what is told of each run of either input."""
        self._runs = 0
        for batch in batches:
            run = state.lineage.run_for(batch)
            assert run is not None, "a batch that has begun is some run's"
            self.states[batch] = GroupState(path, Batch(batch, run), _RETAIN, state.lineage, CACHE_BYTES)
            self.stores[batch] = VersionedStore(self.states[batch])

    def new_run(self, batch: int, side: int) -> tuple[Store, str]:
        """The store and the name of the next run, which belongs to a batch and those after it."""
        self._runs += 1
        return self.stores[batch], f"run-{side}-{self._runs}"

    @property
    def named(self) -> int:
        """The last number in the names of its runs."""
        return self._runs


class Dividing:
    """A state on its way into another number of groups."""

    def __init__(self, state: OpenedState, partitions: int) -> None:
        self._state = state
        self._partitions = partitions
        self._division = uuid.uuid4().hex[:8]
        self._seen = state.batches()
        last = self._seen[-1] if self._seen else -1
        self._last = last
        self._batches = [batch for batch in (last - 1, last) if batch >= 0]
        self._known = {batch: Known() for batch in self._batches}
        self._ended: dict[int, set[int]] = {batch: set() for batch in self._batches}
        self._over = dict.fromkeys(self._batches, False)
        """Whether nothing is left of the join, as all inputs have ended."""
        self._origins = 0
        self._rows = 0
        self._nobody = [0, 0]
        """How many rows of each input there are when nothing is left."""

    def run(self, told: Callable[[int, int], None]) -> Repartitioned:
        """Do it."""
        state = self._state
        groups = [NewGroup(state, number, self._division, self._batches) for number in range(self._partitions)]
        old = state.group_numbers()
        for done, number in enumerate(old):
            self._divide(number, groups)
            told(done + 1, len(old))
        nbytes = sum(self._publish(group, batch) for group in groups for batch in self._batches)
        self._commit()
        for number in old:
            remove_directory(state.group_path(number))
        remove_directory(state.path / routing_name(state.division))
        return Repartitioned(state.groups, self._partitions, self._rows, nbytes)

    # --- rows ---

    def _divide(self, number: int, groups: list[NewGroup]) -> None:
        """Let the rows of an old group go to where they belong."""
        versions = {batch: self._state.version(number, batch) for batch in self._batches}
        opened: dict[int, tuple[Confluence, VersionedStore]] = {}
        try:
            for batch, version in versions.items():
                if version is not None:
                    self._ended[batch] |= set(version.manifest.get("ended", ()))
                    store = self._state.store(version)
                    join = self._state.open(version, store)
                    if join is None:
                        self._over[batch] |= self._state.verb == "join"
                    else:
                        opened[batch] = join, store
                        self._known[batch].add(join)
            for side in sorted(self._state.counted(number)):
                self._divide_side(side, opened, groups)
        finally:
            for join, _ in opened.values():
                join.close()

    def _divide_side(
        self, side: int, opened: dict[int, tuple[Confluence, VersionedStore]], groups: list[NewGroup]
    ) -> None:
        found: dict[str, dict[int, tuple[Confluence, RunEntry]]] = {}
        for batch, (join, store) in opened.items():
            for entry in join.debts.runs[side]:
                found.setdefault(store.file_of(entry.run.name), {})[batch] = join, entry
        for of in found.values():
            first = min(of)  # what both versions have is written once, as the earlier one's
            self._origins += 1
            join, entry = of[first]
            place = self._place(join.plans)
            self._rows += entry.run.rows if max(of) == self._last else 0

            def new_run(target: int, side: int, first: int = first) -> tuple[Store, str]:
                return groups[target].new_run(first, side)

            for part in divided(entry.run, side, place, new_run):
                group = groups[part.target]
                for batch, (owner, own) in of.items():
                    group.parts[batch].append(Inherited.of(owner, side, own, part, self._origins))
                    if batch != first:
                        group.stores[batch].share(group.stores[first], [part.name])

    def _place(self, plans: Any) -> Callable[[int, SortedRun, Int64], Int32]:
        spec, placement, groups = self._state.spec, self._state.placement, self._partitions
        tells = self._state.hash_tells_key

        def place(side: int, run: SortedRun, numbers: Int64) -> Int32:
            if not spec.equalities:
                return np.zeros(len(numbers), np.int32)
            if tells:
                hashes = self._key_hashes(side, run, numbers)
                keys: list[pa.Array] = [keys_of_hashes(spec, side, hashes)]
            else:
                plan = plans[side]
                columns = tuple(plan.keys[: len(spec.equalities)])
                found = run.gather_all(columns, numbers)
                keys = [plan.original(column, each) for column, each in zip(columns, found, strict=True)]
            return placement.groups(keys, side, groups)

        return place

    def _key_hashes(self, side: int, run: SortedRun, numbers: Int64) -> Int64:
        """The hashes of the keys of rows that follow each other."""
        return run.hashes()[numbers[0] : numbers[-1] + 1].view(np.int64)

    # --- publication ---

    def _publish(self, group: NewGroup, batch: int) -> int:
        """Let a new group have its state of a batch; returns its bytes."""
        store = group.stores[batch]
        if self._over[batch]:
            content: dict[str, Any] = {
                **described(None, store), "ended": sorted(self._ended[batch]), ROWS: self._nobody
            }  # fmt: skip
            group.states[batch].publish_once(content)
            return 0
        join = self._new_join(store)
        try:
            self._inherit(join, group, batch)
            rows = [sum(run.rows for run in runs) for runs in join.runs]
            snapshot = join.snapshot() if self._holds(join) else None
            content = {**described(snapshot, store), **self._told(join, batch, rows)}
            nbytes = 0 if snapshot is None else sum(map(store.size, snapshot.segments))
        finally:
            join.close()
        group.states[batch].publish_once(content)
        return nbytes if batch == self._last else 0

    def _holds(self, join: Any) -> bool:
        """Whether there is anything to be told of it."""
        return True

    def _new_join(self, store: VersionedStore) -> Any:
        """An operator that has seen nothing."""
        return self._state.kind(self._state.spec, MEMORY, store, **options_of(self._state.described))

    def _inherit(self, join: Any, group: NewGroup, batch: int) -> None:
        """Let it have a new group's runs."""
        store, types = group.stores[batch], [plan.types for plan in join.plans]
        opened = lambda side, name: SortedRun(store, name, types[side])  # noqa: E731
        inherit(join, group.parts[batch], self._known[batch], opened, group.named)
        for other in self._waiting_for(group.number, batch):
            hand_over_results(join, [other])
            other.close()

    def _waiting_for(self, number: int, batch: int) -> Iterator[Confluence]:
        """The old groups whose results that wait for their time are to wait with a new one."""
        if not issubclass(self._state.kind, WindowConfluence):
            return
        for old in self._state.group_numbers():
            version: Version | None = None
            if old % self._partitions == number:
                version = self._state.version(old, batch)
            join = None if version is None else self._state.open(version)
            if join is not None:
                yield join

    def _told(self, join: Confluence, batch: int, rows: list[int]) -> dict[str, Any]:
        """What a manifest says beside the snapshot."""
        if not isinstance(join, WindowConfluence):
            return {"ended": sorted(self._ended[batch]), ROWS: rows}
        latest = [max((entry.span.latest for entry in runs), default=None) for runs in join.debts.runs]
        return {"held": latest, "due": join.due}

    def _commit(self) -> None:
        """The moment: from now on, the new groups count."""
        target = self._state.path / "state.json"
        again = OpenedState(self._state.place)
        if again.owner != self._state.owner or again.batches() != self._seen or again.lineage != self._state.lineage:
            raise SnapshotError(
                f"the query of the state in {self._state.path} went on while it was divided anew; nothing has changed. "
                f"Stop the query first, and divide its state then"
            )
        now = {"groups": self._partitions, "division": self._division, "divided_after": self._last}
        owner = {name: value for name, value in self._state.owner.items() if name != HOMES}
        publish(target, checked_json({**owner, **now}))
        found = read_json(target)
        if found.get("division") != self._division:
            raise SnapshotError(
                f"somebody else has divided the state in {self._state.path} at the same time; look at it"
            )
