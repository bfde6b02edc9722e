"""What we write: sound, and with checksums that are right where nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import watersmeet as wm
from fuzz.mutations import Edit, changed_json
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.memory import Budget
from watersmeet.relation.relation import Version, version_name
from watersmeet.runs.sorted_run import RunWriter, SortedRun
from watersmeet.spark.offline.opened import OpenedState, figures, verify
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.state.described import described, many_spec_of, schemas_of, spec_of
from watersmeet.spark.state.files import checked_json, read_json, understood
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.hash_table import Layout
from watersmeet.tables.memtable import Memtable

SCHEMA = pa.schema(
    {"id": pa.int64(), "name": pa.string(), "at": pa.timestamp("us", "UTC"), "price": pa.decimal128(9, 2)}
)


def _put(content: bytes, name: str) -> MemoryStore:
    store = MemoryStore()
    writer = store.create(name)
    writer.write(content)
    writer.commit()
    return store


@cache
def sound_segment() -> bytes:
    """A segment with pages and arrays."""
    store = MemoryStore()
    with SegmentWriter(store, "a", pa.schema({"id": pa.int64(), "name": pa.string()})) as writer:
        for start in (0, 40):
            rows = range(start, start + 40)
            writer.write_page(pa.record_batch({"id": list(rows), "name": [f"row {i}" for i in rows]}))
        writer.add_array("hashes", np.arange(80))
        writer.add_array("when", np.arange(4).astype("M8[us]"))
        writer.seal({"partition": 3})
    return bytes(store.open("a").to_pybytes())


_SEGMENT_TRAILER = struct.Struct("<QQI8s")


def with_directory(sound: bytes, directory: bytes) -> bytes:
    """A segment with another directory, whose checksum is right."""
    offset, _, _, mark = _SEGMENT_TRAILER.unpack(sound[-_SEGMENT_TRAILER.size :])
    checksum = zlib.crc32(struct.pack("<QQ", offset, len(directory)), zlib.crc32(directory))
    return sound[:offset] + directory + _SEGMENT_TRAILER.pack(offset, len(directory), checksum, mark)


def directory_of(sound: bytes) -> Any:
    """What a segment says."""
    offset, length, _, _ = _SEGMENT_TRAILER.unpack(sound[-_SEGMENT_TRAILER.size :])
    return json.loads(sound[offset : offset + length])


def read_segment(content: bytes) -> None:
    """Everything in a segment."""
    segment = Segment.open(_put(content, "a"), "a")
    for page in range(segment.pages):
        segment.read_page(page)
    for name in segment.arrays:
        segment.array(name)


@cache
def sound_run() -> bytes:
    """A sorted run of some blocks."""
    store, types, rows = MemoryStore(), (pa.int64(), pa.string()), 100
    columns = pa.record_batch({"a": range(rows), "b": [f"row {i}" for i in range(rows)]}).columns
    hashes, parts = np.arange(rows) << 50, np.zeros(rows, np.int32)
    table = Memtable(types, Budget(1 << 20), Layout(0, 16, 256), "left")
    assert table.reserve(parts, columns)
    table.append(hashes, parts, columns, np.arange(rows))
    writer = RunWriter(store, "run", types, rows, 32, 4096)
    writer.write_hashes(hashes.view(np.uint64))
    writer.write_rows(table, np.arange(rows))
    writer.seal()
    return bytes(store.open("run").to_pybytes())


_RUN_TRAILER = struct.Struct("<QQQI8s")


def run_with(directory: bytes, text: bytes) -> bytes:
    """The sound run with another directory and description, whose checksum is right."""
    sound = sound_run()
    start, _, _, _, mark = _RUN_TRAILER.unpack(sound[-_RUN_TRAILER.size :])
    checksum = zlib.crc32(text, zlib.crc32(directory))
    end = start + len(directory) + len(text)
    return sound[:start] + directory + text + _RUN_TRAILER.pack(start, start + len(directory), end, checksum, mark)


def run_directory() -> tuple[bytes, bytes]:
    """What the sound one says."""
    sound = sound_run()
    start, description, end, _, _ = _RUN_TRAILER.unpack(sound[-_RUN_TRAILER.size :])
    return sound[start:description], sound[description:end]


def read_run(content: bytes) -> None:
    """Everything in a run that its checksums vouch for."""
    run = SortedRun(_put(content, "run"), "run", (pa.int64(), pa.string()))
    run.check_hashes(0, run.rows)
    run.check_all_blocks()
    run.gather_all((0, 1), np.arange(run.rows, dtype=np.int64))


@cache
def sound_bits() -> bytes:
    """Bits of a hundred rows."""
    bits = bytes(range(13))
    return bits + struct.pack("<QI8s", 100, zlib.crc32(bits), b"wm.bits1")


@cache
def sound_version() -> bytes:
    """A version of a small relation."""
    with tempfile.TemporaryDirectory() as place:
        table = pa.table({"id": range(400), "name": [f"row {i}" for i in range(400)]})
        wm.Relation.build(table, "id", place, segment=4096, durable=False)
        return next(Path(place).glob("v*")).read_bytes()


def read_version(content: bytes) -> None:
    """A version of a relation, and what can be told of it."""
    version = Version.read(_put(content, version_name(7)), 7)
    _ = version.part_bytes, version.part_rows, version.widest_row, version.held_bytes
    version.design.codec()


def as_text(value: Any) -> bytes:
    """As JSON."""
    return json.dumps(value).encode()


@cache
def sound_description() -> Any:
    """What `state.json` says of a join."""
    windows = parse_windows("10 min", "at", lateness="2 s", late="drop")
    spec = WindowJoinSpec(SCHEMA, SCHEMA, parse_on("id"), "left", suffixes=("_l", "_r"), window=windows)
    return json.loads(json.dumps(described("window_join", spec, "confluence", (("delay", 2),))))


def read_description(found: Any) -> None:
    """The join that is described."""
    with understood(Path("state.json")):
        if isinstance(found, dict) and found.get("verb") == "multijoin":
            many_spec_of(found)
        schemas_of(found)
        spec_of(found)


def read_small_file(content: bytes) -> None:
    """A file of JSON with a checksum."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "manifest"
        path.write_bytes(content)
        read_json(path)


