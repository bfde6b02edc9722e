"""Bounded queues between threads that read sources and the one thread that joins.

The hot path takes no lock: every counter has one writer, a deque appends and pops atomically, and whoever is about to
sleep raises a flag first and looks again afterwards. So a row that arrives between the look and the sleep is seen.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol, TypeAlias

import pyarrow as pa

from watersmeet.core.promises import Punctuation
from watersmeet.drivers.shedding import Losses
from watersmeet.drivers.spool import Spool, Spooled
from watersmeet.records.types import put_together

SHED_AFTER = 0.1
"""Seconds for which a queue must have been full before rows are let go, if they may."""
PIECES = 4
"""A batch is cut to pieces of at most this fraction of its queue, so that one batch never fills it."""
MAX_ROWS = 65_536
"""Rows a queue holds at most, however narrow they are."""
BATCH_ROWS = 31
"""A batch counts as so many rows more than it has: with tens of thousands of tiny batches in the queue, their readers
would only take the interpreter from the consumer."""
BATCH_BYTES, COLUMN_BYTES = 512, 256
"""What a batch and each of its columns take beside the rows."""
TOGETHER_ROWS = 4096
"""Batches that wait are put together up to so many rows: then an operator's work for each batch weighs little."""
SMALL = 1024
"""Bytes a row up to which the size of the buffers stands for the size of the rows."""
TRUSTED = 256
"""So many slices of one batch are taken to be as wide as the one that was measured."""


Piece: TypeAlias = tuple[pa.RecordBatch | Punctuation, int, int]
"""Some rows, or a punctuation between rows, and the bytes and the rows they count for."""
Place: TypeAlias = tuple[Spooled, int, int]
"""Where more of them lie on disk."""


class Readable(Protocol):
    """What the driver needs of a source."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    def schema(self) -> pa.Schema:
        """May wait for data."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, each batch with exactly that schema; called once."""
        ...

    def close(self) -> None:
        """Let go of files and the like; may be called twice."""
        ...


class Bell:
    """One condition variable for all threads of a run, rung only when somebody sleeps."""

    __slots__ = ("asleep", "condition", "stopped")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.asleep = False
        """The consumer sleeps, or is about to."""
        self.stopped = False
        """The run is over: readers end as soon as they look."""

    def ring(self) -> None:
        """Wake whoever sleeps."""
        with self.condition:
            self.asleep = False
            self.condition.notify_all()


