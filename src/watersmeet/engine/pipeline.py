"""Rows of one input on their way through all the others.

```
driver rows ─▶ look up in input a ─▶ look up in input b ─▶ ... ─▶ combinations
               partial combinations   a bounded number at each level; the deepest level goes on first
```

Combinations come in one fixed order, whatever the fuel, so that a count is enough to find the place again. Where only
runs are looked up, which never change, a mark for each level is enough, too, and quicker to go to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.core.cost import Meter
from watersmeet.kernels.hash_order import ascending
from watersmeet.kernels.sorted_runs import RangeProbe
from watersmeet.matching.found_combinations import FIRST_RUN, TABLE, extended
from watersmeet.policies.probing import ProbingOrder, Step
from watersmeet.records.attributes import AttributeCodec
from watersmeet.tables.hash_table import Probe

Mark: TypeAlias = "list[int]"
"""A source, and how far it has been looked up."""


class Searched(Protocol):
    """What one input is looked up in."""

    @property
    def table(self) -> Any:
        """Rows in memory."""
        ...

    @property
    def disk(self) -> Any:
        """Rows on disk."""
        ...

    def attribute_hashes(self, attribute: int, ids: Int64) -> Int64:
        """One attribute's hashes of some rows."""
        ...


class Filter(Protocol):
    """Which combinations count, though all their edges hold."""

    def holds(self, bound: Sequence[int], ids: Int64, drivers: Int32) -> Bool | None:
        """For combinations of rows of these inputs so far; None: all do."""
        ...


