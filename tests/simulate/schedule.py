"""Who runs next: actors, of which one runs at a time, and a seed that chooses among them.

An actor is a thread that stops at every operation on the disk, or nearly, and goes on when it is its turn again. So two
attempts at one task, or two queries, meet in every order there is; and the same seed gives the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulate.faults import Killed

_PATIENCE = 60.0
"""Seconds after which an actor that does not come back has hung."""


class Actor:
    """Something that runs by turns; what it came to is in `result` or `error`."""

    def __init__(self, schedule: Schedule, name: str, act: Callable[[], Any], **context: Any) -> None:
        self.name = name
        self.context = context
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.dead = False
        self.process: Actor = self
        """The actor whose files and whose death it shares: itself, unless it is one of its threads."""
        self.asleep = 0
        """So many turns of others come first."""
        self.awaits: Sequence[Actor] = ()
        """Those that have to be over before it goes on."""
        self._schedule = schedule
        self._act = act
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begun = False

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if self.dead:
                raise Killed
            self.result = self._act()
        except BaseException as error:
            self.error = error
        self.over = True
        self._schedule._back.release()

    def go_on(self) -> None:
        """Run it until it stops."""
        if not self._begun:
            self._begun = True
            self._thread.start()
        self._schedule.current = self
        self._turn.release()
        if not self._schedule._back.acquire(timeout=_PATIENCE):
            raise TimeoutError(f"{self.name} does not come back")
        self._schedule.current = None
        if self.over:
            self._thread.join()

    def stop(self) -> None:
        """Give the turn back, from within."""
        self._schedule._back.release()
        self._turn.acquire()


class Schedule:
    """Actors, and whose turn it is."""

    def __init__(self, rng: np.random.Generator, switching: float = 0.2) -> None:
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.switches = 0
        self._rng = rng
        self._switching = switching
        self._back = threading.Semaphore(0)

    def spawn(self, name: str, act: Callable[[], Any], joins: bool = False, **context: Any) -> Actor:
        """One more; with `joins`, a thread of the one that runs."""
        actor = Actor(self, name, act, **context)
        if joins:
            assert self.current is not None
            actor.process = self.current.process
        self.actors.append(actor)
        return actor

    def step(self) -> Actor:
        """Let one of those that can go on do so; returns it."""
        able = [actor for actor in self.actors if all(other.over for other in actor.awaits)]
        awake = [actor for actor in able if not actor.asleep] or able
        actor = awake[int(self._rng.integers(len(awake)))]
        for each in self.actors:
            each.asleep = max(0, each.asleep - 1)
        actor.go_on()
        if actor.over:
            self.actors.remove(actor)
        return actor

    def sleep(self, turns: int) -> None:
        """Called by the one that runs: others come first for a while, if there are any."""
        actor = self.current
        if actor is None or threading.current_thread() is not actor._thread or len(self.actors) < 2:
            return
        actor.asleep = turns
        self._stopped(actor)

    def wait_for(self, others: Sequence[Actor]) -> None:
        """Called by the one that runs: it goes on when these are over."""
        actor = self.current
        assert actor is not None
        actor.awaits = others
        if others:
            self._stopped(actor)
        actor.awaits = ()

    def _stopped(self, actor: Actor) -> None:
        self.switches += 1
        actor.stop()
        if actor.dead:
            raise Killed

    def pause(self, operation: str = "") -> None:
        """Called before each operation: others may come first; whoever is dead does nothing any more."""
        actor = self.current
        if actor is None or threading.current_thread() is not actor._thread:
            return
        if actor.dead:
            raise Killed
        if len(self.actors) > 1 and self._rng.random() < self._switching:
            self._stopped(actor)

    def kill(self, actor: Actor) -> None:
        """It does nothing any more: its thread ends at once."""
        actor.dead = True
        while not actor.over:
            actor.go_on()
        if actor in self.actors:
            self.actors.remove(actor)

    def die(self) -> None:
        """The one that runs is dead from now on, and all threads of its process."""
        if self.current is not None:
            process = self.current.process
            for actor in self.actors:
                actor.dead |= actor.process is process