class Inbox:
    """The queue of one input, and the thread that fills it."""

    def __init__(
        self, source: Readable, bell: Bell, room: int, rows: int = MAX_ROWS, spool: Spool | None = None, number: int = 0
    ) -> None:
        """With a spool, what has no room here goes there; `number` tells this queue's rows from others'."""
        self.source = source
        self._spool = spool
        self._number = number
        self.losses: Losses | None = None
        """If set, rows may be let go, and are counted there."""
        self.patience = SHED_AFTER
        self.rows_read = self._rows_shed = 0
        self._segments = 0
        """That the reader has put on disk."""
        self.bell = bell
        self.piece_bytes = max(1, room // PIECES)
        self.piece_rows = max(1, rows // PIECES)
        self.half = room // 2
        # The newest piece may be beyond it; and so may the one that was read back from disk.
        beyond = 1 if spool is None else 2
        self._high_bytes = max(0, room - beyond * self.piece_bytes)
        self._high_rows = max(0, rows - beyond * self.piece_rows)
        self.pieces: deque[Piece | Place] = deque()
        # Written by the reader alone.
        self.put_bytes = 0
        self.counted_put = 0
        """Rows, a batch's extra ones included."""
        self.schema: pa.Schema | None = None
        self.error: BaseException | None = None
        self.ended = False
        # Written by the consumer alone.
        self.freed_bytes = 0
        self.counted_freed = 0
        self.loaded_bytes = 0
        self.counted_loaded = 0
        """Of what was read back from disk."""
        self._load_ends: int | None = None
        """What was read back last is worked off when so many bytes are freed."""
        self.taken_bytes = 0
        self.end_told = False
        self._blocked = False
        self.thread = threading.Thread(target=_read, args=(self,), name=f"watersmeet-read-{source.name}", daemon=True)

    @property
    def held(self) -> int:
        """Bytes that were read and are not worked off."""
        return self.put_bytes + self.loaded_bytes - self.freed_bytes

    @property
    def rows(self) -> int:
        """Rows in the queue."""
        return sum([counted - BATCH_ROWS for _, _, counted in self.pieces.copy()])

    @property
    def presses(self) -> bool:
        """Whether what waits cannot wait longer: the reader has no room, or runs ahead, or has failed."""
        ahead = any(isinstance(item, Spooled) for item, _, _ in self.pieces.copy()) if self._spool else False
        return self._blocked or ahead or self.error is not None

    @property
    def ready(self) -> bool:
        """Is there anything the consumer has not been told?"""
        return bool(self.pieces) or self.error is not None or (self.ended and not self.end_told)

    def take(self) -> list[Piece]:
        """What waits, of a full queue about half, so that the reader can go on; many small batches become few."""
        taken = self._take()
        self.taken_bytes += sum([size for _, size, _ in taken])
        return taken

    def _take(self) -> list[Piece]:
        pop = self.pieces.popleft
        taken: list[Piece] = []
        small: list[Piece] = []
        left, bytes_left, rows_left = self.half, self.piece_bytes, TOGETHER_ROWS
        for _ in range(len(self.pieces)):
            try:
                item, size, counted = piece = pop()
            except IndexError:  # the reader has taken it back
                break
            if isinstance(item, Spooled):
                if taken or small or not self._may_load():
                    self.pieces.appendleft((item, size, counted))
                    break
                return self._load(item)
            if isinstance(item, Punctuation):  # what is put together must not reach over it
                taken += [*together(small), piece]
                small, bytes_left, rows_left = [], self.piece_bytes, TOGETHER_ROWS
                left -= size
                if left < 0:
                    break
                continue
            left -= size
            bytes_left -= size
            rows_left -= counted - BATCH_ROWS
            small.append(piece)
            if bytes_left <= 0 or rows_left <= 0:
                taken += together(small)
                small, bytes_left, rows_left = [], self.piece_bytes, TOGETHER_ROWS
            if left < 0:
                break
        return taken + together(small)

    def _may_load(self) -> bool:
        """Whether what was read back from disk before is worked off: there is memory for one such piece."""
        return self._load_ends is None or self.freed_bytes >= self._load_ends

    def _load(self, spooled: Spooled) -> list[Piece]:
        """Rows from disk, which count from now on."""
        assert self._spool is not None
        batches, rest = self._spool.take(spooled)
        if rest is not None:
            self.pieces.appendleft(_place(rest))
        overhead = BATCH_BYTES + COLUMN_BYTES * len(batches[0].schema)
        pieces: list[Piece] = [(batch, batch.nbytes + overhead, batch.num_rows + BATCH_ROWS) for batch in batches]
        total = sum([size for _, size, _ in pieces])
        self.loaded_bytes += total
        self.counted_loaded += sum([counted for _, _, counted in pieces])
        self._load_ends = self.taken_bytes + total
        return pieces

    def spool_newest(self) -> bool:
        """The reader has no room: let it take the newest rows back and put them on disk; False if none can go there."""
        if self._spool is None:
            return False
        newest: list[Piece] = []
        size = counted = 0
        while self.pieces:
            try:
                item, bytes_, rows = self.pieces.pop()
            except IndexError:  # the consumer has it
                break
            if isinstance(item, Spooled | Punctuation) or (newest and size + bytes_ > self.piece_bytes):
                self.pieces.append((item, bytes_, rows))
                break
            newest.append((item, bytes_, rows))
            size += bytes_
            counted += rows
        if not newest:
            return False
        newest.reverse()
        batches = [item for item, _, _ in newest if isinstance(item, pa.RecordBatch)]
        spooled = self._spool.put(self._number, self._segments + 1, batches)
        if spooled is None:
            self.pieces.extend(newest)
        else:
            self._segments += 1
            self.put_bytes -= size
            self.counted_put -= counted
            self._append(spooled)
        if self.bell.asleep:  # who looked meanwhile has seen less than there is
            self.bell.ring()
        return spooled is not None

    def _append(self, spooled: Spooled) -> None:
        """Say where the newest rows lie; beside others on disk, in one with them."""
        try:
            last = self.pieces.pop()
        except IndexError:
            last = None
        if last is not None and isinstance(last[0], Spooled):
            spooled = last[0].and_then(spooled)
        elif last is not None:
            self.pieces.append(last)
        self.pieces.append(_place(spooled))

    def free(self, size: int, rows: int) -> None:
        """The consumer has worked off so much."""
        self.freed_bytes += size
        self.counted_freed += rows
        if self._blocked:
            self.bell.ring()

    def stop(self, patience: float) -> None:
        """After the bell was stopped: wait so long for the reader, drop what is queued, see the source closed."""
        if self.thread.ident is not None and self.thread is not threading.current_thread():
            self.thread.join(patience)
        self.pieces.clear()
        if self.thread.ident is None or self.thread.is_alive():  # else the reader has closed it
            with contextlib.suppress(Exception):  # a generator that is stuck in its own code cannot be closed
                self.source.close()

    def cut(self, batch: pa.RecordBatch, size: int) -> Iterator[Piece]:
        """Slices of a batch that fit the queue, each with its share of the bytes."""
        rows: int = batch.num_rows
        step = max(1, min(self.piece_rows, rows * self.piece_bytes // max(size, 1)))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            share = size * stop // rows - size * start // rows
            yield batch.slice(start, stop - start), share, stop - start + BATCH_ROWS

    def allowance(self) -> tuple[int, int]:
        """How many bytes and rows may have been put in all before the reader must wait."""
        freed, counted = self.freed_bytes - self.loaded_bytes, self.counted_freed - self.counted_loaded
        return freed + self._high_bytes, counted + self._high_rows

    def make_room(self) -> tuple[int, int]:
        """Room for more in the queue: it may have some by now, or get some by what goes to disk; else wait for it."""
        while True:
            most_bytes, most_rows = self.allowance()
            if self.put_bytes <= most_bytes and self.counted_put <= most_rows:
                return most_bytes, most_rows
            if not self.spool_newest() and not self._let_newest_go():
                return self.await_room()

    def _let_newest_go(self) -> bool:
        """The queue is full and stays so: let the newest rows go, if so many may; False if none do."""
        if self.losses is None or self._gets_room(self.patience):
            return False
        try:
            item, size, counted = self.pieces.pop()
        except IndexError:  # the consumer has taken all of it
            return False
        rows = counted - BATCH_ROWS
        if isinstance(item, Spooled | Punctuation) or self._rows_shed + rows > self.losses.share * self.rows_read:
            self.pieces.append((item, size, counted))
            if self.bell.asleep:
                self.bell.ring()
            return False
        self.losses.count(self._number, item, shed=True)
        self._rows_shed += rows
        self.put_bytes -= size
        self.counted_put -= counted
        return True

    def _gets_room(self, seconds: float) -> bool:
        """Whether there is room after so long, or the run is over."""
        with self.bell.condition:
            self._blocked = True
            found = self.bell.condition.wait_for(self._has_room, seconds)
            self._blocked = False
        return found

    def _has_room(self) -> bool:
        most_bytes, most_rows = self.allowance()
        return (self.put_bytes <= most_bytes and self.counted_put <= most_rows) or self.bell.stopped

    def await_room(self) -> tuple[int, int]:
        """Sleep until there is room or the run is over; then the new allowance."""
        with self.bell.condition:
            self._blocked = True
            self.bell.condition.wait_for(self._has_room)
            self._blocked = False
        return self.allowance()


def _place(spooled: Spooled) -> Place:
    """What stands in the queue for rows on disk. It counts for nothing: between two pieces there is one at most."""
    return spooled, 0, spooled.rows + BATCH_ROWS


def together(pieces: list[Piece]) -> list[Piece]:
    """One piece for many, where Arrow can join them: an operator's work for a batch hardly depends on its rows.

    >>> one, two = pa.record_batch({"n": [1]}), pa.record_batch({"n": [2]})
    >>> [(batch.num_rows, size, rows) for batch, size, rows in together([(one, 8, 1), (two, 8, 1)])]
    [(2, 16, 2)]
    """
    if len(pieces) < 2 or pieces[-1][2] > TOGETHER_ROWS:  # a large one after some small ones is not worth a copy
        return pieces
    batches, sizes, counted = zip(*pieces, strict=True)
    batch = put_together(batches)
    if batch is None:
        return pieces
    return [(batch, sum(sizes), sum(counted))]


def _read(inbox: Inbox) -> None:
    """The reader thread: everything the source has, in order, then how it ended."""
    try:
        inbox.schema = inbox.source.schema()
        inbox.bell.ring()
        _read_batches(inbox)
    except BaseException as error:  # a source is anybody's code; the consumer reports whatever it raised
        if not inbox.bell.stopped:
            inbox.error = error
    finally:
        with contextlib.suppress(Exception):
            inbox.source.close()
        inbox.ended = True
        inbox.bell.ring()


def _read_batches(inbox: Inbox) -> None:
    bell, put = inbox.bell, inbox.pieces.append
    piece_bytes, piece_rows = inbox.piece_bytes, inbox.piece_rows
    put_bytes = counted_put = 0
    most_bytes, most_rows = inbox.allowance()
    overhead = BATCH_BYTES + COLUMN_BYTES * len(inbox.schema or ())
    buffers, row_bytes, trusted = -1, 0.0, 0
    iterator = getattr(inbox.source, "marked_batches", inbox.source.batches)()
    try:
        for batch in iterator:
            if isinstance(batch, Punctuation):
                put_bytes += BATCH_BYTES
                counted_put += BATCH_ROWS
                inbox.put_bytes, inbox.counted_put = put_bytes, counted_put
                put((batch, BATCH_BYTES, BATCH_ROWS))
                if bell.asleep:
                    bell.ring()
                if put_bytes > most_bytes or counted_put > most_rows:
                    most_bytes, most_rows = inbox.make_room()
                    put_bytes, counted_put = inbox.put_bytes, inbox.counted_put
                if bell.stopped:
                    return
                continue
            rows = batch.num_rows
            if not rows:
                if bell.stopped:
                    return
                continue
            # Exact sizes take microseconds, more than all the rest for a batch of one row. Slices of one batch share
            # its buffers, so they show the same total: measure a few. Other small batches count as their buffers.
            total = batch.get_total_buffer_size()
            if total == buffers and trusted:
                size = int(row_bytes * rows)
                trusted -= 1
            elif total <= SMALL * rows and total <= piece_bytes:
                size = total
            else:
                size = batch.nbytes
                buffers, row_bytes, trusted = total, size / rows, TRUSTED
            size += overhead
            fits = size <= piece_bytes and rows < piece_rows
            for piece in ((batch, size, rows + BATCH_ROWS),) if fits else inbox.cut(batch, size):
                put_bytes += piece[1]
                counted_put += piece[2]
                inbox.rows_read += piece[2] - BATCH_ROWS
                inbox.put_bytes = put_bytes
                inbox.counted_put = counted_put
                put(piece)
                if bell.asleep:
                    bell.ring()
                if put_bytes > most_bytes or counted_put > most_rows:
                    most_bytes, most_rows = inbox.make_room()
                    put_bytes, counted_put = inbox.put_bytes, inbox.counted_put
                if bell.stopped:
                    return
            del batch, piece  # not to be kept alive while the source makes the next one
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            with contextlib.suppress(Exception):
                close()
