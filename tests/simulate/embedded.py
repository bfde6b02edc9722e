"""A join in this process, by the protocol: rows, silences, little fuel, snapshots, and a disk that fails at any step.

After an error whoever runs it does what a user does: goes on once there is room again, goes back to the last snapshot,
or begins anew; a process that was killed leaves its files, which the next one sweeps. What comes out in the end is
compared with the oracle by the suite's own driver of cases (`watersmeet.checks.run`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulate.crew import Crewed
from simulate.damage import damaged
from simulate.faults import Killed
from simulate.lookups import LookedUp
from simulate.world import Trial, World
from watersmeet.checks.asof import make_asof_case
from watersmeet.checks.cases import Case, Move, make_case, make_kind_case, make_near_case
from watersmeet.checks.lookup_cases import make_lookup_case
from watersmeet.checks.multi_cases import MultiCase, make_multi_case, make_preserving_case
from watersmeet.checks.multi_windows import make_multi_window_case
from watersmeet.checks.promised_cases import make_promised_case
from watersmeet.checks.queries import make_queries_case
from watersmeet.checks.run import AnyCase, CaseRun, ConformanceError
from watersmeet.checks.windows import make_window_case
from watersmeet.core.errors import SegmentError, SpillError, WatersmeetError
from watersmeet.core.protocol import Arrive, Punctuate, Snapshot, Stall, Status
from watersmeet.core.spec import Output
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.joins.sharded import Sharded
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.planner import ALGORITHMS, LOOKUPS, MULTIWAY, WINDOW_ALGORITHMS, WINDOWED_MULTIWAY
from watersmeet.records.types import put_together
from watersmeet.spill.file_store import FileStore

_MOST_STARTS = 40
_MOST_REFUSALS = 40
_ROWS = 0.45
"""The share of a case's rows that a seed has: more seeds find more than larger ones."""
_MOST_LOOKUP_MOVES = 12
_WRITING = ("open", "write", "rename")
_MEMBER = re.compile(r"^n\d+-")
"""What the files of a shard begin with."""
_LONG = 400.0
"""Seconds that a clock may jump."""


@dataclass(frozen=True)
class Verb:
    """An operator, and where its cases come from."""

    name: str
    operator: Callable[[], type[Any]]
    make: Callable[..., AnyCase]
    options: tuple[tuple[str, Any], ...] = ()
    crewed: bool = False
    """Whether parts of it are actors of their own."""
    looks_up: bool = False
    """Whether one of its inputs is a relation."""

    def case(self, seed: int) -> AnyCase:
        """The case of a seed."""
        return self.make(seed, self.operator(), **dict(self.options))


def _of(registry: Any, name: str) -> Callable[[], type[Any]]:
    return lambda: registry[name]


def _lookup_case(seed: int, operator: type[Any]) -> Any:
    case = make_lookup_case(seed)
    moves = tuple(case.moves[:_MOST_LOOKUP_MOVES])
    return replace(case, spec=replace(case.spec, output=Output.ROWS), moves=moves)


