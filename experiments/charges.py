"""What work is charged has changed: which experiments a change was about, and how they were charged before it.

Every section of the page of results records the charges that it was measured with, as a number. So the page tells by
itself which of its figures are of another day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One change of charges."""

    number: int
    about: tuple[str, ...]
    """Experiments whose ids begin so."""
    before: str
    """What was charged until then, to follow "in which"."""
    small_only: bool = False
    """Whether it makes no difference at full scale."""


CHANGES: Sequence[Change] = (
    Change(
        2,
        ("diner-", "miner-", "mjoin-", "meta-9", "ewj-", "ahewj-", "hybrid-"),
        "disks were not scaled with the data and paid for whole pages",
    ),
    Change(
        3,
        ("rpj-10", "rpj-11", "rpj-12"),
        "pages of a small scale had four rows at least, and a seek took by as much longer",
        small_only=True,
    ),
    Change(3, ("meta-",), "to check whether a row's key is over cost nothing"),
    Change(3, ("par-",), "what a row costs was not fitted: it was a hash and a move by the MJoin paper"),
    Change(3, ("ahewj-rate",), "RPWJ read only such runs in a dd-task as none had seen"),
    Change(
        4,
        ("hybrid-rate", "hybrid-buffer", "hybrid-memory", "hybrid-bias", "hybrid-cpu"),
        "the relation's keys were from all over, and not drawn like the stream's",
    ),
    Change(4, ("ewj-", "ahewj-"), "the processor was more than 16 times as fast as the MJoin paper's"),
)
NOW = max(change.number for change in CHANGES)


def told(experiment: str, measured_with: int, scale: float = 1.0) -> str:
    """That an experiment was measured with charges which are not those of today; nothing if it was not.

    >>> print(told("hybrid-rate", 1)[:47], told("rpj-10", 2, 0.1)[-30:])
    Measured with the charges of an earlier version a seek took by as much longer.
    >>> told("miner-20", 2), told("par-rate", NOW), told("rpj-10", NOW, 0.1), told("rpj-10", 2, 1)
    ('', '', '', '')
    """
    since = [
        change.before
        for change in CHANGES
        if change.number > measured_with
        and experiment.startswith(change.about)
        and not (change.small_only and scale == 1)
    ]
    return f"Measured with the charges of an earlier version, in which {', and '.join(since)}." if since else ""
