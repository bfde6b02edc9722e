"""What a live run is made of: readers, queues, the operator and its threads; and how all of it is let go."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from watersmeet.core.protocol import Event, JoinOperator
from watersmeet.core.report import Report, SpoolFigures
from watersmeet.drivers.crew import Crew
from watersmeet.drivers.inbox import Bell, Inbox
from watersmeet.drivers.spool import Spool

if TYPE_CHECKING:
    from watersmeet.memory import Budget
    from watersmeet.spill.store import Store

PATIENCE = 0.5
"""Seconds to wait at the end for readers; one that is stuck in a source's code is left behind as a daemon."""


class LiveOperator(JoinOperator, Protocol):
    """An operator whose memory and disk can be seen and let go."""

    @property
    def budget(self) -> Budget:
        """What it may hold, and what it holds."""
        ...

    @property
    def store(self) -> Store:
        """Where it spills."""
        ...

    def close(self) -> None:
        """Let go of everything in memory."""
        ...


@dataclass(frozen=True, slots=True)
class Figures:
    """What the parts of a run say about themselves."""

    queued: int = 0
    memory: int = 0
    peak: int = 0
    spilled: int = 0
    on_disk: int = 0
    algorithm: str | None = None
    reason: str | None = None
    events: tuple[tuple[str, int], ...] = ()
    report: Report = Report()  # noqa: RUF009 - it cannot change
    spool: SpoolFigures | None = None


class Parts:
    """All that must be let go at the end, without a way back to the run: so the run can be collected as garbage."""

    def __init__(self, bell: Bell, inboxes: Sequence[Inbox], spool: Spool | None = None) -> None:
        self.bell = bell
        self.inboxes = inboxes
        self.spool = spool
        self.operator: LiveOperator | None = None
        self.crew: Crew | None = None
        self.closed = False
        self.at_work = threading.RLock()
        """Held by whoever is inside the operator, so that another thread that closes waits until they are out."""
        self._last = Figures()
        self.events: deque[Event] = deque()
        """What somebody beside the inputs has told, and the operator has not been told yet."""

    def anything_new(self, but: int | None = None) -> bool:
        """Whether something waits in a queue, but for one of them, that the operator has not been told."""
        return bool(self.events) or any(
            inbox.ready for number, inbox in enumerate(self.inboxes) if number != but
        )  # fmt: skip

    def anything_to_hand_over(self) -> bool:
        """The same, but for failures: those are told when all rows before them are worked off."""
        return any(inbox.pieces or (inbox.ended and not inbox.end_told and not inbox.error) for inbox in self.inboxes)

    def figures(self) -> Figures:
        """As of now, or of the end."""
        operator = self.operator
        if self.closed:
            return self._last
        queued = sum(inbox.held for inbox in self.inboxes)
        spool = None if self.spool is None else self.spool.figures()
        if operator is None:
            return Figures(queued, spool=spool)
        return Figures(
            queued=queued,
            memory=operator.budget.used,
            peak=operator.budget.peak,
            spilled=operator.store.bytes_written,
            on_disk=operator.store.bytes_held,
            algorithm=operator.name,
            reason=operator.reason,
            # Of operators that count what they do; taken at once, as the operator may be at work.
            events=tuple(dict(getattr(operator, "events", ())).items()),
            report=operator.report(),
            spool=spool,
        )

    def close(self) -> None:
        """Stop reading and working, let go of sources, memory and disk; more than once is harmless."""
        if self.closed:
            return
        self._last = replace(self.figures(), queued=0, memory=0, on_disk=0)
        self.closed = True
        self.bell.stopped = True
        self.bell.ring()
        give_up = time.monotonic() + PATIENCE
        try:
            for inbox in self.inboxes:
                inbox.stop(max(0.0, give_up - time.monotonic()))
        finally:
            if self.spool is not None:
                self.spool.close()
            # Not for ever: the child of a fork has the lock without the thread that holds it.
            out = self.at_work.acquire(timeout=PATIENCE)
            try:
                self._let_go()
            finally:
                if out:
                    self.at_work.release()

    def _let_go(self) -> None:
        operator, self.operator = self.operator, None
        crew, self.crew = self.crew, None
        if operator is not None:
            try:
                if crew is None or crew.stop():
                    operator.close()
            finally:
                operator.store.close()
