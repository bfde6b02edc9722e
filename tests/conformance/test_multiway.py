"""Every operator of several inputs goes through the suite; and the rules that keep duplicates out are all needed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, check_snapshot, conform, make_multi_case, run_case
from watersmeet.checks.run import MOST_SPILLED
from watersmeet.joins.multiway.block_loop import BlockLoop
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.miner import Miner
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.joins.multiway.tree import JoinTree
from watersmeet.matching import ledger as visits
from watersmeet.planner import MULTIWAY
from watersmeet.runs.presence import FOREVER
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.store import MemoryStore

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = {ManyConfluence: 2}
CASES_PER_CHUNK = 100 if DEEP else 60
OPERATORS = sorted(MULTIWAY.values(), key=lambda operator_class: str(operator_class.name))


@pytest.mark.parametrize(
    ("operator_class", "chunk"),
    [(each, chunk) for each in OPERATORS for chunk in range(20 if DEEP else CHUNKS.get(each, 1))],
    ids=lambda each: getattr(each, "name", each),
)
def test_every_combination_exactly_once(operator_class: type[Any], chunk: int) -> None:
    summary = conform(operator_class, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK, make_multi_case)
    print(summary, summary.kinds)
    assert summary.cases == CASES_PER_CHUNK
    # A tree needs more memory to begin with, and so spills less of the same rows; Confluence leaves less to the end.
    often = 2 if operator_class in (JoinTree, ManyConfluence) else 1
    assert summary.spilled > summary.cases / 2 / often, summary
    assert summary.reactive >= summary.cases / 10 / often, summary
    # It also works in idle time, and leaves even less.
    assert summary.cleaned_up > summary.cases / 4 / (4 if operator_class is ManyConfluence else often), summary
    assert summary.restored >= summary.cases // 10
    assert summary.asked_for_more <= summary.cases / 50, summary
    shapes = dict(summary.kinds)
    assert all(shapes[shape] > summary.cases / 20 for shape in ("one attribute", "chain", "star", "tree", "cycle"))
    assert (shapes.get("bands", 0) > summary.cases / 10) == (operator_class is Miner)


@pytest.mark.parametrize("seed", range(60_000, 60_003))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=lambda each: each.name)
def test_snapshots_everywhere(operator_class: type[Any], seed: int) -> None:
    assert check_snapshot(operator_class, make_multi_case(seed, operator_class), points=25).restored > 0


@pytest.mark.parametrize("seed", range(80_000, 80_003))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=lambda each: each.name)
def test_on_a_real_disk(operator_class: type[Any], seed: int, tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        case = replace(make_multi_case(seed, operator_class), restores=(3, 20, 40))
        assert run_case(operator_class, case, store).restored > 0


@pytest.mark.parametrize("flush", ["largest", "random"])
def test_any_flush_policy(flush: str) -> None:
    assert conform(MJoin, 20, 7_000, make_multi_case, flush=flush).spilled > 10


def fails_somewhere(operator_class: type[Any] = MJoin, words: str = "") -> bool:
    for seed in range(400):
        try:
            run_case(operator_class, make_multi_case(seed, operator_class))
        except ConformanceError as error:
            return words in str(error)
    return False


def test_blocks_of_wide_rows_leave_memory_for_rows() -> None:
    summary = run_case(Miner, make_multi_case(900496, Miner))
    assert summary.spilled and summary.results == 18, "what remembers the blocks left no memory for a row before"


@pytest.mark.parametrize("operator_class", [Miner, MJoin], ids=lambda each: each.name)
def test_without_the_rule_of_common_ticks_results_repeat(
    operator_class: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visits, "met_in_memory", lambda arrived, departed, met: None)
    assert fails_somewhere(operator_class, "lost 0 and invented or repeated")


def test_rows_that_met_pair_by_pair_need_not_have_met_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def neighbours_met(arrived: Any, departed: Any, met: Any) -> None:
        met[:] = (arrived[:-1] < departed[1:]).all(axis=0) & (arrived[1:] < departed[:-1]).all(axis=0)

    monkeypatch.setattr(visits, "met_in_memory", neighbours_met)
    assert fails_somewhere(Miner, "invented or repeated 0")


def test_a_loop_that_counts_inner_blocks_that_came_later_loses_results(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = BlockLoop.choose_roles

    def all_inner_blocks(loop: BlockLoop) -> None:
        choose(loop)
        if not loop.loaded:
            loop.joined = [
                rows if number == loop.outer else disk.rows
                for number, (rows, disk) in enumerate(zip(loop.joined, loop._disks, strict=True))
            ]

    monkeypatch.setattr(BlockLoop, "choose_roles", all_inner_blocks)
    assert fails_somewhere(Miner), "the loop's own check finds it"
    monkeypatch.setattr(BlockLoop, "check", lambda loop: None)
    assert fails_somewhere(Miner, "invented or repeated 0"), "and so do the results"


def two_together(arrived: Any, departed: Any) -> Any:
    """It is enough that the first two of the rows were in memory at one tick."""
    return real_together(arrived[:2], departed[:2])


def together_if_the_first_came_last(arrived: Any, departed: Any) -> Any:
    """The others may come when the first has left."""
    return (arrived[0] < departed).all(axis=0)


def never_visited(visits: Any, number: int, *stays: Any) -> Any:
    return stays[-1]


def visited_though_others_came_later(visits: Any, number: int, *stays: Any) -> Any:
    arrived, *rest = stays
    return real_visited(visits, number, np.zeros_like(arrived), *rest)


def visited_though_others_had_left(visits: Any, number: int, *stays: Any) -> Any:
    arrived, departed, *rest = stays
    return real_visited(visits, number, arrived, np.full_like(departed, FOREVER), *rest)


def visited_by_the_whole_disk(visits: Any, number: int, *stays: Any) -> Any:
    """Rows that came to the disk after a visit count as brought by it."""
    everything = visits.copy()
    everything[:, 1], everything[:, 2] = 0, FOREVER
    return real_visited(everything, number, *stays)


real_together, real_visited = visits.together, visits.visited


@pytest.mark.parametrize(
    ("operator_class", "rule", "broken"),
    [
        (MJoin, "together", two_together),
        (MJoin, "together", together_if_the_first_came_last),
        (Miner, "together", two_together),
        (MJoin, "visited", never_visited),
        (MJoin, "visited", visited_though_others_came_later),
        (MJoin, "visited", visited_though_others_had_left),
        (MJoin, "visited", visited_by_the_whole_disk),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_broken_rule_of_who_has_met_is_noticed(
    operator_class: type[Any], rule: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visits, rule, broken)
    assert fails_somewhere(operator_class)


def test_a_visit_that_claims_too_much_loses_results(monkeypatch: pytest.MonkeyPatch) -> None:
    record = visits.VisitLedger.record

    def too_much(ledger: visits.VisitLedger, number: int, tick: int, low: int, high: int) -> None:
        record(ledger, number, tick, low, high + 5)

    monkeypatch.setattr(visits.VisitLedger, "record", too_much)
    monkeypatch.setattr(visits.VisitLedger, "check", lambda *arguments: None)
    assert fails_somewhere()


def test_without_closing_edges_cycles_give_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    from watersmeet.policies.probing import ProbingOrder

    of = ProbingOrder.of
    monkeypatch.setattr(ProbingOrder, "of", lambda order, driver: [replace(s, closing=()) for s in of(order, driver)])
    assert fails_somewhere()


def test_the_cases_have_all_sizes() -> None:
    sizes = {make_multi_case(seed, MJoin).inputs for seed in range(60)}
    assert sizes == {2, 3, 4, 5, 6}
    assert np.mean([len(make_multi_case(seed, MJoin).pairs) > 0 for seed in range(60)]) > 0.5


@pytest.mark.skipif(not DEEP, reason="it spills 24 MB in pages of some kilobytes")
def test_a_tree_whose_intermediate_results_are_dozens_of_times_its_memory_asks_for_more_and_then_finds_all() -> None:
    case = make_multi_case(510_191, JoinTree)
    with MemoryStore() as store, pytest.raises(ConformanceError, match="to remember what was spilled"):
        run_case(JoinTree, case, store)
    assert store.bytes_written > MOST_SPILLED * case.memory
    report = run_case(JoinTree, case)
    assert report.spilled
    assert report.asked_for_more
