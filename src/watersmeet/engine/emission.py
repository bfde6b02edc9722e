"""Results whose time has passed, as what an operator hands out: a task beside those that find results."""

from __future__ import annotations

from typing import Any, Protocol

from watersmeet.engine.held_results import HeldResults
from watersmeet.matching.found_pairs import PairBuffer


class Emitting(Protocol):
    """An operator whose results wait."""

    held: HeldResults | None

    def emit_some(self, before: int) -> int:
        """Make results ready that are before a time; returns the fuel that took."""
        ...


class FoundOrHeld:
    """What is to be handed out: pairs that were found, or results whose time has passed."""

    def __init__(self, pairs: PairBuffer, held: HeldResults) -> None:
        self._pairs = pairs
        self._held = held
        self.widest = pairs.widest

    @property
    def waiting(self) -> int:
        """How many there are."""
        return self._pairs.waiting or (0 if self._held.ready is None else self._held.ready.num_rows)

    def clear(self) -> None:
        """Forget them."""
        self._pairs.clear()
        self._held.ready = None


class EmitTask:
    """Results on their way out, in the order of their times, up to the time that has passed."""

    lookup = None

    def __init__(self, join: Emitting, before: int) -> None:
        self._join = join
        self._before = before
        """What has passed since may be that of rows which have yet to come out."""

    @property
    def done(self) -> bool:
        """Whether none is left of a time that had passed."""
        held = self._join.held
        assert held is not None
        return held.ready is None and not held.first < self._before

    def work(self, fuel: int) -> int:
        """Make a batch ready; returns the fuel that took."""
        return self._join.emit_some(self._before)

    def finish(self) -> None:
        """Nothing is left to settle."""

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"kind": "emit", "before": self._before}
