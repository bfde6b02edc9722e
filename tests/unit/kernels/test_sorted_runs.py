"""The sorted index: whatever is put in is found by ranges, in any steps, before and after rows leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.kernels.sorted_runs import RangeProbe, SortedRuns

batches = st.lists(st.lists(st.integers(-20, 20), min_size=0, max_size=12), min_size=1, max_size=12)


def filled(words: list[list[int]]) -> tuple[SortedRuns, list[int]]:
    index, everything = SortedRuns(), [word for batch in words for word in batch]
    start = 0
    for batch in words:
        rows = np.arange(start, start + len(batch), dtype=np.int32)
        index.insert(np.array(batch, np.int64), rows)
        start += len(batch)
    return index, everything


def look_up(index: SortedRuns, sought: list[int], reach: int, capacity: int, most: int) -> list[tuple[int, int]]:
    words = np.array(sought, np.int64)
    probe = RangeProbe(words, words - reach, words + reach)
    pairs: list[tuple[int, int]] = []
    out = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    while not probe.done:
        found, _ = index.probe(probe, most, *out)
        assert found <= capacity
        pairs += zip(out[0][:found].tolist(), out[1][:found].tolist(), strict=True)
    return pairs


@settings(max_examples=200, deadline=None)
@given(batches, st.lists(st.integers(-22, 22), max_size=9), st.integers(0, 5), st.integers(1, 7), st.integers(1, 9))
def test_finds_what_nested_loops_find(
    words: list[list[int]], sought: list[int], reach: int, capacity: int, most: int
) -> None:
    index, everything = filled(words)
    index.check(np.array(everything, np.int64), np.arange(len(everything), dtype=np.int32))
    wanted = [(i, j) for i, a in enumerate(sought) for j, b in enumerate(everything) if abs(a - b) <= reach]
    found = look_up(index, sought, reach, capacity, most)
    assert sorted(found) == wanted
    assert found == look_up(index, sought, reach, 1000, 10**6), "the order does not depend on the steps"


@settings(max_examples=100, deadline=None)
@given(batches, st.sets(st.integers(0, 150)))
def test_rows_that_left_are_not_found(words: list[list[int]], gone: set[int]) -> None:
    index, everything = filled(words)
    stay = [row for row in range(len(everything)) if row not in gone]
    numbers = np.full(len(everything), -1, np.int32)
    numbers[stay] = np.arange(len(stay))
    index.renumber(numbers)
    assert sorted(look_up(index, [0], 100, 50, 1000)) == [(0, number) for number in range(len(stay))]
    index.check(np.array(everything, np.int64)[stay], np.arange(len(stay), dtype=np.int32))


def test_runs_grow_geometrically() -> None:
    index, _ = filled([[1] * 10] * 200)
    assert len(index.lengths) <= 9
    assert sum(index.lengths) == 2000
    assert index.sorted()[1].tolist() == list(range(2000)), "equal words stay in the order of their arrival"


def test_the_same_runs_give_the_same_order() -> None:
    index, everything = filled([[5, 3, 3], [3], [4, 3, 5, 1, 2, 9], [3], [3, 3]])
    again = SortedRuns()
    again.build(np.array(everything), np.arange(len(everything), dtype=np.int32), index.lengths)
    assert again.lengths == index.lengths
    assert look_up(again, [3, 4], 1, 4, 3) == look_up(index, [3, 4], 1, 4, 3)


def test_tags_and_doubles_are_decided_in_the_index() -> None:
    values = np.array([0.1, 0.3, 0.5])
    words = values.view(np.int64)
    index = SortedRuns()
    index.insert(words, np.arange(3, dtype=np.int32))
    out = np.empty(9, np.int32), np.empty(9, np.int32)
    everything = np.array([np.iinfo(np.int64).min]), np.array([np.iinfo(np.int64).max])
    probe = RangeProbe(words[:1], *everything, np.array([7]), True, 0.2)
    found, visited = index.probe(probe, 100, *out, np.array([7, 7, 7]))
    assert out[1][:found].tolist() == [0, 1] and visited >= 3  # 0.3 - 0.1 is a little less than 0.2, 0.5 - 0.1 more
    probe = RangeProbe(words[:1], *everything, np.array([7]), True, 0.2)
    found, _ = index.probe(probe, 100, *out, np.array([7, 8, 7]))
    assert out[1][:found].tolist() == [0]


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_sought_or_nothing_there(size: int) -> None:
    empty, one = SortedRuns(), SortedRuns()
    one.insert(np.array([1]), np.array([0], np.int32))
    assert look_up(empty, [1] * size, 1, 4, 4) == []
    assert len(look_up(one, [1] * size, 1, 4, 4)) == size


def test_rows_that_were_in_memory_together_are_left_out() -> None:
    index = SortedRuns()
    index.insert(np.array([5, 5, 5]), np.arange(3, dtype=np.int32))
    arrived, departed = np.array([1, 4, 9]), np.array([3, 8, 20])
    probe = RangeProbe(np.array([5, 5]), np.array([5, 5]), np.array([5, 5]))
    probe.arrived, probe.departed = np.array([2, 8]), np.array([7, 9])
    out = np.empty(8, np.int32), np.empty(8, np.int32)
    slots = np.array([0, 1, 2], np.uint16)
    found, visited = index.probe(probe, 100, *out, row_arrived=arrived, row_slots=slots, slot_departed=departed)
    pairs = set(zip(out[0][:found].tolist(), out[1][:found].tolist(), strict=True))
    assert pairs == {(0, 2), (1, 0), (1, 1), (1, 2)} and visited >= 6
