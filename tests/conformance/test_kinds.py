"""Every kind of join but inner ones, on every way that rows may take; and each way to lose a mark, tried in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance.ways import MANY_TIGHT, TIGHT, WAYS, Keeps
from watersmeet.checks import ConformanceError, conform, make_kind_case, run_case
from watersmeet.checks.cases import Case
from watersmeet.checks.multi_cases import make_preserving_case
from watersmeet.core.kinds import KINDS
from watersmeet.engine.tracked_arrival import TrackedArrival
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.confluence.alone import Alone
from watersmeet.joins.confluence.flushing import Flushing
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.preserved import Preserved, PreservedArrival
from watersmeet.joins.sharded import Sharded
from watersmeet.matching.matched import Matched, MatchedNumbers
from watersmeet.records import split
from watersmeet.records.plan import RowPlan
from watersmeet.records.split import Splitter
from watersmeet.runs.matched_bits import Filling, MatchedBits
from watersmeet.tables.memtable import Memtable

CASES = 40


class Watched(Confluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        Watched.seen[self.spec.how] += 1
        if self.matched is not None:
            Watched.seen["versions of bits"] += self.matched.bits.written
        super().close()


class Keeper(Watched, Keeps):
    """Some rows stay, whether that pays or not."""


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.seen = Counter()


@pytest.fixture
def _few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has eight rows, and there is room for four."""
    monkeypatch.setattr("watersmeet.runs.matched_bits._LEAST_PAGE", 1)
    monkeypatch.setattr("watersmeet.runs.matched_bits._MOST_PAGE", 1)
    for part in ("confluence.operator", "confluence.catalogue", "multiway.confluence", "multiway.preserved"):
        monkeypatch.setattr(f"watersmeet.joins.{part}.LEAST_BYTES", 4)
    monkeypatch.setattr("watersmeet.joins.confluence.catalogue._BITS_SHARE", 1 << 40)
    monkeypatch.setattr("watersmeet.joins.multiway.preserved._BITS_SHARE", 1 << 40)


@pytest.mark.parametrize("way", [way for way in WAYS["confluence", "kinds"] if way != "staying"])
def test_every_result_exactly_once_on_every_way(way: str) -> None:
    taken = WAYS["confluence", "kinds"][way]
    conform(Watched, cases=CASES, seed=17_000, make=make_kind_case, **taken.options)
    assert taken.proofs | {*KINDS} - {"inner"} <= set(+Watched.seen), Watched.seen


@pytest.mark.usefixtures("_few_bits")
def test_every_result_exactly_once_where_bits_do_not_fit_into_memory() -> None:
    conform(Watched, cases=CASES, seed=18_000, make=make_kind_case, **TIGHT)
    assert Watched.seen["versions of bits"] > CASES and Watched.seen["merged"] > 3, Watched.seen


def test_every_result_exactly_once_where_rows_stay_in_memory() -> None:
    conform(Keeper, cases=CASES, seed=19_000, make=make_kind_case, **TIGHT)
    assert Watched.seen["rows that stayed"] > 15, Watched.seen


@pytest.mark.parametrize("stays", [(False, False), (True, True)], ids=["copied", "shared"])
@pytest.mark.parametrize("shards", [2, 5])
def test_every_result_exactly_once_in_shards(
    shards: int, stays: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_LEAST_SHARED", 1)
    monkeypatch.setattr(RowPlan, "as_they_are", True)
    conform(Sharded, cases=CASES // 2, seed=20_000, make=make_kind_case, shards=shards, stays=stays)


class ManyWatched(ManyConfluence):
    """Adds up what happened in all cases."""

    def close(self) -> None:
        Watched.seen += self.events
        if self.preserved is not None:
            Watched.seen["versions of bits"] += self.preserved.matched.bits.written
        super().close()


@pytest.mark.parametrize("way", WAYS["confluence", "preserving"])
def test_rows_of_one_of_several_inputs_are_preserved_on_every_way(way: str) -> None:
    taken = WAYS["confluence", "preserving"][way]
    conform(ManyWatched, cases=CASES, seed=21_000, make=make_preserving_case, **taken.options)
    assert taken.proofs <= set(+Watched.seen), Watched.seen


@pytest.mark.usefixtures("_few_bits")
def test_rows_of_one_of_several_inputs_are_preserved_where_bits_do_not_fit_into_memory() -> None:
    conform(ManyWatched, cases=CASES, seed=22_000, make=make_preserving_case, **MANY_TIGHT)
    assert Watched.seen["versions of bits"] > CASES // 4, Watched.seen


# --- mutants ---

real_add, real_load, real_bits_load = Filling.add, Matched.load, MatchedBits.load
real_page, real_mark, real_append = MatchedBits._page, Matched.mark, Memtable.append


def written_without(filling: Filling, marked: Any) -> None:
    """A row that is written to disk loses its mark."""
    real_add(filling, marked & False)


def carried_without(bits: MatchedBits, source: Any, rows: int) -> Any:
    """Rows of runs that become one lose their marks."""
    yield np.zeros(rows, np.bool_)


def loaded_without(matched: Matched, state: Any) -> None:
    """A snapshot's marks of rows in memory are forgotten."""


def opened_without(bits: MatchedBits, versions: Any, rows: Any) -> None:
    """A snapshot's marks of rows on disk are forgotten."""
    real_bits_load(bits, dict.fromkeys(versions), rows)


def oldest_version(bits: MatchedBits, of_run: Any) -> None:
    """Bits that have changed since are not written again."""
    if of_run.version is None:
        real_write(bits, of_run)
    bits._changed[:] = False


def every_time(matched: Matched, side: int, source: Any, numbers: Any) -> Any:
    """A row comes again with its second partner."""
    return real_mark(matched, side, source, numbers) | True


def before_all_is_met(alone: Alone, side: int) -> bool:
    """Rows come out alone while others still owe them something."""
    join = alone._join
    rows = join.tables[side].rows or join.debts.runs[side]
    return join.is_last(side) and bool(rows) and join.settlements.begun == [None] * 2


def before_the_end(join: Confluence, side: int) -> bool:
    """Rows come out alone though more may come."""
    return join.spec.kind.preserved[side] and join.exhausted(side)


def stays_without(flushing: Flushing, side: int, stayed: Any) -> None:
    """Rows that stay in memory lose their marks."""
    real_bring_back(flushing, side, stayed._replace(marks=None))


def never_noted(arrival: TrackedArrival) -> None:
    """Rows that can match nothing come out again with the rest of their batch."""
    arrival._nulls = None


def one_page_too_far(bits: MatchedBits, name: str, start: int, most: int) -> Any:
    found, stop = real_unmarked_from(bits, name, start, most)
    return found, stop + (len(found) == most)


real_write, real_bring_back, real_unmarked_from = MatchedBits._write, Flushing.bring_back, MatchedBits.unmarked_from

MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any], type[Any]]] = {
    "a flush loses marks": (Filling, "add", written_without, Confluence),
    "a merge loses bits": (MatchedBits, "_carried", carried_without, Confluence),
    "a snapshot loses marks": (Matched, "load", loaded_without, Confluence),
    "a snapshot loses bits": (MatchedBits, "load", opened_without, Confluence),
    "bits are written once and never again": (MatchedBits, "_write", oldest_version, Confluence),
    "the second partner counts as the first": (Matched, "mark", every_time, Confluence),
    "rows come out before all is met": (Alone, "has_come", before_all_is_met, Confluence),
    "rows come out before the end": (Confluence, "is_last", before_the_end, Confluence),
    "rows that stay lose marks": (Flushing, "bring_back", stays_without, Keeper),
    "rows that match nothing come twice": (TrackedArrival, "_note_nulls", never_noted, Confluence),
    "a row behind a full buffer is passed over": (MatchedBits, "unmarked_from", one_page_too_far, Confluence),
}
WRONG = r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"


