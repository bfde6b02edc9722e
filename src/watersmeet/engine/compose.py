"""Operators made of operators: what one finds is the input of another, and what the last one finds are results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.protocol import Event, PlainOperator, Snapshot, Status, Step


class Worker(Protocol):
    """What a cascade needs its operators to do."""

    @property
    def cost(self) -> Cost:
        """All work so far."""
        ...

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        ...

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out what was found."""
        ...

    def snapshot(self) -> Snapshot:
        """The state as of now."""
        ...


class Member(Protocol):
    """An operator of a cascade, and what the last poll or event left it with."""

    status: Status

    @property
    def join(self) -> Worker:
        """The operator."""
        ...


class Cascade(PlainOperator, ABC):
    """Polls its operators so that each is free to take what those before it find."""

    @property
    @abstractmethod
    def _members(self) -> Sequence[Member]:
        """The operators, each before the one that takes what it finds; the last one finds results."""

    @abstractmethod
    def _hand_on(self, number: int, step: Step, now: float) -> pa.RecordBatch | None:
        """Give what an operator found to the one that takes it; what the last one found comes back as a result."""

    def _work(self, now: float, fuel: int) -> pa.RecordBatch | None:
        """Let operators work until there is a result, the fuel is used up or there is nothing to do."""
        left = max(1, fuel)
        while left > 0:
            number = self._next_to_work()
            if number is None:
                return None
            member = self._members[number]
            step = member.join.poll(now, left)
            member.status = step.status
            left -= max(1, step.cost.probes + step.cost.inserts + step.cost.results)
            out = self._hand_on(number, step, now)
            if out is not None:
                return out
        return None

    def _next_to_work(self) -> int | None:
        """The last who must work, for it has to be free to take what those before it find; then the last who can."""
        found = self._last_with(Status.HAS_OUTPUT)
        return self._last_with(Status.HAS_WORK) if found is None else found

    def _last_with(self, status: Status) -> int | None:
        return next((i for i in reversed(range(len(self._members))) if self._members[i].status is status), None)

    def _joint_status(self, expected: bool) -> Status:
        """What a poll would be good for; `expected`: whether something will have to be done in any case."""
        statuses = {member.status for member in self._members}
        if self._members[-1].status is Status.DONE:
            return Status.DONE
        if expected or Status.HAS_OUTPUT in statuses:
            return Status.HAS_OUTPUT
        return Status.HAS_WORK if Status.HAS_WORK in statuses else Status.NEED_INPUT

    @property
    def cost(self) -> Cost:
        """All work so far; results are those of the last operator."""
        total = self._members[-1].join.cost
        for member in self._members[:-1]:
            cost = member.join.cost
            total += cost - Cost(results=cost.results)
        return total

    def _member_snapshots(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The operators' snapshots as JSON, and their segments by the names that the whole has for them."""
        return member_snapshots(self._members)


def member_snapshots(members: Sequence[Member]) -> tuple[list[dict[str, Any]], list[str]]:
    """The snapshots of an operator's operators as JSON, and their segments by the names that the whole has for them."""
    saved, segments = [], []
    for number, member in enumerate(members):
        part = member.join.snapshot()
        segments += [f"{member_prefix(number)}{name}" for name in part.segments]
        saved.append({**part.to_json(), "status": member.status.value})
    return saved, segments


def member_prefix(number: int) -> str:
    """What the names of an operator's segments begin with in the store of the whole."""
    return f"n{number}-"
