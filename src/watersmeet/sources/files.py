"""Files, by path or glob: read one after the other, all with one schema."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from watersmeet.core.errors import SourceError
from watersmeet.sources.base import BATCH_ROWS, UNNAMED, BaseSource, expanded, first_line
from watersmeet.sources.conform import Mismatch, castable, positions
from watersmeet.sources.formats import Opened, explain, format_of


class FileSource(BaseSource):
    r"""The rows of one file, or of all files that a glob matches, in the order of their names.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "fruit.csv"
    >>> _ = path.write_text("id,name\n1,apple\n2,pear\n")
    >>> [batch.to_pylist() for batch in FileSource(path).batches()]
    [[{'id': 1, 'name': 'apple'}, {'id': 2, 'name': 'pear'}]]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str = UNNAMED,
        schema: pa.Schema | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        text = str(expanded(path, name))
        super().__init__(text if name == UNNAMED else name, schema, batch_rows)
        self.path = text
        self._files = self._matches(text)
        for file in self._files:
            try:
                format_of(file)
            except SourceError as error:
                raise SourceError(f"{self.name}: {error}" if str(file) != self.name else str(error)) from None
        self._imposed = schema is not None
        self._opened: Opened | None = None
        self._model = self._current = self._files[0]

    @property
    def files(self) -> list[Path]:
        """The files, in the order in which they are read."""
        return list(self._files)

    def _matches(self, text: str) -> list[Path]:
        path = Path(text)
        if path.is_dir():
            raise SourceError(f"{self._called(path)} is a directory; write which files, such as '{path}/*.parquet'")
        if path.exists():
            return [path]
        if not glob.has_magic(text):
            raise SourceError(f"{self._called(path)} does not exist")
        found = sorted(
            file
            for file in map(Path, glob.glob(text, recursive=True))  # noqa: PTH207, as Path.glob wants no absolute pattern
            if file.is_file()
        )
        if not found:
            raise SourceError(f"{self._called(path)} matches no file")
        return found

    def _called(self, file: Path) -> str:
        return str(file) if str(file) == self.name else f"{self.name}: {file}"

    def _find_schema(self) -> pa.Schema:
        for file in self._files:  # the first that has anything to tell types by
            model = self._open(file, None)
            if not model.blank:
                break
            model.close()
        self._model = file
        if file == self._files[0]:
            self._opened = model  # kept for `_read`: a file that stands alone is opened once
        else:
            model.close()
        for other in self._files:
            if other != file and format_of(other).typed:
                self._open(other, model.schema).close()
        return model.schema

    def _read(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            opened, self._opened = self._opened or self._open(file, self.schema()), None
            self._current = file
            try:
                yield from opened.batches
            finally:
                opened.close()

    def _open(self, file: Path, expected: pa.Schema | None) -> Opened:
        """Open a file and compare what it holds with what the caller, or the first file, said."""
        self._current = file
        try:
            opened = format_of(file).open(file, expected, self.batch_rows)
        except (OSError, pa.ArrowException, ValueError) as error:
            reason = explain(first_line(error), file, expected)
            raise SourceError(f"{self._called(file)} cannot be read: {reason}") from error
        if expected is None:
            return opened
        try:
            for at, field in zip(positions(opened.schema, expected), expected, strict=True):
                found = opened.schema.field(at).type
                if not (castable(found, field.type) if self._imposed else found == field.type):
                    raise Mismatch.of_types(field.name, found, field.type)
        except Mismatch as other:
            opened.close()
            whose = "the schema asked for" if self._imposed else str(self._model)
            raise SourceError(f"{self._called(file)} has other columns than {whose}: {other}") from None
        return opened

    def _describe(self, error: Exception) -> str:
        reason = explain(first_line(error), self._current, self._schema)
        return reason if str(self._current) == self.name else f"{self._current}: {reason}"

    def close(self) -> None:
        """Close the file that is open."""
        super().close()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()
