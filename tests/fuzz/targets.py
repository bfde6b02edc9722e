"""The parsers: each with what it is fed, and how it is asked."""

from __future__ import annotations

import argparse
import base64
import json
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import watersmeet as wm
from fuzz.guard import ROOM
from fuzz.mutations import altered, changed_json, edits, mutations, texts
from fuzz.written import (
    SCHEMA,
    altered_files,
    as_text,
    directory_of,
    read_description,
    read_run,
    read_segment,
    read_small_file,
    read_state,
    read_version,
    run_directory,
    run_with,
    sound_bits,
    sound_description,
    sound_run,
    sound_segment,
    sound_version,
    with_directory,
)
from watersmeet.api.window_queries import read_queries
from watersmeet.cli import lookup_join, multijoin
from watersmeet.cli.main import _band, _near
from watersmeet.core.bands import parse_width
from watersmeet.core.filters import bind, holds, parse_filter
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import parse_seconds, parse_span, parse_window, parse_windows
from watersmeet.live.page import parse_address
from watersmeet.memory import parse_memory
from watersmeet.runs.matched_bits import check_bits
from watersmeet.sources.schedules import bursts, constant, fragments, poisson, zipf_gaps
from watersmeet.spark.offline.reading import parse_where
from watersmeet.spark.state.files import checked_json


@dataclass(frozen=True)
class Target:
    """A parser."""

    name: str
    inputs: st.SearchStrategy[Any]
    ask: Callable[[Any], object]
    room: int = ROOM
    """Bytes of addresses; of operators, most are never written to."""


# --- files that others write ---


def _read_file(name: str, content: bytes, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / name
        path.write_bytes(content)
        source = wm.source(path, **options)
        rows = sum(batch.num_rows for batch in source.batches())
        assert rows <= max(1, len(content))


CSV = b'id,name,price\n1,"a ""quoted"" one",1.5\n2,pear,\n3,,1e3\n'
NDJSON = b'{"id": 1, "name": "a", "tags": ["x", {"y": 2}]}\n{"id": 2, "name": null, "tags": []}\n'
MARKED = (
    b'{"id": 1, "on": "2024-01-02"}\n{"punct:r": {"id": {"ge": 1, "lt": 3}, "on": "*"}}\n'
    b'{"id": 4, "on": "2024-01-03"}\n'
)
XML = (
    b"<?xml version='1.0' encoding='utf-8'?>\n<s:all><r><id> 79 </id><ip> 64.58 </ip></r>"
    b"<punct:r><id>[3, 7)</id><ip> {a, b} </ip></punct:r><r><id>80</id><ip>*</ip></r></s:all>"
)


@cache
def _parquet() -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(50), "name": [f"row {i}" for i in range(50)]}), out)
    return bytes(out.getvalue().to_pybytes())


@cache
def _arrow(stream: bool) -> bytes:
    out = pa.BufferOutputStream()
    table = pa.table({"id": range(50), "name": [f"row {i}" for i in range(50)]})
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue().to_pybytes())


# --- words of the command line ---


def _filter(text: str) -> None:
    rows = pa.record_batch([pa.nulls(2, type_) for type_ in SCHEMA.types], schema=SCHEMA)
    holds(bind(parse_filter(text), SCHEMA, "the filter", "left"), rows)


def _where(text: str) -> None:
    for each in parse_where(text, SCHEMA):
        each.expression()


