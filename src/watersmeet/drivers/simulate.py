"""Run a join in virtual time: rows arrive by a schedule, work is charged by a cost model, no clock is read.

```
  schedule ──▶ heap of (time, priority, sequence, event) ──receive──▶ operator ──Cost──▶ cost model ──seconds──▶ clock
                 ▲ arrivals · punctuations · ends · stalls                ▲                                      │
                 └────────────── what is due by now comes first ──────────┴──────────────────────────────────────┘
```
The simulated machine does one thing at a time. While it works, rows that arrive wait in the input buffer; when it has
nothing to do, the clock jumps to the next event. So the same operator, schedule and cost model give the same trace on
any machine, to the last bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from enum import IntEnum
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.delays import Delays
from watersmeet.core.errors import ProtocolError, SpecError
from watersmeet.core.protocol import (
    AddQuery,
    Arrive,
    End,
    Event,
    JoinOperator,
    Punctuate,
    RemoveQuery,
    Stall,
    Status,
)
from watersmeet.core.spec import JoinSpec, On, Output, parse_on
from watersmeet.core.windows import WindowJoinSpec, WindowSpec
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.trace import Recorder, Sample, Trace
from watersmeet.memory import parse_memory

if TYPE_CHECKING:
    from watersmeet.sources.schedules import Schedule

FUEL = 8192
REACTIVE_FUEL = 256
_LARGEST_BATCH = 8192
_IDLE_POLLS = 10_000  # so many polls in a row that do nothing are an operator that will never do anything

_NOTHING = Cost()

Times: TypeAlias = npt.NDArray[np.float64]
Between: TypeAlias = Punctuate | AddQuery | RemoveQuery
"""What may happen between rows."""


class Priority(IntEnum):
    """What comes first of events that are due at the same time."""

    ARRIVE = 0
    PUNCTUATE = 1
    END = 2
    STALL = 3
    """Last of what a schedule brings: an arrival at the very end of the wait means that there was no silence."""


def simulate(
    operator: JoinOperator | str,
    schedule: Schedule,
    *,
    memory: int | str | None = None,
    on: On | None = None,
    cost: CostModel | None = None,
    wait: float = 0.025,
    quantum: float = 0.025,
    output: Output | str | None = None,
    fuel: int = FUEL,
    reactive_fuel: int = REACTIVE_FUEL,
    punctuations: Sequence[tuple[float, Between]] = (),
    samples: int = 4096,
    collect: bool = False,
    check: bool = False,
    online_only: bool = False,
    windows: WindowSpec | None = None,
    delays: bool = False,
    buffer_rows: int | None = None,
    **options: Any,
) -> Trace:
    """Run an operator, or the algorithm of this name, over a schedule in virtual time.

    An algorithm's name needs `on` and `memory`, and takes the algorithm's own `options`; an operator brings all that.
    When all inputs are silent for longer than `wait` seconds, the operator is told of a stall, and may do reactive work
    until the next row arrives, or until more rows wait than it has patience for. Rows of one input whose times fall
    into the same `quantum` (in seconds) are handed over as one batch when the last of them arrives; 0 is one row at a
    time. A batch never reaches over such a silence or over a punctuation, and batches depend on the schedule alone, so
    that all algorithms see the same ones.

    `punctuations` are what happens between rows, and when: promises of inputs, and queries that come and go.

    With `windows` (see `core.windows.parse_windows`) the algorithm is a window join. With `delays` the trace tells how
    long after the arrival of its later row each result came: the operator must then be asked for pairs.

    The input buffer has no bound. With `buffer_rows` the trace tells when more rows than that first waited for the
    operator (`overflow`): a machine with room for so many would have lost rows then.

    `samples` bounds the trace, `collect` keeps the output in it, `check` asserts the operator's invariants at each
    step. With `online_only` the run ends when the last row has arrived and been worked off: no clean-up, and the
    trace's total is what was delivered until then.

    >>> from watersmeet.sources.schedules import Schedule
    >>> left, right = pa.table({"id": [1, 2, 3]}), pa.table({"id": [3, 1, 3]})
    >>> schedule = Schedule([left, right], [np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.5, 2.5])])
    >>> trace = simulate("symmetric_hash", schedule, on="id", memory="16 MiB")
    >>> trace.total, trace.online
    (3, 2)
    """
    settings = _Settings(
        cost or CostModel(),
        wait,
        quantum,
        fuel,
        reactive_fuel,
        tuple(punctuations),
        samples,
        collect,
        check,
        online_only,
        delays,
        buffer_rows,
    )
    if not hasattr(schedule, "inputs"):
        raise SpecError(
            f"schedule is of type {type(schedule).__name__}; give a Schedule, of tables and the times of rows"
        )
    with ExitStack() as cleanup:
        if isinstance(operator, str):
            usual = Output.PAIRS if delays else Output.COUNTS
            spec = _spec(operator, schedule, on, usual if output is None else Output(output), windows)
            if memory is None:
                raise SpecError(f"simulating {operator!r} needs memory=..., such as '64 MiB'")
            # Not at the top: the planner brings all algorithms and their kernels, which a given operator does not need.
            from watersmeet.planner import build, build_window
            from watersmeet.spill.store import MemoryStore

            store = cleanup.enter_context(closing(MemoryStore()))
            running: JoinOperator
            if isinstance(spec, WindowJoinSpec):
                running = build_window(spec, parse_memory(memory), store, operator, **options)
            else:
                running = build(spec, parse_memory(memory), store, algorithm=operator, **options)
            cleanup.callback(getattr(running, "close", lambda: None))
        else:
            running = operator
            given = {"memory": memory, "on": on, "output": output, "windows": windows, **options}
            unused = [name for name, value in given.items() if value is not None]
            if unused:
                raise SpecError(f"{', '.join(unused)} would have no effect: the operator is already built")
            _check_inputs(running, schedule)
        if collect and running.spec.output is Output.COUNTS:
            raise SpecError("collect=True needs an operator that hands out rows or pairs; ask for output='rows'")
        if delays and running.spec.output is not Output.PAIRS:
            raise SpecError("delays=True needs an operator that hands out pairs; ask for output='pairs'")
        return _Run(running, schedule, settings).trace()


@dataclass(frozen=True, slots=True)
class _Settings:
    """How to run, apart from what."""

    cost: CostModel
    wait: float
    quantum: float
    fuel: int
    reactive_fuel: int
    punctuations: tuple[tuple[float, Between], ...]
    samples: int
    collect: bool
    check: bool
    online_only: bool
    delays: bool
    buffer_rows: int | None

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("quantum", 0), ("fuel", 1), ("reactive_fuel", 1)):
            value = getattr(self, name)
            if not value >= least:  # so that NaN is refused too
                raise SpecError(f"{name}={value!r} cannot be simulated; give at least {least}")


def _spec(algorithm: str, schedule: Schedule, on: On | None, output: Output, windows: WindowSpec | None) -> JoinSpec:
    if on is None:
        raise SpecError(f"simulating {algorithm!r} needs on=..., the column or columns to join on")
    if len(schedule.inputs) != 2:
        raise SpecError(f"{algorithm!r} joins 2 inputs, but the schedule has {len(schedule.inputs)}")
    left, right = (table.schema for table in schedule.inputs)
    if windows is not None:
        return WindowJoinSpec(left, right, parse_on(on), output=output, window=windows)
    return JoinSpec(left, right, parse_on(on), output=output)


def _check_inputs(operator: JoinOperator, schedule: Schedule) -> None:
    spec = operator.spec
    if isinstance(spec, JoinSpec) and len(schedule.inputs) != 2:
        raise SpecError(f"the operator joins 2 inputs, but the schedule has {len(schedule.inputs)}")
    for i, table in enumerate(schedule.inputs):
        if not table.schema.equals(spec.input(i)):
            raise SpecError(
                f"input {i} of the schedule has the columns {table.schema.names}, not those of the operator's spec: "
                f"{spec.input(i).names} (names and types must be the same)"
            )


class _Input:
    """One input: its rows, cut into batches, and how far they have been handed over."""

    def __init__(self, number: int, table: pa.Table, times: Times, quantum: float, cuts: Times) -> None:
        whole = table.combine_chunks().to_batches()
        if len(whole) > 1:
            raise SpecError(f"a column of input {number} is too long for one array; use large_string or large_binary")
        self._rows = whole[0] if whole else None
        self._times = times
        self._stops = _batch_stops(times, quantum, cuts)
        self._next_batch = 0
        self.handed = 0
        """Rows handed over."""
        self.last = float(times[-1]) if len(times) else 0.0
        self._arrived = 0
        self._excused = 0
        self._next_arrival = float(times[0]) if len(times) else inf

    @property
    def first_waiting(self) -> float:
        """When the first row arrives, or arrived, that is not handed over; infinity if there is none."""
        return float(self._times[self.handed]) if self.handed < len(self._times) else inf

    @property
    def due(self) -> float | None:
        """When the next batch is complete; None if there is none."""
        if self._next_batch == len(self._stops):
            return None
        return float(self._times[self._stops[self._next_batch] - 1])

    def take(self) -> pa.RecordBatch:
        """The next batch, a view of the rows."""
        start, stop = self.handed, int(self._stops[self._next_batch])
        self._next_batch += 1
        self.handed = stop
        assert self._rows is not None
        return self._rows.slice(start, stop - start)

    def excuse(self, now: float) -> None:
        """Rows that came before now came while the operator was idle: if they wait, it is for their batch alone."""
        self._excused = int(np.searchsorted(self._times, now, side="left"))

    def waiting(self, now: float) -> int:
        """Rows that came while the operator was busy and are not handed over."""
        return max(0, self.arrived(now) - max(self.handed, self._excused))

    def arrived(self, now: float) -> int:
        """Rows that came by now; time never goes back."""
        if self._next_arrival <= now:
            self._arrived += int(np.searchsorted(self._times[self._arrived :], now, side="right"))
            self._next_arrival = float(self._times[self._arrived]) if self._arrived < len(self._times) else inf
        return self._arrived


def _batch_stops(times: Times, quantum: float, cuts: Times) -> npt.NDArray[np.int64]:
    """Where batches end: at the end of a quantum, at a cut (the rows at that very time are before it), or when full."""
    rows = np.arange(1, len(times) + 1)
    if quantum == 0 or not len(times):
        return rows
    cell = np.floor(times / quantum)
    between = np.searchsorted(cuts, times, side="left")
    first = np.concatenate(([True], (cell[1:] != cell[:-1]) | (between[1:] != between[:-1])))
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(times)))
    full = (rows - np.repeat(starts, lengths)) % _LARGEST_BATCH == 0
    stops: npt.NDArray[np.int64] = rows[full | np.append(first[1:], True)]
    return stops


def _silences(times: Sequence[Times], wait: float) -> Times:
    """The times of rows, of any input, after which nothing arrives for longer than the wait."""
    merged: Times = np.sort(np.concatenate(times))
    before, after = merged[:-1], merged[1:]
    return before[before + wait < after]


class _Run:
    """One operator, one schedule, one virtual clock."""

    def __init__(self, operator: JoinOperator, schedule: Schedule, settings: _Settings) -> None:
        self._operator = operator
        self._budget: Any = getattr(operator, "budget", None)
        self._settings = settings
        silences = _silences(schedule.times, settings.wait)
        cuts = np.unique(np.concatenate((silences, [time for time, _ in settings.punctuations])))
        self._inputs = [
            _Input(i, table, times, settings.quantum, cuts)
            for i, (table, times) in enumerate(zip(schedule.inputs, schedule.times, strict=True))
        ]
        self._clock = 0.0
        self._heap: list[tuple[float, Priority, int, Event | int | None]] = []
        self._sequence = count()
        self._silences = iter(silences.tolist())
        self._open = len(self._inputs)
        self._status = Status.NEED_INPUT
        self._reactive = False
        self._idle_polls = 0
        self._cost = Cost()
        self._cpu = self._disk = 0.0
        self._batches: list[pa.RecordBatch] = []
        self._times = schedule.times
        self._delays = Delays() if settings.delays else None
        last = max((each.last for each in self._inputs), default=0.0)
        self._recorder = Recorder(last, settings.samples, settings.buffer_rows)
        self._phase = ""
        ends = [each.last for each in self._inputs]
        for time, punctuation in settings.punctuations:
            self._push(time, Priority.PUNCTUATE, punctuation)
            for i in [punctuation.input] if isinstance(punctuation, Punctuate) else range(len(ends)):
                ends[i] = max(ends[i], time)  # nothing may be told of an input that has ended
        for i, end in enumerate(ends):
            self._push_arrival(i)
            self._push(end, Priority.END, End(i))
        self._push_stall()

    def trace(self) -> Trace:
        """Run to the end."""
        self._sample(begun=False)
        while self._open:
            due, priority = self._heap[0][:2]
            if self._reactive and (due > self._clock or priority is Priority.ARRIVE) and self._may_react():
                self._work_off()
                continue
            # Whatever is due comes first: an operator is woken where a live one would wait for the next row.
            wake = self._operator.wake_at() if due > self._clock else None
            if wake is not None and wake < due:
                self._pass_to(wake)
                self._work_off(small=True)
                continue
            self._pass_to(due)
            if self._settings.online_only and self._open == 1 and priority is Priority.END:
                return self._finish()
            self._deliver(*heapq.heappop(self._heap))
        while self._status is not Status.DONE:
            if self._status is Status.NEED_INPUT:
                raise ProtocolError("the operator waits for input after the end of all its inputs")
            self._poll()
        return self._finish()

    def _finish(self) -> Trace:
        peak = self._budget.peak if self._budget is not None else 0
        return self._recorder.finish(self._cost, peak, self._batches, self._delays)

    def _push(self, time: float, priority: Priority, event: Event | int | None) -> None:
        heapq.heappush(self._heap, (time, priority, next(self._sequence), event))

    def _push_arrival(self, i: int) -> None:
        due = self._inputs[i].due
        if due is not None:
            self._push(due, Priority.ARRIVE, i)

    def _push_stall(self) -> None:
        silence = next(self._silences, None)
        if silence is not None:
            self._push(silence + self._settings.wait, Priority.STALL, Stall())

    def _pass_to(self, time: float) -> None:
        """Nothing is to be done before that time, unless it is over."""
        if time > self._clock:
            self._clock = time
            for each in self._inputs:
                each.excuse(time)

    def _may_react(self) -> bool:
        """Whether there is reactive work, no more rows wait than the operator has the patience for, and more come."""
        if self._status is not Status.HAS_WORK:
            return False
        if self._first_waiting() > self._clock:
            return True
        patience = self._operator.patience
        if not patience or all(each.last <= self._clock for each in self._inputs):
            return False
        return sum(each.arrived(self._clock) - each.handed for each in self._inputs) <= patience

    def _first_waiting(self) -> float:
        return min(each.first_waiting for each in self._inputs)

    def _deliver(self, _: float, priority: Priority, __: int, event: Event | int | None) -> None:
        """Hand one event to the operator, which is idle, and let it work it off."""
        operator = self._operator
        self._idle_polls = 0
        if priority is Priority.ARRIVE:
            assert isinstance(event, int)
            self._reactive = False
            operator.receive(Arrive(event, self._inputs[event].take()))
            self._push_arrival(event)
        elif priority is Priority.STALL:
            self._push_stall()
            if self._first_waiting() <= self._clock:  # the operator was busy until the silence was over
                return
            self._reactive = True
            operator.receive(Stall())
        else:
            assert isinstance(event, End | Punctuate | AddQuery | RemoveQuery)
            self._open -= isinstance(event, End)
            self._reactive &= self._open > 0
            operator.receive(event)
        if operator.phase != self._phase:
            self._sample()
        self._work_off()

    def _work_off(self, small: bool = False) -> None:
        """Poll as long as there is more to come: of a tree, what one join found has then reached the next."""
        self._poll(small)
        while self._status is Status.HAS_OUTPUT:
            self._poll(small)

    def _poll(self, small: bool = False) -> None:
        """One step of the operator, charged to the clock."""
        settings = self._settings
        step = self._operator.poll(self._clock, settings.reactive_fuel if small or self._reactive else settings.fuel)
        self._status = step.status
        if step.status is Status.DONE and self._open:
            raise ProtocolError(f"the operator says it is done, but {self._open} of its inputs have not ended")
        if step.out is not None and settings.collect:
            self._batches.append(step.out)
        cpu, disk = settings.cost.seconds(step.cost)
        self._clock += cpu + disk
        self._cpu += cpu
        self._disk += disk
        if step.out is not None and self._delays is not None:
            arrived = [self._times[side][step.out.column(side).to_numpy()] for side in (0, 1)]
            self._delays.add(((self._clock - np.maximum(arrived[0], arrived[1])) * 1e6).astype(np.int64))
        if step.cost != _NOTHING:
            self._cost += step.cost
            self._idle_polls = 0
        elif step.out is None:
            self._idle_polls += 1
            if self._idle_polls > _IDLE_POLLS:
                raise ProtocolError(
                    f"the operator ({step.status.value}, to be woken at {self._operator.wake_at()}) did nothing in "
                    f"{_IDLE_POLLS:,} polls at {self._clock} s; it must not ask to be polled when it cannot work"
                )
        if settings.check:
            self._operator.check()
        self._sample()

    def _sample(self, begun: bool = True) -> None:
        cost = self._cost
        # Rows of time 0 do not wait for an operator that has not begun.
        waiting = sum([each.waiting(self._clock) for each in self._inputs]) if begun else 0
        self._phase = self._operator.phase
        self._recorder.add(
            Sample(
                self._clock,
                cost.results,
                self._budget.used if self._budget is not None else 0,
                waiting,
                cost.pages_read,
                cost.pages_written,
                cost.seeks,
                self._cpu,
                self._disk,
                self._phase,
            )
        )
