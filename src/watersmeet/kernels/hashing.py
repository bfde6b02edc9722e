"""Hashes of keys, and exact comparison of what the hashes stand for.

The hashes decide partitions in memory, on disk and between processes. They are therefore part of the format: the same
on every little-endian machine, in every process and in every version. A test holds them fast.

Fixed-width keys go through `mix`, which loses nothing: equal hashes mean equal words. Strings are read sixteen bytes at
a time and folded through the 128-bit product of two 64-bit numbers, a shape known to mix well at the cost of one
multiplication. Their hashes may collide, so a match has to be confirmed with `differing_bytes`.

There is Spark's own hash of rows, too, which decides to which task Spark sends them: Murmur3 in 32 bits. It is carried
from column to column: each goes on from the state that the one before it left, and a NULL leaves it as it was. Bytes
behind the last whole word are taken one by one, with their signs, which is not what others call Murmur3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from watersmeet.core.arrays import Bool, Bytes, Int32, Int64, Uint64
from watersmeet.kernels.compile import inlined, kernel

Offsets: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
COMBINER = np.uint64(0x9E3779B97F4A7C15)
FIRST_SECRET = np.uint64(0xA0F2EC75A1FE1575)
SECOND_SECRET = np.uint64(0x8BB84B93962EACC9)
LENGTH_SECRET = np.uint64(0x4B33A62ED433D4A3)

CANONICAL_NAN = np.uint64(0x7FF8000000000000)

_declare: Any = intrinsic


def _load_of(bits: int) -> Callable[[Any, Any], Any]:
    def load(typing_context: Any, data: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, arguments[0])
            address = builder.gep(view.data, [arguments[1]])
            word = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), typ=ir.IntType(bits))
            word.align = 1
            return builder.zext(word, ir.IntType(64)) if bits < 64 else word

        return types.uint64(data, types.intp), generate

    load.__name__ = load.__qualname__ = f"load{bits}"
    loader: Callable[[Any, Any], Any] = _declare(load)
    return loader


load32 = _load_of(32)
load64 = _load_of(64)
"""`load64(data, index)`: eight bytes of a byte array as one number; the index need not be aligned."""


def _fold(typing_context: Any, first: Any, second: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        double = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], double), builder.zext(arguments[1], double))
        low = builder.trunc(product, ir.IntType(64))
        high = builder.trunc(builder.lshr(product, ir.Constant(double, 64)), ir.IntType(64))
        return builder.xor(low, high)

    return types.uint64(types.uint64, types.uint64), generate


fold: Callable[[Any, Any], Any] = _declare(_fold)
"""`fold(a, b)`: both halves of the 128-bit product of two words, one xored onto the other."""


@inlined
def mix(word: Any) -> Any:
    """Spread a word over all 64 bits, one to one: different words stay different."""
    word += COMBINER  # or zero, the commonest key, would stay as it is
    word ^= word >> np.uint64(32)
    word *= MULTIPLIER
    word ^= word >> np.uint64(32)
    word *= MULTIPLIER
    word ^= word >> np.uint64(32)
    return word


@kernel
def hash_words(words: NDArray[Any], hashes: Uint64) -> None:
    """Hash integers of any width by value; different values get different hashes."""
    for i in range(words.shape[0]):
        hashes[i] = mix(np.uint64(np.int64(words[i])))


@kernel
def double_words(values: NDArray[np.float64], bits: Uint64, words: Uint64) -> None:
    """The canonical bits of doubles: one NaN, one zero. `bits` is `values` seen as words."""
    for i in range(values.shape[0]):
        words[i] = _canonical_double(values[i], bits[i])


@kernel
def hash_doubles(values: NDArray[np.float64], bits: Uint64, hashes: Uint64) -> None:
    """`hash_words` of `double_words`, in one pass."""
    for i in range(values.shape[0]):
        hashes[i] = mix(_canonical_double(values[i], bits[i]))


@inlined
def _canonical_double(value: Any, bits: Any) -> Any:
    zero_or_bits = np.uint64(0) if value == 0.0 else bits
    return zero_or_bits if value == value else CANONICAL_NAN


@kernel
def combine(hashes: Uint64, others: Uint64) -> None:
    """Fold the hashes of a further key column into those of the columns before it; their order matters."""
    for i in range(hashes.shape[0]):
        hashes[i] = mix(hashes[i] * COMBINER + others[i])


@kernel
def _hash_range(data: Bytes, start: Any, length: Any, seed: Any) -> Any:
    """The hash of `data[start : start + length]`; reads no byte outside of it."""
    state = seed ^ (np.uint64(length) * LENGTH_SECRET)
    position = start
    end = start + length
    while end - position > 16:
        state = fold(load64(data, position) ^ FIRST_SECRET, load64(data, position + 8) ^ state) ^ (
            state >> np.uint64(1)
        )
        position += 16
    # The last 1 to 16 bytes are covered by two reads, which overlap unless there are exactly 8 or 16.
    rest = end - position
    if rest >= 8:
        first = load64(data, position)
        last = load64(data, end - 8)
    elif rest >= 4:
        first = load32(data, position)
        last = load32(data, end - 4)
    elif rest > 0:
        first = np.uint64(data[position]) | np.uint64(data[position + (rest >> 1)]) << np.uint64(8)
        last = np.uint64(data[end - 1])
    else:
        first = np.uint64(0)
        last = np.uint64(0)
    return mix(fold(first ^ SECOND_SECRET, last ^ state) ^ state)


@kernel
def hash_bytes(offsets: Offsets, data: Bytes, hashes: Uint64) -> None:
    """Hash strings of bytes, string i being `data[offsets[i] : offsets[i + 1]]`."""
    for i in range(hashes.shape[0]):
        start = np.int64(offsets[i])
        hashes[i] = _hash_range(data, start, np.int64(offsets[i + 1]) - start, COMBINER)


@kernel
def differing_bytes(
    left_offsets: Offsets, left: Bytes, right_offsets: Offsets, right: Bytes, equal: NDArray[np.bool_]
) -> int:
    """Tell for each pair of strings whether it is equal; how many are not."""
    differing = 0
    for i in range(equal.shape[0]):
        a = np.int64(left_offsets[i])
        b = np.int64(right_offsets[i])
        length = np.int64(left_offsets[i + 1]) - a
        same = length == np.int64(right_offsets[i + 1]) - b
        if same:
            j = 0
            while same and j + 8 <= length:
                same = load64(left, a + j) == load64(right, b + j)
                j += 8
            while same and j < length:
                same = left[a + j] == right[b + j]
                j += 1
        equal[i] = same
        differing += not same
    return differing


MOST_LIMBS = 8
LIMB_DIGITS = 9
"""The largest power of ten in 32 bits, so that a remainder and a limb together fit 64."""


@kernel
def shrink_integers(words: Uint64, power: int, unsigned: bool, shrunk: Uint64, fits: NDArray[np.bool_]) -> None:
    """Divide wide integers by a power of ten and narrow them, where nothing is lost by either.

    `words` holds a two's complement integer per row, lowest word first, and `shrunk` as many words or fewer. `fits`
    says for which rows the division leaves no rest and the quotient has room; the others get zeros.
    """
    width = words.shape[1]
    narrow = shrunk.shape[1]
    limbs = np.zeros(MOST_LIMBS, np.uint64)
    for i in range(words.shape[0]):
        negative = bool(np.int64(words[i, width - 1]) < 0)
        _split(words[i], negative, limbs)
        fits[i] = _divide(limbs, 2 * width, power) and _has_room(limbs, 2 * width, 2 * narrow, negative, unsigned)
        if fits[i]:
            _join(limbs, negative, shrunk[i])
        else:
            shrunk[i] = 0


@kernel
def _split(words: Uint64, negative: bool, limbs: Uint64) -> None:
    """The magnitude of an integer in limbs of 32 bits."""
    carry = np.uint64(1)
    for i in range(words.shape[0]):
        word = words[i]
        if negative:
            word = ~word + carry
            carry = carry if word == 0 else np.uint64(0)
        limbs[2 * i] = word & np.uint64(0xFFFFFFFF)
        limbs[2 * i + 1] = word >> np.uint64(32)


@kernel
def _join(limbs: Uint64, negative: bool, words: Uint64) -> None:
    """The reverse of `_split`."""
    carry = np.uint64(1)
    for i in range(words.shape[0]):
        word = limbs[2 * i] | (limbs[2 * i + 1] << np.uint64(32))
        if negative:
            word = ~word + carry
            carry = carry if word == 0 else np.uint64(0)
        words[i] = word


@kernel
def _divide(limbs: Uint64, count: int, power: int) -> bool:
    """Divide in place by a power of ten; whether that leaves no rest."""
    while power > 0:
        step = min(power, LIMB_DIGITS)
        divisor = np.uint64(10**step)
        rest = np.uint64(0)
        for i in range(count - 1, -1, -1):
            dividend = (rest << np.uint64(32)) | limbs[i]
            limbs[i] = dividend // divisor
            rest = dividend - limbs[i] * divisor
        if rest != 0:
            return False
        power -= step
    return True


@kernel
def _has_room(limbs: Uint64, count: int, room: int, negative: bool, unsigned: bool) -> bool:
    """Whether a magnitude of `count` limbs, with its sign, is an integer of `room` limbs."""
    for i in range(room, count):
        if limbs[i] != 0:
            return False
    any_below_top = False
    for i in range(room - 1):
        any_below_top = any_below_top or limbs[i] != 0
    top = limbs[room - 1]
    if unsigned:
        return not negative or (top == 0 and not any_below_top)
    sign_bit = np.uint64(1 << 31)
    return top < sign_bit or (negative and top == sign_bit and not any_below_top)


_INVERSE = np.uint64(pow(int(MULTIPLIER), -1, 1 << 64))


def unmixed(hashes: Uint64) -> Uint64:
    """The words that `mix` made these hashes of.

    >>> hashes = np.empty(3, np.uint64)
    >>> hash_words(np.array([0, -1, 1 << 40]), hashes)
    >>> unmixed(hashes).view(np.int64).tolist() == [0, -1, 1 << 40]
    True
    """
    words = hashes ^ (hashes >> np.uint64(32))
    words = words * _INVERSE
    words ^= words >> np.uint64(32)
    words *= _INVERSE
    words ^= words >> np.uint64(32)
    words -= COMBINER
    return words


def ordered_doubles(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bits of doubles as integers of the same order; applied twice, it gives the bits back.

    >>> bits = np.array([-2.0, -1.0, 0.0, 3.0]).view(np.int64)
    >>> (np.diff(ordered_doubles(bits)) > 0).all(), (ordered_doubles(ordered_doubles(bits)) == bits).all()
    (np.True_, np.True_)
    """
    ordered: NDArray[np.int64] = bits ^ ((bits >> 63) & 0x7FFF_FFFF_FFFF_FFFF)
    return ordered


