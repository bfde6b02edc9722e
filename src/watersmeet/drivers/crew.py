"""Threads that run the shards of an operator: the consumer's own, and helpers.

```
consumer ──receive, split──▶ mail of each shard          helper ─┐
   │  takes results; with none there, runs a shard itself        ├─ runs any shard that has something to do
   └───────────────◀── results ◀────────────────────────── helper ┘
```

A shard is run by one thread at a time, whichever is free: all that a shard does is in its `run`, and its kernels leave
the interpreter to the others. That every pair comes out once does not depend on who runs which shard when: a shard sees
its own rows alone, in the order in which they came. Helpers begin when there is work for two; they sleep while there is
none, and while more results wait than there is memory for.

What fails in a helper is raised in the consumer's thread, as if it had happened there, after the results that were
found before; no shard is run after that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.protocol import Status, Step
from watersmeet.drivers.inbox import Bell

FEW_ROWS = 4096
"""Fewer rows than these are worked off before a helper has woken up."""
TOGETHER = 1024
"""Fewer rows wait for others that are there already."""
LOOK = 0.1
"""Seconds after which a consumer that waits for helpers looks around."""

_NOTHING = Cost()


class Shard(Protocol):
    """A part of an operator that can be run on its own."""

    status: Status
    """What the last run left."""

    @property
    def ready(self) -> bool:
        """Whether there is something to do that does not wait for a silence."""
        ...

    def is_due(self, now: float) -> bool:
        """Whether it wanted to be woken by now."""
        ...

    def run(self, now: float, fuel: int) -> Step:
        """Take note of all that has come, and work a little."""
        ...


@runtime_checkable
class Shards(Protocol):
    """An operator that is the sum of its shards."""

    result_bytes: int
    """How many bytes of results may wait to be taken."""
    outstanding: list[int]
    """Rows of each input that were received, and that not all shards have taken."""

    @property
    def shards(self) -> Sequence[Shard]:
        """The parts that can be run side by side."""
        ...

    @property
    def status(self) -> Status:
        """What there is to do, if no shard is being run."""
        ...

    @property
    def hungry(self) -> bool:
        """Whether more can come."""
        ...

    @property
    def received(self) -> int:
        """Rows that were received, and have not been left for the shards."""
        ...

    def hand_on(self) -> None:
        """Split what was received, and leave it for the shards."""
        ...


class Crew:
    """The threads of one run: as many as were asked for, with the consumer's, which calls `poll`."""

    def __init__(self, operator: Shards, threads: int, bell: Bell, arrived: Callable[[], bool]) -> None:
        """`arrived`: whether something waits that the operator has not received; then the consumer waits no longer."""
        self._operator = operator
        self._bell = bell
        self._arrived = arrived
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        # All of these are behind the lock.
        self._running: set[int] = set()
        self._results: deque[tuple[pa.RecordBatch, int]] = deque()
        self._result_bytes = 0
        self._error: BaseException | None = None
        self._idle = 0
        self._stopped = False
        self._turn = 0
        # Written by the consumer alone.
        self._fuel = 1
        self._silent = False
        self._received = 0
        self._helpers = [
            threading.Thread(target=self._help, name=f"watersmeet-join-{number}", daemon=True)
            for number in range(1, threads)
        ]
        self._started = False

    @property
    def outstanding(self) -> list[int]:
        """Rows of each input that were received, and that not all shards have taken."""
        return self._operator.outstanding

    @property
    def hungry(self) -> bool:
        """Whether more can be handed over."""
        return self._operator.hungry

    def poll(self, now: float, fuel: int, silent: bool) -> Step:
        """A result, if there is one; else run a shard, or wait for those who do."""
        self._fuel, self._silent = fuel, silent
        received = self._operator.received
        if self._received < received < TOGETHER and self._arrived():
            self._received = received
            return Step(None, Status.HAS_OUTPUT, _NOTHING)  # a shard's work for a few rows hardly depends on how many
        self._operator.hand_on()
        self._received = 0
        with self._lock:
            if self._results:
                return Step(self._take(), Status.HAS_OUTPUT, _NOTHING)
            if self._error is not None:
                raise self._error
            number = self._claim(now)
            if number is not None:
                self._call_for_help()
            elif not self._running:
                return Step(None, self._operator.status, _NOTHING)
        if number is None:
            self._wait()
            return Step(None, Status.HAS_OUTPUT, _NOTHING)
        out = self._run(number, now)
        self._operator.hand_on()
        with self._lock:
            busy = out is not None or self._running or self._results or self._error is not None
            return Step(out, Status.HAS_OUTPUT if busy else self._operator.status, _NOTHING)

    def stop(self) -> bool:
        """No shard is run from now on; False if the thread that asks for it is running one."""
        with self._lock:
            self._stopped = True
            self._work.notify_all()
        mine = threading.current_thread()
        for helper in self._helpers:
            if helper.ident is not None and helper is not mine:
                helper.join()
        self._results.clear()
        return mine not in self._helpers

    # --- who runs what ---

    def _claim(self, now: float, helping: bool = False) -> int | None:
        """The next shard that somebody should run, and nobody does; it is this thread's until it is given back."""
        shards = self._operator.shards
        count = len(shards)
        free = [number for k in range(count) if (number := (self._turn + k) % count) not in self._running]
        found = next((number for number in free if shards[number].ready), None)
        if found is None and self._silent:
            found = next((number for number in free if shards[number].status is Status.HAS_WORK), None)
        if found is None and not helping:
            found = next((number for number in free if shards[number].is_due(now)), None)
        if found is not None:
            self._running.add(found)
            self._turn = found + 1
        return found

    def _call_for_help(self) -> None:
        """Wake a helper, if there is more than this thread has just claimed, and more than a little."""
        if not self._helpers:
            return
        others = [shard for number, shard in enumerate(self._operator.shards) if number not in self._running]
        many = sum(self._operator.outstanding) >= FEW_ROWS
        if not any(shard.status is Status.HAS_OUTPUT or self._silent or (many and shard.ready) for shard in others):
            return
        if not self._started:
            self._started = True
            for helper in self._helpers:
                helper.start()
        elif self._idle:
            self._work.notify(len(others))

    def _run(self, number: int, now: float, mine: bool = True) -> pa.RecordBatch | None:
        """Run a shard, and give it back: with what it found, unless that is for this thread, and with what failed."""
        out, size, failed = None, 0, None
        try:
            out = self._operator.shards[number].run(now, self._fuel).out
            if out is not None and not out.num_rows:
                out = None
            elif out is not None and not mine:
                size = out.nbytes
        except Exception as error:
            failed = error
        finally:
            with self._lock:
                # At once: a shard that nobody runs has nothing that the consumer does not see.
                self._running.discard(number)
                self._error = self._error or failed
                if out is not None and not mine:
                    self._results.append((out, size))
                    self._result_bytes += size
        return out if mine else None

    # --- helpers ---

    def _help(self) -> None:
        while True:
            with self._lock:
                number = self._claim_to_help()
            if number is None:
                return
            self._run(number, time.monotonic(), mine=False)
            if self._bell.asleep:
                self._bell.ring()

    def _claim_to_help(self) -> int | None:
        """Sleep until there is a shard to run; None when all is over."""
        while not self._stopped:
            if self._error is None and (not self._results or self._result_bytes < self._operator.result_bytes):
                number = self._claim(0.0, helping=True)
                if number is not None:
                    return number
            self._idle += 1
            self._work.wait()
            self._idle -= 1
        return None

    def _take(self) -> pa.RecordBatch:
        out, size = self._results.popleft()
        self._result_bytes -= size
        if self._idle:
            self._work.notify()
        return out

    def _wait(self) -> None:
        """Until a helper has something, or nothing to do any more, or until rows come that can be handed on."""
        bell = self._bell
        with bell.condition:
            bell.asleep = True  # from here on helpers and readers ring; what they did before, the next lines see
            with self._lock:
                over = bool(self._results) or self._error is not None or not self._running
            if not (over or (self._operator.hungry and self._arrived())):
                bell.condition.wait(LOOK)
            bell.asleep = False
