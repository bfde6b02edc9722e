"""The live driver: who waits for whom, what the operator is told, and what is left when a run ends early."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.cost import Cost
from watersmeet.core.errors import ProtocolError, SourceError, SpecError
from watersmeet.core.protocol import Arrive, End, Event, PlainOperator, Stall, Status, Step
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.drivers.inbox import BATCH_ROWS, MAX_ROWS, Bell, Inbox
from watersmeet.drivers.live import LiveRun, queue_bytes
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
    many polls of reactive work.
    """

    name = "simple"
    reason = "it is a test"
    patience = 0

    def __init__(self, spec: JoinSpec, memory: int, store: Store, chunk: int = 1 << 30, work: int = 0) -> None:
        self.spec, self.store, self.chunk, self.work = spec, store, chunk, work
        self.budget = Budget(memory)
        self.events: list[tuple[float, Event]] = []
        self.polls: list[tuple[float, int, Status]] = []
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
        self.events.append((time.monotonic(), event))
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
        if self.left_to_do:
            time.sleep(0.001)
        self.polls.append((now, fuel, self.status))
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

    def told(self, kind: type[Event]) -> list[float]:
        """When the operator was told events of a kind."""
        return [at for at, event in self.events if isinstance(event, kind)]


class Given:
    """A source of given batches; a number among them is a pause in seconds, an exception is raised, a call is made."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        items: Iterable[pa.RecordBatch | float | Exception | Callable[[], object]],
        schema_after: float = 0,
    ) -> None:
        self.name, self.items, self.schema_after, self._schema = name, items, schema_after, schema
        self.closed = 0
        self.given = 0

    def schema(self) -> pa.Schema:
        time.sleep(self.schema_after)
        return self._schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        for item in self.items:
            if isinstance(item, pa.RecordBatch):
                self.given += 1
                yield item
            elif isinstance(item, Exception):
                raise item
            elif callable(item):
                item()
            else:
                time.sleep(item)

    def close(self) -> None:
        self.closed += 1


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
        wait: float = 0.025,
        schema_after: float = 0,
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
            self.operator.patience = patience
            return self.operator

        self.run = LiveRun(self.sources, build, memory, wait=wait, observe=observe, every=0.02)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("watersmeet-read-")]


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Does it become true in time?"""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    assert within(3, lambda: not readers())
    yield
    assert within(3, lambda: not readers()), readers()


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
    told = [event for _, event in bench.operator.events if isinstance(event, Arrive | End) and event.input == 0]
    assert isinstance(told[-1], End)
    assert sum(event.batch.num_rows for event in told[:-1] if isinstance(event, Arrive)) == 50


def test_a_silent_side_does_not_hold_up_the_other() -> None:
    go_on = threading.Event()
    bench = Bench([left(1), lambda: go_on.wait(10)], [right(1), *(right(i) for i in range(100)), 0.05, right(1)])
    batches = iter(bench.run)
    first, second = next(batches), next(batches)
    assert first.num_rows + second.num_rows >= 2
    assert not go_on.is_set()
    go_on.set()
    list(batches)


def test_a_result_is_handed_out_while_both_sides_are_silent() -> None:
    go_on = threading.Event()
    bench = Bench([left(1), lambda: go_on.wait(10)], [right(1), lambda: go_on.wait(10)])
    batches = iter(bench.run)
    assert next(batches).num_rows == 1
    go_on.set()
    assert list(batches) == []


def test_silence_is_a_stall_after_the_wait_and_only_once() -> None:
    bench = Bench([left(1), 0.4], [right(1), 0.4], wait=0.1)
    list(bench.run)
    (stall,) = bench.operator.told(Stall)
    last_arrival = max(bench.operator.told(Arrive))
    assert 0.1 <= stall - last_arrival < 0.35


def test_no_stall_while_one_side_delivers() -> None:
    bench = Bench([0.3], [item for i in range(30) for item in (right(i), 0.01)], wait=0.2)
    list(bench.run)
    assert bench.operator.told(Stall) == []


