"""The as-of join of two inputs as something that Spark's tasks can make operators from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watersmeet import planner
from watersmeet.core.asof import AsofSpec
from watersmeet.core.protocol import Snapshot
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.records.asof_times import AsofTiming
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spark.plan.described import described
from watersmeet.spark.plan.recipe import Recipe
from watersmeet.spill.store import Store


@dataclass(frozen=True)
class AsofFactory(Recipe):
    """An as-of join."""

    spec: AsofSpec
    options: tuple[tuple[str, Any], ...] = ()
    """The operator's own, by name."""

    @property
    def fingerprint(self) -> str:
        """Of the join."""
        return f"{self.spec.fingerprint}-{AsofJoin.name}"

    def described(self) -> dict[str, Any]:
        """The join for its state."""
        return described("asof_join", self.spec, AsofJoin.name, self.options)

    @property
    def grows(self) -> bool:
        """Whether its state can be given new columns: it is all in runs."""
        return True

    @property
    def late(self) -> str:
        """What becomes of late rows."""
        return self.spec.times.late

    def lateness(self, number: int) -> object:
        """By how much rows of an input may come late."""
        return self.spec.times.lateness[number]

    @property
    def idle(self) -> None:
        """A silent input is waited for."""

    @property
    def waits_for_time(self) -> bool:
        """Whether groups without rows of their own have something to say in every batch."""
        return False

    def timing(self) -> AsofTiming:
        """What tells times and late rows."""
        return AsofTiming(self.spec)

    def least_memory(self) -> int:
        """The smallest budget the operator can work in."""
        return AsofJoin.least_memory(self.spec)

    def build(self, memory: int, store: Store) -> AsofJoin:
        """An operator that has seen nothing."""
        return planner.build_asof(self.spec, memory, store, **dict(self.options))

    def restore(self, snapshot: Snapshot, memory: int, store: Store, open_run: OpenRun | None = None) -> AsofJoin:
        """An operator that goes on where the snapshot was taken; `open_run` knows which runs are open."""
        return AsofJoin.restore(self.spec, snapshot, memory, store, open_run=open_run, **dict(self.options))
