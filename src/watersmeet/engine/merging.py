"""Runs that become one, as a task of a join: of two inputs a run at a time, of several a run for each attribute."""

from __future__ import annotations

from typing import Any, Protocol


class Merging(Protocol):
    """A merge at work."""

    @property
    def merged(self) -> Any:
        """What takes the place of the others; None until it is there."""
        ...

    def abort(self) -> None:
        """Leave nothing of it."""
        ...


class Merger(Protocol):
    """The join whose runs they are."""

    def merge_some(self, merge: Any) -> int:
        """Go on with a merge; returns the fuel that took."""
        ...

    def merged(self, number: int, merge: Any) -> None:
        """What was merged takes the place of what it was made of."""
        ...


class MergeTask:
    """Runs of one input that become one. A snapshot knows nothing of it: whoever goes on from there begins anew."""

    lookup = None

    def __init__(self, join: Merger, number: int, merge: Merging) -> None:
        self._join = join
        self.number = number
        self.merge = merge

    @property
    def done(self) -> bool:
        """Whether what is merged is there."""
        return self.merge.merged is not None

    def work(self, fuel: int) -> int:
        """Merge a little; returns the fuel that took."""
        return self._join.merge_some(self.merge)

    def finish(self) -> None:
        """The one takes the place of the others."""
        self._join.merged(self.number, self.merge)

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"kind": "merge"}
