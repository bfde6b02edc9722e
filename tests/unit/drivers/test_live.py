"""The live driver: who waits for whom, what the operator is told, and what is left when a run ends early."""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from waiting import PATIENCE, Clock, Sleepers, until
from watersmeet.core.cost import Cost
from watersmeet.core.errors import ProtocolError, SourceError, SpecError
from watersmeet.core.protocol import Arrive, End, Event, PlainOperator, Stall, Status, Step
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.drivers import live
from watersmeet.drivers.inbox import BATCH_ROWS, MAX_ROWS, Bell, Inbox
from watersmeet.drivers.live import FUEL, REACTIVE_FUEL, WAIT, LiveRun, queue_bytes
from watersmeet.drivers.progress import Progress
from watersmeet.memory import Budget
from watersmeet.spill import FileStore, MemoryStore, Store

MEMORY = 8 << 20
LEFT = pa.schema({"id": pa.int64(), "l": pa.int64()})
RIGHT = pa.schema({"id": pa.int64(), "r": pa.int64()})


def left(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "l": pa.array(range(len(ids)), pa.int64())}, LEFT)


def right(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "r": pa.array(range(len(ids)), pa.int64())}, RIGHT)


class SimpleJoin(PlainOperator):
    """A correct join of small inputs that keeps everything, notes all it is told, and insists on the protocol.

    With `chunk`, results come out in batches of so many rows (more polls are needed). With `work`, each stall brings so
    many polls of reactive work; `at_work` is called in each of them, with its number.
    """

    name = "simple"
    reason = "it is a test"
    patience = 0
    ahead: int | None = None
    at_poll: Callable[[], None] | None = None
    at_work: Callable[[int], None] | None = None

    def __init__(self, spec: JoinSpec, memory: int, store: Store, chunk: int = 1 << 30, work: int = 0) -> None:
        self.spec, self.store, self.chunk, self.work = spec, store, chunk, work
        self.budget = Budget(memory)
        self.log: list[Event | tuple[int, Status]] = []
        """What it was told, and the fuel and the outcome of each poll, in order."""
        self.worked = 0
        self.tables: list[pa.Table] = [spec.left.empty_table(), spec.right.empty_table()]
        self.waiting: list[pa.RecordBatch] = []
        self.pending: list[Arrive] = []
        self.ended: set[int] = set()
        self.left_to_do = 0
        self.status = Status.NEED_INPUT
        self.closed = False
        self.phase = "arriving"

    def receive(self, event: Event) -> None:
        assert not self.closed
        if isinstance(event, Arrive | End):
            assert event.input not in self.ended
        if self.status is Status.HAS_OUTPUT:
            raise ProtocolError("an arrival before pending output was taken")
        self.log.append(event)
        match event:
            case Arrive():
                assert event.batch.schema == self.spec.input(event.input)
                self.pending.append(event)
                self.left_to_do = 0
            case End():
                self.ended.add(event.input)
            case Stall():
                self.left_to_do = self.work

    def poll(self, now: float, fuel: int) -> Step:
        assert not self.closed
        assert fuel > 0
        for event in self.pending:
            self._join(event)
        self.pending.clear()
        out = self.waiting.pop(0) if self.waiting else None
        self.left_to_do = max(0, self.left_to_do - 1)
        if self.waiting:
            self.status = Status.HAS_OUTPUT
        elif len(self.ended) == 2:
            self.status = Status.DONE
        else:
            self.status = Status.HAS_WORK if self.left_to_do else Status.NEED_INPUT
        self.log.append((fuel, self.status))
        if self.at_poll is not None:
            self.at_poll()
        if self.status is Status.HAS_WORK:
            self.worked += 1
            if self.at_work is not None:
                self.at_work(self.worked)
        return Step(out, self.status, Cost())

    def _join(self, event: Arrive) -> None:
        new, other = pa.Table.from_batches([event.batch]), self.tables[1 - event.input]
        rows = np.nonzero(new["id"].to_numpy()[:, None] == other["id"].to_numpy()[None, :])
        sides = {event.input: new.take(pa.array(rows[0])), 1 - event.input: other.take(pa.array(rows[1]))}
        pairs = sides[0].append_column("r", sides[1]["r"])
        self.waiting += [b for b in pairs.combine_chunks().to_batches(max_chunksize=self.chunk) if b.num_rows]
        self.tables[event.input] = pa.concat_tables([self.tables[event.input], new])

    def wake_at(self) -> float | None:
        return None

    def close(self) -> None:
        self.closed = True

    def told(self, kind: type[Event]) -> list[Event]:
        """What the operator was told of a kind."""
        return [event for event in self.log if isinstance(event, kind)]

    def arrived(self, input: int) -> list[pa.RecordBatch]:
        """The batches of an input."""
        return [event.batch for event in self.log if isinstance(event, Arrive) and event.input == input]

    def polls(self) -> list[tuple[int, Status]]:
        """The fuel and the outcome of each poll."""
        return [entry for entry in self.log if isinstance(entry, tuple)]


class Given:
    """A source of given batches; an exception among them is raised, a call is made."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        items: Iterable[pa.RecordBatch | Exception | Callable[[], object]],
        schema_after: threading.Event | None = None,
    ) -> None:
        self.name, self.items, self.schema_after, self._schema = name, items, schema_after, schema
        self.closed = 0
        self.given = 0

    def schema(self) -> pa.Schema:
        if self.schema_after is not None:
            assert self.schema_after.wait(PATIENCE), "nobody let the schema be known"
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for item in self.items:
            if isinstance(item, pa.RecordBatch):
                self.given += 1
                yield item
            elif isinstance(item, Exception):
                raise item
            else:
                item()

    def close(self) -> None:
        self.closed += 1


class Feed:
    """Items that a test sends one after the other; it knows when the source has passed on all of them."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._changed = threading.Condition()
        self._asked = False
        self.ended = False

    def send(self, *items: object) -> None:
        with self._changed:
            self._items.extend(items)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def passed_on(self) -> bool:
        """Whether the reader asks for more than was sent: what was sent is in its queue."""
        with self._changed:
            return self._asked and not self._items

    def __iter__(self) -> Iterator[object]:
        while True:
            with self._changed:
                self._asked = True
                assert self._changed.wait_for(lambda: self._items or self.ended, PATIENCE), "the test sends nothing"
                if not self._items:
                    return
                self._asked = False
                item = self._items.popleft()
            yield item


class Bench:
    """A run of the simple join over two given sources."""

    def __init__(
        self,
        lefts: Iterable[object],
        rights: Iterable[object],
        *,
        memory: int = MEMORY,
        chunk: int = 1 << 30,
        work: int = 0,
        patience: int = 0,
        store: Store | None = None,
        wait: float = WAIT,
        schema_after: threading.Event | None = None,
        at_poll: Callable[[], None] | None = None,
        at_work: Callable[[int], None] | None = None,
        observe: Callable[[Progress], None] | None = None,
    ) -> None:
        self.store = store or MemoryStore()
        self.sources = [Given("left", LEFT, lefts, schema_after), Given("right", RIGHT, rights)]  # type: ignore[arg-type]
        self.memory_given = 0

        def build(schemas: list[pa.Schema], memory: int) -> SimpleJoin:
            self.memory_given = memory
            self.operator = SimpleJoin(
                JoinSpec(schemas[0], schemas[1], parse_on("id")), memory, self.store, chunk, work
            )
            self.operator.patience, self.operator.at_poll, self.operator.at_work = patience, at_poll, at_work
            return self.operator

        self.run = LiveRun(self.sources, build, memory, wait=wait, observe=observe, every=0.02)


