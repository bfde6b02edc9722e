"""The state of joins, divided anew: rows that were put away by some operators become those of others.

Between two batches an operator of Confluence has its rows in sorted runs, and nothing is owed: whatever two rows had to
say to each other they have said. So its rows can be handed to any number of others of the same join, as long as rows of
one key stay together, and each row goes to one of them:

    runs of old joins   [a a b d f]  [b c e]          rows of a run stay in the order of their hashes
                          │   ╲  ╲     │ ╲
    of new joins        [a a d] [b f]  [c e] [b]      none meets another: a pair that was found is not found again,
                                                      and a pair to come is found where both of its rows are

What is known of a row goes with it: whether it has found a partner, or has come out alone (a bit of its run). The span
of time of a run holds for each part of it. Results that wait for their time belong to nobody in particular: they are
handed to one of the new joins.

Runs are read once, a stretch at a time: beside a bit for each row, what is held meanwhile does not grow with them.
(`tests/spark/test_repartition.py` loses each of these, and notices.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from watersmeet.core.arrays import Bytes, Int32, Int64, Uint64
from watersmeet.core.windows import TimeSpan
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.matching.debts import RunEntry
from watersmeet.records.times import NEVER
from watersmeet.runs.sorted_run import RunWriter, SortedRun, block_rows_for, let_go
from watersmeet.spill.store import Store

AT_ONCE = 1 << 20
"""Rows of a run that are divided at a time: some 30 bytes of memory each."""
_BLOCK_BYTES = 64 << 10

Place = Callable[[int, SortedRun, Int64], Int32]
"""To which of the new joins rows of a run of a side go, by their numbers."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one new join gets of a stretch of a run."""

    target: int
    name: str
    numbers: Int64
    """Of its rows, in the run that they came from."""


def divided(run: SortedRun, side: int, place: Place, new: Callable[[int, int], tuple[Store, str]]) -> Iterator[Part]:
    """Write the rows of a run as runs of their own, those of each new join and stretch apart.

    :param new: the store and the name of the next run of a new join and a side.
    """
    block_rows = block_rows_for(run.nbytes, run.rows, _BLOCK_BYTES)
    for start in range(0, run.rows, AT_ONCE):
        stop = min(run.rows, start + AT_ONCE)
        numbers = np.arange(start, stop)
        run.check_hashes(start, stop)
        targets = place(side, run, numbers)
        order = np.argsort(targets, kind="stable")
        ends = np.cumsum(np.bincount(targets))
        for target in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            first = int(ends[target - 1]) if target else 0
            own = numbers[order[first : int(ends[target])]]
            store, name = new(target, side)
            _write(store, name, run, own, block_rows)
            yield Part(target, name, own)
        let_go([run])


def divided_whole(
    run: SortedRun, number: int, place: Place, new: Callable[[int, int], tuple[Store, str]]
) -> dict[int, str]:
    """Write the rows of a run of an input as one run for each new join that gets some; returns their names.

    Where rows are written several times, in several orders, those of one join must be together in each of them: so they
    are gone through twice, for their hashes and for the rest.
    """
    block_rows = block_rows_for(run.nbytes, run.rows, _BLOCK_BYTES)
    writers: dict[int, RunWriter] = {}
    waiting: dict[int, Int64] = {}
    try:
        for numbers, targets in _stretches(run, number, place):
            hashes = run.hashes()[numbers[0] : numbers[-1] + 1]
            for target in np.unique(targets).tolist():
                own = targets == target
                if target not in writers:
                    store, name = new(target, number)
                    writers[target] = RunWriter(store, name, run.types, 0, block_rows, _BLOCK_BYTES)
                writers[target].write_hashes(np.ascontiguousarray(hashes[own]))
                writers[target].rows += int(own.sum())
        for numbers, targets in _stretches(run, number, place):
            for target in np.unique(targets).tolist():
                own = np.concatenate([waiting.pop(target, numbers[:0]), numbers[targets == target]])
                whole = len(own) // block_rows * block_rows
                run.check_rows(own[:whole])
                writers[target].write_rows(run, own[:whole])
                waiting[target] = own[whole:]
        for target, writer in writers.items():
            run.check_rows(waiting[target])
            writer.write_rows(run, waiting[target])
            writer.seal()
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    return {target: writer.name for target, writer in writers.items()}


