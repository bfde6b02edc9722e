"""Flips in all files of the state of joins on Spark: of every verb, with hot keys, on a grid, and divided anew."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from simulate.small_queries import BATCHES, QUERIES, STATE, Query, without_syncs
from stress.flips import Flip, kind_of, of_a_directory
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.errors import WatersmeetError
from watersmeet.spark.offline.opened import OpenedState, verify
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition

LAST = BATCHES - 1
"""The batch that reads what was altered; the one before is carried out once more."""
_ANEW = ", divided anew"
NAMES = (*QUERIES, *(f"{name}{_ANEW}" for name in ("join", "window_join", "asof_join", "multijoin")))


def query(name: str, place: Path) -> Query:
    """The query of a name, with its state at this place."""
    made = QUERIES[name.removesuffix(_ANEW)](place)
    if name.endswith(_ANEW):
        made.groups = made.stream.groups = 3
    return made


def played(name: str, place: Path) -> list[Counter[Any]]:
    """What the last batches give; a state that was divided anew does not go back."""
    made = query(name, place)
    return [made.batch(number) for number in ((LAST,) if name.endswith(_ANEW) else (LAST - 1, LAST))]


@cache
def state(name: str) -> Path:
    """A state before the last batch."""
    where = Path(tempfile.mkdtemp(prefix="bits-")) / "query"
    with without_syncs():
        made = QUERIES[name.removesuffix(_ANEW)](where)
        for number in range(LAST):
            made.batch(number)
        if name.endswith(_ANEW):
            repartition(made.state, 3)
    return where


def _divided(name: str, place: Path) -> list[Counter[Any]]:
    """What comes after the state was divided anew, which reads all rows."""
    repartition(place / STATE, 3)
    made = query(f"{name}{_ANEW}", place)
    return [made.batch(LAST)]


def _read(name: str, place: Path) -> list[Counter[Any]]:
    """The rows that the state holds of each input, as `watersmeet state DIR read` has them."""
    state = OpenedState(place / STATE)
    names = ["r", "s", "t"] if name.startswith("multijoin") else ["left", "right"]
    return [
        Counter(row for batch in StateRows(state, each).read(state.group_numbers()) for row in canonical_rows(batch))
        for each in names
    ]


WAYS: dict[str, Callable[[str, Path], list[Counter[Any]]]] = {"batches": played, "divide": _divided, "read": _read}
"""What reads a state: the next batches, and of some joins the tools, too."""


@cache
def _right(name: str, way: str) -> list[Counter[Any]]:
    with tempfile.TemporaryDirectory() as parent, without_syncs():
        found = WAYS[way](name, Path(shutil.copytree(state(name), Path(parent) / "copy")))
    assert found[-1], f"{name} gives nothing"
    return found


def files_of(where: Path) -> dict[str, list[Path]]:
    """The files of a state by their kinds, but for those that are empty."""
    found: dict[str, list[Path]] = {}
    # By what is the same in every run: names have a number of their attempt, or of the division.
    for path in sorted((where / STATE).rglob("*"), key=lambda path: re.sub(r"-?[0-9a-f]{8,12}-", "-", str(path))):
        if path.is_file() and path.stat().st_size:
            below = path.relative_to(where)
            kind = path.name.rstrip("0123456789") if path.parent.name == STATE else path.parent.name
            if kind.startswith("group-"):
                head = path.read_bytes()
                kind = "manifests" if path.name.startswith("manifest") else kind_of(path.name, head)
            elif kind == "runs":
                kind = "runs of the query"
            elif kind in ("routing", "marks"):
                kind = f"{kind}, {path.name.partition('-')[0]}"
            found.setdefault(kind, []).append(below)
    return found


def damage(where: Path) -> str:
    """What the check of all checksums says, before the batches come, whose own word it must not stand in for."""
    try:
        return " ".join(verify(OpenedState(where / STATE)).damaged)
    except WatersmeetError as error:
        return str(error)


def states(draw: random.Random) -> Iterator[Flip]:
    """Flips in a state: whatever reads it finds them, or the check of all checksums, or nothing differs."""
    while True:
        name = draw.choice(NAMES)
        way = draw.choice(["batches", *WAYS]) if f"{name}{_ANEW}" in NAMES else "batches"
        sound, right, files = state(name), _right(name, way), files_of(state(name))
        kind = draw.choice(sorted(files))
        file = draw.choice(files[kind])

        def same(where: Path, name: str = name, way: str = way, right: list[Counter[Any]] = right) -> bool:
            with without_syncs():
                found = damage(where)
                same = WAYS[way](name, where) == right
            if found and same:  # it has not read it, which others would
                raise WatersmeetError(found)
            return same

        told = "" if way == "batches" else f", {way}"
        yield of_a_directory(draw, sound, file, f"state, {name}{told}: {kind}", same)