class Untimed(Sleepers):
    """A sleep that only a ring ends: what is due at a time is done when the test lets that time come, and rings."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait()


class Play:
    """A run on a thread of its own, which a test leads step by step: rows come and time passes when it says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.clock = Clock()
        monkeypatch.setattr(live, "time", self.clock)
        self.feeds = [Feed(), Feed()]
        self.bench = Bench(*self.feeds, **options)
        self.sleepers = self.bench.run._bell.condition = Untimed()
        self.found: list[pa.RecordBatch] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._consume, daemon=True)
        self.thread.start()

    def _consume(self) -> None:
        try:
            self.found.extend(self.bench.run)
        except BaseException as error:
            self.error = error

    @property
    def operator(self) -> SimpleJoin:
        until(lambda: hasattr(self.bench, "operator"), "the operator is built")
        return self.bench.operator

    @property
    def rows(self) -> int:
        """Rows found so far."""
        return sum(batch.num_rows for batch in self.found)

    def send(self, lefts: Iterable[object] = (), rights: Iterable[object] = (), *, rest: bool = True) -> None:
        """Let items come, and the driver do all that it does about them."""
        for feed, items in zip(self.feeds, (lefts, rights), strict=True):
            feed.send(*items)
        self.rest() if rest else self.await_readers()

    def end(self, *inputs: int, rest: bool = True) -> None:
        for number in inputs:
            self.feeds[number].end()
        self.rest() if rest else self.await_readers()

    def advance(self, seconds: float, *, rest: bool = True) -> None:
        """Let time pass, once the driver sleeps."""
        self.rest()
        with self.sleepers:
            self.clock.now += seconds
            self.sleepers.notify_all()
        if rest:
            self.rest()

    def await_readers(self) -> None:
        """Wait until all that was sent is in the queues."""
        until(self._all_read, "the readers have read what was sent")

    def _all_read(self) -> bool:
        inboxes = self.bench.run._inboxes
        return all(
            inbox.ended if inbox.ended or feed.ended else feed.passed_on()
            for inbox, feed in zip(inboxes, self.feeds, strict=True)
        )

    def rest(self) -> None:
        """Wait until the driver has nothing to do but to sleep, or has ended."""
        until(self._rests, "the driver sleeps, all its rows worked off")

    def _rests(self) -> bool:
        if not self.thread.is_alive():
            return True
        with self.sleepers:
            ready = self.bench.run._parts.anything_new(self.bench.run._held_back)
            return self._all_read() and not ready and self.sleepers.holds(self.thread)

    def finish(self) -> None:
        """End what is open, and raise what the run raised."""
        for feed in self.feeds:
            feed.end()
        until(lambda: not self.thread.is_alive(), "the run ends")
        if self.error is not None:
            raise self.error


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("watersmeet-read-")]


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    until(lambda: not readers(), "the readers of the test before end")
    yield
    until(lambda: not readers(), "the readers end")


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Play]]:
    made: list[Play] = []

    def start(**options: Any) -> Play:
        made.append(Play(monkeypatch, **options))
        return made[-1]

    yield start
    for each in made:  # also when the test has failed
        for feed in each.feeds:
            feed.end()
        each.bench.run.close()


def pairs(batches: Iterable[pa.RecordBatch]) -> Counter[tuple[int, int, int]]:
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def test_all_pairs_come_out_once() -> None:
    bench = Bench([left(1, 2), left(2, 3)], [right(2), right(3, 3)], chunk=1)
    assert pairs(bench.run) == Counter({(2, 1, 0): 1, (2, 0, 0): 1, (3, 1, 0): 1, (3, 1, 1): 1})
    assert bench.operator.closed
    assert [source.closed for source in bench.sources] == [1, 1]
    assert bench.run.progress().done


def test_the_end_comes_after_the_last_batch_of_its_input() -> None:
    bench = Bench([left(i) for i in range(50)], [])
    list(bench.run)
    told = [event for event in bench.operator.log if isinstance(event, Arrive | End) and event.input == 0]
    assert isinstance(told[-1], End)
    assert sum(event.batch.num_rows for event in told[:-1] if isinstance(event, Arrive)) == 50


