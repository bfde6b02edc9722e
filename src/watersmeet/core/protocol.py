"""The protocol of every join: a state machine that touches no clock, no thread and no source.

What a driver tells an operator is a small alphabet on purpose: rows arrived, an input made a promise, nothing arrives
for a while, an input ended; and where many queries share a join, that one of them comes or goes. Time is never read; it
is an argument of `poll`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.many_lookups import ChainSpec, SharedSpec
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.promises import Punctuation
from watersmeet.core.queries import WindowQuery
from watersmeet.core.report import Report
from watersmeet.core.spec import JoinSpec

LEFT = 0
RIGHT = 1


@dataclass(frozen=True, slots=True)
class Arrive:
    """A batch of rows came in on one input."""

    input: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Punctuate:
    """An input promises that no further row will match the pattern (see `core.promises.Punctuation`)."""

    input: int
    pattern: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Stall:
    """The driver's judgement that every open input is silent: time for reactive work."""


@dataclass(frozen=True, slots=True)
class End:
    """An input will deliver nothing more."""

    input: int


@dataclass(frozen=True, slots=True)
class AddQuery:
    """From here on, rows are another query's, too: of many joins in one (see `core.queries`)."""

    query: WindowQuery


@dataclass(frozen=True, slots=True)
class RemoveQuery:
    """Rows that come from here on are no longer a query's; pairs of those that came before still are."""

    name: str


Event: TypeAlias = Arrive | Punctuate | Stall | End | AddQuery | RemoveQuery


class Status(Enum):
    """What the operator can do next."""

    NEED_INPUT = "need input"
    """All that was received is worked off; nothing can be done before the next event."""
    HAS_OUTPUT = "has output"
    """What was received is not worked off: poll again before the next arrival is handed over."""
    HAS_WORK = "has work"
    """Reactive work is possible; the driver decides between polling again and the next event."""
    DONE = "done"
    """All inputs have ended and every result has been handed out."""


@dataclass(frozen=True, slots=True)
class Step:
    """The answer to one poll: some results perhaps, what comes next, and the work that was done."""

    out: pa.RecordBatch | None
    status: Status
    cost: Cost
    punctuations: tuple[Punctuation, ...] = ()
    """Of the output: beyond `out`, no result will match any of these."""


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

    name: ClassVar[str]
    """What users call the algorithm."""
    takes_punctuations: bool
    """Whether it can make use of them; a driver tells no other of any."""

    @property
    def reason(self) -> str:
        """Why it was chosen, where the choice was left open; empty where it was not."""
        ...

    @property
    def patience(self) -> int:
        """How many rows it lets wait for as long as it has reactive work; 0 if it wants each row at once.

        A driver asks between polls: it goes on with reactive work until more rows wait, or until there is no more of
        it or nothing more to wait for.
        """
        ...

    @property
    def ahead(self) -> int | None:
        """An input whose rows had better wait a little for those of the others; None: all are wanted as they come.

        A driver asks before it hands rows over. It hands them over all the same when nothing comes of the others.
        """
        ...

    def report(self) -> Report:
        """What it says of itself beyond memory and disk."""
        ...

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


class PlainOperator:
    """What most operators say when a driver asks: a base for them."""

    name: ClassVar[str]
    reason: str = ""
    """Why the planner chose it."""
    takes_punctuations: bool = False
    beyond: int = 0
    """Bytes of buffers that come on top of the budget; only where that is said in its documentation."""

    @property
    def patience(self) -> int:
        """Each row is wanted at once."""
        return 0

    @property
    def ahead(self) -> int | None:
        """No input is ahead of the others."""
        return None

    def report(self) -> Report:
        """Nothing beyond memory and disk."""
        return Report()
