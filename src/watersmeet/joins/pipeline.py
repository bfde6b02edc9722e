"""Rows of one input on their way through all the others.

```
driver rows ─▶ look up in input a ─▶ look up in input b ─▶ ... ─▶ combinations
               partial combinations   a bounded number at each level; the deepest level goes on first
```

Combinations come in one fixed order, whatever the fuel, so that a count is enough to find the place again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.cost import Meter
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.policies.probing import ProbingOrder, Step
from watersmeet.state.combinations import FIRST_RUN, TABLE, InputRows, places
from watersmeet.state.side import Probe

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(slots=True)
class _Level:
    """Partial combinations, and how far they have been looked up in the next input."""

    ids: Int64
    """Rows of the inputs so far, in the order in which they were looked up."""
    drivers: Int32
    """Which of the driver's rows each belongs to."""
    probe: Probe
    source: int = 0
    """Which of the next input's sources is being looked up: the table, then the runs."""
    matched: list[tuple[Int64, Int32]] = field(default_factory=list)
    """What was found in the sources so far: few matches of each go on together."""
    matches: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """Where rows are looked up: in all tables, and in the runs of some inputs."""

    on_disk: tuple[bool, ...]

    @classmethod
    def memory(cls, inputs: int) -> Scope:
        """The tables alone."""
        return cls((False,) * inputs)


class Pipeline:
    """Some rows of one input, looked up in all others a little at a time."""

    def __init__(
        self,
        spec: MultiSpec,
        inputs: Sequence[InputRows],
        driver: int,
        rows: Int64,
        steps: Sequence[Step],
        scope: Scope,
        capacity: int,
    ) -> None:
        self._spec = spec
        self._inputs = inputs
        self._steps = list(steps)
        self._scope = scope
        self._capacity = capacity
        self._bound = [driver, *(step.input for step in steps)]
        self._back = np.argsort(self._bound)
        self._out_probe = np.empty(capacity, np.int32)
        self._out_row = np.empty(capacity, np.int32)
        self._levels: list[_Level] = []
        if len(rows):
            self._levels.append(self._level(rows.reshape(1, -1), np.arange(len(rows), dtype=np.int32)))
        self.found: Int64 = np.empty((len(self._bound), 0), np.int64)
        """Whole combinations, a row of each input, as found by the last work."""

    @property
    def done(self) -> bool:
        """Whether all combinations were found."""
        return not self._levels

    def _level(self, ids: Int64, drivers: Int32) -> _Level:
        step = self._steps[len(ids) - 1]
        hashes = self._hashes_at(step.edge, 1 - step.side, ids)
        return _Level(ids, drivers, self._probe(step, hashes))

    def _probe(self, step: Step, hashes: Int64) -> Probe:
        return Probe(hashes, self._inputs[step.input].table.parts_of(hashes))

    def _hashes_at(self, edge: int, side: int, ids: Int64) -> Int64:
        """The hashes at one end of an edge, of partial combinations that have its input."""
        number = self._spec.edges[edge].input(side)
        attribute = self._spec.attribute_of(edge, side)
        return self._inputs[number].attribute_hashes(attribute, ids[self._bound.index(number)])

    def work(self, meter: Meter, order: ProbingOrder | None = None) -> int:
        """One look-up of the deepest level; leaves whole combinations in `found`; returns the fuel that took."""
        self.found = self.found[:, :0]
        level = self._levels[-1]
        step = self._steps[len(level.ids) - 1]
        rows = self._inputs[step.input]
        attribute = self._spec.attribute_of(step.edge, step.side)
        before = level.probe.next
        room = self._capacity - level.matches
        buffers = self._out_probe[:room], self._out_row[:room]
        if level.source == TABLE:
            count, visited = rows.table.look_up(attribute, level.probe, *buffers)
            source = TABLE
        else:
            run = rows.disk.runs[level.source - 1]
            count, visited = run.look_up(attribute, level.probe, *buffers, meter)
            source = FIRST_RUN + level.source - 1
        looked_up = level.probe.next - before
        meter.probes += looked_up
        meter.comparisons += visited
        if order is not None and source == TABLE:
            order.count(step.edge, step.side, looked_up, count)
        if count:
            level.matched.append(self._extend(level, step, source, count))
            level.matches += level.matched[-1][0].shape[1]
        self._go_on(level, step)
        return max(1, looked_up) + count

    def _extend(self, level: _Level, step: Step, source: int, count: int) -> tuple[Int64, Int32]:
        probes = self._out_probe[:count]
        ids = np.vstack([level.ids[:, probes], places(source, self._out_row[:count])])
        drivers = level.drivers[probes]
        rows = self._inputs[step.input]
        for edge, side in step.closing:
            attribute = self._spec.attribute_of(edge, side)
            holds = rows.attribute_hashes(attribute, ids[-1]) == self._hashes_at(edge, 1 - side, ids)
            ids, drivers = ids[:, holds], drivers[holds]
        return ids, drivers

    def _go_on(self, level: _Level, step: Step) -> None:
        """Turn to the next source, or leave the level; what was matched goes deeper when it is enough, or all."""
        full = not level.probe.done or level.matches == self._capacity
        if level.probe.done:
            level.source += 1
            more = len(self._inputs[step.input].disk.runs) if self._scope.on_disk[step.input] else 0
            if level.source > more:
                self._levels.pop()
                full = True
            else:
                level.probe = self._probe(step, level.probe.hashes)
        if full and level.matches:
            ids = np.concatenate([ids for ids, _ in level.matched], axis=1)
            drivers = np.concatenate([drivers for _, drivers in level.matched])
            level.matched, level.matches = [], 0
            if len(ids) == len(self._bound):
                self.found = ids[self._back]
            else:
                self._levels.append(self._level(ids, drivers))

    @property
    def at_hand(self) -> int:
        """The first of the driver's rows whose combinations have not all been found, in tables alone."""
        assert not any(self._scope.on_disk), "from disk, combinations do not come in the order of the driver's rows"
        level = self._levels[-1]
        return int(level.drivers[level.probe.next])

    def cut_short(self) -> int:
        """Go on with the driver's rows up to the one at hand only; returns how many these are."""
        count = self.at_hand + 1
        kept = []
        for level in self._levels:
            stays = int(np.searchsorted(level.drivers, count))
            if level.probe.next < stays:
                level.ids, level.drivers = level.ids[:, :stays], level.drivers[:stays]
                level.probe.hashes, level.probe.parts = level.probe.hashes[:stays], level.probe.parts[:stays]
                kept.append(level)
        self._levels = kept
        return count
