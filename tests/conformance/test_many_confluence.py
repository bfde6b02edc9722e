"""Confluence of several inputs on every way that rows may take to each other, and with each of its rules broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from conformance.ways import LATE, TINY, WAYS
from watersmeet.checks import ConformanceError, conform, make_multi_case, run_case
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.flushing import Flushing
from watersmeet.joins.multiway.many_settlement import ManySettlement
from watersmeet.matching import many_rows
from watersmeet.matching.many_rows import Mixed, SettlingRows
from watersmeet.runs.run_set import RunSet

CASES = 40


class Watched(ManyConfluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        super().close()

    def settled_now(self, settlement: ManySettlement) -> None:
        owing = {each.epoch for disk in self.disks for each in disk.sets if each.owes}
        Watched.seen["settled several epochs"] += len(owing) > 1
        Watched.seen["settled while rows came"] += any(
            table.rows > high for table, high in zip(self.tables, settlement.highs, strict=True)
        )
        super().settled_now(settlement)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.seen = Counter()


ALSO = {"usual": {"settled while rows came"}, "tiny": {"settled while rows came"}, "late": {"settled several epochs"}}


@pytest.mark.parametrize("way", WAYS["confluence", "several inputs"])
def test_every_combination_exactly_once_on_every_way(way: str) -> None:
    taken = WAYS["confluence", "several inputs"][way]
    conform(Watched, CASES, 7_000, make_multi_case, **taken.options)
    assert taken.proofs | ALSO.get(way, set()) <= set(+Watched.seen), Watched.seen


@pytest.mark.parametrize(("leap_from", "way"), [(-1, "_leap"), (1 << 30, "_scan")])
def test_every_combination_exactly_once_whether_runs_are_read_through_or_leapt_over(
    leap_from: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    read = getattr(SettlingRows, way)

    def counted(rows: SettlingRows, known: Any, attribute: int, probe: Any, *rest: Any) -> Any:
        calls["on the way"] += probe.link >= 0
        calls["in all"] += 1
        return read(rows, known, attribute, probe, *rest)

    monkeypatch.setattr(many_rows, "_LEAP_FROM", leap_from)
    monkeypatch.setattr(SettlingRows, way, counted)
    monkeypatch.setattr(SettlingRows, "_scan" if way == "_leap" else "_leap", None)
    conform(ManyConfluence, CASES // 2, 7_000, make_multi_case, **TINY)
    assert calls["on the way"] > 0, calls


def settles_again(join: ManyConfluence, settlement: ManySettlement) -> None:
    """Rows that have settled in memory owe again, once."""
    real_settled(join, settlement)
    if any(settlement.highs) and not join.events["settled again"]:
        join.events["settled again"] += 1
        join.settled = list(settlement.lows)


def came_meanwhile(join: ManyConfluence, settlement: ManySettlement) -> None:
    """Rows that came while others settled are taken for settled."""
    real_settled(join, settlement)
    join.settled = [table.rows for table in join.tables]


def written_as_settled(flushing: Flushing) -> None:
    """Runs that owe do not say so."""
    real_flush(flushing)
    for disk in flushing._join.disks:
        disk.settle()
    flushing.owing_on_disk = 0


def written_in_one_epoch(flushing: Flushing) -> None:
    """Rows of two memory-fulls are taken for rows that were in memory together."""
    real_flush(flushing)
    for disk in flushing._join.disks:
        for each in disk.sets:
            each.epoch = min(each.epoch, 1)


def sees_newer_rows(rows: SettlingRows, attribute: int, *rest: Any) -> Any:
    """Rows that settle meet those that came meanwhile, too."""
    rows._in_memory = min(1, rows._in_memory) << 40
    return real_look_up(rows, attribute, *rest)


def before_the_first_flush_nothing_has_settled(mixed: Mixed, inputs: Any, epoch: int) -> None:
    real_mixed(mixed, inputs, 0)


real_settled, real_flush = ManyConfluence.settled_now, Flushing.flush
real_look_up, real_mixed = SettlingRows.look_up, Mixed.__init__

MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any], dict[str, Any]]] = {
    "rows that settled settle again": (ManyConfluence, "settled_now", settles_again, {}),
    "rows that came meanwhile have settled": (ManyConfluence, "settled_now", came_meanwhile, {}),
    "rows that settle meet those that came meanwhile": (SettlingRows, "look_up", sees_newer_rows, {}),
    "inputs before the driver are met by all their rows": (
        ManySettlement, "rows_for", lambda task, number: task.highs[number], {},
    ),
    "inputs behind the driver are met by settled rows only": (
        ManySettlement, "rows_for", lambda task, number: task.lows[number], {},
    ),
    "inputs before the driver are met by all their runs": (
        ManySettlement, "sets_for", lambda task, number: len(task.join.disks[number].sets), {"settling": LATE},
    ),
    "inputs behind the driver are met by settled runs only": (
        ManySettlement, "sets_for",
        lambda task, number: len(task.join.disks[number].sets) - task.join.disks[number].owing, {"settling": LATE},
    ),
    "what was found in memory is found again": (Mixed, "holds", lambda *arguments: None, {}),
    "settled rows are of the epoch in memory": (Mixed, "__init__", before_the_first_flush_nothing_has_settled, {}),
    "runs that owe do not say so": (Flushing, "flush", written_as_settled, {"settling": LATE}),
    "all runs that owe are of one epoch": (Flushing, "flush", written_in_one_epoch, {"settling": LATE}),
    "no run owes": (RunSet, "owes", property(lambda each: False), {"settling": LATE}),  # type: ignore[dict-item]
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, options = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"):
        run_many(options)


def run_many(options: dict[str, Any]) -> None:
    for seed in range(400):
        run_case(ManyConfluence, make_multi_case(seed, ManyConfluence), **options)
