"""The master of a join: one small task before all others of a micro-batch, which says where rows go.

Spark runs it as a scalar subquery of the batch's plan, so that one answer holds for all rows of a batch. It looks at
what the slots told about the batches before. Of a parallel join, it moves groups at the end of a reorganization epoch,
adds or lets go of slots, and splits hot keys; of other joins, whose groups stay in tasks of their own, it only splits
hot keys, before any batch.

The routing of every batch, and what the slots did in it, are in the state directory::

    routing/
      routing-12-77a1c2d3               where the rows of batch 12 go, in this run of the query
      load-12-77a1c2d3-1                what slot 1 did in it

The first attempt to publish a routing wins, so whoever asks in this batch is told the same. What slots did may be lost:
the master then knows less. Which slot has which group may be lost, too, for all slots reach the state of all groups.
Only where hot keys have their homes must be known: it is told again in every batch, and if it is lost before that, the
groups that nobody knows show it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SnapshotError
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.records.times import NEVER, Timing
from watersmeet.spark.rebalance.reorganizing import Epoch, SlotLoad, reorganized, split_only
from watersmeet.spark.rebalance.routing import INPUTS, WAKE, Routing, routing_name, tracked_side
from watersmeet.spark.state.directory import (
    Owner,
    StateDirectory,
    batch_of,
    group_name,
    group_number,
    manifests,
    token_of,
)
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json, remove
from watersmeet.spark.state.lineage import token
from watersmeet.spark.state.remote import Place, in_bucket
from watersmeet.spark.state.watermarks import Marks
from watersmeet.spark.task.context import current_batch, state_place
from watersmeet.spill.private import open_new

_ROUTING = "routing-"
_LOAD = "load-"


class RoutingFiles:
    """Routings and loads, as a task of one batch sees them."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._path: Place = directory.path / routing_name(directory.division)
        self._batch = directory.batch
        self._lineage = directory.lineage

    def current(self) -> Routing | None:
        """The routing of this batch; None if it is not there."""
        path = self._path / self._name(self._batch.number, token(self._batch.run))
        return Routing.from_json(read_json(path)) if path.exists() else None

    @cached_property
    def _names(self) -> list[str]:
        """What there is, listed once."""
        make_directory(self._path)
        return names_in(self._path)

    def settled(self) -> Routing | None:
        """The same, for the master, who knows all names."""
        name = self._name(self._batch.number, token(self._batch.run))
        return Routing.from_json(read_json(self._path / name)) if name in self._names else None

    def before(self) -> Routing | None:
        """The routing of the last batch before this one that is known; None if none is."""
        routings = [
            name
            for name in self._names
            if name.startswith(_ROUTING)
            and batch_of(name) < self._batch.number
            and self._lineage.answers_for(batch_of(name), token_of(name))
        ]
        last = max(routings, key=batch_of, default=None)
        found = None if last is None else Routing.from_json(read_json(self._path / last))
        if not in_bucket(self._path) or found is None or found.run != self._batch.run:
            self._check_homes(0 if found is None else len(found.owner))
        return found

    def repeated(self) -> Routing | None:
        """The routing that an earlier run of the query had for this batch, if this one only repeats the batch."""
        for run in self._lineage.repeated(self._batch.number):
            name = self._name(self._batch.number, token(run))
            if name in self._names:
                return Routing.from_json(read_json(self._path / name))
        return None

    def publish(self, routing: Routing) -> Routing:
        """Make this the routing of the batch, unless there is one; returns what holds."""
        path = self._path / self._name(self._batch.number, token(self._batch.run))
        make_directory(self._path)
        if publish(path, checked_json(routing.to_json()), first_wins=True) and in_bucket(path):
            return routing  # as it is there: one request less
        return Routing.from_json(read_json(path))

    def tell(self, load: SlotLoad) -> None:
        """What a slot did in this batch. It may be lost, so nobody waits for the disk."""
        name = f"{_LOAD}{self._batch.number}-{token(self._batch.run)}-{load.slot}"
        content = json.dumps(load.to_json()).encode()
        with suppress(OSError):
            if not isinstance(self._path, Path):
                (self._path / name).write_bytes(content)
                return
            hidden = self._path / f".{name}.{uuid.uuid4().hex[:12]}"
            with open_new(hidden) as file:
                file.write(content)
            hidden.replace(self._path / name)

    def loads(self, since: int) -> list[SlotLoad]:
        """What slots did from a batch on, as far as they have told."""
        found = []
        for name in self._names:
            if name.startswith(_LOAD) and since <= batch_of(name) < self._batch.number:
                with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                    found.append(SlotLoad.from_json(json.loads((self._path / name).read_text())))
        return found

    def clean(self, since: int) -> None:
        """Drop loads from before a batch, and routings of batches that nobody can go back to."""
        oldest = self._batch.number - self._directory.retain
        for name in self._names:
            batch = batch_of(name)
            is_load = name.removeprefix(".").startswith(_LOAD)
            if 0 <= batch < (since if is_load else oldest):
                remove(self._path / name)

    def _check_homes(self, known: int) -> None:
        """Refuse to go on if there are groups of hot keys that the last routing does not know of."""
        path, division = self._directory.path, self._directory.division
        numbers = (group_number(name, division) for name in names_in(path))
        for number in sorted((number for number in numbers if number is not None), reverse=True):
            if number < max(known, self._directory.groups):
                return
            group = path / group_name(number, division)
            if any(batch < self._batch.number for batch in manifests(names_in(group), self._lineage)):
                raise SnapshotError(
                    f"the state in {group} is that of a hot key, and the file in {self._path} that says of which is "
                    f"missing; put it back, or start again with a new state directory and checkpoint"
                )

    @staticmethod
    def _name(batch: int, run_token: str) -> str:
        return f"{_ROUTING}{batch}-{run_token}"


