"""Sources that run ahead onto the disk: in order, once, within memory and bound; full, damaged, closed, killed."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from simulate.stores import FaultyStore, flip_byte
from watersmeet.checks.payload import random_payload
from watersmeet.core.promises import Punctuation
from watersmeet.drivers.inbox import Bell, Inbox
from watersmeet.drivers.spool import Spool, Spooled
from watersmeet.spill.store import MemoryStore

PATIENCE = 60
ROOM = 64 << 10


class Given:
    """A source of things that were made before."""

    name = "given"

    def __init__(self, items: list[Any], before: Callable[[int], None] | None = None) -> None:
        self.items = items
        self.before = before
        self.done = threading.Event()

    def schema(self) -> pa.Schema:
        return next(item.schema for item in self.items if isinstance(item, pa.RecordBatch))

    def marked_batches(self) -> Iterator[Any]:
        for number, item in enumerate(self.items):
            if self.before is not None:
                self.before(number)
            yield item
        self.done.set()

    batches = marked_batches

    def close(self) -> None:
        """Nothing to let go."""


def some_items(rng: np.random.Generator, count: int, punctuated: bool) -> list[Any]:
    items: list[Any] = []
    at = 0
    for _ in range(count):
        if punctuated and rng.random() < 0.1:
            items.append(Punctuation({"n": int(rng.integers(1000))}))
        rows = int(rng.choice([1, 30, 400, 3000]))
        items.append(pa.record_batch({"n": np.arange(at, at + rows), "t": ["x" * int(rng.integers(9))] * rows}))
        at += rows
    return items


def taken_all(inbox: Inbox, between: Callable[[], None] = lambda: None) -> list[Any]:
    """What comes out, row numbers and punctuations; each time all that was taken is worked off before the next."""
    found: list[Any] = []
    while True:
        ended = inbox.ended
        pieces = inbox.take()
        for item, size, counted in pieces:
            found += [item] if isinstance(item, Punctuation) else item["n"].to_pylist()
            inbox.free(size, counted)
        between()
        if ended and not inbox.pieces:
            assert inbox.error is None
            return found


def expected_of(items: list[Any]) -> list[Any]:
    return [each for item in items for each in ([item] if isinstance(item, Punctuation) else item["n"].to_pylist())]


@pytest.mark.parametrize("seed", range(60))
def test_everything_comes_out_once_and_in_order(seed: int) -> None:
    """However fast the consumer is, whatever the bound, and whichever write or commit fails."""
    rng = np.random.default_rng([seed, 0x5F])
    items = some_items(rng, int(rng.integers(5, 60)), punctuated=seed % 2 == 1)
    fault = int(rng.integers(1, 30)) if seed % 3 == 0 else None
    spool = Spool(
        int(rng.choice([20_000, 200_000, 1 << 30])),
        lambda: FaultyStore(MemoryStore(), fail_at=fault, operation="write", lasting=seed % 2 == 0),
    )
    waits = set(rng.integers(0, len(items), 6).tolist())
    inbox = Inbox(Given(items), Bell(), ROOM, spool=spool)
    peak = 0

    def look() -> None:
        nonlocal peak
        peak = max(peak, inbox.held)
        assert spool.figures().waiting_bytes <= spool.room
        if len(waits) and rng.random() < 0.3:
            time.sleep(0)

    inbox.thread.start()
    if seed % 4:
        while not (inbox.ended or inbox.presses):
            time.sleep(0)
    assert taken_all(inbox, look) == expected_of(items)
    inbox.thread.join()
    assert peak <= ROOM + 1024, "but for punctuations that came just then"
    assert inbox.held == 0 and inbox.counted_put + inbox.counted_loaded == inbox.counted_freed
    figures = spool.figures()
    assert figures.waiting_rows == figures.waiting_bytes == 0


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


def rows(count: int, done: threading.Event, step: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, step):
        yield pa.record_batch({"id": np.arange(start, start + step), "t": ["y" * 40] * step})
    done.set()


@pytest.mark.parametrize("threads", [1, 2])
def test_both_sources_of_a_join_end_while_its_first_result_is_looked_at(tmp_path: Path, threads: int) -> None:
    done = threading.Event(), threading.Event()
    with wm.join(
        rows(60_000, done[0]), rows(60_000, done[1]), on="id", memory="16 MiB", spool="1 GiB", spill=tmp_path,
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
        rows(60_000, done[0]), rows(60_000, done[1]), on="id", memory="2 MiB", spool="1 GiB", spill=tmp_path
    )
    running = iter(result)
    next(running)
    assert done[0].wait(PATIENCE) and done[1].wait(PATIENCE)
    result.close()
    assert not any(tmp_path.iterdir())


def test_tables_are_not_spooled() -> None:
    table = pa.table({"id": np.arange(200_000)})
    result = wm.join(table, table, on="id", memory="2 MiB", spool="1 GiB")
    assert result.table().num_rows == 200_000
    assert result.progress.spool is not None and result.progress.spool.rows == 0


KILLED = """
import sys, threading
sys.path[:0] = [{tests!r}, {root!r}]
from test_spool import rows
import watersmeet as wm
done = threading.Event(), threading.Event()
result = wm.join(rows(60_000, done[0]), rows(60_000, done[1]), on="id", memory="2 MiB", spool="1 GiB", spill={place!r})
running = iter(result)
first = next(running)
done[0].wait(), done[1].wait()
assert result.progress.spool.waiting_rows
print("ahead", flush=True)
threading.Event().wait()
"""


def test_what_a_killed_process_has_spooled_is_swept_by_the_next(tmp_path: Path) -> None:
    tests = Path(__file__).parent
    script = KILLED.format(tests=str(tests), root=str(tests.parents[1]), place=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ahead\n"
            assert any(tmp_path.iterdir())
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL and any(tmp_path.iterdir()), "nothing was swept yet"
    done = threading.Event(), threading.Event()
    found = wm.join(rows(2_000, done[0]), rows(2_000, done[1]), on="id", spool="1 GiB", spill=tmp_path).table()
    assert found.num_rows == 2_000
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spool", "sentence"), [("much", "spool 'much' is not understood"), (0, "spool must be more than nothing")]
)
def test_a_bound_that_is_none_is_refused(spool: Any, sentence: str) -> None:
    with pytest.raises(wm.SpecError, match=sentence):
        wm.join([{"a": 1}], [{"a": 1}], on="a", spool=spool)
