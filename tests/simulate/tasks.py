"""A streaming join on Spark, without Spark: its tasks, their attempts, and a driver that may die.

The real tasks run (`watersmeet.spark.task`), with the state in a directory or in a bucket. Each attempt is an actor; so
attempts at one task, those of a batch and of the one after it, and of a query and of its next start are interleaved at
every operation on files. Results reach the sink as with Spark: of each task one attempt's, of each batch once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulate import streams
from simulate.buckets import ADDRESS, Objects
from simulate.damage import damaged
from simulate.embedded import expect_sentence
from simulate.faults import Killed
from simulate.routed_streams import hot_keys, lookup, parallel
from simulate.schedule import Actor
from simulate.streams import Maker, Stream
from simulate.world import World
from spark import pipelines
from spark.window_oracle import rows_in_all
from watersmeet.checks.run import ConformanceError
from watersmeet.core.errors import WatersmeetError
from watersmeet.spark.rebalance import master_task, slot_task
from watersmeet.spark.state import directory, files, lineage, open_runs
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task import lookup_task, operator_cache
from watersmeet.spark.task.lookup_task import KeptLookups
from watersmeet.spark.task.operator_cache import KeptOperators

STREAMS: Mapping[str, Maker] = {
    **streams.STREAMS, "hot keys": hot_keys, "parallel": parallel, "look-ups": lookup
}  # fmt: skip
"""Queries by what they join."""
_MOST_STARTS = 25
_MOST_STEPS = 100_000


def _watched(factory: Any, made: list[Any]) -> Any:
    """The same factory, which notes whom it made: they can tell what they did."""

    def noting(name: str) -> Callable[..., Any]:
        def make(self: Any, *given: Any, **options: Any) -> Any:
            made.append(getattr(type(factory), name)(self, *given, **options))
            return made[-1]

        return make

    ways = {name: noting(name) for name in ("build", "restore", "settling") if hasattr(factory, name)}
    return type(type(factory).__name__, (type(factory),), ways)(
        **{each.name: getattr(factory, each.name) for each in fields(factory) if each.init}
    )


@dataclass
class Worker:
    """A process that runs one task at a time, and what it remembers."""

    opened: OpenRuns = field(default_factory=OpenRuns)

    def __post_init__(self) -> None:
        self.kept = KeptOperators(self.opened)
        self.lookups = KeptLookups()
        self.busy = False


class PerActor:
    """In place of what a process has once: that of the worker whose turn it is."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def __getattr__(self, name: str) -> Any:
        actor = self._world.schedule.current
        assert actor is not None
        return getattr(getattr(actor.context["worker"], self._name), name)


class _Inline:
    """In place of a pool of threads: one after the other, so that a seed always means the same."""

    def __init__(self, threads: int) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def map(self, act: Any, items: Any) -> list[Any]:
        return [act(item) for item in items]


