"""All columns of results of several inputs, gathered in one pass: of few results, calls take longer than copying."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.kernels import addressed as kernels
from watersmeet.matching.found_combinations import BATCH
from watersmeet.matching.many_rows import ManyRows
from watersmeet.records.addressed import Layout, Picture
from watersmeet.runs.stretches import TakenStrings


class Together:
    """Some columns of each input, wherever their rows lie: in memory or in runs."""

    def __init__(self, inputs: Sequence[ManyRows], columns: Sequence[Sequence[int]]) -> None:
        self._inputs = inputs
        of_all = [(number, column) for number, each in enumerate(columns) for column in each]
        self._inputs_of = np.array([number for number, _ in of_all], np.int32)
        self._columns = np.array([column for _, column in of_all], np.int32)
        self._widths = np.array([inputs[number].widths[column] for number, column in of_all], np.int32)
        types = [inputs[number].types[column] for number, column in of_all]
        self._picture = Picture(range(len(of_all)), types, self._widths)
        self._of_all = of_all
        self._counts = [len(each) for each in columns]

    def gather(self, ids: Int64) -> list[pa.Array] | None:
        """The columns of some combinations; None where that cannot be done at once: rows pass by, or columns have no
        plain layout.
        """
        picture, count = self._picture, ids.shape[1]
        if picture.others or not count or (ids[:, 0] >> 32 == BATCH).any():
            return None
        ids = np.ascontiguousarray(ids)
        for rows, mine in zip(self._inputs, ids, strict=True):
            rows.check_rows(mine)
        layout = picture.layout(count, [self._inputs[number].may_be_null(column) for number, column in self._of_all])
        buffer = pa.allocate_buffer(layout.fixed_bytes)
        layout.place(buffer.address)
        if any(rows.on_disk for rows in self._inputs):
            taken = self._gather_forward(ids, layout)
            if taken is None:
                return None
            strings = taken.place(layout)
        else:
            strings = self._gather(ids, layout)
        return [layout.array(k, buffer, strings) for k in range(len(self._of_all))]

    def _gather(self, ids: Int64, layout: Layout) -> pa.Buffer | None:
        """All rows are in memory."""
        strings = None
        if self._picture.strings:
            self._measure(ids, layout.firsts, layout.sizes)
            strings = pa.allocate_buffer(layout.place_strings())
            layout.place_bytes(strings.address)
        sources = [rows.sources for rows in self._inputs]
        bases = np.cumsum([0, *map(len, sources[:-1])])
        words = layout.out, layout.nulls
        kernels.gather_together(
            np.concatenate(sources), bases, self._widths, self._columns, self._inputs_of, ids, *words
        )  # fmt: skip
        return strings

    def _gather_forward(self, ids: Int64, layout: Layout) -> TakenStrings | None:
        """Rows of runs are read forward, input by input; None if there is no room for their strings."""
        room = self._inputs[0].resident.room
        if room is None:
            return None
        taken = TakenStrings(room, self._picture, ids.shape[1])
        start = 0
        for rows, mine, count in zip(self._inputs, ids, self._counts, strict=True):
            columns = self._columns[start : start + count]
            if not taken.gather(rows.resident.stretches, rows.sources, rows.widths, columns, mine, layout, start):
                return None
            start += count
        return taken

    def _measure(self, ids: Int64, firsts: Int64, sizes: Int64) -> None:
        for k in self._picture.strings:
            rows, at = self._inputs[self._inputs_of[k]], slice(k, k + 1)
            mine = ids[self._inputs_of[k]]
            kernels.measure(rows.sources, rows.widths, self._columns[at], mine, firsts[at], sizes[at])