def test_a_silent_side_does_not_hold_up_the_other(play: Callable[..., Play]) -> None:
    run = play()
    run.send([left(1)], [right(1), *(right(i) for i in range(100))])
    assert run.rows == 2
    run.send(rights=[right(1)])
    assert run.rows == 3
    assert run.operator.told(End) == []
    run.finish()


def test_an_input_that_is_ahead_waits_for_the_other(play: Callable[..., Play]) -> None:
    run = play(wait=0.5)
    run.send([left(1)], [right(1)])
    run.operator.ahead = 1
    run.send(rights=[right(1), right(1)])
    run.advance(0.375)
    assert run.rows == 1, "rows came that had better wait"
    run.operator.ahead = None
    run.send([left(1)])  # the other speaks, and nobody is ahead any more
    assert run.rows == 1 + 2 + 3
    assert run.operator.told(Stall) == []
    run.finish()


def test_an_input_that_is_ahead_waits_for_a_silent_one_only_once(play: Callable[..., Play]) -> None:
    run = play(wait=0.5)
    run.send([left(1)], [right(1)])
    run.operator.ahead = 1
    run.send(rights=[right(1)])
    assert run.rows == 1
    run.advance(0.5)
    assert run.rows == 2 and run.operator.told(Stall) == [], "nobody is silent while rows wait"
    run.send(rights=[right(1)])
    assert run.rows == 3, "the other has been silent since"
    run.send([left(2)])  # it speaks: from now on it is waited for again
    run.send(rights=[right(1)])
    assert run.rows == 3
    run.advance(0.5)
    assert run.rows == 4
    run.advance(0.5)
    assert len(run.operator.told(Stall)) == 1
    run.send(rights=[right(1)])
    assert run.rows == 5, "in a silence nothing waits"
    run.finish()


def test_an_input_that_is_ahead_waits_for_no_input_that_has_failed(play: Callable[..., Play]) -> None:
    run = play(wait=0.5)
    run.send([left(1)], [right(1)])
    run.operator.ahead = 1
    run.send([], [right(1)])
    assert run.rows == 1  # the row is there, and is held back
    run.send([ValueError("no more")])
    until(lambda: not run.thread.is_alive(), "the run has ended")
    assert run.rows == 2
    assert isinstance(run.error, SourceError)


def test_a_result_is_handed_out_while_both_sides_are_silent() -> None:
    go_on = threading.Event()

    def silence() -> None:
        assert go_on.wait(PATIENCE), "the result was held back"

    bench = Bench([left(1), silence], [right(1), silence])
    batches = iter(bench.run)
    assert next(batches).num_rows == 1
    go_on.set()
    assert list(batches) == []


def test_silence_is_a_stall_after_the_wait_and_only_once(play: Callable[..., Play]) -> None:
    run = play(wait=0.5)
    run.send([left(1)], [right(1)])
    run.advance(0.375)
    assert run.operator.told(Stall) == []
    run.advance(0.125)
    assert len(run.operator.told(Stall)) == 1
    run.advance(1000)
    assert len(run.operator.told(Stall)) == 1
    run.send([left(2)])  # ends the silence, and the next one is another
    run.advance(0.5)
    assert len(run.operator.told(Stall)) == 2
    run.finish()


def test_no_stall_while_one_side_delivers(play: Callable[..., Play]) -> None:
    run = play(wait=0.5)
    for i in range(30):
        run.send(rights=[right(i)])
        run.advance(0.375)
    assert run.operator.told(Stall) == []
    assert len(run.operator.told(Arrive)) == 30
    run.finish()


def test_a_side_that_ended_counts_as_silent(play: Callable[..., Play]) -> None:
    run = play(wait=0.5)
    run.send([left(1)], [right(1)])
    run.end(0)
    assert len(run.operator.told(End)) == 1
    run.advance(0.5)
    assert len(run.operator.told(Stall)) == 1
    run.finish()


