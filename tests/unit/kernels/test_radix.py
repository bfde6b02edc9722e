"""Ordering by digits is what a stable sort does, for words of any kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from watersmeet.kernels import radix

Words = Callable[[np.random.Generator, int], np.ndarray]

KINDS: dict[str, Words] = {
    "of 19 bits": lambda rng, n: rng.integers(0, 400_000, n),
    "of both signs": lambda rng, n: rng.integers(-3, 4, n),
    "of all bits": lambda rng, n: rng.integers(-(2**63), 2**63 - 1, n),
    "of the upper bits": lambda rng, n: rng.integers(-8, 8, n) << 59,
    "of doubles": lambda rng, n: rng.normal(0, 1e6, n).view(np.int64),
    "all the same": lambda rng, n: np.full(n, 7),
}


@pytest.mark.parametrize("size", [0, 1, 5, 1023, 1024, 3000])
@pytest.mark.parametrize("kind", KINDS)
def test_order_is_that_of_a_stable_sort(kind: str, size: int) -> None:
    words = KINDS[kind](np.random.default_rng(size), size)
    assert radix.sorted_order(words).tolist() == np.argsort(words, kind="stable").tolist()


def test_many_words_are_ordered_by_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    order_digits = radix._order_digits
    monkeypatch.setattr(
        radix, "_order_digits", lambda words, *out: sizes.append(len(words)) or order_digits(words, *out)
    )
    for size in (radix._FEW - 1, radix._FEW):
        radix.sorted_order(np.arange(size)[::-1].copy())
    assert sizes == [radix._FEW]
