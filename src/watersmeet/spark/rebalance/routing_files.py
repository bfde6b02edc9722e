"""The routing of every batch, and what the slots did in it, in the state directory of a parallel join::

    routing/
      routing-12-77a1c2d3               where the rows of batch 12 go, in this run of the query
      load-12-77a1c2d3-1                what slot 1 did in it

The master, a task that runs before all others of a batch, publishes the routing; the first to do so wins, so whoever
asks in this batch is told the same. What slots did may be lost: the master then knows less. Which slot has which group
may be lost, too, for all slots reach the state of all groups. Only where hot keys have their homes must be known: it is
told again in every batch, and if it is lost before that, the groups that nobody knows show it.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from pathlib import Path

from watersmeet.core.errors import SnapshotError
from watersmeet.spark.rebalance.reorganizing import SlotLoad
from watersmeet.spark.rebalance.routing import Routing
from watersmeet.spark.state.directory import StateDirectory, batch_of, manifests, token_of
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json, remove
from watersmeet.spark.state.lineage import token
from watersmeet.spark.state.remote import Place

_ROUTING = "routing-"
_LOAD = "load-"


class RoutingFiles:
    """Routings and loads, as a task of one batch sees them."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory
        self._path: Place = directory.path / "routing"
        self._batch = directory.batch
        self._lineage = directory.lineage

    def current(self) -> Routing | None:
        """The routing of this batch; None if it is not there."""
        path = self._path / self._name(self._batch.number, token(self._batch.run))
        return Routing.from_json(read_json(path)) if path.exists() else None

    def before(self) -> Routing | None:
        """The routing of the last batch before this one that is known; None if none is."""
        make_directory(self._path)
        routings = [
            name
            for name in names_in(self._path)
            if name.startswith(_ROUTING)
            and batch_of(name) < self._batch.number
            and self._lineage.answers_for(batch_of(name), token_of(name))
        ]
        last = max(routings, key=batch_of, default=None)
        found = None if last is None else Routing.from_json(read_json(self._path / last))
        self._check_homes(0 if found is None else len(found.owner))
        return found

    def repeated(self) -> Routing | None:
        """The routing that an earlier run of the query had for this batch, if this one only repeats the batch."""
        for run in self._lineage.repeated(self._batch.number):
            path = self._path / self._name(self._batch.number, token(run))
            if path.exists():
                return Routing.from_json(read_json(path))
        return None

    def publish(self, routing: Routing) -> Routing:
        """Make this the routing of the batch, unless there is one; returns what holds."""
        make_directory(self._path)
        path = self._path / self._name(self._batch.number, token(self._batch.run))
        publish(path, checked_json(routing.to_json()), first_wins=True)
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
            hidden.write_bytes(content)
            hidden.replace(self._path / name)

    def loads(self, since: int) -> list[SlotLoad]:
        """What slots did from a batch on, as far as they have told."""
        found = []
        for name in names_in(self._path):
            if name.startswith(_LOAD) and since <= batch_of(name) < self._batch.number:
                with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                    found.append(SlotLoad.from_json(json.loads((self._path / name).read_text())))
        return found

    def clean(self, since: int) -> None:
        """Drop loads from before a batch, and routings of batches that nobody can go back to."""
        oldest = self._batch.number - self._directory.retain
        for name in names_in(self._path):
            batch = batch_of(name)
            is_load = name.removeprefix(".").startswith(_LOAD)
            if 0 <= batch < (since if is_load else oldest):
                remove(self._path / name)

    def _check_homes(self, known: int) -> None:
        """Refuse to go on if there are groups of hot keys that the last routing does not know of."""
        path = self._directory.path
        numbers = (int(name.removeprefix("group-")) for name in names_in(path) if name.startswith("group-"))
        for number in sorted(numbers, reverse=True):
            if number < max(known, self._directory.groups):
                return
            group = path / f"group-{number:04d}"
            if any(batch < self._batch.number for batch in manifests(names_in(group), self._lineage)):
                raise SnapshotError(
                    f"the state in {group} is that of a hot key, and the file in {self._path} that says of which is "
                    f"missing; put it back, or start again with a new state directory and checkpoint"
                )

    @staticmethod
    def _name(batch: int, run_token: str) -> str:
        return f"{_ROUTING}{batch}-{run_token}"
