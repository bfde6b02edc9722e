"""The join that relies on promises goes through a suite of its own; and each of its rules is needed.

`HYPOTHESIS_PROFILE=deep` runs 2,000 cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from watersmeet.checks import ConformanceError
from watersmeet.checks.promised import check_broken_promise, conform_to_promises, run_promised
from watersmeet.checks.promised_cases import make_promised_case
from watersmeet.joins.progressive.disk_visits import Visits
from watersmeet.joins.progressive.knowledge import Knowledge
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.joins.progressive.promised_arrival import Turns
from watersmeet.joins.progressive.promised_rows import PromisedRows
from watersmeet.records.punctuated import WordRange

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 20 if DEEP else 1
CASES_PER_CHUNK = 100 if DEEP else 40


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_pair_exactly_once_and_no_row_kept_in_vain(chunk: int) -> None:
    summary = conform_to_promises(MetadataMJoin, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK)
    print(summary)
    assert summary.cases == CASES_PER_CHUNK
    assert summary.spilled > summary.cases / 3, summary
    assert summary.reactive > summary.cases / 10, summary
    assert summary.cleaned_up > summary.cases / 5, summary
    assert summary.purged > summary.cases / 3, summary
    assert summary.dropped > summary.cases / 5, summary
    assert summary.handed_on > summary.cases / 5, summary
    assert summary.looks > summary.cases / 4, summary
    assert summary.broken > summary.cases / 10, summary


def test_runs_that_go_to_disk_have_their_memory_whatever_is_remembered_of_their_keys() -> None:
    assert conform_to_promises(MetadataMJoin, 1, 510_484).broken


@pytest.mark.parametrize("seed", range(90_000, 90_200 if DEEP else 90_010))
def test_a_broken_promise_is_noticed(seed: int) -> None:
    check_broken_promise(MetadataMJoin, seed)


# --- mutants: each breaks one rule, and some case must notice ---


def covers_too_much(range_: WordRange, hashes: Any, keys: Any) -> Any:
    """Keys next to a promised one count as promised."""
    if not range_.entries:
        return np.zeros(len(hashes), np.bool_)
    ranks = range_._codec.ranks_of_hashes(hashes)
    at = np.searchsorted(range_._lows, ranks, side="right") - 1
    return (at >= 0) & (ranks <= range_._highs[at] + 1)


def drops_what_may_have_partners_on_disk(visits: Visits, side: int, parts: Any, ticks: Any) -> Any:
    return np.ones(len(parts), np.bool_)


def purges_nothing(state: PromisedRows, side: int, rows: Any) -> None:
    """Rows that promises make useless stay."""


def keeps_all(state: PromisedRows, side: int, hashes: Any, parts: Any, keys: Any) -> Any:
    return np.ones(len(hashes), np.bool_)


def closes_the_open_cluster(known: Knowledge, hashes: Any, keys: Any) -> None:
    if len(hashes) and known.clustered:
        known._over(hashes[-1:], lambda: [key.slice(len(key) - 1) for key in keys()])
    learn(known, hashes, keys)


def hands_on_at_once(join: MetadataMJoin, side: int, hashes: Any, keys: Any) -> Any:
    return np.ones(len(hashes), np.bool_)


def heeds_before_the_rows(turns: Turns, side: int) -> int:
    """A punctuation counts for rows that came before it."""
    return 0 if turns.marks[side] else ahead(turns, side)


def forgets_partners(state: PromisedRows, side: int, hashes: Any, parts: Any, keys: Any) -> None:
    """Rows of the many side stay when their one partner comes."""
    state._join.known[side].learn(hashes, keys)
    state.promises_made(side)


learn, ahead = Knowledge.learn, Turns._ahead

MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "covers too much": (WordRange, "contains", covers_too_much),
    "drops what may have partners on disk": (Visits, "met_all", drops_what_may_have_partners_on_disk),
    "purges nothing": (PromisedRows, "_take_out", purges_nothing),
    "keeps all": (PromisedRows, "to_be_kept", keeps_all),
    "closes the open cluster": (Knowledge, "learn", closes_the_open_cluster),
    "hands on at once": (MetadataMJoin, "is_over", hands_on_at_once),
    "heeds before the rows": (Turns, "_ahead", heeds_before_the_rows),
    "forgets partners": (PromisedRows, "met_memory", forgets_partners),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError):
        run_all(60)


def run_all(cases: int) -> None:
    for seed in range(cases):
        run_promised(MetadataMJoin, make_promised_case(seed, MetadataMJoin), optimize="memory")
