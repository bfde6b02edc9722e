"""Batches split among shards: each row goes to the shard that its key's hash names, without being copied.

```
batch ──hash once, order by shard──▶ piece for shard 0: (batch, rows 1 4 5 .., their hashes)
                                     piece for shard 1: (batch, rows 0 2 3 .., their hashes)
shard:  pieces of several batches ──one gather──▶ a batch of [hash, stored columns]
```

Equal keys have equal hashes, so that two rows of a pair are always in the same shard: the join of all rows is the union
of the shards' joins, and no two of those have a pair in common. Whoever splits does no more than hash; the rows are
copied by the shard, when it comes to them, many small pieces at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64, Numbers
from watersmeet.core.spec import JoinSpec
from watersmeet.kernels import split as kernels
from watersmeet.kernels.addressed import OTHER, WORDS
from watersmeet.records.addressed import AddressedRows, Sources, width_of, with_values, words_of
from watersmeet.records.arena import Arena
from watersmeet.records.intake import Intake, Received
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan

ROW_BYTES = 16
"""What a row of a piece takes beside the batch it lies in: its number and its hash."""
_SHIFT = 31
"""A batch is one block, however many rows it has."""
_FIRST_ROWS = 2048
"""The first rows go on in small batches, for early results; each time twice as many, up to what fits."""
_MAPPED_FROM = 1 << 16
_ALL = np.empty(0, np.bool_)


class Shared:
    """A batch that lies in pieces: its stored columns, where they are, and how many pieces wait to be copied."""

    __slots__ = ("columns", "left", "may_be_null", "row_bytes", "rows", "words")

    def __init__(self, columns: Sequence[pa.Array], widths: Sequence[int], rows: int) -> None:
        self.columns = [
            column if width == OTHER else with_values(column) for column, width in zip(columns, widths, strict=True)
        ]
        self.rows = rows
        self.row_bytes = 8 + sum(column.nbytes for column in columns) // max(1, rows)
        self.words = np.zeros(WORDS * len(columns), np.int64)
        self.may_be_null = [False] * len(columns)
        for number, (column, width) in enumerate(zip(self.columns, widths, strict=True)):
            if width != OTHER:
                words = words_of(column, width)
                self.words[WORDS * number : WORDS * (number + 1)] = words
                self.may_be_null[number] = bool(words[2])
        self.left = 0


@dataclass(slots=True)
class Piece:
    """The rows of a batch that belong to one shard."""

    batch: Shared
    rows: Int64
    """Where they are in the batch."""
    hashes: Int64
    first: int
    """The number of the batch's first row."""


class Splitter:
    """One input's batches on their way to the shards."""

    def __init__(self, spec: JoinSpec, side: int, codec: KeyCodec, shards: int) -> None:
        self._side = side
        self._codec = codec
        self._plan = RowPlan(spec, side, codec.exact)
        self._widths = [width_of(type_) for type_ in self._plan.types]
        self._numbered = spec.output.value == "pairs"
        self._shards = shards

    def split(self, batch: pa.RecordBatch, first: int) -> list[Piece | None]:
        """A piece for each shard; None where it has no row of the batch."""
        count = batch.num_rows
        hashes, valid = self._codec.hash(self._side, self._plan.key_arrays(batch))
        numbers = np.arange(first, first + count) if self._numbered else _NO_NUMBERS
        shared = Shared(self._plan.store(batch, numbers), self._widths, count)
        stops, rows, ordered = np.empty(self._shards, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
        known: Bool = _ALL if valid is None else valid
        kernels.split(hashes, known, self._shards, stops, rows, ordered)
        pieces: list[Piece | None] = []
        start = 0
        for stop in stops.tolist():
            pieces.append(Piece(shared, rows[start:stop], ordered[start:stop], first) if stop > start else None)
            shared.left += stop > start
            start = stop
        return pieces


_NO_NUMBERS = np.empty(0, np.int64)


class SplitCodec(KeyCodec):
    """The codec of a shard: its rows bring their hashes with them."""

    def hash(self, side: int, columns: Sequence[pa.Array]) -> tuple[Int64, Bool | None]:
        (array,) = columns
        start = 8 * array.offset
        hashes = np.frombuffer(array.buffers()[1], np.int64, len(array), start)
        return (hashes if hashes.flags.writeable else hashes.copy()), None


class SplitPlan(RowPlan):
    """The columns of a shard's rows: they are stored already, behind their hashes."""

    def __init__(self, spec: JoinSpec, side: int, exact_hash: bool) -> None:
        super().__init__(spec, side, exact_hash)
        names = [pa.field("hash", pa.int64()), *(pa.field(str(i), type_) for i, type_ in enumerate(self.types))]
        self.schema = pa.schema(names)
        """Of a batch for the shard."""

    def key_arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(0)]

    def store(self, batch: pa.RecordBatch, numbers: Int64) -> list[pa.Array]:
        return list(batch.columns[1:])


