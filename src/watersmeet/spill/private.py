"""Directories and files that are this user's alone, whatever the umask says, and that lead nowhere else.

What is spilled or remembered are somebody's rows. It may lie in a directory that others can write to, such as the
temporary one, under a name that they can guess. So what is made is closed to others (0700, 0600), a new file is never
one that somebody has put there, and a link is not followed to where something would be written or removed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from watersmeet.core.errors import SpillError

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""For `os.open`: an error where the name is a link."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def make_private(path: Path) -> None:
    """Make a directory, with those above it, unless it is there; whatever is made is open to this user alone.

    >>> import tempfile
    >>> made = Path(tempfile.mkdtemp()) / "state" / "group-0003"
    >>> make_private(made)
    >>> [oct(each.stat().st_mode & 0o777) for each in (made.parent, made)]
    ['0o700', '0o700']
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_private(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def open_new(path: Path) -> BinaryIO:
    """A new file, to be written; `FileExistsError` if there is anything of that name, a link to nowhere, too."""
    return os.fdopen(os.open(path, _NEW, 0o600), "wb")


def refuse_link(path: Path) -> None:
    """An error if this is a link: what is written or removed behind it would be somewhere else."""
    if path.is_symlink():
        raise SpillError(
            f"{path} is a link to {os.readlink(path)}, and nothing is written or removed through links; put a "
            f"directory in its place, or name the one that it leads to"
        )


def refuse_strangers(path: Path) -> None:
    """An error unless this is a directory of this user's that nobody else can write to."""
    found = path.lstat()
    others = hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022)
    if not stat.S_ISDIR(found.st_mode) or others:
        raise SpillError(
            f"{path} is not a directory that only this user can write to, so what is in it cannot be relied upon; "
            f"remove it, or choose another place for temporary files"
        )