def test_new_rows_end_reactive_work_within_one_poll(play: Callable[..., Play]) -> None:
    def at_work(number: int) -> None:
        if number in (12, 19):
            run.send([left(1)], rest=False)

    run = play(work=10**9, at_work=at_work)
    run.send([left(1)], [right(1)])
    operator = run.operator
    for worked in (12, 19):
        run.advance(WAIT)  # comes to rest when the reactive work was given up
        assert operator.worked == worked
        arrival = max(at for at, entry in enumerate(operator.log) if isinstance(entry, Arrive))
        assert operator.log[arrival - 1] == (REACTIVE_FUEL, Status.HAS_WORK)
    assert {fuel for fuel, status in operator.polls() if status is Status.HAS_WORK} == {REACTIVE_FUEL}
    assert {fuel for fuel, status in operator.polls() if status is not Status.HAS_WORK} == {FUEL}
    assert REACTIVE_FUEL < FUEL
    assert run.rows == 3
    run.finish()


def test_some_rows_wait_for_an_operator_that_lets_them(play: Callable[..., Play]) -> None:
    def at_work(number: int) -> None:
        if number <= 6:
            run.send([left(1)], rest=False)

    run = play(work=10**9, patience=3, at_work=at_work)
    run.send([left(1)], [right(1)])
    run.advance(WAIT)
    assert run.operator.worked == 4
    assert [batch.num_rows for batch in run.operator.arrived(0)] == [1, 4], "three waited, and came with the fourth"
    run.send([left(1), left(1)])
    assert sum(batch.num_rows for batch in run.operator.arrived(0)) == 7
    run.finish()


def test_rows_do_not_wait_when_all_have_come(play: Callable[..., Play]) -> None:
    def at_work(number: int) -> None:
        if number == 3:
            run.send([left(1)], rest=False)
        elif number == 5:
            assert len(run.operator.arrived(0)) == 1, "it waits, as more may come"
            run.end(0, rest=False)

    run = play(work=10**9, patience=100, at_work=at_work)
    run.send([left(1)], [right(1)])
    run.end(1)
    run.advance(WAIT)
    assert run.operator.worked == 5
    assert len(run.operator.told(Arrive)) == 3
    run.finish()


def test_rows_do_not_wait_when_nothing_is_left_to_do(play: Callable[..., Play]) -> None:
    def at_work(number: int) -> None:
        if number == 1:
            run.send([left(1)], rest=False)

    run = play(work=3, patience=100, at_work=at_work)
    run.send([left(1)], [right(1)])
    run.advance(WAIT)
    assert run.operator.worked == 2, "the third poll leaves nothing to do"
    assert [batch.num_rows for batch in run.operator.arrived(0)] == [1, 1]
    assert run.operator.told(End) == []
    run.finish()


def test_reactive_work_is_left_alone_without_a_stall() -> None:
    bench = Bench([left(i) for i in range(5)], [right(1)], work=5)
    list(bench.run)
    assert not any(status is Status.HAS_WORK for _, status in bench.operator.polls())


def test_a_source_that_raises_is_named_after_the_results_so_far(play: Callable[..., Play]) -> None:
    run = play()
    run.send(rights=[right(1), right(2)])
    run.feeds[0].send(left(1, 2), OSError("the line went dead"))
    with pytest.raises(SourceError, match=r"left broke off after 2 rows: OSError: the line went dead") as caught:
        run.finish()
    assert run.rows == 2
    assert isinstance(caught.value.__cause__, OSError)
    assert run.operator.closed
    assert not run.bench.run.progress().done


def test_a_source_error_passes_as_it_is() -> None:
    error = SourceError("orders.csv: row 7 has 3 columns instead of 2")
    bench = Bench([error], [right(1)])
    with pytest.raises(SourceError) as caught:
        list(bench.run)
    assert caught.value is error