class _PieceRows(AddressedRows):
    """The rows of some pieces, numbered with their piece in the upper half of a word."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        super().__init__(types)
        self._pieces: Sequence[Piece] = ()
        self._sources = np.zeros((0, 4), np.int64)
        self._all = tuple(range(len(self.types)))

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return any(piece.batch.may_be_null[column] for piece in self._pieces)

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return pa.concat_arrays([piece.batch.columns[column].take(pa.array(piece.rows)) for piece in self._pieces])

    def other_width(self, column: int, rows: Numbers) -> int:
        raise NotImplementedError("pieces are gathered whole")

    def _allocate(self, size: int) -> pa.Buffer:
        """Memory that is given back to the system when its rows go, and not kept for others of the same size.

        Arrow's own pool would take huge pages for it, and to fill those with zeros took as long as all the rest.
        """
        return pa.allocate_buffer(size) if size < _MAPPED_FROM else pa.py_buffer(Arena(np.uint8, size).array)

    def gather_pieces(self, pieces: Sequence[Piece]) -> list[pa.Array]:
        """All columns of all rows."""
        self._pieces = pieces
        self._sources = np.array([(0, piece.batch.words.ctypes.data, _SHIFT, 0) for piece in pieces], np.int64)
        rows = _joined([piece.rows for piece in pieces])
        if len(pieces) > 1:
            rows += np.repeat(np.arange(len(pieces)) << 32, [len(piece.rows) for piece in pieces])
        columns = self.gather_all(self._all, rows)
        self._pieces = ()
        return columns


def _joined(arrays: Sequence[Int64]) -> Int64:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class SplitIntake(Intake):
    """One input's pieces for a shard, in order: as many as fit become a batch at once."""

    def __init__(self, limit: int, plan: SplitPlan) -> None:
        super().__init__(limit)
        self._schema = plan.schema
        self._pieces: deque[Piece] = deque()
        self._rows_of = _PieceRows(plan.types)
        self._most = _FIRST_ROWS
        self.copied: deque[Shared] = deque()
        """Batches of which a piece was copied, and is needed no longer."""

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

    def _gathered(self) -> tuple[pa.RecordBatch, Int64]:
        """The next pieces, as many as fit, as one batch; and their numbers."""
        pieces: list[Piece] = []
        used_up: list[Shared] = []
        room, most = self._limit, self._most
        self._most = min(2 * most, 1 << 30)
        while self._pieces and ((room > 0 and most > 0) or not pieces):
            piece = self._pieces.popleft()
            fitting = min(most, max(1 if not pieces else 0, room // piece.batch.row_bytes))
            if fitting >= len(piece.rows):
                used_up.append(piece.batch)
            else:
                self._pieces.appendleft(Piece(piece.batch, piece.rows[fitting:], piece.hashes[fitting:], piece.first))
                if not fitting:
                    break
                piece = Piece(piece.batch, piece.rows[:fitting], piece.hashes[:fitting], piece.first)
                room = 0
            room -= piece.batch.row_bytes * len(piece.rows)
            most -= len(piece.rows)
            pieces.append(piece)
        numbers = _joined([piece.rows + piece.first for piece in pieces])
        hashes = pa.array(_joined([piece.hashes for piece in pieces]))
        columns = [hashes, *self._rows_of.gather_pieces(pieces)]
        self.copied.extend(used_up)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), numbers

    def waiting(self) -> list[Received]:
        """What is left, for a snapshot: pieces are copied for it."""
        while self._pieces:
            self._resumed.append(Received(*self._gathered()))
        return list(self._resumed)
