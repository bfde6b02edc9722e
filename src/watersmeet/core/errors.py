"""Every error a user can meet, each one sentence: what is wrong, where, and what to do about it."""

from __future__ import annotations


class WatersmeetError(Exception):
    """The root of all our errors; the command line prints its text and nothing else."""


class SpecError(WatersmeetError, ValueError):
    """The join cannot be what was asked for: a missing column, types that cannot be compared, an unknown name."""


class SourceError(WatersmeetError):
    """An input could not be opened, or broke off while it was read."""


class BudgetError(WatersmeetError, MemoryError):
    """The memory that was allowed is too small for this join to work in."""


class SpillError(WatersmeetError, OSError):
    """The disk could not take or give back what was spilled: it is full, or a file is gone."""


class SegmentError(SpillError):
    """A spill file is torn, altered or missing; the message names it."""


class SnapshotError(WatersmeetError):
    """A snapshot does not belong to this join, or part of it is missing."""


class ProtocolError(WatersmeetError, RuntimeError):
    """A driver broke the protocol: an event after the end, or an arrival before pending output was taken."""


class RelationError(WatersmeetError):
    """A relation on disk cannot be opened or changed: it is not there, another writer has it, rows break its rules."""


class LateRowError(WatersmeetError):
    """A row came later than was allowed, and the join was told to stop then."""


class PromiseError(WatersmeetError):
    """An input broke its word: a row came that it had promised not to send; the message names the row."""
