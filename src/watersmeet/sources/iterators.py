"""Iterators of batches, tables, frames or dicts: schema from the first item, and no row waits for the next."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from operator import methodcaller
from types import GeneratorType
from typing import Any

import pyarrow as pa

from watersmeet.core.errors import SourceError
from watersmeet.sources.base import BATCH_ROWS, PASS_A_SCHEMA, UNNAMED, BaseSource
from watersmeet.sources.conform import Mismatch, from_values, inferred
from watersmeet.sources.tables import as_table

GROUP_ROWS = 1024
GROUP_SECONDS = 0.002

_NOT_YET = object()
_END = object()

Row = Mapping[str, object]


class IteratorSource(BaseSource):
    """Items as they come: the first one tells the kind and, unless it was given, the schema.

    >>> slow = ({"id": i} for i in range(3))
    >>> sum(batch.num_rows for batch in IteratorSource(slow, "numbers").batches())
    3

    Dicts are pulled by a thread of their own, and those that come within 2 ms form a batch. The first dict decides
    the schema, so that what is accepted does not depend on how fast the others follow.
    """

    def __init__(
        self,
        items: Iterable[object],
        name: str = UNNAMED,
        schema: pa.Schema | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        super().__init__(name, schema, batch_rows)
        self._at_once = isinstance(items, list | tuple)
        self.waits = self._at_once
        self._items = self.drains = iter(items)
        self._first: object = _NOT_YET
        self._pump: _Pump | None = None

    @property
    def schema_known(self) -> bool:
        """True once a schema was given or the first item is there; a list never keeps anyone waiting."""
        return self._schema is not None or self._at_once

    def schema(self) -> pa.Schema:
        """The schema that was given, or else the first item's: waits for it."""
        if self._schema is None:
            self._schema = self._find_schema()
        return self._schema

    def _find_schema(self) -> pa.Schema:
        return self._schema_of(self._take_first())

    def _take_first(self) -> object:
        if self._first is _NOT_YET:
            try:
                self._first = next(self._items, _END)
            except SourceError:
                raise
            except Exception as error:
                raise SourceError(f"{self.name} broke off after 0 rows: {self._describe(error)}") from error
        return self._first

    def _schema_of(self, item: object) -> pa.Schema:
        if item is _END:
            raise SourceError(f"{self.name} is empty, so its columns are not known; {PASS_A_SCHEMA}")
        if not isinstance(item, Mapping):
            return self._table(item, 1).schema.remove_metadata()
        fields = []
        for key, value in item.items():
            if not isinstance(key, str):
                raise SourceError(f"{self.name}: the column name {key!r} is not a string")
            try:
                fields.append(pa.field(key, inferred([value]).type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise SourceError(
                    f"{self.name}: column {key!r} begins with {_short(value)}, which has no Arrow type; {PASS_A_SCHEMA}"
                ) from error
        return pa.schema(fields)

    def _read(self) -> Iterator[pa.RecordBatch]:
        first, self._first = self._take_first(), _END
        if first is _END:
            return
        if isinstance(first, Mapping):
            yield from self._read_dicts(first)
            return
        for number, item in enumerate(chain([first], self._items), 1):
            if isinstance(item, pa.RecordBatch):
                yield item
            else:
                yield from self._table(item, number).to_batches()

    def _table(self, item: object, number: int) -> pa.Table:
        table = as_table(item, f"item {number} of {self.name}")
        if table is None:
            raise SourceError(
                f"{self.name} gives {type(item).__name__} as item {number}; it must give record batches, tables, "
                f"frames or dicts, one kind throughout"
            )
        return table

    def _read_dicts(self, first: Row) -> Iterator[pa.RecordBatch]:
        groups = self._groups_at_once(first) if self._at_once else self._groups_in_time(first)
        seen = 0
        for group in groups:
            yield self._batch(group, seen)
            seen += len(group)

    def _groups_at_once(self, first: object) -> Iterator[list[object]]:
        items = chain([first], self._items)
        while group := list(islice(items, GROUP_ROWS)):
            yield group

    def _groups_in_time(self, first: object) -> Iterator[list[object]]:
        self._pump = _Pump(self._items, first)
        if self._closed:
            self._pump.stop()
        return self._pump.groups()

    def _batch(self, rows: list[Any], seen: int) -> pa.RecordBatch:
        """Dicts as a batch; a key that is missing is a null, a key too many is an error."""
        schema = self.schema()
        strange = [kind for kind in set(map(type, rows)) if not issubclass(kind, Mapping)]
        if strange:
            at = next(at for at, row in enumerate(rows) if type(row) is strange[0])
            raise SourceError(f"{self.name} gives {strange[0].__name__} as row {seen + at + 1}; it began with dicts")
        extra = set().union(*rows).difference(schema.names)
        if extra:
            at = next(at for at, row in enumerate(rows) if not extra.isdisjoint(row))
            key = next(key for key in rows[at] if key in extra)
            raise SourceError(
                f"{self.name}, row {seen + at + 1}: column {key!r} is not expected; the columns are "
                f"{', '.join(schema.names)}; leave it out, or {PASS_A_SCHEMA}"
            )
        columns = []
        for field in schema:
            values = list(map(methodcaller("get", field.name), rows))
            try:
                columns.append(from_values(values, field))
            except Mismatch as mismatch:
                raise self._first_misfit(values, field, seen) from mismatch
        if not columns:
            raise SourceError(f"{self.name} gives dicts without keys; a row needs at least one column")
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _first_misfit(self, values: list[object], field: pa.Field, seen: int) -> SourceError:
        """The error for the first value that does not fit; walks over the values, as there is one error and no more."""
        for at, value in enumerate(values):
            try:
                from_values([value], field)
            except Mismatch as mismatch:
                told = mismatch if value is None else Mismatch.of_types(field.name, _short(value), field.type)
                return self._misfit(told, f"row {seen + at + 1}")
        told = Mismatch.of_types(field.name, "values of no common type", field.type)
        return self._misfit(told, f"rows {seen + 1} to {seen + len(values)}")

    def close(self) -> None:
        """Stop the thread once it is back from the iterator; a generator is closed with it."""
        super().close()
        if self._pump is not None:
            self._pump.stop()
        else:
            _close_items(self._items)


class _Pump:
    """A thread that pulls rows ahead, so that whoever asks gets those that are there and need not wait for the next.

    At most one group waits here; the iterator is not pulled further before it is taken.
    """

    def __init__(self, items: Iterator[object], first: object) -> None:
        self._items = items
        self._rows: list[object] = [_own(first)]
        self._error: BaseException | None = None
        self._ended = False
        self._stopped = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="watersmeet-rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        lock = self._lock  # taken for every row, and sooner by itself than by way of the condition
        try:
            for item in self._items:
                # Before the iterator is asked for more, as it may write into the same dict again.
                row = item.copy() if type(item) is dict else _own(item)
                with lock:
                    self._rows.append(row)
                    count = len(self._rows)
                    if count == 1 or count >= GROUP_ROWS:
                        self._changed.notify_all()
                    if count >= GROUP_ROWS:
                        self._changed.wait_for(lambda: self._stopped or not self._rows)
                    if self._stopped:
                        break
        except BaseException as error:  # whatever it is, the reader must hear of it rather than wait for ever
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            if self._stopped:
                _close_items(self._items)

    def groups(self) -> Iterator[list[object]]:
        """Rows as they come, up to 1,024 that came within 2 ms of asking; ends or raises as the iterator did."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._rows or self._over())
                self._changed.wait_for(lambda: len(self._rows) >= GROUP_ROWS or self._over(), GROUP_SECONDS)
                rows, self._rows = self._rows, []
                self._changed.notify_all()
            if self._stopped:
                return
            if rows:
                yield rows
            elif self._error is not None:
                raise self._error
            else:
                return

    def _over(self) -> bool:
        return self._ended or self._stopped

    def stop(self) -> None:
        """Ask the thread to end; it does when the iterator lets it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def _own(item: object) -> object:
    """A row that stays as it is when whoever gave it alters theirs; of the dict, not of what is nested in it."""
    return dict(item) if isinstance(item, Mapping) else item


def _close_items(items: object) -> None:
    """Run a generator's clean-up; other iterators are their owner's to close."""
    if isinstance(items, GeneratorType):
        with suppress(ValueError):  # another thread is in the middle of it: it ends with that thread
            items.close()


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
