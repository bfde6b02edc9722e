"""Confluence on every way that rows may take to each other, and with each rule of who owes whom broken in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from watersmeet.checks import ConformanceError, conform, make_case, run_case
from watersmeet.joins.confluence import Confluence
from watersmeet.matching.debts import Debts
from watersmeet.matching.reading import Pages
from watersmeet.matching.settlement import OwingRows, OwingRuns, Settlement
from watersmeet.policies.settling import Settling

CASES = 100
EAGER = Settling(least_rows=1, hashes_per_row=1 << 20)
"""Rows settle after every slice that arrives."""
LATE = Settling(passes_saved=0, most_runs=3)
"""Rows are written before they have settled, as long as few runs owe."""
PROMPT = 0.004
"""Seconds of the clock that the cases run by, a millisecond a poll."""


class Watched(Confluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        super().close()


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.seen = Counter()


TIGHT = {"floor": 0, "fan_in": 3}
"""Buffers that are within the budget, small as it is here, and runs that are merged soon."""


@pytest.mark.parametrize(
    ("options", "proofs"),
    [
        ({}, {"settled before a flush", "settled in a silence", "settled in idle time", "settled at the end"}),
        (TIGHT, {"settled before a flush", "settled in a silence", "settled at the end", "flushed", "merged"}),
        (TIGHT | {"settling": EAGER}, {"settled in passing", "flushed", "merged"}),
        (TIGHT | {"settling": LATE}, {"flushed owing", "runs settled", "settled before a flush", "merged"}),
        (TIGHT | {"delay": PROMPT}, {"settled in passing", "settled in a silence", "flushed"}),
    ],
    ids=["usual", "tight", "eager", "late", "delay"],
)
def test_every_pair_exactly_once_on_every_way(options: dict[str, Any], proofs: set[str]) -> None:
    conform(Watched, cases=CASES, seed=7_000, **options)
    assert proofs <= set(+Watched.seen), Watched.seen


@pytest.mark.parametrize(("leap_from", "way"), [(0, "_leap"), (1 << 30, "_scan")])
def test_every_pair_exactly_once_whether_runs_are_read_through_or_leapt_over(
    leap_from: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    ways = {"_leap": Settlement._leap, "_scan": Settlement._scan}
    for name in ways:

        def counted(self: Settlement, *args: Any, name: str = name) -> int:
            before = self._at, self._next, self._link
            used = ways[name](self, *args)
            calls[name] += 1
            calls[f"{name}, on the way"] += self._at < len(self._entries) and before != (
                self._at,
                self._next,
                self._link,
            )
            return used

        monkeypatch.setattr(Settlement, name, counted)
    monkeypatch.setattr("watersmeet.matching.settlement._LEAP_FROM", leap_from)
    conform(Watched, cases=CASES, seed=9_000, **TIGHT)
    # Runs without any row near the slice are read through whatever they cost: they cost nothing.
    assert calls[way] > 100 and calls[f"{way}, on the way"] > 10, calls
    assert calls["_leap"] == 0 or way == "_leap"


def test_every_pair_exactly_once_where_all_rows_meet_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    met: Counter[str] = Counter()
    meet = Settlement._meet_crowd

    def counted(self: Settlement, crowd: int, pairs: Any) -> int:
        met["again" if self._link > 0 else "first"] += 1
        return meet(self, crowd, pairs)

    monkeypatch.setattr("watersmeet.matching.settlement._MANY_EQUAL", 1)
    monkeypatch.setattr(Settlement, "_meet_crowd", counted)
    pages = Pages(hashes=16, rows=4)
    for options in (TIGHT, TIGHT | {"settling": LATE}):
        conform(Watched, cases=CASES, seed=8_000, pages=pages, **options)
    assert met["first"] > 0 and met["again"] > 0, "a buffer was full in the midst of it"


def all_owe(debtor: Any, entry: Any) -> int:
    """Rows meet a run on disk that they have met in memory."""
    return -1


def none_owe(debtor: Any, entry: Any) -> int:
    return 1 << 60


def all_had_left(debts: Debts, side: int, entry: Any) -> None:
    """A run is owed by rows that were in memory with it, too."""
    entry.since = 0
    real_add_run(debts, side, entry)


def first_rows_owe_nothing(debtor: Any, entry: Any) -> int:
    """The first rows that come after a flush are taken for rows that were there."""
    return int(entry.since) + 1


def settled_but_one(join: Confluence, settlement: Any) -> None:
    """The first row to settle settles again with the next."""
    real_settled(join, settlement)
    rows = join.tables[settlement.side].rows
    if isinstance(settlement.debtor, OwingRows) and settlement.side not in repeated:
        repeated.add(settlement.side)
        join.debts.settled[settlement.side] = min(rows, settlement.debtor.to_state()["low"])


def all_settled(join: Confluence, settlement: Any) -> None:
    """Rows that came while others settled are taken for settled."""
    real_settled(join, settlement)
    join.debts.settled[settlement.side] = join.tables[settlement.side].rows


def written_as_settled(join: Confluence) -> None:
    """Runs that owe do not say so."""
    real_flush_owing(join)
    for side in (0, 1):
        for entry in join.debts.runs[side]:
            entry.owes_before = None
    join.debts.refresh()


repeated: set[int] = set()
real_add_run = Debts.add
real_settled, real_flush_owing = Confluence.settled_now, Confluence._flush_owing

MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any], dict[str, Any]]] = {
    "all rows owe all runs": (OwingRows, "threshold", all_owe, {}),
    "no row owes anything": (OwingRows, "threshold", none_owe, {}),
    "a run is owed by rows that were there": (Debts, "add", all_had_left, {}),
    "the first rows after a flush owe nothing": (OwingRows, "threshold", first_rows_owe_nothing, {}),
    "rows that settled settle again": (Confluence, "settled_now", settled_but_one, {}),
    "rows that came meanwhile have settled": (Confluence, "settled_now", all_settled, {}),
    "runs that owe do not say so": (Confluence, "_flush_owing", written_as_settled, {"settling": LATE}),
    "runs owe all runs": (OwingRuns, "threshold", all_owe, {"settling": LATE}),
    "runs owe nothing": (OwingRuns, "threshold", none_owe, {"settling": LATE}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, options = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        run_many(options)


def run_many(options: dict[str, Any]) -> None:
    for seed in range(400):
        repeated.clear()
        run_case(Confluence, make_case(seed, Confluence), **TIGHT, **options)
