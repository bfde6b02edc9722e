"""A state directory seen from outside, while a query writes to it or long after: read only, and never in its way.

Files may be gone by the time they are looked at: what is swept away between two looks is left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pyarrow import fs

from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.report import BatchFigures
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress
from watersmeet.records.times import times_for_people
from watersmeet.spark.rebalance.reorganizing import SlotLoad
from watersmeet.spark.rebalance.routing import Routing, routing_name
from watersmeet.spark.state.directory import ROWS, batch_of, check_groups, files_of, group_number, manifests, token_of
from watersmeet.spark.state.files import read_json, understood
from watersmeet.spark.state.lineage import Lineage, known_runs
from watersmeet.spark.state.remote import Place, place_of
from watersmeet.spark.state.watermarks import newest_after

Entry: TypeAlias = "os.DirEntry[str] | fs.FileInfo"
SIDES = ("left", "right")
_LOADS_OF = 8
"""Batches whose loads are added up: a slot tells of those in which it had something to do."""
_SETTLES = 2.0
"""Seconds without a new file after which a batch is taken to be over."""


@dataclass(frozen=True)
class GroupView:
    """A group after a batch."""

    nbytes: int
    rows: tuple[int, ...] | None
    """Of each side, where the manifest tells."""
    written: float
    """When the manifest appeared."""


class StateView:
    """What a streaming join on Spark remembers, batch by batch."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """`place` is a directory, or the address of one that PyArrow reaches."""
        self.path = place_of(str(place))
        if not (self.path / "state.json").exists():
            raise SpecError(f"{self.path} is not the state directory of a join: there is no state.json in it")
        self.owner = read_json(self.path / "state.json")
        with understood(self.path / "state.json"):
            check_groups(self.owner)
        self._known: dict[tuple[str, str], GroupView] = {}
        """Manifests that were read, by group and name: they never change."""
        self._told = -1
        """The last batch of which a history was told."""
        self._began: float | None = None

    @property
    def title(self) -> str:
        """What it is called."""
        return self.path.absolute().name if isinstance(self.path, Path) else self.path.name

    def batches(self) -> dict[int, float]:
        """The batches that are known to have begun, and when."""
        found = {}
        for name, entry in _entries(self.path / "batches").items():
            with suppress(OSError):
                if name.isdecimal():
                    found[int(name)] = _size_and_time(entry)[1]
        return dict(sorted(found.items()))

    def tell(self, history: History) -> bool:
        """Add what the state was like after each batch that is over and was not told before; whether there was one.

        The last batch counts as over when nothing has been written for a while.
        """
        with understood(self.path):
            return self._tell(history)

    def _tell(self, history: History) -> bool:
        batches, lineage = self.batches(), self._lineage()
        if not any(number > self._told for number in batches):
            return False
        groups = {name: dict(self._versions(name, lineage)) for name in self._groups()}
        if self._began is None:
            history.began = self._began = min(batches.values())
        told = False
        for number, begun in batches.items():
            ended = max([begun, *(versions[number].written for versions in groups.values() if number in versions)])
            if number <= self._told or (number == max(batches) and time.time() < ended + _SETTLES):
                continue
            held = [
                versions[max(batch for batch in versions if batch <= number)]
                for versions in groups.values()
                if min(versions, default=number + 1) <= number
            ]
            progress = _progress(self._names, number, held, begun, ended, self._began)
            history.add(self._with_times(progress, number, lineage))
            self._told, told = number, True
        return told

    def reached(self, batch: int) -> tuple[float | None, ...] | None:
        """Of a window join, the newest time of each input up to and with a batch, for people; None if not known."""
        with understood(self.path):
            return self._reached(batch, self._lineage())

    @property
    def division(self) -> str:
        """Which division of the keys into groups counts: see `state.directory`."""
        return str(self.owner.get("division", ""))

    @property
    def dated(self) -> bool:
        """Whether those are seconds since 1970."""
        return "tick" in self.owner

    def _reached(self, batch: int, lineage: Lineage) -> tuple[float | None, ...] | None:
        marks = self.path / "marks"
        with suppress(SnapshotError):  # it was swept away
            newest = newest_after(batch, marks, list(_entries(marks)), lineage)
            return None if newest is None else times_for_people(newest[: len(self._names)], self.owner.get("tick"))
        return None

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the inputs."""
        told = self.owner.get("described")
        return tuple(each["name"] for each in told["inputs"]) if told and told["verb"] == "multijoin" else SIDES

    def _with_times(self, progress: Progress, batch: int, lineage: Lineage) -> Progress:
        reached = self._reached(batch, lineage)
        if reached is None:
            return progress
        return replace(progress, names=self._names, reached=reached, dated=self.dated)

    def extras(self) -> dict[str, Any]:
        """Groups and slots, what they have to do, what has just moved, and hot keys."""
        with understood(self.path):
            return self._extras()

    def _extras(self) -> dict[str, Any]:
        lineage = self._lineage()
        sizes = {}
        for name in self._groups():
            versions = dict(self._versions(name, lineage, last=True))
            number = group_number(name, self.division)
            assert number is not None, "only such are looked at"
            sizes[number] = max(versions.items())[1].nbytes if versions else 0
        newest = max(self.batches(), default=0)
        routing, batch = self.routing(lineage)
        hot = [
            {"key": f"{key.key & (1 << 64) - 1:016x}", "ways": key.home.ways, "groups": list(key.home.groups)}
            for key in (() if routing is None else routing.hot)
        ]
        work: dict[int, float] = {}
        for load in self._loads(newest - _LOADS_OF):
            for number, took in load.groups.items():
                work[number] = work.get(number, 0.0) + took.seconds
        if routing is None or not work:  # groups stay where they are, and nobody notes how long they took
            count = max([self.owner["groups"], *(number + 1 for number in sizes)])
            sized = [{"number": number, "slot": None, "load": sizes.get(number, 0)} for number in range(count)]
            told = {} if routing is None else {"hot": hot}
            return {"groups": sized, "unit": "bytes", "of": "of state", "batch": newest, **told}
        groups = [
            {"number": number, "slot": slot, "load": work.get(number, 0.0), "moved": number in routing.moved}
            for number, slot in enumerate(routing.owner)
            if slot >= 0
        ]
        said = f"of work in the last {_LOADS_OF} batches"
        return {"groups": groups, "unit": "seconds", "of": said, "hot": hot, "batch": batch}

    def _groups(self) -> list[str]:
        return [name for name in _entries(self.path) if group_number(name, self.division) is not None]

    def _lineage(self) -> Lineage:
        return known_runs(self.path / "runs")

    def _versions(self, group: str, lineage: Lineage, last: bool = False) -> Iterator[tuple[int, GroupView]]:
        entries = _entries(self.path / group)
        versions = list(manifests(list(entries), lineage).items())
        for batch, name in versions[-1:] if last else versions:
            with suppress(OSError, SnapshotError):  # it was swept away
                if (group, name) not in self._known:
                    self._known[group, name] = self._view(self.path / group, name, entries)
                yield batch, self._known[group, name]

    @staticmethod
    def _view(group: Place, name: str, entries: Mapping[str, Entry]) -> GroupView:
        manifest = read_json(group / name)
        # A file that was written while the names were listed may not be among them: those of this machine are asked.
        if isinstance(group, Path):
            sizes = [(group / each).stat().st_size for each in files_of(manifest) if (group / each).exists()]
        else:
            sizes = [_size_and_time(entries[each])[0] for each in files_of(manifest) if each in entries]
        rows = tuple(manifest[ROWS]) if ROWS in manifest else None
        return GroupView(sum(sizes), rows, _size_and_time(entries[name])[1])

    def routing(self, lineage: Lineage) -> tuple[Routing | None, int]:
        """The last one that is known, and its batch."""
        names = [
            name
            for name in _entries(self.path / routing_name(self.division))
            if name.startswith("routing-") and lineage.answers_for(batch_of(name), token_of(name))
        ]
        for name in sorted(names, key=batch_of, reverse=True):
            with suppress(SnapshotError):
                return Routing.from_json(read_json(self.path / routing_name(self.division) / name)), batch_of(name)
        return None, -1

    def _loads(self, since: int) -> Iterator[SlotLoad]:
        for name in _entries(self.path / routing_name(self.division)):
            if name.startswith("load-") and batch_of(name) >= since:
                with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                    yield SlotLoad.from_json(json.loads((self.path / routing_name(self.division) / name).read_text()))


