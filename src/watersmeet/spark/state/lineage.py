"""The runs of a query, from one start to the next, in their order: which of them answers for which batch.

A query whose driver died is started again while tasks of the run before may still be at work somewhere, unaware. Each
run enters its name in a list before it touches anything, and the list decides:

    run  began with      answers for
    a    batch 0         0 .. 11         (it began 12, and perhaps 13, too: these are void)
    b    batch 12        12 ..

Only the last run may begin batches. What a run before it still leaves behind bears that run's name, and is not looked
at for the batches that it no longer answers for.

Which run is the last one is told by the list, but for those that have never entered it: a driver may die before any of
its tasks has begun, and one of them may begin when the next run has long been at work. So each entry says when its
query was put together, on the driver, and a run of an earlier one than the last does not enter any more. (Without that
it would be taken for the last run, and void what the true one has done: seeds of `make simulate` show it.)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from watersmeet.core.errors import SnapshotError
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json
from watersmeet.spark.state.remote import Place, in_bucket


@dataclass(frozen=True, slots=True)
class Lineage:
    """Runs and the first batch of each, from the first run to the last.

    >>> lineage = Lineage((("a", 0), ("b", 12)))
    >>> [lineage.answers_for(batch, token("a")) for batch in (11, 12)], lineage.before("b")
    ([True, False], {'a'})
    """

    runs: tuple[tuple[str, int], ...]

    def answers_for(self, batch: int, run_token: str) -> bool:
        """Whether the run with this token is the one whose state of a batch is valid."""
        return self.token_for(batch) == run_token

    def token_for(self, batch: int) -> str | None:
        """The token of the run that answers for a batch."""
        run = self.run_for(batch)
        return None if run is None else token(run)

    def run_for(self, batch: int) -> str | None:
        """The run that answers for a batch."""
        return next((run for run, first in reversed(self.runs) if first <= batch), None)

    def repeated(self, batch: int) -> list[str]:
        """The earlier runs, the last one first, at whose batch the query has been started again ever since.

        >>> Lineage((("a", 0), ("b", 12), ("c", 12))).repeated(12), Lineage((("a", 0), ("b", 12))).repeated(13)
        (['b', 'a'], [])
        """
        found = []
        for (earlier, _), (_, first) in zip(reversed(self.runs[:-1]), reversed(self.runs[1:]), strict=True):
            if first != batch:
                break
            found.append(earlier)
        return found

    @property
    def tokens(self) -> set[str]:
        """Of all runs."""
        return {token(run) for run, _ in self.runs}

    def before(self, run: str) -> set[str]:
        """The runs that came before this one."""
        names = [each for each, _ in self.runs]
        return set(names[: names.index(run)])


def enter(directory: Place, run: str, batch: int, made: int) -> Lineage:
    """The runs up to this one, which is entered with the batch it begins with; an error if a later one has been.

    :param made: when its query was put together, in nanoseconds of the driver's clock
    """
    make_directory(directory)
    while True:
        entries = list(_read(directory))
        runs = tuple((each, first) for each, first, _ in entries)
        if run in (each for each, _ in runs):
            if runs[-1][0] == run:
                return Lineage(runs)
            raise SnapshotError(
                f"the query has been started again since batch {batch} was begun; this attempt belongs to an earlier "
                f"start ({run}) and changes nothing"
            )
        latest = max((other for _, _, other in entries), default=0)
        if made < latest:
            raise SnapshotError(
                f"the query was put together at {_time(made)}, before that of its last start ({_time(latest)}), so "
                f"this attempt is taken for that of an earlier start and changes nothing; if it is the later one, call "
                f"wms.join, or whichever verb it is, again before starting it, and see to the driver's clock"
            )
        entry = checked_json({"run": run, "first": batch, "made": made})
        if publish(directory / f"{len(runs):06d}", entry, first_wins=True):
            return Lineage((*runs, (run, batch)))


def _time(nanoseconds: int) -> str:
    return f"{datetime.fromtimestamp(nanoseconds / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"


def known_runs(directory: Place) -> Lineage:
    """The runs there are, for somebody who only looks."""
    return Lineage(tuple((run, first) for run, first, _ in _read(directory)))


def _read(directory: Place) -> Iterator[tuple[str, int, int]]:
    """The runs in their order: their names, their first batches, and when their queries were put together."""
    for place, name in enumerate(sorted(name for name in names_in(directory) if name.isdecimal())):
        if int(name) != place:
            raise SnapshotError(
                f"{directory / f'{place:06d}'} is missing; put it back, or start again with a new state"
            )
        yield _entry(directory / name)


_ENTRIES: dict[str, tuple[str, int, int]] = {}
"""Of runs in buckets: what their entries say, which never changes."""


def _entry(path: Place) -> tuple[str, int, int]:
    known = _ENTRIES.get(str(path)) if in_bucket(path) else None
    if known is None:
        found = read_json(path)
        run, first, made = found.get("run"), found.get("first"), found.get("made", 0)
        if not isinstance(run, str) or not isinstance(first, int) or not isinstance(made, int):
            raise SnapshotError(f"{path} tells of no run of the query; put back a sound copy of it")
        known = run, first, made
        if in_bucket(path):
            _ENTRIES[str(path)] = known
    return known


def token(run: str) -> str:
    """A run of the query, as it is part of the names of its files."""
    return f"{zlib.crc32(run.encode()):08x}"
