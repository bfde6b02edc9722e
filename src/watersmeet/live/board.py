"""What a page shows: runs by name, each with its history, as values that JSON can hold."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from watersmeet.drivers.history import History, Update
from watersmeet.drivers.progress import Progress

MOST_RUNS = 32
"""On one page: of more, those that have ended and came first make room."""
Version = tuple[int, int]
_FIELDS = [each.name for each in dataclasses.fields(Progress)]


@dataclass(eq=False)
class ShownRun:
    """One run on a board."""

    key: str
    title: str
    history: History
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Pictures beside the charts, such as of groups and slots; replaced as a whole."""
    kind: str = "join"
    """What the samples are of: a `join`; `batches` of a query, which may be long apart; or the `state` of one."""

    def document(self, known: Version | None = None) -> dict[str, Any]:
        """All there is to know of the run, or what is new since a version of its history."""
        update = self.history.since(known)
        return {
            "key": self.key,
            "title": self.title,
            "began": self.history.began,
            "kind": self.kind,
            "ended": self.history.ended,
            "error": self.history.error,
            "possible": _curve(self.history.possible) if update.start == 0 else None,
            "extras": self.extras,
            "now": _now(self.history.last),
            **_rows(update),
        }


class Board:
    """The runs of a page; may be used from any thread.

    >>> board = Board()
    >>> history = History()
    >>> board.add("a with b", history).key, board.add("a with b", history).title
    ('run-1', 'a with b')
    """

    def __init__(self) -> None:
        self._runs: list[ShownRun] = []
        self._added = 0
        self._lock = threading.Lock()

    def add(self, title: str, history: History, kind: str = "join") -> ShownRun:
        """Show a run."""
        with self._lock:
            self._added += 1
            run = ShownRun(f"run-{self._added}", title, history, kind=kind)
            over = [each for each in self._runs if each.history.ended]
            if len(self._runs) >= MOST_RUNS and over:
                self._runs.remove(over[0])
            self._runs.append(run)
            return run

    @property
    def runs(self) -> list[ShownRun]:
        """From the first to the last."""
        with self._lock:
            return list(self._runs)


class Reader:
    """Somebody who looks at a board, and is told what is new."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[str, tuple[Version, object]] = {}

    def news(self) -> list[dict[str, Any]]:
        """The runs of which there is something new."""
        found = []
        runs = self._board.runs
        self._known = {run.key: self._known[run.key] for run in runs if run.key in self._known}
        for run in runs:
            version, stamp = self._known.get(run.key, (None, None))
            now = (run.history.last, run.history.ended, run.extras, run.history.possible)
            # By identity: whatever changes is replaced.
            if stamp is None or any(one is not other for one, other in zip(now, stamp, strict=True)):  # type: ignore[call-overload]
                document = run.document(version)
                self._known[run.key] = (tuple(document["version"]), now)
                found.append(document)
        return found


def _rows(update: Update) -> dict[str, Any]:
    return {
        "version": update.version,
        "start": update.start,
        "kept": [sample(each) for each in update.kept],
        "tail": [sample(each) for each in update.tail],
    }


def _curve(known: tuple[Sequence[float], Sequence[int]] | None) -> list[list[float]] | None:
    return None if known is None else [[round(float(at), 3) for at in known[0]], [int(count) for count in known[1]]]


def sample(progress: Progress) -> dict[str, Any]:
    """What charts need of a moment; what is not known, or nothing, is left out.

    >>> sample(Progress(("a", "b"), (1, 2), rows_out=3, elapsed=0.5, memory=64, phase="arriving"))
    {'t': 0.5, 'in': (1, 2), 'out': 3, 'memory': 64, 'phase': 'arriving'}
    """
    found: dict[str, Any] = {
        "t": round(progress.elapsed, 4),
        "in": progress.rows_in,
        "out": progress.rows_out,
        "memory": progress.memory,
        "phase": progress.phase,
    }
    lateness, lookup, batch = progress.lateness, progress.lookup, progress.batch
    waits = (lateness.p50, lateness.p99) if lateness else progress.delays
    if lookup is not None:
        waits = (lookup.delay_p50, lookup.delay_p99)
        found |= {"answered": lookup.answered, "hits": lookup.hits, "misses": lookup.misses, "read": lookup.bytes_read}
    optional = {
        "disk": progress.on_disk or None,
        "spilled": progress.spilled or None,
        "waits": waits and [round(each, 5) for each in waits],
        "owing": lateness and lateness.owing,
        "late": progress.late,
        "reached": progress.reached,
        "remembered": progress.window_rows,
        "batch": batch and [batch.number, round(batch.seconds, 4), round(batch.join_seconds, 4)],
        "events": dict(progress.events) or None,
        "silent": progress.silent or None,
    }
    return found | {name: value for name, value in optional.items() if value is not None}


def _now(progress: Progress | None) -> dict[str, Any] | None:
    """The newest moment with all its figures."""
    if progress is None:
        return None
    values = {name: getattr(progress, name) for name in _FIELDS}
    # Only what is a class of its own: to copy the rest takes longer than to send it.
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
