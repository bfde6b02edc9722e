"""The window join of two inputs as something that Spark's tasks can make operators from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watersmeet import planner
from watersmeet.core.choices import check_choice
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import Snapshot
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.shell import Operator
from watersmeet.joins.confluence import Confluence
from watersmeet.records.times import Timing
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spark.plan.described import described
from watersmeet.spark.plan.recipe import Recipe
from watersmeet.spill.store import Store


@dataclass(frozen=True)
class WindowFactory(Recipe):
    """A window join and the name of its algorithm.

    >>> import pyarrow as pa
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import parse_windows
    >>> schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    >>> spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows(10, "t"))
    >>> WindowFactory.of(spec, 1 << 20, "auto").algorithm
    'confluence'
    """

    spec: WindowJoinSpec
    algorithm: str
    options: tuple[tuple[str, Any], ...] = ()
    """The algorithm's own, by name."""

    @classmethod
    def of(
        cls, spec: WindowJoinSpec, memory: int, algorithm: str, options: Mapping[str, Any] | None = None
    ) -> WindowFactory:
        """A factory for the algorithm that the planner chooses; an error if it cannot run in micro-batches."""
        if spec.counted:
            raise SpecError(
                "a window of rows counts all rows of an input in the order in which they come, and neither is known to "
                "the tasks of a batch; give a window of time, such as '10 min'"
            )
        chosen, _ = planner.choose_window(spec, memory, algorithm)
        if not chosen.settles_in_silence:
            fit = [name for name, join in planner.WINDOW_ALGORITHMS.items() if join.settles_in_silence]
            raise SpecError(
                f"algorithm={algorithm!r} does not find all pairs of a batch by its end, as is needed on Spark; take "
                f"{', '.join(fit)}, or leave algorithm= out"
            )
        check_choice(chosen.name, options or {}, planner.WINDOW_ALGORITHMS)
        return cls(spec, chosen.name, tuple(sorted((options or {}).items())))

    @property
    def fingerprint(self) -> str:
        """Of the join, its algorithm and what that was told."""
        told = f"-{hashlib.sha256(repr(self.options).encode()).hexdigest()[:8]}" if self.options else ""
        return f"{self.spec.fingerprint}-{self.algorithm}{told}"

    def described(self, verb: str = "window_join") -> dict[str, Any]:
        """The join for its state."""
        return described(verb, self.spec, self.algorithm, self.options)

    @property
    def idle(self) -> float | None:
        """Seconds after which a silent input no longer holds back the other."""
        return self.spec.window.idle

    @property
    def waits_for_time(self) -> bool:
        """Whether results may wait for a time to pass, whatever rows come or do not come."""
        return self.spec.window.emit == "final" or any(self.spec.kind.preserved)

    @property
    def grows(self) -> bool:
        """Whether its state can be given new columns: if it is all in runs."""
        return self.algorithm == Confluence.name and self.spec.window.emit == "early"

    @property
    def late(self) -> str:
        """What becomes of late rows."""
        return self.spec.window.late

    def lateness(self, number: int) -> object:
        """By how much rows of an input may come late."""
        return self.spec.window.lateness

    def timing(self) -> Timing:
        """What tells times and late rows."""
        return Timing(self.spec)

    def least_memory(self) -> int:
        """The smallest budget the algorithm can work in."""
        return planner.WINDOW_ALGORITHMS[self.algorithm].least_memory(self.spec, **dict(self.options))

    def build(self, memory: int, store: Store) -> Operator:
        """An operator that has seen nothing."""
        return planner.build_window(self.spec, memory, store, self.algorithm, **dict(self.options))

    def restore(self, snapshot: Snapshot, memory: int, store: Store, open_run: OpenRun | None = None) -> Operator:
        """An operator that goes on where the snapshot was taken; `open_run` knows which runs are open."""
        kind, told = planner.WINDOW_ALGORITHMS[self.algorithm], dict(self.options)
        if open_run is not None and issubclass(kind, Confluence):
            told["open_run"] = open_run
        return kind.restore(self.spec, snapshot, memory, store, **told)
