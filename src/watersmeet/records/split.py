"""Batches split among shards: each row goes to the shard that its key's hash names.

```
batch ──hash once, order by shard──▶ piece for shard 0: (batch, rows 1 4 5 .., their hashes)
                                     piece for shard 1: (batch, rows 0 2 3 .., their hashes)
shard:  pieces of several batches ──┬─▶ a portion: hashes, and where each row is       (batches that stay anyway)
                                    └─one gather──▶ a batch of [hash, stored columns]  (all others)
```

Equal keys have equal hashes, so that two rows of a pair are always in the same shard: the join of all rows is the union
of the shards' joins, and no two of those have a pair in common. Whoever splits does no more than hash.

A batch that lies in memory whatever the join does, a part of a table of the user's, is copied by nobody: shards tell
where its rows are (`Shelf`), and each counts the bytes of its own. A batch that is there for the join alone would stay
until the last shard has let go of its rows, uncounted by those that did before: its rows are copied by the shard, when
it comes to them, many small pieces at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64, Numbers
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels import split as kernels
from watersmeet.kernels.addressed import BITS, LARGE_STRINGS, OTHER, STRINGS, WORDS, widen
from watersmeet.records.addressed import (
    AddressedRows,
    Sources,
    groups,
    put_back,
    width_of,
    with_values,
    words_of,
)
from watersmeet.records.arena import Arena
from watersmeet.records.intake import Intake, Received
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan

ROW_BYTES = 24
"""What a row of a piece takes beside the batch it lies in: its number, its hash and the size of its strings."""
_SHIFT = 32
"""A batch is one block, however many rows it has; its number is in the upper half of a place."""
_FIRST_ROWS = 2048
"""The first rows go on in small batches, for early results; each time twice as many, up to what fits."""
_LEAST_SHARED = 128
"""Fewer rows of a batch are copied: what is known of a batch takes as much as some dozen rows."""
_MAPPED_FROM = 1 << 16
_ALL = np.empty(0, np.bool_)


class Shelf:
    """One input's batches that shards have rows of, by number; a place is that number and the row in the batch.

    Batches are put on it by whoever splits, and by nobody else; all shards read. A number is free again when nobody has
    the batch any more. The first belongs to whoever reads: to the rows that a shard has copied.

    >>> shelf = Shelf([pa.int64()])
    >>> one = shelf.put([pa.array([7, 8])], 2); one.number, shelf.version
    (1, 1)
    >>> del one; shelf.put([pa.array([9])], 1).number
    1
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = types
        """Of the columns."""
        self.widths = [width_of(type_) for type_ in types]
        self.may_be_null = [False] * len(types)
        """Whether any value of a column ever was NULL."""
        self._stride = WORDS * len(types)
        self._words = np.zeros(16 * self._stride, np.int64)
        """How each batch is described, by its number (see `kernels.addressed`)."""
        self._former: list[Int64] = []
        """Descriptions that were copied when there was no more room, and which some may still read."""
        self.sources: Sources = self._as_one_source()
        """Where batches are: each is a block."""
        self._unused = 1
        """Numbers from here on were never given to a batch."""
        self.version = 0
        """How often a batch was put here."""
        self.free: deque[int] = deque()
        """Numbers of batches that nobody has any more."""

    def put(self, columns: Sequence[pa.Array], rows: int, widest: int = 0) -> Shared:
        """A batch of so many rows, none of which is wider in an output batch than `widest`."""
        try:
            number = self.free.popleft()
        except IndexError:
            number = self._unused
            self._unused += 1
        batch = Shared(self, number, columns, rows, widest)
        self.may_be_null = [one or other for one, other in zip(self.may_be_null, batch.may_be_null, strict=True)]
        at = number * self._stride
        if at == len(self._words) and at:  # readers have the old array, or the new one, which says the same
            self._former.append(self._words)
            self._words = np.concatenate([self._words, np.zeros_like(self._words)])
            self.sources = self._as_one_source()
        self._words[at : at + self._stride] = batch.words
        self.version += 1
        return batch

    def _as_one_source(self) -> Sources:
        return np.array([[0, self._words.ctypes.data, _SHIFT, 8 * self._stride, 0]], np.int64)

    def beside(self, own: Sources) -> Sources:
        """Batches as a source each, by their numbers, with somebody's own rows before them."""
        sources = np.zeros((self._unused, own.shape[1]), np.int64)
        sources[:, 1] = self.sources[0, 1] + 8 * self._stride * np.arange(len(sources))
        sources[:, 2] = _SHIFT - 1  # numbers of rows have half a word there
        sources[0] = own[0]
        return sources


