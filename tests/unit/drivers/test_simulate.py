"""Virtual time, by hand: every number here can be worked out on paper. Powers of two keep the sums exact."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.checks.oracle.nested_loops import ReferenceJoin, reference_pairs
from watersmeet.core.cost import Cost
from watersmeet.core.errors import ProtocolError, SpecError
from watersmeet.core.protocol import Arrive, End, PlainOperator, Punctuate, Stall, Status, Step
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.drivers.cost_model import FREE, CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.drivers.trace import Recorder, Sample, Trace, plot_traces
from watersmeet.memory import Budget
from watersmeet.sources.schedules import Schedule, bursts
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64()})
PAIRS = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), output=Output.PAIRS)
HALF = replace(FREE, move=0.5)
"""A machine that needs half a second for each row, and for nothing else."""


def arrivals(*inputs: tuple[list[float], list[int]]) -> Schedule:
    """A schedule from the times and the keys of each input."""
    return Schedule(
        [pa.table({"id": pa.array(keys, pa.int64())}) for _, keys in inputs],
        [np.array(times, dtype=np.float64) for times, _ in inputs],
    )


class DictJoin(PlainOperator):
    """A symmetric hash join over dictionaries that writes down what it is told and when it is polled.

    Each row leaves `chores` units of reactive work behind; a unit reads one page at random.
    """

    name = "dict"

    def __init__(self, chores: int = 0, wakes: list[float] | None = None) -> None:
        self.spec = PAIRS
        self.phase = "arriving"
        self.budget = Budget(1 << 20)
        self.log: list[tuple[str, float]] = []
        self.received: list[tuple[int, list[int]]] = []
        self._rows = self.budget.reservation("rows")
        self._chores = chores
        self._todo = 0
        self._wakes = list(wakes or [])
        self._events: list[str] = []
        self._pending: list[tuple[int, int]] = []
        self._seen = (defaultdict(list), defaultdict(list))
        self._count = [0, 0]
        self._open = {0, 1}

    def receive(self, event: Arrive | Stall | End | Punctuate) -> None:
        self._events.append(type(event).__name__)
        match event:
            case Arrive(side, batch):
                assert not self._pending, "rows were handed over before the last ones were worked off"
                assert side in self._open
                assert batch.schema.equals(SCHEMA)
                assert batch.num_rows > 0
                self.received.append((side, batch["id"].to_pylist()))
                self._pending = [(side, key) for key in batch["id"].to_pylist()]
                self.phase = "arriving"
            case Stall():
                self.phase = "reactive"
            case End(side):
                self._open.remove(side)
                if not self._open:
                    self.phase = "clean-up"

    def poll(self, now: float, fuel: int) -> Step:
        self.log += [(name, now) for name in self._events or ["poll"]]
        self._events = []
        if self._wakes and self._wakes[0] <= now:
            self._wakes.pop(0)
        if self._pending:
            return self._work_off(fuel)
        if self._todo and self.phase != "arriving":
            units = min(fuel, self._todo)
            self._todo -= units
            return Step(None, self._status(), Cost(pages_read=units, seeks=units))
        return Step(None, self._status(), Cost())

    def _work_off(self, fuel: int) -> Step:
        rows, self._pending = self._pending[:fuel], self._pending[fuel:]
        pairs: list[tuple[int, int]] = []
        for side, key in rows:
            number = self._count[side]
            self._count[side] += 1
            pairs += [(other, number) if side else (number, other) for other in self._seen[1 - side][key]]
            self._seen[side][key].append(number)
        self._todo += self._chores * len(rows)
        self._rows.grow(8 * len(rows))
        out = pa.RecordBatch.from_pylist([{"left": l, "right": r} for l, r in pairs], PAIRS.schema) if pairs else None
        cost = Cost(hashes=len(rows), inserts=len(rows), probes=len(rows), comparisons=len(pairs), results=len(pairs))
        return Step(out, self._status(), cost)

    def _status(self) -> Status:
        if self._pending:
            return Status.HAS_OUTPUT
        if self._todo:
            return Status.HAS_WORK
        if self._open:
            return Status.NEED_INPUT
        self.phase = "done"
        return Status.DONE

    def wake_at(self) -> float | None:
        return self._wakes[0] if self._wakes else None

    def check(self) -> None:
        self.budget.check()


def pairs_of(trace: Trace) -> list[tuple[int, int]]:
    return [(row["left"], row["right"]) for batch in trace.batches for row in batch.to_pylist()]


def events(join: DictJoin) -> list[tuple[str, float]]:
    return [(name, time) for name, time in join.log if name != "poll"]


# The clock


def test_each_step_is_charged_to_the_clock_and_idle_time_is_skipped() -> None:
    join = DictJoin()
    schedule = arrivals(([1.0, 5.0], [7, 7]), ([1.25, 8.0], [7, 9]))
    trace = simulate(join, schedule, cost=HALF, wait=100, quantum=0)
    assert events(join) == [
        ("Arrive", 1.0),
        ("Arrive", 1.5),  # due at 1.25, but the first row keeps the operator busy until 1.5
        ("Arrive", 5.0),
        ("End", 5.5),  # due at 5.0, the same time as its last row
        ("Arrive", 8.0),
        ("End", 8.5),
    ]
    assert trace.time.tolist() == [0.0, 1.5, 2.0, 5.5, 8.5, 8.5, 8.5]
    assert trace.results.tolist() == [0, 0, 1, 2, 2, 2, 2]
    assert trace.memory.tolist() == [0, 8, 16, 24, 32, 32, 32]
    assert trace.input_buffer.tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert trace.phase.tolist() == ["arriving"] * 5 + ["clean-up", "done"]
    assert (trace.cpu[-1], trace.disk[-1]) == (2.0, 0.0)
    assert (trace.total, trace.online, trace.online_share) == (2, 2, 1.0)
    assert (trace.first_result, trace.end, trace.last_arrival) == (2.0, 8.5, 8.0)
    assert (trace.peak_memory, trace.peak_input_buffer) == (32, 1)
    assert trace.cost == Cost(hashes=4, inserts=4, probes=4, comparisons=2, results=2)


def test_results_at_and_time_of_read_the_staircase() -> None:
    trace = simulate(DictJoin(), arrivals(([1.0, 5.0], [7, 7]), ([1.25, 8.0], [7, 7])), cost=HALF, wait=100, quantum=0)
    assert trace.results.tolist()[-1] == 4
    assert [trace.results_at(t) for t in (-1.0, 1.99, 2.0, 5.5, 8.4, 8.5, 99.0)] == [0, 0, 1, 2, 2, 4, 4]
    assert [trace.time_of(share) for share in (0.25, 0.5, 0.51, 1.0)] == [2.0, 5.5, 8.5, 8.5]
    assert trace.online == 2, "those of the very last row are not online"
    with pytest.raises(SpecError, match="share=0"):
        trace.time_of(0)


def test_the_cost_model_tells_cpu_from_disk_and_random_from_sequential() -> None:
    model = CostModel(hash=1, move=2, comparison=4, probe=8, result=16, random_page=100, sequential_page=10)
    assert model.seconds(Cost(1, 1, 1, 1, 1)) == (31, 0)
    assert model.seconds(Cost(pages_read=3, pages_written=2, seeks=2)) == (0, 2 * 100 + 3 * 10)
    assert CostModel().seconds(Cost(hashes=1, inserts=1, comparisons=1))[0] == pytest.approx(6.511e-7)
    assert CostModel().seconds(Cost(pages_written=100, seeks=1))[1] == pytest.approx(0.02)
    assert FREE.seconds(Cost(9, 9, 9, 9, 9, 9, 9, 9)) == (0, 0)
    with pytest.raises(SpecError, match="bandwidth"):
        model.with_disk(seek=1, latency=1, bandwidth=0, page=1)


def test_of_events_at_one_time_arrivals_come_first_and_inputs_take_turns() -> None:
    join = DictJoin()
    simulate(join, arrivals(([1.0, 1.0], [10, 11]), ([1.0, 1.0, 1.0], [20, 21, 22])), cost=FREE, quantum=0)
    assert join.received == [(0, [10]), (1, [20]), (0, [11]), (1, [21]), (1, [22])]
    assert [name for name, _ in events(join)] == ["Arrive"] * 5 + ["End", "End"]


def test_an_input_may_be_empty_or_end_long_before_the_other() -> None:
    join = DictJoin()
    trace = simulate(join, arrivals(([], []), ([3.0, 9.0], [1, 1])), cost=HALF, wait=100)
    assert events(join) == [("End", 0.0), ("Arrive", 3.0), ("Arrive", 9.0), ("End", 9.5)]
    assert (trace.total, trace.end, trace.online_share, trace.first_result) == (0, 9.5, 1.0, None)
    assert np.isnan(trace.time_of(1.0))
    empty = simulate(DictJoin(), arrivals(([], []), ([], [])))
    assert (empty.total, empty.end, empty.last_arrival) == (0, 0.0, 0.0)
    assert "0 results in 0 s" in str(empty)


# The input buffer


def test_the_input_buffer_grows_while_the_cpu_is_too_slow() -> None:
    times = [i * 0.25 for i in range(16)]  # four rows a second; the machine does two
    trace = simulate(DictJoin(), arrivals((times, [1] * 16), ([], [])), cost=HALF, quantum=0)
    # Row i is worked off at (i + 1) / 2; by then 2 (i + 1) + 1 rows have come, at most 16.
    expected = [min(16, 2 * (i + 1) + 1) - (i + 1) for i in range(16)]
    assert trace.input_buffer.tolist()[1:-2] == expected
    assert trace.peak_input_buffer == max(expected) == 8
    assert trace.end == 8.0


def test_rows_that_wait_for_their_quantum_do_not_count_as_waiting_for_the_operator() -> None:
    times = [i / 8 for i in range(64)]
    schedule = arrivals((times, [1] * 64), ([t + 1 / 16 for t in times], [2] * 64))
    quick = simulate(DictJoin(), schedule, cost=FREE, wait=10, quantum=1.0)
    assert quick.peak_input_buffer == 0
    # Batches of 8 + 8 rows take 8 seconds each second: nearly all rows come while the operator is busy.
    slow = simulate(DictJoin(), schedule, cost=HALF, wait=10, quantum=1.0)
    exact = simulate(DictJoin(), schedule, cost=HALF, wait=10, quantum=0)
    assert exact.peak_input_buffer > 90
    assert abs(slow.peak_input_buffer - exact.peak_input_buffer) <= 16


# Stalls


def test_a_stall_comes_when_the_wait_is_over_and_reactive_work_ends_with_the_next_arrival() -> None:
    join = DictJoin(chores=100)
    model = replace(FREE, random_page=0.25)
    schedule = arrivals(([0.0, 4.0], [1, 2]), ([1.0, 4.0], [1, 2]))
    trace = simulate(join, schedule, cost=model, wait=1.0, quantum=0, reactive_fuel=1, fuel=1000)
    assert ("Stall", 1.0) not in join.log, "an arrival at the very end of the wait breaks the silence"
    assert [time for name, time in join.log if name == "Stall"] == [2.0]
    reactive = [time for name, time in join.log if name == "poll" and time < 4]
    assert reactive == [2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75]
    assert ("Arrive", 4.0) in join.log
    assert trace.results_at(1.0) == 1
    assert trace.end == 4.0 + (400 - 8) * 0.25
    starts = trace.time[np.flatnonzero(trace.phase[1:] != trace.phase[:-1]) + 1]
    assert starts.tolist() == [2.0, 4.0, 4.0, trace.end], "reactive, arriving, clean-up, done"
    assert (trace.cost.pages_read, trace.cost.seeks, trace.disk[-1]) == (400, 400, 100.0)


def test_reactive_work_overshoots_by_one_poll_at_most() -> None:
    join = DictJoin(chores=100)
    model = replace(FREE, random_page=2.0)
    simulate(join, arrivals(([0.0, 4.0], [1, 2]), ([], [])), cost=model, wait=1.0, reactive_fuel=1)
    assert join.log[:6] == [
        ("Arrive", 0.0),
        ("End", 0.0),
        ("Stall", 1.0),
        ("poll", 3.0),
        ("Arrive", 5.0),  # due at 4.0
        ("End", 5.0),
    ]


def test_there_is_no_stall_before_the_first_row_after_the_last_or_twice_in_a_silence() -> None:
    join = DictJoin()
    simulate(join, arrivals(([10.0, 20.0], [1, 2]), ([10.0], [1])), cost=FREE, wait=1.0)
    assert [time for name, time in join.log if name == "Stall"] == [11.0]


def test_a_busy_operator_hears_of_a_stall_when_it_is_free_or_not_at_all() -> None:
    join = DictJoin()
    schedule = arrivals(([0.0, 8.0, 11.0], [1, 2, 3]), ([], []))
    simulate(join, schedule, cost=replace(FREE, move=4.0), wait=1.0)
    # Busy from 0 to 4: told late. Busy from 8 to 12: the row of 11.0 waits already.
    assert [entry for entry in events(join) if entry[0] != "End"] == [
        ("Arrive", 0.0),
        ("Stall", 4.0),
        ("Arrive", 8.0),
        ("Arrive", 12.0),
    ]


def test_reactive_work_stops_for_a_row_that_still_waits_for_its_quantum() -> None:
    join = DictJoin(chores=100)
    schedule = arrivals(([0.0, 4.0, 4.5], [1, 2, 3]), ([], []))
    model = replace(FREE, random_page=0.5)
    simulate(join, schedule, cost=model, wait=1.0, quantum=4.0, reactive_fuel=1)
    assert max(time for name, time in join.log if name == "poll" and time < 4.5) == 3.5
    assert join.received == [(0, [1]), (0, [2, 3])]
    assert ("Arrive", 4.5) in join.log


# Batches


def test_a_batch_is_a_quantum_of_one_input_and_never_spans_a_silence() -> None:
    join = DictJoin()
    schedule = arrivals(([0.0, 0.5, 1.0, 1.5, 6.0, 7.5], [1, 2, 3, 4, 5, 6]), ([0.25, 3.0], [7, 8]))
    simulate(join, schedule, cost=FREE, wait=2.0, quantum=8.0)
    # 3.0 -> 6.0 is a silence of both inputs; 0.25 -> 3.0 is one of the second input alone.
    assert join.received == [(0, [1, 2, 3, 4]), (1, [7, 8]), (0, [5, 6])]
    assert [entry for entry in events(join) if entry[0] != "End"] == [
        ("Arrive", 1.5),
        ("Arrive", 3.0),
        ("Stall", 5.0),
        ("Arrive", 7.5),
    ]


def test_a_batch_is_never_larger_than_an_operator_likes() -> None:
    join = DictJoin()
    simulate(join, arrivals(([0.5] * 20_000, [1] * 20_000), ([], [])), cost=FREE, quantum=1.0)
    assert [len(rows) for _, rows in join.received] == [8192, 8192, 3616]


def test_slices_are_views_of_tables_in_any_number_of_chunks() -> None:
    schedule = arrivals(([0.0, 1.0, 2.0, 3.0], [1, 2, 3, 4]), ([], []))
    whole, empty = schedule.inputs
    schedule = Schedule([pa.concat_tables([whole.slice(0, 1), whole.slice(1)]), empty], schedule.times)
    assert schedule.inputs[0]["id"].num_chunks == 2
    join = DictJoin()
    simulate(join, schedule, cost=FREE, wait=9, quantum=2.0)
    assert join.received == [(0, [1, 2]), (0, [3, 4])]


def test_a_punctuation_follows_all_rows_that_arrived_before_it_and_precedes_the_end() -> None:
    join = DictJoin()
    schedule = arrivals(([0.0, 1.0, 2.0], [1, 2, 3]), ([], []))
    promises = [(1.0, Punctuate(0, {"id": 2})), (5.0, Punctuate(0, {"id": 3}))]
    simulate(join, schedule, cost=FREE, wait=9, quantum=8.0, punctuations=promises)
    assert join.received == [(0, [1, 2]), (0, [3])]
    assert [entry for entry in events(join) if entry != ("End", 0.0)] == [
        ("Arrive", 1.0),
        ("Punctuate", 1.0),
        ("Arrive", 2.0),
        ("Punctuate", 5.0),
        ("End", 5.0),
    ]


def test_the_operator_is_woken_when_it_asks() -> None:
    join = DictJoin(wakes=[2.5, 3.0, 3.25])
    simulate(join, arrivals(([1.0, 3.0, 9.0], [1, 2, 3]), ([], [])), cost=HALF, wait=100)
    assert [time for name, time in join.log if name == "poll"] == [2.5, 3.5], "3.0 is met by the row at that time"


def test_an_operator_that_always_wants_to_be_woken_keeps_nobody_waiting() -> None:
    class Restless(DictJoin):
        """Has work at any time, a page of 7 ms at each poll."""

        def poll(self, now: float, fuel: int) -> Step:
            self._now = now
            step = super().poll(now, fuel)
            return step if step.cost.inserts or not self._open else replace(step, cost=Cost(pages_read=1, seeks=1))

        def wake_at(self) -> float | None:
            return self._now

        _now = 0.0

    times = [i / 200 for i in range(400)]
    join = Restless()
    schedule = arrivals((times, [1] * 400), (times, [2] * 400))
    trace = simulate(join, schedule, cost=replace(FREE, random_page=0.007), wait=9, quantum=0)
    assert sum(name == "poll" for name, _ in join.log) > 200, "it was woken whenever no row waited"
    assert trace.peak_input_buffer <= 4, "rows wait for one page at most"


@given(
    left=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=30),
    right=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=30),
    quantum=st.sampled_from([0.0, 0.01, 0.1, 1.0, 100.0]),
    fuel=st.integers(1, 50),
    chores=st.integers(0, 2),
)
def test_quantum_and_fuel_change_the_times_but_never_the_pairs(
    left: list[tuple[int, int]], right: list[tuple[int, int]], quantum: float, fuel: int, chores: int
) -> None:
    sides = [([time / 100 for time, _ in sorted(side)], [key for _, key in sorted(side)]) for side in (left, right)]
    schedule = arrivals(*sides)
    trace = simulate(
        DictJoin(chores), schedule, quantum=quantum, fuel=fuel, reactive_fuel=1, collect=True, check=True, samples=16
    )
    expected = [(i, j) for i, a in enumerate(sides[0][1]) for j, b in enumerate(sides[1][1]) if a == b]
    assert Counter(pairs_of(trace)) == Counter(expected)
    assert trace.total == len(expected)
    assert trace.cost.inserts == len(left) + len(right)
    assert trace.cost.pages_read == chores * (len(left) + len(right))
    assert len(trace.time) <= 16
    assert np.all(np.diff(trace.time) >= 0)
    assert trace.end >= trace.last_arrival
    assert trace.end >= trace.cpu[-1] + trace.disk[-1] - 1e-9


def test_the_same_run_twice_gives_the_same_trace_to_the_last_bit() -> None:
    random = np.random.default_rng(5)
    sides = [(np.cumsum(random.exponential(0.01, 500)).tolist(), random.integers(0, 50, 500).tolist()) for _ in "lr"]
    joins = [DictJoin(chores=1), DictJoin(chores=1)]
    first, second = (simulate(join, arrivals(*sides), quantum=0.05) for join in joins)
    assert first.table().equals(second.table())
    assert joins[0].log == joins[1].log
    assert any(name == "Stall" for name, _ in joins[0].log)


# Real operators


def bursty(rows: int) -> Schedule:
    """Two inputs of random keys that now and then fall silent together."""
    random = np.random.default_rng(11)
    tables = [pa.table({"id": random.integers(0, rows // 4, rows)}) for _ in "lr"]
    return Schedule(tables, [bursts(rows, size=50, gap=0.001, pause=0.2, seed=seed) for seed in (1, 2)])


def test_the_oracle_itself_runs_in_virtual_time() -> None:
    schedule = bursty(200)
    trace = simulate(ReferenceJoin(PAIRS, 1 << 20, MemoryStore()), schedule, collect=True, check=True)
    assert Counter(pairs_of(trace)) == Counter(reference_pairs(*schedule.inputs, PAIRS))
    assert trace.online == 0, "nested loops wait for the end of both inputs"


@pytest.mark.parametrize("quantum", [0.0, 0.025, 1.0])
@pytest.mark.parametrize("algorithm", ["symmetric_hash", "xjoin"])
def test_real_joins_by_name_deliver_early_and_exactly_and_reproducibly(algorithm: str, quantum: float) -> None:
    schedule = bursty(500)
    first, second = (
        simulate(
            algorithm, schedule, on="id", memory="16 MiB", output="pairs", quantum=quantum, collect=True, check=True
        )
        for _ in range(2)
    )
    assert Counter(pairs_of(first)) == Counter(reference_pairs(*schedule.inputs, PAIRS))
    assert first.total == len(pairs_of(first)) > 1000
    assert first.online_share > 0.9
    assert 0 < first.peak_memory <= 16 << 20
    assert first.table().equals(second.table())
    assert simulate(algorithm, schedule, on="id", memory="16 MiB", quantum=quantum).total == first.total


# What is refused


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"wait": -1.0}, "wait=-1.0"),
        ({"quantum": float("nan")}, "quantum=nan"),
        ({"fuel": 0}, "fuel=0"),
        ({"reactive_fuel": 0}, "reactive_fuel=0"),
        ({"memory": 100}, "memory would have no effect"),
        ({"flush": "all"}, "flush would have no effect"),
        ({"samples": 3}, "at least 16 samples"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        simulate(DictJoin(), arrivals(([0.0], [1]), ([0.0], [1])), **wrong)


def test_a_schedule_of_another_join_is_refused() -> None:
    with pytest.raises(SpecError, match="the schedule has 1"):
        simulate(DictJoin(), arrivals(([0.0], [1])))
    with pytest.raises(SpecError, match="schedule is of type list; give a Schedule, of tables and the times of rows"):
        simulate("xjoin", [pa.table({"id": [1]})] * 2, on="id", memory="16 MiB")  # type: ignore[arg-type]
    other = Schedule([pa.table({"id": [1]}), pa.table({"key": [1]})], [np.zeros(1), np.zeros(1)])
    with pytest.raises(SpecError, match=r"input 1 .*\['key'\]"):
        simulate(DictJoin(), other)


def test_an_algorithm_by_name_needs_to_know_on_what_and_in_how_much_memory() -> None:
    schedule = arrivals(([0.0], [1]), ([0.0], [1]))
    with pytest.raises(SpecError, match="needs on="):
        simulate("symmetric_hash", schedule, memory="1 MiB")
    with pytest.raises(SpecError, match="needs memory="):
        simulate("symmetric_hash", schedule, on="id")
    with pytest.raises(SpecError, match="collect=True needs"):
        simulate("symmetric_hash", schedule, on="id", memory="16 MiB", collect=True)
    with pytest.raises(SpecError, match="joins 2 inputs"):
        simulate("symmetric_hash", arrivals(([0.0], [1])), on="id", memory="16 MiB")


def test_operators_that_would_hang_or_end_early_are_named() -> None:
    schedule = arrivals(([0.0], [1]), ([0.0], [1]))

    class Hasty(DictJoin):
        def _status(self) -> Status:
            return Status.DONE

    class Deaf(DictJoin):
        def _status(self) -> Status:
            return Status.NEED_INPUT

    class Sleepless(DictJoin):
        def wake_at(self) -> float | None:
            return 0.0

    with pytest.raises(ProtocolError, match="done, but 2 of its inputs"):
        simulate(Hasty(), schedule)
    with pytest.raises(ProtocolError, match="waits for input after the end"):
        simulate(Deaf(), schedule)
    with pytest.raises(ProtocolError, match="did nothing in 10,000 polls"):
        simulate(Sleepless(), arrivals(([1.0], [1]), ([], [])))


# The trace


def test_a_long_run_is_thinned_but_keeps_its_ends_its_phases_and_its_peak() -> None:
    recorder = Recorder(last_arrival=50_000.0, capacity=64)
    for i in range(100_000):
        phase = "arriving" if i < 30_000 else "reactive" if i < 30_010 else "clean-up"
        recorder.add(Sample(float(i), i, i, 999 if i == 12_345 else i % 7, 0, 0, 0, 0.0, 0.0, phase))
    trace = recorder.finish(Cost(results=99_999), peak_memory=99_999)
    assert len(trace.time) <= 64
    assert (trace.time[0], trace.time[-1]) == (0.0, 99_999.0)
    assert trace.input_buffer[trace.time == 12_345.0].tolist() == [999]
    assert (trace.peak_input_buffer, trace.online, trace.first_result) == (999, 49_999, 1.0)
    assert [trace.phase[trace.time == time].tolist() for time in (30_000, 30_010)] == [["reactive"], ["clean-up"]]
    gaps = np.diff(trace.time)
    assert gaps.max() < 100_000 / 64 * 8, "no stretch of the run is left without samples"
    assert np.array_equal(trace.results, trace.time), "each sample is exact"


def test_a_run_that_stalls_at_every_row_is_still_bounded() -> None:
    recorder = Recorder(last_arrival=0.0, capacity=64)
    for i in range(10_000):
        recorder.add(Sample(float(i), i, 0, 0, 0, 0, 0, 0.0, 0.0, ("arriving", "reactive")[i % 2]))
    trace = recorder.finish(Cost(results=9_999), peak_memory=0)
    assert 16 <= len(trace.time) <= 64
    assert np.diff(trace.time).max() < 10_000 / 64 * 16
    assert (trace.time[0], trace.time[-1]) == (0.0, 9_999.0)


def test_the_table_has_a_row_for_each_sample_and_the_text_fits_a_terminal() -> None:
    sides = ([i / 8 for i in range(200)], [i % 9 for i in range(200)])
    trace = simulate(DictJoin(chores=1), arrivals(sides, sides), quantum=0.5)
    table = trace.table()
    assert table.column_names == list(Sample._fields)
    assert table.num_rows == len(trace.time) > 50
    assert table["results"].to_pylist()[-1] == trace.total == 2 * 23**2 + 7 * 22**2
    lines = str(trace).splitlines()
    assert len(lines) == 15
    assert max(map(len, lines)) <= 100
    assert f"{trace.total:,}" in lines[0]
    assert lines[-1].endswith("done")


def test_plots_are_written_without_a_display(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    sides = ([i / 8 for i in range(64)], [i % 9 for i in range(64)])
    trace = simulate(DictJoin(chores=3), arrivals(sides, sides))
    assert {"reactive", "clean-up"} <= set(trace.phase)
    figure = trace.plot(tmp_path / "one.png")
    assert [ax.get_ylabel() for ax in figure.axes] == ["results", "memory, MiB"]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["reactive", "clean-up", "results", "last row arrived"]
    shades = {bars.get_label(): bars.get_paths() for bars in figure.axes[0].collections}
    clean_up = shades["clean-up"][0].get_extents()
    assert (clean_up.x0, clean_up.x1) == (trace.time[trace.phase == "clean-up"][0], trace.end)
    plot_traces({"quick": trace, "also quick": trace}, tmp_path / "two.png")
    for name in ("one.png", "two.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    mine = Figure()
    assert trace.plot(ax=mine.subplots()) is mine
