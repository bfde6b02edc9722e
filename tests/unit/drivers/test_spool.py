"""Sources that run ahead onto the disk: in order, once, within memory and bound; full, damaged, closed, killed."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from conformance.drivers import (
    KILLED_IN,
    PATIENCE,
    ROOM,
    Given,
    expected_of,
    numbered,
    some_items,
    spool_case,
    swept_after_kill,
    taken_all,
)
from conformance.premature import premature_case
from simulate.stores import FaultyStore, flip_byte
from watersmeet.checks.payload import random_payload
from watersmeet.drivers.inbox import Bell, Inbox
from watersmeet.drivers.spool import Spool, Spooled
from watersmeet.spill.store import MemoryStore


@pytest.mark.parametrize("seed", [each for each in range(60) if each % KILLED_IN != KILLED_IN - 1])
def test_everything_comes_out_once_and_in_order(seed: int) -> None:
    """However fast the consumer is, whatever the bound, and whichever write or commit fails."""
    assert spool_case(seed)["results"]


def test_a_source_reads_to_its_end_while_nobody_takes_a_row() -> None:
    items = some_items(np.random.default_rng(1), 80, punctuated=False)
    source, spool = Given(items), Spool(1 << 30, MemoryStore)
    inbox = Inbox(source, Bell(), ROOM, spool=spool)
    inbox.thread.start()
    assert source.done.wait(PATIENCE), "it had to wait"
    figures = spool.figures()
    assert figures.waiting_rows > sum(item.num_rows for item in items) / 2
    assert any(isinstance(item, Spooled) for item, _, _ in inbox.pieces)
    assert inbox.held <= ROOM
    assert taken_all(inbox) == expected_of(items)
    assert spool.figures().rows == figures.rows, "what has come once is not written again"


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_any_type_are_the_same_afterwards(seed: int) -> None:
    rng = np.random.default_rng([seed, 0x70])
    columns = [random_payload(rng, 50) for _ in range(6)]
    batch = pa.record_batch(columns, [f"c{i}" for i in range(6)])
    spool = Spool(1 << 30, MemoryStore)
    pieces = [batch.slice(0, 20), batch.slice(20, 30)]
    place = spool.put(0, 1, pieces)
    assert place is not None
    again, rest = spool.take(place)
    assert rest is None and [each.schema for each in again] == [batch.schema] * 2
    assert repr([each.to_pydict() for each in again]) == repr([each.to_pydict() for each in pieces])  # NaN, too


def test_a_full_disk_makes_the_source_wait_and_is_told() -> None:
    store = FaultyStore(MemoryStore(), fail_at=1, operation="write", lasting=True, error=errno.ENOSPC)
    spool = Spool(1 << 30, lambda: store)
    items = some_items(np.random.default_rng(2), 60, punctuated=False)
    inbox = Inbox(Given(items), Bell(), ROOM, spool=spool)
    inbox.thread.start()
    while not inbox.presses:
        time.sleep(0)
    assert taken_all(inbox) == expected_of(items)
    refused = spool.figures().refused
    assert refused is not None and "the disk is full" in refused and store.failures


def test_what_was_damaged_on_disk_is_named() -> None:
    store = FaultyStore(MemoryStore(), fail_at=1, operation="commit", damage=flip_byte(200))
    spool = Spool(1 << 30, lambda: store)
    place = spool.put(0, 1, [pa.record_batch({"n": np.arange(1000)})])
    assert place is not None
    with pytest.raises(wm.SpillError, match="spooled-0-1"):
        spool.take(place)


@pytest.mark.parametrize("threads", [1, 2])
def test_both_sources_of_a_join_end_while_its_first_result_is_looked_at(tmp_path: Path, threads: int) -> None:
    done = threading.Event(), threading.Event()
    with wm.join(
        numbered(60_000, done[0]), numbered(60_000, done[1]), on="id", memory="16 MiB", spool="1 GiB", spill=tmp_path,
        threads=threads, names=("a", "b"),
    ) as result:  # fmt: skip
        ids = []
        for number, batch in enumerate(result):
            if not number:
                assert done[0].wait(PATIENCE) and done[1].wait(PATIENCE), "a source had to wait"
                spool = result.progress.spool
                assert spool is not None and spool.waiting_rows > 0
                assert "rows ahead on disk" in str(result.progress)
            ids += batch["id"].to_pylist()
    assert sorted(ids) == list(range(60_000))
    assert result.progress.spool is not None and result.progress.spool.rows > 0
    assert result.progress.peak <= result.progress.budget
    assert not any(tmp_path.iterdir())


def test_nothing_is_left_by_a_join_that_is_closed_on_the_way(tmp_path: Path) -> None:
    done = threading.Event(), threading.Event()
    result = wm.join(
        numbered(60_000, done[0]), numbered(60_000, done[1]), on="id", memory="2 MiB", spool="1 GiB", spill=tmp_path
    )
    running = iter(result)
    next(running)
    assert done[0].wait(PATIENCE) and done[1].wait(PATIENCE)
    result.close()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", ["ewj", "ah_ewj"])
@pytest.mark.parametrize("seed", [1, 2])
def test_premature_dumps_of_window_joins_lose_nothing(algorithm: str, seed: int) -> None:
    happened = premature_case(seed, algorithm)
    assert happened["results"] and happened["premature dumps"] and happened["mature dumps"], f"seed {seed}"


def test_tables_are_not_spooled() -> None:
    table = pa.table({"id": np.arange(200_000)})
    result = wm.join(table, table, on="id", memory="2 MiB", spool="1 GiB")
    assert result.table().num_rows == 200_000
    assert result.progress.spool is not None and result.progress.spool.rows == 0


def test_what_a_killed_process_has_spooled_is_swept_by_the_next(tmp_path: Path) -> None:
    swept_after_kill(tmp_path, 60_000)


@pytest.mark.parametrize(
    ("spool", "sentence"), [("much", "spool 'much' is not understood"), (0, "spool must be more than nothing")]
)
def test_a_bound_that_is_none_is_refused(spool: Any, sentence: str) -> None:
    with pytest.raises(wm.SpecError, match=sentence):
        wm.join([{"a": 1}], [{"a": 1}], on="a", spool=spool)