SPARK_SEED = 42
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
def spark_hash_ints(values: Int32, known: Bool, states: NDArray[np.uint32]) -> None:
    """Take a column of 32-bit integers into the hashes of rows."""
    for i in range(values.shape[0]):
        if known[i]:
            states[i] = _finished(_mixed(states[i], np.uint32(values[i])), 4)


@kernel
def spark_hash_longs(values: Int64, known: Bool, states: NDArray[np.uint32]) -> None:
    """Take a column of 64-bit integers into the hashes of rows."""
    for i in range(values.shape[0]):
        if known[i]:
            word = np.uint64(values[i])
            state = _mixed(states[i], np.uint32(word & np.uint64(0xFFFFFFFF)))
            states[i] = _finished(_mixed(state, np.uint32(word >> np.uint64(32))), 8)


@kernel
def spark_hash_strings(offsets: Offsets, data: Bytes, known: Bool, states: NDArray[np.uint32]) -> None:
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
def spark_groups_of(states: NDArray[np.uint32], groups: int, out: Int32) -> None:
    """The remainder of each hash, taken as a signed number, by the number of groups; it is never negative."""
    for i in range(states.shape[0]):
        rest = np.int64(np.int32(states[i])) % np.int64(groups)
        out[i] = rest + groups if rest < 0 else rest
