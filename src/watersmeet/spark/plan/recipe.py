"""Joins of two inputs as something that Spark's tasks can make operators from: plain ones, by windows, and as-of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from watersmeet import planner
from watersmeet.core.asof import AsofSpec
from watersmeet.core.choices import check_choice
from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import Punctuate, Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.engine.shell import Operator
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.policies.settling import Settling
from watersmeet.records.asof_times import AsofTiming
from watersmeet.records.times import Timing
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spark.state.described import described
from watersmeet.spark.task.operator_cache import Keepable
from watersmeet.spark.task.punctuations import Punctuations
from watersmeet.spill.store import Store


class Recipe:
    """A join that Spark's tasks can make operators from."""

    spec: Any

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        """The schema of each input."""
        return tuple(self.spec.input(number) for number in range(len(self.spec.names)))

    @property
    def names(self) -> tuple[str, ...]:
        """What errors call the inputs."""
        names: tuple[str, ...] = self.spec.names
        return names

    @property
    def output(self) -> pa.Schema:
        """The schema of the results."""
        return self.spec.schema


_OF_BATCHES: dict[str, Any] = {"settling": Settling(least_rows=1 << 62), "most_slice": 1 << 20}
"""All rows of a batch settle together, and not before its end; sorted once, if they are not too many."""
_MAPPED_SHARE = 4
"""Of the memory: as much of the runs may be mapped beside it."""


@dataclass(frozen=True)
class JoinFactory(Recipe):
    """A join and the name of its algorithm.

    >>> import pyarrow as pa
    >>> from watersmeet.core.spec import parse_on
    >>> schema = pa.schema({"id": pa.int64()})
    >>> JoinFactory.of(JoinSpec(schema, schema, parse_on("id")), "auto").algorithm
    'confluence'
    """

    spec: JoinSpec
    algorithm: str

    @classmethod
    def of(cls, spec: JoinSpec, algorithm: str) -> JoinFactory:
        """A factory for the algorithm that the planner chooses; an error if it cannot carry out the spec."""
        chosen, _ = planner.choose(spec, algorithm)
        chosen.refuse_unfit(spec)
        return cls(spec, chosen.name)

    @property
    def fingerprint(self) -> str:
        """Of the join and its algorithm."""
        return f"{self.spec.fingerprint}-{self.algorithm}"

    def described(self) -> dict[str, Any]:
        """The join for its state."""
        return described("join", self.spec, self.algorithm)

    def least_memory(self) -> int:
        """The smallest budget the algorithm can work in."""
        return planner.ALGORITHMS[self.algorithm].least_memory(self.spec)

    @property
    def punctuated(self) -> bool:
        """Whether it makes use of punctuations."""
        heeds = self.algorithm == MetadataMJoin.name or (self.settles and self.spec.foretells)
        return heeds and any(each.punctuated for each in self.spec.promises)

    def punctuations(self, told: Punctuations) -> Iterator[Punctuate]:
        """What an operator is told of these."""
        return told.events(self.spec)

    def rows_held(self, operator: Keepable, seen: int) -> int:
        """Rows that are remembered: of a join with promises those it has not dropped, of others all that were seen."""
        if not isinstance(operator, MetadataMJoin):
            return seen
        return sum(operator.state_rows) + sum(disk.total_rows for disk in operator.disks)

    @property
    def settles(self) -> bool:
        """Whether its operator can owe nothing at the end of a batch."""
        return self.algorithm == Confluence.name

    def settling(self, memory: int, store: Store, before: Snapshot | None, open_run: OpenRun) -> Confluence:
        """An operator whose rows settle at the end of a batch: as of a snapshot, or one that has seen nothing."""
        options = {**_OF_BATCHES, "most_mapped": memory // _MAPPED_SHARE, "open_run": open_run}
        if before is None:
            return Confluence(self.spec, memory, store, **options)
        return Confluence.restore(self.spec, before, memory, store, **options)

    def build(self, memory: int, store: Store) -> Operator:
        """An operator that has seen nothing."""
        return planner.build(self.spec, memory, store, self.algorithm)

    def restore(self, snapshot: Snapshot, memory: int, store: Store, open_run: OpenRun) -> Operator:
        """An operator that goes on where the snapshot was taken."""
        return planner.ALGORITHMS[self.algorithm].restore(self.spec, snapshot, memory, store)


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
