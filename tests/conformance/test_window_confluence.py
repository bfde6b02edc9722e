"""Confluence for windows on every way that rows may take to each other, and with each of its rules broken in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from conformance.ways import BUSY, LATE_AND_BUSY, TIGHT, WAYS
from watersmeet.checks import ConformanceError, run_case
from watersmeet.checks.run import MOST_POLLS
from watersmeet.checks.windows import conform_windows, make_window_case
from watersmeet.core.protocol import Arrive, End, Status
from watersmeet.core.spec import parse_on
from watersmeet.core.windows import TimeSpan, WindowJoinSpec, parse_windows
from watersmeet.engine.silence import Silence
from watersmeet.engine.windows import ALWAYS
from watersmeet.joins.window.confluence import WindowConfluence
from watersmeet.matching.debts import WindowDebts
from watersmeet.matching.owing import OwingRows
from watersmeet.records.times import Timing
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.memtables import WindowMemtable

CASES = 40


class Watched(WindowConfluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        super().close()


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.seen = Counter()


@pytest.mark.parametrize("way", WAYS["confluence", "windows"])
def test_every_pair_exactly_once_on_every_way(way: str) -> None:
    taken = WAYS["confluence", "windows"][way]
    conform_windows(Watched, cases=CASES, seed=7_000, **taken.options)
    assert taken.proofs <= set(+Watched.seen), Watched.seen


def test_runs_that_owe_settle_together_and_expire() -> None:
    """Memory is so small beside the windows that rows are written before they have settled."""
    count, window = 6_000, 1_500
    rng = np.random.default_rng(11)
    keys, times = rng.integers(0, 60, (2, count)), np.sort(rng.integers(0, count, (2, count)))
    schema = pa.schema({"k": pa.int64(), "t": pa.int64(), "n": pa.int64()})
    spec = WindowJoinSpec(schema, schema, parse_on("k"), window=parse_windows(window, "t"))
    join = Watched(spec, Watched.least_memory(spec), MemoryStore(), settling=LATE_AND_BUSY, **TIGHT)
    found: Counter[tuple[int, int]] = Counter()

    def work_off() -> None:
        while True:
            step = join.poll(0.0, 500)
            join.check()
            if step.out is not None:
                found.update(zip(step.out["n"].to_pylist(), step.out["n_right"].to_pylist(), strict=True))
            if step.status is not Status.HAS_OUTPUT:
                return

    for start in range(0, count, 150):
        some = slice(start, start + 150)
        for side in (0, 1):
            columns = [pa.array(keys[side][some]), pa.array(times[side][some]), pa.array(range(start, start + 150))]
            join.receive(Arrive(side, pa.record_batch(columns, schema=schema)))
            work_off()
    for side in (0, 1):
        join.receive(End(side))
    work_off()
    meet = (keys[0][:, None] == keys[1]) & (np.abs(times[0][:, None] - times[1]) <= window)
    assert found == Counter(zip(*(places.tolist() for places in np.nonzero(meet)), strict=True))
    assert join.events["flushed owing"] > 3 and join.events["runs settled"] > 3 and join.events["expired runs"] > 3


def test_put_away_rows_are_met_all_the_same() -> None:
    """Rows that are written after every batch, as on Spark, are found by those that come later."""

    class PutAway(Watched):
        def arrival_done(self) -> None:
            super().arrival_done()
            self._put_away_next = True

        def poll(self, now: float, fuel: int) -> Any:
            step = super().poll(now, fuel)
            if step.status.name == "NEED_INPUT" and self._task is None and getattr(self, "_put_away_next", False):
                self._put_away_next = False
                before = self.cost
                self.put_away()
                return replace(step, cost=step.cost + (self.cost - before))
            return step

    for seed in range(8_000, 8_000 + CASES):
        run_case(PutAway, make_window_case(seed, PutAway), **TIGHT)
    assert Watched.seen["put away"] > CASES
    assert Watched.seen["expired runs"] > 0 and Watched.seen["merged"] > 0


def nothing_owed_before(debtor: Any, entry: Any) -> int:
    """The first rows that come after a flush are taken for rows that were there."""
    return real_threshold(debtor, entry) + 2


def all_owe(debtor: Any, entry: Any) -> int:
    """Rows meet a run on disk that they have met in memory."""
    return -1


def expired_early(timing: Timing, side: int, newest: int, count: int) -> int:
    return real_expired(timing, side, newest, count) + 1


def expired_while_owed(debts: WindowDebts, side: int, before: int, may_go: Any) -> Any:
    """Runs go that rows still owe."""
    gone = [entry for entry in debts.runs[side] if entry.span.latest < before and entry.owes_before is None]
    debts.runs[side][:] = [entry for entry in debts.runs[side] if entry not in gone]
    debts.refresh()
    return gone


def ends_too_early(table: WindowMemtable, number: int) -> TimeSpan:
    """A run's span is one short at its end."""
    reach = real_span(table, number)
    return reach if reach.is_empty else replace(reach, latest=reach.latest - 1)


def begins_too_late(table: WindowMemtable, number: int) -> TimeSpan:
    """A run's span is one short at its beginning."""
    reach = real_span(table, number)
    return reach if reach.is_empty else replace(reach, earliest=reach.earliest + 1)


def any_row_may_expire(table: WindowMemtable, before: int, most: int) -> int:
    """Rows go from memory that have yet to settle."""
    return real_let_expire(table, before, table.rows)


