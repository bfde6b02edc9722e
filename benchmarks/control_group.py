"""A limit that the system keeps: a group of Linux's memory controller, of either version, with a process in it."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

EVERY = 0.02
"""Seconds between two looks at what a group holds."""
_LIMITS = (("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), ("memory.max", "memory.swap.max"))
"""Of version 1, where the second bounds memory and swap together, and of version 2, where it bounds swap alone."""
_OWN, _CACHED = ("rss", "anon"), ("cache", "file")
"""What each version calls a process's own memory, and pages of files."""
_TRIES = 100


class ControlGroup:
    """A new group inside `parent`, a directory of the memory controller, with so many bytes and no swap.

    Pages of files that a process has read or written count against the limit, too, but the system takes them back
    before it refuses memory: they are told apart.
    """

    def __init__(self, parent: Path, limit: int) -> None:
        self.path = parent / f"watersmeet-{os.getpid()}-{secrets.token_hex(4)}"
        self._limit = limit
        self.own = 0
        """Bytes of processes' own at most, as far as was seen."""
        self.cached = 0
        """Bytes of pages of files at most, as far as was seen."""

    def __enter__(self) -> Self:
        self._make()
        try:
            memory, swap = next(names for names in _LIMITS if (self.path / names[0]).exists() or names is _LIMITS[-1])
            (self.path / memory).write_text(str(self._limit))
            if (self.path / swap).exists():  # not all systems count swap
                (self.path / swap).write_text("0" if memory == "memory.max" else str(self._limit))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for left in reversed(range(_TRIES)):  # it is busy until the last process is quite gone
            try:
                self._remove()
                break
            except OSError as error:
                if error.errno != errno.EBUSY or not left:
                    raise
                time.sleep(EVERY)

    @property
    def processes(self) -> Path:
        """A process that writes its number there is in the group; what it holds by then is not counted."""
        return self.path / "cgroup.procs"

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, enters: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, in the group from the beginning unless it enters by itself, and look at what it holds."""
        if enters:
            command = ["sh", "-c", f'echo $$ > "{self.processes}" && exec "$@"', "sh", *command]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment)
        ) as process:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, said = process.communicate(timeout=EVERY)
                    return subprocess.CompletedProcess(command, process.returncode, out, said)
                self._look()

    def _make(self) -> None:
        """The system puts files into it."""
        self.path.mkdir()

    def _remove(self) -> None:
        """With its files, which nobody else can remove."""
        self.path.rmdir()

    def _look(self) -> None:
        lines = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        held = {name: int(value) for name, value in lines}
        self.own = max(self.own, *(held.get(name, 0) for name in _OWN))
        self.cached = max(self.cached, *(held.get(name, 0) for name in _CACHED))
