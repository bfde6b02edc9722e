"""Keys and rows made up from a seed: the same seed gives the same rows, on any machine."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.core.errors import SpecError

Keys: TypeAlias = npt.NDArray[np.int64]

_CHUNK_ROWS = 1 << 18


def uniform(n: int, domain: int, seed: int = 0) -> Keys:
    """`n` keys, each of 1 to `domain` equally likely.

    >>> keys = uniform(1000, 10)
    >>> int(keys.min()), int(keys.max())
    (1, 10)
    """
    _at_least("n", n, 0)
    _at_least("domain", domain, 1)
    return np.random.default_rng(seed).integers(1, domain, n, np.int64, endpoint=True)


def zipf(n: int, domain: int, exponent: float = 1.0, seed: int = 0) -> Keys:
    """`n` keys of 1 to `domain`, where key k is as likely as 1 / k to the power of `exponent`; 0 is uniform.

    Drawn by the exact inverse of the distribution function, not by an approximation, so any exponent will do.

    >>> keys = zipf(10_000, domain=100, exponent=1.0)
    >>> bool(np.sum(keys == 1) > np.sum(keys == 2) > np.sum(keys == 50))
    True
    """
    _at_least("n", n, 0)
    _at_least("domain", domain, 1)
    _at_least("exponent", exponent, 0)
    below = np.cumsum(np.arange(1, domain + 1, dtype=np.float64) ** -exponent)
    below /= below[-1]
    draws = np.random.default_rng(seed).random(n)
    return (np.searchsorted(below, draws, side="right") + 1).astype(np.int64)


def normal(n: int, mean: float, deviation: float, seed: int = 0) -> Keys:
    """`n` whole numbers around `mean`, by the normal distribution, rounded.

    >>> abs(float(normal(10_000, mean=500, deviation=10).mean()) - 500) < 1
    True
    """
    _at_least("n", n, 0)
    _at_least("deviation", deviation, 0)
    return np.rint(np.random.default_rng(seed).normal(mean, deviation, n)).astype(np.int64)


def unique(n: int, seed: int = 0) -> Keys:
    """Each of 1 to `n` once, in random order.

    >>> sorted(unique(4).tolist())
    [1, 2, 3, 4]
    """
    _at_least("n", n, 0)
    return np.random.default_rng(seed).permutation(n).astype(np.int64) + 1


def trades(n: int, price: float = 20.0, step: float = 0.003, depth: float = 0.02, seed: int = 0) -> pa.Table:
    """`n` orders of one stock in the order in which they came: `side` (buy or sell), `price` in cents, `size`.

    The middle of the market is a random walk from `price` by `step` a row, on average. Buyers bid below it and sellers
    ask above it, by `depth` on average.

    >>> table = trades(1000, price=5.0)
    >>> table.schema.names, sorted(set(table["side"].to_pylist()))
    (['side', 'price', 'size'], ['buy', 'sell'])
    """
    _at_least("n", n, 0)
    _at_least("price", price, 0.01)
    _at_least("step", step, 0)
    _at_least("depth", depth, 0)
    random = np.random.default_rng(seed)
    middle = price + np.cumsum(random.normal(0.0, step, n))
    buys = random.random(n) < 0.5
    away = random.exponential(depth, n)
    cents = np.maximum(1, np.rint(100 * (middle + np.where(buys, -away, away)))).astype(np.int64)
    sizes = 100 * random.geometric(0.3, n).astype(np.int64)
    side = pa.array(np.where(buys, "buy", "sell"))
    return pa.table({"side": side, "price": pa.array(cents), "size": pa.array(sizes)})


def rows(keys: Keys, width: int = 52, seed: int = 0) -> pa.Table:
    """A table with these keys and something to carry: `number` (int64), `measure` (float64), `text` (`width` letters).

    >>> table = rows(unique(3), width=5)
    >>> table.schema.names, len(table["text"][0].as_py())
    (['key', 'number', 'measure', 'text'], 5)
    """
    _at_least("width", width, 0)
    keys = np.ascontiguousarray(keys, dtype=np.int64)
    # Keys are often drawn with the same seed: the payload must not follow from them.
    random = np.random.default_rng([seed, 1])
    batches = [
        _payload(keys[start : start + _CHUNK_ROWS], width, random) for start in range(0, max(1, len(keys)), _CHUNK_ROWS)
    ]
    return pa.Table.from_batches(batches)


def _payload(keys: Keys, width: int, random: np.random.Generator) -> pa.RecordBatch:
    n = len(keys)
    if n * width > np.iinfo(np.int32).max:
        raise SpecError(f"texts of {width} letters are too wide; the widest is {np.iinfo(np.int32).max // _CHUNK_ROWS}")
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    letters = random.integers(ord("a"), ord("z"), n * width, np.uint8, endpoint=True)
    text = pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(letters))
    number = random.integers(0, 1 << 31, n, np.int64)
    columns = [pa.array(keys), pa.array(number), pa.array(random.random(n)), text]
    return pa.record_batch(columns, names=["key", "number", "measure", "text"])


def _at_least(what: str, value: float, least: float) -> None:
    if not value >= least:
        raise SpecError(f"{what} must be at least {least}, not {value!r}")
