"""Every listed join of a stream with a relation goes through the suite of look-ups.

`HYPOTHESIS_PROFILE=deep` runs 2,000 cases of each.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from watersmeet.checks.lookup_cases import make_lookup_case
from watersmeet.checks.lookups import conform_lookup, run_lookup_case
from watersmeet.checks.run import ConformanceError
from watersmeet.engine.lookup_answers import Answers, Unit
from watersmeet.engine.lookup_operator import LookupJoin
from watersmeet.planner import LOOKUPS

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 20 if DEEP else 2
CASES_PER_CHUNK = 100 if DEEP else 20
OPERATORS = sorted(LOOKUPS.values(), key=lambda operator_class: operator_class.name)


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("operator_class", OPERATORS, ids=lambda each: each.name)
def test_every_row_meets_the_relation_as_it_is(operator_class: type[LookupJoin], chunk: int) -> None:
    summary = conform_lookup(operator_class, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK)
    print(summary)
    # The cases are worth something only if they go where it hurts.
    assert summary.read > summary.cases / 2, summary
    assert summary.changed > summary.cases / 6, summary
    assert summary.cut > 0, summary
    assert summary.restored > summary.cases / 8, summary
    assert summary.hits > summary.cases / 8 or operator_class.name != "partitioned", summary


@pytest.mark.parametrize("granularity", ["block", "auto"])
def test_blocks_answer_the_same(granularity: str) -> None:
    conform_lookup(LOOKUPS["partitioned"], 10, 7_000, granularity=granularity, block=3, l_mark=1, h_mark=2)


def _forget_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "alone", lambda self, asked, some: None)


def _trust_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "truly_equal", lambda self, asked, index, probes, rows: None)


def _see_changes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LookupJoin, "_move_on", _only_switch)


def _only_switch(self: Any) -> int:
    """Go to the next version without answering those who waited for the last."""
    self._queue.popleft()
    self._pinned = self._queue[0].pinned
    if self._wait.rows == 0 or self._pinned.version.partitions != self.version.partitions:
        self._set_up()
    return 1


def _repeat_after_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "pending", lambda self: (self.asked, 0))


@pytest.mark.parametrize(
    "break_it",
    [_forget_misses, _trust_hashes, _see_changes_late, _repeat_after_restore],
    ids=lambda each: each.__name__,
)
def test_the_suite_notices(break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(ConformanceError):
        conform_lookup(LOOKUPS["partitioned"], 150)


def test_a_case_is_made_from_its_seed() -> None:
    case = make_lookup_case(11)
    assert run_lookup_case(LOOKUPS["partitioned"], case).steps == run_lookup_case(LOOKUPS["partitioned"], case).steps
