"""Rows on their way in: small batches are put together, large ones are cut, and none is lost or moved."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.records.intake import Intake, Received


def batch(first: int, count: int, width: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64()), "s": ["x" * width] * count})


def drain(intake: Intake) -> list[tuple[list[int], list[int]]]:
    """The rows and their numbers, batch by batch."""
    taken = []
    while intake.rows:
        found, numbers = intake.next()
        assert found.num_rows == len(numbers) > 0
        taken.append((found.column("n").to_pylist(), numbers.tolist()))
    return taken


def test_small_batches_become_one() -> None:
    intake = Intake(1 << 20)
    for i in range(100):
        intake.add(batch(3 * i, 3))
    assert intake.rows == 300
    taken = drain(intake)
    assert taken == [(list(range(300)), list(range(300)))]
    assert intake.numbered == 300 and intake.rows == 0


def test_a_large_batch_is_cut_at_the_limit() -> None:
    intake = Intake(10_000)
    large = batch(0, 2000)
    intake.add(large)
    taken = drain(intake)
    assert len(taken) > 2
    assert all(len(rows) * large.nbytes / 2000 <= 10_000 for rows, _ in taken)
    assert [row for rows, _ in taken for row in rows] == list(range(2000))
    assert [number for _, numbers in taken for number in numbers] == list(range(2000))


def test_small_batches_are_put_together_within_the_limit_only() -> None:
    intake = Intake(5_000)
    for i in range(40):
        intake.add(batch(10 * i, 10, width=90))  # about 1 kB each
    taken = drain(intake)
    assert all(len(rows) <= 60 for rows, _ in taken) and len(taken) < 40
    assert [row for rows, _ in taken for row in rows] == list(range(400))


def test_a_row_wider_than_the_limit_comes_alone() -> None:
    intake = Intake(100)
    intake.add(batch(0, 3, width=5000))
    assert [rows for rows, _ in drain(intake)] == [[0], [1], [2]]


def test_batches_without_rows_are_forgotten() -> None:
    intake = Intake(1000)
    intake.add(batch(0, 0))
    assert intake.rows == 0 and intake.waiting() == []


def test_a_large_batch_is_not_copied_behind_a_small_one() -> None:
    intake = Intake(1 << 20)
    intake.add(batch(0, 5))
    intake.add(batch(5, 3000))
    assert [len(rows) for rows, _ in drain(intake)] == [5, 3000]


def test_dictionaries_that_cannot_be_put_together_stay_apart() -> None:
    intake = Intake(1 << 20)
    kind = pa.dictionary(pa.int8(), pa.string())
    for i in range(3):
        values = pa.DictionaryArray.from_arrays(
            pa.array(range(100), pa.int8()), pa.array([f"{i}-{j}" for j in range(100)])
        )
        intake.add(pa.record_batch({"n": pa.array(range(100 * i, 100 * i + 100)), "d": values}))
    taken = []
    while intake.rows:
        found, _ = intake.next()
        assert found.schema.field("d").type == kind
        taken.append(found.column("d").to_pylist())
    assert [value for values in taken for value in values] == [f"{i}-{j}" for i in range(3) for j in range(100)]
    assert len(taken) == 3


def test_rows_of_a_snapshot_come_first_and_keep_their_numbers() -> None:
    intake = Intake(1 << 20)
    intake.numbered = 50
    intake.resume(Received(batch(100, 4), np.array([7, 9, 11, 13])))
    intake.resume(Received(batch(200, 2)))
    intake.add(batch(300, 2))
    assert intake.rows == 8
    assert drain(intake) == [([100, 101, 102, 103], [7, 9, 11, 13]), ([200, 201, 300, 301], [50, 51, 52, 53])]


def test_what_waits_can_be_resumed_elsewhere() -> None:
    intake = Intake(600)
    for i in range(6):
        intake.add(batch(10 * i, 10))
    first, _ = intake.next()
    other = Intake(600)
    other.numbered = intake.numbered
    for received in intake.waiting():
        other.resume(received)
    assert other.rows == intake.rows == 60 - first.num_rows
    rest = drain(intake)
    assert drain(other) == rest
    assert [n for _, numbers in rest for n in numbers] == list(range(first.num_rows, 60))


def test_a_resumed_batch_is_cut_at_the_limit_too() -> None:
    intake = Intake(400)
    intake.resume(Received(batch(0, 30, width=20), np.arange(500, 530)))
    taken = drain(intake)
    assert len(taken) > 1
    assert [n for _, numbers in taken for n in numbers] == list(range(500, 530))
    assert intake.numbered == 0, "they had their numbers already"


@pytest.mark.parametrize("limit", [64, 1000, 1 << 20])
@given(sizes=st.lists(st.sampled_from([0, 1, 3, 40, 300, 1023, 1024, 1100]), max_size=8))
def test_nothing_is_lost_or_moved(limit: int, sizes: list[int]) -> None:
    intake = Intake(limit)
    first = 0
    for size in sizes:
        intake.add(batch(first, size))
        first += size
    taken = []
    for _ in range(200):  # the smallest limit takes very many
        if not intake.rows:
            break
        found, numbers = intake.next()
        assert found.column("n").to_pylist() == numbers.tolist()
        taken += numbers.tolist()
    assert taken == list(range(len(taken)))
    assert len(taken) + intake.rows == first


def test_a_dictionary_counts_with_its_values() -> None:
    """Large batches are cut by what their values take, not by the few bits that number them."""
    words = pa.array([f"{i}" * 500 for i in range(8)])
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(64) % 8, pa.int8()), words)
    plain, encoded = Intake(512), Intake(512)
    plain.add(pa.record_batch({"n": pa.array(range(64), pa.int64())}))
    encoded.add(pa.record_batch({"n": column}))
    assert plain.next()[0].num_rows == 56  # of nine bytes, validity and all
    assert encoded.next()[0].num_rows < 20