def _progress(
    names: tuple[str, ...], number: int, held: Sequence[GroupView], begun: float, ended: float, first: float
) -> Progress:
    """A state as one moment of a run."""
    rows = [view.rows for view in held if view.rows is not None]
    return Progress(
        names=names if rows else (),
        rows_in=tuple(map(sum, zip(*rows, strict=True))) if rows else (),
        elapsed=ended - first,
        on_disk=sum(view.nbytes for view in held),
        phase=f"after batch {number}",
        algorithm="the state of a join on Spark",
        batch=BatchFigures(number, ended - begun, ended - begun),
    )


def _entries(directory: Place) -> dict[str, Entry]:
    """What there is in a directory, by name; nothing if there is none."""
    try:
        if isinstance(directory, Path):
            with os.scandir(directory) as found:
                return dict(sorted((entry.name, entry) for entry in found))
        return dict(sorted((info.base_name, info) for info in directory.infos()))
    except OSError:
        return {}


def _size_and_time(entry: Entry) -> tuple[int, float]:
    """Of a file: its bytes, and when it was written, in seconds since 1970."""
    if isinstance(entry, os.DirEntry):
        status = entry.stat()
        return status.st_size, status.st_mtime
    return entry.size or 0, (entry.mtime_ns or 0) / 1e9
