"""Which states are gone on from, and which are refused, with what words. No Spark is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from watersmeet.core.errors import SegmentError, SnapshotError, SpillError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.state.directory import (
    RESULTS,
    SEGMENTS,
    Batch,
    GroupState,
    Owner,
    StateDirectory,
    batch_of,
    manifest_name,
)
from watersmeet.spark.state.files import read_json
from watersmeet.spark.state.lineage import token
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.task.settled_group import SettledGroup

OWNER = Owner("some join", 2, "query-1")
SPEC = JoinSpec(pa.schema({"id": pa.int64(), "a": pa.string()}), pa.schema({"id": pa.int64()}), parse_on("id"))


def begin(path: Path, number: int, run: str = "run-1", owner: Owner = OWNER) -> StateDirectory:
    return StateDirectory(path, owner, Batch(number, run), retain=10)


def at_work(group: GroupState, number: int, key: int, opened: OpenRuns | None = None) -> Iterator[pa.RecordBatch]:
    """A task with a batch of one left and one right row; its results come before its state is published."""
    rows = [(0, pa.record_batch({"id": [key], "a": [f"in {number}"]})), (1, pa.record_batch({"id": [key]}))]
    join = SettledGroup(JoinFactory.of(SPEC, "auto"), 1 << 20, group, opened or OpenRuns())
    return join.results(iter(rows), lambda: set())


def feed(group: GroupState, number: int, key: int, opened: OpenRuns | None = None) -> list[dict[str, object]]:
    """A batch of one left and one right row."""
    return [row for batch in at_work(group, number, key, opened) for row in batch.to_pylist()]


def segments(group: GroupState) -> set[str]:
    """The files that the group holds when a batch begins."""
    found = group.latest()
    return set(found[SEGMENTS]) if found else set()


def run_batches(path: Path, numbers: range, run: str = "run-1") -> None:
    for number in numbers:
        feed(begin(path, number, run).group(0), number, 7)


def manifests(group: Path) -> list[int]:
    """The batches of which there is a manifest, valid or not."""
    return sorted(batch_of(path.name) for path in group.glob("manifest-*"))


def test_each_batch_goes_on_from_the_one_before(tmp_path: Path) -> None:
    found = [len(feed(begin(tmp_path / "s", number).group(0), number, 7)) for number in range(4)]
    assert found == [1, 3, 5, 7]  # the pairs with one new row or two


def test_a_group_without_rows_keeps_its_state(tmp_path: Path) -> None:
    run_batches(tmp_path, range(2))
    for number in (2, 3):
        begin(tmp_path, number)
    assert len(feed(begin(tmp_path, 4).group(0), 4, 7)) == 5
    assert manifests(tmp_path / "group-0000") == [0, 1, 4]


def test_a_missing_directory_is_an_error_unless_the_query_is_new(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"no state in .*gone, but the query goes on with batch 3"):
        begin(tmp_path / "gone", 3)


def test_a_start_that_was_refused_begins_no_state_when_what_was_in_its_way_is_moved_away(tmp_path: Path) -> None:
    place, another = tmp_path / "state", replace(OWNER, query="query-2")
    run_batches(place, range(1))
    with pytest.raises(SnapshotError, match="belongs to query query-1"):
        begin(place, 0, "run-2", another)
    place.rename(tmp_path / "moved away")
    with pytest.raises(SnapshotError, match=r"this start of the query was refused .*Start the query again"):
        begin(place, 0, "run-2", another)
    assert not place.exists()
    assert begin(place, 0, "run-3", another).group(0).latest() is None


def test_a_state_that_could_not_be_read_for_once_refuses_no_start(tmp_path: Path) -> None:
    place = tmp_path / "state"
    run_batches(place, range(1))
    text = (place / "state.json").read_text()
    (place / "state.json").write_text(text[:-9])
    with pytest.raises(SnapshotError, match="damaged"):
        begin(place, 0, "run-2")
    place.rename(tmp_path / "moved away")
    assert begin(place, 0, "run-2").group(0).latest() is None


def test_the_state_of_another_query_is_refused(tmp_path: Path) -> None:
    run_batches(tmp_path, range(1))
    with pytest.raises(SnapshotError, match=r"belongs to query query-1, not to this one \(query-2\)"):
        begin(tmp_path, 0, owner=Owner("some join", 2, "query-2"))


def test_a_changed_join_is_refused(tmp_path: Path) -> None:
    run_batches(tmp_path, range(1))
    with pytest.raises(SnapshotError, match="belongs to another join"):
        begin(tmp_path, 1, owner=Owner("other join", 2, "query-1"))


def test_another_number_of_groups_is_refused_with_the_right_one(tmp_path: Path) -> None:
    run_batches(tmp_path, range(1))
    with pytest.raises(SnapshotError, match="join with partitions=2"):
        begin(tmp_path, 1, owner=Owner("some join", 3, "query-1"))


def test_a_state_that_is_older_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    run_batches(tmp_path, range(2))
    with pytest.raises(SnapshotError, match="goes up to batch 1, but the query goes on with batch 5 and needs batch 4"):
        begin(tmp_path, 5)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    run_batches(tmp_path, range(3))
    (tmp_path / "group-0000" / manifest_name(2, "run-1")).unlink()
    with pytest.raises(SnapshotError, match=r"manifest of batch 2 is missing from .*group-0000"):
        begin(tmp_path, 3).group(0).latest()


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    run_batches(tmp_path, range(1))
    path = tmp_path / "group-0000" / manifest_name(0, "run-1")
    path.write_text(path.read_text().replace('"ended":[]', '"ended":[1]'))
    with pytest.raises(SnapshotError, match=r"manifest-000000000000-[0-9a-f]+ is damaged \(its checksum differs\)"):
        begin(tmp_path, 1).group(0).latest()


@pytest.mark.parametrize("how", ["flipped", "cut", "deleted"])
@pytest.mark.parametrize("already_mapped", [False, True])
def test_a_damaged_segment_is_named(tmp_path: Path, how: str, already_mapped: bool) -> None:
    opened = OpenRuns()
    feed(begin(tmp_path, 0).group(0), 0, 7, opened)
    if already_mapped:
        feed(begin(tmp_path, 1).group(0), 1, 7, opened)
    number = 2 if already_mapped else 1
    group = begin(tmp_path, number).group(0)
    name = min(segments(group))
    path = group.store.path / name
    content = path.read_bytes()
    path.unlink()
    if how != "deleted":
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(changed if how == "flipped" else content[:-9])
    with pytest.raises(SegmentError, match=rf"the state in .*group-0000 is damaged.*{name}"):
        feed(group, number, 7, opened)


def test_a_query_that_goes_back_forgets_what_it_did_not_finish(tmp_path: Path) -> None:
    run_batches(tmp_path, range(5))
    # Started again from batch 3, with other rows in it and none for this group.
    begin(tmp_path, 3, "run-2")
    assert manifests(tmp_path / "group-0000") == [0, 1, 2]
    assert len(feed(begin(tmp_path, 4, "run-2").group(0), 4, 7)) == 7


def test_tasks_of_one_batch_keep_each_others_work(tmp_path: Path) -> None:
    run_batches(tmp_path, range(2))
    late = begin(tmp_path, 1, "run-2")
    feed(late.group(1), 1, 9)
    begin(tmp_path, 1, "run-2")
    late._begin()  # a task that looked before the first one was done
    late._forget_from(1, {token("run-1")})
    assert manifests(tmp_path / "group-0001") == [1]
    assert len(feed(begin(tmp_path, 2, "run-2").group(1), 2, 9)) == 3


def test_an_attempt_that_comes_too_late_is_told_so(tmp_path: Path) -> None:
    run_batches(tmp_path, range(4))
    with pytest.raises(SnapshotError, match="comes too late"):
        begin(tmp_path, 2)
    assert manifests(tmp_path / "group-0000") == [0, 1, 2, 3]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match="could not make the state directory"):
        begin(tmp_path / "file" / "state", 0)


def test_an_attempt_of_an_earlier_start_of_the_query_cannot_begin(tmp_path: Path) -> None:
    run_batches(tmp_path, range(2))
    feed(begin(tmp_path, 2, "run-2").group(0), 2, 7)
    for number in (1, 2, 3):
        with pytest.raises(SnapshotError, match=r"started again .* belongs to an earlier start \(run-1\)"):
            begin(tmp_path, number, "run-1")
    assert len(feed(begin(tmp_path, 3, "run-2").group(0), 3, 7)) == 7


def test_an_earlier_start_that_did_nothing_yet_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    run_batches(tmp_path, range(2))
    feed(begin(tmp_path, 2, "run-3", replace(OWNER, made=3_000)).group(0), 2, 7)
    for number in (2, 3):
        with pytest.raises(
            SnapshotError, match=r"put together at 1970-.* before that of its last start .* call wms\.join"
        ):
            begin(tmp_path, number, "run-2", replace(OWNER, made=2_000))
    assert len(feed(begin(tmp_path, 3, "run-3", replace(OWNER, made=3_000)).group(0), 3, 7)) == 7
    # One that was put together at the same time, or later, goes on.
    assert len(feed(begin(tmp_path, 4, "run-4", replace(OWNER, made=3_000)).group(0), 4, 7)) == 9


def test_results_that_an_earlier_start_publishes_while_the_next_one_begins_are_whole(tmp_path: Path) -> None:
    late = begin(tmp_path, 0).group(0)
    results = tmp_path / "group-0000" / late.file("results")
    results.write_bytes(b"rows")
    group = begin(tmp_path, 0, "run-2").group(0)  # it is the same batch again: what the sink has may be this
    late.publish_once({SEGMENTS: [], RESULTS: [results.name]})
    found = group.published()
    assert found is not None
    assert found[RESULTS] == [results.name]
    assert results.exists()


@pytest.mark.parametrize("late_at", ["writing", "publishing"])
def test_what_an_attempt_of_an_earlier_start_still_leaves_behind_is_not_looked_at(tmp_path: Path, late_at: str) -> None:
    run_batches(tmp_path, range(2))
    late = begin(tmp_path, 2).group(0)  # its driver dies, but nobody has told it
    task = at_work(late, 2, 7)
    next(task)
    if late_at == "publishing":
        once = late.publish_once

        def publish(content: dict[str, object]) -> dict[str, object]:
            feed(begin(tmp_path, 2, "run-2").group(0), 2, 7)
            return once(content)

        late.publish_once = publish  # type: ignore[method-assign]
    else:
        feed(begin(tmp_path, 2, "run-2").group(0), 2, 7)
    list(task)
    assert manifests(tmp_path / "group-0000") == [0, 1, 2, 2]
    assert len(feed(begin(tmp_path, 3, "run-2").group(0), 3, 7)) == 7


def test_two_attempts_at_a_task_may_publish_in_any_order(tmp_path: Path) -> None:
    run_batches(tmp_path, range(2))
    first, second = begin(tmp_path, 2).group(0), begin(tmp_path, 2).group(0)
    assert len(feed(second, 2, 7)) == len(feed(first, 2, 7)) == 5
    assert len(feed(begin(tmp_path, 3).group(0), 3, 7)) == 7


def test_files_of_dead_attempts_are_swept_and_nothing_that_is_needed(tmp_path: Path) -> None:
    def batch(number: int) -> StateDirectory:
        return StateDirectory(tmp_path, OWNER, Batch(number, "run-1"), retain=2)

    for number in range(1, 60, 2):
        batch(number - 1)
        feed(batch(number).group(0), number, number)
        if number == 5:  # one attempt dies while it writes a segment, one before it publishes, one while it marks
            dead = batch(number).group(0)
            dead.store.create(dead.file("operator"))
            dead.publish_once = None  # type: ignore[assignment]
            with pytest.raises(TypeError):
                feed(dead, number, number)
            (tmp_path / "batches" / ".000000000005.abc").touch()
            litter = {path for path in tmp_path.glob("*/*") if path.name.startswith(".")}
            assert len(litter) == 2
    group = batch(60).group(0)
    held = segments(group)
    files = {path.name for path in (tmp_path / "group-0000").iterdir()}
    versions = [read_json(path)[SEGMENTS] for path in (tmp_path / "group-0000").glob("manifest-*")]
    needed = held.union(*versions)
    assert needed <= files
    assert min(batch_of(name) for name in files - needed) > 48
    assert sum(len(feed(batch(60).group(0), 60, number)) for number in (1, 57)) == 3 + 3, "the rows are all there"
    assert min(int(path.name) for path in (tmp_path / "batches").iterdir()) >= 57


def test_a_manifest_appears_after_what_it_names_has_reached_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_batches(tmp_path, range(1))
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)

    monkeypatch.setattr(os, "fsync", note)
    group = begin(tmp_path, 1).group(0)
    synced.clear()
    feed(group, 1, 7)
    monkeypatch.undo()
    new = {name for name in segments(begin(tmp_path, 2).group(0)) if batch_of(name) == 1}
    *files, manifest, directory = synced
    assert new and set(files) == new
    assert manifest.startswith(f".{manifest_name(1, 'run-1')}") and directory == "group-0000"
