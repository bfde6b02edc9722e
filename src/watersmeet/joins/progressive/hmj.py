"""Hashing while rows arrive, merging sorted runs while they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from watersmeet.core.errors import SpecError
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.run_merging import Merges
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.policies.flush import FlushPolicy
from watersmeet.spill.store import Store


class HMJ(SpillingJoin):
    """Flush both sides of a partition at once, sorted, and merge the runs in silences and at the end [1]_.

    ```
    hashing ──stall, or both ended──▶ merging           flush k of a partition:  left memory ──▶ left run k
       ▲  ◀─────────arrival─────────────┘                                        right memory ─▶ right run k
    ```

    - *Hashing*: a row is kept in its partition and looked up in the other side's memory. Without room, the policy names
      a partition, and both of its sides go, each as one run sorted by the hash of the key. `flush` is `"adaptive"`
      (keep the sides' shares of memory alike), `"largest"`, `"smallest"`, `"all"`, `"optimal"`, or any `FlushPolicy`.
    - *Merging*: the runs of a partition are merged, both sides at once, and pairs come out on the way. Rows of the runs
      of one flush met in memory, and never again: a pair is new exactly if its rows' run numbers differ. A merged run
      remembers each row's number. That rule is the ledger's: a run's number is the tick of its flush, the same on both
      sides, and as a partition's memory is empty after a flush, rows were in memory together exactly if they left it at
      the same tick.

    The original merges all partitions before it looks at new arrivals. Here a merge stops between any two pairs, lets
    the arrivals pass, and goes on in the next silence; `prompt=False` makes them wait for the end of the merging
    operation, and `whole_stage=True` besides for all partitions, as the original does.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End
    >>> from watersmeet.core.spec import JoinSpec, parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> left, right = pa.record_batch({"id": range(2000)}), pa.record_batch({"id": range(1990, 4000)})
    >>> join = HMJ(JoinSpec(left.schema, right.schema, parse_on("id")), 80 * 1024, MemoryStore())
    >>> for event in (Arrive(LEFT, left), End(LEFT), Arrive(RIGHT, right), End(RIGHT)):
    ...     join.receive(event)
    >>> rows = 0
    >>> while not join.phase == "done":
    ...     step = join.poll(0.0, fuel=1000)
    ...     rows += step.out.num_rows if step.out else 0
    >>> rows, join.cost.pages_written > 0
    (10, True)

    .. [1] M. F. Mokbel, M. Lu and W. G. Aref. Hash-merge join: A non-blocking join algorithm for producing fast and
       early join results. ICDE 2004; as described in section 2.2 of Y. Tao et al. RPJ: Producing fast join results on
       streams through rate-based optimization. SIGMOD 2005.
    """

    name: ClassVar[str] = "hmj"
    sorted_runs: ClassVar[bool] = True

    def __init__(
        self,
        spec: JoinSpec,
        memory: int,
        store: Store,
        *,
        flush: FlushPolicy | str = "adaptive",
        prompt: bool = True,
        patience: int = 0,
        whole_stage: bool = False,
        grain: Grain | None = None,
    ) -> None:
        if whole_stage and prompt:
            raise SpecError(
                "whole_stage=True lets rows wait for all merges, and prompt=True for none; give prompt=False"
            )
        super().__init__(spec, memory, store, flush, grain)
        self.stages = Merges(self, prompt, grain, patience=patience, whole_stage=whole_stage)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        rows = self._rows_in_memory(spared)
        if not rows.any():
            return False
        victims = self._flush_policy.victims(rows, self.statistics)
        self.flush_together(list(dict.fromkeys(victim.part for victim in victims)))
        return True

    def bring_to_disk(self, parts: Sequence[int]) -> None:
        """Move all that partitions have in memory to disk, both sides at once."""
        self.flush_together(parts)

    def check(self) -> None:
        """Assert the invariants."""
        super().check()
        for part in range(self.sizing.layout.partitions):
            departed = [disk.departures(part, np.arange(disk.rows[part])) for disk in self.disks if disk.rows[part]]
            assert all((np.diff(ticks) >= 0).all() for ticks in departed)
