"""Who still reads which version of something that lies in a directory, and who may write the next one.

A reader pins the version it reads; whoever removes old versions asks for the oldest pin first. Pins are locked files,
and the system drops a lock with its process: a reader that was killed holds nothing up.

    directory/.pin-<version>-<pid>-<token>      locked while its reader lives
    directory/.hold-<version>-<owner>           there until its owner, who may die and come back, lets go
    directory/.writer                           locked by the one process that changes what lies here

There is a moment between finding the newest version and pinning it. So whoever publishes version v leaves v - 1 alone,
and a reader that has pinned v looks again: unless v + 2 is there by now, nobody has removed v, nor will.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from watersmeet.core.errors import RelationError
from watersmeet.spill.file_store import spill_error
from watersmeet.spill.private import NO_LINK

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_PIN = re.compile(r"\.pin-([0-9]+)-[0-9]+-[0-9a-f]+")
_HOLD = re.compile(r"\.hold-([0-9]+)-([0-9A-Za-z-]+)")
_WRITER = ".writer"
_UNFINISHED = re.compile(r"\.[rv][0-9]{10}\.[0-9]+")
"""What a store calls a version or a segment that is not committed."""


class Pin:
    """A hold on one version, until it is released or forgotten."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._end: weakref.finalize[..., Pin] | None = None

    def release(self) -> None:
        """Let go; harmless when repeated."""
        if self._end is not None:
            self._end()


class Pins(Protocol):
    """The pins of one place."""

    def pin(self, version: int) -> Pin:
        """Hold a version."""
        ...

    def oldest(self) -> int | None:
        """The oldest version that is held; None if none is."""
        ...

    def lock(self) -> Pin:
        """Become the only writer, until it is released; `RelationError` if there is one."""
        ...


class MemoryPins:
    """Pins within this process, for what lies in memory.

    >>> pins = MemoryPins()
    >>> one, two = pins.pin(3), pins.pin(5)
    >>> one.release(); pins.oldest()
    5
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._written = False

    def pin(self, version: int) -> Pin:
        """Hold a version."""
        pin = Pin(version)
        self._held[id(pin)] = version
        pin._end = weakref.finalize(pin, self._held.pop, id(pin), None)
        return pin

    def oldest(self) -> int | None:
        """The oldest version that is held."""
        return min(self._held.values(), default=None)

    def lock(self) -> Pin:
        """Become the only writer."""
        if self._written:
            raise RelationError("this relation is being changed already; wait until that is done")
        self._written = True
        pin = Pin(-1)
        pin._end = weakref.finalize(pin, self._unlock)
        return pin

    def _unlock(self) -> None:
        self._written = False


class FilePins:
    """Pins on a directory, seen by all processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def pin(self, version: int) -> Pin:
        """Hold a version; where this user may not write, reading goes on without a hold."""
        pin = Pin(version)
        path = self._directory / f".pin-{version}-{os.getpid()}-{secrets.token_hex(6)}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        except PermissionError:
            return pin
        except OSError as error:
            raise spill_error(error, f"pin version {version} in {self._directory}") from error
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks: pins last until they are released
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pin._end = weakref.finalize(pin, _unpin, path, descriptor, os.getpid())
        return pin

    def hold(self, version: int, owner: str) -> None:
        """Keep a version for an owner until it lets go, whether or not any process lives meanwhile."""
        try:
            name = self._directory / f".hold-{version}-{owner}"
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | NO_LINK | getattr(os, "O_CLOEXEC", 0), 0o600))
        except PermissionError:
            pass  # as with a pin
        except OSError as error:
            raise spill_error(error, f"hold version {version} in {self._directory}") from error

    def let_go(self, owner: str, before: int) -> None:
        """Versions before this one need not be kept for an owner any more."""
        for name in _listed(self._directory):
            found = _HOLD.fullmatch(name)
            if found and found[2] == owner and int(found[1]) < before:
                with suppress(OSError):
                    os.unlink(self._directory / name)

    def oldest(self) -> int | None:
        """The oldest version that a living reader holds, or that is kept for somebody."""
        names = _listed(self._directory)
        versions = [int(found[1]) for name in names if (found := _PIN.fullmatch(name))
                    and not self._removed_as_dead(name)]  # fmt: skip
        versions += [int(found[1]) for name in names if (found := _HOLD.fullmatch(name))]
        return min(versions, default=None)

    def _removed_as_dead(self, name: str) -> bool:
        path = self._directory / name
        try:
            descriptor = os.open(path, os.O_RDWR | NO_LINK | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if fcntl is None:  # pragma: no cover - Windows
                return False
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            with suppress(OSError):
                os.unlink(path)
            return True
        finally:
            os.close(descriptor)

    def lock(self) -> Pin:
        """Become the only writer among all processes."""
        path = self._directory / _WRITER
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise spill_error(error, f"lock {self._directory} for writing") from error
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise RelationError(
                    f"the relation in {self._directory} is being changed by another writer; wait until that is done"
                ) from None
            except OSError:
                pass  # a file system without locks: it is up to the user to have one writer
        pin = Pin(-1)
        pin._end = weakref.finalize(pin, _close, descriptor)
        _sweep_unfinished(self._directory)
        return pin


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise spill_error(error, f"list {directory}") from error


def _unpin(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child shares the lock, but the pin is its parent's
        with suppress(OSError):
            os.unlink(path)
    with suppress(OSError):
        os.close(descriptor)


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def _sweep_unfinished(directory: Path) -> None:
    """Remove what a killed writer left half-written; called by the only writer there is."""
    for name in _listed(directory):
        if _UNFINISHED.fullmatch(name):
            with suppress(OSError):
                os.unlink(directory / name)