class Shared:
    """A batch that lies in pieces: its stored columns, where they are, and how many pieces wait to be taken."""

    def __init__(self, shelf: Shelf, number: int, columns: Sequence[pa.Array], rows: int, widest: int) -> None:
        self.shelf = shelf
        widths = shelf.widths
        self.columns = [
            column if width == OTHER else with_values(column) for column, width in zip(columns, widths, strict=True)
        ]
        self.rows = rows
        self.number = number
        self.widest = widest
        """Bytes of its widest row in an output batch, at most."""
        self.row_bytes = 8 + sum(column.nbytes for column in columns) // max(1, rows)
        """Of all its rows, on average."""
        self.words = np.zeros(WORDS * len(columns), np.int64)
        self.may_be_null = [False] * len(columns)
        for place, (column, width) in enumerate(zip(self.columns, widths, strict=True)):
            if width != OTHER:
                words = words_of(column, width)
                self.words[WORDS * place : WORDS * (place + 1)] = words
                self.may_be_null[place] = bool(words[2])
        # A bit is counted as a byte, which is more than enough for what ends of bitmaps take.
        self.fixed_bytes = sum(1 if width == BITS else max(0, width) for width in widths) + sum(self.may_be_null)
        """Of each row, what is not of strings."""
        self.left = 0

    def string_bytes(self, rows: Int64) -> Int64 | None:
        """Of some rows, what is of strings; None if there are none."""
        strings = [column for column, width in enumerate(self.shelf.widths) if width in (STRINGS, LARGE_STRINGS)]
        if not strings:
            return None
        sizes, widths = np.zeros(len(rows), np.int64), np.array(self.shelf.widths, np.int32)
        widen(self.shelf.sources, widths, np.array(strings, np.int32), rows + (self.number << 32), sizes)
        return sizes

    def width(self, column: int) -> int:
        """Bytes of a value of a column, about."""
        return int(self.columns[column].nbytes) // max(1, self.rows) + 1

    def __del__(self) -> None:
        self.shelf.free.append(self.number)


@dataclass(slots=True)
class Piece:
    """The rows of a batch that belong to one shard."""

    batch: Shared
    rows: Int64
    """Where they are in the batch."""
    hashes: Int64
    first: int
    """The number of the batch's first row."""
    stays: bool = False
    """Whether the batch stays in memory anyway, so that its rows need not be copied."""
    sizes: Int64 | None = None
    """Of rows that are not copied, what their strings take; None: they have none."""
    valid: Bool | None = None
    """Which rows can match anything; None: all can."""

    @property
    def is_shared(self) -> bool:
        """Whether to tell where the rows are, and not to copy them."""
        return self.stays and len(self.rows) >= _LEAST_SHARED

    def part(self, start: int, stop: int) -> Piece:
        """Some of its rows."""
        sizes = None if self.sizes is None else self.sizes[start:stop]
        valid = None if self.valid is None else self.valid[start:stop]
        return Piece(self.batch, self.rows[start:stop], self.hashes[start:stop], self.first, self.stays, sizes, valid)


