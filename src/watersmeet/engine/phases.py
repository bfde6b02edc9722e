"""The phases of a join, and what leads from one to the next: a table that `check` holds operators to.

The picture in the documentation is drawn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Phase(Enum):
    """What an operator is doing; the values are words for people."""

    ARRIVING = "arriving"
    """Rows come, are kept, and meet what is in memory; work that cannot wait comes before them."""
    REACTIVE = "reactive"
    """The inputs are silent: what has left memory is met again, until rows come."""
    CLEANING_UP = "clean-up"
    """All inputs have ended: whatever has not met meets now."""
    DONE = "done"
    """Every result was found."""


NEXT: Mapping[tuple[Phase, str], Phase] = {
    (Phase.ARRIVING, "the inputs are silent"): Phase.REACTIVE,
    (Phase.REACTIVE, "rows come, or nothing is left to do"): Phase.ARRIVING,
    (Phase.ARRIVING, "all inputs have ended"): Phase.CLEANING_UP,
    (Phase.REACTIVE, "the inputs end meanwhile"): Phase.CLEANING_UP,
    (Phase.CLEANING_UP, "nothing is left to meet"): Phase.DONE,
}
"""From a phase, by what happens, to the next."""


def _reachable(phase: Phase) -> frozenset[Phase]:
    found = {phase}
    while more := {after for (before, _), after in NEXT.items() if before in found} - found:
        found |= more
    return frozenset(found)


LATER: Mapping[Phase, frozenset[Phase]] = {phase: _reachable(phase) for phase in Phase}
"""The phases that an operator may be in some polls later."""


def phase_of(*, done: bool, ended: bool, reacting: bool) -> Phase:
    """The phase of an operator: all was found, all inputs have ended, or a task is at hand that gives way to rows.

    >>> phase_of(done=False, ended=False, reacting=True)
    <Phase.REACTIVE: 'reactive'>
    """
    if done:
        return Phase.DONE
    if ended:
        return Phase.CLEANING_UP
    return Phase.REACTIVE if reacting else Phase.ARRIVING


def diagram() -> str:
    """The table as a picture: what leads from which phase to which.

    >>> print(diagram().splitlines()[0])
    arriving  ── the inputs are silent ───────────────▶ reactive
    """
    widest = max(len(why) for _, why in NEXT)
    return "\n".join(
        f"{before.value:<9} ── {why + ' ':─<{widest + 1}}─▶ {after.value}" for (before, why), after in NEXT.items()
    )