def test_a_schema_that_cannot_be_had_is_an_error() -> None:
    bench = Bench([], [])
    bench.sources[1].schema = lambda: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="right broke off after 0 rows: ZeroDivisionError"):
        list(bench.run)


def test_a_late_schema_is_waited_for() -> None:
    known, seen = threading.Event(), []

    def observe(progress: Progress) -> None:
        seen.append(progress.phase)
        if seen.count("waiting for schemas") == 3:
            known.set()

    bench = Bench([left(1)], [right(1)], schema_after=known, observe=observe)
    assert bench.run.progress().phase == "not started"
    assert sum(batch.num_rows for batch in bench.run) == 1
    assert seen.count("waiting for schemas") >= 3


@pytest.mark.parametrize("way", ["break", "close", "interrupt", "forget"])
def test_leaving_early_leaves_nothing(way: str, tmp_path) -> None:
    forever = (right(i % 7) for i in range(10**9))
    store = FileStore(tmp_path)
    bench = Bench([left(1), left(2)], forever, store=store)
    assert list(tmp_path.iterdir())
    if way == "break":
        for _ in bench.run:
            break
    elif way == "close":
        batches = iter(bench.run)
        next(batches)
        bench.run.close()
        assert list(batches) == []
    elif way == "interrupt":

        def interrupted() -> None:
            for _ in bench.run:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
    else:
        next(iter(bench.run))
        del bench.run
    gc.collect()
    until(lambda: not readers(), "the readers end")
    assert bench.operator.closed
    assert all(source.closed for source in bench.sources)
    assert not list(tmp_path.iterdir())


def test_a_reader_that_is_stuck_does_not_hold_up_the_end() -> None:
    go_on, back = threading.Event(), threading.Event()

    def stuck() -> None:
        go_on.wait(PATIENCE)
        back.set()

    bench = Bench([left(1), stuck], [right(1), right(1)])
    for _ in bench.run:
        break
    assert not back.is_set(), "the end waited for the reader"
    assert bench.operator.closed
    go_on.set()


def test_another_thread_that_closes_waits_until_the_operator_is_at_rest() -> None:
    closers: list[threading.Thread] = []

    def close_elsewhere() -> None:
        if not closers:
            closers.append(threading.Thread(target=bench.run.close))
            closers[0].start()
            until(lambda: bench.run.progress().phase == "closed", "it is being closed")
            closers[0].join(0.05)
            assert not bench.operator.closed

    bench = Bench([left(1), left(1)], [right(1), right(1)], chunk=1, at_poll=close_elsewhere)
    list(bench.run)
    closers[0].join()
    assert bench.operator.closed
    assert len(bench.operator.polls()) == 1
    assert not bench.run.done


def test_a_run_that_was_closed_cannot_be_started() -> None:
    bench = Bench([left(1)], [right(1)])
    bench.run.close()
    assert [source.closed for source in bench.sources] == [1, 1]
    with pytest.raises(Exception, match="closed"):
        list(bench.run)


def is_full_or_ended(inbox: Inbox) -> bool:
    """Whether a reader can do nothing more before rows are worked off."""
    return inbox.presses or inbox.ended


def test_the_queues_are_bounded_by_bytes() -> None:
    wide = pa.record_batch({"id": pa.array(range(5000), pa.int64()), "l": pa.array(range(5000), pa.int64())}, LEFT)
    bench = Bench([wide] * 100, [right(1)], memory=1 << 20)
    batches = iter(bench.run)
    bench.run.operator()
    # The consumer is away; the reader must not read everything meanwhile.
    until(lambda: is_full_or_ended(bench.run._inboxes[0]), "the reader waits for room")
    assert bench.sources[0].given < 10
    progress = bench.run.progress()
    assert 0 < progress.memory <= queue_bytes(1 << 20)
    assert bench.memory_given == (1 << 20) - queue_bytes(1 << 20)
    list(batches)
    assert bench.run.progress().rows_in == (500_000, 1)
    assert bench.run.progress().peak <= 1 << 20


