"""What a driver tells an operator, and what the operator answers.

The alphabet is small on purpose: rows arrived, an input made a promise, nothing arrives for a while, an input ended.
Time is never read; it is an argument of `poll`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from watersmeet.core.cost import Cost
from watersmeet.core.promises import Punctuation

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


Event: TypeAlias = Arrive | Punctuate | Stall | End


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
