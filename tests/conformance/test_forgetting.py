"""Rows that nobody needs any more are forgotten, on disk, too; and each way to forget the wrong ones, tried in turn."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks import ConformanceError, make_kind_case, run_case
from watersmeet.core.protocol import Arrive, Event, Stall, Status
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.confluence import Confluence, catalogue, operator
from watersmeet.joins.confluence.upkeep import LeftOutRows, Upkeep, Wear
from watersmeet.policies.settling import Settling
from watersmeet.runs.matched_bits import MatchedBits
from watersmeet.spill.store import MemoryStore

TIGHT: dict[str, Any] = {"floor": 0, "fan_in": 3}
WRONG = r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"
EAGER = Settling(least_rows=1, hashes_per_row=1 << 20)
ON_DISK = Settling(idle_hashes_per_row=0)
SCHEMA = pa.schema({"id": pa.int64(), "row": pa.int64(), "pad": pa.string()})


class Watched(Confluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        super().close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows of no use are enough to write a run again; bits do not fit into memory."""
    Watched.seen = Counter()
    monkeypatch.setattr(Wear, "least", 2)
    monkeypatch.setattr("watersmeet.runs.matched_bits._LEAST_PAGE", 1)
    monkeypatch.setattr("watersmeet.runs.matched_bits._MOST_PAGE", 1)
    for module in (operator, catalogue):
        monkeypatch.setattr(module, "LEAST_BYTES", 4)
    monkeypatch.setattr(catalogue, "_BITS_SHARE", 1 << 40)


def run_many(cases: int) -> None:
    """Cases of semi and anti joins in little memory."""
    for seed in range(cases):
        case = make_kind_case(seed, Watched)
        if case.spec.how in ("semi", "anti") and case.memory < case.least + 8_000:
            run_case(Watched, case, **TIGHT, settling=EAGER)


def test_every_result_exactly_once_though_rows_are_forgotten() -> None:
    run_many(250)
    assert Watched.seen["rows left out of a merge"] > 30, Watched.seen


def others(bits: MatchedBits, names: Any, numbers: Any) -> Any:
    """Rows that have no partner yet are forgotten."""
    return ~real_marked(bits, names, numbers)


def not_told_again(left_out: LeftOutRows, count: int) -> Any:
    """Hashes are left out, and their rows are not."""
    return real_again(left_out, count) & False


real_marked, real_again, real_fill = MatchedBits.marked_of, LeftOutRows.again, MatchedBits._fill


def carried_as_if_all_were_there(bits: MatchedBits, filling: Any, source: Any, run: Any, some: bool) -> None:
    """Bits of rows that were left out go to those that follow them."""
    for marked in bits._carried(source, run.rows) if some else ():
        filling.add(marked)
    filling.end()


@pytest.mark.parametrize(
    ("owner", "rule", "broken"),
    [
        (LeftOutRows, "decide", None),
        (LeftOutRows, "again", not_told_again),
        (MatchedBits, "_fill", carried_as_if_all_were_there),
    ],
    ids=["others are forgotten", "hashes without rows", "bits of others"],
)
def test_mutant_is_caught(owner: Any, rule: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "decide":
        real_left_out = Wear.left_out

        def wrong(wear: Wear, side: int) -> Any:
            left_out = real_left_out(wear, side)
            if left_out is not None:
                bits = left_out._bits
                left_out.decide = lambda rows, hashes, numbers: others(bits, rows.names, numbers)
            return left_out

        monkeypatch.setattr(Wear, "left_out", wrong)
    else:
        monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=WRONG + "|is not done|makes no sense"):
        run_many(250)


# --- endless inputs ---


def batch_of(ids: Any, first: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + len(ids))
    return pa.record_batch([pa.array(ids), pa.array(numbers), pa.array(["x" * 200] * len(ids))], schema=SCHEMA)


def endless(turns: int, rows: int) -> list[tuple[Event, Event]]:
    """Left rows of each turn, and right rows for those of three turns before: each left row matches on disk."""
    ids = np.random.default_rng(3).permutation(turns * rows).reshape(turns, rows)
    nobody = np.full(rows, -1)
    return [
        (Arrive(0, batch_of(ids[i], i * rows)), Arrive(1, batch_of(ids[i - 3] if i >= 3 else nobody, i * rows)))
        for i in range(turns)
    ]


def work_off(join: Confluence) -> list[int]:
    found: list[int] = []
    while True:
        step = join.poll(0.0, 1000)
        join.check()
        if step.out is not None:
            found += step.out["row"].to_pylist()
        if step.status not in (Status.HAS_OUTPUT, Status.HAS_WORK):
            return found


def test_an_endless_semi_join_forgets_rows_that_matched_on_disk() -> None:
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), "semi")
    join = Confluence(spec, Confluence.least_memory(spec), MemoryStore(), floor=0, fan_in=64, settling=ON_DISK)
    turns, rows = 60, 60
    found, held = [], []
    for left, right in endless(turns, rows):
        for event in (left, right, Stall()):
            join.receive(event)
            found += work_off(join)
        held.append(sum(run.rows for run in join.runs[0]))
    assert sorted(found) == [*range((turns - 3) * rows)]
    assert join.events["rows left out of a merge"] > turns * rows / 2
    assert max(held[20:]) <= 1.5 * max(held[:20]) and max(held) < turns * rows / 4, held


@pytest.mark.parametrize("least_rows", [50, 1 << 18], ids=["in pieces", "at once"])
def test_an_endless_semi_join_of_batches_forgets_them_too(least_rows: int) -> None:
    """As on Spark: from snapshot to snapshot, and with merges that take several batches."""
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), "semi")
    memory, store = 4 * Confluence.least_memory(spec), MemoryStore()
    options: dict[str, Any] = {"floor": 0, "settling": Settling(least_rows=1 << 62)}
    turns, rows = 70, 60
    found, held, left_out, snapshot = [], [], 0, None
    for left, right in endless(turns, rows):
        join = Confluence(spec, memory, store, **options)
        if snapshot is not None:
            join = Confluence.restore(spec, snapshot, memory, store, **options)
        join.catalogue.upkeep.least_rows = least_rows
        for event in (left, right):
            join.receive(event)
            found += work_off(join)
        join.end_batch()
        found += work_off(join)
        snapshot = join.snapshot()
        held.append(sum(run.rows for run in join.runs[0]))
        left_out += join.catalogue.upkeep.rows_left_out
    assert sorted(found) == [*range((turns - 3) * rows)]
    assert left_out > turns * rows / 2
    assert max(held[35:]) <= 1.5 * max(held[:35]) and max(held) < turns * rows / 4, held


def test_pieces_of_a_merge_know_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits that change while a merge is under way go to the rows that are still there."""
    passed: list[int] = []
    real = Upkeep._add_piece

    def counted(upkeep: Upkeep, merging: Any, most: int) -> None:
        real(upkeep, merging, most)
        passed.append(len(merging.pieces))

    monkeypatch.setattr(Upkeep, "_add_piece", counted)
    test_an_endless_semi_join_of_batches_forgets_them_too(20)
    assert max(passed) > 2
