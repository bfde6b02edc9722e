"""The ledger: the three ways in which two rows have met, and that there is no fourth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watersmeet.core.errors import BudgetError
from watersmeet.matching.ledger import Ledger
from watersmeet.memory import Budget
from watersmeet.runs.presence import FOREVER, NOT_ON_DISK, Stay, Stretch


def ledger_of(memory: int = 1 << 20, partitions: int = 1) -> tuple[Ledger, Budget]:
    budget = Budget(memory)
    return Ledger(partitions, budget.reservation("history")), budget


def stay(arrived: int, departed: int = FOREVER, ordinal: int = NOT_ON_DISK, hash_: int = 0) -> Stay:
    return Stay(*(np.array([value], np.int64) for value in (arrived, departed, ordinal, hash_)))


def is_fresh(ledger: Ledger, left: Stay, right: Stay, part: int = 0) -> bool:
    return bool(ledger.fresh(part, left, right)[0])


# -- the first rule: together in memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "met"),
    [
        ((1, FOREVER), (2, FOREVER), True),
        ((2, FOREVER), (1, FOREVER), True),
        ((1, 5), (4, 9), True),
        ((4, 9), (1, 5), True),
        ((1, 9), (3, 4), True),
        ((3, 4), (1, 9), True),
        ((1, 5), (6, 9), False),
        ((6, 9), (1, 5), False),
        ((1, 5), (6, FOREVER), False),
        ((6, FOREVER), (1, 5), False),
        ((1, 5), (5, 9), False),  # ticks are never shared, but an end is no stay
    ],
)
def test_rows_met_if_their_stays_overlap(left: tuple[int, int], right: tuple[int, int], met: bool) -> None:
    ledger, _ = ledger_of()
    assert is_fresh(ledger, stay(*left), stay(*right)) is not met


def test_rows_in_memory_have_never_left() -> None:
    rows = Stay.in_memory(np.array([3, 9]))
    assert rows.departed.tolist() == [FOREVER] * 2 and rows.ordinal.tolist() == [NOT_ON_DISK] * 2


# -- the second rule: a visit ------------------------------------------------------------------------------------------


def visited(side: int, tick: int, stretch: Stretch) -> Ledger:
    ledger, _ = ledger_of()
    assert ledger.try_reserve(side, 0)
    ledger.record_visit(side, 0, tick, stretch)
    return ledger


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("arrived", "departed", "ordinal", "met"),
    [
        (11, FOREVER, 4, True),
        (11, 21, 4, True),
        (11, FOREVER, 3, True),
        (11, FOREVER, 6, True),
        (11, FOREVER, 2, False),  # before the stretch
        (11, FOREVER, 7, False),  # just beyond it
        (21, FOREVER, 4, False),  # came after the visit
        (11, 19, 4, False),  # had left before it
    ],
)
def test_a_visit_counts_for_rows_in_memory_then_and_rows_of_its_stretch(
    side: int, arrived: int, departed: int, ordinal: int, met: bool
) -> None:
    ledger = visited(side, 20, Stretch(3, 7))
    memory, disk = stay(arrived, departed), stay(1, 10, ordinal)
    left, right = (disk, memory) if side else (memory, disk)
    assert is_fresh(ledger, left, right) is not met


def test_a_visit_of_one_side_is_none_of_the_other() -> None:
    ledger = visited(0, 20, Stretch(0, 10))
    assert not is_fresh(ledger, stay(11), stay(1, 10, 4))
    assert is_fresh(ledger, stay(1, 10, 4), stay(11))


def test_a_visit_counts_in_its_partition_only() -> None:
    ledger, _ = ledger_of(partitions=2)
    assert ledger.try_reserve(0, 1)
    ledger.record_visit(0, 1, 20, Stretch(0, 10))
    assert is_fresh(ledger, stay(11), stay(1, 10, 4), part=0)
    assert not is_fresh(ledger, stay(11), stay(1, 10, 4), part=1)


def test_a_row_that_never_left_memory_is_met_by_no_visit() -> None:
    ledger = visited(0, 20, Stretch(0, 10))
    assert is_fresh(ledger, stay(11, 25), stay(30))


def test_a_row_that_came_back_is_told_by_the_stay_it_had() -> None:
    ledger = visited(0, 20, Stretch(0, 10))
    assert not is_fresh(ledger, stay(11, 25, 3), stay(1, 10, 4)), "in memory at 20, on disk since 25"
    assert is_fresh(ledger, stay(11, 15, 3), stay(1, 10, 4)), "on disk since 15"


@pytest.mark.parametrize(
    ("hash_", "ordinal", "met"),
    [
        (50, 4, True),
        (30, 5, True),  # where it begins
        (30, 4, False),  # the same hash, one ordinal before
        (29, 9, False),
        (70, 2, True),  # the same hash as where it ends, one ordinal before
        (70, 3, False),  # where it ends
        (71, 0, False),
        (50, 10, False),  # another run
    ],
)
def test_a_visit_amid_a_merged_run_covers_what_stands_between_two_places(hash_: int, ordinal: int, met: bool) -> None:
    ledger = visited(0, 20, Stretch(0, 10, since=(30, 5), until=(70, 3)))
    assert is_fresh(ledger, stay(11), stay(1, 10, ordinal, hash_)) is not met


def test_an_empty_visit_leaves_no_entry() -> None:
    ledger, budget = ledger_of()
    ledger.record_visit(0, 0, 20, Stretch(5, 5))
    assert ledger.to_state()["visits"][0][0] == [[]] * 7 and budget.used == 0


# -- the third rule: merged on disk ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "met"),
    [(2, 0, True), (4, 8, True), (1, 0, False), (5, 0, False), (2, 9, False), (-1, 0, False), (2, -1, False)],
)
def test_stretches_of_disk_that_were_joined_have_met(left: int, right: int, met: bool) -> None:
    ledger, _ = ledger_of()
    assert ledger.try_reserve_merge()
    ledger.record_merge(0, (2, 5), (0, 9))
    ends = [10 if ordinal >= 0 else FOREVER for ordinal in (left, right)]
    # They were not in memory together: the right one came when the left had gone (or was not there at all).
    assert is_fresh(ledger, stay(1, ends[0] if left >= 0 else 5, left), stay(11, 20, right)) is not met


def test_a_merge_that_holds_others_takes_their_place() -> None:
    ledger, budget = ledger_of()
    for left, right in (((0, 2), (0, 2)), ((0, 4), (3, 5)), ((0, 4), (0, 4))):
        assert ledger.try_reserve_merge()
        ledger.record_merge(0, left, right)
    assert ledger.to_state()["merged"][0] == [[0, 4, 3, 5], [0, 4, 0, 4]]
    assert not ledger.all_merged(0, 4, 5)
    assert ledger.all_merged(0, 4, 4) and ledger.all_merged(0, 3, 2)
    assert ledger.all_merged(0, 0, 99) and ledger.all_merged(0, 99, 0), "nothing to meet"
    held = budget.used
    ledger.drop(0)
    assert held > 0 and budget.used == 0
    assert not ledger.all_merged(0, 1, 1)


# -- memory and snapshots ----------------------------------------------------------------------------------------------


def test_no_visit_begins_without_memory_to_remember_it() -> None:
    ledger, budget = ledger_of(memory=10)
    assert not ledger.try_reserve(0, 0) and not ledger.try_reserve_merge()
    assert budget.used == 0
    roomy, budget = ledger_of(memory=4096)
    granted = 0
    while roomy.try_reserve(0, 0):
        roomy.record_visit(0, 0, granted + 1, Stretch(0, 1))
        granted += 1
        budget.check()
    assert granted > 8, "room doubles and is used to the last entry"
    roomy.check(granted, [[1], [1]])
    roomy.drop(0)
    assert budget.used == 0


def test_a_ledger_survives_json() -> None:
    ledger, _ = ledger_of(partitions=2)
    assert ledger.try_reserve(1, 1, 2) and ledger.try_reserve_merge()
    ledger.record_visit(1, 1, 20, Stretch(0, 10, since=(-(2**63), 0), until=(2**62, 5)))
    ledger.record_visit(1, 1, 21, Stretch(2, 3))
    ledger.record_merge(0, (0, 3), (1, 4))
    state = json.loads(json.dumps(ledger.to_state()))
    other, budget = ledger_of(partitions=2)
    other.load(state)
    assert other.to_state() == ledger.to_state()
    assert budget.used > 0
    assert not is_fresh(other, stay(1, 10, 2), stay(11), part=1)
    assert not is_fresh(other, stay(1, 10, 2), stay(11, 12, 3), part=0)
    small, _ = ledger_of(memory=10, partitions=2)
    with pytest.raises(BudgetError, match="history does not fit"):
        small.load(state)


def test_check_notices_what_cannot_be() -> None:
    ledger = visited(0, 20, Stretch(0, 10))
    ledger.check(20, [[0], [10]])
    with pytest.raises(AssertionError):
        ledger.check(19, [[0], [10]])
    with pytest.raises(AssertionError):
        ledger.check(20, [[0], [9]])


# -- any history -------------------------------------------------------------------------------------------------------


@dataclass
class ToyRow:
    number: int
    arrived: int
    hash: int
    departed: int = FOREVER
    ordinal: int = NOT_ON_DISK


class ToyJoin:
    """A join of one partition without keys: every pair is a result, and a set remembers which were emitted."""

    def __init__(self) -> None:
        self.ledger, _ = ledger_of()
        self.clock = 0
        self.rows: list[list[ToyRow]] = [[], []]
        self.emitted: set[tuple[int, int]] = set()
        self.met: dict[str, int] = {"memory": 0, "visit": 0, "merge": 0}

    def memory(self, side: int) -> list[ToyRow]:
        return [row for row in self.rows[side] if row.ordinal < 0]

    def disk(self, side: int) -> list[ToyRow]:
        return sorted((row for row in self.rows[side] if row.ordinal >= 0), key=lambda row: row.ordinal)

    def arrive(self, side: int, hash_: int) -> None:
        self.clock += 1
        row = ToyRow(len(self.rows[side]), self.clock, hash_)
        self.rows[side].append(row)
        self.emit("memory", *self.sides(side, [row], self.memory(1 - side)))

    def flush(self, side: int) -> None:
        self.clock += 1
        first = len(self.disk(side))
        for place, row in enumerate(self.memory(side)):
            row.departed, row.ordinal = self.clock, first + place

    def visit(self, side: int, low: int, high: int, slice_: tuple[int, int] | None) -> None:
        """Join memory with a stretch of disk; `slice_` tells a part of the stretch in the order of hashes."""
        disk = self.disk(1 - side)
        low, high = sorted((low % (len(disk) + 1), high % (len(disk) + 1)))
        stretch, covered = Stretch(low, high), disk[low:high]
        if slice_ is not None and covered:
            ordered = sorted(covered, key=lambda row: (row.hash, row.ordinal))
            start, stop = sorted(place % (len(ordered) + 1) for place in slice_)
            since = (ordered[start].hash, ordered[start].ordinal) if start < len(ordered) else (FOREVER, FOREVER)
            until = (ordered[stop].hash, ordered[stop].ordinal) if stop < len(ordered) else (FOREVER, FOREVER)
            stretch, covered = Stretch(low, high, since, until), ordered[start:stop]
        self.clock += 1
        assert self.ledger.try_reserve(side, 0)
        self.emit("visit", *self.sides(side, self.memory(side), covered))
        self.ledger.record_visit(side, 0, self.clock, stretch)

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> None:
        ranges = []
        for side, (low, high) in enumerate((left, right)):
            count = len(self.disk(side)) + 1
            ranges.append(tuple(sorted((low % count, high % count))))
        if any(low == high for low, high in ranges):
            return
        self.clock += 1
        assert self.ledger.try_reserve_merge()
        self.emit("merge", *(self.disk(side)[low:high] for side, (low, high) in enumerate(ranges)))
        self.ledger.record_merge(0, *ranges)

    @staticmethod
    def sides(side: int, own: list[ToyRow], other: list[ToyRow]) -> tuple[list[ToyRow], list[ToyRow]]:
        return (other, own) if side else (own, other)

    def emit(self, how: str, left: list[ToyRow], right: list[ToyRow]) -> None:
        pairs = list(product(left, right))
        if how == "memory":  # the arrival is new: nobody has met it
            fresh: Sequence[Any] = [True] * len(pairs)
        else:
            fresh = self.ask(pairs)
        for (l, r), is_new in zip(pairs, fresh, strict=True):
            pair = (l.number, r.number)
            assert bool(is_new) is (pair not in self.emitted), f"{how}: {l} and {r}"
            self.met[how] += is_new
            self.emitted.add(pair)

    def ask(self, pairs: list[tuple[ToyRow, ToyRow]]) -> Any:
        stays = [
            Stay(
                *(
                    np.array([getattr(pair[side], name) for pair in pairs], np.int64)
                    for name in ("arrived", "departed", "ordinal", "hash")
                )
            )
            for side in (0, 1)
        ]
        return self.ledger.fresh(0, stays[0], stays[1])

    def check(self) -> None:
        pairs = list(product(*self.rows))
        fresh = self.ask(pairs)
        assert [(l.number, r.number) not in self.emitted for l, r in pairs] == fresh.tolist()
        self.ledger.check(self.clock, [[len(self.disk(side))] for side in (0, 1)])


PLACE = st.integers(0, 12)
SIDE = st.integers(0, 1)
MOVES = st.one_of(
    st.tuples(st.just("arrive"), SIDE, st.integers(0, 3)),
    st.tuples(st.just("arrive"), SIDE, st.integers(0, 3)),
    st.tuples(st.just("flush"), SIDE),
    st.tuples(st.just("visit"), SIDE, PLACE, PLACE, st.none() | st.tuples(PLACE, PLACE)),
    st.tuples(st.just("merge"), st.tuples(PLACE, PLACE), st.tuples(PLACE, PLACE)),
)


@given(st.lists(MOVES, max_size=40))
def test_any_history_is_told_exactly(moves: list[tuple[Any, ...]]) -> None:
    toy = ToyJoin()
    for name, *arguments in moves:
        getattr(toy, name)(*arguments)
    toy.check()


def test_a_long_history_goes_through_every_rule() -> None:
    rng = np.random.default_rng(11)
    toy = ToyJoin()
    for _ in range(400):
        kind, side = rng.choice(["arrive", "flush", "visit", "merge"], p=[0.5, 0.15, 0.25, 0.1]), int(rng.integers(2))
        places = [int(place) for place in rng.integers(0, 200, 4)]
        if kind == "arrive":
            toy.arrive(side, int(rng.integers(5)))
        elif kind == "flush":
            toy.flush(side)
        elif kind == "visit":
            toy.visit(side, places[0], places[1], (places[2], places[3]) if rng.random() < 0.5 else None)
        else:
            toy.merge((places[0], places[1]), (places[2], places[3]))
    toy.check()
    assert all(count > 100 for count in toy.met.values()), toy.met


def test_a_later_visit_takes_the_place_of_those_within_it() -> None:
    ledger, _ = ledger_of()
    ledger.try_reserve(0, 0, 8)
    ledger.record_visit(0, 0, 10, Stretch(0, 5), since=3)
    ledger.record_visit(0, 0, 11, Stretch(5, 9), since=3)
    ledger.record_visit(0, 0, 12, Stretch(2, 9), since=3)
    assert ledger._visits[0][0].count == 2, "the first reaches beyond the last"
    ledger.record_visit(0, 0, 13, Stretch(0, 9), since=3)
    assert ledger._visits[0][0].count == 1
    on_disk = stay(1, 2, ordinal=4)
    assert not is_fresh(ledger, stay(4), on_disk), "a row that was there at the first visit was there at the last"
    assert is_fresh(ledger, stay(14), on_disk)


def test_visits_of_rows_that_have_left_since_are_kept() -> None:
    ledger, _ = ledger_of()
    ledger.try_reserve(0, 0, 8)
    ledger.record_visit(0, 0, 10, Stretch(0, 5), since=3)
    ledger.record_visit(0, 0, 20, Stretch(0, 9), since=15)
    assert not is_fresh(ledger, stay(4, 15), stay(1, 2, ordinal=4)), "only the first visit tells"
    inside = Stretch(2, 9, since=(5, 2), until=(7, 0))
    ledger.record_visit(0, 0, 30, inside, since=15)
    ledger.record_visit(0, 0, 31, Stretch(2, 9, since=(5, 3)), since=15)
    assert ledger._visits[0][0].count == 4, "another place amid a merged run is not within"
