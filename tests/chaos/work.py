"""What is joined while things fail: files of two inputs, and which pairs there must be in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIDES = ("left", "right")
SCHEMA = "id long, number long, word string"
COLUMNS = ("id", "number", "word", "number_right", "word_right")
KEYS = 2_000
_ARROW = pa.schema({"id": pa.int64(), "number": pa.int64(), "word": pa.string()})
_WORDS = ("", "one", "δύο", "trois" * 9)


class Work:
    """Two growing directories of Parquet files. Rows repeat, so a pair that comes twice is not a pair that may go."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place = place
        self._rng = np.random.default_rng(seed)
        self._files = 0
        for side in SIDES:
            self.path(side).mkdir(parents=True, exist_ok=True)
            self._control(side).mkdir(exist_ok=True)
        (place / "new").mkdir(exist_ok=True)

    def path(self, side: str) -> Path:
        return self.place / side

    def _control(self, side: str) -> Path:
        return self.place / f"{side}-control"

    def offer(self, files: int = 2, rows: int = 250) -> None:
        """So many more files for each side."""
        for _ in range(files):
            for side in SIDES:
                self._write(side, self._rng.integers(0, KEYS, rows))

    def offer_every_key(self) -> None:
        """A file for each side that meets everything there is."""
        for side in SIDES:
            self._write(side, self._rng.permutation(KEYS))

    def end(self) -> None:
        """Say that no row will follow, for a join that waits to be told."""
        for side in SIDES:
            new = self.place / "new" / f"{side}.txt"
            new.write_text("end")
            new.rename(self._control(side) / new.name)

    def _write(self, side: str, ids: Any) -> None:
        count = len(ids)
        numbers = np.where(
            self._rng.random(count) < 0.5, self._rng.integers(0, 2, count), self._files * 100_000 + np.arange(count)
        )
        words = [_WORDS[i] for i in self._rng.integers(0, len(_WORDS), count)]
        nothing = self._rng.random(count) < 0.02
        rows = pa.table([pa.array(ids, pa.int64(), mask=nothing), pa.array(numbers), pa.array(words)], schema=_ARROW)
        repeated = pa.concat_tables([rows, rows.slice(0, count // 10)])
        new = self.place / "new" / f"{self._files:05d}.parquet"
        pq.write_table(repeated, new)
        new.rename(self.path(side) / new.name)  # a file appears whole
        self._files += 1

    def expected(self) -> Counter[tuple[Any, ...]]:
        """Every pair of all rows so far, by the plainest of joins."""
        rights = defaultdict(list)
        for key, *rest in self._rows("right"):
            rights[key].append(rest)
        return Counter(
            (key, *left, *right) for key, *left in self._rows("left") if key is not None for right in rights[key]
        )

    def _rows(self, side: str) -> Iterator[tuple[Any, ...]]:
        for file in sorted(self.path(side).glob("*.parquet")):
            yield from rows_of(pq.read_table(file))


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """A table's rows."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def difference(found: Counter[Any], expected: Counter[Any]) -> str:
    """How one multiset differs from another, in words; empty if it does not."""
    missing, surplus = expected - found, found - expected
    if not missing and not surplus:
        return ""
    return (
        f"{missing.total()} pairs are missing (such as {next(iter(missing), None)}) and {surplus.total()} are too many "
        f"(such as {next(iter(surplus), None)}) of {expected.total()}"
    )