class Splitter:
    """One input's batches on their way to the shards; `stays`: they lie in memory whatever becomes of them here."""

    def __init__(self, spec: JoinSpec, side: int, codec: KeyCodec, shards: int, stays: bool = False) -> None:
        self._side = side
        self._codec = codec
        self._plan = RowPlan(spec, side, codec.exact)
        self._numbered = spec.output.value == "pairs"
        self._leaves_out = not spec.kind.preserved[side]
        """Whether rows that can match nothing are of no use."""
        self._shards = shards
        self.shelf = Shelf(self._plan.types)
        """Where the batches are that shards have rows of."""
        # What a nested value takes is not known of single rows, and each shard must count its own.
        self._stays = stays and self._plan.as_they_are and OTHER not in self.shelf.widths

    def split(self, batch: pa.RecordBatch, first: int) -> list[Piece | None]:
        """A piece for each shard; None where it has no row of the batch."""
        count = batch.num_rows
        hashes, valid = self._codec.hash(self._side, self._plan.key_arrays(batch))
        numbers = np.arange(first, first + count) if self._numbered else _NO_NUMBERS
        columns = self._plan.store(batch, numbers)
        shared = self.shelf.put(columns, count, self._plan.widest(columns) if self._stays else 0)
        stops, rows, ordered = np.empty(self._shards, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
        known: Bool = valid if valid is not None and self._leaves_out else _ALL
        kernels.split(hashes, known, self._shards, stops, rows, ordered)
        sizes = shared.string_bytes(rows[: stops[-1]]) if self._stays else None  # no others were written
        can_match = None if valid is None or self._leaves_out else valid[rows]
        whole = Piece(shared, rows, ordered, first, self._stays, sizes, can_match)
        pieces: list[Piece | None] = []
        start = 0
        for stop in stops.tolist():
            pieces.append(whole.part(start, stop) if stop > start else None)
            shared.left += stop > start
            start = stop
        return pieces


_NO_NUMBERS = np.empty(0, np.int64)


class Portion:
    """Rows of a shard, told by where they are; it takes the place of a batch, and of a batch's columns."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.shelf = pieces[0].batch.shelf
        self.hashes = _joined([piece.hashes for piece in pieces])
        self.places = _joined([piece.rows + (piece.batch.number << 32) for piece in pieces])
        self.batches = {piece.batch.number: piece.batch for piece in pieces}
        """The batches that the rows lie in, which stay for as long as somebody has them."""
        self.widest = max(piece.batch.widest for piece in pieces)
        self.row_bytes = max(piece.batch.row_bytes for piece in pieces)
        """Of all rows of its batches, on average."""
        self._fixed_bytes = max(piece.batch.fixed_bytes for piece in pieces)
        self.valid: Bool | None = None
        """Which rows can match anything; None: all can."""
        if any(piece.valid is not None for piece in pieces):
            self.valid = np.concatenate(
                [np.ones(len(piece.rows), np.bool_) if piece.valid is None else piece.valid for piece in pieces]
            )
        sizes = [piece.sizes for piece in pieces if piece.sizes is not None]
        self._sizes = _joined(sizes) if sizes else _NO_NUMBERS
        self._copied: pa.RecordBatch | None = None

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.hashes)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, as if they were copied."""
        return int(self._fixed_bytes * len(self.hashes) + self._sizes.sum())

    def slice(self, start: int, count: int | None = None) -> Portion:
        """Some of the rows."""
        return self._some(np.s_[start : self.num_rows if count is None else start + count])

    def take(self, rows: pa.Array) -> Portion:
        """Some of the rows, by their places."""
        return self._some(rows.to_numpy())

    def _some(self, which: Any) -> Portion:
        part = Portion.__new__(Portion)
        part.__dict__.update(self.__dict__)
        part.hashes, part.places, part._copied = self.hashes[which], self.places[which], None
        part._sizes = self._sizes[which] if len(self._sizes) else self._sizes
        part.valid = None if self.valid is None else self.valid[which]
        return part

    def copied(self, plan: SplitPlan) -> pa.RecordBatch:
        """The rows as a batch; the same one each time."""
        if self._copied is None:
            rows = PortionRows(self)
            columns = rows.gather_all(rows.all_columns, np.arange(self.num_rows))
            hashes = pa.array(self.hashes, mask=None if self.valid is None else ~self.valid)
            self._copied = pa.RecordBatch.from_arrays([hashes, *columns], schema=plan.schema)
        return self._copied


def other_values(batches: Mapping[int, Shared], column: int, places: Int64) -> pa.Array:
    """Values of a column that has no plain layout."""
    which = places >> 32
    order = np.argsort(which, kind="stable")
    arrays = [
        batches[int(which[group[0]])].columns[column].take(pa.array(places[group] & 0xFFFFFFFF))
        for group in groups(which[order], order)
    ]
    return put_back(order, arrays)


class PortionRows(AddressedRows):
    """The rows of a portion, numbered as they stand there."""

    def __init__(self, portion: Portion) -> None:
        super().__init__(portion.shelf.types)
        self._portion = portion
        self.all_columns = tuple(range(len(self.types)))

    @property
    def sources(self) -> Sources:
        return self._portion.shelf.sources

    def located(self, rows: Numbers) -> Numbers:
        return self._portion.places[rows]

    def may_be_null(self, column: int) -> bool:
        return self._portion.shelf.may_be_null[column]

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return other_values(self._portion.batches, column, self.located(rows))

    def other_width(self, column: int, rows: Numbers) -> int:
        return max(batch.width(column) for batch in self._portion.batches.values())

    def _allocate(self, size: int) -> pa.Buffer:
        """Memory that is given back to the system when its rows go, and not kept for others of the same size.

        Arrow's own pool would take huge pages for it, and to fill those with zeros took as long as all the rest.
        """
        return pa.allocate_buffer(size) if size < _MAPPED_FROM else pa.py_buffer(Arena(np.uint8, size).array)


def _joined(arrays: Sequence[Int64]) -> Int64:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class SplitCodec(KeyCodec):
    """The codec of a shard: its rows bring their hashes with them."""

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        (array,) = columns
        if isinstance(array, Portion):
            return array.hashes, array.valid
        start = 8 * array.offset
        hashes = np.frombuffer(array.buffers()[1], np.int64, len(array), start)
        valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        return (hashes if hashes.flags.writeable else hashes.copy()), valid


class SplitPlan(RowPlan):
    """The columns of a shard's rows: they are stored already, behind their hashes, or where a portion says."""

    def __init__(self, spec: JoinSpec, side: int, exact_hash: bool) -> None:
        super().__init__(spec, side, exact_hash)
        names = [pa.field("hash", pa.int64()), *(pa.field(str(i), type_) for i, type_ in enumerate(self.types))]
        self.schema = pa.schema(names)
        """Of a batch for the shard."""

    def key_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch] if isinstance(batch, Portion) else [batch.column(0)]

    def store(self, batch: pa.RecordBatch, numbers: Int64) -> list[pa.Array]:
        return [batch] if isinstance(batch, Portion) else list(batch.columns[1:])

    def widest(self, columns: Sequence[pa.Array]) -> int:
        portion = portion_of(columns)
        return super().widest(columns) if portion is None else portion.widest


