"""Queries to be played: cases of the conformance suites as micro-batches, and what must come out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simulate.embedded import smaller
from simulate.world import World
from spark.pipelines import AsofPipeline, JoinPipeline, ManyPipeline, WindowPipeline
from spark.window_oracle import (
    asof_cases,
    expected_asof,
    expected_in_windows,
    expected_pairs,
    far_ahead,
    is_plain,
    is_sparks_multi,
    many_micro_batches,
    micro_batches,
    spark_cases,
    without_silences,
)
from watersmeet.checks.cases import make_case, make_kind_case
from watersmeet.checks.multi_cases import make_multi_case, make_preserving_case
from watersmeet.checks.multi_windows import make_multi_window_case
from watersmeet.checks.run import AnyCase, expected_rows
from watersmeet.checks.suites import make_band, make_equality
from watersmeet.core.errors import SpecError
from watersmeet.core.spec import Output
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.planner import ALGORITHMS

GROUPS = 2
_PROGRESSIVE = ("xjoin", "rpj", "pmj", "diner")
Maker = Callable[[World, np.random.Generator, "Path | str"], "Stream"]


@dataclass(frozen=True)
class Stream:
    """A query: its pipeline, its batches, and what must come out of them."""

    name: str
    pipeline: Any
    """The tasks: `groups` of them, `attempt` runs one."""
    batches: list[tuple[list[pa.RecordBatch], tuple[int, ...]]]
    expected: Callable[[], Counter[Any]]
    settled: bool = True
    """Whether a batch gives what its rows and those before it say, whoever runs it."""
    begin: Callable[[int], None] = lambda number: None
    """What happens elsewhere before a batch is begun for the first time."""
    patches: Sequence[tuple[Any, str, Any]] = ()
    """What stands in the place of what."""


def _join(world: World, rng: np.random.Generator, state: Path | str, name: str, make: Any) -> Stream:
    seed = int(rng.integers(1 << 20))
    while True:
        case = make(seed, ALGORITHMS[name])
        spec = case.spec
        if spec.output is Output.ROWS and all(is_plain(each.type) for side in (0, 1) for each in spec.input(side)):
            break
        seed += 1
    case = smaller(case, world.trial)
    settled = name == "confluence"
    memory = case.memory if settled else case.memory * 8 // 5 + 64
    # Where each batch settles, every pair comes with its later row: nobody has to be told of an end.
    ends = not settled or not spec.kind.is_inner or rng.random() < 0.5
    pipeline = JoinPipeline(state, spec, memory, name, ends=ends, groups=GROUPS, fuel=int(rng.choice([0, 50, 5_000])))
    return Stream(f"stream join {name}", pipeline, _ending(case, rng, ends), lambda: expected_rows(case), settled)


def _many(world: World, rng: np.random.Generator, state: Path | str, make: Any) -> Stream:
    seed, windowed = int(rng.integers(1 << 20)), make is make_multi_window_case
    while True:
        case = make(seed, ManyConfluence)
        if is_sparks_multi(case.spec) and not (windowed and case.spec.window.counted):
            break
        seed += 1
    case = smaller(without_silences(case), world.trial)
    if not windowed:
        ends = case.spec.preserved is not None or rng.random() < 0.5
        pipeline = ManyPipeline(state, case.spec, case.memory, ends=ends, groups=GROUPS)
        return Stream(f"stream {make.__name__[5:]}", pipeline, _ending(case, rng, ends), lambda: expected_rows(case))
    batches = many_micro_batches(case, rng, most=4)
    pipeline = ManyPipeline(state, case.spec, case.memory * 8 // 5 + 64, groups=GROUPS)
    return Stream(
        "stream window multijoin", pipeline, [(tables, ()) for tables in batches],
        lambda: expected_in_windows(case.spec, batches),
    )  # fmt: skip


def _window(world: World, rng: np.random.Generator, state: Path | str, name: str) -> Stream:
    case: Any = smaller(next(spark_cases(name, 1, int(rng.integers(1 << 20)))), world.trial)
    batches = micro_batches(case, rng, most=4)
    pipeline = WindowPipeline(state, case.spec, case.memory * 8 // 5 + 64, name, groups=GROUPS)
    return Stream(
        f"stream window_join {name}", pipeline, [(tables, ()) for tables in batches],
        lambda: expected_pairs(case.spec, batches),
    )  # fmt: skip


def _asof(world: World, rng: np.random.Generator, state: Path | str) -> Stream:
    for found in asof_cases(1 << 20, int(rng.integers(1 << 20))):
        case: Any = smaller(found, world.trial)
        pipeline = AsofPipeline(state, case.spec, case.memory * 8 // 5 + 64, groups=GROUPS)
        if _has_room_ahead(case, pipeline):
            break
    batches = micro_batches(case, rng, most=3)
    none = [case.left.slice(0, 0), case.right.slice(0, 0)]
    batches += [[none[0], far_ahead(case)], none]
    return Stream(
        "stream asof_join", pipeline, [(tables, ()) for tables in batches], lambda: expected_asof(case.spec, batches)
    )


def _has_room_ahead(case: Any, pipeline: AsofPipeline) -> bool:
    """Whether there is a time beyond all others in the units of both inputs, and a key that it comes with."""
    ahead = far_ahead(case)
    try:
        return ahead is not None and any(pipeline.rows_of(group, 1, ahead).num_rows for group in range(GROUPS))
    except (SpecError, pa.ArrowInvalid):
        return False


def _ending(case: AnyCase, rng: np.random.Generator, ends: bool) -> list[tuple[list[pa.RecordBatch], tuple[int, ...]]]:
    """A case's rows as micro-batches; each input ends with its last rows or a batch later, if it does at all."""
    tables = [case.table(number) for number in range(case.inputs)]
    count = int(rng.integers(1, 4))
    cuts = [[0, *sorted(rng.integers(0, t.num_rows + 1, count - 1)), t.num_rows] for t in tables]
    found: list[tuple[list[pa.RecordBatch], tuple[int, ...]]] = []
    last = [int(rng.integers(count - 1, count + 1)) for _ in tables]
    for i in range(count):
        some = [t.slice(own[i], own[i + 1] - own[i]) for t, own in zip(tables, cuts, strict=True)]
        found.append((some, tuple(n for n, at in enumerate(last) if at == i)))
    found.append(([t.slice(0, 0) for t in tables], tuple(n for n, at in enumerate(last) if at == count)))
    return found if ends else [(some, ()) for some, _ in found]


STREAMS: Mapping[str, Maker] = {
    "equality": lambda w, r, s: _join(w, r, s, "confluence", make_equality),
    "bands": lambda w, r, s: _join(w, r, s, "confluence", make_band),
    "kinds": lambda w, r, s: _join(w, r, s, "confluence", make_kind_case),
    "of the papers": lambda w, r, s: _join(w, r, s, str(r.choice(_PROGRESSIVE)), make_case),
    "several inputs": lambda w, r, s: _many(w, r, s, make_multi_case),
    "preserving": lambda w, r, s: _many(w, r, s, make_preserving_case),
    "windows of several inputs": lambda w, r, s: _many(w, r, s, make_multi_window_case),
    "windows of the papers": lambda w, r, s: _window(w, r, s, str(r.choice(["ah_ewj", "ewj"]))),
    "windows": lambda w, r, s: _window(w, r, s, "confluence"),
    "as-of": _asof,
}
"""Queries by what they join."""
