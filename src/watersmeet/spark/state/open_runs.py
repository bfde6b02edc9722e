"""Runs of the state in use: mapped, and checked once.

What a worker process keeps from one task to the next is only this: mappings of immutable files. Any worker may be given
any group, and finds everything in the state directory.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.state.store import VersionedStore

MOST_KEPT = 256
"""Runs that a worker keeps mapped."""
_GONE = 0, 0, 0
"""The stamp of no file."""


class OpenRuns:
    """The runs that a process has mapped, least recently used first."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._open: OrderedDict[str, tuple[tuple[int, int, int], SortedRun]] = OrderedDict()
        self._used: dict[str, SortedRun] = {}

    def get(self, store: VersionedStore, name: str, types: Sequence[pa.DataType]) -> SortedRun:
        """A run, mapped now unless it was before and nobody has touched its file since."""
        path = store.path_of(name)
        stamp = _stamp(path)
        found = self._open.pop(path, None)
        if found is None or found[0] != stamp:
            found = stamp, SortedRun(store, name, types)
        self._open[path] = found
        self._used[path] = found[1]
        if len(self._open) > self._most:
            self._open.popitem(last=False)
        return found[1]

    def take_over(self, store: VersionedStore, runs: Iterable[SortedRun]) -> None:
        """Runs that somebody has mapped, or written, who does not need them any more; those whose files are gone go."""
        for path in [path for path in self._open if _stamp(path) == _GONE]:
            del self._open[path]
        for run in runs:
            path = store.path_of(run.name)
            stamp = _stamp(path)
            if stamp != _GONE and path not in self._open:
                self._open[path] = stamp, run
        while len(self._open) > self._most:
            self._open.popitem(last=False)

    def release(self, keep: int = 0) -> None:
        """Let what was read leave this process's memory, unless all runs that were used have `keep` bytes at most.

        Mapping a page again costs a microsecond, which small batches would feel.
        """
        if sum(run.nbytes for run in self._used.values()) > keep:
            let_go(list(self._used.values()))
        self._used.clear()


def _stamp(path: str) -> tuple[int, int, int]:
    """What changes when a file is replaced or written to."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked for each run of each task
    except OSError:
        return _GONE
    return found.st_ino, found.st_size, found.st_mtime_ns


WORKER = OpenRuns()
"""This process's own."""
