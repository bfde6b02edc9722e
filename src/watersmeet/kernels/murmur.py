"""Spark's hash of rows, which decides to which task Spark sends them: Murmur3 in 32 bits, as Spark has it.

The hash of a row is carried from column to column: each goes on from the state that the one before it left, and a NULL
leaves it as it was. Bytes behind the last whole word are taken one by one, with their signs, which is not what others
call Murmur3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Bytes, Int32, Int64
from watersmeet.kernels.compile import inlined, kernel
from watersmeet.kernels.hashing import Offsets, load32

SEED = 42
_FIRST = np.uint32(0xCC9E2D51)
_SECOND = np.uint32(0x1B873593)
_ADDED = np.uint32(0xE6546B64)
_FIVE = np.uint32(5)


@inlined
def _left(word: Any, by: Any) -> Any:
    return np.uint32((word << np.uint32(by)) | (word >> np.uint32(32 - by)))


@inlined
def _mixed(state: Any, word: Any) -> Any:
    word = np.uint32(word * _FIRST)
    word = np.uint32(_left(word, 15) * _SECOND)
    return np.uint32(np.uint32(_left(np.uint32(state ^ word), 13) * _FIVE) + _ADDED)


@inlined
def _finished(state: Any, length: Any) -> Any:
    state = np.uint32(state ^ np.uint32(length))
    state = np.uint32((state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    state = np.uint32((state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(state ^ (state >> np.uint32(16)))


@kernel
def hash_ints(values: Int32, known: Bool, states: NDArray[np.uint32]) -> None:
    """Take a column of 32-bit integers into the hashes of rows."""
    for i in range(values.shape[0]):
        if known[i]:
            states[i] = _finished(_mixed(states[i], np.uint32(values[i])), 4)


@kernel
def hash_longs(values: Int64, known: Bool, states: NDArray[np.uint32]) -> None:
    """Take a column of 64-bit integers into the hashes of rows."""
    for i in range(values.shape[0]):
        if known[i]:
            word = np.uint64(values[i])
            state = _mixed(states[i], np.uint32(word & np.uint64(0xFFFFFFFF)))
            states[i] = _finished(_mixed(state, np.uint32(word >> np.uint64(32))), 8)


@kernel
def hash_strings(offsets: Offsets, data: Bytes, known: Bool, states: NDArray[np.uint32]) -> None:
    """Take a column of bytes into the hashes of rows, value i being `data[offsets[i] : offsets[i + 1]]`."""
    for i in range(known.shape[0]):
        if known[i]:
            start, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
            state, at = states[i], start
            while at + 4 <= end:
                state = _mixed(state, np.uint32(load32(data, at)))
                at += 4
            while at < end:
                state = _mixed(state, np.uint32(np.int32(np.int8(data[at]))))
                at += 1
            states[i] = _finished(state, end - start)


@kernel
def groups_of(states: NDArray[np.uint32], groups: int, out: Int32) -> None:
    """The remainder of each hash, taken as a signed number, by the number of groups; it is never negative."""
    for i in range(states.shape[0]):
        rest = np.int64(np.int32(states[i])) % np.int64(groups)
        out[i] = rest + groups if rest < 0 else rest
