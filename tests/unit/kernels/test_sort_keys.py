"""Coarse codes of words keep their order, whatever the origin; and a code says between which words its own lies."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.kernels.sort_keys import coarse_keys, words_of_keys

LAST = 2**64 - 1
CORNERS = [0, 1, 2, 2**25, 2**26 - 1, 2**26, 2**27, 2**32, 2**62, 2**63 - 1, 2**63, 2**63 + 1, LAST - 1, LAST]
WORDS = st.one_of(
    st.integers(0, LAST),
    st.sampled_from(CORNERS),
    st.tuples(st.sampled_from(CORNERS), st.integers(-3, 3)).map(lambda pair: min(LAST, max(0, sum(pair)))),
)


def codes(words: list[int], origin: int) -> Any:
    keys = np.empty(len(words), np.uint64)
    coarse_keys(np.zeros(len(words), np.uint64), np.array(words, np.uint64), np.uint64(origin), keys)
    return keys


def cells(keys: Any, origin: int) -> tuple[Any, Any]:
    first, last = np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
    words_of_keys(keys, np.uint64(origin), first, last)
    return first, last


@given(st.lists(WORDS, min_size=1, max_size=60), WORDS)
def test_codes_keep_the_order_of_words(words: list[int], origin: int) -> None:
    words.sort()
    found = codes(words, origin)
    assert (found[1:] >= found[:-1]).all()
    assert int(found.max()) < 2**32, "the upper half is the hash's"


@given(st.lists(WORDS, min_size=1, max_size=60), WORDS)
def test_a_code_has_the_words_between_its_first_and_last(words: list[int], origin: int) -> None:
    found = codes(words, origin)
    first, last = cells(found, origin)
    assert all(low <= word <= high for low, word, high in zip(first.tolist(), words, last.tolist(), strict=True))
    assert (codes(first.tolist(), origin) == found).all() and (codes(last.tolist(), origin) == found).all()
    for low, high, code in zip(first.tolist(), last.tolist(), found.tolist(), strict=True):
        assert low == 0 or codes([low - 1], origin)[0] < code
        assert high == LAST or codes([high + 1], origin)[0] > code


@given(WORDS, st.integers(0, 2**40), st.integers(0, 2**40))
def test_words_near_the_origin_are_told_apart(origin: int, one: int, other: int) -> None:
    """Two words whose distances from the origin differ by more than one part in 2^25 have codes of their own."""
    words = [min(LAST, origin + one), min(LAST, origin + other)]
    apart = abs(words[0] - words[1]) > max(one, other) >> 25
    first, second = codes(words, origin)
    assert not apart or first != second


def test_the_hash_decides_before_the_word() -> None:
    hashes = np.array([7 << 40, 7 << 40, 9 << 40], np.uint64)
    keys = np.empty(3, np.uint64)
    coarse_keys(hashes, np.array([5, LAST, 0], np.uint64), np.uint64(5), keys)
    assert keys.tolist() == sorted(keys.tolist()) and (keys >> np.uint64(32) == hashes >> np.uint64(32)).all()
