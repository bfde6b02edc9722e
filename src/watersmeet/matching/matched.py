"""Who has found a partner, wherever the row lies: in a memtable, in a run, or in a batch that nobody keeps.

A row is marked when its pair is handed out, and not before: keys of equal hashes may differ, which is known only then,
and a snapshot carries the marks of exactly those pairs that were handed out; the others are found again.

    where the row is          its mark                                    goes with it
    memtable                  a byte beside it                            into the run that it is written to; or, if it
                                                                          stays in memory, to its new place
    run                       a bit (`runs.matched_bits`)                 into the run that its run is merged into
    arriving, not kept        a byte, until the slice has been looked up  nowhere: it is settled then

(`tests/conformance/test_kinds.py` loses a mark at each of these steps, and is noticed.)
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from watersmeet.core.arrays import Bool, Bytes, Int64, Numbers
from watersmeet.core.kinds import Kind
from watersmeet.kernels import matched as kernels
from watersmeet.records.plan import Rows, TableRows
from watersmeet.runs.matched_bits import MatchedBits
from watersmeet.runs.sorted_run import MergedRows
from watersmeet.tables.memtable import Memtable

_NOBODY = np.empty(0, np.uint8)
_ROWS = "rows"


class Matched:
    """The marks of one join's rows, of the inputs whose rows have any."""

    def __init__(self, kind: Kind, tables: Sequence[Memtable], bits: MatchedBits) -> None:
        self.kind = kind
        self.bits = bits
        self._tables = tables
        self.loose: Bytes = _NOBODY
        """Of rows of the slice at hand that are not kept."""

    def mark(self, side: int, source: Rows, numbers: Numbers) -> Bool:
        """Rows have partners; tells which had none before, of rows that occur twice the first."""
        where, numbers = _located(source, numbers)
        if isinstance(where, MergedRows):
            return self.bits.mark(where.names, numbers)
        fresh = np.empty(len(numbers), np.bool_)
        kernels.mark(self._marks(where), numbers, fresh)
        return fresh

    def mark_some(self, side: int, source: Rows, numbers: Numbers) -> Bool:
        """The same; but if the disk is full before all are marked, of some of the first of them alone.

        Whoever hands rows out because they were not marked must not lose those that are by then.
        """
        where, within = _located(source, numbers)
        if isinstance(where, MergedRows):
            return self.bits.mark_some(where.names, within)
        return self.mark(side, source, numbers)

    def unmarked(self, side: int, source: Rows, numbers: Numbers) -> Bool:
        """Which rows have no partner yet."""
        where, numbers = _located(source, numbers)
        if isinstance(where, MergedRows):
            return self.bits.unmarked(where.names, numbers)
        found: Bool = self._marks(where)[numbers] == 0
        return found

    def _marks(self, where: Rows) -> Bytes:
        return where.marks if isinstance(where, Memtable) else self.loose

    def forgotten(self, side: int) -> bool:
        """Whether rows of a side are of no more use once they have a partner."""
        return self.kind.forgets and side == 0

    # --- snapshots ---

    def to_state(self, names: Iterable[str]) -> dict[str, Any]:
        """For a snapshot; bits of these names that have changed are written."""
        marks = [_packed(table.marks) if tracked else "" for table, tracked in self._each()]
        return {"bits": self.bits.save(names), "marks": marks, "loose": _packed(self.loose)}

    def versions(self, state: Mapping[str, Any]) -> list[str]:
        """The segments that a state names."""
        return [version for version in state["bits"].values() if version is not None]

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what a snapshot says of rows in memory, which are there."""
        for (table, tracked), packed in zip(self._each(), state["marks"], strict=True):
            if tracked:
                table.marks[:] = _unpacked(packed, table.rows)
        self.loose = _unpacked(state["loose"])

    def _each(self) -> Iterator[tuple[Memtable, bool]]:
        return zip(self._tables, self.kind.tracked, strict=True)


class MatchedNumbers:
    """Marks of rows that are known by their numbers, from 0 on: however many copies of a row there are.

    >>> from watersmeet.spill.store import MemoryStore
    >>> marks = MatchedNumbers(MatchedBits(MemoryStore(), 1024, lambda: "bits-1", lambda names: None))
    >>> marks.mark(np.array([3, 5])); marks.unmarked(np.array([0, 3, 99])).tolist()
    [True, False, True]
    """

    def __init__(self, bits: MatchedBits) -> None:
        self.bits = bits
        bits.begin(_ROWS, 0)

    def mark(self, numbers: Int64) -> None:
        """Rows are in results."""
        ordered = np.sort(numbers)  # so that few pages are turned
        self.bits.grow(_ROWS, int(ordered[-1]) + 1)
        self.bits.mark([_ROWS], ordered)

    def unmarked(self, numbers: Int64) -> Bool:
        """Which rows are in no result."""
        found = np.ones(len(numbers), np.bool_)
        known = np.flatnonzero(numbers < self.bits.rows(_ROWS))
        order = known[np.argsort(numbers[known], kind="stable")]
        if len(order):
            found[order] = self.bits.unmarked([_ROWS], numbers[order])
        return found

    def to_state(self) -> list[Any]:
        """For a snapshot; bits that have changed are written."""
        return [self.bits.save()[_ROWS], self.bits.rows(_ROWS)]

    def load(self, state: Sequence[Any]) -> None:
        """Take over what a snapshot says."""
        self.bits.load({_ROWS: state[0]}, {_ROWS: state[1]})


def _located(source: Rows, numbers: Numbers) -> tuple[Rows, Numbers]:
    return source.in_table(numbers) if isinstance(source, TableRows) else (source, numbers)


def _packed(marks: Bytes) -> str:
    """Marks as text.

    >>> _unpacked(_packed(np.array([0, 1, 1], np.uint8)), 3).tolist()
    [0, 1, 1]
    """
    counted = len(marks).to_bytes(8, "little")
    return base64.b85encode(counted + zlib.compress(np.packbits(marks).tobytes(), 1)).decode()


def _unpacked(text: str, rows: int | None = None) -> Bytes:
    data = base64.b85decode(text)
    count = int.from_bytes(data[:8], "little")
    assert rows is None or rows == count, "a snapshot has a mark for each row in memory"
    return np.unpackbits(np.frombuffer(zlib.decompress(data[8:]), np.uint8))[:count]