@dataclass(slots=True)
class _Level:
    """Partial combinations, and how far they have been looked up in the next input."""

    ids: Int64
    """Rows of the inputs so far, in the order in which they were looked up."""
    drivers: Int32
    """Which of the driver's rows each belongs to."""
    probe: Probe | RangeProbe
    source: int
    """Which of the next input's sources is being looked up: the table, then the runs."""
    origin: tuple[Mark, ...]
    """From where to where the level above matched what these partial combinations are."""
    began: Mark
    """Where what was matched so far begins."""
    matched: list[tuple[Int64, Int32]] = field(default_factory=list)
    """What was found in the sources so far: few matches of each go on together."""
    matches: int = 0
    exhausted: bool = False
    """Whether all sources were looked up; it stays for as long as something deeper goes on."""

    def mark(self) -> Mark:
        return [self.source, *self.probe.mark()]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where rows are looked up: in the first so many runs of each input, and in the tables or not."""

    runs: tuple[int, ...]
    tables: bool = True
    together: int | None = None
    """Runs whose matches go deeper together, at most: what went deeper is matched again to go on from a mark."""

    @classmethod
    def memory(cls, inputs: int) -> Scope:
        """The tables alone."""
        return cls((0,) * inputs)

    @property
    def first_source(self) -> int:
        """The table, or the first run."""
        return TABLE if self.tables else 1


class Pipeline:
    """Some rows of one input, looked up in all others a little at a time."""

    def __init__(
        self,
        codec: AttributeCodec,
        inputs: Sequence[Searched],
        driver: int,
        rows: Int64,
        steps: Sequence[Step],
        scope: Scope,
        capacity: int,
        counting: Filter | None = None,
        words: Mapping[int, Int64] | None = None,
        merging: bool = False,
    ) -> None:
        """`words` are those of the driver's rows, by attribute, where they are at hand. With `merging`, what is looked
        up is put into the order of its words first, and what is looked up as a table tells the sources of its rows.
        """
        self._codec = codec
        self._spec = codec.spec
        self._inputs = inputs
        self._steps = list(steps)
        self._scope = scope
        self._capacity = capacity
        self._counting = counting
        self._merging = merging
        self._words = words or {}
        self._bound = [driver, *(step.input for step in steps)]
        self._back = np.argsort(self._bound)
        self._out_probe = np.empty(capacity, np.int32)
        self._out_row = np.empty(capacity, np.int64 if merging else np.int32)
        self._levels: list[_Level] = []
        if len(rows):
            self._levels.append(self._level(rows.reshape(1, -1), np.arange(len(rows), dtype=np.int32), ()))
        self.found: Int64 = np.empty((len(self._bound), 0), np.int64)
        """Whole combinations, a row of each input, as found by the last work."""

    @property
    def done(self) -> bool:
        """Whether all combinations were found."""
        return not self._levels

    def _level(self, ids: Int64, drivers: Int32, origin: tuple[Mark, ...]) -> _Level:
        step = self._steps[len(ids) - 1]
        words = self._words_at(step.edge, 1 - step.side, ids, drivers)
        if self._merging:
            # A stable order: whoever goes on elsewhere must find the same combinations one after the other.
            words, order = ascending(words)
            ids, drivers = np.take(ids, order, axis=1), drivers[order]
        attribute = self._spec.attribute_of(step.edge, step.side)
        probe = self._inputs[step.input].table.seek(attribute, words, self._codec.reach(step.edge, words))
        source = self._scope.first_source
        return _Level(ids, drivers, probe, source, origin, [source, *probe.mark()])

    def _words_at(self, edge: int, side: int, ids: Int64, drivers: Int32) -> Int64:
        """The words at one end of an edge, of partial combinations that have its input."""
        number = self._spec.edges[edge].input(side)
        attribute = self._spec.attribute_of(edge, side)
        place = self._bound.index(number)
        if place or attribute not in self._words:
            return self._inputs[number].attribute_hashes(attribute, ids[place])
        return self._words[attribute] if len(ids) == 1 else self._words[attribute][drivers]

    def work(self, meter: Meter, order: ProbingOrder | None = None) -> int:
        """One look-up of the deepest level; leaves whole combinations in `found`; returns the fuel that took."""
        self.found = self.found[:, :0]
        used = self._look_up(self._levels[-1], meter, order)
        while self._levels and self._levels[-1].exhausted:
            self._levels.pop()
        return used

    def _look_up(self, level: _Level, meter: Meter, order: ProbingOrder | None) -> int:
        step = self._steps[len(level.ids) - 1]
        rows = self._inputs[step.input]
        attribute = self._spec.attribute_of(step.edge, step.side)
        before, pages = level.probe.looked_up, meter.pages_read
        room = self._capacity - level.matches
        buffers = self._out_probe[:room], self._out_row[:room]
        count: int
        if level.source == TABLE:
            count, visited = rows.table.look_up(attribute, level.probe, *buffers)
            source = TABLE
        else:
            run = rows.disk.runs[level.source - 1]
            count, visited = run.look_up(attribute, level.probe, *buffers, meter)
            source = FIRST_RUN + level.source - 1
        looked_up = level.probe.looked_up - before
        read = meter.pages_read - pages
        meter.probes += looked_up
        meter.comparisons += visited
        if order is not None and level.source == TABLE:
            order.count(step.edge, step.side, looked_up, count)
        if count:
            level.matched.append(self._extend(level, step, source, count))
            level.matches += level.matched[-1][0].shape[1]
        self._go_on(level, step)
        page_rows: int = rows.disk.page_rows if source != TABLE else 0
        return max(1, looked_up) + count + read * page_rows

    def _extend(self, level: _Level, step: Step, source: int, count: int) -> tuple[Int64, Int32]:
        ids, drivers = extended(
            level.ids, self._out_probe[:count], source, self._out_row[:count], level.drivers
        )  # fmt: skip
        rows = self._inputs[step.input]
        for edge, side in step.closing:
            mine = rows.attribute_hashes(self._spec.attribute_of(edge, side), ids[-1])
            theirs = self._words_at(edge, 1 - side, ids, drivers)
            holds = self._codec.holds(edge, theirs, mine) if side else self._codec.holds(edge, mine, theirs)
            ids, drivers = ids[:, holds], drivers[holds]
        counted = None if self._counting is None else self._counting.holds(self._bound, ids, drivers)
        if counted is not None:
            ids, drivers = ids[:, counted], drivers[counted]
        return ids, drivers

    def _go_on(self, level: _Level, step: Step) -> None:
        """Turn to the next source, or leave the level; what was matched goes deeper when it is enough, or all."""
        # What is merged goes deeper in portions that depend on what matched alone, not on rows that came meanwhile and
        # do not count: so that a count is enough to find the place again.
        full = level.matches == self._capacity or not (level.probe.done or self._merging)
        if level.probe.done:
            level.source += 1
            level.exhausted = level.source > self._scope.runs[step.input]
            together = self._scope.together
            full = full or level.exhausted or (together is not None and level.source - level.began[0] >= together)
            level.probe.rewind()
        if not level.matches:
            level.began = level.mark()
        elif full:
            self._deliver(level)

    def _deliver(self, level: _Level) -> None:
        """What was matched is found, or goes deeper."""
        ids, drivers = level.matched[0]
        if len(level.matched) > 1:
            ids = np.concatenate([ids for ids, _ in level.matched], axis=1)
            drivers = np.concatenate([drivers for _, drivers in level.matched])
        began, level.began = level.began, level.mark()
        level.matched, level.matches = [], 0
        if len(ids) == len(self._bound):
            self.found = ids[self._back]
        else:
            self._levels.append(self._level(ids, drivers, (began, level.began)))

    # --- marks ---

    @property
    def settled(self) -> bool:
        """Whether nothing that was matched waits for more to go deeper: marks then tell all that was done."""
        return not self._levels[-1].matches

    def settle(self) -> None:
        """Let what was matched be found or go deeper, however little it is."""
        self.found = self.found[:, :0]
        self._deliver(self._levels[-1])

    def marks(self) -> list[list[Mark]]:
        """Where each level is; only where nothing but runs is looked up does that mean anything later.

        Of the deepest level it is where it goes on; of the others, from where to where was matched what went deeper.
        """
        return [*(list(level.origin) for level in self._levels[1:]), [self._levels[-1].began]]

    def go_to(self, marks: Sequence[Sequence[Mark]], meter: Meter) -> None:
        """Go on from marks: what had been matched at each level but the deepest is matched again."""
        for depth, (start, *end) in enumerate(marks):
            level = self._levels[-1]
            level.source, level.began = start[0], list(start)
            level.probe.go_to(start[1:])
            while end and len(self._levels) == depth + 1:
                self._look_up(level, meter, None)
                if len(self._levels) == depth + 1 and level.mark() == list(end[0]):
                    self._deliver(level)

    # --- rows in tables alone ---

    @property
    def at_hand(self) -> int:
        """The first of the driver's rows whose combinations have not all been found, in tables alone."""
        assert not any(self._scope.runs), "from disk, combinations do not come in the order of the driver's rows"
        level = self._levels[-1]
        assert isinstance(level.probe, Probe)
        return int(level.drivers[level.probe.next])

    def cut_short(self) -> int:
        """Go on with the driver's rows up to the one at hand only; returns how many these are."""
        count = self.at_hand + 1
        kept = []
        for level in self._levels:
            stays = int(np.searchsorted(level.drivers, count))
            probe = level.probe
            assert isinstance(probe, Probe)
            if probe.next < stays and not level.exhausted:
                level.ids, level.drivers = level.ids[:, :stays].copy(), level.drivers[:stays]
                probe.hashes, probe.parts = probe.hashes[:stays], probe.parts[:stays]
                kept.append(level)
        self._levels = kept
        return count