@pytest.mark.parametrize(("rows", "most"), [(1, MAX_ROWS // (1 + BATCH_ROWS)), (1000, MAX_ROWS // 1000)])
def test_the_queues_are_bounded_by_rows_and_batches(rows: int, most: int) -> None:
    batch = left(*range(rows))
    bench = Bench([batch] * 10_000, [], memory=4 << 30)
    bench.run.operator()
    until(lambda: is_full_or_ended(bench.run._inboxes[0]), "the reader waits for room")
    assert most // 2 < bench.sources[0].given <= most
    bench.run.close()


def test_many_small_batches_reach_the_operator_as_few_in_order() -> None:
    def wait_for_more() -> None:
        until(lambda: is_full_or_ended(bench.run._inboxes[0]), "the reader is ahead of the operator")

    bench = Bench([left(i) for i in range(20_000)], [], at_poll=wait_for_more)
    list(bench.run)
    arrivals = bench.operator.arrived(0)
    assert pa.Table.from_batches(arrivals)["id"].to_pylist() == list(range(20_000))
    assert len(arrivals) < 200


def test_batches_that_arrow_cannot_put_together_pass_one_by_one() -> None:
    kind = pa.dictionary(pa.int8(), pa.int64())
    inbox = Inbox(Given("left", LEFT, []), Bell(), MEMORY)
    for start in (0, 100):  # together too many values for indices of eight bits
        values = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), pa.array(range(start, start + 100)))
        inbox.pieces.append((pa.record_batch([values.cast(kind)], ["id"]), 900, 100))
    taken = inbox.take()
    assert [value for batch, _, _ in taken for value in batch["id"].to_pylist()] == list(range(200))


def test_one_slow_row_at_a_time_is_not_delayed(play: Callable[..., Play]) -> None:
    run = play()
    run.send(rights=[right(*range(10))])
    for i in range(10):
        run.send([left(i)])  # and no time passes: it is there because it came
        assert [batch["id"].to_pylist() for batch in run.operator.arrived(0)] == [[n] for n in range(i + 1)]
        assert run.rows == i + 1
    run.finish()


def test_progress_is_observed_while_waiting_and_at_the_end(play: Callable[..., Play]) -> None:
    seen: list[Progress] = []
    run = play(observe=seen.append)
    run.advance(0.25)
    run.send([left(1)], [right(1)])
    before = len(seen)
    for _ in range(8):
        run.advance(0.25)
    assert len(seen) == before + 8, "a look each time that enough time has passed"
    run.finish()
    assert seen[-1].done
    assert seen[-1].rows_in == (1, 1)
    assert seen[-1].rows_out == 1
    assert seen[-1].phase == "done"
    assert seen[-1].algorithm == "simple"
    assert seen[-1].reason == "it is a test"
    assert seen[-1].first_result_after == 0.25
    assert seen[-1].elapsed == 9 * 0.25
    assert [p.elapsed for p in seen] == sorted(p.elapsed for p in seen)


def test_an_observer_may_close_the_run() -> None:
    over, back = threading.Event(), threading.Event()

    def observe(progress: Progress) -> None:
        if progress.rows_out:
            bench.run.close()

    def silence() -> None:
        over.wait(PATIENCE)
        back.set()

    bench = Bench([left(1), silence], [right(1), silence], observe=observe)
    assert sum(batch.num_rows for batch in bench.run) == 1
    assert not back.is_set(), "the end waited for a source"
    over.set()


def test_an_operator_that_asks_for_more_after_the_end_is_an_error() -> None:
    bench = Bench([], [])
    bench.run.operator().poll = lambda now, fuel: Step(None, Status.NEED_INPUT, Cost())  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="SimpleJoin asks for input although all inputs have ended"):
        list(bench.run)


@pytest.mark.parametrize("wait", [-1, float("nan")])
def test_a_wait_that_is_none_is_refused(wait: float) -> None:
    with pytest.raises(SpecError, match="wait"):
        Bench([], [], wait=wait)
