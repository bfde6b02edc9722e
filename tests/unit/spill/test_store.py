"""Stores: write-once, all or nothing, counted; and directories that never outlive their process."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from simulate.disk import Disk
from simulate.faults import Fault, Faults
from simulate.stores import FaultyStore, flip_byte, truncate_at
from waiting import ended
from watersmeet.core.errors import ProtocolError, SegmentError, SpillError
from watersmeet.spill import FileStore, MemoryStore, Store, StoreWriter, locks
from watersmeet.spill import file_store as private

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and locks as POSIX has them")


@pytest.fixture(params=["file", "memory", "faulty"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: dict[str, Any] = {
        "file": lambda: FileStore(tmp_path),
        "memory": MemoryStore,
        "faulty": lambda: FaultyStore(FileStore(tmp_path)),
    }
    chosen = made[request.param]()
    yield chosen
    chosen.close()


def put(store: Store, name: str, content: bytes = b"content") -> None:
    write_and_commit(store.create(name), content)


def write_and_commit(writer: StoreWriter, content: bytes) -> None:
    writer.write(content)
    writer.commit()


def get(store: Store, name: str) -> bytes:
    content: bytes = store.open(name).to_pybytes()
    return content


def test_a_name_appears_whole_on_commit(store: Store) -> None:
    writer = store.create("b")
    for part in (b"ab", bytearray(b"cd"), memoryview(b"ef"), pa.py_buffer(b"gh"), b""):
        writer.write(part)
    assert store.names() == []
    with pytest.raises(SegmentError, match="'b' is missing"):
        store.open("b")
    writer.commit()
    put(store, "a", b"")
    assert store.names() == ["a", "b"]
    assert get(store, "b") == b"abcdefgh"
    assert get(store, "a") == b""


def test_abort_leaves_nothing(store: Store) -> None:
    writer = store.create("a")
    writer.write(b"1234")
    assert store.bytes_held == 4
    writer.abort()
    writer.abort()
    assert (store.names(), store.bytes_held, store.bytes_written, store.peak_held) == ([], 0, 4, 4)
    put(store, "a")
    writer.abort()  # of the earlier writer: the new content is not its business
    assert get(store, "a") == b"content"


def test_a_finished_writer_is_finished(store: Store) -> None:
    for finish in ("commit", "abort"):
        writer = store.create(finish)
        getattr(writer, finish)()
        for use in (lambda writer=writer: writer.write(b"more"), writer.commit):
            with pytest.raises(ProtocolError, match="has been committed or aborted"):
                use()
        writer.abort()
    assert store.names() == ["commit"]


def test_nothing_is_rewritten(store: Store) -> None:
    put(store, "a")
    writer = store.create("b")
    for name in ("a", "b"):
        with pytest.raises(SpillError, match=f"'{name}' is in .* already.*never rewritten"):
            store.create(name)
    writer.commit()
    assert get(store, "a") == b"content"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../a", "a\0", "-a", "ä", "x" * 201])
def test_names_are_flat_and_plain(store: Store, name: str) -> None:
    with pytest.raises(ProtocolError, match="cannot name spilled bytes"):
        store.create(name)


def test_counts(store: Store) -> None:
    put(store, "a", b"x" * 100)
    put(store, "b", b"x" * 50)
    store.remove("a")
    put(store, "c", b"x" * 20)
    store.open("c")
    assert (store.bytes_written, store.bytes_held, store.peak_held, store.bytes_read) == (170, 70, 150, 0)
    store.count_read(20)
    assert store.bytes_read == 20


def test_removed_is_missing_but_open_buffers_stay(store: Store) -> None:
    put(store, "a")
    buffer = store.open("a")
    store.remove("a")
    assert store.names() == []
    for use in (store.open, store.remove):
        with pytest.raises(SegmentError, match="'a' is missing"):
            use("a")
    assert buffer.to_pybytes() == b"content"


def test_a_closed_store_says_so(store: Store) -> None:
    put(store, "a")
    writer = store.create("b")
    buffer = store.open("a")
    store.close()
    store.close()
    assert store.bytes_held == 0
    for use in (store.create, store.open, store.remove):
        with pytest.raises(SpillError, match="is closed"):
            use("a")
    with pytest.raises(ProtocolError):
        writer.write(b"late")
    assert buffer.to_pybytes() == b"content"


def test_mapped_files_keep_no_descriptor(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("this system does not list descriptors")
    with FileStore(tmp_path) as store:
        before = len(list(descriptors.iterdir()))
        for number in range(20):
            put(store, f"s{number}")
        buffers = [store.open(name) for name in store.names()]
        assert len(list(descriptors.iterdir())) == before
        assert len(buffers) == 20


# Refusals of the operating system


def refuse(code: int) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("call", ["write", "fsync", "close", "replace"])
def test_a_full_disk_leaves_the_rest_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with FileStore(tmp_path, durable=True) as store:
        put(store, "old")
        writer = store.create("new")
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse(errno.ENOSPC))
            with pytest.raises(SpillError) as caught:
                write_and_commit(writer, b"x" * 2048)
        assert caught.value.errno == errno.ENOSPC
        assert str(caught.value) == (
            f"could not write 2 KiB or more as 'new' in {store.path}: the disk is full (No space left on device); "
            f"free space there or choose another spill directory"
        )
        assert {path.name for path in store.path.iterdir()} == {".lock", "old"}
        assert (get(store, "old"), store.bytes_held) == (b"content", 7)
        put(store, "new", b"now there is room")
        assert get(store, "new") == b"now there is room"


def test_a_directory_that_cannot_be_synced_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileStore(tmp_path, durable=True) as store:
        writer = store.create("new")
        sync = os.fsync
        # Only the directory's own sync, which comes after the rename, fails.
        monkeypatch.setattr(
            os, "fsync", lambda fd: refuse(errno.EIO)() if stat.S_ISDIR(os.fstat(fd).st_mode) else sync(fd)
        )
        with pytest.raises(SpillError, match="the disk failed"):
            writer.commit()
        assert store.names() == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with FileStore(tmp_path) as store:
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        put(store, "a", b"0123456789")
        assert get(store, "a") == b"0123456789"
        assert store.bytes_written == 10


def test_a_disk_that_fills_up_mid_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, left = os.write, [5]

    def fill(descriptor: int, data: memoryview) -> int:
        if not left[0]:
            refuse(errno.ENOSPC)()
        written = write(descriptor, data[: left[0]])
        left[0] -= written
        return written

    with FileStore(tmp_path) as store:
        writer = store.create("a")
        monkeypatch.setattr(os, "write", fill)
        with pytest.raises(SpillError, match="could not write 10 B or more"):
            writer.write(b"0123456789")
        assert {path.name for path in store.path.iterdir()} == {".lock"}
        assert (store.bytes_held, store.bytes_written) == (0, 5)


@pytest.mark.parametrize("call", ["write", "replace"])
def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with FileStore(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, interrupt)
            with pytest.raises(KeyboardInterrupt):
                put(store, "a")
        assert {path.name for path in store.path.iterdir()} == {".lock"}


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.EACCES, "it is not permitted .*; choose a spill directory that this user may write to"),
        (errno.EMFILE, "too many files are open .*; raise the limit"),
        (errno.EIO, "the disk failed .*; check the disk or choose another"),
    ],
)
def test_other_refusals_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str
) -> None:
    with FileStore(tmp_path) as store:
        put(store, "a")
        with monkeypatch.context() as patch:
            for call in ("open", "unlink", "listdir"):
                patch.setattr(os, call, refuse(code))
            patch.setattr(pa, "memory_map", refuse(code))
            for use in (lambda: store.create("b"), lambda: store.remove("a"), lambda: store.open("a"), store.names):
                with pytest.raises(SpillError, match=sentence) as caught:
                    use()
                assert str(store.path) in str(caught.value)
                assert not isinstance(caught.value, SegmentError)
        assert (store.names(), store.bytes_held) == (["a"], 7)


def test_a_spill_directory_must_exist_and_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    taken = "a file is where a directory should be"
    for name, why in (("absent", "the directory is not there"), ("file", taken), ("file/below", taken)):
        with pytest.raises(SpillError, match=rf"the spill directory {tmp_path / name}: {why} "):
            FileStore(tmp_path / name)


# The private directory


def test_the_directory_is_private_and_goes_with_close(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    put(store, "a")
    store.create("b").write(b"not committed")
    assert store.path.parent == tmp_path
    assert f"-{os.getpid()}-" in store.path.name
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.path / "a").stat().st_mode) == 0o600
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_system_temporary_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with FileStore() as store:
        assert store.path.parent == tmp_path


def test_a_forgotten_store_is_removed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    put(store, "a")
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_removes_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileStore(tmp_path) as store:
        put(store, "a", bytes(1 // 0))
    assert list(tmp_path.iterdir()) == []


def close_in_child(store: FileStore) -> None:
    store.close()


def leave_child(store: FileStore) -> None:
    put(store, "from the child".replace(" ", "-"))
    sys.exit(0)


@POSIX
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_children_do_not_remove_the_parents_directory(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        put(store, "a")
        writer = store.create("b")
        writer.write(b"half")
        for target in (close_in_child, leave_child):
            child = multiprocessing.get_context("fork").Process(target=target, args=(store,))
            child.start()
            child.join()
            assert child.exitcode == 0
        # Not through multiprocessing, so that the child's exit handlers run too.
        run_forked_exit(store)
        writer.write(b"-whole")
        writer.commit()
        assert store.names() == ["a", "b", "from-the-child"]
        assert get(store, "b") == b"half-whole"
    assert list(tmp_path.iterdir()) == []


def run_forked_exit(store: FileStore) -> None:
    """Run in a child what an interpreter runs at its exit."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        assert store._private is not None
        store._private._finalizer()
        os._exit(0 if store.path.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_pickled_store_is_a_handle_that_owns_nothing(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        put(store, "a")
        handle = pickle.loads(pickle.dumps(store))
        assert get(handle, "a") == b"content"
        put(handle, "b")
        handle.close()
        assert store.names() == ["a", "b"]


CHILD = """
import sys
from watersmeet.spill import FileStore
store = FileStore(sys.argv[1])
for name in ("a", "b"):
    writer = store.create(name)
    writer.write(b"x" * 100_000)
    writer.commit()
store.create("unfinished").write(b"x" * 100_000)
print(store.path, flush=True)
if sys.argv[2] == "raise":
    raise RuntimeError("on purpose")
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


def start(parent: Path, then: str) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(parent), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    assert path.parent == parent
    return child, path


@POSIX
def test_killed_processes_are_swept_and_living_ones_are_not(tmp_path: Path) -> None:
    killed, left = start(tmp_path, "wait")
    living, kept = start(tmp_path, "wait")
    try:
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        assert (left / "a").stat().st_size == 100_000
        with FileStore(tmp_path) as store:
            assert set(tmp_path.iterdir()) == {kept, store.path}
            assert {path.name for path in kept.iterdir()} >= {"a", "b", ".lock"}
    finally:
        living.kill()
        living.communicate()


@POSIX
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    child, path = start(tmp_path, "wait")
    assert path.exists()
    child.send_signal(signal.SIGINT)
    _, errors = ended(child, "it was interrupted")
    assert "KeyboardInterrupt" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made", ["mkdir", "open", "flock"])
def test_an_interruption_while_the_directory_is_made_leaves_nothing(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"mkdir": os, "open": os, "flock": private.fcntl}[made]
    call = getattr(module, made)

    def call_and_stop(*arguments: Any) -> None:
        call(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, made, call_and_stop)
    with pytest.raises(KeyboardInterrupt):
        FileStore(tmp_path)
    monkeypatch.undo()
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("then", ["end", "raise"])
def test_the_end_of_the_interpreter_leaves_nothing(tmp_path: Path, then: str) -> None:
    child, _ = start(tmp_path, then)
    ended(child, "it has nothing more to do")
    assert (child.returncode != 0) == (then == "raise")
    assert list(tmp_path.iterdir()) == []


def left_behind(parent: Path, name: str = "watersmeet-1-0123456789abcdef") -> Path:
    path = parent / name
    path.mkdir()
    (path / ".lock").touch()
    (path / "segment").write_bytes(b"x")
    return path


@POSIX
def test_the_number_of_a_living_process_does_not_protect_the_dead(tmp_path: Path) -> None:
    left = left_behind(tmp_path, f"watersmeet-{os.getppid()}-0123456789abcdef")
    private.sweep(tmp_path)
    assert not left.exists()


@POSIX
def test_a_store_in_the_same_process_is_not_swept(tmp_path: Path) -> None:
    with FileStore(tmp_path) as first, FileStore(tmp_path) as second:
        put(first, "a")
        assert first.path.exists()
        assert second.path.exists()
        assert get(first, "a") == b"content"


@POSIX
def test_only_what_is_certainly_ours_is_swept(tmp_path: Path) -> None:
    foreign = left_behind(tmp_path, "watersmeet-notes")
    unlocked = left_behind(tmp_path, "watersmeet-2-0123456789abcdef")
    (unlocked / ".lock").unlink()
    target = left_behind(tmp_path, "elsewhere")
    link = tmp_path / "watersmeet-3-0123456789abcdef"
    link.symlink_to(target)
    empty = tmp_path / "watersmeet-4-0123456789abcdef"
    empty.mkdir()
    private.sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {foreign, unlocked, target, link}
    assert (target / "segment").exists()


@POSIX
def test_an_interrupted_sweep_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_behind(tmp_path)
    (left / "another").touch()
    unlink, allowed = os.unlink, [1]

    def stumble(path: Path) -> None:
        if not allowed[0]:
            raise OSError(errno.EIO, "stumbled")
        allowed[0] -= 1
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", stumble)
        private.sweep(tmp_path)
    assert (left / ".lock").exists()
    private.sweep(tmp_path)
    assert not left.exists()


@POSIX
def test_a_directory_swept_while_it_was_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = locks.try_lock
    swept: list[Path] = []

    def swept_before_lock(lock: int) -> bool:
        if not swept:
            (made,) = tmp_path.iterdir()
            swept.append(made)
            private._empty(made)
        return attempt(lock)

    monkeypatch.setattr(locks, "try_lock", swept_before_lock)
    with FileStore(tmp_path) as store:
        assert store.path != swept[0]
        put(store, "a")
        assert list(tmp_path.iterdir()) == [store.path]


@POSIX
def test_a_file_system_without_locks_is_used_and_never_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", refuse(errno.ENOLCK))
    with FileStore(tmp_path) as first:
        put(first, "a")
        with FileStore(tmp_path):
            assert get(first, "a") == b"content"
    assert list(tmp_path.iterdir()) == []


# The faulty store


def test_faults_strike_the_chosen_call() -> None:
    store = FaultyStore(MemoryStore(), fail_at=2, operation="create", error=errno.EIO)
    put(store, "a")
    with pytest.raises(SpillError, match="could not create 'b'") as caught:
        put(store, "b")
    assert caught.value.errno == errno.EIO
    put(store, "c")
    assert store.names() == ["a", "c"]
    assert store.calls == {"create": 3, "write": 2, "commit": 2}
    assert store.failures == 1


def test_lasting_faults_stay() -> None:
    store = FaultyStore(MemoryStore(), fail_at=2, operation="remove", lasting=True)
    for name in "abc":
        put(store, name)
    store.remove("a")
    for name in "bc":
        with pytest.raises(SpillError, match="could not remove"):
            store.remove(name)
    assert store.names() == ["b", "c"]


def test_content_is_damaged_on_the_chosen_commit_alone() -> None:
    store = FaultyStore(MemoryStore(), fail_at=2, operation="commit", damage=truncate_at(3))
    for name in "abc":
        put(store, name)
    assert [get(store, name) for name in "abc"] == [b"content", b"con", b"content"]
    assert flip_byte(0, mask=1)(b"\x00\x00") == b"\x01\x00"


def test_faults_must_make_sense() -> None:
    with pytest.raises(ValueError, match="operations are create, write"):
        FaultyStore(MemoryStore(), fail_at=1, operation="fsync")
    with pytest.raises(ValueError, match="operation='commit'"):
        FaultyStore(MemoryStore(), fail_at=1, damage=truncate_at(1))


def test_a_name_whose_answer_was_lost_is_taken_back(tmp_path: Path) -> None:
    """A renaming that was carried out and is said to have failed, as on a network: the name can be written again."""
    store = FileStore(tmp_path)
    writer = store.create("a")
    writer.write(b"content")
    with Disk(tmp_path, Faults([Fault("rename", at=1, how="after", error=errno.EIO)])):
        with pytest.raises(SpillError, match=r"could not write 7 B or more as 'a' .* the disk failed"):
            writer.commit()
    assert store.names() == [] and store.bytes_held == 0
    put(store, "a")
    assert get(store, "a") == b"content"
    store.close()
