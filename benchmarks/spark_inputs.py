"""Inputs of the Spark benchmarks: two sides of narrow rows, as Parquet files that a stream takes in their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.core.arrays import Bool, Int64

SIDES = ("left", "right")
SCHEMA = "id long, at timestamp, number long"


class Keys:
    """Keys drawn uniformly for both sides, file by file; knows how many pairs the rows drawn so far make."""

    def __init__(self, distinct: int, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._counts = (np.zeros(distinct, np.int64), np.zeros(distinct, np.int64))

    def draw(self, side: int, rows: int) -> Int64:
        """The keys of one more file of a side."""
        counts = self._counts[side]
        keys = self._rng.integers(0, len(counts), rows)
        counts += np.bincount(keys, minlength=len(counts))
        return keys

    @property
    def pairs(self) -> int:
        """How many pairs of equal keys there are."""
        return int(self._counts[0] @ self._counts[1])


def write_files(place: Path, keys: Keys, rows: Sequence[int], first: int = 0) -> int:
    """A file of so many rows for each side, one after the other; returns the pairs with a row among them.

    Files are numbered from `first` on, and a stream takes them in that order, which is that of their times.
    """
    before = keys.pairs
    for side, name in enumerate(SIDES):
        (place / name).mkdir(parents=True, exist_ok=True)
        for number, count in enumerate(rows, first):
            at = pa.array(np.arange(count) * 1_000).cast(pa.timestamp("us", "UTC"))
            table = pa.table({"id": keys.draw(side, count), "at": at, "number": np.arange(count)})
            path = place / name / f"{number:06d}.parquet"
            pq.write_table(table, path)
            in_turn(path, number)
    return keys.pairs - before


def write_by_time(place: Path, ids: Sequence[Int64], seconds: int, files: int) -> Int64:
    """Rows of these keys, both sides at the same steady pace, in so many files of each side; returns their times."""
    rows = len(ids[0])
    at = np.arange(rows) * (seconds * 1_000_000 // rows)
    for own, name in zip(ids, SIDES, strict=True):
        (place / name).mkdir(parents=True)
        for number, part in enumerate(np.array_split(np.arange(rows), files)):
            times = pa.array(at[part]).cast(pa.timestamp("us", "UTC"))
            path = place / name / f"{number:06d}.parquet"
            pq.write_table(pa.table({"id": own[part], "at": times, "number": np.arange(len(part))}), path)
            in_turn(path, number)
    return at


def pairs_within(ids: Sequence[Int64], at: Int64, reach: int) -> int:
    """How many pairs of equal keys differ by so many microseconds at most."""
    # A number for key and time together; the times of other keys are far off.
    far = 4 * (int(at[-1]) + reach + 1)
    left, right = (own * far + at for own in ids)
    right.sort()
    return int((np.searchsorted(right, left + reach, "right") - np.searchsorted(right, left - reach, "left")).sum())


def alone_within(ids: Sequence[Int64], at: Int64, reach: int) -> Bool:
    """Which rows of the first input are in none of these pairs."""
    far = 4 * (int(at[-1]) + reach + 1)
    left, right = (own * far + at for own in ids)
    right.sort()
    alone: Bool = np.searchsorted(right, left + reach, "right") == np.searchsorted(right, left - reach)
    return alone


def in_turn(path: Path, number: int) -> None:
    """Let a stream take a file by its number: it takes the oldest first."""
    os.utime(path, (number, number))


def add_files(place: Path, more: Path) -> None:
    """Let the files of `more` appear in `place`, too."""
    for directory in more.iterdir():
        (place / directory.name).mkdir(parents=True, exist_ok=True)
        for path in directory.iterdir():
            os.link(path, place / directory.name / path.name)