@cache
def sound_state() -> Path:
    """The state of a join on Spark, after some batches."""
    from spark.divided_streams import Stream, cut

    place = Path(tempfile.mkdtemp(prefix="fuzzed-state-")) / "state"
    tables = [pa.record_batch({"id": [i % 7 for i in range(60)], name: range(60)}) for name in ("a", "b")]
    stream = Stream(place, JoinSpec(tables[0].schema, tables[1].schema, parse_on("id"), "left"), 2)
    with patch("os.fsync"):
        for number, of_batch in enumerate(zip(*(cut(table, 3) for table in tables), strict=True)):
            stream.batch(number, list(of_batch))
    return place


def altered_files() -> list[str]:
    """Files of the state that are JSON."""
    place = sound_state()
    return sorted(
        str(path.relative_to(place))
        for path in place.rglob("*")
        if path.name.startswith(("manifest-", "state.json")) or path.parent.name == "runs"
    )


def read_state(asked: tuple[str, list[Edit]]) -> None:
    """A state of which one file has another content with a right checksum: shown, checked and read."""
    name, changes = asked
    with tempfile.TemporaryDirectory() as parent:
        place = Path(parent) / "state"
        shutil.copytree(sound_state(), place, copy_function=os.link)
        found = changed_json(read_json(place / name), changes)
        (place / name).unlink()
        (place / name).write_bytes(checked_json(found))
        for look in (_show, verify, _rows):
            try:
                look(OpenedState(place))
            except wm.WatersmeetError:
                continue


def _show(state: OpenedState) -> None:
    json.dumps(figures(state))


def _rows(state: OpenedState) -> None:
    for side in ("left", "right"):
        for batch in StateRows(state, side, "id = 3").read():
            assert batch.num_rows
        for batch in StateRows(state, side).read():
            assert batch.num_rows
