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

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int32, Int64
from watersmeet.core.asof import AsofSpec
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.asof.sides import Known as AsofKnown
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.division import Inherited, Known, Part, divided, divided_whole, hand_over_results, inherit
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.matching.debts import RunEntry
from watersmeet.records.asof_times import HASH
from watersmeet.runs.run_set import RunSet
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.runs.timed_run import write_times
from watersmeet.spark.offline.opened import MEMORY, OpenedState, Version
from watersmeet.spark.plan.grid import grid_for, values_of
from watersmeet.spark.rebalance.routing import routing_name
from watersmeet.spark.state.described import many_spec_of, options_of
from watersmeet.spark.state.directory import HOMES, MOST_GROUPS, ROWS, Batch, GroupState, group_name, group_number
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json, remove_directory
from watersmeet.spark.state.publication import described
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spark.task.placement import Placement, keys_of_hashes
from watersmeet.spark.task.stored_rows import column_of_many
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


def repartition(
    place: str | os.PathLike[str], partitions: int, told: Callable[[int, int], None] | None = None
) -> Repartitioned:
    """Divide the state of a join that is not running into `partitions` groups; start the query with as many then.

    :param told: is given the number of old groups that are done, and of all.
    """
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 0 < partitions <= MOST_GROUPS:
        raise SpecError(f"partitions must be a whole number from 1 on, not {partitions!r}")
    state = OpenedState(place)
    many, asof = state.verb == "multijoin", state.verb == "asof_join"
    (_refuse_many if many else _refuse_without_equality if asof else _refuse)(state, partitions)
    for name in names_in(state.path):
        if name.startswith("group-") and group_number(name, state.division) is None:
            remove_directory(state.path / name)  # left by an attempt that was killed
    if many:
        partitions = grid_for(many_spec_of(state.described), partitions).groups
    if partitions == state.groups and (many or not state.homes):
        return Repartitioned(partitions, partitions, 0, 0)
    kind = _ManyRepartitioning if many else _AsofRepartitioning if asof else _Repartitioning
    return kind(state, partitions).run(told or (lambda done, of: None))


def _refuse(state: OpenedState, partitions: int) -> None:
    """An error if the state is none that can be divided."""
    state.refuse_others()
    if state.verb == "parallel_join":
        raise SnapshotError(
            f"{state.path} is the state of a wms.parallel_join, which moves its {state.groups} groups between slots by "
            f"itself; start the query with other slots="
        )
    _refuse_without_equality(state, partitions)
    if any(state.spec.promises):
        raise SnapshotError(
            f"the inputs of the join in {state.path} promise something, and what was promised so far is known group by "
            f"group; such state cannot be divided. Start again with a new state directory and checkpoint"
        )
    if state.verb == "join" and state.spec.band is not None and state.spec.equalities:
        raise SnapshotError(
            f"the join in {state.path} has a band beside its equalities, for which each group sorts its rows in a way "
            f"of its own; such state cannot be divided. Start again with a new state directory and checkpoint"
        )


def _refuse_without_equality(state: OpenedState, partitions: int) -> None:
    """An error if all rows are one group."""
    if not state.spec.equalities and partitions > 1:
        raise SnapshotError(
            f"the join in {state.path} has no equality, so any two rows may meet, and all are one group; add an "
            f"equality, and start again with a new state directory"
        )


def _refuse_many(state: OpenedState, partitions: int) -> None:
    """An error if the state is none of a join of several inputs that can be divided."""
    spec = many_spec_of(state.described)
    if spec.window is not None or state.algorithm != ManyConfluence.name:
        which = "in windows" if spec.window is not None else f"by {state.algorithm!r}"
        raise SnapshotError(
            f"{state.path} is the state of a wms.multijoin {which}, whose rows are not all in runs, so that it cannot "
            f"be divided; start again with a new state directory and checkpoint"
        )
    if spec.preserved is not None:
        raise SnapshotError(
            f"in the join in {state.path} rows of {spec.names[spec.preserved]} come out in any case, and each group "
            f"counts them by itself; such state cannot be divided. Start again with a new state directory and "
            f"checkpoint"
        )
    if not values_of(spec) and partitions > 1:
        raise SnapshotError(f"the join in {state.path} has no equality, so any rows may meet, and all are one group")


class _NewGroup:
    """One of the new groups, as of the last batch and as of the one before."""

    def __init__(self, state: OpenedState, number: int, division: str, batches: list[int]) -> None:
        path = state.path / group_name(number, division)
        make_directory(path)
        self.number = number
        self.states: dict[int, GroupState] = {}
        self.stores: dict[int, VersionedStore] = {}
        self.parts: dict[int, list[Inherited]] = {batch: [] for batch in batches}
        self.sets: dict[int, list[tuple[int, list[str], int]]] = {batch: [] for batch in batches}
        """Of several inputs: the input, the names of its runs, and their level."""
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


