"""Joins with a relation on a disk that fails: it is built, changed and asked, and begun again after each error.

A change that fails has happened or has not: the relation is read back, and is the one or the other. Rows whose answers
were lost are asked for again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulate.faults import Killed
from simulate.world import World
from watersmeet.api.relation import Relation
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.lookup_cases import LookupCase, LookupMove, after_change, answers_for
from watersmeet.checks.lookups import _room_to_grow, _stream_room
from watersmeet.checks.run import ConformanceError
from watersmeet.core.errors import WatersmeetError
from watersmeet.core.protocol import Arrive, Stall, Status
from watersmeet.relation.relation import version_name
from watersmeet.spill.store import MemoryStore

_MOST_STARTS = 40
_MOST_POLLS = 5_000


class LookedUp:
    """One relation, and a stream that meets it."""

    def __init__(self, world: World, operator: type[Any], case: LookupCase, path: Path) -> None:
        self._world, self._class, self._case, self._path = world, operator, case, path
        self._now = case.relation.combine_chunks()
        self._relation: Relation | None = None
        self._join: Any = None
        self._polls = 0

    def play(self, expect_sentence: Any) -> None:
        """The whole script, each step as often as something ends it."""
        built = LookupMove("build", None, 0)
        for move in (built, *self._case.moves):
            for _ in range(_MOST_STARTS):
                try:
                    if self._carry_out(move):
                        break
                except Killed:
                    self._world.counts["killed"] += 1
                    self._bury()
                except WatersmeetError as error:
                    expect_sentence(error)
                    if not self._world.faults.failed:
                        raise
                    self._world.counts[f"clear {type(error).__name__}"] += 1
                    self._close()
                self._world.counts["started again"] += 1
            else:
                raise ConformanceError(f"{move.what} does not come to an end although faults do")
        self._close()
        with self._world.calm():
            if not self._holds(self._now):
                raise ConformanceError("the relation has other rows in the end")

    def _carry_out(self, move: LookupMove) -> bool:
        """Whether it is done; a change that was cut short may be."""
        world = self._world
        world.schedule.pause()
        if move.what in ("build", "upsert", "delete"):
            then = self._now if move.what == "build" else after_change(self._now, self._case.keys, move)
            if not self._has_become(then, move):
                self._change(move)
                world.counts[f"relations: {move.what}"] += 1
            self._now = then
        elif move.what == "arrive":
            assert move.batch is not None
            found, expected = self._answered(move.batch), answers_for(self._case.spec, move.batch, self._now)
            if found != Counter(expected):
                raise ConformanceError(f"{found.total()} answers to {move.batch.num_rows} rows, not {len(expected)}")
            world.counts["rows looked up"] += move.batch.num_rows
        return True

    def _has_become(self, then: pa.Table, move: LookupMove) -> bool:
        """Whether somebody who was killed has made the change; then it is not the relation of before either."""
        with self._world.calm():
            if move.what == "build":
                return (self._path / version_name(1)).exists() and self._holds(then)
            if self._holds(then):
                return True
            if not self._holds(self._now):
                raise ConformanceError(f"{move.what} was cut short, and left neither what was nor what was to be")
            return False

    def _change(self, move: LookupMove) -> None:
        if move.what == "build":
            design = self._case.design
            self._relation = Relation.build(
                self._now, self._case.keys, self._path, partition=design["partition"], segment=design["theta"],
                memory="1 MiB",
            )  # fmt: skip
        else:
            getattr(self._opened(), move.what)(move.batch)

    def _opened(self) -> Relation:
        if self._relation is None:
            self._relation = Relation.open(self._path)
        return self._relation

    def _holds(self, table: pa.Table) -> bool:
        return _rows(Relation.open(self._path).table(), self._case.keys) == _rows(table, self._case.keys)

    def _answered(self, batch: pa.RecordBatch) -> Counter[Any]:
        if self._join is None:
            case, readers = self._case, self._opened().reading()
            least = self._class.least_memory(case.spec, readers)
            memory = least + case.spare + _room_to_grow(case) + _stream_room(case)
            self._join = self._class(case.spec, memory, MemoryStore(), readers)
        found: Counter[Any] = Counter()
        for event in (Arrive(0, batch), Stall()):
            self._join.receive(event)
            for _ in range(_MOST_POLLS):
                self._polls += 1
                fuel = self._case.fuel[self._polls % len(self._case.fuel)]
                step = self._join.poll(self._polls * 0.01, 16 * fuel)
                if step.out is not None:
                    found.update(canonical_rows(step.out))
                silent = isinstance(event, Stall) and step.status is Status.HAS_WORK
                if step.status is not Status.HAS_OUTPUT and not silent:
                    break
            else:
                raise ConformanceError("does not come to an end")
        self._join.check()
        return found

    def _close(self) -> None:
        join, self._join, self._relation = self._join, None, None
        try:
            if join is not None:
                join.close()
        except Killed:
            self._bury()

    def _bury(self) -> None:
        """The process has died: its locks are let go, and it cleans up nothing."""
        actor = self._world.schedule.current
        assert actor is not None
        self._world.disk.bury(actor)
        with self._world.calm():
            self._join = self._relation = None
        actor.dead = False


def _rows(table: pa.Table, keys: tuple[str, ...]) -> Counter[Any]:
    """Rows that somebody could look up."""
    places = [table.schema.get_field_index(name) for name in keys]
    known = [table.column(place).is_valid().to_pylist() for place in places]
    rows = [row for batch in table.to_batches() for row in canonical_rows(batch)]
    return Counter(row for row, fine in zip(rows, zip(*known, strict=True), strict=True) if all(fine))
