"""`watersmeet state DIR repartition`: which states can be divided into another number of groups, and by what.

`dividing` says how, and why it is atomic and exact; `dividing_many`, and `DividingAsof` here, what is different where
joins keep their rows in another way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from watersmeet.core.arrays import Int64
from watersmeet.core.asof import AsofSpec
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.given import plain_number
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.asof.sides import Known
from watersmeet.joins.division import Part, divided
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.records.asof_times import HASH
from watersmeet.runs.sorted_run import SortedRun
from watersmeet.runs.timed_run import write_times
from watersmeet.spark.offline.dividing import Dividing, NewGroup, Repartitioned
from watersmeet.spark.offline.dividing_many import DividingMany
from watersmeet.spark.offline.opened import MEMORY, OpenedState
from watersmeet.spark.plan.grid import grid_for, values_of
from watersmeet.spark.state.described import many_spec_of, options_of
from watersmeet.spark.state.directory import MOST_GROUPS, group_number
from watersmeet.spark.state.files import names_in, remove_directory
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spill.store import Store


def repartition(
    place: str | os.PathLike[str], partitions: int, told: Callable[[int, int], None] | None = None
) -> Repartitioned:
    """Divide the state of a join that is not running into `partitions` groups; start the query with as many then.

    :param told: is given the number of old groups that are done, and of all.
    """
    partitions = plain_number(partitions)
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
    kind: type[Dividing] = DividingMany if many else DividingAsof if asof else Dividing
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
    if state.algorithm != ManyConfluence.name:
        raise SnapshotError(
            f"{state.path} is the state of a wms.multijoin by {state.algorithm!r}, which keeps rows in memory and in "
            f"partitions that depend on how much there is of it, so that it cannot be divided; leave algorithm= out, "
            f"and start again with a new state directory and checkpoint"
        )
    if spec.preserved is not None:
        raise SnapshotError(
            f"in the join in {state.path} rows of {spec.names[spec.preserved]} come out in any case, and each group "
            f"counts them by itself; such state cannot be divided. Start again with a new state directory and "
            f"checkpoint"
        )
    if not values_of(spec) and partitions > 1:
        raise SnapshotError(f"the join in {state.path} has no equality, so any rows may meet, and all are one group")


_LEFT, _RIGHT = 0, 1


class DividingAsof(Dividing):
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
        self._all_know = {batch: Known() for batch in self._batches}
        self._memory = 0
        """What the old operators had: none can go on with less."""

    def _divide(self, number: int, groups: list[NewGroup]) -> None:
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
        self, side: int, opened: dict[int, tuple[AsofJoin, VersionedStore]], groups: list[NewGroup]
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

    def _inherit(self, join: Any, group: NewGroup, batch: int) -> None:
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