class _Repartitioning:
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
        groups = [_NewGroup(state, number, self._division, self._batches) for number in range(self._partitions)]
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

    def _divide(self, number: int, groups: list[_NewGroup]) -> None:
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
        self, side: int, opened: dict[int, tuple[Confluence, VersionedStore]], groups: list[_NewGroup]
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

    def _publish(self, group: _NewGroup, batch: int) -> int:
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

    def _inherit(self, join: Any, group: _NewGroup, batch: int) -> None:
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


class _ManyRepartitioning(_Repartitioning):
    """The same of a join of several inputs: each set of runs, which has its rows in several orders, becomes sets.

    Rows that are copied to several groups are taken from the first of the old ones, and are copied to new ones again.
    """

    def __init__(self, state: OpenedState, partitions: int) -> None:
        self._spec = many_spec_of(state.described)
        self._grid = grid_for(self._spec, partitions)
        super().__init__(state, self._grid.groups)
        self._old_grid = grid_for(self._spec, state.groups)
        inputs = len(self._spec.names)
        self._nobody = [0] * inputs
        # Where there are several values, Spark is told the group, or a number that it will hash to that group.
        by_id = state.owner.get("by_id", True) or len(self._grid.axes) > 1
        self._placements = [
            Placement.of_types(
                [
                    self._spec.input(i).field(column).type
                    for i, columns in enumerate(axis.columns)
                    for column in columns
                ],
                by_id,
            )
            for axis in self._grid.axes
        ]
        self._told_ended = {batch: [False] * inputs for batch in self._batches}
        self._widest = {batch: [0] * inputs for batch in self._batches}

    def _divide(self, number: int, groups: list[_NewGroup]) -> None:
        opened: dict[int, tuple[ManyConfluence, VersionedStore]] = {}
        try:
            for batch in self._batches:
                version = self._state.version(number, batch)
                if version is None:
                    continue
                self._ended[batch] |= set(version.manifest["ended"])
                if version.manifest["snapshot"] is None:
                    self._over[batch] = True
                    continue
                store = self._state.store(version)
                join = self._state.restored(ManyConfluence, self._spec, version, store)
                opened[batch] = join, store
                for each in range(len(self._nobody)):
                    self._told_ended[batch][each] |= join.exhausted(each)
                    self._widest[batch][each] = max(self._widest[batch][each], join.found.widest[each])
            for each in range(len(self._nobody)):
                if self._old_grid.is_first(each, number):
                    self._divide_input(each, opened, groups)
        finally:
            for join, _ in opened.values():
                join.close()

    def _divide_input(
        self, number: int, opened: dict[int, tuple[ManyConfluence, VersionedStore]], groups: list[_NewGroup]
    ) -> None:
        found: dict[str, dict[int, tuple[ManyConfluence, RunSet]]] = {}
        for batch, (join, store) in opened.items():
            for each in join.disks[number].sets:
                found.setdefault(store.file_of(each.runs[0].name), {})[batch] = join, each
        for of in found.values():
            first = min(of)  # what both versions have is written once, as the earlier one's
            join, own = of[first]
            self._rows += own.rows if max(of) == self._last else 0
            names: dict[int, list[str]] = {}
            for run in own.runs:
                for target, name in self._divided(join, number, run, first, groups).items():
                    names.setdefault(target, []).append(name)
            for target, written in names.items():
                for batch, (_, same) in of.items():
                    groups[target].sets[batch].append((number, written, same.level))
                    if batch != first:
                        groups[target].stores[batch].share(groups[target].stores[first], written)

    def _divided(
        self, join: ManyConfluence, number: int, run: SortedRun, batch: int, groups: list[_NewGroup]
    ) -> dict[int, str]:
        """A run's rows as runs of the new groups: their names."""

        def new_run(target: int, of: int) -> tuple[Store, str]:
            return groups[target].new_run(batch, of)

        names: dict[int, str] = {}
        for more in self._grid.copies(number):
            names |= divided_whole(run, number, partial(self._place_row, join, more), new_run)
        return names

    def _place_row(self, join: ManyConfluence, more: int, number: int, run: SortedRun, numbers: Int64) -> Int32:
        """To which group rows go, by the values that rows are sent by; of copies, so many groups further."""
        groups = np.full(len(numbers), more, np.int32)
        for place in self._grid.known(number):
            axis, placement = self._grid.axes[place], self._placements[place]
            (column,) = axis.columns[number]
            values = column_of_many(join, self._spec, number, column, run, numbers)
            groups += self._grid.strides[place] * placement.groups([values], number, axis.shares)
        return groups

    def _new_join(self, store: VersionedStore) -> ManyConfluence:
        return ManyConfluence(self._spec, MEMORY, store)

    def _inherit(self, join: Any, group: _NewGroup, batch: int) -> None:
        store = group.stores[batch]
        for number, table in enumerate(join.tables):
            sets = [
                RunSet(tuple(SortedRun(store, name, table.types) for name in names), 0, level)
                for of, names, level in group.sets[batch]
                if of == number
            ]
            join.adopt(number, sets, group.named)
        join.know(self._told_ended[batch], self._widest[batch])

    def _told(self, join: Any, batch: int, rows: list[int]) -> dict[str, Any]:
        return {"ended": sorted(self._ended[batch]), ROWS: rows}


