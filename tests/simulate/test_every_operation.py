"""Every operation failed in turn, for verbs that spill: a clear error or all results, nothing left, and usable after.

All of them with `SIMULATE_EVERY=1`; else a few of each kind, others with each verb.
"""

from __future__ import annotations

import errno
import gc
import os
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from simulate.disk import Disk
from simulate.embedded import expect_sentence
from simulate.faults import Fault, Faults, Memory
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.errors import WatersmeetError
from watersmeet.spill.store import Descriptor

ROWS, MEMORY = 3_000, 384 << 10
FEW = 2
KINDS = ("open", "write", "rename", "mkdir", "list", "unlink", "map", "reserve")
Found = Counter[tuple[Any, ...]]


def table(side: int, seed: int = 3) -> pa.Table:
    rng = np.random.default_rng([seed, side])
    pad = ["x" * 120] * ROWS
    return pa.table(
        {"id": rng.integers(0, ROWS, ROWS), "at": np.arange(ROWS), f"row{side}": np.arange(ROWS), "pad": pad}
    )


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


VERBS: dict[str, Callable[[Path], Found]] = {
    **{f"join {how}": join(how) for how in ("inner", "left", "full", "semi", "anti")},
    "multijoin": multijoin,
    "window_join": window_join,
}


@pytest.mark.parametrize("name", VERBS)
def test_every_operation_failed_in_turn(name: str, tmp_path: Path) -> None:
    verb, clean = VERBS[name], Faults()
    with Disk(tmp_path, clean), Memory(clean):
        expected = verb(tmp_path)
    assert expected and clean.calls["write"] > 3, "it spilled"
    assert not list(tmp_path.iterdir())
    gc.collect()
    open_before, told = Descriptor.open_now, Counter[str]()
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
    assert told["error"], told
    assert verb(tmp_path) == expected, "usable afterwards"
    assert not list(tmp_path.iterdir())
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
        verb(place)
    assert not list(place.iterdir()), (fault, told)
    return told