VERBS: tuple[Verb, ...] = (
    *(Verb(f"join {name}", _of(ALGORITHMS, name), make_case) for name in sorted(ALGORITHMS)),
    *(Verb(f"join by kind {part}", _of(ALGORITHMS, "confluence"), make_kind_case) for part in "ab"),
    Verb("join near", _of(ALGORITHMS, "confluence"), make_near_case),
    Verb("join with promises", lambda: MetadataMJoin, make_promised_case),
    *(
        Verb(f"join in {n} shards", lambda: Sharded, make_case, (("shards", n), ("order", n)))
        for n in (2, 3)
    ),
    Verb("join by kind in shards", lambda: Sharded, make_kind_case, (("shards", 2), ("order", 5))),
    Verb("join with shards at once", lambda: Crewed, make_case, (("shards", 3),), crewed=True),
    Verb("join by kind with shards at once", lambda: Crewed, make_kind_case, (("shards", 2),), crewed=True),
    *(Verb(f"multijoin {name}", _of(MULTIWAY, name), make_multi_case) for name in sorted(MULTIWAY)),
    Verb("multijoin preserving", _of(MULTIWAY, "confluence"), make_preserving_case),
    *(Verb(f"window_join {name}", _of(WINDOW_ALGORITHMS, name), make_window_case) for name in WINDOW_ALGORITHMS),
    Verb("window_queries", lambda: WindowConfluence, make_queries_case),
    *(Verb(f"window multijoin {n}", _of(WINDOWED_MULTIWAY, n), make_multi_window_case) for n in WINDOWED_MULTIWAY),
    Verb("asof_join", lambda: AsofJoin, make_asof_case),
    Verb("asof_join again", lambda: AsofJoin, make_asof_case),
    *(Verb(f"lookup_join {name}", _of(LOOKUPS, name), _lookup_case, looks_up=True) for name in LOOKUPS),
)  # fmt: skip


def smaller(case: AnyCase, trial: Trial) -> AnyCase:
    """The case without the steps that were dropped, and with fewer rows: what is left of its inputs are its inputs."""
    moves: list[Move] = []
    for number, move in enumerate(case.moves):
        if number in trial.dropped and isinstance(move.event, Arrive | Stall | Punctuate):
            continue
        if isinstance(move.event, Arrive):
            batch = move.event.batch
            batch = batch.slice(0, int(np.ceil(batch.num_rows * trial.rows * _ROWS)))
            move = replace(move, event=Arrive(move.event.input, batch))
        moves.append(move)
    fuel = tuple(each * trial.fuel for each in case.fuel)
    known: list[pa.RecordBatch] = []
    for number in range(case.inputs):
        own = [m.event.batch for m in moves if isinstance(m.event, Arrive) and m.event.input == number]
        own = [batch for batch in own if batch.num_rows] or [case.table(number).slice(0, 0)]
        table = own[0] if len(own) == 1 else put_together(own)
        if table is None:  # of a type that cannot be put together again: all of it, then
            return replace(case, fuel=fuel)
        known.append(table)
    if isinstance(case, MultiCase):
        return replace(case, tables=tuple(known), moves=tuple(moves), fuel=fuel)
    assert isinstance(case, Case)
    return replace(case, left=known[0], right=known[1], moves=tuple(moves), fuel=fuel)


@dataclass(frozen=True)
class Point:
    """Where a run can be taken up again: a snapshot, copies of its files, and what had come out by then."""

    snapshot: Snapshot
    files: Path
    state: dict[str, Any]


_CARRIED = ("_status", "_stalled", "_cost", "_paused", "_polls", "jumped", "at")


