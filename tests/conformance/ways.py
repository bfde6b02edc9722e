"""Every operator of the project, and the ways in which each goes through its suites: one list, for tests and thousands.

A way is a setting in which rows take other paths to each other. What it `proves` are events of which the operator must
tell after some dozens of cases: a way that is never gone proves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from watersmeet import planner
from watersmeet.engine.sizing import Grain
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.lookup.chain import LookupChain
from watersmeet.joins.lookup.shared import SharedLookup
from watersmeet.joins.sharded import Sharded
from watersmeet.joins.window.ah_ewj import Shares
from watersmeet.joins.window.ewj import Thresholds
from watersmeet.joins.window.rpwj import Stages
from watersmeet.policies.keeping import Keeping
from watersmeet.policies.settling import Settling

EAGER = Settling(least_rows=1, hashes_per_row=1 << 20)
"""Rows settle after every slice that arrives."""
LATE = Settling(passes_saved=0, most_runs=3)
"""Rows are written before they have settled, as long as few runs owe."""
BUSY = Settling(idle_hashes_per_row=0)
"""Nothing is settled in idle time."""
LATE_AND_BUSY = Settling(passes_saved=0, most_runs=3, idle_hashes_per_row=0)
LATEST = Settling(passes_saved=0, most_runs=3, least_rows=1 << 20)
PROMPT = 0.004
"""Seconds of the clock that the cases run by, a millisecond a poll."""
TIGHT: dict[str, Any] = {"floor": 0, "fan_in": 3}
"""Buffers that are within the budget, small as it is here, and runs that are merged soon."""
MANY_TIGHT: dict[str, Any] = {"floor": 0, "fan_in": 2}
TINY: dict[str, Any] = {**MANY_TIGHT, "grain": Grain(pairs=3)}
"""Three combinations at a time: every look-up is left and gone on with."""


class Keeps(Confluence):
    """Some rows stay at every flush for which any evidence can be had, whether that pays or not."""

    def _make_keeping(self) -> Keeping | None:
        return Keeping(16, pays=0.0, evidence=1) if self.spec.band is None else None


@dataclass(frozen=True)
class Way:
    """A setting for an operator, and what must happen in it."""

    options: Mapping[str, Any] = field(default_factory=dict)
    proofs: frozenset[str] = frozenset()
    changed: type[Any] | None = None
    """In place of the operator."""
    patches: Mapping[str, Any] = field(default_factory=dict)
    """What else is set while cases run, by the name of its place."""
    drawn: tuple[str, ...] = ()
    """Options that are different for every case: its seed."""

    def options_of(self, seed: int) -> dict[str, Any]:
        """Those of the case of this seed."""
        return {**self.options, **dict.fromkeys(self.drawn, seed)}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Cases run in here go this way."""
        with ExitStack() as stack:
            for place, value in self.patches.items():
                stack.enter_context(patch(place, value))
            yield


def way(options: Mapping[str, Any] | None = None, *proofs: str, **more: Any) -> Way:
    """A way with these options, that proves this."""
    return Way(options or {}, frozenset(proofs), **more)


_TWO_INPUTS = {
    "usual": way(
        {}, "settled before a flush", "settled in a silence", "settled in idle time", "settled at the end"
    ),
    "tight": way(TIGHT, "settled before a flush", "settled in a silence", "settled at the end", "flushed", "merged"),
    "eager": way({**TIGHT, "settling": EAGER}, "settled in passing", "flushed", "merged"),
    "late": way(
        {**TIGHT, "settling": LATE}, "flushed owing", "runs settled", "settled before a flush", "merged"
    ),
    "delay": way({**TIGHT, "delay": PROMPT}, "settled by delay", "settled in a silence", "flushed"),
}  # fmt: skip
_STAYING = {"staying": way({**TIGHT}, "rows that stayed", changed=Keeps)}
_SOON = {
    "watersmeet.joins.confluence.foretold.LEAST_ROWS": 1,
    "watersmeet.joins.confluence.upkeep.Wear.least": 2,
}
"""A row is enough to look who is settled, and a few to write a run again."""
_FORETOLD = ("rows settled by a promise", "settled before rows come out", "rows not written", "flushed")
_SHARED_BATCHES = {
    "watersmeet.records.split._LEAST_SHARED": 1,
    "watersmeet.records.plan.RowPlan.as_they_are": True,
}
"""Even single rows of batches that stay are not copied, unless nested or of a snapshot."""
_SHARDED = ("settled before a flush", "settled in a silence", "settled at the end", "flushed")


