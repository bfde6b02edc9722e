"""A state directory seen from outside, while a query writes to it or long after: read only, and never in its way.

Files may be gone by the time they are looked at: what is swept away between two looks is left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.core.report import BatchFigures
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress
from watersmeet.spark.rebalance.reorganizing import SlotLoad
from watersmeet.spark.rebalance.routing import Routing
from watersmeet.spark.state.directory import ROWS, batch_of, files_of, manifests, token_of
from watersmeet.spark.state.files import read_json
from watersmeet.spark.state.lineage import Lineage, known_runs

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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "state.json").is_file():
            raise SpecError(f"{self.path} is not the state directory of a join: there is no state.json in it")
        self.owner = read_json(self.path / "state.json")
        self._known: dict[tuple[str, str], GroupView] = {}
        """Manifests that were read, by group and name: they never change."""
        self._told = -1
        """The last batch of which a history was told."""
        self._began: float | None = None

    def batches(self) -> dict[int, float]:
        """The batches that are known to have begun, and when."""
        found = {}
        for name in _names(self.path / "batches"):
            with suppress(OSError):
                if name.isdigit():
                    found[int(name)] = (self.path / "batches" / name).stat().st_mtime
        return dict(sorted(found.items()))

    def tell(self, history: History) -> bool:
        """Add what the state was like after each batch that is over and was not told before; whether there was one.

        The last batch counts as over when nothing has been written for a while.
        """
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
            history.add(_progress(number, held, begun, ended, self._began))
            self._told, told = number, True
        return told

    def extras(self) -> dict[str, Any]:
        """Groups and slots, what they have to do, what has just moved, and hot keys."""
        lineage = self._lineage()
        sizes = {}
        for name in self._groups():
            versions = dict(self._versions(name, lineage, last=True))
            sizes[int(name.removeprefix("group-"))] = max(versions.items())[1].nbytes if versions else 0
        newest = max(self.batches(), default=0)
        routing, batch = self._routing(lineage)
        if routing is None:
            count = max([self.owner["groups"], *(number + 1 for number in sizes)])
            sized = [{"number": number, "slot": None, "load": sizes.get(number, 0)} for number in range(count)]
            return {"groups": sized, "unit": "bytes", "of": "of state", "batch": newest}
        work: dict[int, float] = {}
        for load in self._loads(newest - _LOADS_OF):
            for number, took in load.groups.items():
                work[number] = work.get(number, 0.0) + took.seconds
        groups = [
            {"number": number, "slot": slot, "load": work.get(number, 0.0), "moved": number in routing.moved}
            for number, slot in enumerate(routing.owner)
            if slot >= 0
        ]
        hot = [
            {"key": f"{key.key & (1 << 64) - 1:016x}", "ways": key.home.ways, "groups": list(key.home.groups)}
            for key in routing.hot
        ]
        said = f"of work in the last {_LOADS_OF} batches"
        return {"groups": groups, "unit": "seconds", "of": said, "hot": hot, "batch": batch}

    def _groups(self) -> list[str]:
        return [name for name in _names(self.path) if name.startswith("group-")]

    def _lineage(self) -> Lineage:
        return known_runs(self.path / "runs")

    def _versions(self, group: str, lineage: Lineage, last: bool = False) -> Iterator[tuple[int, GroupView]]:
        versions = list(manifests(_names(self.path / group), lineage).items())
        for batch, name in versions[-1:] if last else versions:
            with suppress(OSError, SnapshotError):  # it was swept away
                if (group, name) not in self._known:
                    self._known[group, name] = self._view(self.path / group, name)
                yield batch, self._known[group, name]

    @staticmethod
    def _view(group: Path, name: str) -> GroupView:
        manifest = read_json(group / name)
        sizes = [(group / each).stat().st_size for each in files_of(manifest) if (group / each).exists()]
        rows = tuple(manifest[ROWS]) if ROWS in manifest else None
        return GroupView(sum(sizes), rows, (group / name).stat().st_mtime)

    def _routing(self, lineage: Lineage) -> tuple[Routing | None, int]:
        names = [
            name
            for name in _names(self.path / "routing")
            if name.startswith("routing-") and lineage.answers_for(batch_of(name), token_of(name))
        ]
        for name in sorted(names, key=batch_of, reverse=True):
            with suppress(SnapshotError):
                return Routing.from_json(read_json(self.path / "routing" / name)), batch_of(name)
        return None, -1

    def _loads(self, since: int) -> Iterator[SlotLoad]:
        for name in _names(self.path / "routing"):
            if name.startswith("load-") and batch_of(name) >= since:
                with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                    yield SlotLoad.from_json(json.loads((self.path / "routing" / name).read_text()))


def _progress(number: int, held: Sequence[GroupView], begun: float, ended: float, first: float) -> Progress:
    """A state as one moment of a run."""
    rows = [view.rows for view in held if view.rows is not None]
    return Progress(
        names=SIDES if rows else (),
        rows_in=tuple(map(sum, zip(*rows, strict=True))) if rows else (),
        elapsed=ended - first,
        on_disk=sum(view.nbytes for view in held),
        phase=f"after batch {number}",
        algorithm="the state of a join on Spark",
        batch=BatchFigures(number, ended - begun, ended - begun),
    )


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []
