"""Confluence on every way that rows may take to each other, and with each rule of who owes whom broken in turn: for
equalities, and for bands, alone and beside equalities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance.ways import EAGER, LATE, TIGHT, WAYS, Keeps
from watersmeet.checks import ConformanceError, conform, run_case
from watersmeet.checks.suites import make_band, make_equality
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.confluence.flushing import Flushing
from watersmeet.kernels.sort_keys import words_of_keys
from watersmeet.matching import reach
from watersmeet.matching.debts import Debts
from watersmeet.matching.owing import OwingRows, OwingRuns
from watersmeet.matching.reach import BandKeys
from watersmeet.matching.reading import Pages
from watersmeet.matching.settlement import Settlement
from watersmeet.policies.keeping import Staying
from watersmeet.policies.settling import Settling
from watersmeet.records.keys import KeyCodec

CASES = 40


class Watched(Confluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        if self.spec.band is not None and self.spec.equalities:
            Watched.seen += Counter({f"{event}, beside an equality": count for event, count in self.events.items()})
        super().close()


MAKERS = {"equality": make_equality, "bands": make_band}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.seen = Counter()


@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in MAKERS for way in WAYS["confluence", kind] if way != "staying"],
)
def test_every_pair_exactly_once_on_every_way(kind: str, way: str) -> None:
    taken = WAYS["confluence", kind][way]
    conform(Watched, cases=CASES, seed=7_000, make=MAKERS[kind], **taken.options)
    proofs = set(taken.proofs)
    if kind == "bands":
        proofs |= {f"{proof}, beside an equality" for proof in proofs}
    assert proofs <= set(+Watched.seen), Watched.seen


class Keeper(Watched, Keeps):
    """Some rows stay, whether that pays or not."""


@pytest.mark.parametrize("settling", [Settling(), EAGER, LATE], ids=["usual", "eager", "late"])
def test_every_pair_exactly_once_where_rows_stay_in_memory(settling: Settling) -> None:
    conform(Keeper, cases=CASES, seed=11_000, make=make_equality, **TIGHT, settling=settling)
    assert Watched.seen["rows that stayed"] > 30, Watched.seen


@pytest.mark.parametrize(("leap_from", "way"), [(0, "_leap"), (1 << 30, "_scan")])
@pytest.mark.parametrize("kind", MAKERS)
def test_every_pair_exactly_once_whether_runs_are_read_through_or_leapt_over(
    kind: str, leap_from: int, way: str, monkeypatch: pytest.MonkeyPatch
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
    conform(Watched, cases=CASES, seed=9_000, make=MAKERS[kind], **TIGHT)
    # Runs without any row near the slice are read through whatever they cost: they cost nothing.
    assert calls[way] > 100 and calls[f"{way}, on the way"] > 2, calls
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
        conform(Watched, cases=CASES // 2, seed=8_060, make=make_equality, pages=pages, **options)
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


def those_that_stay_owe(flushing: Flushing, side: int, stayed: Any) -> None:
    """Rows that stay in memory settle again."""
    real_bring_back(flushing, side, stayed)
    flushing._join.debts.rows_left(side)


def those_that_stay_leave(staying: Any, hashes: Any, numbers: Any) -> Any:
    """A row that stays is written, too, and one that is not stays out."""
    found = real_stay(staying, hashes, numbers)
    return np.roll(found, 1)


def written_as_settled(flushing: Flushing) -> None:
    """Runs that owe do not say so."""
    real_flush_owing(flushing)
    join = flushing._join
    for side in (0, 1):
        for entry in join.debts.runs[side]:
            entry.owes_before = None
    join.debts.refresh()


repeated: set[int] = set()
real_add_run = Debts.add
real_bring_back, real_stay = Flushing.bring_back, Staying.stay
real_settled, real_flush_owing = Confluence.settled_now, Flushing.flush_owing

WRONG = r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"
MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any], dict[str, Any]]] = {
    "all rows owe all runs": (OwingRows, "threshold", all_owe, {}),
    "no row owes anything": (OwingRows, "threshold", none_owe, {}),
    "a run is owed by rows that were there": (Debts, "add", all_had_left, {}),
    "the first rows after a flush owe nothing": (OwingRows, "threshold", first_rows_owe_nothing, {}),
    "rows that settled settle again": (Confluence, "settled_now", settled_but_one, {}),
    "rows that came meanwhile have settled": (Confluence, "settled_now", all_settled, {}),
    "runs that owe do not say so": (Flushing, "flush_owing", written_as_settled, {"settling": LATE}),
    "runs owe all runs": (OwingRuns, "threshold", all_owe, {"settling": LATE}),
    "runs owe nothing": (OwingRuns, "threshold", none_owe, {"settling": LATE}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("kind", MAKERS)
def test_mutant_is_caught(kind: str, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, options = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=WRONG):
        run_many(kind, options)


def run_many(kind: str, options: dict[str, Any], join: type[Confluence] = Confluence) -> None:
    for seed in range(400):
        repeated.clear()
        run_case(join, MAKERS[kind](seed, join), **TIGHT, **options)


KEEPING_MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "rows that stay settle again": (Flushing, "bring_back", those_that_stay_owe),
    "rows that stay are not those that are left out": (Staying, "stay", those_that_stay_leave),
}


@pytest.mark.parametrize("mutant", KEEPING_MUTANTS)
def test_mutant_of_what_stays_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = KEEPING_MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=WRONG):
        run_many("equality", {}, Keeper)


def low_end_is_left_out(codec: BandKeys, keys: Any) -> tuple[Any, Any]:
    low, high = real_bounds(codec, keys)
    return np.where(low < keys, low + np.uint64(1), low), high


def high_end_is_left_out(codec: BandKeys, keys: Any) -> tuple[Any, Any]:
    low, high = real_bounds(codec, keys)
    return low, np.where(high > keys, high - np.uint64(1), high)


def cells_begin_where_they_end(keys: Any, origin: Any, first: Any, last: Any) -> None:
    words_of_keys(keys, origin, first, last)
    first[:] = last


def cells_end_where_they_begin(keys: Any, origin: Any, first: Any, last: Any) -> None:
    words_of_keys(keys, origin, first, last)
    last[:] = first


def only_equal(codec: BandKeys, left: Any, right: Any) -> Any:
    """Of rows that were found in cells that touch, values are not compared."""
    return KeyCodec.equal(codec, left[:-1], right[:-1]) if codec._coarse else real_equal(codec, left, right)


def all_close(codec: BandKeys, wanted: Any, found: Any) -> Any:
    """Doubles that are close but for rounding are taken for close, where runs are met."""
    return wanted == wanted


def another_origin(join: Confluence, state: dict[str, Any]) -> None:
    """Who goes on from a snapshot tells keys from another origin than those on disk."""
    real_load_own(join, state)
    if isinstance(join.codec, BandKeys):
        join.codec.origin = None


real_bounds, real_equal, real_load_own = BandKeys.bounds, BandKeys.equal, Confluence._load_own

BAND_MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the low end of a range is left out": (BandKeys, "bounds", low_end_is_left_out),
    "the high end of a range is left out": (BandKeys, "bounds", high_end_is_left_out),
    "the low end is rounded up": (reach, "words_of_keys", cells_begin_where_they_end),
    "the high end is rounded down": (reach, "words_of_keys", cells_end_where_they_begin),
    "values in touching cells are close": (BandKeys, "equal", only_equal),
    "doubles are close but for rounding": (BandKeys, "close", all_close),
    "the origin is forgotten": (Confluence, "_load_own", another_origin),
}


@pytest.mark.parametrize("mutant", BAND_MUTANTS)
def test_mutant_of_bands_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = BAND_MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=WRONG):
        run_many("bands", {})
