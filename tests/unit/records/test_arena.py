"""Arenas and pools: slots are reserved before they are used, and what is given back is really given back."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.memory import Budget
from watersmeet.records.arena import Arena, Pool

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_an_arena_begins_with_zeros_and_keeps_what_is_written(dtype: type[np.generic]) -> None:
    arena = Arena(dtype, 5000)
    assert len(arena.array) == 5000 and not arena.array.any()
    arena.array[:] = np.arange(5000) % 100
    assert np.array_equal(arena.array, np.arange(5000) % 100)
    assert arena.itemsize == np.dtype(dtype).itemsize


def test_address_space_costs_nothing() -> None:
    arena = Arena(np.int64, 1 << 36)  # half a tebibyte
    arena.array[-1] = 7
    assert arena.array[-1] == 7


def test_an_empty_arena_and_a_large_one_work_too() -> None:
    assert len(Arena(np.int64, 0).array) == 1
    arena = Arena(np.int64, 1 << 20)
    arena.array[:] = 1
    assert arena.array.sum() == 1 << 20


def test_released_pages_read_as_zeros_and_their_neighbours_are_untouched() -> None:
    arena = Arena(np.uint8, 8 * PAGE)
    arena.array[:] = 1
    arena.release(PAGE + 1, 5 * PAGE - 1)  # whole pages within: 2, 3
    pages = arena.array.reshape(8, PAGE)
    assert [bool(page.all()) for page in pages] == [True, True, False, False, True, True, True, True]
    assert not pages[2:4].any()
    arena.release(6 * PAGE + 1, 7 * PAGE)  # no whole page within
    assert pages[6].all()


def pool_of(memory: int, slots: int = 100, slot_bytes: int = 10) -> tuple[Pool, Budget, list[int]]:
    budget, released = Budget(memory), []
    note = lambda first, stop: released.extend(range(first, stop))  # noqa: E731
    return Pool(slot_bytes, slots, budget.reservation("slots"), note), budget, released


def test_slots_are_handed_out_from_the_lowest_and_used_again_in_that_order() -> None:
    pool, budget, _ = pool_of(1000)
    assert pool.reserve(4)
    assert pool.peek() == [0, 1, 2, 3]
    assert pool.take(3) == [0, 1, 2]
    pool.give_back([0, 1])
    assert pool.peek() == [0, 1, 3]
    assert budget.used == 40 and pool.warm == 3 and pool.in_use == 1
    assert pool.reserve(3) and budget.used == 40, "warm slots are used before new ones are reserved"
    assert pool.reserve(5) and budget.used == 60
    assert sorted(pool.take(5)) == [0, 1, 3, 4, 5]
    pool.check()


def test_no_room_in_the_budget_changes_nothing() -> None:
    pool, budget, _ = pool_of(35)
    assert pool.reserve(3)
    assert not pool.reserve(4)
    assert not pool.reserve_runs(1)
    assert budget.used == 30 and pool.peek() == [0, 1, 2]
    pool.check()


def test_no_slots_are_invented_beyond_the_last() -> None:
    pool, budget, _ = pool_of(1000, slots=4)
    assert not pool.reserve(5)
    assert pool.reserve(4)
    pool.take(4)
    assert not pool.reserve(1) and not pool.reserve_runs(1)
    assert budget.used == 40
    pool.check()


def test_trimming_gives_warm_slots_back_once_and_only_as_many_as_asked() -> None:
    pool, budget, released = pool_of(1000)
    assert pool.reserve(5)
    used = pool.take(2)
    assert pool.trim(11) == 20
    assert budget.used == 30 and len(released) == 2 and not set(released) & set(used)
    assert pool.trim(1000) == 10
    assert budget.used == 20 and len(set(released)) == 3
    assert pool.trim(1000) == 0
    assert pool.reserve(3) and budget.used == 50, "what was released can be reserved again"
    pool.check()


def test_a_pool_that_is_all_free_starts_from_the_lowest_slot_again() -> None:
    pool, budget, _ = pool_of(1000, slots=6)
    assert pool.reserve(3)
    pool.give_back(pool.take(3))
    pool.trim(1000)
    assert budget.used == 0
    assert pool.reserve(2) and pool.take(2) == [0, 1]
    pool.check()


def test_a_run_is_adjoining_and_beyond_all_that_was_used() -> None:
    pool, budget, _ = pool_of(1000)
    assert pool.reserve(3)
    single = pool.take(2)
    assert pool.reserve_runs(4) and budget.used == 70
    assert pool.reserve_runs(4) and budget.used == 70, "asked again, not twice"
    first = pool.take_run(3)
    assert first > max(single) and pool.in_use == 5
    pool.check()
    assert pool.trim(10) == 10, "the one that was reserved in advance goes first"
    pool.give_back([*range(first, first + 3), *single])
    pool.check()
    assert pool.trim(1000) == 60 and budget.used == 0


@given(st.lists(st.tuples(st.sampled_from(["take", "run", "give", "trim"]), st.integers(1, 5)), max_size=60))
def test_no_slot_is_ever_in_two_places(moves: list[tuple[str, int]]) -> None:
    pool, budget, _ = pool_of(150, slots=40)
    held: list[int] = []
    for move, count in moves:
        if move == "take":
            if pool.reserve(count):
                held += pool.take(count)
        elif move == "run":
            if pool.reserve_runs(count):
                first = pool.take_run(count)
                held += range(first, first + count)
        elif move == "give":
            pool.give_back(held[:count])
            del held[:count]
        else:
            before = budget.used
            assert pool.trim(10 * count) == before - budget.used
        assert len(held) == len(set(held)) == pool.in_use
        assert all(0 <= slot < 40 for slot in held)
        assert not set(held) & set(pool.peek())
        assert 10 * len(held) <= budget.used <= 150
        pool.check()