def floors_too_high(table: WindowMemtable, first: int) -> TimeSpan:
    """Rows that owe are taken to look less far back than they do."""
    span = real_span(table, first)
    return span if span.is_empty else replace(span, floor=span.latest)


def numbers_stay(debts: WindowDebts, side: int, count: int) -> None:
    """The first rows of a memtable go, and the others are still known by their old numbers."""
    debts.settled[side] = min(debts.settled[side], debts._tables[side].rows)
    for entry in debts.runs[1 - side]:
        entry.since = min(entry.since, debts._tables[side].rows)
    debts.refresh()


def still_overtaken(silence: Silence, now: float, speaks: Any) -> list[bool]:
    """An input that has spoken goes on following the other."""
    before = list(silence.overtaken)
    found = real_listen(silence, now, speaks)
    overtaken = [was or each for was, each in zip(before, silence.overtaken, strict=True)]
    if not all(overtaken):  # somebody must be followed
        silence.overtaken = overtaken
    return found


def never_overtaken(silence: Silence, now: float, speaks: Any) -> list[bool]:
    """A silent input holds back the other for ever."""
    return [False, False]


def overtaken_at_once(silence: Silence, now: float, speaks: Any) -> list[bool]:
    """An input follows the other before it has been silent for long enough."""
    silence._idle = 0.0
    return real_listen(silence, now, speaks)


def final_too_early(join: WindowConfluence) -> int:
    """The input that is ahead tells which results are final."""
    marks = [join.timed.timing.late_before(join.timed.newest[side]) for side in (0, 1) if not join.exhausted(side)]
    return max(marks, default=ALWAYS)


def final_though_owed(join: WindowConfluence) -> int:
    """Results go out though rows that owe may yet find earlier ones."""
    marks = [join.timed.timing.late_before(join.timed.newest[side]) for side in (0, 1) if not join.exhausted(side)]
    return min(marks, default=ALWAYS)


def looks_less_far(timing: Timing, side: int, times: Any) -> Any:
    return real_meets(timing, side, times) - 1


OUT_OF_ORDER: dict[str, Callable[[WindowConfluence], int]] = {
    "the input that is ahead closes windows": final_too_early,
    "windows close though rows owe": final_though_owed,
}


@pytest.mark.parametrize("mutant", OUT_OF_ORDER)
def test_results_that_come_too_early_are_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowConfluence, "final_before", property(OUT_OF_ORDER[mutant]))
    with pytest.raises(ConformanceError, match=r"a result of time -?[0-9]+ comes after one of time -?[0-9]+"):
        run_many()


real_listen, real_meets = Silence.listen, Timing.meets
real_threshold, real_expired = OwingRows.threshold, Timing.expired_before
real_span, real_let_expire = WindowMemtable.span_from, WindowMemtable.let_expire

MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "rows owe runs that they met in memory": (OwingRows, "threshold", all_owe),
    "the first rows after a flush owe nothing": (OwingRows, "threshold", nothing_owed_before),
    "expired one tick too early": (Timing, "expired_before", expired_early),
    "runs expire that are owed": (WindowDebts, "drop_expired", expired_while_owed),
    "a run's span ends too early": (WindowMemtable, "span_from", ends_too_early),
    "a run's span begins too late": (WindowMemtable, "span_from", begins_too_late),
    "rows that owe look less far back": (WindowMemtable, "span_from", floors_too_high),
    "numbers of rows stay when the first are gone": (WindowDebts, "rows_dropped", numbers_stay),
    "rows expire that owe": (WindowMemtable, "let_expire", any_row_may_expire),
    "an input stays out of the watermark after it spoke": (Silence, "listen", still_overtaken),
    "a silent input is waited for": (Silence, "listen", never_overtaken),
    "an input is overtaken before its time": (Silence, "listen", overtaken_at_once),
    "rows look less far ahead": (Timing, "meets", looks_less_far),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        run_many()


def run_many() -> None:
    # In some of the first ones many rows go while others of their memtable owe.
    for seed in (*range(440, 450), *range(150)):
        run_case(WindowConfluence, make_window_case(seed, WindowConfluence), **TIGHT, settling=BUSY)


@pytest.mark.parametrize("seed", [100_589, 100_975])
def test_what_an_arrival_settles_is_told_before_more_rows_are_asked_for(seed: int) -> None:
    """A little fuel ends an arrival and nothing else: what it made final, or settled, is still to be handed out."""
    case = make_window_case(seed, WindowConfluence)
    assert case.spec.window.emit == "final" or case.spec.how == "left"
    run_case(WindowConfluence, case)


def test_a_memtable_with_as_many_rows_as_were_sorted_before_is_sorted_anew() -> None:
    """Some of its first rows have expired since, and as many others have come."""
    run_case(WindowConfluence, make_window_case(100_742, WindowConfluence))


def test_what_inputs_tell_between_rows_counts_before_more_rows_are_asked_for() -> None:
    """A little fuel ends an arrival and leaves the promise behind it: an input that was overtaken is behind it, too."""
    case = make_window_case(101_615, WindowConfluence)
    assert case.spec.window.idle is not None and case.spec.window.late == "keep"
    run_case(WindowConfluence, case)


def test_results_so_wide_that_each_comes_alone_may_take_more_polls_than_other_cases() -> None:
    """Thousands of pairs of rows of kilobytes, in the least memory: one at a time is all that fits beside the rest."""
    options = TIGHT | {"settling": BUSY}
    report = run_case(WindowConfluence, make_window_case(932_092, WindowConfluence, **options), **options)
    assert report.polls > MOST_POLLS and report.results > MOST_POLLS and report.spilled
