"""What is joined while things fail: files of some inputs, and which pairs there must be in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chaos.verbs import HOT_KEYS, Verb

SCHEMA = "id long, number long, word string, at long"
_ARROW = pa.schema({"id": pa.int64(), "number": pa.int64(), "word": pa.string(), "at": pa.int64()})
_WORDS = ("", "one", "δύο", "trois" * 9)


class Work:
    """Growing directories of Parquet files. Rows repeat, so a pair that comes twice is not a pair that may go."""

    def __init__(self, place: Path, seed: int, verb: Verb) -> None:
        self.place = place
        self._verb = verb
        self._rng = np.random.default_rng(seed)
        self._files = 0
        for side in verb.inputs:
            self.path(side).mkdir(parents=True, exist_ok=True)
            self._control(side).mkdir(exist_ok=True)
        (place / "new").mkdir(exist_ok=True)

    def path(self, side: str) -> Path:
        return self.place / side

    def _control(self, side: str) -> Path:
        return self.place / f"{side}-control"

    def offer(self, files: int = 2, rows: int = 250) -> None:
        """So many more files for each input."""
        for _ in range(files):
            for side in self._verb.inputs:
                ids = self._rng.integers(0, self._verb.keys, rows)
                ids[self._rng.random(rows) < self._verb.hot] = self._rng.choice(HOT_KEYS)
                self._write(side, ids)

    def offer_every_key(self) -> None:
        """Files that meet everything: of the first two inputs, which are joined on the id; of others, a few rows.

        A third input is joined on the time, which many rows share.
        """
        for number, side in enumerate(self._verb.inputs):
            keys = self._verb.keys
            self._write(side, self._rng.permutation(keys) if number < 2 else self._rng.integers(0, keys, 250))

    def end(self) -> None:
        """Say that no row will follow, for a join that waits to be told."""
        for side in self._verb.inputs:
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
        at = 100 * (self._files // len(self._verb.inputs)) + self._rng.integers(0, 100, count)
        columns = [pa.array(ids, pa.int64(), mask=nothing), pa.array(numbers), pa.array(words), pa.array(at)]
        rows = pa.table(columns, schema=_ARROW)
        repeated = pa.concat_tables([rows, rows.slice(0, count // 10)])
        self._written(side, repeated)
        self._files += 1

    def _written(self, side: str, rows: pa.Table) -> None:
        """Rows that an input has from now on."""
        new = self.place / "new" / f"{self._files:05d}.parquet"
        pq.write_table(rows, new)
        new.rename(self.path(side) / new.name)  # a file appears whole

    def expected(self) -> Counter[tuple[Any, ...]]:
        """What the verb must have made of all rows so far."""
        return self._verb.expected(*(self._rows(side) for side in self._verb.inputs))

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
