"""A disk that fails on purpose: every operation on files below a directory asks the plan of faults first.

It stands between the library and the operating system, at Python's own functions, so that any code that uses files goes
through it: nothing in `src` knows. What native code does for itself (reading pages that are mapped, writing Parquet) is
asked for when the file is opened.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulate.faults import Faults

OPERATIONS = ("open", "map", "read", "write", "fsync", "rename", "link", "unlink", "mkdir", "rmdir", "list")
_WRITES = os.O_WRONLY | os.O_RDWR


class Disk:
    """While this is entered, what happens below `root` happens by the plan."""

    def __init__(self, root: Path, faults: Faults, syncs: bool = False) -> None:
        """`syncs`: whether files are brought to the real disk, which takes most of the time."""
        self._root = f"{root}/"
        self._faults = faults
        self._syncs = syncs
        self._descriptors: dict[int, Any] = {}
        self.owner: Callable[[], Any] = lambda: None
        """Who opens files, so that those of somebody who died can be let go."""
        self._real: dict[tuple[Any, str], Any] = {}

    def __enter__(self) -> Disk:
        for owner, name, make in self._patches():
            self._real[owner, name] = real = getattr(owner, name)
            setattr(owner, name, make(real))
        return self

    def __exit__(self, *_: Any) -> None:
        for (owner, name), real in self._real.items():
            setattr(owner, name, real)
        self._real.clear()
        self._descriptors.clear()

    def bury(self, owner: Any) -> None:
        """The files of somebody who died are closed, and with them their locks; the numbers stay taken until then."""
        for descriptor in [number for number, whose in self._descriptors.items() if whose is owner]:
            nothing = self._real[os, "open"]("/dev/null", os.O_RDONLY)
            os.dup2(nothing, descriptor)
            self._real[os, "close"](nothing)
            del self._descriptors[descriptor]

    def _patches(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        plain = {"mkdir": "mkdir", "rmdir": "rmdir", "unlink": "unlink", "remove": "unlink", "listdir": "list",
                 "scandir": "list", "link": "link", "rename": "rename", "replace": "rename"}  # fmt: skip
        return [
            *((os, name, partial(self._named, kind)) for name, kind in plain.items()),
            (os, "open", self._open), (os, "close", self._close), (os, "write", self._write), (os, "read", self._read),
            (os, "pread", self._read), (os, "fsync", self._fsync), (io, "open", self._file),
            (pa, "memory_map", partial(self._named, "map")), (pa, "OSFile", partial(self._named, "open")),
        ]  # fmt: skip

    def _is_ours(self, path: Any) -> bool:
        if isinstance(path, bytes | int) or path is None:
            return False
        return os.fspath(path).startswith(self._root)

    def _named(self, kind: str, real: Any) -> Any:
        def act(path: Any, *args: Any, **options: Any) -> Any:
            if not self._is_ours(path):
                return real(path, *args, **options)
            return self._faults.perform(kind, lambda: real(path, *args, **options))

        return act

    def _open(self, real: Any) -> Any:
        def act(path: Any, flags: int, *args: Any, **options: Any) -> int:
            faults = self._faults
            if not self._is_ours(path) or not faults.on:
                return int(real(path, flags, *args, **options))
            faults.before("open")
            fault = faults.due("open")
            if fault is not None and fault.how == "slow":
                faults.on_slow()
                fault = None
            if fault is not None and not (fault.how == "blind" and not flags & _WRITES):
                faults.refuse(fault)
            descriptor = int(real("/dev/null" if fault is not None else path, flags, *args, **options))
            self._descriptors[descriptor] = self.owner()
            return descriptor

        return act

    def _close(self, real: Any) -> Any:
        def act(descriptor: int) -> None:
            self._descriptors.pop(descriptor, None)
            real(descriptor)

        return act

    def _write(self, real: Any) -> Any:
        def act(descriptor: int, data: Any) -> int:
            if descriptor not in self._descriptors:
                return int(real(descriptor, data))
            return self._faults.perform(
                "write",
                lambda: int(real(descriptor, data)),
                lambda: int(real(descriptor, bytes(data)[: len(data) // 2])),
            )

        return act

    def _read(self, real: Any) -> Any:
        def act(descriptor: int, *args: Any) -> Any:
            if descriptor not in self._descriptors:
                return real(descriptor, *args)
            return self._faults.perform("read", lambda: real(descriptor, *args))

        return act

    def _fsync(self, real: Any) -> Any:
        def act(descriptor: int) -> None:
            self._faults.perform("fsync", lambda: real(descriptor) if self._syncs else None)

        return act

    def _file(self, real: Any) -> Any:
        disk = self

        def act(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not self._is_ours(path):
                return real(path, mode, *args, **options)
            raw = self._faults.perform("open", lambda: _Raw(os.fspath(path), mode.replace("b", "").replace("t", "")))
            raw.disk = disk
            if "+" in mode:
                found: Any = io.BufferedRandom(raw)
            elif "r" in mode:
                found = io.BufferedReader(raw)
            else:
                found = io.BufferedWriter(raw)
            return found if "b" in mode else io.TextIOWrapper(found, encoding="utf-8")

        return act


class _Raw(io.FileIO):
    """A file of Python's own, whose reads and writes ask."""

    disk: Disk

    def write(self, data: Any) -> Any:
        whole = bytes(data)
        return self.disk._faults.perform(
            "write", lambda: io.FileIO.write(self, whole), lambda: io.FileIO.write(self, whole[: len(whole) // 2])
        )

    def readall(self) -> Any:
        return self.disk._faults.perform("read", lambda: io.FileIO.readall(self))

    def readinto(self, buffer: Any) -> Any:
        return self.disk._faults.perform("read", lambda: io.FileIO.readinto(self, buffer))


class Clock:
    """Seconds that pass with what is done, and jump."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now
        self.jumps = 0

    def jump(self, seconds: float) -> None:
        """Somebody has set the clock."""
        self.now += seconds
        self.jumps += 1

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def __enter__(self) -> Clock:
        self._real = time.time, time.time_ns
        time.time, time.time_ns = self, lambda: int(self() * 1e9)
        return self

    def __exit__(self, *_: Any) -> None:
        time.time, time.time_ns = self._real
