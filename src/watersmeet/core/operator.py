"""The one interface of every join: a state machine that touches no clock, no thread and no source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from watersmeet.core.events import Event, Step
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.many_lookups import ChainSpec, SharedSpec
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An operator's whole state: a small description that JSON can carry, and the names of immutable segments.

    The segments lie in the operator's store. Taking a second snapshot writes only what changed since the first.
    """

    algorithm: str
    fingerprint: str
    """Of the spec: a snapshot is refused by an operator of another join."""
    state: Mapping[str, Any]
    segments: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What JSON carries, for `from_json`.

        >>> snapshot = Snapshot("xjoin", "5f0c", {"clock": 7}, ("run-1",))
        >>> Snapshot.from_json(snapshot.to_json()) == snapshot
        True
        """
        return {
            "algorithm": self.algorithm, "fingerprint": self.fingerprint, "state": dict(self.state),
            "segments": list(self.segments),
        }  # fmt: skip

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Snapshot:
        """A snapshot out of what `to_json` gave."""
        return cls(saved["algorithm"], saved["fingerprint"], saved["state"], tuple(saved["segments"]))


@runtime_checkable
class JoinOperator(Protocol):
    """A join, driven from outside.

    `receive` never works and never fails for want of memory; `poll` works for about `fuel` units (a unit is one row
    probed, inserted, read or emitted), does at least one, and returns at most one batch of results.
    """

    @property
    def spec(self) -> JoinSpec | MultiSpec | LookupSpec | ChainSpec | SharedSpec:
        """What is joined, and how."""
        ...

    @property
    def phase(self) -> str:
        """One word for people: arriving, reactive, clean-up, done."""
        ...

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        ...

    def poll(self, now: float, fuel: int) -> Step:
        """Work a little, and hand out what was found."""
        ...

    def wake_at(self) -> float | None:
        """The time at which the operator wants to be polled even if nothing happens; None if never."""
        ...

    def snapshot(self) -> Snapshot:
        """The state as of now; costs what changed since the last one."""
        ...

    def check(self) -> None:
        """Assert the invariants."""
        ...


def patience_of(operator: JoinOperator) -> int:
    """How many rows an operator lets wait for as long as it has reactive work; 0 if it wants each row at once.

    An operator that wants to be less prompt has a `patience`, which a driver asks for between polls: it goes on with
    reactive work until more rows wait, or until there is no more of it or nothing more to wait for.
    """
    return int(getattr(operator, "patience", 0))