@pytest.mark.usefixtures("_few_bits")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, join = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=WRONG):
        run_many(join)


def run_many(join: type[Any]) -> None:
    for seed in range(400):
        run_case(join, make_restored(seed, join), **TIGHT)


def make_restored(seed: int, join: type[Any]) -> Case:
    """A case without a band, every other of which is restored from a snapshot now and then."""
    plain = type(join.__name__, (join,), {"joins_ranges": False})
    if seed % 2:
        return make_kind_case(seed, plain)
    cases = (make_kind_case(each, plain) for each in count(1_000 * seed))
    return next(case for case in cases if case.restores)


def in_no_result(preserved: Preserved, ids: Any) -> None:
    """Nobody is told that a row is in a result."""


def numbers_forgotten(matched: MatchedNumbers, state: Any) -> None:
    """A snapshot's marks are forgotten."""


def before_the_others_end(preserved: Preserved) -> bool:
    """Rows come out alone though they have not met what is on disk."""
    join, number = preserved._join, preserved.number
    return join.is_of_no_use(number) and bool(join.tables[number].rows) and join.settling is None


def nulls_never_noted(arrival: PreservedArrival) -> None:
    """Rows that can match nothing come out again with the rest of their batch."""
    arrival._nulls = None


def passing_are_silent(arrival: PreservedArrival) -> Any:
    """Rows that need not be kept never come out alone."""
    return np.empty(0, np.int64)


MANY_MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "nobody is in a result": (Preserved, "in_results", in_no_result),
    "a snapshot loses marks": (MatchedNumbers, "load", numbers_forgotten),
    "rows come out before all is met": (Preserved, "has_come", before_the_others_end),
    "rows that match nothing come twice": (PreservedArrival, "_note_nulls", nulls_never_noted),
    "rows that pass by are lost": (PreservedArrival, "_ids_of_slice", passing_are_silent),
}


@pytest.mark.usefixtures("_few_bits")
@pytest.mark.parametrize("mutant", MANY_MUTANTS)
def test_mutant_of_several_inputs_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MANY_MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=WRONG):
        conform(ManyConfluence, cases=300, seed=0, make=make_preserving_case, **MANY_TIGHT)


def nulls_left_out(splitter: Splitter, *args: Any) -> None:
    real_splitter(splitter, *args)
    splitter._leaves_out = True


real_splitter = Splitter.__init__


def test_rows_that_match_nothing_lost_between_shards_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Splitter, "__init__", nulls_left_out)
    with pytest.raises(ConformanceError, match=WRONG):
        conform(Sharded, cases=60, seed=0, make=make_kind_case, shards=3)


def test_marks_lost_between_shards_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmarked_at_first(table: Memtable, *args: Any, **options: Any) -> Any:
        """Rows that come take the marks of others with them."""
        if table._marks is not None:
            table._marks.array[: table.rows] = 0
        return real_append(table, *args, **options)

    monkeypatch.setattr(Memtable, "append", unmarked_at_first)
    with pytest.raises(ConformanceError, match=WRONG):
        conform(Sharded, cases=60, seed=0, make=make_kind_case, shards=2)
