"""Budgets: sizes as people write them, and bytes that are reserved before they are used."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waiting import PATIENCE
from watersmeet.core.errors import BudgetError, SpecError
from watersmeet.memory import Budget, PooledBudget, format_bytes, parse_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (4096, 4096),
        ("4096", 4096),
        ("12 B", 12),
        ("3k", 3000),
        ("3KB", 3000),
        ("3 KiB", 3 * 1024),
        (" 64MiB ", 64 << 20),
        ("64 mib", 64 << 20),
        ("2GB", 2 * 1000**3),
        ("1.5 GiB", 3 << 29),
        (".5m", 500_000),
        ("2.TiB", 2 << 40),
    ],
)
def test_memory_is_read_as_people_write_it(text: str | int, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text", ["", "lots", "MiB", "64 parsecs", "64 MiB extra", "1,5 MiB", "-1", "-4 MiB", "1e6", "0x10", "nan", "٣ MiB"]
)
def test_memory_that_is_not_understood_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(SpecError, match="is not understood; write a number and a unit") as refusal:
        parse_memory(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("text", [0, -1, "0", "0 MiB", "0.4 B"])
def test_no_memory_at_all_is_refused(text: str | int) -> None:
    with pytest.raises(SpecError, match="more than nothing"):
        parse_memory(text)


@pytest.mark.parametrize("text", [None, True, 1.5, b"64 MiB", ["64 MiB"]])
def test_memory_of_another_kind_is_refused(text: object) -> None:
    with pytest.raises(SpecError, match="memory must be bytes or a string"):
        parse_memory(text)  # type: ignore[arg-type]


@given(st.integers(1, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_units_survive_the_round_trip(count: int, unit: str) -> None:
    size = parse_memory(f"{count} {unit}")
    assert format_bytes(size) == f"{count} {unit}"
    assert parse_memory(format_bytes(size)) == size


@given(st.integers(1, 1 << 50))
def test_what_is_shown_can_be_read_and_is_near(size: int) -> None:
    assert parse_memory(format_bytes(size)) == pytest.approx(size, rel=0.051)


def test_the_unit_is_the_largest_that_leaves_a_number_of_at_least_one() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1024) == "1 KiB"
    assert format_bytes(1 << 20) == "1 MiB"
    assert format_bytes(5000 << 40) == "5000 TiB"
    assert format_bytes(-2048) == "-2 KiB"


def test_a_budget_grants_to_the_last_byte_and_no_more() -> None:
    budget = Budget(100)
    blocks, strings = budget.reservation("blocks"), budget.reservation("strings")
    assert blocks.try_grow(60) and strings.try_grow(40)
    assert not blocks.try_grow(1)
    assert (blocks.held, strings.held, budget.used, budget.free, budget.peak) == (60, 40, 100, 0, 100)
    assert blocks.try_grow(0)
    budget.check()


def test_a_refusal_changes_nothing_and_says_who_wanted_what() -> None:
    budget = Budget(4096)
    history = budget.reservation("history of visits")
    history.grow(3072)
    with pytest.raises(BudgetError, match=r"history of visits needs 2 KiB more, but only 1 KiB of the 4 KiB"):
        history.grow(2048)
    assert (history.held, budget.used, budget.peak) == (3072, 3072, 3072)
    assert isinstance(BudgetError("x"), MemoryError)


def test_the_peak_stays_when_bytes_are_given_back() -> None:
    budget = Budget(100)
    claim = budget.reservation("blocks")
    claim.grow(80)
    claim.shrink(70)
    claim.grow(20)
    assert (budget.used, budget.peak) == (30, 80)
    claim.clear()
    assert (claim.held, budget.used, budget.free, budget.peak) == (0, 0, 100, 80)
    budget.check()


def test_nobody_gives_back_more_than_they_hold() -> None:
    budget = Budget(100)
    budget.reservation("others").grow(50)
    claim = budget.reservation("mine")
    claim.grow(10)
    with pytest.raises(AssertionError, match="mine gives back 11 of 10 bytes"):
        claim.shrink(11)
    with pytest.raises(AssertionError):
        claim.shrink(-1)
    assert (claim.held, budget.used) == (10, 60)


def test_the_breakdown_adds_up_claims_of_one_name() -> None:
    budget = Budget(100)
    first, second = budget.reservation("blocks"), budget.reservation("blocks")
    first.grow(10)
    second.grow(5)
    budget.reservation("index")
    assert budget.breakdown() == {"blocks": 15, "index": 0}


def test_check_notices_a_leak_and_a_broken_promise() -> None:
    leaky = Budget(100)
    leaky.reservation("blocks").grow(10)
    leaky.used += 1
    with pytest.raises(AssertionError, match="blocks"):
        leaky.check()
    broken = Budget(100)
    broken.reservation("blocks").grow(100)
    broken.total = 99
    with pytest.raises(AssertionError, match="100 of 99 bytes"):
        broken.check()
    forgetful = Budget(100)
    forgetful.reservation("blocks").grow(10)
    forgetful.peak = 9
    with pytest.raises(AssertionError):
        forgetful.check()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-60, 60)), max_size=60))
def test_a_budget_is_the_sum_of_its_parts_whatever_happens(moves: list[tuple[int, int]]) -> None:
    budget = Budget(100)
    claims = [budget.reservation(f"claim {i}") for i in range(3)]
    held, peak = [0, 0, 0], 0
    for who, change in moves:
        if change >= 0:
            granted = sum(held) + change <= 100
            assert claims[who].try_grow(change) is granted
            held[who] += change if granted else 0
        else:
            change = min(held[who], -change)
            claims[who].shrink(change)
            held[who] -= change
        peak = max(peak, sum(held))
        assert [claim.held for claim in claims] == held
        assert (budget.used, budget.peak) == (sum(held), peak)
        budget.check()


# --- shares of one budget ---


def test_a_share_takes_what_others_have_no_use_for_and_the_sum_is_kept() -> None:
    pool = PooledBudget(1 << 20, shares=4, beside=1 << 16)
    rows = [share.reservation("rows") for share in pool.shares]
    while rows[0].try_grow(1000):
        pool.check()
    assert pool.shares[0].total > 2 * pool.fair, "it took what the others did not need"
    assert all(share.total == pool.sure for share in pool.shares[1:]), "of which each is sure of half"
    assert all(claim.try_grow(pool.sure) for claim in rows[1:])
    assert not rows[1].try_grow(pool.step)
    assert pool.used <= pool.peak <= pool.total
    rows[0].clear()
    assert not rows[1].try_grow(pool.fair), "what is free has not been given back"
    pool.shares[0].give_back()
    assert rows[1].try_grow(pool.fair)
    pool.check()


def test_whoever_has_more_than_its_part_gives_it_to_one_that_cannot_go_on() -> None:
    pool = PooledBudget(100_000, shares=2)
    rich, poor = pool.shares
    rows = [share.reservation("rows") for share in pool.shares]
    rows[0].grow(75_000)
    assert not rows[1].try_grow(50_000)
    assert pool.can_want(poor) and not rich.must_give
    pool.want(poor, True)
    assert rich.must_give
    rows[0].shrink(25_000)
    rich.give_back()
    assert rich.total == pool.fair and not rich.must_give
    assert not rows[0].try_grow(1), "as long as another cannot go on"
    assert rows[1].try_grow(50_000)
    pool.want(poor, False)
    pool.check()
    rich.stuck = True
    assert not pool.can_want(poor), "nobody has more than a fair part"


def test_shares_in_threads_never_hold_more_than_the_whole() -> None:
    pool = PooledBudget(1 << 20, shares=3)
    over: list[int] = []
    taken = [0, 0, 0]

    def use(number: int) -> None:
        share = pool.shares[number]
        claim = share.reservation("rows")
        for step in range(3000):
            size = (step * 7919 + number * 104729) % (pool.fair // 2)
            if claim.try_grow(size):
                taken[number] += 1
            else:
                claim.shrink(claim.held)
                share.give_back()
            if pool.used > pool.total:
                over.append(pool.used)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not over and all(count > 500 for count in taken)
    pool.check()


def test_what_is_set_aside_twice_is_held_whole() -> None:
    budget = Budget(100)
    catalogue = budget.reservation("catalogue")
    catalogue.set_aside(30)
    catalogue.set_aside(20)
    assert budget.used == catalogue.held == 50
    catalogue.grow(10)
    catalogue.shrink(10)
    assert budget.used == 50, "what is given back stays set aside, and was claimed from the beginning"
    with pytest.raises(BudgetError, match="needs 60 B more"):
        catalogue.set_aside(60)
    assert budget.used == 50
