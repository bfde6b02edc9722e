"""Small files that appear whole or not at all, and are still there after a power cut once they have appeared."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SnapshotError, SpillError, WatersmeetError
from watersmeet.spark.state.remote import Place, RemotePath
from watersmeet.spill.file_store import spill_error
from watersmeet.spill.private import make_private, open_new, refuse_link

_MOST_AT_ONCE = 8
NOT_UNDERSTOOD = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, pa.ArrowException,
)  # fmt: skip
"""What goes wrong where content has a right checksum and makes no sense."""


def publish(target: Place, content: bytes, *, first_wins: bool = False) -> bool:
    """Write a file under a name of its own, bring it to the disk, and let it appear; whether it did.

    With `first_wins`, a file that is there stays as it is. (On a remote file system other than S3, of two that write it
    at the same time, the last one wins.) False does not mean that it is another's: look.
    """
    if isinstance(target, RemotePath):
        if first_wins:
            return target.write_new(content)
        target.write_bytes(content)
        return True
    hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}")
    try:
        try:
            with open_new(hidden) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if first_wins:
                os.link(hidden, target)
            else:
                hidden.replace(target)
        except FileExistsError:
            return False
        finally:
            hidden.unlink(missing_ok=True)
        sync([target.parent])
    except OSError as error:
        raise spill_error(error, f"write {target}") from error
    return True


def sync(paths: Iterable[Place]) -> None:
    """Bring files, or the names in directories, to the disk; at once, for one write of the journal serves several."""
    several = [path for path in paths if isinstance(path, Path)]  # a remote file is there when it was written
    if len(several) < 2:
        for path in several:
            _sync(path)
        return
    with ThreadPoolExecutor(min(len(several), _MOST_AT_ONCE)) as threads:
        for _ in threads.map(_sync, several):
            pass


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise spill_error(error, f"bring {path} to the disk") from error


def checked_json(content: dict[str, Any]) -> bytes:
    """Content for `read_json`: a line of JSON, and one with its checksum."""
    text = json.dumps(content, separators=(",", ":"))
    return f"{text}\n{json.dumps({'checksum': zlib.crc32(text.encode())})}\n".encode()


def read_json(path: Place) -> dict[str, Any]:
    """A JSON file whose checksum is on its second line."""
    try:
        text, _, rest = path.read_text().partition("\n")
        found: dict[str, Any] = json.loads(text)
        if json.loads(rest)["checksum"] != zlib.crc32(text.encode()):
            raise ValueError("its checksum differs")
        if not isinstance(found, dict):
            raise ValueError("it does not say what by which name")
    except SpillError:
        raise  # it could not be asked for, which says nothing of the file
    except FileNotFoundError as error:
        raise SnapshotError(f"{path} is missing; put it back, or start again with a new state directory") from error
    except (OSError, *NOT_UNDERSTOOD) as error:
        raise SnapshotError(
            f"{path} is damaged ({error}); put back a sound copy, or start again with a new state directory"
        ) from error
    return found


@contextmanager
def understood(place: Place) -> Iterator[None]:
    """Within, content that has a right checksum and makes no sense is an error that names where it lies.

    A checksum tells what was altered by accident. Whoever alters it on purpose makes a new one.
    """
    try:
        yield
    except WatersmeetError:
        raise
    except NOT_UNDERSTOOD as error:
        raise SnapshotError(
            f"what lies in {place} is not what Watersmeet writes there ({type(error).__name__}: {error}); put back a "
            f"sound copy, or start again with a new state directory"
        ) from error


def read_json_if_there(path: Place) -> dict[str, Any] | None:
    """The same; None if there is no such file."""
    if isinstance(path, Path) and not path.exists():
        return None
    try:
        return read_json(path)
    except SnapshotError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def names_in(directory: Place) -> list[str]:
    """The names in a directory that must be there."""
    try:
        if isinstance(directory, RemotePath):
            return directory.names()
        return os.listdir(directory)  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError as error:
        raise SnapshotError(
            f"{directory} is missing; put it back, or start again with a new state directory"
        ) from error
    except OSError as error:
        raise spill_error(error, f"list {directory}") from error


def make_directory(path: Place) -> None:
    """Make a directory of a state, with those above it, unless it is there: this user's alone, and no link."""
    try:
        if isinstance(path, RemotePath):
            if not path.is_dir():
                path.mkdir()
            return
        refuse_link(path)
        if not path.is_dir():
            make_private(path)
            sync([path.parent])
    except OSError as error:
        raise spill_error(error, f"make the state directory {path}") from error


def refuse_link_in(directory: Place, name: str) -> None:
    """An error if a directory of a state is a link; the state itself may lie behind one."""
    if isinstance(directory, Path):
        refuse_link(directory / name)


def remove_directory(path: Place) -> None:
    """Remove a directory with all that is in it, unless it is gone."""
    try:
        if isinstance(path, RemotePath):
            path.system.delete_dir(path.path)
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise spill_error(error, f"remove {path}") from error


def remove(path: Place) -> None:
    """Remove a file, unless another task was faster."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise spill_error(error, f"remove {path}") from error
