"""What one of several inputs has on disk: sorted runs, the same rows once for each join attribute.

```
flush 1   run by a   run by b          each has all columns, and the hashes of all attributes
flush 2   run by a   run by b
merged    run by a   run by b          those of one attribute are merged with each other alone
```

Rows are written as often as there are attributes to find them by. So whatever is looked up, by any attribute, is merged
with sorted hashes, and the rows that were found are read forward; a run is what it is for two inputs; and runs are
merged in bounded memory. Were rows written once, with an index of row numbers for each further attribute, a merge would
have to translate all row numbers, which do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from watersmeet.core.windows import NOWHERE, TimeSpan
from watersmeet.runs.sorted_run import OpenRun, SortedRun
from watersmeet.runs.spine import Merge, close_in_time, to_merge
from watersmeet.spill.store import Store


@dataclass(slots=True)
class RunSet:
    """Rows that left memory together, or several such sets in one."""

    runs: tuple[SortedRun, ...]
    """The same rows in the order of each attribute's hashes."""
    epoch: int
    """Rows of one epoch were in memory together; 0 if they have settled, and it matters no more."""
    level: int = 0
    """How often its rows were merged."""
    span: TimeSpan = NOWHERE
    """From when until when its rows are, where they have times."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.runs[0].rows

    @property
    def owes(self) -> bool:
        """Whether its rows have yet to settle."""
        return self.epoch > 0

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        span = [] if self.span.is_empty else [self.span.to_state()]
        return [[run.name for run in self.runs], self.epoch, self.level, *span]


class RunSets:
    """All runs of one input, from the oldest on; those that owe are the last."""

    def __init__(self, open_run: OpenRun, types: Sequence[pa.DataType]) -> None:
        self._open_run = open_run
        self._types = types
        self.sets: list[RunSet] = []

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(each.rows for each in self.sets)

    @property
    def owing(self) -> int:
        """How many of the last sets have yet to settle."""
        return sum(each.owes for each in self.sets)

    @property
    def owing_rows(self) -> int:
        """How many rows these have."""
        return sum(each.rows for each in self.sets if each.owes)

    @property
    def segments(self) -> list[str]:
        """The names of all runs."""
        return [run.name for each in self.sets for run in each.runs]

    def settle(self) -> None:
        """No row owes anything any more."""
        for each in self.sets:
            each.epoch = 0

    def to_merge(self, fan_in: int, window: int | None = None) -> list[RunSet]:
        """The sets that should become one; where rows expire, those that span little of so long a window."""
        settled = self.sets[: len(self.sets) - self.owing]
        if window is not None:
            return list(close_in_time(settled, fan_in, window, lambda each: each.rows))
        count = to_merge([each.level for each in settled], fan_in)
        return settled[len(settled) - count :]

    def replace(self, olds: Sequence[RunSet], runs: tuple[SortedRun, ...]) -> None:
        """Merged runs take the place of those that they were made of."""
        place = self.sets.index(olds[0])
        span = TimeSpan.all_of(each.span for each in olds)
        self.sets[place : place + len(olds)] = [RunSet(runs, 0, olds[0].level + 1, span)]

    def forget_before(self, time: int) -> list[RunSet]:
        """Let go of sets that owe nothing, all of whose rows are before a time; returns them."""
        gone = [each for each in self.sets if not each.owes and each.span.latest < time]
        self.sets = [each for each in self.sets if each not in gone]
        return gone

    def check(self) -> None:
        """Assert the invariants."""
        epochs = [each.epoch for each in self.sets]
        assert epochs == sorted(epochs), "those that owe are the last"
        assert all(run.rows == each.rows for each in self.sets for run in each.runs)

    def close(self) -> None:
        """Let go of all runs."""
        self.sets = []

    def to_state(self) -> list[Any]:
        """For a snapshot."""
        return [each.to_state() for each in self.sets]

    def load(self, state: Sequence[Any]) -> None:
        """Take over what a snapshot says; no row is read."""
        self.sets = [
            RunSet(tuple(self._open_run(name, self._types) for name in names), epoch, level, *map(_span, span))
            for names, epoch, level, *span in state
        ]


def _span(state: Sequence[int]) -> TimeSpan:
    return TimeSpan(*state)


class SetMerge:
    """Sets of runs on their way to become one: attribute by attribute."""

    def __init__(self, store: Store, names: Sequence[str], sets: Sequence[RunSet], page_bytes: int) -> None:
        self.sets = list(sets)
        self._store = store
        self._names = names
        self._page_bytes = page_bytes
        self._done: list[SortedRun] = []
        self._merge: Merge | None = None

    @property
    def merged(self) -> tuple[SortedRun, ...] | None:
        """The runs that take the place of the others, when all are there."""
        return tuple(self._done) if len(self._done) == len(self._names) else None

    def work(self) -> int:
        """Merge a little; returns how many rows were passed."""
        if self._merge is None:
            number = len(self._done)
            runs = [each.runs[number] for each in self.sets]
            self._merge = Merge(self._store, self._names[number], runs, self._page_bytes)
        passed = self._merge.work()
        if self._merge.merged is not None:
            self._done.append(self._merge.merged)
            self._merge = None
        return passed

    def abort(self) -> None:
        """Leave nothing of it."""
        if self._merge is not None:
            self._merge.abort()
        for run in self._done:
            self._store.remove(run.name)
        self._done = []