_PLACES = pa.list_(pa.struct({"place": pa.int32(), "kind": pa.int32()}))
ANSWER = pa.struct(
    {
        "slots": pa.list_(pa.int32()),
        "wakes": _PLACES,
        "signs": pa.list_(_PLACES),
        "hot": pa.map_(pa.int32(), pa.list_(pa.list_(_PLACES))),
        "refused": pa.string(),
    }
)
"""The slot of each group; rows that wake every slot, or every group where they stay; for each side where signs go; for
each hot key and side the lists of places, one of which a row goes to; and why no row may be sent. Spark tells nobody
why a subquery has failed: so that is an answer, too, with which the first task that has a row fails."""


@dataclass(frozen=True)
class MasterTask:
    """The function of `mapInArrow` over one row: the routing of the batch."""

    spec: JoinSpec
    fingerprint: str
    groups: int
    slots: tuple[int, int]
    epoch: float
    """Seconds from one reorganization to the next."""
    state: str
    retain: int
    described: dict[str, Any] | None = None
    """The join for its state."""
    moves: bool = True
    """Whether groups move between slots; else each stays in one of its own, and only hot keys are split."""
    grows: bool = False
    """Whether inputs may have new columns."""
    made: int = field(default_factory=time.time_ns, compare=False)
    """When the query was put together: see `state.lineage`."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer one row with one."""
        for batch in batches:
            if batch.num_rows:
                try:
                    answer = _answer(self.routing(), self.moves)
                except SnapshotError as error:
                    answer = {"slots": [], "wakes": [], "signs": [], "hot": [], "refused": str(error)}
                yield pa.RecordBatch.from_arrays([pa.array([answer], ANSWER)], ["routing"])

    def routing(self) -> Routing:
        """That of the batch which is at work; settled now, if it has not been."""
        batch, query = current_batch()
        told = self.described
        describe = None if told is None else lambda: told
        owner = Owner(
            self.fingerprint, self.groups, query, "groups" if self.moves else "partitions",
            self.spec.tick if isinstance(self.spec, WindowJoinSpec) else None, describe, grows=self.grows,
            made=self.made,
        )  # fmt: skip
        directory = StateDirectory(state_place(self.state), owner, batch, self.retain)
        files = RoutingFiles(directory)
        known = files.settled()
        if known is not None:
            return known
        before, now = files.before(), _now()
        again = files.repeated()
        if again is not None:
            routing = replace(again, epoch=batch.number, began=now)  # an epoch is of one run
        else:
            routing = self._next(before, files, directory, now)
        if routing.hot:
            directory.note_homes()
        settled = files.publish(replace(routing, run=batch.run, settled=now))
        files.clean(settled.epoch)
        return settled

    def _next(self, before: Routing | None, files: RoutingFiles, directory: StateDirectory, now: float) -> Routing:
        number, run = directory.batch.number, directory.batch.run
        if before is None:
            keeps = not isinstance(self.spec, WindowJoinSpec)
            first = Routing.begin(self.groups, self.slots[1], tracked_side(self.spec.kind), keeps=keeps)
            return replace(first, epoch=number, began=now)
        loads = [] if self.moves else files.loads(number - 1)
        newest = [NEVER] * INPUTS
        if isinstance(self.spec, WindowJoinSpec) and (before.hot or loads or self.moves):
            newest = Marks(directory, INPUTS, NEVER).before()
            before = before.without_expired(newest, Timing(self.spec), partial(_is_empty, directory))
        routing = replace(before, moved=())
        if not self.moves:
            return replace(split_only(routing, loads, self.groups, newest), epoch=number, began=now)
        fitting = routing.within(*self.slots)
        # An epoch is of one run, and of one clock as long as that goes forward.
        if before.run != run or fitting is not routing or now < routing.began:
            return replace(fitting, epoch=number, began=now)
        if now - routing.began < self.epoch:
            return routing
        epoch = Epoch.of(files.loads(routing.epoch), now - routing.began)
        return replace(reorganized(routing, epoch, self.slots, self.groups, newest), epoch=number, began=now)


def _is_empty(directory: StateDirectory, group: int) -> bool:
    """Whether no row waits in a group to come out alone."""
    found = directory.group(group).latest()
    return found is None or found["snapshot"] is None or found.get("due") is None


def _now() -> float:
    return time.time()


def _answer(routing: Routing, moves: bool) -> dict[str, object]:
    firsts = {slot: group for group, slot in reversed(list(enumerate(routing.owner))) if slot >= 0}
    woken = firsts.values() if moves else routing.live
    hot = [(key.key, [[_places(choice) for choice in key.places(side)] for side in (0, 1)]) for key in routing.hot]
    return {
        "slots": [max(0, slot) for slot in routing.owner],
        "wakes": _places([(group, WAKE) for group in woken]),
        "signs": [_places([(group, side) for group in routing.live]) for side in range(INPUTS)],
        "hot": hot,
        "refused": None,
    }


def _places(places: list[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"place": place, "kind": kind} for place, kind in places]
