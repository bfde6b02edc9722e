"""The join of several inputs as something that Spark's tasks can make operators from, and where their rows go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watersmeet import planner
from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Punctuate, Snapshot
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.matching.multi_windows import ManyTiming
from watersmeet.policies.settling import Settling
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spark.plan.recipe import Recipe
from watersmeet.spark.state.described import described
from watersmeet.spark.task.operator_cache import Keepable
from watersmeet.spark.task.punctuations import Punctuations
from watersmeet.spill.store import MemoryStore, Store

_OF_BATCHES: dict[str, Any] = {"settling": Settling(least_rows=1 << 62), "fan_in": 8}
"""All rows of a batch settle together, and not before its end, and every batch adds runs, which the next go through."""


@dataclass(frozen=True)
class MultiFactory(Recipe):
    """A join of several inputs, with windows or without, and the name of its algorithm.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"id": pa.int64()})
    >>> MultiFactory.of(MultiSpec.of({"r": schema, "s": schema}, "r.id = s.id"), "auto").algorithm
    'confluence'
    """

    spec: MultiSpec
    algorithm: str

    @classmethod
    def of(cls, spec: MultiSpec, algorithm: str) -> MultiFactory:
        """A factory for an algorithm; an error if there is none of this name, or it cannot carry out the spec."""
        if spec.window is not None and spec.window.counted:
            raise SpecError(
                "a window of rows counts all rows of an input in the order in which they come, and neither is known to "
                "the tasks of a batch; give windows of time, such as '10 min'"
            )
        found = cls(spec, planner.choose_multiway(spec, algorithm)[0])
        found.build(found.least_memory(), MemoryStore()).close()  # says what it cannot do
        return found

    @property
    def fingerprint(self) -> str:
        """Of the join and its algorithm."""
        return f"{self.spec.fingerprint}-{self.algorithm}"

    def described(self) -> dict[str, Any]:
        """The join for its state."""
        return described("multijoin", self.spec, self.algorithm)

    def least_memory(self) -> int:
        """The smallest budget the algorithm can work in."""
        return int(self._kind.least_memory(self.spec))

    @property
    def _kind(self) -> Any:
        return (planner.MULTIWAY if self.spec.window is None else planner.WINDOWED_MULTIWAY)[self.algorithm]

    def build(self, memory: int, store: Store) -> Any:
        """An operator that has seen nothing."""
        return planner.build_multiway(self.spec, memory, store, self.algorithm, **self._options())

    def restore(self, snapshot: Snapshot, memory: int, store: Store, open_run: OpenRun) -> Any:
        """An operator that goes on where the snapshot was taken."""
        return self._kind.restore(self.spec, snapshot, memory, store, **self._options(open_run))

    def _options(self, open_run: OpenRun | None = None) -> dict[str, Any]:
        """Of a join by windows, whose batches end with silence: rows settle then."""
        if self.spec.window is None or not self.settles:
            return {}
        return _OF_BATCHES if open_run is None else {**_OF_BATCHES, "open_run": open_run}

    # --- without windows ---

    @property
    def settles(self) -> bool:
        """Whether its operator can owe nothing at the end of a batch."""
        return self.algorithm == ManyConfluence.name

    def settling(self, memory: int, store: Store, before: Snapshot | None, open_run: OpenRun) -> ManyConfluence:
        """An operator whose rows settle at the end of a batch: as of a snapshot, or one that has seen nothing."""
        if before is None:
            return ManyConfluence(self.spec, memory, store, **_OF_BATCHES, open_run=open_run)
        return ManyConfluence.restore(self.spec, before, memory, store, **_OF_BATCHES, open_run=open_run)

    @property
    def punctuated(self) -> bool:
        """Whether it makes use of punctuations."""
        return False

    def punctuations(self, told: Punctuations) -> Iterator[Punctuate]:
        """What an operator is told of these."""
        return iter(())

    def rows_held(self, operator: Keepable, seen: int) -> int:
        """Rows that are remembered."""
        return seen

    # --- with windows ---

    @property
    def idle(self) -> float | None:
        """Seconds after which a silent input no longer holds back the others."""
        assert self.spec.window is not None
        return self.spec.window.idle

    @property
    def waits_for_time(self) -> bool:
        """Whether results may wait for a time to pass, whatever rows come or do not come."""
        return False

    @property
    def grows(self) -> bool:
        """Whether its state can be given new columns: if all rows are in runs at the end of a batch."""
        return self.settles

    @property
    def late(self) -> str:
        """What becomes of late rows."""
        assert self.spec.window is not None
        return self.spec.window.late

    def lateness(self, number: int) -> object:
        """By how much rows of an input may come late."""
        assert self.spec.window is not None
        return self.spec.window.lateness

    def timing(self) -> ManyTiming:
        """What tells times and late rows."""
        return ManyTiming(self.spec)