def portion_of(columns: Sequence[pa.Array]) -> Portion | None:
    """The portion that takes the place of columns, if it does."""
    return columns[0] if len(columns) == 1 and isinstance(columns[0], Portion) else None


class SplitIntake(Intake):
    """One input's pieces for a shard, in order: as many as fit become a batch, or a portion, at once."""

    def __init__(self, limit: int, plan: SplitPlan) -> None:
        super().__init__(limit)
        self._plan = plan
        self._pieces: deque[Piece] = deque()
        self._most = _FIRST_ROWS
        self.taken: deque[Shared] = deque()
        """Batches of which a piece was taken, and is counted by the shard."""

    def add_piece(self, piece: Piece) -> None:
        """Take a piece."""
        self._pieces.append(piece)
        self.rows += len(piece.rows)

    def next(self, most: int | None = None) -> tuple[pa.RecordBatch, Int64]:
        if self._resumed:
            return self._next_resumed(most)
        batch, numbers = self._gathered()
        self.rows -= len(numbers)
        return batch, numbers

    def _fitting(self, batch: pa.RecordBatch) -> int:
        return super()._fitting(batch) if not isinstance(batch, Portion) else max(1, self._limit // batch.row_bytes)

    def _gathered(self) -> tuple[pa.RecordBatch, Int64]:
        """The next pieces, as many as fit and are alike, as one batch or portion; and their numbers."""
        pieces: list[Piece] = []
        used_up: list[Shared] = []
        room, most = self._limit, self._most
        self._most = min(2 * most, 1 << 30)
        is_shared = self._pieces[0].is_shared
        while self._pieces and ((room > 0 and most > 0) or not pieces):
            if self._pieces[0].is_shared != is_shared:
                break
            piece = self._pieces.popleft()
            fitting = min(most, max(1 if not pieces else 0, room // piece.batch.row_bytes))
            if fitting >= len(piece.rows):
                used_up.append(piece.batch)
            else:
                self._pieces.appendleft(piece.part(fitting, len(piece.rows)))
                if not fitting:
                    break
                piece = piece.part(0, fitting)
                room = 0
            room -= piece.batch.row_bytes * len(piece.rows)
            most -= len(piece.rows)
            pieces.append(piece)
        numbers = _joined([piece.rows + piece.first for piece in pieces])
        portion = Portion(pieces)
        self.taken.extend(used_up)
        return (portion if is_shared else portion.copied(self._plan)), numbers

    def waiting(self) -> list[Received]:
        """What is left, for a snapshot."""
        while self._pieces:
            self._resumed.append(Received(*self._gathered()))
        return list(self._resumed)
