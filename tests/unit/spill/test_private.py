"""What lies on disk is this user's alone, and links lead nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import SpillError
from watersmeet.spill.file_store import FileStore, sweep
from watersmeet.spill.pins import FilePins
from watersmeet.spill.private import make_private, open_new, refuse_link, refuse_strangers


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> set[str]:
    """Of all directories and files below."""
    return {f"{path.is_dir() and 'd' or 'f'} {path.lstat().st_mode & 0o777:o}" for path in root.rglob("*")}


def test_what_is_spilled(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    writer = store.create("a")
    writer.write(b"rows")
    assert modes(tmp_path) == {"d 700", "f 600"}
    writer.commit()
    assert modes(tmp_path) == {"d 700", "f 600"}
    store.close()


def test_a_relation(tmp_path: Path) -> None:
    place = tmp_path / "above" / "relation"
    relation = wm.Relation.build(pa.table({"id": range(100)}), "id", place, durable=False)
    pins = FilePins(place)
    pin = pins.pin(0)
    pins.hold(0, "somebody")
    relation.upsert(pa.table({"id": [1]}))
    assert modes(tmp_path) == {"d 700", "f 600"}
    pin.release()


def test_new_files_and_directories(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    make_private(tmp_path / "a" / "b")  # harmless when repeated
    with open_new(tmp_path / "a" / "file") as file:
        file.write(b"x")
    assert modes(tmp_path) == {"d 700", "f 600"}


def test_a_new_file_is_never_one_that_is_there(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(FileExistsError):
        open_new(tmp_path / "link")
    assert not outside.exists()


def test_links_in_a_relation_are_not_followed(tmp_path: Path) -> None:
    place, outside = tmp_path / "relation", tmp_path / "outside"
    relation = wm.Relation.build(pa.table({"id": range(10)}), "id", place, durable=False)
    (place / ".writer").unlink(missing_ok=True)
    (place / ".writer").symlink_to(outside)
    with pytest.raises(SpillError, match="lock"):
        relation.upsert(pa.table({"id": [3]}))
    (place / ".hold-0-somebody").symlink_to(outside)
    with pytest.raises(SpillError, match="hold version"):
        FilePins(place).hold(0, "somebody")
    assert not outside.exists()


def test_links_beside_spilled_files_are_not_followed(tmp_path: Path) -> None:
    """A directory that looks like one of a dead process, and is a link, or has links in it."""
    outside, spill = tmp_path / "outside", tmp_path / "spill"
    outside.mkdir()
    spill.mkdir()
    (outside / "precious").write_text("rows")
    (outside / ".lock").touch()
    (spill / f"watersmeet-1-{'0' * 16}").symlink_to(outside)
    dead = spill / f"watersmeet-1-{'1' * 16}"
    dead.mkdir()
    (dead / ".lock").touch()
    (dead / "a-link").symlink_to(outside / "precious")
    (dead / "another").symlink_to(outside)
    sweep(spill)
    assert (outside / "precious").read_text() == "rows" and (outside / ".lock").exists()
    assert not dead.exists(), "what a dead process has left goes, the links with it"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    dead = tmp_path / f"watersmeet-1-{'2' * 16}"
    dead.mkdir()
    (dead / ".lock").symlink_to(outside)
    (dead / "rows").touch()
    sweep(tmp_path)
    assert (dead / "rows").exists(), "whose it is cannot be known, so it stays"


def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SpillError, match="is a link to"):
        refuse_link(tmp_path / "link")
    refuse_link(tmp_path)
    refuse_link(tmp_path / "nothing")


def test_a_directory_with_a_name_that_can_be_guessed(tmp_path: Path, umask: int) -> None:
    own = tmp_path / "own"
    make_private(own)
    refuse_strangers(own)
    own.chmod(0o720)
    with pytest.raises(SpillError, match="only this user can write to"):
        refuse_strangers(own)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SpillError, match="only this user"):
        refuse_strangers(tmp_path / "link")


def test_that_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(tmp_path / "own")
    monkeypatch.setattr(os, "geteuid", lambda: 987_654)
    with pytest.raises(SpillError, match="only this user"):
        refuse_strangers(tmp_path / "own")
