"""How sorted rows of two sides meet: those of the same hash, or those whose values are close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int32, Int64
from watersmeet.kernels.merge import probe_sorted
from watersmeet.kernels.sorted_runs import RangeProbe, SortedRuns
from watersmeet.matching.found_pairs import Between
from watersmeet.matching.lookup import Lookup
from watersmeet.matching.range_lookup import RangeCodec, RangeLookup
from watersmeet.tables.hash_table import Probe

Fresh: TypeAlias = "Callable[[Int32, Int32], Bool]"
Sorted: TypeAlias = "tuple[Int64, Sequence[pa.Array]]"
"""Rows in the order of their words (a hash is one, too), and their columns."""


class Meeting(Protocol):
    """Which rows of two sorted sides meet."""

    @property
    def reaches_back(self) -> bool:
        """Whether a row may meet rows of lower words."""
        ...

    def lowest(self, word: int) -> int:
        """The lowest word that rows of this word, or of any above, may meet."""
        ...

    def lookup(self, left: Sorted, right: Sorted, between: Between, fresh: Fresh | None = None) -> Lookup:
        """Look up the left rows among the right ones."""
        ...


class SameHash:
    """Rows of one hash meet."""

    reaches_back = False

    def lowest(self, word: int) -> int:
        """The word itself."""
        return word

    def lookup(self, left: Sorted, right: Sorted, between: Between, fresh: Fresh | None = None) -> Lookup:
        """Look up the left rows among the right ones."""
        return Lookup(Probe(left[0], np.empty(0, np.int32)), SortedRows(right[0]), between, fresh)


class CloseValues:
    """Rows meet whose words are within a band of each other and whose tags, if they have any, are the same."""

    reaches_back = True

    def __init__(self, codec: RangeCodec) -> None:
        assert codec.band is not None
        self._codec = codec
        self._band = codec.band

    def lowest(self, word: int) -> int:
        """The lower end of the band around a word."""
        low, _ = self._band.bounds(np.array([word], np.int64))
        return int(low[0])

    def lookup(self, left: Sorted, right: Sorted, between: Between, fresh: Fresh | None = None) -> Lookup:
        """Look up the left rows among the right ones."""
        table = _SortedWords(np.ascontiguousarray(right[0]), self._codec.stored_tags(right[1]))
        return RangeLookup(self._codec.probe(*left), table, between, fresh)


class SortedRows:
    """Rows in the order of their hashes, as something to look up in. The hashes looked up must ascend, too."""

    def __init__(self, hashes: Int64) -> None:
        self._hashes = hashes
        self._near = 0

    def probe(self, probe: Probe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up up to hash `limit` or until the buffers are full."""
        found, probe.next, probe.link, self._near, visited = probe_sorted(
            probe.hashes,
            probe.hashes,
            probe.next,
            limit,
            probe.link,
            self._hashes,
            self._near,
            out_probe,
            out_row,
            0,
        )
        return found, visited


class _SortedWords:
    """Rows in the order of their words, as something to look up ranges in."""

    def __init__(self, words: Int64, tags: Int64) -> None:
        self._index = SortedRuns.of_sorted(words)
        self._tags = tags

    def probe(self, probe: RangeProbe, limit: int, out_probe: Int32, out_row: Int32) -> tuple[int, int]:
        """Go on with a look-up, visiting about so many entries."""
        return self._index.probe(probe, limit, out_probe, out_row, self._tags)
