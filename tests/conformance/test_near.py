"""Points that are near each other, on every way that rows may take to each other, and with each rule broken in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance.ways import TIGHT, WAYS
from watersmeet.checks import ConformanceError, conform, make_near_case, run_case
from watersmeet.checks.bands import POINT_KINDS
from watersmeet.joins.confluence import Confluence
from watersmeet.matching import settlement
from watersmeet.matching.reach import NearKeys
from watersmeet.records.bands import NearCodec
from watersmeet.records.keys import KeyCodec


class Watched(Confluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        alone = "alone" if not self.spec.equalities else "beside an equality"
        Watched.seen += Counter({f"{event}, {alone}": count for event, count in self.events.items()})
        super().close()


@pytest.mark.parametrize("way", WAYS["confluence", "near"])
def test_every_pair_exactly_once_on_every_way(way: str) -> None:
    Watched.seen = Counter()
    taken = WAYS["confluence", "near"][way]
    summary = conform(Watched, cases=40, seed=3_020, make=make_near_case, **taken.options)
    assert {f"{proof}, alone" for proof in taken.proofs} <= set(+Watched.seen), Watched.seen
    beside = {event.partition(",")[0] for event in +Watched.seen if event.endswith("equality")}
    assert {"flushed", "flushed owing"} & beside and any("settled" in event for event in beside), Watched.seen
    kinds = {kind for kind, _ in summary.kinds}
    assert all(any(kind.startswith(f"{n} dimensions") for kind in kinds) for n in (2, 3)), kinds
    assert all(any(kind.endswith(f" of {each}") for kind in kinds) for each in POINT_KINDS[:-1]), kinds


def a_neighbour_is_forgotten(codec: NearKeys) -> None:
    if codec.shifts is not None:
        codec.shifts = codec.shifts[1:]


def a_neighbour_is_asked_twice(codec: NearKeys) -> None:
    if codec.shifts is not None:
        codec.shifts = np.append(codec.shifts, codec.shifts[-1:])


def the_own_strip_is_asked_twice(codec: NearKeys) -> None:
    if codec.shifts is not None:
        codec.shifts = np.append(codec.shifts, np.zeros(1, np.uint64))


def after_making(change: Callable[[NearKeys], None]) -> Callable[..., None]:
    def changed(codec: NearKeys, spec: Any) -> None:
        real_init(codec, spec)
        change(codec)

    return changed


def strips_are_narrow(codec: NearCodec) -> int | float:
    """Two strips away there may be near points."""
    width: int | float = real_width.fget(codec)
    return max(1, width * 3 // 5) if isinstance(width, int) else width * 0.6


def only_equal(codec: NearKeys, left: Any, right: Any) -> Any:
    """Of rows in touching cells, distances are not taken."""
    return KeyCodec.equal(codec, left[: codec._equalities], right[: codec._equalities])


def rounded(codec: NearCodec, left: Any, right: Any, found: Any) -> None:
    """Distances are rounded."""
    found[:] = np.sqrt(((left - right) ** 2).sum(axis=0)) <= codec.form.radius


def not_in_order(keys: Any, rows: Any, count: int, shifts: Any) -> None:
    """Rows that settle look one after the other, each under all keys, and the next looks no further back."""
    keys[: count * len(shifts)] = (keys[:count, None] + shifts).ravel()
    rows[: count * len(shifts)] = np.repeat(rows[:count].copy(), len(shifts))


def other_origins(join: Confluence, state: dict[str, Any]) -> None:
    real_load_own(join, state)
    join.codec.origin = None


real_init, real_width, real_load_own = NearKeys.__init__, NearCodec.strip_width, Confluence._load_own
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a neighbour is forgotten": (NearKeys, "__init__", after_making(a_neighbour_is_forgotten)),
    "a neighbour is asked twice": (NearKeys, "__init__", after_making(a_neighbour_is_asked_twice)),
    "the own strip is asked twice": (NearKeys, "__init__", after_making(the_own_strip_is_asked_twice)),
    "strips are too narrow": (NearCodec, "strip_width", property(strips_are_narrow)),
    "distances are not taken": (NearKeys, "equal", only_equal),
    "distances are rounded": (NearCodec, "_doubles", rounded),
    "keys that rows settle under are not sorted": (settlement, "ask_under_all", not_in_order),
    "the origins are forgotten": (Confluence, "_load_own", other_origins),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises((ConformanceError, AssertionError)):
        run_many()


def run_many() -> None:
    for seed in range(400):
        run_case(Confluence, make_near_case(seed, Confluence), **TIGHT)
