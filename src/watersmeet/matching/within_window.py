"""Pairs whose times are close enough: asked of the row that came later, in memory and on disk alike.

Whether a row is met is told by its time alone, once it is known which rows look for it: each of those has the first
time that it meets (its floor, which is later for rows that came late), and its own time tells the last. A row that owes
came after all rows of the runs that it owes, so that rows which arrive and rows which settle ask the same.
"""

from __future__ import annotations

import numpy as np

from watersmeet.core.arrays import Bool, Int32, Int64, Numbers
from watersmeet.kernels import window_pairs
from watersmeet.kernels.addressed import WORDS
from watersmeet.records.addressed import AddressedRows, Sources
from watersmeet.records.times import TIME, Timing

_ONE_BLOCK = 40
"""Of more rows than there ever are."""


class WithinWindow:
    """Some rows of a side, each of which came after what it is to meet, and which of the rows found are close enough.

    >>> import pyarrow as pa
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import WindowJoinSpec, parse_windows
    >>> from watersmeet.memory import Budget
    >>> from watersmeet.tables.hash_table import Layout
    >>> from watersmeet.tables.memtable import Memtable
    >>> schema = pa.schema({"id": pa.int64(), "t": pa.int64()})
    >>> spec = WindowJoinSpec(schema, schema, parse_on("id"), window=parse_windows((3, 10), "t"))
    >>> found, numbers = Memtable([pa.int64()], Budget(1 << 20), Layout(0, 4, 256), "right"), np.arange(4)
    >>> _ = found.append(numbers, np.zeros(4, np.int32), [pa.array([9, 10, 23, 24])], numbers)
    >>> looking = WithinWindow.arrived(Timing(spec), 0, np.array([20]), np.array([10]))
    >>> looking.holds(np.zeros(4, np.int32), found, numbers)
    array([False,  True,  True, False])
    """

    def __init__(self, timing: Timing, side: int, looking: Sources, numbers: Numbers) -> None:
        """`looking` says where rows lie that have a time and a floor as their first columns."""
        self._looking = looking
        self._numbers = numbers
        self._window = timing.words(side)

    @classmethod
    def arrived(cls, timing: Timing, side: int, times: Int64, floors: Int64) -> WithinWindow:
        """Of rows with these times and floors."""
        # Both arrays are one block of rows in memory.
        words = np.zeros(2 * WORDS, np.int64)
        words[0], words[WORDS] = times.ctypes.data, floors.ctypes.data
        sources = np.array([[0, words.ctypes.data, _ONE_BLOCK, 0, 0]], np.int64)
        within = cls(timing, side, sources, np.arange(len(times)))
        within._held = (words, times, floors)
        return within

    _held: tuple[Int64, ...] = ()

    def holds(self, probes: Int32, found: AddressedRows, rows: Numbers) -> Bool:
        """For which pairs the times are close enough."""
        found.check_rows(rows)
        close = np.empty(len(rows), np.bool_)
        window_pairs.within(self._looking, self._numbers, probes, found.sources, rows, TIME, self._window, close)
        return close


class SettlingWithinWindow(WithinWindow):
    """The same, of rows that lie in a memtable or in runs."""

    def __init__(self, timing: Timing, side: int, rows: AddressedRows, numbers: Int64) -> None:
        super().__init__(timing, side, rows.sources, numbers)
        self._rows = rows

    def holds(self, probes: Int32, found: AddressedRows, rows: Numbers) -> Bool:
        """For which pairs the times are close enough."""
        self._rows.check_rows(self._numbers[probes])
        return super().holds(probes, found, rows)
