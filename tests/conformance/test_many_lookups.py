"""One stream in several relations, and several streams in one, go through the suite of look-ups.

`HYPOTHESIS_PROFILE=deep` runs 2,000 cases of each.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from watersmeet.checks.lookups import conform_lookup
from watersmeet.checks.many_lookup_cases import make_chain_case, make_shared_case
from watersmeet.checks.run import ConformanceError
from watersmeet.joins.lookup.chain import LookupChain
from watersmeet.joins.lookup.shared import SharedLookup, _Member
from watersmeet.planner import LOOKUPS

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 10 if DEEP else 1
CASES_PER_CHUNK = 200 if DEEP else 30
MAKERS = {LookupChain: make_chain_case, SharedLookup: make_shared_case}


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("operator_class", MAKERS, ids=lambda each: each.name)
def test_every_row_meets_every_relation_as_it_is(operator_class: type[Any], chunk: int) -> None:
    summary = conform_lookup(operator_class, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK, MAKERS[operator_class])
    print(summary)
    assert summary.read > summary.cases / 2, summary
    assert summary.changed > summary.cases / 4, summary
    assert summary.cut > 0, summary
    assert summary.restored > summary.cases / 8, summary
    assert summary.hits > summary.cases / 8, summary


@pytest.mark.parametrize("kind", ["meshjoin", "index_nested_loop"])
def test_chains_of_other_look_ups(kind: str) -> None:
    conform_lookup(LookupChain, 200 if DEEP else 6, 5_000, make_chain_case, kind=LOOKUPS[kind])


def _do_not_wait_for_those_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LookupChain, "_on_their_way", lambda self: None)


def _go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer rows of a new version while others still have rows of the old one."""

    def settled(self: Any, changed: Any) -> bool:
        self.go_on(changed)
        return True

    monkeypatch.setattr(_Member, "_settled", settled)


@pytest.mark.parametrize(
    "operator_class, break_it",
    [(LookupChain, _do_not_wait_for_those_on_their_way), (SharedLookup, _go_on_alone)],
    ids=["chain", "shared"],
)
def test_the_suite_notices(operator_class: type[Any], break_it: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(ConformanceError):
        conform_lookup(operator_class, 60, 0, MAKERS[operator_class])