def _shards(shards: int, stays: tuple[bool, bool], delay: float | None = None) -> Way:
    options = {"shards": shards, "stays": stays, "delay": delay}
    return way(options, *_SHARDED, patches=_SHARED_BATCHES, drawn=("order",))


_COPIED, _SHARED, _LEFT_SHARED = (False, False), (True, True), (True, False)

_LISTED: dict[tuple[str, str], dict[str, Way]] = {
    ("confluence", "equality"): {**_TWO_INPUTS, **_STAYING},
    ("confluence", "bands"): _TWO_INPUTS,
    ("confluence", "kinds"): {
        name: Way(each.options, each.proofs - {"settled in idle time"} | {"rows without a partner settled"})
        for name, each in _TWO_INPUTS.items()
    } | _STAYING,
    ("confluence", "near"): {name: _TWO_INPUTS[name] for name in ("tight", "eager", "late", "delay")},
    ("confluence", "promises"): {
        "usual": way(TIGHT, *_FORETOLD, "rows left out of a merge", patches=_SOON),
        "late": way({**TIGHT, "settling": LATE}, *_FORETOLD, "rows left out of a merge", patches=_SOON),
    },
    ("hmj", "equality"): {"usual": way(), "whole stage": way({"prompt": False, "whole_stage": True})},
    ("sharded", "equality"): {
        "1": _shards(1, _COPIED),
        "2, copied": _shards(2, _COPIED),
        "2, shared": _shards(2, _SHARED),
        "3, left shared": _shards(3, _LEFT_SHARED),
        "8, shared": _shards(8, _SHARED),
        "2, copied, delay": _shards(2, _COPIED, PROMPT),
        "8, shared, delay": _shards(8, _SHARED, PROMPT),
    },
    ("sharded", "kinds"): {
        f"{shards}, {name}": way(
            {"shards": shards, "stays": stays}, "flushed", patches=_SHARED_BATCHES, drawn=("order",)
        )
        for shards in (2, 5)
        for name, stays in (("copied", _COPIED), ("shared", _SHARED))
    },
    ("confluence", "several inputs"): {
        "usual": way({}, "settled before a flush", "settled in a silence", "settled at the end", "flushed"),
        "tiny": way(TINY, "settled before a flush", "settled in a silence", "settled in idle time", "merged"),
        "eager": way({**MANY_TIGHT, "settling": EAGER}, "settled in passing", "flushed", "merged"),
        "late": way(
            {**MANY_TIGHT, "settling": LATE},
            "flushed owing", "runs settled", "settled before a flush", "settled at the end",
        ),
        "delay": way({**MANY_TIGHT, "delay": PROMPT, "settling": BUSY}, "settled by delay", "flushed", "merged"),
        "late, delay": way(
            {**MANY_TIGHT, "delay": PROMPT, "settling": LATE_AND_BUSY},
            "settled by delay", "flushed owing", "runs settled",
        ),
    },
    ("confluence", "preserving"): {
        "usual": way(
            {}, "settled before a flush", "settled in a silence", "settled at the end", "flushed",
            "rows without a partner settled",
        ),
        "tight": way(
            MANY_TIGHT, "settled before a flush", "flushed", "merged", "rows without a partner settled"
        ),
        "late": way(
            {**MANY_TIGHT, "settling": LATE},
            "flushed owing", "runs settled", "merged", "rows without a partner settled",
        ),
        "delay": way(
            {**MANY_TIGHT, "delay": PROMPT, "settling": BUSY},
            "settled by delay", "flushed", "rows without a partner settled",
        ),
    },
    ("mjoin", "several inputs"): {name: way({"flush": name}) for name in ("largest", "random")} | {"usual": way()},
    ("confluence", "windows"): {
        "usual": way(
            {**TIGHT, "settling": BUSY},
            "settled before a flush", "settled in a silence", "settled at the end", "merged",
        ),
        "eager": way(
            {**TIGHT, "settling": EAGER}, "settled in passing", "flushed", "expired runs", "expired blocks"
        ),
        "late": way({**TIGHT, "settling": LATE_AND_BUSY}, "settled before a flush", "expired runs"),
        "delay": way(
            {**TIGHT, "delay": PROMPT, "settling": BUSY}, "settled by delay", "flushed", "expired runs"
        ),
    },
    ("confluence", "queries"): {
        "usual": way({}, "unwanted pairs", "queries changed", "forgotten classes"),
        "tight": way(
            {**TIGHT, "settling": BUSY},
            "settled before a flush", "expired runs", "unwanted pairs", "forgotten classes",
        ),
        "eager": way(
            {**TIGHT, "settling": EAGER}, "settled in passing", "flushed", "unwanted pairs", "queries changed"
        ),
    },
    ("rpwj", "windows"): {
        "usual": way(),
        "joining": way({"stages": Stages(books=0.0)}, "runs joined"),
        "reading again": way({"stages": Stages(reread=True)}, "dd-tasks"),
    },
    ("ah_ewj", "windows"): {"usual": way(), "joining": way({"shares": Shares(books=0.0)}, "segments joined")},
    ("ewj", "windows"): {"usual": way(), "joining": way({"thresholds": Thresholds(books=0.0)}, "segments joined")},
    ("confluence", "windows of several inputs"): {
        "usual": way(
            {}, "settled in a silence", "settled in idle time", "settled before a flush", "settled at the end"
        ),
        "tiny": way(TINY, "settled before a flush", "merged"),
        "eager": way({**MANY_TIGHT, "settling": EAGER}, "settled in passing", "merged"),
        "late": way({**MANY_TIGHT, "settling": LATEST}, "flushed owing", "runs settled", "settled at the end"),
        "delay": way({**MANY_TIGHT, "delay": PROMPT, "settling": BUSY}, "settled by delay", "expired runs"),
    },
    ("asof", "as-of"): {"tight": way({"fan_in": 3}, "merged"), "usual": way()},
    ("partitioned", "look-ups"): {
        "usual": way(),
        "blocks": way({"granularity": "block", "block": 3, "l_mark": 1, "h_mark": 2}),
        "auto": way({"granularity": "auto", "block": 3, "l_mark": 1, "h_mark": 2}),
    },
    ("chain", "chains"): {"usual": way()} | {
        name: way({"kind": planner.LOOKUPS[name]}) for name in ("meshjoin", "index_nested_loop")
    },
}  # fmt: skip

WAYS: Mapping[tuple[str, str], Mapping[str, Way]] = defaultdict(lambda: {"usual": way()}, _LISTED)
"""By operator and suite; operators that are not listed have one way, the usual one."""


def operators() -> Iterator[tuple[str, type[Any]]]:
    """Every operator, and what it is called here."""
    registries = (
        planner.ALGORITHMS, planner.MULTIWAY, planner.WINDOW_ALGORITHMS, planner.WINDOWED_MULTIWAY, planner.ASOF,
        planner.LOOKUPS,
    )  # fmt: skip
    # One that is in two lists goes through the suites of both.
    yield from dict.fromkeys((name, registry[name]) for registry in registries for name in registry)
    yield "sharded", Sharded
    yield "chain", LookupChain
    yield "shared", SharedLookup
