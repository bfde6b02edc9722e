"""Flips in versions and segments of relations: looked up in, in every way, read whole, and changed."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

import watersmeet as wm
from stress.flips import Flip, of_a_directory
from watersmeet.checks.canonical import canonical_rows

_STREAM = pa.table({"key": [i * 7 % 950 for i in range(500)]})


@cache
def relation(partition: str) -> Path:
    """A relation with some versions."""
    where = Path(tempfile.mkdtemp(prefix="bits-")) / "relation"
    table = pa.table({"id": range(2_000), "name": [f"row {i}" for i in range(2_000)]})
    made = wm.Relation.build(table, "id", where, segment=4096, partition=partition, durable=False)
    made.upsert(pa.table({"id": [3, 900], "name": ["three", "new"]}))
    made.delete([5, 1_900])
    return where


def _rows(batches: Any) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch))


def _looked_up(algorithm: str) -> Callable[[Path], Counter[Any]]:
    def ask(where: Path) -> Counter[Any]:
        opened = wm.Relation.open(where)
        return _rows(wm.lookup_join(_STREAM, opened, on="key = id", how="left", algorithm=algorithm, memory="1MiB"))

    return ask


def _shared(where: Path) -> Counter[Any]:
    streams = {"one": _STREAM, "other": _STREAM.slice(100, 50)}
    found = wm.shared_lookup_join(streams, wm.Relation.open(where), on="key = id", memory="1MiB").tables()
    return Counter((name, *row) for name, table in found.items() for row in _rows(table.to_batches()).elements())


def _chained(where: Path) -> Counter[Any]:
    relations = {"first": wm.Relation.open(where), "second": wm.Relation.open(where)}
    on = {"first": "key = id", "second": "key = id"}
    return _rows(wm.lookup_join(_STREAM, relations, on=on, memory="2MiB"))


def _whole(where: Path) -> Counter[Any]:
    return _rows(wm.Relation.open(where).table().to_batches())


def _upserted(where: Path) -> Counter[Any]:
    """Changed, and then read: what a change copies must be what was written."""
    opened = wm.Relation.open(where)
    opened.upsert(pa.table({"id": [i * 90 for i in range(22)], "name": ["new"] * 22}))
    return _rows(opened.table().to_batches())


def _deleted(where: Path) -> Counter[Any]:
    opened = wm.Relation.open(where)
    opened.delete([i * 90 for i in range(22)])
    return _rows(opened.table().to_batches())


WAYS: dict[str, Callable[[Path], Counter[Any]]] = {
    **{f"lookup_join by {name}": _looked_up(name) for name in ("partitioned", "meshjoin", "index_nested_loop")},
    "shared_lookup_join": _shared, "lookup_join in two": _chained, "table": _whole, "upsert": _upserted,
    "delete": _deleted,
}  # fmt: skip


@cache
def _right(partition: str, way: str) -> Counter[Any]:
    with tempfile.TemporaryDirectory() as parent:
        return WAYS[way](shutil.copytree(relation(partition), Path(parent) / "copy"))


def relations(draw: random.Random) -> Iterator[Flip]:
    """Flips in files of a relation, which is then asked."""
    while True:
        partition, way = draw.choice(["range", "hash"]), draw.choice(sorted(WAYS))
        sound, right = relation(partition), _right(partition, way)
        files = sorted(path.name for path in sound.iterdir() if path.name[0] in "rv")
        kind = draw.choice(sorted({name[0] for name in files}))
        name = draw.choice([name for name in files if name[0] == kind])

        def same(where: Path, way: str = way, right: Counter[Any] = right) -> bool:
            return WAYS[way](where) == right

        what = "versions" if name[0] == "v" else "segments"
        yield of_a_directory(draw, sound, Path(name), f"relation, {way}: {what}", same)