def test_a_side_that_ended_counts_as_silent() -> None:
    bench = Bench([left(1)], [right(1), 0.3], wait=0.05)
    list(bench.run)
    assert len(bench.operator.told(Stall)) == 1


def test_new_rows_end_reactive_work_within_one_poll() -> None:
    handed: list[float] = []
    bench = Bench([left(1), 0.15, lambda: handed.append(time.monotonic()), left(1)], [right(1), 0.3], work=10**9)
    list(bench.run)
    operator = bench.operator
    arrived = operator.told(Arrive)[-1]
    reactive = [at for at, _, status in operator.polls if status is Status.HAS_WORK]
    assert len(reactive) > 10
    during = [at for at in reactive if handed[0] + 0.002 < at < arrived]
    assert len(during) <= 2
    assert arrived - handed[0] < 0.1
    assert {fuel for _, fuel, status in operator.polls if status is Status.HAS_WORK} < {
        fuel for _, fuel, _ in operator.polls
    }


def test_some_rows_wait_for_an_operator_that_lets_them() -> None:
    some = [item for _ in range(6) for item in (left(1), 0.05)]
    bench = Bench([left(1), 0.15, *some], [right(1), 0.6], work=10**9, patience=3)
    list(bench.run)
    arrived = [event for _, event in bench.operator.events if isinstance(event, Arrive) and event.input == 0]
    assert arrived[0].batch.num_rows == 1
    assert arrived[1].batch.num_rows >= 4, "three rows waited, and came with the fourth"
    assert sum(each.batch.num_rows for each in arrived) == 7


def test_rows_do_not_wait_when_all_have_come_or_nothing_is_left_to_do() -> None:
    bench = Bench([left(1), 0.15, left(1)], [right(1)], work=10**9, patience=100)
    list(bench.run)
    assert len(bench.operator.told(Arrive)) == 3
    idle = Bench([left(1), 0.15, left(1), 0.3], [right(1), 0.5], work=3, patience=100)
    list(idle.run)
    told = idle.operator.told(Arrive)
    assert told[2] < idle.operator.told(End)[0] - 0.1


def test_reactive_work_is_left_alone_without_a_stall() -> None:
    bench = Bench([left(i) for i in range(5)], [right(1)], work=5)
    list(bench.run)
    assert not any(status is Status.HAS_WORK for _, _, status in bench.operator.polls)


def test_a_source_that_raises_is_named_after_the_results_so_far() -> None:
    bench = Bench([left(1, 2), 0.05, OSError("the line went dead")], [right(1), right(2), 0.2])
    found: list[pa.RecordBatch] = []
    with pytest.raises(SourceError, match=r"left broke off after 2 rows: OSError: the line went dead") as caught:
        found.extend(bench.run)
    assert sum(batch.num_rows for batch in found) == 2
    assert isinstance(caught.value.__cause__, OSError)
    assert bench.operator.closed
    assert not bench.run.progress().done


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
    bench = Bench([left(1)], [right(1)], schema_after=0.2)
    assert bench.run.progress().phase == "not started"
    assert sum(batch.num_rows for batch in bench.run) == 1


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
    assert within(1, lambda: not readers()), readers()
    assert bench.operator.closed
    assert all(source.closed for source in bench.sources)
    assert not list(tmp_path.iterdir())


def test_a_reader_that_is_stuck_does_not_hold_up_the_end() -> None:
    go_on = threading.Event()
    bench = Bench([left(1), lambda: go_on.wait(30)], [right(1), 0.02, right(1)])
    start = time.monotonic()
    for _ in bench.run:
        break
    assert time.monotonic() - start < 2
    assert bench.operator.closed
    go_on.set()


def test_a_run_that_was_closed_cannot_be_started() -> None:
    bench = Bench([left(1)], [right(1)])
    bench.run.close()
    assert [source.closed for source in bench.sources] == [1, 1]
    with pytest.raises(Exception, match="closed"):
        list(bench.run)


