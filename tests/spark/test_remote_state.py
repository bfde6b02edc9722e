"""State on a file system that is only reached through PyArrow: fetched, mapped from a bounded cache, published last."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from watersmeet.core.errors import SegmentError, SnapshotError, SpecError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spark.plan.recipe import JoinFactory
from watersmeet.spark.state import remote as remote_files
from watersmeet.spark.state.directory import Batch, GroupState, Owner, StateDirectory
from watersmeet.spark.state.open_runs import OpenRuns
from watersmeet.spark.state.remote import Cache, RemotePath, RemoteStore
from watersmeet.spark.task.operator_cache import KeptOperators
from watersmeet.spark.task.operator_group import OperatorGroup, Shares
from watersmeet.spark.task.ordered_rows import Arrivals
from watersmeet.spark.task.settled_group import SettledGroup
from watersmeet.spill.store import MemoryStore

SPEC = JoinSpec(pa.schema({"id": pa.int64(), "a": pa.int64()}), pa.schema({"id": pa.int64()}), parse_on("id"))


class Objects(fs.FileSystemHandler):  # type: ignore[misc]
    """Objects in memory: no renames, no links, no appending; an object is there when its stream is closed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.directories: set[str] = set()
        self.opened: list[str] = []

    def get_type_name(self) -> str:
        return "objects"

    def normalize_path(self, path: str) -> str:
        return path

    def _info(self, path: str) -> fs.FileInfo:
        if path in self.objects:
            return fs.FileInfo(path, fs.FileType.File, size=len(self.objects[path]))
        return fs.FileInfo(path, fs.FileType.Directory if path in self.directories else fs.FileType.NotFound)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        base = selector.base_dir.rstrip("/")
        if base not in self.directories:
            raise FileNotFoundError(base)
        everything = [*self.objects, *self.directories]
        return [self._info(path) for path in sorted(everything) if path.rpartition("/")[0] == base]

    def create_dir(self, path: str, recursive: bool) -> None:
        while path:
            self.directories.add(path)
            path = path.rpartition("/")[0]

    def delete_file(self, path: str) -> None:
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]

    def open_input_stream(self, path: str) -> Any:
        self.opened.append(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.PythonFile(pa.BufferReader(self.objects[path]), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        handler = self

        class Upload(pa.BufferOutputStream):  # type: ignore[misc]
            def close(self) -> None:
                if not self.closed:
                    handler.objects[path] = self.getvalue().to_pybytes()

        return pa.PythonFile(Upload(), mode="w")

    def _never(self, *args: Any) -> Any:
        raise AssertionError("an object store does no such thing")

    delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = _never
    open_input_file = open_append_stream = _never


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    return Objects()


def _place(objects: Objects) -> RemotePath:
    return RemotePath(fs.PyFileSystem(objects), "bucket/state", "objects://bucket/state")


def _begin(objects: Objects, number: int, owner: Owner, run: str = "run-1", cache: int = 1 << 20) -> StateDirectory:
    return StateDirectory(_place(objects), owner, Batch(number, run), retain=3, cache_bytes=cache)


def _batch(group: GroupState, pieces: list[tuple[int, pa.RecordBatch]]) -> int:
    """Run a batch in a process that has seen nothing; returns how many results it gives."""
    join = SettledGroup(JoinFactory.of(SPEC, "auto"), 1 << 20, group, OpenRuns())
    return sum(batch.num_rows for batch in join.results(iter(pieces), lambda: set()))


def test_endless_joins_go_on_from_objects(objects: Objects, tmp_path: Path) -> None:
    owner = Owner("join", 1, "query")
    found = []
    for number in range(20):
        group = _begin(objects, number, owner, cache=1).group(0)  # nothing stays in the cache
        rows = pa.record_batch({"id": [7, number], "a": [number, 0]})
        found.append(_batch(group, [(0, rows), (1, pa.record_batch({"id": [7]}))]))
    # The pairs of a batch: its rows of key 7 with the earlier and with each other; batch 7 has one more on the left.
    expected = [2 * n + 1 + (n + 1 if n == 7 else 1 if n > 7 else 0) for n in range(20)]
    assert found == expected
    assert any("/operator-" in path for path in objects.opened), "segments were fetched again"
    assert len([path for path in objects.objects if "/manifest-" in path]) < 12, "old versions were dropped"


def test_operators_go_on_from_objects_and_a_replay_hands_out_the_same(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    left = pa.record_batch({"id": rng.integers(0, 900, 3_000), "a": np.arange(3_000)})
    right = pa.record_batch({"id": rng.integers(0, 900, 3_000)})
    factory = JoinFactory.of(SPEC, "xjoin")
    owner, memory = Owner(factory.fingerprint, 1, "query"), 160 << 10

    def batch(number: int, run: str, ended: tuple[int, ...] = ()) -> list[pa.RecordBatch]:
        arrivals = Arrivals(factory.inputs, Shares.of(memory).arrivals, MemoryStore)
        if number < 3:
            arrivals.add(0, left.slice(number * 1000, 1000))
            arrivals.add(1, right.slice(number * 1000, 1000))
        group = _begin(objects, number, owner, run, cache=60_000).group(0)
        outcome = OperatorGroup(factory, memory, 500, group, KeptOperators()).run(arrivals, frozenset(ended))
        spilled.append(outcome.counts.spilled)
        return list(outcome.results)

    uploaded, real = [], RemoteStore.upload
    monkeypatch.setattr(RemoteStore, "upload", lambda s, n: uploaded.append((s.path / n).stat().st_size) or real(s, n))
    spilled: list[int] = []
    found: list[Any] = []
    for number in range(4):
        ended = (0, 1) if number == 3 else ()
        results = batch(number, f"run-{number}", ended)
        again = batch(number, f"run-{number + 1}", ended)
        assert [b.to_pylist() for b in again] == [b.to_pylist() for b in results]
        found += results
    assert sum(spilled) > 0
    others = Counter(right["id"].to_pylist())
    rows = zip(left["id"].to_pylist(), left["a"].to_pylist(), strict=True)
    expected = Counter({(key, number): others[key] for key, number in rows if others[key]})
    assert Counter((row["id"], row["a"]) for b in found for row in b.to_pylist()) == expected
    sizes = [path.stat().st_size for path in (tmp_path / "local").rglob("*") if path.is_file()]
    assert sum(sizes) <= 60_000 + 60_000 // 16 + max(sizes), "the cache is bounded"
    assert sum(uploaded) > 4 * 60_000


def test_what_is_wrong_with_objects_is_named(objects: Objects) -> None:
    owner = Owner("join", 1, "query")
    group = _begin(objects, 0, owner).group(0)
    _batch(group, [(0, pa.record_batch({"id": [7], "a": [1]}))])
    [segment] = [path for path in objects.objects if "/operator-" in path]
    del objects.objects[segment]
    store = RemoteStore.of(_place(objects) / "group-0000", Cache(Path(group.store.path).parent / "other", 1 << 20))
    with pytest.raises(SegmentError, match=segment.rpartition("/")[2]):
        store.open(segment.rpartition("/")[2])
    with pytest.raises(SnapshotError, match="belongs to another join"):
        _begin(objects, 1, Owner("other", 1, "query"))
    objects.objects.clear()
    with pytest.raises(SnapshotError, match="no state in objects://bucket/state, but the query goes on with batch 1"):
        _begin(objects, 1, owner)


def test_a_cache_that_cannot_be_looked_through_is_trimmed_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", 1000)
    (tmp_path / "cache" / "place").mkdir(parents=True)

    def add(number: int) -> None:
        path = tmp_path / "cache" / "place" / f"segment-{number}"
        path.write_bytes(bytes(600))
        os.utime(path, (number, number))
        cache.added(path)

    def refuse(_path: Path, _pattern: str) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "glob", refuse)
        add(1)
        add(2)
    assert len(list(cache.root.glob("*/*"))) == 2
    add(3)
    assert [path.name for path in cache.root.glob("*/*")] == ["segment-3"]


def test_addresses() -> None:
    assert not remote_files.is_remote("/a/b")
    assert str(RemotePath.of("fetch+file:///a/b/") / "c") == "fetch+file:///a/b/c"
    assert (RemotePath.of("fetch+file:///a/b/") / "c").path == "/a/b/c"
    with pytest.raises(SpecError, match="is not reached by PyArrow"):
        RemotePath.of("gopher://host/x")
