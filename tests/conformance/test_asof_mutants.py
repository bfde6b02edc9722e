"""The rules of as-of joins, when a left row may be answered and what may be forgotten, each broken in turn: the suite
must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks import ConformanceError
from watersmeet.checks.asof import conform_asof
from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, Status
from watersmeet.core.spec import parse_on
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.asof.left_rows import LeftRows
from watersmeet.joins.asof.right_side import RightSide
from watersmeet.matching.nearest import Forgetting, Nearest
from watersmeet.records.asof_times import AsofTiming
from watersmeet.records.bands import HIGHEST
from watersmeet.spill.store import MemoryStore

CASES = 200

real_mark = AsofTiming.mark
real_asked_from = AsofJoin._asked_from
real_decided = Nearest._decided
real_sources = RightSide.sources
real_read = AsofTiming.read


def newest_means_passed(self: AsofTiming, side: int, newest: int) -> int:
    """The lateness is forgotten: rows may come that are older than the newest."""
    return newest


def equal_means_passed(self: Any) -> tuple[int, bool]:
    """A row of the same time may still come, and the last one counts."""
    mark, ended = real_right_mark(self)
    return min(HIGHEST, mark + 1), ended


def any_later_row_will_do(self: Nearest, *args: Any) -> Any:
    """Looking forward, the first row so far is taken for the first of all."""
    *known, _, ended = args
    return real_decided(self, *known, HIGHEST, ended)


def without(number: int) -> Callable[[AsofJoin], list[int]]:
    """One of the bounds is forgotten: the horizon, the last settlement, what came since."""

    def asked_from(self: AsofJoin) -> list[int]:
        return [bound for i, bound in enumerate(real_asked_from(self)) if i != number]

    return asked_from


def newest_sources_first(self: RightSide) -> Any:
    """Rows of one time are no longer in the order in which they came."""
    return list(real_sources(self))[::-1]


def late_rows_ask_as_of_their_own_time(self: AsofTiming, *args: Any) -> Any:
    """What they ask for may be forgotten."""
    from dataclasses import replace

    timed = real_read(self, *args)
    return replace(timed, floors=timed.times)


def same_hash_means_same_key(self: Forgetting, hashes: Any, times: Any, rows: Any, source: Any) -> Any:
    """A successor of another key lets a row be forgotten: here, of a neighbouring hash."""
    kept = real_kept(self, hashes, times, rows, source)
    kept[:-1] &= times[1:] > self.bound
    return kept


def only_the_last_at_the_bound(self: Forgetting, hashes: Any, times: Any, rows: Any, source: Any) -> Any:
    """Of rows that come right at the bound, the first is forgotten, for which somebody waits."""
    kept = real_kept(self, hashes, times, rows, source)
    kept[:-1] &= (hashes[1:] != hashes[:-1]) | (times[:-1] != self.bound) | (times[1:] != self.bound)
    return kept


def nobody_was_answered(self: LeftRows, state: Any) -> None:
    """What was handed out is forgotten with a snapshot."""
    self._answered = np.zeros(max(1024, self.table.rows), np.uint8)
    self.in_memory = self.table.rows


real_right_mark = AsofJoin.right_mark.fget  # type: ignore[attr-defined]
real_kept = Forgetting.kept

MUTANTS: dict[str, tuple[type[Any], str, Any, int]] = {
    "newest means passed": (AsofTiming, "mark", newest_means_passed, 13),
    "equal means passed": (AsofJoin, "right_mark", property(equal_means_passed), 173),
    "any later row will do": (Nearest, "_decided", any_later_row_will_do, 71),
    "no horizon": (AsofJoin, "_asked_from", without(0), 17),
    "rows that wait are forgotten": (AsofJoin, "_asked_from", without(1), 2),
    "rows that came since are forgotten": (AsofJoin, "_asked_from", without(2), 86),
    "newest sources first": (RightSide, "sources", newest_sources_first, 5),
    "late rows ask as of their own time": (AsofTiming, "read", late_rows_ask_as_of_their_own_time, 10),
    "a successor of another key": (Forgetting, "kept", same_hash_means_same_key, 2),
    "only the last at the bound": (Forgetting, "kept", only_the_last_at_the_bound, 901_091),
    "answers lost in a snapshot": (LeftRows, "load_answered", nobody_was_answered, 5),
}
"""What is broken, how, and with which case to begin: one that notices."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, broken, first = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, broken)
    with pytest.raises(ConformanceError):
        conform_asof(AsofJoin, cases=CASES, seed=first, fan_in=3)


@pytest.mark.parametrize("broken", [False, True])
def test_a_row_that_waits_to_be_nearest_is_itself_before_the_bound(broken: bool, monkeypatch: Any) -> None:
    """So what it may choose is further before the bound than the tolerance is long."""
    if broken:
        monkeypatch.setattr(Forgetting, "_reach", 1)
    side = pa.schema({"k": pa.int64(), "t": pa.int64()})
    spec = AsofSpec(side, side, parse_on("k"), times=parse_asof("t", "nearest", 3, lateness=0))
    join = AsofJoin(spec, 1 << 20, MemoryStore())
    found = []
    for number, keys, times in ((LEFT, [1, 2], [10, 90]), (RIGHT, [1, 2], [7, 12]), (RIGHT, [3, 3], [40, 41])):
        join.receive(Arrive(number, pa.record_batch([keys, times], schema=side)))
        status = Status.HAS_OUTPUT
        while status is Status.HAS_OUTPUT or join.wake_at() is not None:
            step = join.poll(0.0, 1000)
            found += step.out.to_pylist() if step.out is not None else []
            status = step.status
    assert found == ([] if broken else [{"k": 1, "t": 10, "t_right": 7}])


def test_the_rules_as_they_are_hold() -> None:
    """The same cases pass if nothing is broken; else the mutants would prove nothing."""
    assert np.isfinite(conform_asof(AsofJoin, cases=20, seed=0, fan_in=3).results)
