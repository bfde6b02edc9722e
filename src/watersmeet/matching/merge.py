"""Progressive sort-merge: runs of both sides merged at once, with their pairs found on the way.

```
left runs    3 5 9 9 ...     2 5 8 ...          ┌ rows below a bound, of all runs ┐
right runs   1 5 6 ...       5 9 ...      ──▶   │ left  2 3 5 5    right  1 5 5   │ ──▶ pairs ──▶ merged runs
                                                └──────────── window ─────────────┘
```

A merge goes through the runs window by window. A window is all rows below some hash that lie on the pages at hand, so
that every match of a row in it is in it, too. Should a single hash fill more than a run's share of it, the window is
that hash, and its rows are joined page by page, however many there are.

Where rows are sorted by a value, and close values meet (a band), a row may also meet rows of earlier windows: those
within the band's reach of what comes next. They are each side's tail. A short tail lies on pages that are kept; a long
one is read again page by page, so that no width of a band needs more memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from watersmeet.core.arrays import Bool, Int32
from watersmeet.core.cost import Meter
from watersmeet.core.protocol import LEFT, RIGHT
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.matching.ledger import Ledger
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.sorted_lookup import Meeting
from watersmeet.records.plan import BatchRows
from watersmeet.runs.catalogue import DiskSide, Run
from watersmeet.runs.page import Page
from watersmeet.runs.sort import MergedRunWriter, RunCursor, put_in_order


def group_to_merge(
    levels: Sequence[int], fan_in: int, sizes: Sequence[int] | None = None, room: int = 0, most: int = 0
) -> tuple[int, int]:
    """Which runs of a side to merge next: the first, and how many, from how often each has been merged.

    Those that have been merged least come first; runs before them are taken along where fewer than the fan-in are left.

    >>> group_to_merge([0, 0, 0, 0], 2), group_to_merge([1, 0, 0], 2), group_to_merge([1, 1], 2)
    ((0, 2), (1, 2), (0, 2))
    >>> group_to_merge([2, 0, 0], 8), group_to_merge([1, 1, 0], 2), group_to_merge([3], 2)
    ((0, 3), (1, 2), (0, 1))

    Where runs are short, more of them than the fan-in may fit into the room that there is for their pages:

    >>> group_to_merge([1, 0, 0, 0, 0], 2, sizes=[9, 1, 2, 3, 4], room=6, most=8)
    (1, 3)
    """
    first = list(levels).index(min(levels))
    stop = first
    held = 0
    while stop < len(levels) and (stop - first < fan_in or _fits(sizes, stop, held, room, stop - first < most)):
        held += 0 if sizes is None else sizes[stop]
        stop += 1
    while first > 0 and (stop - first < fan_in or _fits(sizes, first - 1, held, room, stop - first < most)):
        first -= 1
        held += 0 if sizes is None else sizes[first]
    return first, stop - first


def _fits(sizes: Sequence[int] | None, run: int, held: int, room: int, allowed: bool) -> bool:
    return sizes is not None and allowed and held + sizes[run] <= room


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring runs of one side."""

    first: int
    runs: tuple[Run, ...]

    @property
    def ordinals(self) -> tuple[int, int]:
        """The stretch they hold."""
        return self.runs[0].first_ordinal, self.runs[-1].end

    @property
    def level(self) -> int:
        """Of the run that they become."""
        return 1 + max(run.level for run in self.runs)


_Stretch: TypeAlias = "tuple[RunCursor, tuple[int, int, int]]"
"""A run's rows on one page: page, first row, number of rows."""


@dataclass(slots=True)
class _Piece:
    """Rows of one side within a window: merged already, or some stretches of runs still to be read."""

    page: Page | None = None
    stretches: Sequence[_Stretch] = ()

    def read(self) -> Page:
        if self.page is not None:
            return self.page
        return put_in_order([cursor.read(stretch) for cursor, stretch in self.stretches])


