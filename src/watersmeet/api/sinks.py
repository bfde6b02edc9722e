"""Files that are whole or absent: written under a temporary name beside the target, and renamed at the very end."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.errors import SpecError, WatersmeetError
from watersmeet.spill.locks import CAN_LOCK, OPEN_LOCK, is_my_own, is_same_file, lock_if_possible, try_lock


class BatchWriter(Protocol):
    """What PyArrow's writers have in common."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        ...

    def close(self) -> None:
        """Write what belongs at the end."""
        ...


def _parquet(file: pa.NativeFile, schema: pa.Schema) -> Any:
    import pyarrow.parquet as pq

    class Writer(pq.ParquetWriter):  # type: ignore[misc]
        def __del__(self) -> None:
            """Nothing: whoever gave up on a file has closed it, and closing the writer then would complain."""

    return Writer(file, schema)


def _csv(file: pa.NativeFile, schema: pa.Schema) -> Any:
    import pyarrow.csv

    return pyarrow.csv.CSVWriter(file, schema)


class _Arrow:
    """An Arrow IPC file, which has one dictionary for each column.

    Batches of results have dictionaries of their own. What is new in each is put behind what is in the file already.
    """

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        import pyarrow.ipc

        options = pyarrow.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pyarrow.ipc.new_file(file, schema, options=options)
        self._known: dict[str, pa.Array] = {}

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        columns = [
            self._in_one_dictionary(name, column) if pa.types.is_dictionary(column.type) else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))

    def _in_one_dictionary(self, name: str, column: pa.DictionaryArray) -> pa.DictionaryArray:
        own = column.dictionary
        # The format knows no way from an empty dictionary to another one.
        known = self._known.setdefault(name, own if len(own) else pa.nulls(1, own.type))
        if own.equals(known):
            return column
        new = own.filter(pc.is_null(pc.index_in(own, value_set=known))).unique()
        if len(new):
            known = self._known[name] = pa.concat_arrays([known, new])
        places = pc.index_in(own, value_set=known).take(column.indices)
        try:
            return pa.DictionaryArray.from_arrays(
                places.cast(column.type.index_type), known, ordered=column.type.ordered
            )
        except pa.ArrowInvalid:
            raise SpecError(
                f"column {name!r} has {len(known):,} different values, more than {column.type.index_type} indices of "
                f"its dictionary can number in one file; cast it first, or write .parquet"
            ) from None

    def close(self) -> None:
        """Write what belongs at the end."""
        self._writer.close()


FORMATS: Mapping[str, tuple[str, Callable[[pa.NativeFile, pa.Schema], Any]]] = {
    ".parquet": ("Parquet", _parquet),
    ".pq": ("Parquet", _parquet),
    ".csv": ("CSV", _csv),
    ".arrow": ("Arrow IPC", _Arrow),
    ".feather": ("Arrow IPC", _Arrow),
    ".ipc": ("Arrow IPC", _Arrow),
}


def check_target(path: str | os.PathLike[str]) -> Path:
    """The file that will be written (a link's target, if it is one), or an error before any work is done.

    >>> check_target("joined.json")
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: joined.json cannot be written; name it .parquet .pq .csv .arrow .feather .ipc
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise SpecError(f"results are written to a file, by its path such as 'joined.parquet', not to {path!r}")
    asked = Path(path)
    if asked.suffix.lower() not in FORMATS:
        raise SpecError(f"{asked} cannot be written; name it {' '.join(FORMATS)}")
    try:
        target = asked.expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise SpecError(f"{os.fspath(path)!r} is no path of a file: {_one_line(error)}") from error
    if not target.parent.is_dir():
        raise SpecError(f"cannot write {asked}: there is no folder {target.parent}; create it first")
    if target.exists() and not target.is_file():
        raise SpecError(f"cannot write {asked}: it exists and is not a file")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise SpecError(f"cannot write {asked}: no permission to create files in {target.parent}")
    return target


def write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str | os.PathLike[str]) -> int:
    """Write all batches in the format that the name says; returns the number of rows.

    Whatever goes wrong, also in making the batches, an existing file stays as it was and nothing new is left.
    """
    target = check_target(path)
    name, open_writer = FORMATS[Path(path).suffix.lower()]  # a link's target may be called anything
    rows = 0
    with contextlib.ExitStack() as leaving:
        with _blaming(path):
            _sweep(target)
            part = _new_part(target, leaving)
            file = pa.OSFile(str(part), "wb")
        leaving.callback(_close_quietly, file)
        with _blaming(path):
            try:
                writer: BatchWriter = open_writer(file, schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                reason = _one_line(error)
                raise SpecError(f"{name} cannot hold these columns: {reason}; write .arrow instead") from error
        leaving.callback(_close_quietly, writer)
        for batch in batches:
            with _blaming(path):
                writer.write_batch(batch)
            rows += batch.num_rows
        with _blaming(path):
            writer.close()
            file.close()
            _sync(part)
            part.replace(target)
    return rows


def _new_part(target: Path, leaving: contextlib.ExitStack) -> Path:
    """An empty file beside the target that is locked as long as this process lives. It is gone when one leaves."""
    while True:
        part = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        leaving.callback(part.unlink, missing_ok=True)
        lock = os.open(part, OPEN_LOCK | os.O_CREAT | os.O_EXCL, 0o666)
        leaving.callback(os.close, lock)
        # A sweeper may have met it before it was locked and taken it away: then another name.
        with contextlib.suppress(FileNotFoundError):
            if lock_if_possible(lock) and is_same_file(lock, part):
                return part


def _sweep(target: Path) -> None:
    """Remove what killed processes have left of this file; a lock tells the living, as in the spill directories."""
    unfinished = re.compile(re.escape(f".{target.name}.") + r"[0-9]+-[0-9a-f]{8}\.part")
    if not CAN_LOCK:  # pragma: no cover - Windows
        return
    found: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:  # one may write where one may not list
        found = [entry for entry in entries if unfinished.fullmatch(entry.name)]
    for entry in found:
        with contextlib.suppress(OSError):  # another process may be sweeping the same one, which is as good
            if entry.is_file(follow_symlinks=False) and is_my_own(entry.stat(follow_symlinks=False)):
                _remove_if_dead(Path(entry.path))


def _remove_if_dead(part: Path) -> None:
    lock = os.open(part, OPEN_LOCK)
    try:
        if try_lock(lock):
            part.unlink()
    finally:
        os.close(lock)


def _close_quietly(what: Any) -> None:
    """Close what may be closed already, on a way out that a second error must not hide."""
    with contextlib.suppress(Exception):
        what.close()


def _sync(path: Path) -> None:
    """Have the content on disk before the name: a crash must not leave a name without it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _blaming(path: str | os.PathLike[str]) -> Iterator[None]:
    """The disk's errors as a sentence that names the file; ours pass."""
    try:
        yield
    except WatersmeetError:
        raise
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or _one_line(error)
        raise WatersmeetError(f"cannot write {os.fspath(path)}: {reason}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