class Driven(CaseRun):
    """The suite's driver of one case, which survives errors of the disk and can be taken up again."""

    def __init__(self, world: World, verb: Verb, case: AnyCase, store: FileStore, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng
        self.at = 0
        """The move that is next."""
        self.goes_on = bool(rng.random() < 0.6)
        """Whether it goes on after an error, once there is room again."""
        self.jumped = 0.0
        # There a jump of the clock is a silence, and changes what comes out.
        self.waits_for_clock = getattr(getattr(case.spec, "window", None), "idle", None) is not None
        self.harmed: set[str] = set()
        """Files that are not what was written."""
        options = dict(verb.options) | ({"schedule": world.schedule} if verb.crewed else {})
        super().__init__(verb.operator(), replace(case, restores=()), store, False, options)

    def play(self, start: Callable[[Point], None]) -> None:
        """Play the whole script; `start` is told of points from which it can be taken up."""
        moves, world = self._case.moves, self.world
        while self.at < len(moves):
            move = moves[self.at]
            while self._status is Status.HAS_OUTPUT:
                self._poll()
            if self.rng.random() < 0.1:
                start(self._taken())
                if self.rng.random() < 0.5:
                    self._restore_from(self._last)
            if self.rng.random() < 0.05 and not self.waits_for_clock:
                self.jumped += float(self.rng.random() * _LONG)
                world.counts["clock jumps"] += 1
            if self.rng.random() < 0.03:
                self.harm()
            self._paused += move.pause
            self._receive(move.event)
            self.at += 1
            world.counts[type(move.event).__name__.lower()] += 1
            for _ in range(move.polls):
                self._poll()
                if self._status in (Status.NEED_INPUT, Status.DONE):
                    break
        while self._status is not Status.DONE:
            self._poll()
        self._restored += 1  # costs of polls that failed are in nobody's sum
        self._poll_when_done()
        self._compare()

    def harm(self) -> None:
        """One of the files that were spilled is torn, altered, or has a page of another."""
        world, store = self.world, self._store
        assert isinstance(store, FileStore)
        with world.calm():
            known = [store.path / name for name in sorted(store.names())]
            if known:
                path = known[int(self.rng.integers(len(known)))]
                way = damaged(self.rng, path, known)
                if way is not None:
                    world.counts[f"spilled files {way}"] += 1
                    self.harmed.add(path.name)

    def take_up(self, point: Point) -> None:
        """Go on from a point."""
        for name, value in point.state.items():
            setattr(self, name, value.copy() if isinstance(value, list) else value)
        self._last = point.snapshot
        self._restore_from(point.snapshot)

    def _poll(self) -> pa.RecordBatch | None:
        world = self.world
        world.schedule.pause()
        self._idle = 0
        for _ in range(_MOST_REFUSALS):
            try:
                world.counts["polls"] += 1
                # Time passes while nothing arrives.
                slow = 0.0 if self.waits_for_clock else world.waited
                self._paused, was = self._paused + self.jumped + slow, self._paused
                out = super()._poll()
                self._paused = was
                return out
            except SegmentError:
                raise
            except SpillError:
                self._paused = was
                if not self._can_go_on:
                    raise
                world.counts["went on after an error"] += 1
                self._operator.check()
        raise ConformanceError("refuses although there is room again")

    @property
    def _can_go_on(self) -> bool:
        """What could not be written leaves the operator as it was; of other errors nobody has promised that."""
        last = self.world.faults.failed[-1] if self.world.faults.failed else None
        return self.goes_on and last is not None and last.operation in _WRITING and last.how in ("error", "half")

    def _after_step(self) -> None:
        if self.rng.random() < 0.1:
            super()._after_step()
        self._steps += 1

    def _taken(self) -> Point:
        """A snapshot, and copies of the files that it names."""
        world = self.world
        for _ in range(_MOST_REFUSALS):
            try:
                snapshot = self._operator.snapshot()
                break
            except SegmentError:
                raise
            except SpillError:
                if not self._can_go_on:
                    raise
                world.counts["went on after an error"] += 1
                self._operator.check()
        world.counts["snapshots"] += 1
        saved = json.loads(json.dumps(snapshot.state))
        self._last = Snapshot(snapshot.algorithm, snapshot.fingerprint, saved, snapshot.segments)
        with world.calm():
            files = world.root / f"kept-{world.counts['snapshots']}"
            files.mkdir()
            assert isinstance(self._store, FileStore)
            for name in snapshot.segments:
                os.link(self._store.path / name, files / name)
        state = {name: getattr(self, name) for name in _CARRIED}
        state |= {"_out": list(self._out), "_ended": list(self._ended), "punctuations": list(self.punctuations)}
        return Point(self._last, files, state)

    def _restore_from(self, snapshot: Snapshot) -> None:
        case = self._case
        self._operator = None
        for _ in range(_MOST_REFUSALS):
            try:
                self._operator = self._class.restore(case.spec, snapshot, case.memory, self._store, **self._options)
                break
            except SegmentError:
                raise
            except SpillError:
                if not self._can_go_on:
                    raise
                self.world.counts["went on after an error"] += 1
        self._operator.check()
        self._restored += 1
        self.world.counts["restores"] += 1


def play_embedded(world: World) -> None:
    """One or two joins at once, with one directory to spill to."""
    rng = world.trial.rng(4)
    count = 2 if rng.random() < 0.2 else 1
    spill = world.root / "spill"
    with world.calm():
        spill.mkdir()
    for number in range(count):
        verb = VERBS[(2 * (world.trial.seed // 3) + world.trial.seed % 3 + 17 * number) % len(VERBS)]
        case = verb.case(int(rng.integers(1 << 20)))
        own = np.random.default_rng([world.trial.seed, 0x51A1, number])
        if verb.looks_up:
            looked_up = LookedUp(world, verb.operator(), case, world.root / f"relation-{number}")  # type: ignore[arg-type]
            world.schedule.spawn(verb.name, lambda each=looked_up: each.play(expect_sentence))
        else:
            case = smaller(case, world.trial if number == 0 else Trial(world.trial.seed))
            world.schedule.spawn(verb.name, lambda v=verb, c=case, r=own: _play(world, v, c, spill, r))
        world.counts[verb.name] += 1
    while world.schedule.actors:
        actor = world.schedule.step()
        if actor.error is not None and actor.process is actor:
            raise actor.error
    world.faults.on = False
    FileStore(spill).close()  # sweeps what the killed have left
    left = world.listed(spill)
    if left:
        raise ConformanceError(f"left {left} in the spill directory")


def _play(world: World, verb: Verb, case: AnyCase, spill: Path, rng: np.random.Generator) -> None:
    """A join, begun again as often as something ends it."""
    points: list[Point] = []
    harmed: set[str] = set()
    actor = world.schedule.current
    assert actor is not None
    for _ in range(_MOST_STARTS):
        store, run = None, None
        try:
            store = FileStore(spill)
            if points and rng.random() < 0.7:
                with world.calm():
                    for path in points[-1].files.iterdir():
                        os.link(path, store.path / path.name)
                run = Driven(world, verb, case, store, rng)
                if rng.random() < 0.1:
                    run.harm()
                run.take_up(points[-1])
                world.counts["taken up from a snapshot"] += 1
            else:
                points.clear()
                run = Driven(world, verb, case, store, rng)
            run.play(points.append)
            world.counts["runs that spilled"] += store.bytes_written > 0
            store.close()
            return
        except Killed:
            world.counts["killed"] += 1
            _bury(world, store)
            actor.dead = False
        except WatersmeetError as error:
            expect_sentence(error)
            harmed |= set() if run is None else run.harmed
            named = any(_MEMBER.sub("", name) in str(error) for name in harmed)
            if not world.faults.failed and not named:
                raise
            world.counts[f"clear {type(error).__name__}"] += 1
            world.counts["spilled damage named"] += named
            try:
                if run is not None and run._operator is not None:
                    run._operator.close()
                if store is not None:
                    store.close()
            except Killed:
                _bury(world, store)
                actor.dead = False
        world.counts["started again"] += 1
    raise ConformanceError(f"does not come to an end in {_MOST_STARTS} starts, although faults do")


def _bury(world: World, store: FileStore | None) -> None:
    """A process has died: its files stay, its locks do not."""
    if store is not None and store._private is not None:
        store._private._finalizer.detach()
        store._writers.clear()
        store._closed = True
    assert world.schedule.current is not None
    world.disk.bury(world.schedule.current.process)


def expect_sentence(error: BaseException) -> None:
    """An error that a user can do something about: of ours, and more than a word."""
    if not isinstance(error, WatersmeetError) or len(str(error).split()) < 5:
        raise ConformanceError(f"says {type(error).__name__}: {error!s:.200}") from error


def kinds_of_steps() -> Sequence[str]:
    """What must happen to somebody, some time."""
    return ("arrive", "stall", "end", "polls", "snapshots", "restores", "clock jumps", "taken up from a snapshot",
            "started again", "killed", "went on after an error", "runs that spilled")  # fmt: skip
