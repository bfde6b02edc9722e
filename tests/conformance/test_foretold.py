"""Promises settle rows without a partner before the other input ends; and each way to be wrong, tried in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from conformance.ways import TIGHT, WAYS
from watersmeet.checks import ConformanceError, run_case
from watersmeet.checks.promised_cases import make_promised_kind_case
from watersmeet.core.errors import PromiseError
from watersmeet.core.kinds import KINDS
from watersmeet.core.promises import Promises
from watersmeet.core.protocol import Arrive, End, Punctuate, Stall, Status
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.confluence import Confluence, foretold
from watersmeet.joins.confluence.foretold import Foretold
from watersmeet.joins.confluence.upkeep import Wear
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "row": pa.int64()})
WRONG = r"lost [0-9]+ and invented or repeated [0-9]+|counted [0-9]+ results"
PUNCTUATED = Promises(), Promises(punctuated=True)


class Watched(Confluence):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        super().close()


@pytest.fixture
def _soon() -> Iterator[None]:
    """A row is enough to look who is settled, and a few to write a run again."""
    Watched.seen = Counter()
    with WAYS["confluence", "promises"]["usual"].taken():
        yield


def run_many(cases: int, **options: Any) -> None:
    for seed in range(cases):
        run_case(Watched, make_promised_kind_case(seed, Watched), **TIGHT, **options)


# --- every result exactly once ---


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("way", WAYS["confluence", "promises"])
def test_every_result_exactly_once(way: str) -> None:
    taken = WAYS["confluence", "promises"][way]
    run_many(25, **{name: value for name, value in taken.options.items() if name not in TIGHT})
    assert taken.proofs <= set(+Watched.seen), Watched.seen


def early(real: Callable[..., Any]) -> Callable[..., Any]:
    """Rows come out though partners that came before the promise have not been met: an early NULL."""

    def wrong(self: Foretold, side: int, *, at_any_cost: bool = False) -> Any:
        if not self._wants(side) or self._join.settlements.begun != [None, None]:
            return None
        return foretold.ForetoldTask(self._join, side, self._wants_disk(side))

    return wrong


def ahead(real: Callable[..., Any]) -> Callable[..., Any]:
    """A promise counts before the rows in front of it have come: an early NULL."""

    def wrong(self: Foretold, side: int, waiting: int) -> Any:
        while self._marks[side]:
            pattern = self._marks[side].popleft()[1]
            self.known[side].range.add(pattern)
            self.known[side].news += 1
        return None

    return wrong


def all_over(real: Callable[..., Any]) -> Callable[..., Any]:
    """Neighbours of keys that are over are taken for over, too: an early NULL."""

    def wrong(self: Foretold, side: int, rows: Any, numbers: Any, hashes: Any = None) -> Any:
        over = real(self, side, rows, numbers, hashes)
        return over | np.roll(over, 1) if hashes is None else over

    return wrong


def not_marked(real: Callable[..., Any]) -> Callable[..., Any]:
    """What came out is not marked, and comes out once more."""

    def wrong(self: Foretold, side: int, on_disk: bool) -> None:
        self.known[1 - side].acted_upon()
        self._looked_at[side], self._came[side], self._not_looked_at[side] = self._join.clock, False, False

    return wrong


def unmatched_too(real: Callable[..., Any]) -> Callable[..., Any]:
    """Rows are not written that have yet to come out."""

    def wrong(self: Foretold, side: int) -> Any:
        table = self._join.tables[side]
        return table.rows, lambda hashes, numbers: np.ones(len(numbers), np.bool_)

    return wrong


MUTANTS: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "an early NULL, before all is met": (Foretold, "task", early),
    "an early NULL, before the rows in front of a promise": (Foretold, "before_mark", ahead),
    "an early NULL, of keys that are not over": (Foretold, "is_over", all_over),
    "rows come out twice": (Foretold, "passed", not_marked),
    "rows are forgotten before they come out": (Foretold, "useless_in_memory", unmatched_too),
}


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken(getattr(owner, rule)))
    told = WRONG + "|had promised not to send"
    with pytest.raises(ConformanceError, match=told):
        run_many(150)


# --- when rows come ---


def rows_of(ids: list[Any]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array(range(len(ids)), pa.int64())], schema=SCHEMA)


def join_of(
    how: str, promises: tuple[Promises, Promises] = PUNCTUATED, memory: int = 4 << 20, **options: Any
) -> Confluence:
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), how, promises=promises)
    return Confluence(spec, max(memory, Confluence.least_memory(spec)), MemoryStore(), floor=0, **options)


def work_off(join: Confluence) -> list[Any]:
    found: list[Any] = []
    while True:
        step = join.poll(0.0, 500)
        join.check()
        found += [] if step.out is None else [tuple(row.values()) for row in step.out.to_pylist()]
        if step.status not in (Status.HAS_OUTPUT, Status.HAS_WORK):
            return found


def tell(join: Confluence, *events: Any) -> list[Any]:
    for event in events:
        join.receive(event)
    found = work_off(join)
    join.receive(Stall())
    return found + work_off(join)


@pytest.mark.parametrize("how", ["left", "anti", "full"])
def test_a_punctuation_settles_rows(how: str) -> None:
    join = join_of(how)
    alone = (lambda key, row: (key, row)) if how == "anti" else (lambda key, row: (key, row, None))
    assert tell(join, Arrive(0, rows_of([1, 2, 3, 4]))) == []
    pairs = tell(join, Arrive(1, rows_of([2])))
    assert pairs == ([] if how == "anti" else [(2, 1, 0)])
    assert tell(join, Punctuate(1, {"id": 1})) == [alone(1, 0)]
    # Of 2 there was one; 3 is over, too; and what comes now of such keys is settled at once.
    assert tell(join, Punctuate(1, wm.Punctuation({"id": wm.between(None, 3)}).pattern)) == [alone(3, 2)]
    assert tell(join, Arrive(0, rows_of([3, 5]))) == [alone(3, 0)]
    assert sorted(tell(join, End(1))) == [alone(4, 3), alone(5, 1)]


def test_a_sorted_input_settles_rows_as_it_goes_on() -> None:
    join = join_of("left", (Promises(), Promises(sorted=(("id", False),))))
    tell(join, Arrive(0, rows_of([1, 5, 9])))
    assert tell(join, Arrive(1, rows_of([2, 5]))) == [(5, 1, 1), (1, 0, None)]
    assert tell(join, Arrive(1, rows_of([10]))) == [(9, 2, None)]


def test_a_broken_word_is_an_error_that_names_the_row() -> None:
    join = join_of("left")
    tell(join, Arrive(0, rows_of([1])), Punctuate(1, {"id": 1}))
    join.receive(Arrive(1, rows_of([2, 1])))
    with pytest.raises(PromiseError, match=r"row 2 of right has id=1, which right had promised not to send"):
        work_off(join)


@pytest.mark.parametrize("how", sorted({*KINDS} - {"inner"}))
def test_with_promises_of_both_an_endless_join_holds_little(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a turn's keys, then word that these are over: whatever is left of them is forgotten, on disk, too."""
    monkeypatch.setattr(Wear, "least", 16)
    join = join_of(how, (Promises(punctuated=True),) * 2, memory=1, fan_in=6)
    held, found, turns, rows = [], 0, 60, 200
    rng = np.random.default_rng(4)
    for turn in range(turns):
        for side in (0, 1):
            found += len(tell(join, Arrive(side, rows_of((turn * 1000 + rng.integers(0, 400, rows)).tolist()))))
        for side in (0, 1):
            over = wm.Punctuation({"id": wm.between(None, turn * 1000 - 500)}).pattern
            found += len(tell(join, Punctuate(side, over)))
        held.append(sum(table.rows for table in join.tables) + sum(run.rows for runs in join.runs for run in runs))
    assert found > turns * rows / 8
    assert join.events["rows left out of a merge"] + join.events["rows not written"] > 1000, join.events
    assert max(held[30:]) <= 1.6 * max(held[:30]) and max(held) < 2 * turns * rows / 3, held


# --- as users write it ---


def test_rows_come_while_both_inputs_go_on() -> None:
    """Both are endless: what comes is all that is ever asked for."""

    def orders() -> Iterator[Any]:
        for number in range(10**9):
            yield {"id": number, "item": "cup"}

    def paid() -> Iterator[Any]:
        for number in range(10**9):
            if number % 3:
                yield {"id": number, "paid": True}
            yield wm.Punctuation({"id": number})

    right = wm.source(paid(), punctuated=True)
    result = wm.join(orders(), right, on="id", how="left", memory="8 MiB")
    alone = (row["id"] for batch in result for row in batch.to_pylist() if row["paid"] is None)
    found = sorted(islice(alone, 300))
    result.close()
    assert all(number % 3 == 0 for number in found) and len(set(found)) == 300