_LEFT, _RIGHT = 0, 1


class _AsofRepartitioning(_Repartitioning):
    """The same of an as-of join.

        left runs    in the order of the times as of which rows ask   ──▶  parts of them, in that order
        right runs   in the order of hash and time, times beside them ──▶  parts of them, with their part of the times

    Right rows of one key and one time are told apart by the age of their runs, and within a run by their order: runs of
    one old group keep theirs, and no two old groups have rows of one key. Left rows that were answered are before a
    place in their run; they stay before it. What is known of settlements is what holds for all old groups: what one of
    them has not looked up yet, nobody has.
    """

    def __init__(self, state: OpenedState, partitions: int) -> None:
        super().__init__(state, partitions)
        self._all_know = {batch: AsofKnown() for batch in self._batches}
        self._memory = 0
        """What the old operators had: none can go on with less."""

    def _divide(self, number: int, groups: list[_NewGroup]) -> None:
        opened: dict[int, tuple[AsofJoin, VersionedStore]] = {}
        try:
            for batch in self._batches:
                version = self._state.version(number, batch)
                if version is None or version.manifest["snapshot"] is None:
                    continue
                self._memory = max(self._memory, version.manifest["snapshot"]["state"]["memory"])
                store = self._state.store(version)
                join: AsofJoin = self._state.restored(AsofJoin, self._state.spec, version, store)
                opened[batch] = join, store
                self._all_know[batch] = self._all_know[batch].and_also(join.known())
            for side in (_LEFT, _RIGHT):
                self._divide_runs(side, opened, groups)
        finally:
            for join, _ in opened.values():
                join.close()

    def _divide_runs(
        self, side: int, opened: dict[int, tuple[AsofJoin, VersionedStore]], groups: list[_NewGroup]
    ) -> None:
        found: dict[str, dict[int, tuple[AsofJoin, Any]]] = {}
        for batch, (join, store) in opened.items():
            runs: list[Any] = [*(join.left.runs if side == _LEFT else join.right.runs)]
            for each in runs:
                run: SortedRun = each.run if side == _LEFT else each.timed.run
                found.setdefault(store.file_of(run.name), {})[batch] = join, each
        for of in found.values():
            first = min(of)  # what both versions have is written once, as the earlier one's
            join, one = of[first]
            run = one.run if side == _LEFT else one.timed.run
            if max(of) == self._last:
                self._rows += run.rows - (of[self._last][1].place if side == _LEFT else 0)

            def new_run(target: int, side: int, first: int = first) -> tuple[Store, str]:
                return groups[target].new_run(first, side)

            for part in divided(run, side, self._place(join.plans), new_run):
                group = groups[part.target]
                names = [part.name]
                if side == _RIGHT:
                    names.append(write_times(group.stores[first], part.name, one.timed.times()[part.numbers]))
                for batch, (_, each) in of.items():
                    if batch != first:
                        group.stores[batch].share(group.stores[first], names)
                    told = _left(each, part) if side == _LEFT else [part.name, each.level, each.latest]
                    if told is not None:
                        group.asof[batch][side].append(told)

    def _key_hashes(self, side: int, run: SortedRun, numbers: Int64) -> Int64:
        if side == _RIGHT:
            return super()._key_hashes(side, run, numbers)
        found: Int64 = run.gather_all((HASH,), numbers)[0].to_numpy()
        return found

    def _new_join(self, store: VersionedStore) -> AsofJoin:
        spec = self._state.spec
        assert isinstance(spec, AsofSpec)
        return AsofJoin(spec, self._memory or MEMORY, store, **options_of(self._state.described))

    def _inherit(self, join: Any, group: _NewGroup, batch: int) -> None:
        # Levels fall, as where a join has written its runs itself; the sort keeps the order of those of one old group.
        left, right = (sorted(runs, key=lambda each: -each[1]) for runs in group.asof[batch])
        join.adopt(left, right, self._all_know[batch], group.named)

    def _holds(self, join: Any) -> bool:
        return bool(join.window_rows)

    def _told(self, join: Any, batch: int, rows: list[int]) -> dict[str, Any]:
        return {"held": [join.left.lowest if join.left.count else None, None], "due": None}


def _left(each: Any, part: Part) -> list[Any] | None:
    """A part of a left run, and how many of its rows are not in it any more; None if none is left."""
    place = int((part.numbers < each.place).sum())
    return None if place == len(part.numbers) else [part.name, each.level, place]
