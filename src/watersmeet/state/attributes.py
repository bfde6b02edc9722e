"""Join attributes of several inputs as 64-bit hashes, and the exact comparison behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import Equal, JoinSpec
from watersmeet.state.keys import KeyCodec

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


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
        self._codecs = []
        self._ends: list[list[tuple[int, int]]] = [[(-1, -1)] * len(each) for each in spec.attributes]
        for number, edge in enumerate(spec.edges):
            fields = [spec.key_field(edge.input(side), edge.column(side)) for side in (0, 1)]
            equal = Equal(edge.first_column, edge.second_column)
            self._codecs.append(KeyCodec(JoinSpec(pa.schema(fields[:1]), pa.schema(fields[1:]), (equal,))))
            for side in (0, 1):
                self._ends[edge.input(side)][spec.attribute_of(number, side)] = (number, side)
        self.exact = [codec.exact for codec in self._codecs]
        """By edge: whether equal hashes mean equal values."""

    def hash(self, number: int, columns: Sequence[pa.Array]) -> tuple[list[Int64], Bool | None]:
        """A hash of each attribute for each row of an input, and which rows can match anything (None: all can)."""
        hashes, valid = [], None
        for (edge, side), column in zip(self._ends[number], columns, strict=True):
            found, known = self._codecs[edge].hash(side, [column])
            hashes.append(found)
            if known is not None:
                valid = known if valid is None else valid & known
        return hashes, valid

    def equal(self, edge: int, first: pa.Array, second: pa.Array) -> Bool | None:
        """Which values at the ends of an edge, row by row, are truly equal; None if all are."""
        return self._codecs[edge].equal([first], [second])
