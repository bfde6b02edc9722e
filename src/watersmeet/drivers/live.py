"""A join over real sources in real time.

Every source is read by a thread of its own into a bounded queue; the consumer's thread runs the operator::

    source ──thread──▶ queue ─┐
                              ├─▶ receive … receive, poll, poll ──▶ you
    source ──thread──▶ queue ─┘        (silence: Stall, then a little reactive work at a time)

Inputs are never pulled in turn, so a silent side cannot hold up the other. New rows end a silence at once, unless the
operator has the patience to let some wait while it has reactive work. All that waits in the queues is handed over
before a poll, so that many small batches cost the operator one round; only an input that is ahead of the others, if the
operator says so, waits for them, for no longer than a silence takes to be one.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from watersmeet.core.errors import ProtocolError, SourceError, WatersmeetError
from watersmeet.core.promises import Punctuation
from watersmeet.core.protocol import Arrive, End, Event, Punctuate, Stall, Status
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import Span, parse_seconds
from watersmeet.drivers.crew import Crew, Shards
from watersmeet.drivers.history import History
from watersmeet.drivers.inbox import MAX_ROWS, Bell, Inbox, Readable
from watersmeet.drivers.parts import LiveOperator as LiveOperator
from watersmeet.drivers.parts import Parts
from watersmeet.drivers.progress import Progress
from watersmeet.drivers.shedding import Losses, loss_bytes
from watersmeet.drivers.spool import Spool

if TYPE_CHECKING:
    pass

WAIT = 0.025
"""Seconds of silence on every open input that make a stall."""
FUEL = 65_536
"""Units of work in a poll while rows arrive or all have arrived: about 10 ms."""
REACTIVE_FUEL = 16_384
"""Units of work in a poll during a stall: arrivals wait for it to end, so it is short."""
QUEUE_SHARE = 8
"""One part in so many of the user's memory is for the queues."""
MOST_QUEUE_BYTES = 64 << 20
"""Deeper queues smooth nothing more; the operator makes better use of the memory."""
FINEST = 0.02
"""Seconds between two samples of a run's history at its beginning; they grow with its length up to `every`."""


Build: TypeAlias = "Callable[[list[pa.Schema], int], LiveOperator]"
Observe: TypeAlias = "Callable[[Progress], None]"


