"""Snapshots by declaration: a part names the attributes that are its state, and one codec saves and loads them.

What an attribute is *now* tells what becomes of what was saved: an array is made of it again, of the same kind of
numbers, a part loads it, and so does each of a list of parts; a plain list is copied. So a part is made first, as it
begins, and loaded then. Parts whose state is more than attributes (files to open, memory to reserve) say `to_state` and
`load` themselves, and may stand in the `SAVED` of those that have them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np


class Saved:
    """A part whose state is its attributes of these names, and of those that the classes before it name.

    >>> class Counts(Saved):
    ...     SAVED = ("_seen", "total")
    ...
    ...     def __init__(self) -> None:
    ...         self._seen, self.total = np.zeros(2, np.int64), 0
    >>> counts, again = Counts(), Counts()
    >>> counts._seen[1] = counts.total = 7
    >>> again.load(counts.to_state()); counts.to_state(), again._seen
    ({'seen': [0, 7], 'total': 7}, array([0, 7]))
    """

    SAVED: ClassVar[tuple[str, ...]] = ()

    def to_state(self) -> dict[str, Any]:
        """For a snapshot."""
        return state_of(self, saved_names(type(self)))

    def load(self, state: dict[str, Any]) -> None:
        """Go on where a snapshot was taken."""
        load_state(self, saved_names(type(self)), state)


def saved_names(kind: type) -> list[str]:
    """What the classes of a part declare, that of all others first."""
    return [name for each in reversed(kind.__mro__) for name in vars(each).get("SAVED", ())]


def state_of(part: Any, names: Iterable[str]) -> dict[str, Any]:
    """Attributes of a part, for JSON."""
    return {name.lstrip("_"): _plain(getattr(part, name)) for name in names}


def load_state(part: Any, names: Iterable[str], state: dict[str, Any]) -> None:
    """Set attributes of a part to what was saved, in the order in which they are named."""
    for name in names:
        setattr(part, name, _alike(getattr(part, name), state[name.lstrip("_")]))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple | deque):
        return [_plain(each) for each in value]
    return value.to_state() if hasattr(value, "to_state") else value


def _alike(now: Any, saved: Any) -> Any:
    """What was saved, as what is there now."""
    if isinstance(now, np.ndarray):
        return np.array(saved, now.dtype).reshape(-1, *now.shape[1:])
    if hasattr(now, "load"):
        now.load(saved)
        return now
    if isinstance(now, list | tuple | deque):
        if now and all(hasattr(each, "load") for each in now):
            for each, state in zip(now, saved, strict=True):
                each.load(state)
            return now
        return None if saved is None else type(now)(_copied(saved))
    return _copied(saved)


def _copied(saved: Any) -> Any:
    return [_copied(each) for each in saved] if isinstance(saved, list) else saved
