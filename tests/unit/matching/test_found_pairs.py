"""Pairs found and not handed out: batches within their limit, in order, with false friends left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.matching.found_pairs import Between, PairBuffer
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import BatchRows, RowPlan

LEFT = pa.record_batch({"id": pa.array(range(50)), "v": [f"left {i}" for i in range(50)]})
RIGHT = pa.record_batch({"id": pa.array(range(50)), "w": pa.array(range(100, 150))})


class Buffered:
    """A buffer over two batches, one of which was looked up in the other."""

    def __init__(
        self,
        left: pa.RecordBatch = LEFT,
        right: pa.RecordBatch = RIGHT,
        output: Output = Output.ROWS,
        probe_side: int = 0,
        capacity: int = 64,
    ) -> None:
        self.spec = JoinSpec(left.schema, right.schema, parse_on("id"), output=output)
        self.codec = KeyCodec(self.spec)
        self.plans = (RowPlan(self.spec, 0, self.codec.exact), RowPlan(self.spec, 1, self.codec.exact))
        self.pairs = PairBuffer(self.spec, self.codec, self.plans, capacity)
        self.stored = [
            plan.store(batch, np.arange(1000, 1000 + batch.num_rows))
            for plan, batch in zip(self.plans, (left, right), strict=True)
        ]
        sources = [BatchRows(columns) for columns in self.stored]
        self.between = Between(probe_side, sources[probe_side], sources[1 - probe_side])
        for side in (0, 1):
            self.pairs.widest[side] = self.plans[side].widest(self.stored[side])

    def fill(self, probes: Any, rows: Any) -> None:
        self.pairs.probes[: len(probes)] = probes
        self.pairs.rows[: len(rows)] = rows
        self.pairs.first, self.pairs.count = 0, len(probes)

    def drain(self, limit: int) -> list[tuple[pa.RecordBatch | None, int]]:
        taken = []
        while self.pairs.waiting:
            before = self.pairs.waiting
            taken.append(self.pairs.take(self.between, limit))
            assert self.pairs.waiting < before, "every call gets on"
        return taken


def test_pairs_become_rows_in_their_order() -> None:
    buffered = Buffered()
    buffered.fill([3, 3, 7], [3, 4, 7])  # only the keys' hashes are compared before: 3 and 4 are for the caller
    [(batch, count)] = buffered.drain(1 << 20)
    assert batch is not None and count == 3
    assert batch.schema == buffered.spec.schema
    assert batch.to_pydict() == {"id": [3, 3, 7], "v": ["left 3", "left 3", "left 7"], "w": [103, 104, 107]}
    assert (buffered.pairs.first, buffered.pairs.count) == (0, 0), "the whole buffer is free again"


def test_rows_looked_up_may_be_of_either_side() -> None:
    buffered = Buffered(probe_side=1)
    buffered.fill([3, 5], [8, 9])  # rows of the right, looked up in the left
    [(batch, _)] = buffered.drain(1 << 20)
    assert batch is not None
    assert batch.to_pydict() == {"id": [8, 9], "v": ["left 8", "left 9"], "w": [103, 105]}


@pytest.mark.parametrize("limit", [1, 60, 200, 1000, 1 << 20])
def test_a_batch_keeps_its_limit_or_is_one_row(limit: int) -> None:
    buffered = Buffered()
    rows = np.arange(50, dtype=np.int32)
    buffered.fill(rows, rows)
    taken = buffered.drain(limit)
    assert all(batch is not None and (batch.nbytes <= limit or batch.num_rows == 1) for batch, _ in taken)
    assert [value for batch, _ in taken for value in batch.column("w").to_pylist()] == list(range(100, 150))
    assert sum(count for _, count in taken) == 50
    assert len(taken) == 50 if limit == 1 else len(taken) < 50


def test_filtering_keeps_the_fresh_ones_in_their_order() -> None:
    buffered = Buffered()
    rows = np.arange(10, dtype=np.int32)
    buffered.fill(rows, rows)
    buffered.pairs.filter(rows % 3 == 0)
    assert buffered.pairs.waiting == 4
    [(batch, count)] = buffered.drain(1 << 20)
    assert batch is not None and count == 4
    assert batch.column("id").to_pylist() == [0, 3, 6, 9]
    buffered.fill(rows, rows)
    buffered.pairs.filter(np.zeros(10, np.bool_))
    assert buffered.pairs.waiting == 0


def test_keys_that_only_share_a_hash_are_dropped_where_the_hash_proves_nothing() -> None:
    left = pa.record_batch({"id": ["a", "b", "c"], "v": [1, 2, 3]})
    right = pa.record_batch({"id": ["a", "x", "c"], "w": [4, 5, 6]})
    buffered = Buffered(left, right)
    assert not buffered.codec.exact
    buffered.fill([0, 1, 2, 0], [0, 1, 2, 2])
    [(batch, count)] = buffered.drain(1 << 20)
    assert batch is not None and count == 2
    assert batch.to_pydict() == {"id": ["a", "c"], "v": [1, 3], "w": [4, 6]}
    buffered.fill([1, 0], [1, 2])
    assert buffered.drain(1 << 20) == [(None, 0)], "all false: no batch"


def test_pairs_of_numbers_are_the_inputs_row_numbers() -> None:
    for probe_side, expected in ((0, {"left": [1003], "right": [1009]}), (1, {"left": [1009], "right": [1003]})):
        buffered = Buffered(output=Output.PAIRS, probe_side=probe_side)
        buffered.fill([3], [9])
        [(batch, _)] = buffered.drain(1 << 20)
        assert batch is not None and batch.to_pydict() == expected
        assert batch.schema == buffered.spec.schema


def test_counts_build_nothing() -> None:
    buffered = Buffered(output=Output.COUNTS)
    buffered.fill([1, 2, 3], [1, 2, 3])
    assert buffered.drain(1) == [(None, 3)]
    text = pa.record_batch({"id": ["a", "b"]})
    verified = Buffered(text, text, output=Output.COUNTS)
    verified.fill([0, 1, 0], [0, 1, 1])
    assert sum(count for _, count in verified.drain(1 << 20)) == 2, "but keys are compared where they must be"


def test_a_dictionary_that_grows_too_large_makes_the_batch_smaller() -> None:
    kind = pa.dictionary(pa.int8(), pa.int64())
    rows = 400
    stored = pa.array(range(rows))
    left = pa.record_batch({"id": pa.array(range(rows)), "d": pa.array(range(rows)).dictionary_encode()})
    left = left.set_column(1, pa.field("d", kind), pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int8()), stored))
    buffered = Buffered(left, pa.record_batch({"id": pa.array(range(rows))}), capacity=rows)
    # What many batches with dictionaries of their own have put into a table: more values than one can number.
    buffered.between.probe = BatchRows([buffered.stored[0][0], stored])
    numbers = np.arange(rows, dtype=np.int32)
    buffered.fill(numbers, numbers)
    taken = buffered.drain(1 << 20)
    assert len(taken) > 3
    assert all(batch is not None and batch.schema.field("d").type == kind for batch, _ in taken)
    assert [value for batch, _ in taken for value in batch.column("d").to_pylist()] == list(range(rows))


def test_a_wide_row_is_measured_not_guessed() -> None:
    texts = ["x" * (5000 if i == 20 else 5) for i in range(40)]
    buffered = Buffered(left=pa.record_batch({"id": pa.array(range(40)), "v": texts}))
    rows = np.arange(40, dtype=np.int32)
    buffered.fill(rows, rows)
    sizes = [(batch.num_rows, batch.nbytes) for batch, _ in buffered.drain(2000) if batch is not None]
    assert all(size <= 2000 or rows == 1 for rows, size in sizes)
    assert (1, max(size for _, size in sizes)) in sizes and sum(rows for rows, _ in sizes) == 40


def test_look_ups_find_about_as_many_pairs_as_a_batch_holds() -> None:
    """A buffer that holds a few pairs more than a batch would leave a batch of those few behind, again and again."""
    buffered = Buffered(capacity=512)
    width = sum(buffered.pairs.widest)
    limit = 400 * width
    sizes = []
    for _ in range(30):
        found = np.arange(buffered.pairs.room) % 50
        buffered.fill(found, found)
        sizes.append([count for _, count in buffered.drain(limit)])
    assert len(sizes[0]) == 2
    assert sum(len(each) == 1 for each in sizes[1:]) > 20, "most fills go out whole"
    assert buffered.pairs.room < 512
    buffered.pairs.room = 400
    for _ in range(60):
        buffered.fill(*[np.zeros(buffered.pairs.room)] * 2)
        buffered.drain(1 << 20)
    assert buffered.pairs.room == 512, "where batches have room for more, more is found at a time again"