def queue_bytes(memory: int) -> int:
    """The part of the user's memory that the queues take; the operator gets the rest.

    >>> queue_bytes(64 << 20) >> 20
    8
    """
    return min(memory // QUEUE_SHARE, MOST_QUEUE_BYTES)


class LiveRun:
    """One join, from the first row read to the last result; an iterator of batches that can be taken once."""

    def __init__(
        self,
        sources: Sequence[Readable],
        build: Build,
        memory: int,
        *,
        schemas: list[pa.Schema] | None = None,
        wait: Span | float = WAIT,
        observe: Observe | None = None,
        every: float = 0.1,
        threads: int = 1,
        queue_rows: int = MAX_ROWS,
        spool: Spool | None = None,
        shed: float | None = None,
    ) -> None:
        """`build` makes the operator once all schemas are known: at once if they are given, else when the sources tell.

        `observe` is called about every `every` seconds. An operator in shards is run by so many threads. With a spool,
        a source that the join cannot follow runs ahead onto the disk, unless its rows are in memory anyway. With
        `shed`, up to this share of the rows of sources that do not wait are let go where the join cannot keep up.
        """
        self.memory = memory
        self._build = build
        self._schemas = schemas
        self._wait = parse_seconds(wait, "wait")
        self.history = History()
        """What the run was like so far."""
        self.page: str | None = None
        """Where it can be looked at, if somebody serves a page of it."""
        self._observe = observe
        self._companions: list[Callable[[], object]] = []
        self._every = every
        self._threads = threads
        self._bell = Bell()
        self._shed = shed
        self._losses: Losses | None = None
        self._shared = memory - (0 if shed is None else loss_bytes(memory))
        """What queues and operator share."""
        room = queue_bytes(self._shared) // len(sources)
        self._inboxes = [
            Inbox(source, self._bell, room, queue_rows, None if getattr(source, "stays", False) else spool, number)
            for number, source in enumerate(sources)
        ]
        self._parts = Parts(self._bell, self._inboxes, spool)
        self._names = tuple(source.name for source in sources)
        self._rows_in = [0] * len(sources)
        self._handed: list[deque[tuple[int, int, int]]] = [deque() for _ in sources]
        """Of each input, what was handed over and is not worked off: bytes, rows as the queue counts them, and rows."""
        self._handed_rows = [0] * len(sources)
        self._rows_out = 0
        self._queue_peak = 0
        self._silent = False
        self._held_back: int | None = None
        """An input that is ahead of the others, and waits for them."""
        self._waited: int | None = None
        """One that has waited in vain, and does so no more until another speaks."""
        self._started: float | None = None
        self._first: float | None = None
        self._finished: float | None = None
        self._next_look: float | None = None
        self._next_told = 0.0
        self._done = False
        self._schema: pa.Schema | None = None
        # Clean up also when nobody iterates to the end or closes: at garbage collection, and at the latest at exit.
        self._finalizer = weakref.finalize(self, self._parts.close)

    # -- what people ask -------------------------------------------------------------------------------------------

    def operator(self) -> LiveOperator:
        """The operator; starts to read and waits until every input's schema is known."""
        if self._parts.operator is not None:
            return self._parts.operator
        rest = self._shared - queue_bytes(self._shared)
        try:
            if self._parts.closed:
                raise WatersmeetError("this join was closed; call join() again")
            self._started = time.monotonic()
            if self._schemas is None:
                self._start_readers()
                operator = self._build(self._await_schemas(), rest)
                self._parts.operator = operator
            else:  # built before any reader competes for the interpreter
                operator = self._build(self._schemas, rest)
                self._parts.operator = operator
                self._start_readers()
        except BaseException as error:
            self._note_failure(error)
            self.close()
            raise
        if self._threads > 1 and isinstance(operator, Shards):
            self._parts.crew = Crew(operator, self._threads, self._bell, self._parts.anything_to_hand_over)
        self._schema = operator.spec.schema
        if self._shed is not None:
            assert isinstance(operator.spec, JoinSpec)
            self._losses = Losses(operator.spec, self._shed, loss_bytes(self.memory))
            for inbox in self._inboxes:
                if not getattr(inbox.source, "waits", True):
                    inbox.losses = self._losses
        return operator

    def schema(self) -> pa.Schema:
        """The output's schema; waits as `operator` does, but is known also when the run is over."""
        return self._schema or self.operator().spec.schema

    def schemas(self) -> list[pa.Schema]:
        """The inputs' schemas; where they are not known before, this starts to read and waits, as `operator` does."""
        if self._schemas is None:
            self.operator()
            self._schemas = [inbox.schema for inbox in self._inboxes]
        return self._schemas

    def progress(self) -> Progress:
        """A picture of the run now; may be asked at any time, from any thread."""
        started = self._started
        now = self._parts.figures()
        window = now.report.window
        return Progress(
            names=self._names,
            rows_in=tuple(self._rows_in),
            rows_out=self._rows_out,
            first_result_after=None if self._first is None or started is None else self._first - started,
            elapsed=0.0 if started is None else (self._finished or time.monotonic()) - started,
            memory=now.queued + now.memory + (0 if self._losses is None or self._parts.closed else self._losses.nbytes),
            peak=max(now.queued, self._queue_peak) + now.peak + (0 if self._losses is None else self._losses.nbytes),
            budget=self.memory,
            spilled=now.spilled,
            on_disk=now.on_disk,
            phase=self._phase(),
            silent=self._silent and not self._parts.closed,
            algorithm=now.algorithm,
            reason=now.reason,
            late=None if window is None else window.late,
            window_rows=None if window is None else window.rows,
            delays=None if window is None else window.delays,
            delayed=None if window is None else window.delayed,
            done=self._done,
            lookup=now.report.lookup,
            lateness=now.report.lateness,
            promises=now.report.promises,
            reached=None if window is None else window.reached,
            dated=window is not None and window.dated,
            probing=now.report.probing,
            events=now.events,
            spool=now.spool,
            shed=None if self._losses is None else self._losses.figures(),
        )

    @property
    def done(self) -> bool:
        """Whether all results were handed out; a run that was closed before never is."""
        return self._done

    def _phase(self) -> str:
        if self._done:
            return "done"
        if self._parts.closed:
            return "closed"
        if self._parts.operator is not None:
            return self._parts.operator.phase
        return "not started" if self._started is None else "waiting for schemas"

    def close(self) -> None:
        """Stop reading, let go of sources, memory and disk; may be called at any time and more than once."""
        if self._started is not None and self._finished is None:
            self._finished = time.monotonic()
        self._finalizer()
        self.history.add(self.progress())
        self.history.end()
        while self._companions:
            self._companions.pop()()

    def observe(self, look: Observe) -> None:
        """Let somebody look about ten times a second."""
        self._observe = look

    def accompany(self, close: Callable[[], object]) -> None:
        """Somebody watches the history as it grows; `close` is called once the run is over, or nobody has it any more.

        It must not lead back to the run.
        """
        self._companions.append(weakref.finalize(self, close))

    def tell(self, event: Event) -> None:
        """Give the operator an event before any more rows; may be called from any thread."""
        self._parts.events.append(event)
        self._bell.ring()

    # -- the loop --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Run the join; closing the generator stops it."""
        return self._run(marked=False)

    def marked_batches(self) -> Generator[pa.RecordBatch | Punctuation, None, None]:
        """The same, with punctuations of the result in their places."""
        return self._run(marked=True)

    def _run(self, marked: bool) -> Generator[Any, None, None]:
        try:
            operator = self.operator()
            status = Status.NEED_INPUT
            while status is not Status.DONE:
                self._look()
                if self._parts.closed:  # by an observer, by another thread, or by the consumer while it held a batch
                    return
                fuel = self._prepare(operator, status)
                if not fuel:
                    continue
                with self._parts.at_work:
                    if self._parts.closed:
                        return
                    crew = self._parts.crew
                    now = time.monotonic()
                    step = operator.poll(now, fuel) if crew is None else crew.poll(now, fuel, self._silent)
                status, out, punctuations = step.status, step.out, step.punctuations
                if status is not Status.HAS_OUTPUT:
                    self._release()
                elif crew is not None:
                    self._release(crew.outstanding)
                if out is not None and out.num_rows:
                    self._rows_out += out.num_rows
                    if self._first is None:
                        self._first = time.monotonic()
                    del step  # neither is to be kept alive here while the next one is made
                    yield out
                out = None
                if marked and punctuations:
                    yield from punctuations
            self._done = True
        except Exception as error:
            self._note_failure(error)
            raise
        finally:
            self.close()
        self._look(last=True)

    def _prepare(self, operator: LiveOperator, status: Status) -> int:
        """Tell the operator what there is to tell, or sleep; then the fuel for a poll, 0 if there is no use in one."""
        with self._parts.at_work:
            fuel = 0 if self._parts.closed else self._prepare_awake(operator, status)
        if fuel is not None:
            return fuel
        return REACTIVE_FUEL if self._sleep(operator) else 0

    def _prepare_awake(self, operator: LiveOperator, status: Status) -> int | None:
        """The same, but None where it is to sleep."""
        if status is Status.HAS_OUTPUT:
            if self._parts.crew is not None and self._parts.crew.hungry and self._hand_over(operator):
                self._silent = False
            return REACTIVE_FUEL if self._silent else FUEL
        if self._silent and status is Status.HAS_WORK and self._may_wait(operator.patience):
            return REACTIVE_FUEL
        if self._hand_over(operator):
            self._silent = False
            return FUEL
        if all(inbox.end_told for inbox in self._inboxes):
            if status is Status.NEED_INPUT:
                raise ProtocolError(f"{type(operator).__name__} asks for input although all inputs have ended")
            return FUEL
        if any(inbox.error is not None for inbox in self._inboxes):
            if self._held_back is not None:  # it failed just now: what was held back comes first
                return 0
            raise self._source_error()
        return REACTIVE_FUEL if self._silent and status is Status.HAS_WORK else None

    def _may_wait(self, patience: int) -> bool:
        """Whether few enough rows wait, and more may come."""
        if not patience or any(inbox.presses for inbox in self._inboxes) or all(inbox.ended for inbox in self._inboxes):
            return False
        return sum(inbox.rows for inbox in self._inboxes) <= patience

    def _hand_over(self, operator: LiveOperator) -> bool:
        """Give the operator what waits in the queues (of a full one half, to let its reader go on); was there any?"""
        moved = self._tell(operator)
        queued = 0
        self._held_back = ahead = self._ahead(operator)
        for number, inbox in enumerate(self._inboxes):
            if inbox.end_told:
                continue
            queued += inbox.held
            if number == ahead:
                continue
            ended = inbox.ended  # looked at before the queue: nothing is put once it has ended
            for item, size, counted in inbox.take():
                moved = True
                if number != self._waited:
                    self._waited = None
                rows = 0
                if not isinstance(item, Punctuation):
                    operator.receive(Arrive(number, item))
                    rows = item.num_rows
                    self._rows_in[number] += rows
                    if self._losses is not None:
                        self._losses.count(number, item)
                elif operator.takes_punctuations:
                    operator.receive(Punctuate(number, item.pattern))
                self._handed[number].append((size, counted, rows))
                self._handed_rows[number] += rows
            if ended and not inbox.pieces and inbox.error is None:
                operator.receive(End(number))
                inbox.end_told = moved = True
        self._queue_peak = max(self._queue_peak, queued)
        return moved

    def _tell(self, operator: LiveOperator) -> bool:
        """Give the operator what others than the inputs have told; was there anything?"""
        told = False
        while self._parts.events:
            event = self._parts.events.popleft()
            if not all(inbox.end_told for inbox in self._inboxes):  # else nothing can follow that it could concern
                operator.receive(event)
                told = True
        return told

    def _ahead(self, operator: LiveOperator) -> int | None:
        """An input that is to wait for the others; none in a silence, or if one of them has failed."""
        ahead = operator.ahead
        if ahead is None or ahead == self._waited or self._silent:
            return None
        return None if any(inbox.error is not None for inbox in self._inboxes) else ahead

    def _release(self, outstanding: Sequence[int] | None = None) -> None:
        """What was handed over is worked off, but for so many rows: only now the queues have room for more."""
        for number, handed in enumerate(self._handed):
            left = 0 if outstanding is None else outstanding[number]
            while handed and self._handed_rows[number] - handed[0][2] >= left:
                size, counted, rows = handed.popleft()
                self._handed_rows[number] -= rows
                self._inboxes[number].free(size, counted)

    def _sleep(self, operator: LiveOperator) -> bool:
        """Wait for an arrival. True if the operator is to be polled without one: a stall, or it wanted to be woken."""
        bell = self._bell
        stall_at = None if self._silent else time.monotonic() + self._wait
        with self._parts.at_work:
            wake_at = None if self._parts.closed else operator.wake_at()
        while True:
            with bell.condition:
                bell.asleep = True  # from here on a reader rings; what it put before, the next line sees
                if self._parts.anything_new(self._held_back):
                    bell.asleep = False
                    return False
                now = time.monotonic()
                if stall_at is not None and now >= stall_at:
                    break
                if wake_at is not None and now >= wake_at:
                    break
                # Without somebody who watches there is nothing to be seen before something happens.
                next_look = self._next_look if self._is_watched else None
                times = [at for at in (stall_at, wake_at, next_look) if at is not None]
                bell.condition.wait(max(0.0, min(times) - now) if times else None)
            self._look()
            if self._parts.closed:
                return False
        bell.asleep = False
        if stall_at is not None and now >= stall_at:
            if self._held_back is not None and self._inboxes[self._held_back].ready:
                self._waited = self._held_back
                return False
            with self._parts.at_work:
                if self._parts.closed:
                    return False
                operator.receive(Stall())
            self._silent = True
            self.history.add(self.progress())  # so that it shows where the silence began
        return True

    # -- starting, watching, failing -------------------------------------------------------------------------------

    def _start_readers(self) -> None:
        self._next_look = time.monotonic()
        for inbox in self._inboxes:
            inbox.thread.start()

    def _await_schemas(self) -> list[pa.Schema]:
        while True:
            self._look()
            if self._parts.closed:
                raise WatersmeetError("this join was closed before its inputs said what columns they have")
            with self._bell.condition:
                if any(inbox.error is not None and inbox.schema is None for inbox in self._inboxes):
                    raise self._source_error()
                schemas = [inbox.schema for inbox in self._inboxes if inbox.schema is not None]
                if len(schemas) == len(self._inboxes):
                    return schemas
                self._bell.condition.wait(self._every if self._is_watched else None)

    @property
    def _is_watched(self) -> bool:
        return self._observe is not None or bool(self._companions)

    def _look(self, *, last: bool = False) -> None:
        """Take a sample for the history, and let the observer look, if it is time to."""
        if self._next_look is None:
            return
        now = time.monotonic()
        if now < self._next_look and not last:
            return
        progress = self.progress()
        self.history.add(progress)
        self._next_look = now + min(self._every, max(FINEST, progress.elapsed / 100))
        if self._observe is not None and (last or now >= self._next_told):
            self._next_told = now + self._every
            self._observe(progress)

    def _note_failure(self, error: BaseException) -> None:
        self.history.error = " ".join(str(error).split()) or type(error).__name__

    def _source_error(self) -> WatersmeetError:
        """The first failure of a source, as an error that names it."""
        number, inbox = next((i, inbox) for i, inbox in enumerate(self._inboxes) if inbox.error is not None)
        error = inbox.error
        if isinstance(error, WatersmeetError):
            return error
        text = " ".join(str(error).split())
        wrapped = SourceError(
            f"{inbox.source.name} broke off after {self._rows_in[number]:,} rows: {type(error).__name__}"
            + (f": {text}" if text else "")
        )
        wrapped.__cause__ = error
        return wrapped
