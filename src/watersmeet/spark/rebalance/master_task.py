"""The master of a parallel join: one small task before all others of a micro-batch, which says where rows go.

Spark runs it as a scalar subquery of the batch's plan, so that one answer holds for all rows of a batch. It looks at
what the slots told about the batches before, and at the end of a reorganization epoch moves groups, adds or lets go of
slots, and splits hot keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from watersmeet.core.windows import WindowJoinSpec
from watersmeet.records.times import NEVER, Timing
from watersmeet.spark.rebalance.reorganizing import Epoch, reorganized
from watersmeet.spark.rebalance.routing import WAKE, Routing, tracked_side
from watersmeet.spark.rebalance.routing_files import RoutingFiles
from watersmeet.spark.state.directory import Owner, StateDirectory
from watersmeet.spark.state.watermarks import Marks
from watersmeet.spark.task.context import current_batch, state_place

_PLACES = pa.list_(pa.struct({"place": pa.int32(), "kind": pa.int32()}))
ANSWER = pa.struct(
    {"slots": pa.list_(pa.int32()), "wakes": _PLACES, "hot": pa.map_(pa.int32(), pa.list_(pa.list_(_PLACES)))}
)
"""The slot of each group; rows that wake every slot; and for each hot key and side the lists of places, one of which
a row goes to."""


@dataclass(frozen=True)
class MasterTask:
    """The function of `mapInArrow` over one row: the routing of the batch."""

    spec: WindowJoinSpec
    fingerprint: str
    groups: int
    slots: tuple[int, int]
    epoch: float
    """Seconds from one reorganization to the next."""
    state: str
    retain: int
    described: dict[str, Any] | None = None
    """The join for its state."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Answer one row with one."""
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([pa.array([_answer(self.routing())], ANSWER)], ["routing"])

    def routing(self) -> Routing:
        """That of the batch which is at work; settled now, if it has not been."""
        batch, query = current_batch()
        told = self.described
        describe = None if told is None else lambda: told
        owner = Owner(self.fingerprint, self.groups, query, "groups", self.spec.tick, describe)
        directory = StateDirectory(state_place(self.state), owner, batch, self.retain)
        files = RoutingFiles(directory)
        known = files.current()
        if known is not None:
            return known
        before = files.before()
        newest = Marks(directory, 2, NEVER).before()
        now = _now()
        again = files.repeated()
        if again is not None:
            routing = replace(again, epoch=batch.number, began=now)  # an epoch is of one run
        else:
            routing = self._next(before, files, newest, batch.number, batch.run, now, partial(_is_empty, directory))
        settled = files.publish(replace(routing, run=batch.run, settled=now))
        files.clean(settled.epoch)
        return settled

    def _next(
        self,
        before: Routing | None,
        files: RoutingFiles,
        newest: list[int],
        number: int,
        run: str,
        now: float,
        is_empty: Callable[[int], bool],
    ) -> Routing:
        if before is None:
            first = Routing.begin(self.groups, self.slots[1], tracked_side(self.spec.kind))
            return replace(first, epoch=number, began=now)
        routing = replace(before.without_expired(newest, Timing(self.spec), is_empty), moved=())
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


def _answer(routing: Routing) -> dict[str, object]:
    firsts = {slot: group for group, slot in reversed(list(enumerate(routing.owner))) if slot >= 0}
    hot = [(key.key, [[_places(choice) for choice in key.places(side)] for side in (0, 1)]) for key in routing.hot]
    return {
        "slots": [max(0, slot) for slot in routing.owner],
        "wakes": _places([(group, WAKE) for group in firsts.values()]),
        "hot": hot,
    }


def _places(places: list[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"place": place, "kind": kind} for place, kind in places]
