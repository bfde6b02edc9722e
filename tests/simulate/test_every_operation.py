"""Every operation failed in turn, for all that spills or writes: a sentence or all results, nothing left, usable after.

All of them with `SIMULATE_EVERY=1`, one in twenty with `SIMULATE_EVERY=20`; else a few, others with each run.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import watersmeet as wm
from simulate.disk import Disk
from simulate.embedded import expect_sentence
from simulate.faults import Fault, Faults, Memory
from simulate.small_runs import KEPT, RETRIED, ROWS, RUNS, SPOOLED, TABLES, Found, Run, rows_of
from watersmeet.core.errors import WatersmeetError
from watersmeet.spill.store import Descriptor

FEW = 4
"""Kinds of operation of which one fails, besides one that writes."""
KINDS = ("open", "read", "write", "fsync", "rename", "link", "mkdir", "list", "unlink", "rmdir", "map", "reserve")
NEVER_SPILL = ("join with shed",)
"""Of those it is reservations that count."""


def is_left(place: Path) -> list[Path]:
    """What a run should not leave; what it keeps is checked, and cleared away."""
    kept = place / KEPT
    if wm.Relation.is_at(kept):
        assert rows_of(wm.Relation.open(kept).table()) in known_versions(), "one of its versions"
    for path in place.glob(f"{KEPT}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return list(place.iterdir())


def known_versions() -> Iterator[Found]:
    """As it is built; with rows that came in the place of all that had their keys; without a third of its keys."""
    yield rows_of(TABLES[0])
    came = TABLES[0].slice(0, 50)
    others = pc.invert(pc.is_in(TABLES[0]["id"], came["id"].combine_chunks()))
    yield rows_of(pa.concat_tables([TABLES[0].filter(others), came]))
    gone = pc.is_in(TABLES[0]["id"], pa.array(range(0, ROWS, 3)))
    yield rows_of(TABLES[0].filter(pc.invert(gone)))


def chosen(calls: Counter[str], rng: np.random.Generator) -> Iterator[Fault]:
    """Which operations fail, and how."""
    every = int(os.environ.get("SIMULATE_EVERY", "0"))
    for kind in KINDS if every else ():
        for at in range(1 + int(rng.integers(every)), calls[kind] + 1, every):
            yield Fault(kind, at, error=errno.ENOSPC)
            yield Fault(kind, at, error=errno.EIO)
    if not every:
        kinds = [kind for kind in KINDS if calls[kind]]
        for kind in ["write", *rng.permutation(kinds)[:FEW]]:
            error = int(rng.choice([errno.ENOSPC, errno.EIO]))
            yield Fault(str(kind), int(rng.integers(1, calls[kind] + 1)), error=error)


@pytest.mark.parametrize("name", RUNS)
def test_every_operation_failed_in_turn(name: str, tmp_path: Path) -> None:
    run, clean = RUNS[name], Faults()
    spooled = SPOOLED["rows"]
    with Disk(tmp_path, clean), Memory(clean):
        expected = run(tmp_path)
    assert expected and (name in NEVER_SPILL or clean.calls["write"] > 3), "it spilled"
    assert SPOOLED["rows"] > spooled or "spool" not in name
    assert not is_left(tmp_path)
    gc.collect()
    open_before, told, retried = Descriptor.open_now, Counter[str](), RETRIED["all"]
    for fault in chosen(clean.calls, np.random.default_rng(zlib.crc32(name.encode()))):
        told[_failed(run, tmp_path, fault, expected)] += 1
    assert told["error"] or RETRIED["all"] > retried, told
    assert run(tmp_path) == expected, "usable afterwards"
    assert not is_left(tmp_path)
    gc.collect()
    assert Descriptor.open_now <= open_before


def _failed(run: Run, place: Path, fault: Fault, expected: Found) -> str:
    """What became of a run with one fault: `error` or `success`."""
    faults = Faults([fault])
    with ExitStack() as stack:
        stack.enter_context(Disk(place, faults))
        stack.enter_context(Memory(faults))
        try:
            found = run(place)
        except WatersmeetError as error:
            expect_sentence(error)
            told = "error"
        except BaseException as error:
            raise AssertionError(f"{fault}: {type(error).__name__}: {error}") from error
        else:
            assert found == expected, fault
            told = "success"
    assert faults.failures or told == "success", fault
    if fault.operation in ("unlink", "rmdir", "list"):  # what could not be removed is swept by the next
        is_left(place)
        run(place)
    assert not is_left(place), (str(fault), told)
    return told
