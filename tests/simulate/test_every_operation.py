"""Every operation failed in turn, for verbs that spill: a clear error or all results, nothing left, and usable after.

All of them with `SIMULATE_EVERY=1`; else a few of each kind, others with each verb.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import watersmeet as wm
from simulate.disk import Disk
from simulate.embedded import expect_sentence
from simulate.faults import Fault, Faults, Memory
from spark.pipelines import JoinPipeline, WindowPipeline
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.errors import WatersmeetError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.core.windows import WindowJoinSpec, parse_windows
from watersmeet.spill.store import Descriptor

ROWS, MEMORY = 3_000, 384 << 10
FEW = 2
KINDS = ("open", "read", "write", "fsync", "rename", "link", "mkdir", "list", "unlink", "map", "reserve")
Found = Counter[tuple[Any, ...]]


def table(side: int, seed: int = 3) -> pa.Table:
    rng = np.random.default_rng([seed, side])
    ids, pad = rng.integers(0, ROWS, ROWS), ["x" * 120] * ROWS
    return pa.table(
        {"id": ids, "at": np.arange(ROWS), "x": 10.0 * ids, "y": np.zeros(ROWS), f"row{side}": np.arange(ROWS),
         "pad": pad}
    )  # fmt: skip


TABLES = [table(side) for side in range(3)]


def rows_of(found: pa.Table) -> Found:
    return Counter(row for batch in found.to_batches() for row in canonical_rows(batch))


def join(how: str) -> Callable[[Path], Found]:
    return lambda spill: rows_of(wm.join(*TABLES[:2], on="id", how=how, memory=MEMORY, spill=spill, threads=1).table())


def multijoin(spill: Path) -> Found:
    inputs = dict(zip("rst", TABLES, strict=True))
    return rows_of(wm.multijoin(inputs, on=["r.id = s.id", "s.id = t.id"], memory=3 * MEMORY, spill=spill).table())


def window_join(spill: Path) -> Found:
    return rows_of(wm.window_join(*TABLES[:2], on="id", time="at", window=2 * ROWS, memory=MEMORY, spill=spill).table())


def two(verb: Any, **options: Any) -> Callable[[Path], Found]:
    return lambda spill: rows_of(verb(*TABLES[:2], memory=MEMORY, spill=spill, **options).table())


def window_multijoin(spill: Path) -> Found:
    inputs = dict(zip("rst", TABLES, strict=True))
    on = ["r.id = s.id", "s.id = t.id"]
    return rows_of(wm.multijoin(inputs, on=on, time="at", window=2 * ROWS, memory=3 * MEMORY, spill=spill).table())


def lookup(place: Path) -> Found:
    """A relation is built, changed and asked; what a failure leaves of it is one of its versions."""
    relation = wm.Relation.build(
        TABLES[0], "id", place / BESIDE, segment="16 KiB", memory="1 MiB", spill=place, durable=True
    )
    relation.upsert(TABLES[0].slice(0, 50))
    stream = TABLES[1].select(["id", "row1"])
    return rows_of(wm.lookup_join(stream, relation, on="id", memory="1 MiB", spill=place).table())


def stream_of(pipeline: type[Any], spec: Callable[[], Any]) -> Callable[[Path], Found]:
    """The tasks of a streaming join; one that fails with a sentence is run again, as Spark would."""

    def run(place: Path) -> Found:
        made, found = pipeline(place / BESIDE, spec(), 1 << 20, "confluence"), Counter[tuple[Any, ...]]()
        inputs = [table.select(["id", "at", f"row{side}"]).combine_chunks() for side, table in enumerate(TABLES[:2])]
        for number in range(2):
            some = [table.slice(number * 40, 40).to_batches()[0] for table in inputs]
            for group in range(made.groups):
                try:
                    out = made.batch(number, some, only=group)
                except WatersmeetError as error:
                    expect_sentence(error)
                    RETRIED["tasks"] += 1
                    out = made.batch(number, some, only=group)
                found.update(row for batch in out for row in canonical_rows(batch))
        return found

    return run


def schemas() -> list[pa.Schema]:
    return [table.select(["id", "at", f"row{side}"]).schema for side, table in enumerate(TABLES[:2])]


def plain_spec() -> JoinSpec:
    return JoinSpec(*schemas(), parse_on("id"))


def window_spec() -> WindowJoinSpec:
    return WindowJoinSpec(*schemas(), parse_on("id"), window=parse_windows(2 * ROWS, "at"))


QUERIES = [wm.WindowQuery(f"q{i}", window=ROWS // (i + 1), left=f"id >= {i}") for i in range(3)]
BESIDE = "kept"
"""The folder of a relation, or of a state, which stays when its run is over."""
RETRIED: Counter[str] = Counter()
"""Tasks that failed, and were run again."""
VERBS: dict[str, Callable[[Path], Found]] = {
    **{f"join {how}": join(how) for how in ("inner", "left", "full", "semi", "anti")},
    "band": two(wm.join, on=wm.band("x", 0.5)),
    "near": two(wm.join, on=[wm.near(["x", "y"], 0.5)]),
    "multijoin": multijoin,
    "multijoin in windows": window_multijoin,
    "window_join": window_join,
    "window_queries": two(wm.window_queries, on="id", time="at", queries=QUERIES),
    "asof_join": two(wm.asof_join, on="id", time="at"),
    "lookup_join": lookup,
    "tasks of a join": stream_of(JoinPipeline, plain_spec),
    "tasks of a window_join": stream_of(WindowPipeline, window_spec),
}


def is_left(place: Path) -> list[Path]:
    """What a run should not leave; what it keeps is checked, and cleared away."""
    kept = place / BESIDE
    if wm.Relation.is_at(kept):
        relation = wm.Relation.open(kept)
        assert rows_of(relation.table()) == rows_of(TABLES[0] if relation.version == 1 else changed())
    shutil.rmtree(kept, ignore_errors=True)
    return list(place.iterdir())


def changed() -> pa.Table:
    """The relation after its upsert: the rows that came stand for all that had their keys."""
    came = TABLES[0].slice(0, 50)
    others = pc.invert(pc.is_in(TABLES[0]["id"], came["id"].combine_chunks()))
    return pa.concat_tables([TABLES[0].filter(others), came])


@pytest.mark.parametrize("name", VERBS)
def test_every_operation_failed_in_turn(name: str, tmp_path: Path) -> None:
    verb, clean = VERBS[name], Faults()
    with Disk(tmp_path, clean), Memory(clean):
        expected = verb(tmp_path)
    assert expected and clean.calls["write"] > 3, "it spilled"
    assert not is_left(tmp_path)
    gc.collect()
    open_before, told, retried = Descriptor.open_now, Counter[str](), RETRIED["tasks"]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for kind in KINDS:
        calls = clean.calls[kind]
        every = os.environ.get("SIMULATE_EVERY")
        chosen = range(1, calls + 1)
        if calls and not every:
            chosen = sorted(set(rng.integers(1, calls + 1, FEW).tolist()))
        for at in chosen:
            for error in (errno.ENOSPC, errno.EIO) if every else (int(rng.choice([errno.ENOSPC, errno.EIO])),):
                told[_failed(verb, tmp_path, Fault(kind, at, error=error), expected)] += 1
    assert told["error"] or RETRIED["tasks"] > retried, told
    assert verb(tmp_path) == expected, "usable afterwards"
    assert not is_left(tmp_path)
    gc.collect()
    assert Descriptor.open_now <= open_before


def _failed(verb: Callable[[Path], Found], place: Path, fault: Fault, expected: Found) -> str:
    """What became of a run with one fault: `error` or `success`."""
    faults = Faults([fault])
    with ExitStack() as stack:
        stack.enter_context(Disk(place, faults))
        stack.enter_context(Memory(faults))
        try:
            found = verb(place)
        except WatersmeetError as error:
            expect_sentence(error)
            told = "error"
        else:
            assert found == expected, fault
            told = "success"
    assert faults.failures or told == "success", fault
    if fault.operation in ("unlink", "list"):  # what could not be removed is swept by the next
        is_left(place)
        verb(place)
    assert not is_left(place), (fault, told)
    return told
