"""Join attributes of several inputs as 64-bit words, and the exact comparison behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Bool, Int64
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import Band, Equal, JoinSpec
from watersmeet.kernels.hashing import ordered_doubles
from watersmeet.records.bands import BandCodec
from watersmeet.records.keys import KeyCodec


@dataclass(frozen=True, slots=True)
class Reach:
    """The first and the last word that may be close to each of some words."""

    low: Int64
    high: Int64
    in_doubles: bool = False
    """Whether the words are doubles, and only those that differ by no more than `width` are close."""
    width: float = 0.0


class AttributeCodec:
    """Hashes the attributes of every input; equal values have equal hashes at both ends of an edge.

    >>> r, s = pa.schema({"a": pa.int64()}), pa.schema({"b": pa.float32()})
    >>> codec = AttributeCodec(MultiSpec.of({"r": r, "s": s}, "r.a = s.b"))
    >>> (left,), valid = codec.hash(0, [pa.array([1, None])])
    >>> (right,), _ = codec.hash(1, [pa.array([1, 2], pa.float32())])
    >>> left == right, valid
    (array([ True, False]), array([ True, False]))
    """

    def __init__(self, spec: MultiSpec) -> None:
        self.spec = spec
        self._codecs = [_codec(spec, number) for number in range(len(spec.edges))]
        self._ends: list[list[tuple[int, int]]] = [[(-1, -1)] * len(each) for each in spec.attributes]
        for number, edge in enumerate(spec.edges):
            for side in (0, 1):
                self._ends[edge.input(side)][spec.attribute_of(number, side)] = (number, side)
        self.exact = [codec.exact for codec in self._codecs]
        """By edge: whether words that match mean values that do."""

    def hash(self, number: int, columns: Sequence[pa.Array]) -> tuple[list[Int64], Bool | None]:
        """A word of each attribute for each row of an input, and which rows can match anything (None: all can)."""
        words, valid = [], None
        for (edge, side), column in zip(self._ends[number], columns, strict=True):
            found, known = self._words(edge, side, column)
            words.append(found)
            if known is not None:
                valid = known if valid is None else valid & known
        return words, valid

    def _words(self, edge: int, side: int, column: pa.Array) -> tuple[Int64, Bool | None]:
        codec = self._codecs[edge]
        assert isinstance(codec, KeyCodec), "values that are only close have no hash"
        return codec.hash(side, [column])

    def reach(self, edge: int, words: Int64) -> Reach | None:
        """Which words match each of some words at the other end of an edge; None: the same ones."""
        return None

    def holds(self, edge: int, first: Int64, second: Int64) -> Bool:
        """For which words at the ends of an edge, row by row, it holds."""
        same: Bool = first == second
        return same

    def equal(self, edge: int, first: pa.Array, second: pa.Array) -> Bool | None:
        """Which values at the ends of an edge, row by row, truly match, given that their words do; None if all do."""
        codec = self._codecs[edge]
        return codec.within(first, second) if isinstance(codec, BandCodec) else codec.equal([first], [second])


class OrderedCodec(AttributeCodec):
    """Attributes as words in the order of their values, so that values that are close can be found.

    Where one word cannot say everything about a value it is the value's hash, whose order means nothing.

    >>> from watersmeet.core.spec import band
    >>> schema = pa.schema({"a": pa.int64()})
    >>> codec = OrderedCodec(MultiSpec.of({"r": schema, "s": schema}, band("r.a = s.a", 2)))
    >>> (words,), _ = codec.hash(0, [pa.array([7, 9])])
    >>> reach = codec.reach(0, words)
    >>> reach.low, reach.high
    (array([5, 7]), array([ 9, 11]))
    """

    def _words(self, edge: int, side: int, column: pa.Array) -> tuple[Int64, Bool | None]:
        codec = self._codecs[edge]
        words, known = codec.words(side, column if isinstance(codec, BandCodec) else [column])
        # A copy: what was received may be let go of, and kernels are compiled for arrays that can be written.
        return np.array(words), known

    def reach(self, edge: int, words: Int64) -> Reach | None:
        """Which words match each of some words at the other end of an edge; None: the same ones."""
        codec = self._codecs[edge]
        if not isinstance(codec, BandCodec):
            return None
        low, high = codec.bounds(words)
        return Reach(low, high, codec.in_doubles, float(codec.form.width) if codec.in_doubles else 0.0)

    def holds(self, edge: int, first: Int64, second: Int64) -> Bool:
        """For which words at the ends of an edge, row by row, it holds."""
        reach = self.reach(edge, first)
        if reach is None:
            return super().holds(edge, first, second)
        if not reach.in_doubles:
            close: Bool = (reach.low <= second) & (second <= reach.high)
            return close
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(ordered_doubles(first).view(np.float64) - ordered_doubles(second).view(np.float64))
        near: Bool = apart <= reach.width
        return near


def _codec(spec: MultiSpec, number: int) -> KeyCodec | BandCodec:
    edge = spec.edges[number]
    left, right = (pa.schema([spec.key_field(edge.input(side), edge.column(side))]) for side in (0, 1))
    if edge.width is None:
        return KeyCodec(JoinSpec(left, right, (Equal(edge.first_column, edge.second_column),)))
    return BandCodec.of(JoinSpec(left, right, (Band(edge.first_column, edge.second_column, edge.width),)))
