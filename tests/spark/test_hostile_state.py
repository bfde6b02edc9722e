"""State directories that somebody has prepared: nothing outside of them is read, written or removed. Without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark.divided_streams import Stream, cut
from watersmeet.cli.main import run
from watersmeet.core.errors import SnapshotError, SpillError, WatersmeetError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spark.io.state_view import StateView
from watersmeet.spark.offline.opened import OpenedState, figures, verify
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.state.files import checked_json, read_json
from watersmeet.spark.state.remote import Cache, RemotePath


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


TABLES = [pa.record_batch({"id": [i % 7 for i in range(60)], name: range(60)}) for name in ("a", "b")]


def stream(place: Path) -> Stream:
    return Stream(place, JoinSpec(TABLES[0].schema, TABLES[1].schema, parse_on("id"), "left"), 2)


def batch(made: Stream, number: int) -> None:
    made.batch(number, [cut(table, 4)[number] for table in TABLES])


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state after three batches of four."""
    made = stream(tmp_path / "state")
    for number in range(3):
        batch(made, number)
    return tmp_path / "state"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of somebody else, whose files have names like ours."""
    place = tmp_path / "outside"
    place.mkdir()
    for name in ("000000000000", "000000", "operator-1-00000000-5f0c-0", "manifest-000000000009-00000000"):
        (place / name).write_text("precious")
    return place


def untouched(outside: Path) -> bool:
    return {path.read_text() for path in outside.iterdir()} == {"precious"} and len(list(outside.iterdir())) == 4


def alter(path: Path, **changes: Any) -> None:
    """Another content, whose checksum is right."""
    path.write_bytes(checked_json({**read_json(path), **changes}))


def test_state_is_this_users_alone(umask: int, tmp_path: Path) -> None:
    made = stream(tmp_path / "above" / "state")
    for number in range(3):
        batch(made, number)
    found = list((tmp_path / "above").rglob("*"))
    assert len(found) > 10
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in [*found, tmp_path / "above"]}
    assert modes == {(True, 0o700), (False, 0o600)}


@pytest.mark.parametrize("name", ["group-0000", "batches", "runs"])
def test_a_query_does_not_go_on_through_a_link(name: str, state: Path, outside: Path) -> None:
    (state / name).rename(state.parent / "moved")
    (state / name).symlink_to(outside)
    with pytest.raises(SpillError, match="is a link to"):
        batch(stream(state), 3)
    assert untouched(outside)


def test_nor_does_one_that_goes_back(state: Path, outside: Path) -> None:
    """It forgets what it wrote of later batches, in all groups; a link that is called like one leads nowhere."""
    (state / "group-0009").symlink_to(outside)
    made = stream(state)
    made.run = "run-1"
    with pytest.raises(SpillError, match="is a link to"):
        batch(made, 1)
    assert untouched(outside)


def test_a_state_may_itself_lie_behind_a_link(state: Path) -> None:
    (state.parent / "link").symlink_to(state)
    batch(stream(state.parent / "link"), 3)
    assert OpenedState(state.parent / "link").batches()[-1] == 3


def test_a_group_that_is_a_link_is_not_removed_through(state: Path, outside: Path) -> None:
    """Dividing anew removes old groups, and what an attempt before has left."""
    (state / "group-5f0c77a1-0000").symlink_to(outside)
    with pytest.raises(SpillError):
        repartition(state, 3)
    assert untouched(outside)


@pytest.mark.parametrize("division", ["../../outside", "/etc", "..", "5f0c/../..", "\0", 7, None, ["a"]])
def test_a_division_that_leads_out(division: Any, state: Path, outside: Path) -> None:
    alter(state / "state.json", division=division)
    for look in (OpenedState, StateView, lambda place: repartition(place, 3), lambda place: batch(stream(place), 3)):
        with pytest.raises(SnapshotError):
            look(state)
    assert untouched(outside)


@pytest.mark.parametrize("groups", [0, -1, 1 << 60, "2", None, 1.5, [2]])
def test_groups_that_cannot_be(groups: Any, state: Path) -> None:
    alter(state / "state.json", groups=groups)
    for look in (OpenedState, StateView, lambda place: repartition(place, 3)):
        with pytest.raises(SnapshotError, match=r"state\.json"):
            look(state)


@pytest.mark.parametrize("name", ["../../outside/000000", "/etc/passwd", "..", ".hidden", "a/b", "", "\0", 7, None])
def test_a_manifest_that_names_files_outside(name: Any, state: Path, outside: Path) -> None:
    for path in state.glob("group-*/manifest-*"):
        found = read_json(path)
        files = {each: [name, told[1], told[2]] for each, told in found["files"].items()}
        alter(path, files=files, segments=[name] * len(files))
    damaged = verify(OpenedState(state)).damaged
    assert damaged and not any("precious" in each for each in damaged)
    with pytest.raises(WatersmeetError):
        list(StateRows(OpenedState(state), "left").read())
    with pytest.raises(WatersmeetError):
        batch(stream(state), 3)
    assert untouched(outside)


def test_a_segment_that_is_a_link_is_known_for_another_file(state: Path, outside: Path) -> None:
    path = next(state.glob("group-0000/operator-*"))
    path.unlink()
    path.symlink_to(outside / "000000")
    assert any(path.name in each for each in verify(OpenedState(state)).damaged)
    assert untouched(outside)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff\xfe", b"", b"null", b"[1]"])
@pytest.mark.parametrize("name", ["state.json", "runs/000000"])
def test_content_that_no_parser_likes(name: str, text: bytes, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import zlib

    (state / name).write_bytes(text + b'\n{"checksum": %d}\n' % zlib.crc32(text))
    for action in (["show"], ["verify"], ["read", "--side", "left"], ["repartition", "--partitions", "3"]):
        assert run(["state", str(state), *action]) == 1
        told = capsys.readouterr()
        assert name.split("/")[0] in told.err + told.out and "unexpected" not in told.err
        assert len(told.err) < 2_000


def test_a_batch_whose_mark_is_no_text(state: Path) -> None:
    (state / "batches" / "000000000001").write_bytes(b"run-\xb0")
    assert any("000000000001" in each for each in verify(OpenedState(state)).damaged)
    batch(stream(state), 3)


def test_files_with_odd_names_are_not_ours(state: Path) -> None:
    """Digits that are no numbers, and numbers that are none of ours."""
    for place in ("batches", "runs"):
        (state / place / "²").touch()
    (state / f"group-{'9' * 30}").mkdir()
    (state / "group-x").mkdir()
    batch(stream(state), 3)
    assert figures(OpenedState(state))["batches"]["last"] == 3
    assert len(StateView(state).extras()["groups"]) == 2


def test_names_are_shown_and_not_obeyed(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column's name can hold what moves a terminal's cursor, or sets its title."""
    described = read_json(state / "state.json")["described"]
    described["inputs"][0]["columns"][0][0] = "\x1b]0;title\x07id\x1b[2J"
    alter(state / "state.json", described=described)
    assert run(["state", str(state), "show"]) == 0
    told = capsys.readouterr().out
    assert "]0;title" in told and "\x1b" not in told and "\x07" not in told


def test_fetched_state_is_not_kept_where_others_can_write(tmp_path: Path) -> None:
    """The cache lies in a directory that all users share, under a name that they can guess."""
    place = RemotePath.of(f"fetch+file://{tmp_path}/remote")
    root = tmp_path / f"watersmeet-state-{os.getuid()}"
    cache = Cache(root, 1 << 20)
    assert cache.directory(place).stat().st_mode & 0o777 == 0o700 == root.stat().st_mode & 0o777
    root.chmod(0o777)
    with pytest.raises(SpillError, match="only this user"):
        cache.directory(place)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(SpillError, match="only this user"):
        Cache(tmp_path / "link", 1 << 20).directory(place)
