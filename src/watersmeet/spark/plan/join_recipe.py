"""The join of two inputs as something that Spark's tasks can make operators from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watersmeet import planner
from watersmeet.core.protocol import Punctuate, Snapshot
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.shell import Operator
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.policies.settling import Settling
from watersmeet.runs.sorted_run import OpenRun
from watersmeet.spark.plan.described import described
from watersmeet.spark.plan.recipe import Recipe
from watersmeet.spark.task.operator_cache import Keepable
from watersmeet.spark.task.punctuations import Punctuations
from watersmeet.spill.store import Store

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
