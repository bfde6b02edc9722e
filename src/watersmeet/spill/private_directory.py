"""A directory that belongs to one process and does not outlive it.

It is removed when it is closed, forgotten or when the interpreter exits. A process that is killed cannot clean up, so
whoever next makes a directory beside it does: each holds a lock file, and the system drops the lock with the process.
A process number alone would not tell the dead from the living: numbers are used again, and containers that share a
temporary directory number their processes independently.

    parent/watersmeet-<pid>-<token>/        mode 0700
        .lock                               locked while the owner lives; always removed last
        ...                                 flat files
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import weakref
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = ".lock"
_OURS = re.compile(r"watersmeet-[0-9]+-[0-9a-f]{16}")
_OPEN_LOCK = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
# What file systems that know no locks answer.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


class PrivateDirectory:
    """Make `parent/watersmeet-<pid>-<token>`, after sweeping those whose owners have died.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     private = PrivateDirectory(Path(parent))
    ...     existed = private.path.is_dir()
    ...     private.close()
    ...     existed, os.listdir(parent)
    (True, [])
    """

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        self._made = _Made()
        # First of all, so that an interruption while it is being made leaves nothing either.
        self._finalizer = weakref.finalize(self, self._made.remove)
        self._made.make(parent)

    @property
    def path(self) -> Path:
        """Where it is."""
        assert self._made.path is not None
        return self._made.path

    def close(self) -> None:
        """Remove it with all its files. In a forked child this does nothing: the directory is the parent's."""
        self._finalizer()


def sweep(parent: Path) -> None:
    """Remove the directories in `parent` whose owners have died; those of the living and of other users stay."""
    with os.scandir(parent) as entries:
        candidates = [entry for entry in entries if _OURS.fullmatch(entry.name)]
    for entry in candidates:
        with suppress(OSError):  # another process may be sweeping the same one, which is as good
            if entry.is_dir(follow_symlinks=False) and _is_my_own(entry.stat(follow_symlinks=False)):
                _remove_if_dead(Path(entry.path))


class _Made:
    """What there is to remove, apart from the object whose end says when."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._lock: int | None = None
        self._owner = os.getpid()

    def make(self, parent: Path) -> None:
        """A new directory, locked."""
        while True:
            self.path = parent / f"watersmeet-{self._owner}-{secrets.token_hex(8)}"
            self.path.mkdir(mode=0o700)
            lock = self.path / _LOCK
            try:
                self._lock = os.open(lock, _OPEN_LOCK | os.O_CREAT | os.O_EXCL, 0o600)
                # A sweeper may have met the directory before it was locked and taken it away: then try another name.
                if _lock_if_possible(self._lock) and _is_same_file(self._lock, lock):
                    return
            except FileNotFoundError:
                if not parent.is_dir():
                    raise
            except BaseException:
                self.remove()
                raise
            self._unlock()

    def remove(self) -> None:
        """All of it, unless this is a forked child: the directory is its parent's."""
        if self.path is None or os.getpid() != self._owner:
            return
        if fcntl is None:  # pragma: no cover - Windows, where a file that is open cannot be removed
            self._unlock()
        _empty(self.path)
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        _close(lock)


def _remove_if_dead(path: Path) -> None:
    try:
        lock = os.open(path / _LOCK, _OPEN_LOCK)
    except FileNotFoundError:
        # Being made, or all but removed. Files without a lock are not ours to judge: this fails unless it is empty.
        path.rmdir()
        return
    if fcntl is None:  # pragma: no cover - Windows refuses to remove what its owner has open, elsewhere we cannot know
        _close(lock)
        if os.name == "nt":
            (path / _LOCK).unlink()
            _empty(path)
        return
    try:
        if _try_lock(lock):
            _empty(path)
    finally:
        _close(lock)


def _empty(path: Path) -> None:
    """Remove the files, then the lock, then the directory: interrupted anywhere, a later sweep can finish it."""
    with suppress(OSError):
        for name in sorted(os.listdir(path), key=lambda name: name == _LOCK):
            os.unlink(path / name)
        path.rmdir()


def _lock_if_possible(lock: int) -> bool:
    try:
        return _try_lock(lock)
    except OSError as error:
        if error.errno in _NO_LOCKS:  # nobody can lock here, so nobody will sweep either: we go without
            return True
        raise


def _try_lock(lock: int) -> bool:
    if fcntl is None:  # pragma: no cover - Windows: that the file is open is the lock
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))


def _is_my_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
