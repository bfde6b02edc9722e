"""Every checksum of a state directory, checked: what is damaged or missing is named, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SegmentError, SnapshotError, SpillError
from watersmeet.runs.matched_bits import check_bits
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.offline.opened import OpenedState, Version
from watersmeet.spark.state.directory import RESULTS, group_number, manifests
from watersmeet.spark.state.files import names_in, read_json
from watersmeet.spark.state.store import VersionedStore
from watersmeet.spill.segment import Segment
from watersmeet.spill.store import Store

_RUN = b"watersmeet sorted run"
_SEGMENT = b"watersmeet segment"


@dataclass(slots=True)
class Verified:
    """What was found."""

    files: int = 0
    nbytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """A sentence for each file that is not what was written."""
    left_over: list[str] = field(default_factory=list)
    """Directories that no version needs, of a division that was killed."""


def verify(state: OpenedState, told: Callable[[int, int], None] | None = None) -> Verified:
    """Check all small files, and all segments that a version of a group names.

    :param told: is given the number of groups that are done, and of all.
    """
    found = Verified()
    for directory in ("runs", "versions", "marks", "routing"):
        for path in _small_files(state, directory):
            _check(found, partial(read_json, path))
    batches = state.batches()
    for number in batches:
        _check(found, partial(_check_mark, state, number))
    for name in names_in(state.path):
        if name.startswith("group-") and group_number(name, state.division) is None:
            found.left_over.append(str(state.path / name))
    numbers = state.group_numbers()
    for done, number in enumerate(numbers):
        if batches:
            _check(found, state.group_state(number, batches[-1]).latest)
        _verify_group(state, number, found)
        if told is not None:
            told(done + 1, len(numbers))
    return found


def _check_mark(state: OpenedState, number: int) -> None:
    """The run that has begun a batch must be known."""
    mark = state.path / "batches" / f"{number:012d}"
    run = mark.read_text().partition(" ")[0]
    if run not in (each for each, _ in state.lineage.runs):
        raise SnapshotError(
            f"{mark} says that run {run} has begun the batch, and {state.path / 'runs'} does not know it; put back the "
            f"file of that run"
        )


def _small_files(state: OpenedState, directory: str) -> Iterator[Any]:
    if not (state.path / directory).exists():
        return
    for name in names_in(state.path / directory):
        if name.isdigit() or name.startswith(("known-", "routing-", "version-")):
            yield state.path / directory / name


def _verify_group(state: OpenedState, number: int, found: Verified) -> None:
    path = state.group_path(number)
    seen = set[str]()
    for batch, name in manifests(names_in(path), state.lineage).items():
        manifest = _check(found, partial(read_json, path / name))
        if manifest is None:
            continue
        store = state.store(Version(number, batch, manifest))
        for segment, (file, nbytes, _) in manifest["files"].items():
            if file not in seen:
                seen.add(file)
                _check(found, partial(_check_content, store, segment))
                found.nbytes += nbytes
        for file in manifest.get(RESULTS, ()):
            if file not in seen and file in names_in(path):  # they go when the batch is over
                seen.add(file)
                _check(found, partial(_check_content, store.group.store, file))


def _check(found: Verified, check: Callable[[], Any]) -> Any:
    """What a check gives; None if it finds damage, which is noted."""
    found.files += 1
    try:
        return check()
    except (SegmentError, SnapshotError, SpillError) as error:
        found.damaged.append(str(error))
    return None


def _check_content(store: VersionedStore | Store, name: str) -> None:
    """Read a segment through; an error if it is not what was written."""
    buffer: pa.Buffer = store.open(name)
    begins = buffer.slice(0, min(64, buffer.size)).to_pybytes()
    try:
        if begins.startswith(_RUN):
            run = SortedRun(store, name, ())
            run.check_hashes(0, run.rows)
            run.check_all_blocks()
            let_go([run])
        elif begins.startswith(_SEGMENT):
            segment = Segment.open(store, name)
            for page in range(segment.pages):
                segment.read_page(page)
            for array in segment.arrays:
                segment.array(array)
            segment.close()
        else:
            check_bits(name, buffer)
    except SegmentError as error:
        raise (store.named(error) if isinstance(store, VersionedStore) else error) from error
