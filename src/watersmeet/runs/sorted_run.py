"""Sorted runs: rows in the order of their hashes, written once, mapped, and gathered from where they lie.

    header       64 bytes, always the same
    hashes       of all rows, one after the other: all that a merge reads of rows that match nothing
    block        a power of two rows (the last one fewer): three words a column, then its columns
    block        ...
    directory    where each block begins; a checksum for each block, and for each stretch of hashes; their first hashes
    description  JSON: how many rows there are, how many a block has, which columns have NULLs
    trailer      where directory and description begin, their checksum, end mark

(`kernels.addressed` says what the words of a column are.) Nothing of a run is in memory but its name and a mark for
each block, however many rows it has: the directory is read where it lies, too. Each stretch of hashes and each block is
checked when it is first read after opening. Blocks are small, so that few bytes are read for a row that is wanted; the
larger a run, the larger they are.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64, Numbers, Uint64
from watersmeet.core.errors import SegmentError
from watersmeet.kernels import addressed as kernels
from watersmeet.kernels import run_files
from watersmeet.records.addressed import (
    AddressedRows,
    Layout,
    Picture,
    Sources,
    gathered_by_block,
    gathered_by_source,
    width_of,
)
from watersmeet.runs.stretches import NO_FILE, GatheringRoom, Stretches, TakenStrings
from watersmeet.spill.store import Descriptor, Store

_HEADER = b"watersmeet sorted run 2\n".ljust(64, b"\0")
HASHES_AT = len(_HEADER)
"""Where in a run its hashes begin."""
_END_MARK = b"wm.run.2"
_TRAILER = struct.Struct("<QQQI8s")  # directory, description and end of both, their checksum, end mark
_ALIGNED = run_files.ALIGNED
_STRETCH = 1 << 16
"""Hashes that share a checksum."""
_CHECKED_AT_ONCE = 64
"""Blocks that are read for their checksums before they are let go."""
_LEAST_BLOCK = 8 << 10
_MOST_BLOCK_ROWS = 1 << 12
_MOST_BLOCKS = 1 << 10
"""Of a run, unless that makes them larger than what may be written at once."""


def block_rows_for(nbytes: int, rows: int, most_bytes: int) -> int:
    """How many rows of a run share a block, a power of two: about two pages, and more in a large run.

    >>> block_rows_for(80 << 20, 1 << 20, 1 << 18), block_rows_for(80 << 30, 1 << 30, 1 << 18)
    (1024, 2048)
    """
    wanted = min(most_bytes, max(_LEAST_BLOCK, nbytes // _MOST_BLOCKS))
    fitting = max(1, min(_MOST_BLOCK_ROWS, wanted * max(1, rows) // max(1, nbytes)))
    return 1 << (fitting.bit_length() - 1)


_REMEDY = "run the join again or restore an older snapshot, and check the disk if this comes back"


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class RunWriter:
    """Writes one run: all hashes first, then the rows of block after block. What is not sealed never was."""

    def __init__(
        self, store: Store, name: str, types: Sequence[pa.DataType], rows: int, block_rows: int, at_once: int
    ) -> None:
        """:param at_once: bytes of blocks that are written at once, unless one is larger"""
        self.name = name
        self.nbytes = 0
        self._store = store
        self.rows = rows
        """How many there will be; whoever does not know may tell before the run is sealed."""
        self.block_rows = block_rows
        self._at_once = at_once
        self._picture = Picture(range(len(types)), types, np.array([width_of(type_) for type_ in types], np.int32))
        self._types = types
        self._nulls = np.zeros(len(types), np.int64)
        self._starts: list[int] = []
        self._checksums: list[int] = []
        self._stretches: list[int] = []
        self._firsts: list[int] = []
        self._hashed = 0
        self._scratch = np.empty(0, np.uint8)
        self._out = store.create(name)
        self._write(_HEADER)

    def write_hashes(self, hashes: Uint64) -> None:
        """The hashes of the next rows; those of all rows come before the first block."""
        start = 0
        while start < len(hashes):
            filled = self._hashed % _STRETCH
            part = np.ascontiguousarray(hashes[start : start + _STRETCH - filled])
            if not filled:
                self._stretches.append(kernels.START)
                self._firsts.append(int(part[:1].view(np.int64)[0]))
            self._stretches[-1] = int(kernels.checksum_on(self._stretches[-1], part.ctypes.data, part.nbytes))
            self._write(part.data)
            start += len(part)
            self._hashed += len(part)

    def write_rows(self, rows: AddressedRows, numbers: Numbers) -> None:
        """The next rows, from wherever they lie: whole blocks, unless they are the last ones."""
        if self._picture.others or not self._types:
            for start in range(0, len(numbers), self.block_rows):
                self._write_block(rows, numbers[start : start + self.block_rows])
            return
        self._pad()
        rest = rows.located(numbers)
        columns = range(len(self._types))
        nullable = np.array([rows.may_be_null(column) for column in columns], np.uint8)
        starts = np.empty(-(-len(rest) // self.block_rows), np.int64)
        checksums, room = np.empty_like(starts), self._room(self._at_once)
        while len(rest):
            count, size = run_files.lay_out(
                rows.sources, rows.widths, self._picture.columns, nullable, rest, self.block_rows, room, starts,
                checksums, self._nulls,
            )  # fmt: skip
            if not count:  # a block that is larger than most
                room = self._room(2 * len(room))
                continue
            blocks = -(-count // self.block_rows)
            self._starts += (self.nbytes + starts[:blocks]).tolist()
            self._checksums += checksums[:blocks].tolist()
            self._write(room[:size].data)
            rest = rest[count:]

    def _write_block(self, rows: AddressedRows, numbers: Numbers) -> None:
        self._pad()
        count, picture = len(numbers), self._picture
        layout = picture.layout(count, [rows.may_be_null(column) for column in range(len(self._types))])
        layout.nulls[:] = 0
        described = 8 * kernels.WORDS * len(self._types)
        head = _aligned(described)
        places = rows.located(numbers)
        # Strings are measured before it is known how large the block is.
        fixed = self._room(head + layout.fixed_bytes)
        layout.place(fixed.ctypes.data + head)
        if picture.strings:
            out = layout.out[:: kernels.WORDS]
            kernels.measure(rows.sources, rows.widths, picture.columns, places, out, layout.sizes)
        string_bytes = layout.place_strings()
        others = {k: _serialized(rows.other(k, numbers)) for k in picture.others}
        at = head + layout.fixed_bytes + string_bytes
        size = at + sum(_aligned(len(each)) for each in others.values())
        block = self._room(size, keep=head + layout.fixed_bytes)
        layout.move(block.ctypes.data + head)
        layout.place_bytes(block.ctypes.data + head + layout.fixed_bytes)
        kernels.gather(rows.sources, rows.widths, picture.columns, places, layout.out, layout.nulls)
        words = layout.words(head)
        for k, data in others.items():
            words[k, 0], words[k, 1] = at, len(data)
            block[at : at + len(data)] = np.frombuffer(data, np.uint8)
            block[at + len(data) : at + _aligned(len(data))] = 0
            at += _aligned(len(data))
        block[:described] = words.reshape(-1).view(np.uint8)
        block[described:head] = 0
        self._nulls += layout.nulls
        self._starts.append(self.nbytes)
        self._checksums.append(int(kernels.checksum(block.ctypes.data, size)))
        self._write(block[:size].data)

    def _room(self, size: int, keep: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if len(self._scratch) < size:
            before, self._scratch = self._scratch, np.empty(max(size, 2 * len(self._scratch)), np.uint8)
            self._scratch[:keep] = before[:keep]
        return self._scratch

    def seal(self) -> SortedRun:
        """Publish the run."""
        self._pad()
        start = self.nbytes
        told_of_hashes = [*self._stretches, *self._firsts]
        directory = np.array([*self._starts, start, *self._checksums, *told_of_hashes], np.int64).view(np.uint8)
        told = {"rows": self.rows, "block_rows": self.block_rows, "nulls": (self._nulls > 0).tolist()}
        text = json.dumps(told).encode()
        description = start + directory.nbytes
        checksum = zlib.crc32(text, zlib.crc32(directory.data))
        self._write(directory.data)
        self._write(text)
        self._write(_TRAILER.pack(start, description, description + len(text), checksum, _END_MARK))
        self._out.commit()
        return SortedRun(self._store, self.name, self._types)

    def abort(self) -> None:
        """Leave nothing; harmless after `seal`."""
        self._out.abort()

    def _write(self, data: Any) -> None:
        self._out.write(data)
        self.nbytes += memoryview(data).nbytes

    def _pad(self) -> None:
        padding = -self.nbytes % _ALIGNED
        if padding:
            self._write(bytes(padding))


class SortedRun(AddressedRows):
    """A run that is mapped: its hashes are an array, its rows are gathered as if they were in memory."""

    def __init__(self, store: Store, name: str, types: Sequence[pa.DataType]) -> None:
        """Open a run; `SegmentError` if it is missing, torn or altered."""
        super().__init__(types)
        self.name = name
        self._store = store
        self._buffer: pa.Buffer = store.open(name)
        self._directory_at, directory, text = self._described()
        try:
            self._understand(directory, text)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._damaged(f"its directory makes no sense ({type(error).__name__}: {error})") from error
        blocks = len(self._checksums)
        self._unchecked = np.ones(blocks, np.uint8)
        self._unchecked_hashes = np.ones(len(self._stretches), np.bool_)
        self._trusted = False
        self._descriptor: Descriptor | None = None
        # What is read from a mapped file lies there for as long as the buffer does.
        self._hashes = np.frombuffer(self._buffer, np.uint64, self.rows, len(_HEADER))
        base = self._buffer.address
        self.hash_address: int = base + len(_HEADER)
        """Where the first hash lies."""
        self.hash_bytes = len(_HEADER) + 8 * self.rows
        """Bytes up to the end of the last."""
        marks = self._unchecked.ctypes.data
        self._sources = np.array([[self._starts.ctypes.data, base, self._shift, 0, marks]], np.int64)
        store.release(self._buffer, 0, self.nbytes)  # of many runs, what was read to open them would be much

    def _understand(self, directory: Int64, text: bytes) -> None:
        """Where rows lie, as the run's own directory tells; nothing is believed that leads out of the run."""
        told: Mapping[str, Any] = json.loads(text)
        self.rows: int = told["rows"]
        self.block_rows: int = told["block_rows"]
        self._nullable: list[bool] = told["nulls"]
        room = (self._directory_at - len(_HEADER)) // 8
        if not 0 <= self.rows <= room or not 0 < self.block_rows < 1 << 62:
            raise ValueError(f"{self.rows} rows in blocks of {self.block_rows} are not what fits")
        known = all(isinstance(each, bool) for each in self._nullable) and len(self._nullable) >= len(self.types)
        if self.block_rows.bit_count() != 1 or not known:
            raise ValueError("blocks have a power of two rows, and it is known which columns have NULLs")
        self._shift = self.block_rows.bit_length() - 1
        blocks, stretches = -(-self.rows // self.block_rows), -(-self.rows // _STRETCH)
        if len(directory) != 2 * (blocks + stretches) + 1:
            raise ValueError(f"{len(directory)} numbers do not tell of {blocks} blocks")
        self._starts = directory[: blocks + 1]
        self._checksums = directory[blocks + 1 : 2 * blocks + 1]
        self._stretches, firsts = np.split(directory[2 * blocks + 1 :], 2)
        self._firsts = firsts.view(np.uint64)
        first, last = len(_HEADER) + 8 * self.rows, int(self._starts[-1])
        least = 8 * kernels.WORDS * len(self.types)
        if last != self._directory_at or self._starts[0] < min(first, last) or (np.diff(self._starts) < least).any():
            raise ValueError("blocks do not lie one behind the other")

    def _described(self) -> tuple[int, Int64, bytes]:
        buffer, size = self._buffer, self._buffer.size
        if size < len(_HEADER) + _TRAILER.size:
            raise self._damaged(f"it is torn: {size} bytes are too few to be a whole run")
        start, description, end, checksum, end_mark = _TRAILER.unpack(buffer.slice(size - _TRAILER.size))
        if end_mark != _END_MARK or end + _TRAILER.size != size or not len(_HEADER) <= start <= description <= end:
            raise self._damaged(f"it is torn or altered: its {size} bytes do not end as a run does")
        if buffer.slice(0, len(_HEADER)).to_pybytes() != _HEADER:
            raise self._damaged("it does not begin as a run of this version does")
        if zlib.crc32(buffer.slice(start, end - start)) != checksum:
            raise self._damaged("its directory was altered after it was written")
        self._store.count_read(size - start)
        directory = np.frombuffer(buffer, np.int64, (description - start) // 8, start)
        return start, directory, buffer.slice(description, end - description).to_pybytes()

    def _damaged(self, how: str) -> SegmentError:
        return SegmentError(f"spill segment {self._store.shown(self.name)!r} cannot be used: {how}; {_REMEDY}")

    @property
    def nbytes(self) -> int:
        """The size of the run in its store."""
        return int(self._buffer.size)

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return self._nullable[column]

    def _sum(self, start: int, length: int) -> int:
        return int(kernels.checksum(self._buffer.address + start, length))

    # --- hashes ---

    @property
    def trusted(self) -> bool:
        """Whether all hashes are known to be what was written."""
        return self._trusted

    def hashes(self) -> Uint64:
        """All hashes, uncopied; ask `check_hashes` for those that are to be read."""
        return self._hashes

    def region(self, first: int, last: int) -> tuple[int, int]:
        """Between which rows hashes from `first` to `last` are, if anywhere; they were made sure of."""
        if self._trusted:
            return 0, self.rows
        bounds = np.array([first, last], np.uint64)
        start = max(0, int(np.searchsorted(self._firsts, bounds[0])) - 1) * _STRETCH
        stop = min(self.rows, int(np.searchsorted(self._firsts, bounds[1], side="right")) * _STRETCH)
        self.check_hashes(start, stop)
        return start, max(start, stop)

    def check_hashes(self, start: int, stop: int) -> None:
        """Make sure that hashes from `start` up to `stop` are what was written."""
        for stretch in range(start // _STRETCH, -(-stop // _STRETCH)):
            if self._unchecked_hashes[stretch]:
                rows = min(_STRETCH, self.rows - stretch * _STRETCH)
                at = self._buffer.address + len(_HEADER) + 8 * stretch * _STRETCH
                if kernels.checksum_on(kernels.START, at, 8 * rows) != self._stretches[stretch]:
                    raise self._damaged("its hashes were altered after they were written")
                self._unchecked_hashes[stretch] = False
        self._trusted = not self._unchecked_hashes.any()

    # --- rows ---

    def gather_all(self, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
        self.check_rows(rows)
        return super().gather_all(columns, rows)

    def widen(self, column: int, rows: Numbers, widths: Int64) -> None:
        self.check_rows(rows)
        super().widen(column, rows, widths)

    @property
    def blocks_unchecked(self) -> int:
        """How many blocks have not been read since the run was opened."""
        return int(np.count_nonzero(self._unchecked))

    @property
    def checksums_at(self) -> int:
        """Where the checksums of its blocks lie."""
        return int(self._checksums.ctypes.data)

    @property
    def row_bytes(self) -> int:
        """Of all rows, without their hashes."""
        return self.nbytes - int(self.hash_bytes)

    @property
    def row_places(self) -> tuple[int, int]:
        """Where rows lie, and how many bytes; none if they are not mapped."""
        return (self.address + self.hash_bytes, self.row_bytes) if self.is_mapped else (0, 0)

    @property
    def file(self) -> tuple[int, int, int]:
        """Its descriptor, where its directory begins, and how many blocks it has; `NO_FILE` if it is no open file."""
        if self._descriptor is None:
            self._descriptor = self._store.descriptor(self.name)
        if self._descriptor is None:
            return NO_FILE
        return self._descriptor.number, self._directory_at, len(self._starts) - 1

    def check_rows(self, rows: Numbers) -> None:
        """Make sure that the blocks of rows are what was written."""
        if self._sources[0, 4]:
            check_forward([self], self._sources, rows, None)

    def block_is_damaged(self, row: int) -> SegmentError:
        """The error for a block that is not what was written, by one of its rows."""
        return self._damaged(f"block {row >> self._shift} was altered after it was written")

    def note_checked(self) -> None:
        """Once all blocks are checked, nobody needs to look at the marks."""
        if not self.blocks_unchecked:
            self._sources[0, 4] = 0

    def check_all_blocks(self) -> None:
        """Make sure that all rows are what was written, once more where they were read before."""
        for block, (start, stop) in enumerate(pairwise(self._starts.tolist())):
            if self._sum(start, stop - start) != self._checksums[block]:
                raise self._damaged(f"block {block} was altered after it was written")
            if block % _CHECKED_AT_ONCE == 0:
                let_go([self])

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return gathered_by_block(lambda block: self._piece(column, block), rows, self._shift)

    def _piece(self, column: int, block: int) -> pa.Array:
        start = int(self._starts[block])
        words = np.frombuffer(self._buffer, np.int64, kernels.WORDS * len(self.types), start)
        at, length = int(words[kernels.WORDS * column]), int(words[kernels.WORDS * column + 1])
        schema = pa.schema([("", self.types[column])])
        return pa.ipc.read_record_batch(self._buffer.slice(start + at, length), schema).column(0)

    def other_width(self, column: int, rows: Numbers) -> int:
        block = int(rows[0]) >> self._shift
        words = np.frombuffer(self._buffer, np.int64, kernels.WORDS * len(self.types), int(self._starts[block]))
        return int(words[kernels.WORDS * column + 1]) // self.block_rows + 1

    @property
    def address(self) -> int:
        """Where it is mapped."""
        return int(self._buffer.address)

    @property
    def is_mapped(self) -> bool:
        """Whether its pages can be let go."""
        return self._store.maps


OpenRun = Callable[[str, Sequence[pa.DataType]], SortedRun]
"""Opens the run of a name, whose columns have these types."""


def _serialized(array: pa.Array) -> bytes:
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([("", array.type)]))
    return bytes(batch.serialize())


def check_forward(
    parts: Sequence[AddressedRows], sources: Sources, rows: Numbers, let_go: Callable[[], None] | None
) -> int:
    """Make sure that the blocks of rows are what was written, of those parts that are runs; returns how many were read
    for the first time.

    With `let_go` it is a few blocks at a time, which are let go when they were read, for each is mapped whole.
    """
    sums = np.array([part.checksums_at if isinstance(part, SortedRun) else 0 for part in parts], np.int64)
    most = len(rows) if let_go is None else _CHECKED_AT_ONCE
    read, total, at = np.zeros(1, np.int64), 0, 0
    while at < len(rows):
        passed, damaged = run_files.check_blocks(sources, sums, rows[at:], most, read)
        if damaged >= 0:
            run = parts[damaged]
            assert isinstance(run, SortedRun)
            raise run.block_is_damaged(int(rows[at + passed]) & 0xFFFFFFFF)
        at += passed
        total += int(read[0])
        if read[0] and let_go is not None:
            let_go()
    if total:
        for part in parts:
            if isinstance(part, SortedRun):
                part.note_checked()
    return total


def mapped_places(runs: Sequence[SortedRun], rows_alone: bool = False) -> Int64:
    """Where runs are mapped, and how many bytes, of those that are; `rows_alone`: without the hashes before them."""
    mapped = [run for run in runs if run.is_mapped]
    places = np.array([(run.address, run.nbytes) for run in mapped], np.int64).reshape(-1, 2)
    if rows_alone:
        hashes = np.array([run.hash_bytes for run in mapped], np.int64)
        places[:, 0] += hashes
        places[:, 1] -= hashes
    return places


def let_go_of(places: Int64) -> None:
    """Let mapped pages leave this process's memory until they are read again; see `mapped_places`."""
    if len(places):
        kernels.let_go(places[:, 0], places[:, 1], mmap.PAGESIZE, mmap.MADV_DONTNEED)


def let_go(runs: Sequence[SortedRun]) -> None:
    """Let mapped pages of runs leave this process's memory until they are read again."""
    let_go_of(mapped_places(runs))


class MergedRows(AddressedRows):
    """Rows of several runs, each numbered with its run in the upper half of the word."""

    def __init__(self, runs: Sequence[SortedRun]) -> None:
        super().__init__(runs[0].types)
        self._runs = runs
        self._sources = np.concatenate([run.sources for run in runs])
        self._ends = np.array([run.rows for run in runs], np.int64)
        self._addresses = np.array([run.hashes().ctypes.data for run in runs], np.int64)
        self._places = np.zeros(len(runs), np.int64)
        self._trusted = False
        self._unread = True
        self._nullable = [any(run.may_be_null(column) for run in runs) for column in range(len(self.types))]
        self.rows = int(self._ends.sum())
        self.names = [run.name for run in runs]
        self.room: GatheringRoom | None = None
        """For rows that are gathered stretch by stretch; without, they are as if they were in memory."""
        self._stretches: Stretches | None = None

    @property
    def sources(self) -> Sources:
        return self._sources

    def may_be_null(self, column: int) -> bool:
        return self._nullable[column]

    def _copy(self, picture: Picture, layout: Layout, places: Numbers) -> pa.Buffer | None:
        if self._by_stretch:
            assert self.room is not None
            if self._stretches is None:
                self._stretches = Stretches(self._runs, self.room)
            taken = TakenStrings(self.room, picture, len(places))
            if taken.gather(self._stretches, self, picture.columns, places, layout):
                return taken.place(layout)
            layout.begin_again()
            self.check_rows(places)
        return super()._copy(picture, layout, places)

    @property
    def _by_stretch(self) -> bool:
        return self.room is not None and self._runs[0].is_mapped

    @property
    def done(self) -> bool:
        """Whether all rows have been passed."""
        return bool((self._places >= self._ends).all())

    @property
    def trusted(self) -> bool:
        """Whether all hashes are known to be what was written."""
        self._trusted = self._trusted or all(run.trusted for run in self._runs)
        return self._trusted

    def places(self) -> list[int]:
        """How far each run is, to be gone to again."""
        places: list[int] = self._places.tolist()
        return places

    def go_to(self, places: Sequence[int]) -> None:
        """Go on from there."""
        self._places[:] = places

    def next_sorted(self, hashes: Uint64, rows: Int64) -> int:
        """Fill arrays with the next rows in the order of their hashes; returns how many."""
        if not self.trusted:
            for run, start in zip(self._runs, self._places.tolist(), strict=True):
                run.check_hashes(start, min(run.rows, start + len(rows)))
        return int(kernels.merge(self._addresses, self._ends, self._places, hashes, rows))

    def check_rows(self, rows: Numbers) -> None:
        """Make sure that the blocks of rows are what was written."""
        if self._unread and check_forward(self._runs, self._sources, rows, lambda: let_go(self._runs)):
            self._unread = any(run.blocks_unchecked for run in self._runs)

    def gather_all(self, columns: tuple[int, ...], rows: Numbers) -> list[pa.Array]:
        if not self._by_stretch or (self.widths[list(columns)] == kernels.OTHER).any():
            self.check_rows(rows)  # else they are checked as they are read
        return super().gather_all(columns, rows)

    def widen(self, column: int, rows: Numbers, widths: Int64) -> None:
        self.check_rows(rows)
        super().widen(column, rows, widths)
        if self._by_stretch:
            let_go(self._runs)

    def other(self, column: int, rows: Numbers) -> pa.Array:
        return gathered_by_source(self._runs.__getitem__, column, rows)

    def other_width(self, column: int, rows: Numbers) -> int:
        return self._runs[int(rows[0]) >> 32].other_width(column, rows[:1] & 0xFFFFFFFF)
