"""Partitions of several inputs that leave memory when it is full, as runs; MJoin's, with windows and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.engine.multiway import MultiwayJoin
from watersmeet.policies.flush import many_flush
from watersmeet.policies.probing import ProbingOrder
from watersmeet.tables.multi_hash_table import ManySide


class Overflow:
    """What has left memory, by input and partition, and what is next to."""

    def __init__(self, join: MultiwayJoin, flush: str) -> None:
        """`flush` names the policy."""
        self._join = join
        self.policy = many_flush(flush, join.spec.on_one_attribute)
        self.rows = np.zeros((len(join.spec.names), join.sizing.layout.partitions), np.int64)
        """Rows on disk."""

    def make_room(self) -> bool:
        """Move the partitions that the policy names to disk; False if there are none."""
        join = self._join
        in_memory = np.stack([table.part_rows for table in join.tables])
        victims = self.policy(in_memory, self.rows, join.clock)
        for number, parts in victims.items():
            join.clock += 1
            table = join.tables[number]
            assert isinstance(table, ManySide)
            join.disks[number].flush(table, parts, join.clock, join.sizing.page_bytes, join.sizing.run_rows)
            self.rows[number, parts] += in_memory[number, parts]
            join.gone[number, parts] = join.clock
        return bool(victims)

    def run_goes(self, number: int, hashes: Int64) -> None:
        """A run of rows with these hashes is forgotten."""
        parts = self._join.tables[number].parts_of(hashes)
        self.rows[number] -= np.bincount(parts, minlength=self.rows.shape[1])

    def to_state(self) -> list[list[int]]:
        """For a snapshot."""
        rows: list[list[int]] = self.rows.tolist()
        return rows

    def load(self, state: list[list[int]]) -> None:
        """Go on where a snapshot was taken."""
        self.rows = np.array(state, np.int64)

    def check(self) -> None:
        """Assert the invariants."""
        assert [int(rows) for rows in self.rows.sum(axis=1)] == [disk.rows for disk in self._join.disks]


def pinned_order(spec: MultiSpec, probing: Mapping[str, Sequence[str]] | None) -> ProbingOrder:
    """The order of look-ups, which `probing` may pin: for each input's name, the others' names."""
    if probing is None:
        return ProbingOrder(spec, None)
    try:
        pinned = [[spec.names.index(other) for other in probing[name]] for name in spec.names]
    except (KeyError, ValueError):
        raise SpecError(
            f"probing={probing!r} must give, for each of {', '.join(spec.names)}, the order in which the others are "
            f"looked up"
        ) from None
    for number, others in enumerate(pinned):
        if sorted([number, *others]) != list(range(len(spec.names))):
            raise SpecError(f"probing of {spec.names[number]!r} must name every other input once")
    return ProbingOrder(spec, pinned)
