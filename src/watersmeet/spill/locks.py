"""Locks by which a file tells whether the process that made it still lives: the system drops them with the process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None
OPEN_LOCK = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
"""For `os.open`, of a file that is to be locked."""
# What file systems that know no locks answer.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def lock_if_possible(lock: int) -> bool:
    """Lock an open file; False if another has. True also where nobody can lock."""
    try:
        return try_lock(lock)
    except OSError as error:
        if error.errno in _NO_LOCKS:  # nobody can lock here, so nobody will sweep either: we go without
            return True
        raise


def try_lock(lock: int) -> bool:
    """Lock an open file; False if another has, and an OSError where the file system knows no locks."""
    if fcntl is None:  # pragma: no cover - Windows: that the file is open is the lock
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one of this name."""
    return os.path.samestat(os.fstat(descriptor), os.stat(path))


def is_my_own(status: os.stat_result) -> bool:
    """Whether a file is this user's."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
