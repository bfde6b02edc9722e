"""Relations on disk for the user: built from any source, changed while they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core import html
from watersmeet.core.closing import Closing
from watersmeet.core.errors import RelationError, SpecError
from watersmeet.core.given import directory, plain_number
from watersmeet.memory import parse_memory
from watersmeet.relation.changes import StoredRelation, with_surrogate, without_surrogate
from watersmeet.relation.relation import THETA, Design, RelationReader, published
from watersmeet.sources import as_source, source
from watersmeet.sources.base import Source
from watersmeet.spill.file_store import FileStore, spill_error
from watersmeet.spill.pins import FilePins
from watersmeet.spill.private import make_private


class Relation(StoredRelation, Closing):
    """A table on disk, cut by key into segments, that streams are joined with: see `wm.lookup_join`.

    Changes are atomic: a reader, in this process or another, sees all of one or nothing, and goes on with the version
    it has opened until it moves to the next. A change that is killed at any point leaves the relation as it was, or as
    it was to become.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "products.rel"
    >>> products = Relation.build([{"sku": 7, "name": "cup"}, {"sku": 8, "name": "pot"}], on="sku", path=path)
    >>> products.upsert([{"sku": 8, "name": "kettle"}, {"sku": 9, "name": "pan"}]), products.delete([7])
    (2, 3)
    >>> Relation.open(path).table().to_pylist()
    [{'sku': 8, 'name': 'kettle'}, {'sku': 9, 'name': 'pan'}]
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        super().__init__(FileStore.at(path, durable=durable), FilePins(path), str(path))

    @classmethod
    def build(
        cls,
        data: object,
        on: str | Sequence[str],
        path: str | os.PathLike[str],
        *,
        partition: str = "range",
        memory: str | int = "64 MiB",
        unique: bool = False,
        surrogate: str | None = None,
        segment: str | int = THETA,
        partitions: int | None = None,
        replace: bool = False,
        spill: str | os.PathLike[str] | None = None,
        durable: bool = True,
    ) -> Relation:
        """Lay rows out on disk, once, within `memory`.

        `data` is whatever `wm.join` takes, or the cursor of a database. Rows whose key is NULL are left out: nothing
        could look them up.

        :param on: the key column, or several.
        :param path: a directory for the relation; it is made if it is not there.
        :param partition: `"range"` keeps neighbouring keys together, which pays where the stream's keys come in
            clusters; `"hash"` spreads them.
        :param unique: refuse rows of the same key.
        :param surrogate: a new column of this name, in which the relation gives each key a number of its own.
        :param segment: the least size of a segment; the largest is about twice that.
        :param partitions: with `partition="hash"`, how many; enough for segments of about `segment` unless given.
        :param replace: lay out anew what is there; readers keep the old version until they move on.
        :param spill: where to sort what does not fit into memory; beside the relation unless given.
        :param durable: wait for the disk, so that a change that was made survives a crash of the machine.
        """
        partitions = plain_number(partitions)
        if partitions is not None and (partition != "hash" or partitions < 1):
            raise SpecError("partitions= is a number of hash partitions; ranges are cut by their size, segment=")
        place = directory(path, "path").absolute()
        beside = place.parent if spill is None else directory(spill, "spill")
        names = (on,) if isinstance(on, str) else on
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise RelationError(f"on={on!r} is not understood; write the key column's name, or a list of several")
        budget, theta = parse_memory(memory), parse_memory(segment)
        rows = as_source(data, "the relation's source")
        try:
            schema = with_surrogate(rows.schema(), surrogate)
            design = Design(
                schema, tuple(names), partition, theta, unique or surrogate is not None, surrogate=surrogate
            )
            try:
                make_private(place)
            except OSError as error:
                raise spill_error(error, f"make the directory {place}") from error
            relation = cls(place, durable=durable)
            with FileStore(beside) as runs:
                relation.fill(design, rows.batches(), runs, budget, partitions=partitions, replace=replace)
            return relation
        finally:
            rows.close()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Relation:
        """A relation that was built before; `RelationError` if there is none."""
        place = directory(path, "path").absolute()
        relation = cls(place)
        if not place.is_dir() or not published(relation.reader.store):
            raise RelationError(f"there is no relation in {place}; make one with Relation.build")
        return relation

    @classmethod
    def is_at(cls, path: str | os.PathLike[str]) -> bool:
        """Whether there is a relation at a path."""
        place = Path(path).expanduser().absolute()
        return place.is_dir() and bool(published(FileStore.at(place)))

    def reading(self) -> RelationReader:
        """A reader of its own, for a join that goes on while this relation is changed, perhaps by another thread."""
        return RelationReader(FileStore.at(self.path), FilePins(self.path), str(self.path))

    def upsert(self, data: object) -> int:
        """Put rows in the place of all that have their keys; returns the number of the version that has them.

        The rows are held in memory meanwhile. Rows with a NULL key are left out.
        """
        return super().upsert(_whole(data, without_surrogate(self.latest.design), "the rows to upsert"))

    def delete(self, keys: object) -> int:
        """Remove all rows with these keys; returns the number of the version without them.

        `keys` is whatever has rows with the key columns; for a single key column a list, a set or an array of values
        will do.
        """
        schema = pa.schema([self.schema.field(name) for name in self.on])
        if isinstance(keys, Set | np.ndarray):
            keys = list(keys)
        values: Any = keys
        if isinstance(keys, pa.Array | pa.ChunkedArray) or (
            isinstance(keys, Sequence) and len(keys) and not hasattr(keys[0], "keys") and not isinstance(keys, str)
        ):
            if len(schema) > 1:
                raise RelationError(f"the key has several columns ({', '.join(self.on)}); give rows that have them all")
            try:
                column = keys.cast(schema.types[0]) if hasattr(keys, "cast") else pa.array(values, schema.types[0])
            except (pa.ArrowException, OverflowError) as error:
                raise RelationError(f"the keys to delete are not of type {schema.types[0]}: {error}") from None
            chunks = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            return super().delete(pa.RecordBatch.from_arrays([chunks], schema=schema))
        if isinstance(keys, pa.RecordBatch | pa.Table) and set(self.on) <= set(keys.schema.names):
            values = keys.select(list(self.on))
        return super().delete(_whole(values, schema, "the keys to delete"))

    def close(self) -> None:
        """Nothing has to be closed; for symmetry, and for `with`."""

    def __repr__(self) -> str:
        version = self.latest
        return (
            f"<Relation {str(self.path)!r}: {version.total_rows:,} rows by {', '.join(self.on)} in "
            f"{version.partitions:,} {version.design.partition} partitions, version {version.number}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        version = self.latest
        rows = [
            ("rows", f"{version.total_rows:,}"),
            ("key", escape(", ".join(self.on))),
            ("columns", escape(", ".join(f"{field.name}: {field.type}" for field in self.schema))),
            ("partitions", f"{version.partitions:,} by {version.design.partition}"),
            ("version", str(version.number)),
        ]
        return html.table(rows, f"Relation {self.path}")


def _whole(data: object, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """All rows of a source as one batch of this schema."""
    if isinstance(data, list | tuple) and not data:
        data = schema.empty_table()
    given = as_source(data, name) if isinstance(data, Source) else None  # such as a query: its batches are made to fit
    rows = source(data if given is None else given.batches(), name=name, schema=schema)
    try:
        table = pa.Table.from_batches(list(rows.batches()), schema).combine_chunks()
    finally:
        rows.close()
        if given is not None:
            given.close()
    batches = table.to_batches()
    if batches:
        return batches[0]
    return pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)