class Driver:
    """Starts tasks, retries them, takes their results into the sink; dies, and begins again from its checkpoint."""

    def __init__(self, world: World, stream: Stream, rng: np.random.Generator, state: Path | None) -> None:
        self.world, self.stream, self.rng, self.state = world, stream, rng, state
        self.starts = 1
        self.done = 0
        """Batches that the checkpoint has as done."""
        self.begun = 0
        """Batches that were ever begun."""
        self.sink: dict[int, Counter[Any]] = {}
        self.workers = [Worker() for _ in range(3)]
        self.failures = 0
        self.last: BaseException | None = None
        """The last error of a task."""
        self.mended: tuple[Path, bytes] | None = None
        """A file that was damaged, and what it was."""
        self.harmed: set[str] = set()
        """Files that ever were: whoever has opened one by then may say so later."""

    @property
    def run(self) -> str:
        """This start of the query."""
        return f"run-{self.starts}"

    def play(self) -> Counter[Any]:
        """All batches; what the sink has in the end."""
        while self.done < len(self.stream.batches):
            self._damage()
            if self._batch(self.done):
                self.done += 1
                self.world.counts["batches"] += 1
                if self.rng.random() < 0.05:  # the last entry of the checkpoint is lost
                    self.world.counts["batches replayed"] += 1
                    self.done -= 1
                    self._start_again()
            self._mend()
        return sum(self.sink.values(), Counter())

    def _batch(self, number: int) -> bool:
        """Whether the batch came to its end before the driver did."""
        world, rng = self.world, self.rng
        if number == self.begun:
            self.begun += 1
            with world.calm():
                self.stream.begin(number)
        found: dict[int, Counter[Any]] = {}
        groups = range(self.stream.pipeline.groups)
        self.failures = 0
        for group in groups:
            self._attempt(number, group)
        if rng.random() < 0.2:
            self._attempt(number, int(rng.integers(len(groups))), "speculative attempts")
        if self.starts > 1 and rng.random() < 0.3:
            # The driver before is not dead, and does not know that there is another.
            world.counts["two drivers at once"] += 1
            self._attempt(number, int(rng.integers(len(groups))), "tasks", f"run-{self.starts - 1}")
        for _ in range(_MOST_STEPS):
            if len(found) == len(groups):
                break
            if rng.random() < 0.003:
                return self._start_again()
            actor = world.schedule.step()
            if actor.over:
                self._ended(actor, number, found)
                if self.failures > 8:
                    world.counts["queries failed"] += 1
                    return self._start_again()
        else:
            raise ConformanceError(f"batch {number} does not come to an end")
        if rng.random() < 0.03:
            return self._start_again()  # before the sink has it
        results = sum(found.values(), Counter())
        if number in self.sink:
            _same(self.sink[number], results, f"batch {number}, replayed")
        self.sink.setdefault(number, results)
        if rng.random() < 0.03:
            return self._start_again()  # the sink has it, and the checkpoint does not
        for actor in list(world.schedule.actors):
            if rng.random() < 0.6:  # others come too late, and nobody tells them
                self._kill(actor)
        return True

    def _attempt(self, number: int, group: int, what: str = "tasks", run: str | None = None) -> None:
        """Start one; each in a worker of its own."""
        free = [worker for worker in self.workers if not worker.busy]
        if not free:
            free = [Worker()]
            self.workers.append(free[0])
        worker = free[int(self.rng.integers(len(free)))]
        worker.busy = True
        tables, ended = self.stream.batches[number]
        order = [table.take(pa.array(self.rng.permutation(table.num_rows), pa.int64())) for table in tables]
        pipeline = self.stream.pipeline
        self.world.counts[what] += 1
        self.world.schedule.spawn(
            f"batch {number} group {group}", lambda: pipeline.attempt(group, order, ended),
            worker=worker, batch=Batch(number, run or self.run), group=group,
        )  # fmt: skip

    def _ended(self, actor: Actor, number: int, found: dict[int, Counter[Any]]) -> None:
        world, context = self.world, actor.context
        own = context["batch"] == Batch(number, self.run)
        context["worker"].busy = False
        if actor.error is None:
            if not own:
                return
            rows, group = rows_in_all(actor.result), context["group"]
            if group in found:
                world.counts["results of a second attempt"] += 1
                _same(found[group], rows, f"two attempts at batch {number} of group {group}")
            found.setdefault(group, rows)
            return
        if isinstance(actor.error, Killed):
            world.counts["tasks killed"] += 1
            self._buried(actor)
        elif isinstance(actor.error, WatersmeetError):
            expect_sentence(actor.error)
            self.last = actor.error
            world.counts[f"task says {type(actor.error).__name__}"] += 1
            if any(name in str(actor.error) for name in self.harmed):
                world.counts["damage named"] += 1
                self._mend()
            elif own and self._nothing_is_wrong:
                raise actor.error
        else:
            raise actor.error
        if own:
            self.failures += 1
            world.counts["tasks retried"] += 1
            if self.failures > 4:
                self._mend()
            if context["group"] not in found:
                self._attempt(number, context["group"])

    @property
    def _nothing_is_wrong(self) -> bool:
        """Whether there is no reason for a task to fail: that tasks of an earlier driver are at work is none."""
        return not (self.world.faults.failed or self.harmed or self.world.counts["names listed late"])

    def _kill(self, actor: Actor) -> None:
        self.world.schedule.kill(actor)
        self._buried(actor)

    def _buried(self, actor: Actor) -> None:
        """A worker has died."""
        self.world.disk.bury(actor)
        worker = actor.context["worker"]
        if worker in self.workers:
            self.workers[self.workers.index(worker)] = Worker()

    def _start_again(self) -> bool:
        """The driver dies; of its tasks some go on, unaware."""
        self.starts += 1
        self.world.counts["drivers died"] += 1
        if self.starts > _MOST_STARTS:
            raise ConformanceError(f"does not go on although faults have ended: {self.last}") from self.last
        for actor in list(self.world.schedule.actors):
            if self.rng.random() < 0.5:
                self._kill(actor)
        self.world.counts["tasks outlived their driver"] += len(self.world.schedule.actors)
        if self.rng.random() < 0.3:
            directory._BEGUN.clear()
            lineage._ENTRIES.clear()
        self.world.clock.jump(float(self.rng.normal() * 1e4))
        self.world.counts["clock jumps"] += 1
        return False

    def _damage(self) -> None:
        """A file of the state is torn, altered, or another's."""
        if self.state is None or self.rng.random() > 0.1:
            return
        with self.world.calm():
            known = sorted(path for path in self.state.glob("group-*/*") if not path.name.startswith("."))
            if not known:
                return
            path = known[int(self.rng.integers(len(known)))]
            content = path.read_bytes()
            way = damaged(self.rng, path, known)
            if way is None:
                return
            self.world.counts[f"files {way}"] += 1
            self.mended = path, content
            self.harmed.add(path.name)
        for worker in self.workers:  # those that have it mapped would not notice
            if not worker.busy:
                worker.__init__()  # type: ignore[misc]

    def _mend(self) -> None:
        """Somebody puts back what was there."""
        if self.mended is not None:
            path, content = self.mended
            with self.world.calm():
                if path.exists():
                    path.unlink()
                    path.write_bytes(content)
            self.mended = None


