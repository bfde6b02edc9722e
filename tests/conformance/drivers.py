"""Cases of what drivers do with rows before a join sees them: rows that are let go, and rows that wait on disk.

Whatever becomes of them, an oracle tells what must come out: all pairs but those that are said to be lost; and every
row once, in order, whichever write fails and however fast the consumer is.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import watersmeet as wm
from simulate.stores import FaultyStore
from watersmeet.core.promises import Punctuation
from watersmeet.drivers.inbox import Bell, Inbox
from watersmeet.drivers.spool import Spool
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "n": pa.int64()})
ROOM = 64 << 10
PATIENCE = 60
KILLED_IN = 50
"""One case of so many is about a process that is killed: each takes seconds."""
_WIDE = pa.array(["." * 200])


# --- rows that are let go ---


def made(rng: np.random.Generator, rows: int, distinct: int, skew: float) -> pa.RecordBatch:
    """Rows of so many keys, some without one."""
    ids = (distinct * rng.random(rows) ** skew).astype(np.int64)
    return pa.record_batch([pa.array(ids, mask=rng.random(rows) < 0.03), pa.array(np.arange(rows))], schema=SCHEMA)


def pairs_of(left: pa.RecordBatch, right: pa.RecordBatch) -> int:
    """How many there are."""
    counts = [Counter(value for value in batch["id"].to_pylist() if value is not None) for batch in (left, right)]
    return sum(count * counts[1][key] for key, count in counts[0].items())


def held_back(table: pa.RecordBatch, step: int, go: threading.Event, done: threading.Event) -> Iterator[pa.RecordBatch]:
    """Some rows, and when somebody says so all others at once."""
    yield table.slice(0, step)
    go.wait(PATIENCE)
    for start in range(step, table.num_rows, step):
        yield table.slice(start, step)
    done.set()


def shed_case(seed: int) -> Counter[str]:
    """A join whose first result is looked at for so long that rows are let go: as many as may be.

    To be run where a queue need not have been full for long (`inbox.SHED_AFTER`).
    """
    rng = np.random.default_rng([seed, 0x60])
    count, threads = int(rng.choice([12_000, 20_000, 30_000])), 1 + int(rng.integers(2))
    distinct, skew = int(rng.choice([300, 2_500])), float(rng.choice([1, 2]))
    narrow = [made(rng, count, distinct, skew) for _ in range(2)]
    wide = _WIDE.take(pa.array(np.zeros(count, np.int32)))
    tables = [batch.add_column(2, "t", wide) for batch in narrow]
    share = float(rng.choice([0.05, 0.3, 0.9]))
    go, done = threading.Event(), threading.Event()
    sources = [wm.source(held_back(table, 200, go, done), schema=tables[0].schema) for table in tables]
    memory = "20 MiB" if threads > 1 else "8 MiB"
    with wm.join(*sources, on="id", memory=memory, shed=share, threads=threads, names=("a", "b")) as result:
        pairs = []
        for number, batch in enumerate(result):
            if not number:
                go.set()
                # Readers are stopped by full queues, or by the end: either way nothing more is to come from them.
                while not all(each.ended or each._blocked for each in result._run._inboxes):
                    done.wait(0.01)
            pairs.append(batch["n"].to_numpy() * count + batch["n_right"].to_numpy())
    figures = result.progress.shed
    assert figures is not None and figures.exact
    found = np.concatenate(pairs)
    assert len(np.unique(found)) == len(found)
    assert len(found) + figures.pairs == pairs_of(*tables), (len(found), figures, pairs_of(*tables))
    went = [count - each for each in result.progress.rows_in]
    assert list(figures.rows) == went and all(each <= share * count for each in went), (figures, went)
    assert "pairs lost" in str(result.progress) or not sum(went)
    ids = [table["id"].to_numpy(zero_copy_only=False) for table in tables]
    assert (ids[0][found // count] == ids[1][found % count]).all()
    assert result.progress.peak <= result.progress.budget
    return +Counter({"results": len(found), "rows shed": int(sum(went) > 0), "pairs lost": int(figures.pairs > 0)})


# --- rows that wait on disk ---


class Given:
    """A source of things that were made before."""

    name = "given"

    def __init__(self, items: list[Any], before: Callable[[int], None] | None = None) -> None:
        self.items = items
        self.before = before
        self.done = threading.Event()

    def schema(self) -> pa.Schema:
        """That of the rows."""
        return next(item.schema for item in self.items if isinstance(item, pa.RecordBatch))

    def marked_batches(self) -> Iterator[Any]:
        """All of them."""
        for number, item in enumerate(self.items):
            if self.before is not None:
                self.before(number)
            yield item
        self.done.set()

    batches = marked_batches

    def close(self) -> None:
        """Nothing to let go."""


def some_items(rng: np.random.Generator, count: int, punctuated: bool) -> list[Any]:
    """Batches of numbered rows, and perhaps punctuations among them."""
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
    """All of it, in order."""
    return [each for item in items for each in ([item] if isinstance(item, Punctuation) else item["n"].to_pylist())]


def spool_case(seed: int) -> Counter[str]:
    """However fast the consumer is, whatever the bound, and whichever write or commit fails."""
    if seed % KILLED_IN == KILLED_IN - 1:
        with tempfile.TemporaryDirectory() as place:
            swept_after_kill(Path(place), 20_000 + 100 * (seed % 400))
        return Counter({"results": 2_000, "killed": 1, "rows on disk": 1})
    rng = np.random.default_rng([seed, 0x5F])
    items = some_items(rng, int(rng.integers(5, 60)), punctuated=seed % 2 == 1)
    fault = int(rng.integers(1, 30)) if seed % 3 == 0 else None
    spool = Spool(
        int(rng.choice([20_000, 200_000, 1 << 30])),
        lambda: FaultyStore(MemoryStore(), fail_at=fault, operation="write", lasting=seed % 2 == 0),
    )
    inbox = Inbox(Given(items), Bell(), ROOM, spool=spool)
    peak = 0

    def look() -> None:
        nonlocal peak
        peak = max(peak, inbox.held)
        assert spool.figures().waiting_bytes <= spool.room
        if rng.random() < 0.3:
            time.sleep(0)

    inbox.thread.start()
    if seed % 4:
        while not (inbox.ended or inbox.presses):
            time.sleep(0)
    refused = spool.figures().refused
    found = taken_all(inbox, look)
    assert found == expected_of(items)
    inbox.thread.join()
    assert peak <= ROOM + 1024, "but for punctuations that came just then"
    assert inbox.held == 0 and inbox.counted_put + inbox.counted_loaded == inbox.counted_freed
    figures = spool.figures()
    assert figures.waiting_rows == figures.waiting_bytes == 0
    full = refused is not None or figures.refused is not None
    return +Counter({"results": len(found), "rows on disk": int(figures.rows > 0), "disk full": int(full)})


def numbered(count: int, done: threading.Event, step: int = 100) -> Iterator[pa.RecordBatch]:
    """Rows with ids from 0 on."""
    for start in range(0, count, step):
        yield pa.record_batch({"id": np.arange(start, start + step), "t": ["y" * 40] * step})
    done.set()


_KILLED = """
import sys, threading
sys.path[:0] = [{tests!r}]
from conformance.drivers import numbered
import watersmeet as wm
done = threading.Event(), threading.Event()
rows = [numbered({count}, each) for each in done]
result = wm.join(*rows, on="id", memory="2 MiB", spool="1 GiB", spill={place!r})
running = iter(result)
first = next(running)
done[0].wait(), done[1].wait()
assert result.progress.spool.waiting_rows
print("ahead", flush=True)
threading.Event().wait()
"""


def swept_after_kill(place: Path, count: int) -> None:
    """What a killed process has spooled is swept by the next, which finds everything."""
    script = _KILLED.format(tests=str(Path(__file__).parents[1]), place=str(place), count=count)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ahead\n"
            assert any(place.iterdir())
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL and any(place.iterdir()), "nothing was swept yet"
    done = threading.Event(), threading.Event()
    found = wm.join(numbered(2_000, done[0]), numbered(2_000, done[1]), on="id", spool="1 GiB", spill=place).table()
    assert found.num_rows == 2_000
    assert not any(place.iterdir())