def test_the_queues_are_bounded_by_bytes() -> None:
    wide = pa.record_batch({"id": pa.array(range(5000), pa.int64()), "l": pa.array(range(5000), pa.int64())}, LEFT)
    bench = Bench([wide] * 100, [right(1), lambda: time.sleep(0.3)], memory=1 << 20)
    batches = iter(bench.run)
    bench.run.operator()
    time.sleep(0.2)  # the consumer is away; the reader must not read everything meanwhile
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
    assert within(5, lambda: bench.sources[0].given > most // 2)
    time.sleep(0.1)
    assert bench.sources[0].given <= most
    bench.run.close()


def test_many_small_batches_reach_the_operator_as_few_in_order() -> None:
    bench = Bench([left(i) for i in range(20_000)], [])
    list(bench.run)
    arrivals = [event.batch for _, event in bench.operator.events if isinstance(event, Arrive)]
    assert pa.Table.from_batches(arrivals)["id"].to_pylist() == list(range(20_000))
    assert len(arrivals) < 2_000


def test_batches_that_arrow_cannot_put_together_pass_one_by_one() -> None:
    kind = pa.dictionary(pa.int8(), pa.int64())
    inbox = Inbox(Given("left", LEFT, []), Bell(), MEMORY)
    for start in (0, 100):  # together too many values for indices of eight bits
        values = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), pa.array(range(start, start + 100)))
        inbox.pieces.append((pa.record_batch([values.cast(kind)], ["id"]), 900, 100))
    taken = inbox.take()
    assert [value for batch, _, _ in taken for value in batch["id"].to_pylist()] == list(range(200))


def test_one_slow_row_at_a_time_is_not_delayed() -> None:
    sent: list[float] = []
    items = [item for i in range(10) for item in (0.02, lambda: sent.append(time.monotonic()), left(i))]
    bench = Bench(items, [right(*range(10))])
    list(bench.run)
    arrived = [at for at, event in bench.operator.events if isinstance(event, Arrive) and event.input == 0]
    assert len(arrived) == len(sent) == 10
    assert sorted(a - s for a, s in zip(arrived, sent, strict=True))[5] < 0.02


def test_progress_is_observed_while_waiting_and_at_the_end() -> None:
    seen: list[Progress] = []
    bench = Bench([left(1), 0.2], [right(1), 0.2], observe=seen.append)
    list(bench.run)
    assert len(seen) >= 4
    assert seen[-1].done
    assert seen[-1].rows_in == (1, 1)
    assert seen[-1].rows_out == 1
    assert seen[-1].phase == "done"
    assert seen[-1].algorithm == "simple"
    assert seen[-1].reason == "it is a test"
    assert seen[-1].first_result_after is not None
    assert 0 < seen[-1].first_result_after <= seen[-1].elapsed
    assert [p.elapsed for p in seen] == sorted(p.elapsed for p in seen)


def test_an_observer_may_close_the_run() -> None:
    def observe(progress: Progress) -> None:
        if progress.rows_out:
            bench.run.close()

    bench = Bench([left(1), 2.0], [right(1), 2.0], observe=observe)
    start = time.monotonic()
    assert sum(batch.num_rows for batch in bench.run) == 1
    assert time.monotonic() - start < 2


def test_an_operator_that_asks_for_more_after_the_end_is_an_error() -> None:
    bench = Bench([], [])
    bench.run.operator().poll = lambda now, fuel: Step(None, Status.NEED_INPUT, Cost())  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="SimpleJoin asks for input although all inputs have ended"):
        list(bench.run)


@pytest.mark.parametrize("wait", [-1, float("nan")])
def test_a_wait_that_is_none_is_refused(wait: float) -> None:
    with pytest.raises(SpecError, match="wait"):
        Bench([], [], wait=wait)