def _queries(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "queries.json"
        path.write_bytes(content)
        for query in read_queries(path):
            parse_windows(query.window, "at")
            for text in (query.left, query.right):
                if text is not None:
                    _filter(text)


def _multijoin(words: list[str]) -> None:
    inputs, on, band, window, rows = words
    multijoin.what_to_join(
        argparse.Namespace(
            inputs=[inputs, "b=b.csv"], on=[on], band=[band], how=[], window=[window], time=["b:at"], lateness=None,
            late="keep", idle=None, delay=None, rows=[rows],
        )
    )  # fmt: skip


def _lookup(words: list[str]) -> None:
    lookup_join.what_to_join(argparse.Namespace(relations=[words[0], "towns=b.csv"], on=[words[1]], how=[words[2]]))


def _conditions(text: str) -> None:
    parse_on([text])
    JoinSpec(SCHEMA, SCHEMA, parse_on(text))


def _schedule(numbers: list[float]) -> None:
    a, b, c, d = numbers
    n = min(1000, abs(int(a))) if a == a and abs(a) < 1e300 else 3
    size = int(min(max(b, -9), 99)) if b == b else 0
    for make in (
        lambda: constant(n, b), lambda: poisson(n, b), lambda: bursts(n, size, c, d),
        lambda: zipf_gaps(n, b, c, d), lambda: fragments(n, 3, b, c),
    ):  # fmt: skip
        with suppress(wm.WatersmeetError), np.errstate(all="ignore"):
            make()


_SPANS = ("10 min", "1.5 hours", "250ms", "90 s", "7", "1 day", "0.05", "2 rows")
_SIZES = ("2 GiB", "64MiB", "1.5kb", "4096", " .5 tb ")
_CONDITIONS = ("id", "id = id", "name=name", "left.id = right.id")
_FILTERS = (
    "id > 100", "not name in ('DE', 'AT') or (id >= 1.5 and price <> 3)", "at >= '2024-01-01' and name is not null",
    "price = 1.25e3 and \"id\" != 3",
)  # fmt: skip
_QUERIES = (
    b'[{"name": "large", "window": "1 min", "left": "id > 100"}, '
    b'{"name": "b", "window": ["1 s", "2 s"], "right": "name = \'a\'"}]'
)
_numbers = st.one_of(st.floats(), st.integers(-(10**20), 10**20).map(float), st.sampled_from([0.0, 1.0, 1e308, -1.0]))


TARGETS = (
    Target("segments", st.deferred(lambda: mutations(sound_segment())), read_segment),
    Target(
        "segments, directory",
        st.builds(
            lambda changes: with_directory(
                sound_segment(), as_text(changed_json(directory_of(sound_segment()), changes))
            ),
            edits,
        ),
        read_segment,
    ),
    Target(
        "segments, directory's bytes",
        st.builds(
            lambda changes: with_directory(sound_segment(), altered(as_text(directory_of(sound_segment())), changes)),
            edits,
        ),
        read_segment,
    ),
    Target("runs", st.deferred(lambda: mutations(sound_run())), read_run),
    Target(
        "runs, directory",
        st.builds(
            lambda some, others: run_with(
                altered(run_directory()[0], some), as_text(changed_json(json.loads(run_directory()[1]), others))
            ),
            st.one_of(st.just([]), edits),
            st.one_of(st.just([]), edits),
        ),
        read_run,
    ),
    Target(
        "bits",
        st.deferred(lambda: mutations(sound_bits())),
        lambda content: check_bits("bits", pa.py_buffer(content), 100),
    ),
    Target("relations, version", st.deferred(lambda: mutations(sound_version())), read_version),
    Target(
        "relations, version's directory",
        st.builds(
            lambda changes: with_directory(
                sound_version(), as_text(changed_json(directory_of(sound_version()), changes))
            ),
            edits,
        ),
        read_version,
    ),
    Target("manifests", mutations(checked_json({"format": 5, "files": {"a": ["b", 1, 2]}})), read_small_file),
    Target(
        "manifests, content",
        mutations(b'{"format": 5, "files": {"a": ["b", 1, 2]}}').map(
            lambda text: text + b"\n" + as_text({"checksum": zlib.crc32(text)}) + b"\n"
        ),
        read_small_file,
    ),
    Target(
        "described joins",
        st.builds(lambda changes: changed_json(sound_description(), changes), edits),
        read_description,
    ),
    Target(
        "described joins, schemas",
        st.builds(
            lambda changes: {
                **sound_description(),
                "inputs": [
                    {**each, "schema": base64.b64encode(altered(base64.b64decode(each["schema"]), changes)).decode()}
                    for each in sound_description()["inputs"]
                ],
            },
            edits,
        ),
        read_description,
    ),
    Target("state", st.tuples(st.deferred(lambda: st.sampled_from(altered_files())), edits), read_state, 64 * ROOM),
    Target("CSV", mutations(CSV), lambda content: _read_file("a.csv", content)),
    Target("NDJSON", mutations(NDJSON), lambda content: _read_file("a.ndjson", content)),
    Target(
        "NDJSON with punctuations", mutations(MARKED), lambda content: _read_file("a.ndjson", content, punctuated=True)
    ),
    Target("XML", mutations(XML), lambda content: _read_file("a.xml", content)),
    Target(
        "XML, a schema given",
        mutations(XML),
        lambda content: _read_file("a.xml", content, schema=pa.schema({"id": pa.int32(), "ip": pa.string()})),
    ),
    Target("Parquet", st.deferred(lambda: mutations(_parquet())), lambda content: _read_file("a.parquet", content)),
    Target("Arrow IPC", st.deferred(lambda: mutations(_arrow(False))), lambda content: _read_file("a.arrow", content)),
    Target(
        "Arrow IPC streams",
        st.deferred(lambda: mutations(_arrow(True))),
        lambda content: _read_file("a.arrows", content),
    ),
    Target("memory", texts(*_SIZES), parse_memory),
    Target("lengths of time", texts(*_SPANS), parse_span),
    Target(
        "seconds", st.one_of(texts(*_SPANS), st.floats(), st.integers()), lambda given: parse_seconds(given, "idle")
    ),
    Target("widths", texts(*_SPANS), parse_width),
    Target("windows", texts(*_SPANS), parse_window),
    Target("schedules", st.lists(_numbers, min_size=4, max_size=4), _schedule),
    Target("filters", texts(*_FILTERS), _filter),
    Target("--where", texts("id = 7 and name != 'a and b'", '"at" >= 2024-01-01', "price is not null"), _where),
    Target("--queries", mutations(_QUERIES), _queries),
    Target("--on", texts(*_CONDITIONS), _conditions),
    Target("--band", texts("price:0.05", "at=at:90s", "id:7"), _band),
    Target("--near", texts("x,y:0.5", "x=a,y=b,z=c:1"), _near),
    Target("--page", texts("8000", "0.0.0.0:8000", "[::1]:1", "localhost:65535"), parse_address),
    Target(
        "multijoin's words",
        st.tuples(
            texts("a=a.csv", "a.csv"),
            texts("a.id = b.id"),
            texts("a.at = b.at:90s"),
            texts("a:10min", "5 rows"),
            texts("b:1_000"),
        ).map(list),
        _multijoin,
    ),
    Target(
        "lookup-join's words", st.tuples(texts("a=a.rel"), texts("towns:id=id"), texts("a:left")).map(list), _lookup
    ),
    Target(
        "paths", texts("a/../*.csv", "[!a]*.csv", "~/x.csv", "s3://a/b.csv", "a\0.csv"), lambda text: wm.source(text)
    ),
)
"""All of them."""
