"""Rows to join, made up from seeds, and what their join must come to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.core.arrays import Uint64
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.sources import generators

BATCH_ROWS = 8192
TEXT_WIDTH = 52


def spec_of(left: pa.Schema, right: pa.Schema) -> JoinSpec:
    """The join that every benchmark runs."""
    return JoinSpec(left, right, parse_on("key"))


def table(keys: NDArray[np.int64], seed: int, width: int = TEXT_WIDTH) -> pa.Table:
    """Rows with these keys, an integer, a float and a text."""
    return generators.rows(keys, width, seed)


def row_bytes(width: int) -> float:
    """Bytes of a row of such a table."""
    return table(np.zeros(BATCH_ROWS, np.int64), 1, width).nbytes / BATCH_ROWS


def lazy(side: int, count: int, domain: int, width: int) -> Iterator[pa.RecordBatch]:
    """Batches of rows with uniform keys, each made when it is asked for."""
    for number, keys in enumerate(_lazy_keys(side, count, domain)):
        yield from generators.rows(keys, width, _lazy_seed(side, number)).to_batches()


def lazy_zipf(side: int, count: int, domain: int, skew: float, width: int) -> Iterator[pa.RecordBatch]:
    """The same with keys by Zipf's law, all of which are there at once; only their rows are made when asked for."""
    keys = generators.zipf(count, domain, skew, side)

    def made() -> Iterator[pa.RecordBatch]:
        for number, start in enumerate(range(0, count, BATCH_ROWS)):
            yield from generators.rows(keys[start : start + BATCH_ROWS], width, _lazy_seed(side, number)).to_batches()

    return made()


def _lazy_keys(side: int, count: int, domain: int) -> Iterator[NDArray[np.int64]]:
    for number, start in enumerate(range(0, count, BATCH_ROWS)):
        yield generators.uniform(min(BATCH_ROWS, count - start), domain, _lazy_seed(side, number))


def _lazy_seed(side: int, number: int) -> int:
    return 2 * number + side


def lazy_matches(count: int, domain: int) -> int:
    """How many pairs the join of both sides' lazy rows has."""
    return _matches(*(np.concatenate(list(_lazy_keys(side, count, domain))) for side in (0, 1)))


def zipf_matches(count: int, domain: int, skew: float) -> int:
    """How many pairs the join of both sides' rows by Zipf's law has."""
    return _matches(*(generators.zipf(count, domain, skew, side) for side in (0, 1)))


def matches(left: pa.Table, right: pa.Table) -> int:
    """How many pairs the join has."""
    return _matches(left["key"].to_numpy(), right["key"].to_numpy())


def _matches(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    size = 1 + int(max(np.max(left, initial=0), np.max(right, initial=0)))
    return int(np.bincount(left, minlength=size) @ np.bincount(right, minlength=size))


class RowCount:
    """Counts results and forgets them."""

    def __init__(self) -> None:
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of results."""
        self.rows += batch.num_rows

    @property
    def result(self) -> tuple[int, int]:
        """Comparable with what another count, or `expected_checksum`, says."""
        return self.rows, 0


class Checksum(RowCount):
    """Adds up a number per pair that depends on the key and on most of the payload of both rows, in any order.

    A pair's number is the product of a number of its left and a number of its right row, so the sum over a whole join
    can also be had without joining: per key, the sum of the lefts times the sum of the rights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of results."""
        super().add(batch)
        pairs = _row_numbers(batch, "") * _row_numbers(batch, "_right")
        self.sum = (self.sum + int(pairs.sum(dtype=np.uint64))) & (2**64 - 1)

    @property
    def result(self) -> tuple[int, int]:
        """Rows and sum."""
        return self.rows, self.sum


def expected_checksum(left: pa.Table, right: pa.Table) -> tuple[int, int]:
    """What `Checksum` must come to, by way of sums per key."""
    size = 1 + max(int(np.max(side["key"].to_numpy(), initial=0)) for side in (left, right))
    sums = [np.zeros(size, np.uint64), np.zeros(size, np.uint64)]
    for total, side in zip(sums, (left, right), strict=True):
        for batch in side.to_batches():
            np.add.at(total, batch["key"].to_numpy(), _row_numbers(batch, ""))
    return matches(left, right), int((sums[0] * sums[1]).sum(dtype=np.uint64))


def _row_numbers(batch: pa.RecordBatch, suffix: str) -> Uint64:
    """A number for each row, of the key, the integer, the float and the first 8 letters of the text."""
    numbers: Uint64 = batch["number" + suffix].to_numpy().view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers ^= batch["key"].to_numpy().view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    numbers += batch["measure" + suffix].to_numpy().view(np.uint64)
    text = batch["text" + suffix].cast(pa.large_string())
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
    width = int(offsets[1] - offsets[0]) if len(text) else 0
    if not np.array_equal(np.diff(offsets), np.full(len(text), width)):
        return numbers  # a text of another width has been put in: the sum will not fit
    letters = np.frombuffer(text.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(len(text), width)
    if width >= 8:
        numbers ^= np.ascontiguousarray(letters[:, :8]).view(np.uint64)[:, 0]
    numbers *= np.uint64(0xD6E8FEB86659FD93)
    return numbers