def _stretches(run: SortedRun, number: int, place: Place) -> Iterator[tuple[Int64, Int32]]:
    """The numbers of a run's rows, and to which of the new joins they go."""
    for start in range(0, run.rows, AT_ONCE):
        stop = min(run.rows, start + AT_ONCE)
        run.check_hashes(start, stop)
        numbers = np.arange(start, stop)
        yield numbers, place(number, run, numbers)
        let_go([run])


def _write(store: Store, name: str, run: SortedRun, numbers: Int64, block_rows: int) -> None:
    """Rows of a run, in its order, as another."""
    writer = RunWriter(store, name, run.types, len(numbers), block_rows, _BLOCK_BYTES)
    try:
        hashes: Uint64 = run.hashes()[numbers]
        writer.write_hashes(hashes)
        run.check_rows(numbers)
        writer.write_rows(run, numbers)
        writer.seal()
    except BaseException:
        writer.abort()
        raise


@dataclass(frozen=True, slots=True)
class Inherited:
    """A part of a run, and what is known of it."""

    side: int
    name: str
    origin: int
    """Parts of one run have one number, and follow each other in the order of hashes."""
    level: int
    span: TimeSpan
    marks: Bytes | None
    """A bit for each row, whether it has a partner; None if that is nobody's concern."""

    @classmethod
    def of(cls, old: Confluence, side: int, entry: RunEntry, part: Part, origin: int) -> Inherited:
        """What a join knows of a part of one of its runs."""
        marks = None
        if old.matched is not None and old.spec.kind.tracked[side]:
            first, last = int(part.numbers[0]), int(part.numbers[-1])
            marked = old.matched.bits.between(entry.run.name, first, last + 1)[part.numbers - first]
            marks = np.packbits(marked)
        return cls(side, part.name, origin, entry.level, entry.span, marks)


@dataclass(slots=True)
class Known:
    """What old joins know of the inputs: each new one is told."""

    ended: list[bool] = field(default_factory=lambda: [False, False])
    widest: list[int] = field(default_factory=lambda: [0, 0])
    newest: list[int] = field(default_factory=lambda: [NEVER, NEVER])

    def add(self, old: Confluence) -> None:
        """What one of them knows."""
        for side in (0, 1):
            self.ended[side] |= old.exhausted(side)
            self.widest[side] = max(self.widest[side], old.found.widest[side])
            if isinstance(old, WindowConfluence):
                self.newest[side] = max(self.newest[side], old.timed.newest[side])


def inherit(
    join: Confluence, parts: Sequence[Inherited], known: Known, open_run: Callable[[int, str], SortedRun], named: int
) -> None:
    """Let a join that has seen nothing have these runs, and know what the old ones knew.

    :param named: numbers up to this one are taken in the names of its segments.
    """
    for side in (0, 1):
        births: dict[int, int] = {}
        # Bits have names, too, which must not be those of runs.
        join.adopt(side, (), named)
        # Levels fall, as where a join has written its runs itself.
        own = sorted((part for part in parts if part.side == side), key=lambda part: -part.level)
        entries = []
        for part in own:
            run, birth = open_run(side, part.name), births.setdefault(part.origin, len(births) + 1)
            entries.append(RunEntry(run, birth, 0, part.level, span=part.span))
            if part.marks is not None:
                assert join.matched is not None
                filling = join.matched.bits.begin(part.name, run.rows)
                filling.add(np.unpackbits(part.marks)[: run.rows].view(np.bool_))
                filling.end()
        join.adopt(side, entries, named)
    join.know(known.ended, known.widest)
    if isinstance(join, WindowConfluence):
        join.timed.advance(known.newest)


def hand_over_results(join: Confluence, others: Iterable[Confluence]) -> None:
    """Let results that wait with others for their time wait with this one."""
    for other in others:
        if isinstance(other, WindowConfluence) and other.held is not None:
            assert isinstance(join, WindowConfluence)
            join.adopt_results(other.held)
