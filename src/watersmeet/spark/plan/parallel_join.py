"""`watersmeet.spark.parallel_join`: a window join in as many tasks as its load needs, between which work moves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from watersmeet.core.errors import SpecError
from watersmeet.core.given import plain_number
from watersmeet.core.spec import On, parse_on
from watersmeet.core.windows import Span, parse_span, parse_windows
from watersmeet.memory import parse_memory
from watersmeet.spark.plan.inputs import SIDES, with_measures
from watersmeet.spark.plan.splitting import RoutedTagging, answered
from watersmeet.spark.plan.tagging import places_by_id
from watersmeet.spark.plan.window_join import PlannedWindowJoin
from watersmeet.spark.rebalance.master_task import MasterTask
from watersmeet.spark.rebalance.slot_task import FIGURES, SlotTask
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.task.figures import observed
from watersmeet.spark.task.worker import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GROUPS_TO_A_SLOT = 8
"""So that work can be moved in small pieces."""


def parallel_join(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    time: str | Sequence[str],
    window: object,
    how: str = "inner",
    slots: tuple[int, int] = (1, 8),
    reorganize: Span = "20 s",
    groups: int | None = None,
    slide: Span | None = None,
    lateness: Span | None = None,
    late: str = "keep",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
    algorithm: str = "auto",
    delays: bool = False,
    cache: str | int = CACHE_BYTES,
    **options: Any,
) -> DataFrame:
    """Join two streams by windows, as `window_join` does, in tasks between which work moves while the query runs.

    Keys are hashed to `groups`, many more than there are tasks, and each task (slot) joins several of them. Every
    `reorganize` seconds, with the batch that begins next, groups move from slots that are busy for most of the time to
    idler ones; slots are added if the work does not fit into those there are, and let go if it fits into fewer. A key
    that outgrows a slot by itself is split: the rows of one side are spread over several groups, those of the other are
    copied to all of them. State is where all slots reach it, so that a group moves by being opened elsewhere.

    Results are those of `window_join`, whatever moves, and when. Spark has no buffers between the batches that could be
    full, so the share of time for which a slot worked stands for how full its buffer was.

    If `how` is not `"inner"`, the side is spread of which it matters who has a partner, and the other is copied. A key
    is then split after the length of its window, when all rows are where they have to be; of `"full"` joins none is.

    :param slots: the fewest and the most tasks that share the work; it begins with the most. They may change when the
        query is started again.
    :param reorganize: at least so long is the time from one reorganization to the next.
    :param groups: how many groups the keys are divided into, for good; eight for each slot unless given.
    :param memory: bytes, or words such as `"512 MiB"`, that each slot may hold; its groups share it.

    All others are as in `window_join`. The progress has three figures more: `slots` (those that had rows), `moved`
    (groups that another slot had before, and new ones of hot keys), and `hot_keys` (keys that are split).
    """
    for word in ("idle", "emit"):
        if word in options:
            raise SpecError(
                f"parallel_join gives results as they are found: {word}= is for window_join, whose groups stay where "
                f"they are; leave it out, or take that"
            )
    windows = parse_windows(window, time, slide, lateness, late)
    plan = PlannedWindowJoin.of(
        left, right, parse_on(on), windows, suffixes, algorithm, memory, state, options, how=how
    )
    if plan.state is None:
        raise SpecError(
            "parallel_join moves work between the batches of streams; join batch DataFrames with window_join"
        )
    if not plan.spec.equalities:
        raise SpecError(
            "parallel_join shares work by keys, and without an equality there are none; name a column in on=, or join "
            "with window_join, in one task"
        )
    bounds = _checked_slots(slots)
    count = _checked_groups(groups, bounds[1])
    delayed = plan.delay_columns() if delays else None
    master = MasterTask(
        plan.spec, plan.factory.fingerprint, count, bounds, _seconds(reorganize), plan.state, plan.retain,
        plan.factory.described("parallel_join"),
    )  # fmt: skip
    session = left.sparkSession
    answer = answered(master, session)
    tagging = RoutedTagging(
        plan.schemas, plan.keys, count, needed=plan.times, wakes=True, preserved=plan.spec.kind.preserved
    )
    task = SlotTask(
        plan.factory, tagging.layout, plan.memory, count, plan.state, plan.retain, delayed, parse_memory(cache),
        numbered=places_by_id(), made=master.made,
    )  # fmt: skip
    rows = tagging.routed(*plan.frames, answer, bounds[1], moves=True)
    measured = rows.mapInArrow(portable(task, session), with_measures(plan.results))
    return observed(measured, str(plan.state), plan.memory, FIGURES, SIDES if delayed else ())


def _checked_slots(slots: object) -> tuple[int, int]:
    if isinstance(slots, Sequence) and len(slots) == 2:
        fewest, most = map(plain_number, slots)
        if all(isinstance(each, int) and not isinstance(each, bool) for each in (fewest, most)) and 1 <= fewest <= most:
            return fewest, most
    raise SpecError(f"slots must be the fewest and the most tasks, such as (1, 8), not {slots!r}")


def _checked_groups(groups: int | None, slots: int) -> int:
    if groups is None:
        return _GROUPS_TO_A_SLOT * slots
    groups = plain_number(groups)
    if isinstance(groups, bool) or not isinstance(groups, int) or not slots <= groups <= 1 << 16:
        raise SpecError(
            f"groups must be a whole number, at least as many as there may be slots ({slots}), not {groups!r}"
        )
    return groups


def _seconds(reorganize: Span) -> float:
    found = parse_span(reorganize, "reorganize")
    if not isinstance(found, timedelta):
        raise SpecError(f"reorganize must be a length of time such as '20 s', not {reorganize!r}")
    return found.total_seconds()
