"""Joins of several inputs by windows against nested loops; and each rule is needed.

`HYPOTHESIS_PROFILE=deep` runs 2,000 cases.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conformance.ways import WAYS
from watersmeet.checks import ConformanceError, check_snapshot, run_case
from watersmeet.checks.multi_windows import conform_multi_windows, make_multi_window_case
from watersmeet.checks.oracle.windows import Look, reference_window_combinations
from watersmeet.core.many_windows import ManyWindows
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Stall, Status
from watersmeet.core.spec import Output
from watersmeet.core.windows import Rows
from watersmeet.engine import multi_windows
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.expiry import Expiry
from watersmeet.joins.window.windowed_mjoin import WindowedMJoin
from watersmeet.matching.multi_windows import SettledFilter, WindowClock, WindowFilter
from watersmeet.policies.settling import Settling
from watersmeet.spill.store import MemoryStore

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
CHUNKS = 20 if DEEP else 1
CASES_PER_CHUNK = 100 if DEEP else 60


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_combination_within_the_windows_exactly_once(chunk: int) -> None:
    summary = conform_multi_windows(WindowedMJoin, CASES_PER_CHUNK, chunk * CASES_PER_CHUNK)
    print(summary, summary.kinds)
    assert summary.cases == CASES_PER_CHUNK
    assert summary.spilled > summary.cases / 4, summary
    assert summary.read > summary.cases / 4, summary
    assert summary.restored >= summary.cases // 10, summary
    assert summary.late > summary.cases / 20, summary
    events, kinds = dict(summary.events), dict(summary.kinds)
    assert events["expired rows"] > summary.cases / 4, summary
    assert events["expired runs"] > summary.cases / 10, summary
    assert min(kinds["windows of rows"], kinds["windows of time"]) > summary.cases / 5
    assert events["overtaken"] > summary.cases / 10, summary


@pytest.mark.parametrize("way", WAYS["confluence", "windows of several inputs"])
def test_confluence_finds_every_combination_exactly_once_on_every_way(way: str) -> None:
    taken = WAYS["confluence", "windows of several inputs"][way]
    cases = 2_000 if DEEP else 40
    summary = conform_multi_windows(ManyConfluence, cases, 3_040, **taken.options)
    print(summary, summary.kinds)
    assert summary.spilled > summary.cases / 4, summary
    assert summary.read > summary.cases / 8, summary
    assert summary.restored >= summary.cases // 10, summary
    assert summary.late > summary.cases / 20, summary
    events = dict(summary.events)
    assert events["expired rows"] > summary.cases / 4, summary
    assert events["expired runs"] > summary.cases / 10, summary
    assert events["overtaken"] > summary.cases / 10, summary
    assert taken.proofs <= set(events), summary


@pytest.mark.parametrize("join", [WindowedMJoin, ManyConfluence])
@pytest.mark.parametrize("seed", range(60_000, 60_003))
def test_snapshots_everywhere(seed: int, join: Any) -> None:
    assert check_snapshot(join, make_multi_window_case(seed, join), points=25).restored > 0


# --- many combinations, many of them late: rows are put on disk by hand ---

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})
_SILENCE = 100.0


def run_dense(seed: int) -> Counter[str]:
    """Rows of few keys, many of them late, some in memory and some on disk; an error if results differ."""
    rng = np.random.default_rng([seed, 0xDE5E])
    names = "rsuv"[: int(rng.integers(2, 5))]
    counted = rng.random() < 0.4
    spans = [int(rng.integers(1, 12)) for _ in names]
    windows = (
        ManyWindows(tuple(map(Rows, spans)))
        if counted
        else ManyWindows(tuple(spans), ("t",) * len(names), int(rng.integers(0, 3)))
    )
    silences = np.random.default_rng([seed, 0x1D7E])
    if not counted and silences.random() < 0.5:
        windows = replace(windows, idle=_SILENCE / 2, late=str(silences.choice(["keep", "drop"])))
    on = [f"{a}.k = {b}.k" for a, b in itertools.pairwise(names)]
    spec = MultiSpec.of(dict.fromkeys(names, SCHEMA), on, Output.PAIRS, windows)
    settling = Settling(least_rows=1 << 20) if rng.random() < 0.7 else Settling(least_rows=8, hashes_per_row=99)
    store = MemoryStore()
    join = ManyConfluence(spec, 1 << 20, store, floor=0, fan_in=3, settling=settling)
    rows: list[list[tuple[int, int]]] = [[] for _ in names]
    order, found, now, at = [], Counter[tuple[int, ...]](), 0, 0.0
    looks: list[Look] = []

    def work(until: tuple[Status, ...], some: int = 1 << 30) -> None:
        while some > 0 and (step := join.poll(at, int(rng.choice([3, 1000])))) is not None:
            if step.out is not None:
                found.update(zip(*(column.to_pylist() for column in step.out.columns), strict=True))
            join.check()
            some -= 1
            if step.status in until:
                return

    for _ in range(40):
        number, count = int(rng.integers(len(names))), int(rng.integers(1, 6))
        now += int(rng.integers(0, 3))
        times = now - np.where(rng.random(count) < 0.4, rng.integers(0, 14, count), 0)
        keys = rng.integers(0, 3, count)
        rows[number] += zip(keys.tolist(), times.tolist(), strict=True)
        order += [number] * count
        at += _SILENCE * int(silences.integers(0, 2))
        looks.append((at, [(number, None)] * count))
        join.receive(Arrive(number, pa.record_batch([keys, times], schema=SCHEMA)))
        work((Status.NEED_INPUT, Status.HAS_WORK))
        if rng.random() < 0.3:
            join.receive(Stall())
            work((Status.NEED_INPUT,), some=1 << 30 if rng.random() < 0.7 else 3)
            if not join.owes and join._task is None:
                join.put_away()
                join.check()
        work((Status.NEED_INPUT, Status.HAS_WORK))
    for number in range(len(names)):
        join.receive(End(number))
    work((Status.DONE,))
    tables = [pa.table(list(map(pa.array, zip(*each, strict=True))), schema=SCHEMA) if each else SCHEMA.empty_table()
              for each in rows]  # fmt: skip
    expected = Counter(reference_window_combinations(tables, spec, order, looks))
    if found != expected:
        raise ConformanceError(f"seed {seed}: {found - expected} too many, {expected - found} missing")
    join.events["results"] += found.total()
    join.events["late rows"] += sum(join.timed.late)
    join.close()
    return join.events


def test_late_and_counted_rows_meet_on_disk_what_they_would_have_met_in_memory() -> None:
    seen = Counter[str]()
    for seed in range(400 if DEEP else 30):
        seen += run_dense(seed)
    wanted = {"put away", "merged", "settled in a silence", "expired runs", "expired rows", "late rows", "overtaken"}
    assert wanted <= set(+seen) and seen["results"] > 5_000, seen


# --- mutants: each breaks one rule, and some case must notice ---

expired_before, holds, read = WindowClock.expired_before, WindowFilter.holds, WindowClock.read
settled, expire_rows = Expiry.settled, Expiry._expire_rows


def forgets_too_soon(clock: WindowClock, number: int, own: Any, at: Any = None) -> int:
    return expired_before(clock, number, own, at) + 10


def ignores_windows(windows: WindowFilter, bound: Any, ids: Any, drivers: Any) -> Any:
    return np.ones(ids.shape[1], np.bool_)


def ignores_late_rows(clock: WindowClock, number: int, batch: Any, numbers: Any, newest: int) -> Any:
    return read(clock, number, batch, numbers, -(1 << 62))


def ignores_windows_of_settled_rows(windows: SettledFilter, bound: Any, ids: Any) -> Any:
    return np.ones(ids.shape[1], np.bool_)


def lets_late_rows_meet_everything(windows: SettledFilter, bound: Any, ids: Any, ends: Any) -> Any:
    return np.ones(ids.shape[1], np.bool_)


def asks_the_newest_row_whether_it_was_late(windows: SettledFilter, bound: Any, ids: Any, ends: Any) -> Any:
    """The driver in place of the row that came last."""
    marks = windows._inputs[bound[0]].words(1, ids[0])
    return ends[1:].min(axis=0, initial=1 << 62) >= marks


def forgets_what_is_owed(expiry: Expiry, number: int) -> int:
    """Rows that owe are taken for rows that have met everything: what they owe may go."""
    return expired_before(expiry._windows.clock, number, (number,))


def forgets_who_owes(expiry: Expiry, number: int, before: int, share: int, owes: bool) -> bool:
    """Rows that owe go as soon as nothing to come can meet them."""
    return expire_rows(expiry, number, before, share, False)


def all_have_settled(expiry: Expiry) -> None:
    """Rows that came while others settled are taken for settled."""
    expiry.began = expiry._windows.clock.at
    settled(expiry)


def follows_the_fastest(newest: Any, behind: Any) -> list[int]:
    """A silent input counts as having come as far as anybody."""
    return [max(newest) if is_behind else time for time, is_behind in zip(newest, behind, strict=True)]


def follows_nobody(newest: Any, behind: Any) -> list[int]:
    return list(newest)


MUTANTS: dict[str, tuple[Any, str, Any, list[Any]]] = {
    "forgets too soon": (WindowClock, "expired_before", forgets_too_soon, [WindowedMJoin, ManyConfluence]),
    "ignores windows": (WindowFilter, "holds", ignores_windows, [WindowedMJoin, ManyConfluence]),
    "ignores late rows": (WindowClock, "read", ignores_late_rows, [WindowedMJoin, ManyConfluence]),
    "follows the fastest": (multi_windows, "followed", follows_the_fastest, [ManyConfluence]),
    "follows nobody": (multi_windows, "followed", follows_nobody, [WindowedMJoin, ManyConfluence]),
    "ignores windows of settled rows": (
        SettledFilter, "holds", ignores_windows_of_settled_rows, [ManyConfluence]
    ),
    "lets late rows meet everything": (
        SettledFilter, "_are_in_time", lets_late_rows_meet_everything, [ManyConfluence]
    ),
    "asks the wrong row whether it was late": (
        SettledFilter, "_are_in_time", asks_the_newest_row_whether_it_was_late, [ManyConfluence]
    ),
    "forgets what is owed": (Expiry, "expired_before", forgets_what_is_owed, [ManyConfluence]),
    "forgets who owes": (Expiry, "_expire_rows", forgets_who_owes, [ManyConfluence]),
    "all have settled": (Expiry, "settled", all_have_settled, [ManyConfluence]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mutant", "join"), [(name, join) for name, (_, _, _, joins) in MUTANTS.items() for join in joins]
)
def test_mutant_is_caught(mutant: str, join: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, _ = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError):
        run_all(join, 80)


def run_all(join: Any, cases: int) -> None:
    for seed in range(cases):
        if join is WindowedMJoin:
            run_case(join, make_multi_window_case(seed, join))
        else:
            run_dense(seed)
