"""What a state directory holds, as figures: for people on a terminal, and for machines as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.core.errors import SegmentError, SnapshotError
from watersmeet.joins.confluence import Confluence
from watersmeet.spark.io.state_view import StateView
from watersmeet.spark.offline.opened import OpenedState, Version
from watersmeet.spark.state.directory import ROWS, SEGMENTS
from watersmeet.spark.state.files import names_in


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A group after the last batch in which it had rows."""

    number: int
    batch: int
    rows: tuple[int, ...] | None
    """Of each side; None where that cannot be told without its rows being read."""
    nbytes: int
    runs: int
    """Segments that it consists of."""


def figures(state: OpenedState) -> dict[str, Any]:
    """All there is to be told of a state."""
    view = StateView(state.place)
    batches = state.batches()
    groups = [_group(state, version) for version in state.versions()]
    rows = [group.rows for group in groups if group.rows is not None]
    reached = view.reached(batches[-1]) if batches else None
    described: dict[str, Any] = state.owner.get("described") or {}
    return {
        "place": str(state.path),
        "verb": described.get("verb"),
        "algorithm": described.get("algorithm"),
        "inputs": [{"name": each["name"], "columns": each["columns"]} for each in described.get("inputs", ())],
        "on": _conditions(described),
        "how": described.get("how"),
        "query": state.owner["query"],
        "format": state.owner["format"],
        "version": state.owner.get("version"),
        "runs of the query": len(state.lineage.runs),
        "batches": {"kept from": batches[0], "last": batches[-1]} if batches else None,
        "groups": state.groups,
        "rows": [sum(each) for each in zip(*rows, strict=True)] if rows else None,
        "bytes": sum(group.nbytes for group in groups),
        "files": sum(len(names_in(state.group_path(number))) for number in state.group_numbers()),
        "watermarks": None if reached is None else list(reached),
        "dated": view.dated,
        "hot keys": view.extras().get("hot", []),
        "by group": [
            {"group": each.number, "batch": each.batch, "rows": each.rows, "bytes": each.nbytes, "runs": each.runs}
            for each in groups
        ],
    }


def _conditions(described: dict[str, Any]) -> list[str]:
    found = []
    for each in described.get("on", ()):
        if "width" in each:
            width = each["width"]["value"] if isinstance(each["width"], dict) else each["width"]
            found.append(f"|{each['left']} - {each['right']}| <= {width}")
        else:
            found.append(f"{each['left']} = {each['right']}")
    return found


def _group(state: OpenedState, version: Version) -> GroupFigures:
    files: dict[str, Any] = version.manifest["files"]
    rows = tuple(version.manifest[ROWS]) if ROWS in version.manifest else _counted(state, version)
    nbytes = sum(nbytes for _, nbytes, _ in files.values())
    return GroupFigures(version.group, version.batch, rows, nbytes, len(version.manifest[SEGMENTS]))


def _counted(state: OpenedState, version: Version) -> tuple[int, ...] | None:
    """Rows of each side, where runs tell: of state that is elsewhere, all of them would have to be fetched."""
    described = state.owner.get("described")
    timed = described is not None and described["verb"] in ("window_join", "parallel_join")
    if not timed or not isinstance(state.path, Path):
        return None
    if not issubclass(state.kind, Confluence):
        return None
    try:
        join = state.open(version)
    except (SegmentError, SnapshotError):
        return None
    if join is None:
        return 0, 0
    try:
        return tuple(sum(run.rows for run in runs) for runs in join.runs)
    finally:
        join.close()