def _same(one: Counter[Any], other: Counter[Any], what: str) -> None:
    if one != other:
        raise ConformanceError(f"{what}: {(one - other).total()} results less and {(other - one).total()} more")


def play_tasks(world: World) -> None:
    """One query, from its first batch to its last."""
    rng = world.trial.rng(5)
    remote = rng.random() < 0.25
    state = world.root / "state"
    with ExitStack() as stack, world.calm():
        (world.root / "scratch").mkdir()
        drawn = list(STREAMS)[world.trial.seed // 3 % len(STREAMS)]
        stream = STREAMS[world.trial.stream or drawn](world, rng, ADDRESS if remote else state)
        pipeline, operators = stream.pipeline, list[Any]()
        if hasattr(pipeline.task, "factory"):
            pipeline.task = replace(pipeline.task, factory=_watched(pipeline.task.factory, operators))
        # Which of two attempts of a remote directory is the later one counts only there.
        world.counts[stream.name] += 1
        world.counts["state in a bucket"] += remote
        told = world.schedule
        for module in (*pipelines.TASKS, master_task, slot_task, lookup_task):
            _set(stack, module, "current_batch", lambda: (told.current.context["batch"], "query"))  # type: ignore[union-attr]
            if hasattr(module, "scratch_directory"):
                _set(stack, module, "scratch_directory", lambda: world.root / "scratch")
        # Each start puts its query together anew, later than the one before.
        _set(stack, directory, "enter", lambda *given: lineage.enter(*given[:3], made=int(given[1].split("-")[1])))
        _set(stack, operator_cache, "WORKER", PerActor(world, "kept"))
        _set(stack, open_runs, "WORKER", PerActor(world, "opened"))
        _set(stack, lookup_task, "WORKER", PerActor(world, "lookups"))
        for module in (files, slot_task):
            _set(stack, module, "ThreadPoolExecutor", _Inline)
        listed: Any = master_task.RoutingFiles.__dict__["_names"]
        if hasattr(listed, "lock"):  # before Python 3.12 whoever lists holds a lock, and would keep it while others run
            _set(stack, listed, "lock", nullcontext())
        for module, name, value in stream.patches:
            _set(stack, module, name, value)
        for known in (directory._KNOWN, directory._BEGUN, lineage._ENTRIES):
            known.clear()
        if remote:
            stack.enter_context(Objects(world.faults, world.trial.rng(6), world.counts))
            pipeline.task = replace(pipeline.task, cache_bytes=1 << 20)
            _set(stack, directory, "store_at", _cached_at(world.root / "cache"))
        driver = Driver(world, stream, rng, None if remote else state)
        world.faults.on = True
        found = driver.play()
        world.faults.on = False
        for actor in list(world.schedule.actors):
            driver._kill(actor)
        _same(stream.expected(), found, stream.name)
        world.counts["results"] += found.total()
        for operator in operators:
            world.counts.update(+Counter(getattr(operator, "events", {})))
        world.counts["runs that spilled"] += pipeline.total("spilled") > 0


def _cached_at(root: Path) -> Any:
    from watersmeet.spark.state.remote import Cache, RemoteStore

    return lambda place, most: RemoteStore.of(place, Cache(root, most))


def _set(stack: ExitStack, module: Any, name: str, value: Any) -> None:
    stack.callback(setattr, module, name, getattr(module, name))
    setattr(module, name, value)