def _pieces_of(stretches: Sequence[_Stretch], most_rows: int) -> list[_Piece]:
    """Stretches as pieces of so many rows, or of one stretch if that has more."""
    pieces: list[list[_Stretch]] = []
    rows = 0
    for each in stretches:
        count = each[1][2]
        if not pieces or rows + count > most_rows:
            pieces.append([])
            rows = 0
        pieces[-1].append(each)
        rows += count
    return [_Piece(None, piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class _Cell:
    """Two pieces that meet, if both are there, and which of them are handed to their writers after that."""

    left: _Piece | None
    right: _Piece | None
    ends_left: bool
    ends_right: bool


class Merge:
    """One merging operation on a partition; stops between any two pairs.

    ```
                 right:  tail   new         these are a window's cells: new pieces meet everything, two tails have
    left:  new          │ 1    │ 2  │       met before
           tail                │ 3  │
    ```

    When a piece is handed to its side's writer follows from the cell alone, so that the window's place, the cell and
    the place in the cell's look-up tell everything.
    """

    def __init__(
        self,
        disks: Sequence[DiskSide],
        ledger: Ledger,
        part: int,
        groups: tuple[Group, Group],
        writers: tuple[MergedRunWriter | None, MergedRunWriter | None],
        meter: Meter,
        window_bytes: int,
        meeting: Meeting,
        keeps_tails: bool = False,
    ) -> None:
        self.part = part
        self.groups = groups
        self.writers = writers
        self.lookup: Lookup | None = None
        self._disks = disks
        self._ledger = ledger
        self._meter = meter
        self.window_bytes = window_bytes
        self._window_rows = 0
        """Rows of one run in a window, about; known once a page of each was seen."""
        self._meeting = meeting
        self._keeps_tails = keeps_tails
        self._cursors = tuple(
            tuple(RunCursor(disk, part, run, keeps_tails) for run in group.runs)
            for disk, group in zip(disks, groups, strict=True)
        )
        self._pieces: tuple[list[_Piece], list[_Piece]] = ([], [])
        self._tails: tuple[list[_Piece], list[_Piece]] = ([], [])
        self._ends: list[tuple[int, int]] = []
        self._cell = 0
        self._suspended_at: list[int] | None = None

    @property
    def _all_cursors(self) -> list[RunCursor]:
        return [cursor for side in self._cursors for cursor in side]

    @property
    def done(self) -> bool:
        """Whether all windows are done."""
        return not self._ends and all(cursor.done for cursor in self._all_cursors)

    @property
    def _cells(self) -> int:
        left, right = self._pieces
        below = len(self._tails[LEFT]) if left else max(1, len(self._tails[LEFT]))
        return self._cells_of_new_left + below * len(right)

    @property
    def _cells_of_new_left(self) -> int:
        return len(self._pieces[LEFT]) * max(1, len(self._tails[RIGHT]) + len(self._pieces[RIGHT]))

    @property
    def _cell_at_hand(self) -> _Cell:
        (new_left, new_right), (old_left, old_right) = self._pieces, self._tails
        beyond = self._cell - self._cells_of_new_left
        if beyond >= 0:
            a, b = divmod(beyond, len(new_right))
            return _Cell(old_left[a] if old_left else None, new_right[b], False, not new_left and a == 0)
        columns = len(old_right) + len(new_right)
        a, b = divmod(self._cell, max(1, columns))
        new = b - len(old_right)
        right = None if not columns else old_right[b] if new < 0 else new_right[new]
        return _Cell(new_left[a], right, b == max(1, columns) - 1, a == 0 and right is not None and new >= 0)

    def work(self, pairs: PairBuffer, fuel: int) -> int:
        """Fill the empty pair buffer, or take one step towards the next pairs; returns the fuel that took."""
        self._suspended_at = None
        if self.lookup is not None:
            if not self.lookup.done:
                return self.lookup.work(pairs, fuel, self._meter)
            self.lookup = None
            self._finish_cell()
        if not self._ends:
            return 1 if self.done else self._open_window()
        if self._cell == self._cells:
            self._close_window()
            return 1
        cell = self._cell_at_hand
        if cell.left is not None and cell.right is not None:
            self._begin_cell(cell.left, cell.right)
        else:
            self._finish_cell()
        return 1

    # --- windows ---

    def _measure(self) -> int:
        """How many rows of each run a window may have."""
        pages = [[cursor.page for cursor in side if not cursor.done] for side in self._cursors]
        widths = [max(1, sum(page.nbytes for page in side) // max(1, sum(map(len, side)))) for side in pages]
        return max(
            1, min(self.window_bytes // (width * max(1, len(side))) for width, side in zip(widths, pages, strict=True))
        )

    def _open_window(self) -> int:
        self._window_rows = self._window_rows or self._measure()
        cursors = [[cursor for cursor in side if not cursor.done] for side in self._cursors]
        bounds = [bound for side in cursors for cursor in side if (bound := self._bound_of(cursor)) is not None]
        bound = min(bounds) if bounds else None
        counts = [[cursor.count_below(bound) for cursor in side] for side in cursors]
        moved = sum(map(sum, counts))
        for side in (LEFT, RIGHT):
            self._tails[side][:] = self._tail(side)
        ends: dict[int, tuple[int, int]] = {}
        for side in (LEFT, RIGHT):
            if moved:
                chosen = [(cursor, count) for cursor, count in zip(cursors[side], counts[side], strict=True) if count]
                pages = [cursor.page.slice(cursor.at, count) for cursor, count in chosen]
                self._pieces[side][:] = [_Piece(put_in_order(pages))] if pages else []
                ends.update((id(cursor), cursor.after(count)) for cursor, count in chosen)
            else:
                assert bound is not None
                stretches = [(cursor, each) for cursor in cursors[side] for each in cursor.stretches_of(bound)]
                self._pieces[side][:] = _pieces_of(stretches, self._rows_at_once(side))
                ends.update((id(cursor), _beyond(cursor, each)) for cursor, each in stretches)
        self._ends = [ends.get(id(cursor), cursor.place()) for cursor in self._all_cursors]
        self._cell = 0
        self._meter.inserts += moved
        return max(1, moved)

    def _tail(self, side: int) -> list[_Piece]:
        """The rows of earlier windows that rows of the other side in this window or a later one may be close to."""
        coming = [int(cursor.page.hashes[cursor.at]) for cursor in self._cursors[1 - side] if not cursor.done]
        if not coming or not self._meeting.reaches_back:
            return []
        lowest = self._meeting.lowest(min(coming))
        stretches = [(cursor, each) for cursor in self._cursors[side] for each in cursor.stretches_since(lowest)]
        return _pieces_of(stretches, self._rows_at_once(side) if self._keeps_tails else 1)

    def _rows_at_once(self, side: int) -> int:
        """How many rows of a side a window may have."""
        return self._window_rows * len(self._cursors[side])

    def _bound_of(self, cursor: RunCursor) -> int | None:
        """Up to which hash a cursor's rows may be taken now: only so many that windows are not too large."""
        hashes = cursor.page.hashes
        end = cursor.at + self._window_rows
        if end < len(hashes):
            return int(hashes[end])
        # The last hash of a page may go on on the next.
        return None if cursor.on_last_page else int(hashes[-1])

    def _close_window(self) -> None:
        for cursor, end in zip(self._all_cursors, self._ends, strict=True):
            cursor.seek(end)
        for side in (LEFT, RIGHT):
            self._pieces[side].clear()
            self._tails[side].clear()
        self._ends = []

    # --- cells ---

    def _begin_cell(self, left: _Piece, right: _Piece) -> None:
        pages = left.read(), right.read()

        def fresh(probes: Int32, rows: Int32) -> Bool:
            stays = [self._disks[side].stay(self.part, pages[side], (probes, rows)[side]) for side in (LEFT, RIGHT)]
            return self._ledger.fresh(self.part, stays[LEFT], stays[RIGHT])

        between = Between(LEFT, BatchRows(pages[LEFT].columns), BatchRows(pages[RIGHT].columns))
        words = [(page.hashes, page.columns) for page in pages]
        self.lookup = self._meeting.lookup(words[LEFT], words[RIGHT], between, fresh)

    def _finish_cell(self) -> None:
        cell = self._cell_at_hand
        if cell.ends_right and cell.right is not None:
            self._write(RIGHT, cell.right)
        if cell.ends_left and cell.left is not None:
            self._write(LEFT, cell.left)
        self._cell += 1

    def _write(self, side: int, piece: _Piece) -> None:
        writer = self.writers[side]
        if writer is not None:
            writer.add(piece.read())

    # --- stopping, saving, going on ---

    def suspend(self, pairs: PairBuffer) -> None:
        """Let another task have the pair buffer, which is empty."""
        self._suspended_at = None if self.lookup is None else self.lookup.place(pairs)

    def seal(self) -> None:
        """Store all rows that were merged so far."""
        for writer in self.writers:
            if writer is not None:
                writer.seal()

    def to_state(self, pairs: PairBuffer) -> dict[str, Any]:
        """The place, for a snapshot; `seal` comes first."""
        place = None
        if self.lookup is not None:
            place = self._suspended_at or self.lookup.place(pairs)
        return {
            "part": self.part,
            "window_bytes": self.window_bytes,
            "window_rows": self._window_rows,
            "groups": [[group.first, len(group.runs)] for group in self.groups],
            "writers": [None if writer is None else writer.to_state() for writer in self.writers],
            "cursors": [list(cursor.place()) for cursor in self._all_cursors],
            "open": bool(self._ends),
            "cell": self._cell,
            "place": place,
            "suspended": self._suspended_at is not None,
        }

    def go_to(self, state: dict[str, Any], pairs: PairBuffer) -> None:
        """Go to a place that a snapshot told; `pairs` is free to be used."""
        self._window_rows = state["window_rows"]
        for writer, saved in zip(self.writers, state["writers"], strict=True):
            if writer is not None:
                writer.load(saved)
        for cursor, place in zip(self._all_cursors, state["cursors"], strict=True):
            cursor.seek(place)
        if not state["open"]:
            return
        self._open_window()
        self._cell = state["cell"]
        if state["place"] is not None:
            cell = self._cell_at_hand
            assert cell.left is not None and cell.right is not None
            self._begin_cell(cell.left, cell.right)
            assert self.lookup is not None
            self.lookup.resume(pairs, state["place"])
            if state["suspended"]:
                self._suspended_at = state["place"]


def _beyond(cursor: RunCursor, stretch: tuple[int, int, int]) -> tuple[int, int]:
    number, at, count = stretch
    return (number, at + count) if at + count < cursor.run.page_rows(number) else (number + 1, 0)
