"""One pass over rows in the order of their times: that it is taken, and each condition for it broken in turn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.asof import AsofSpec, parse_asof
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Status
from watersmeet.core.spec import parse_on
from watersmeet.joins.asof import right_side
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.asof.left_rows import LeftRows
from watersmeet.joins.asof.right_side import RightSide, Sweep
from watersmeet.matching.nearest import Forgetting
from watersmeet.records.asof_times import AsofCodec
from watersmeet.records.bands import HIGHEST, LOWEST
from watersmeet.spill.store import MemoryStore

CASES = 40
SIDE = pa.schema({"k": pa.int64(), "t": pa.int64(), "n": pa.int64()})

real_clear, real_asked_for, real_kept, real_find = Sweep.clear, RightSide._asked_for, Sweep.kept, Sweep.find


def slots_outlive_their_rows(self: Sweep) -> None:
    """Rows have left the table, and their numbers are others' now."""
    kept = getattr(self, "_slots", None), getattr(self, "_state", None)
    real_clear(self)
    if kept[1] is not None:
        self._slots, self._state = kept
        self._state[right_side.AT] = 0


def whoever_comes_is_not_before_what_was_reached(self: RightSide, forgetting: Forgetting) -> Any:
    """Rows may come late, and ask for what is no longer in the slots."""
    bound, forgetting.bound = forgetting.bound, HIGHEST
    try:
        return real_asked_for(self, forgetting) if self.sweep.begun else _restored(self, forgetting, bound)
    finally:
        forgetting.bound = bound


def _restored(self: RightSide, forgetting: Forgetting, bound: int) -> Any:
    forgetting.bound = bound
    return real_asked_for(self, forgetting)


def only_slots_are_kept(self: Sweep) -> Any:
    """Rows that nobody has passed yet are lost."""
    return real_kept(self)[: int(self._state[right_side.USED])]


def disk_is_forgotten(self: AsofJoin) -> bool:
    """Rows on disk are not looked up."""
    return (
        self.spec.times.direction == "backward"
        and not self._collide
        and self.left.ascend
        and self.left.lowest >= self.right.sweep.reached
        and self.right.sweep.in_order()
    )


def one_more_is_eligible(self: Sweep, left: Any, answered: Any, place: int, bound: int, *rest: Any) -> Any:
    """A left row at the mark is answered, although a right row of its time may come."""
    return real_find(self, left, answered, place, min(bound, HIGHEST - 1) + 1, *rest)


MUTANTS: dict[str, tuple[type[Any], str, Any]] = {
    "right rows out of order": (Sweep, "in_order", lambda self: True),
    "left rows out of order": (LeftRows, "_note_order", lambda self, floors: None),
    "nothing was reached": (Sweep, "reached", property(lambda self: LOWEST)),
    "slots outlive their rows": (Sweep, "clear", slots_outlive_their_rows),
    "nobody comes late": (RightSide, "_asked_for", whoever_comes_is_not_before_what_was_reached),
    "only slots are kept": (Sweep, "kept", only_slots_are_kept),
    "rows on disk are forgotten": (AsofJoin, "_can_sweep", disk_is_forgotten),
    "one more is eligible": (Sweep, "find", one_more_is_eligible),
}
"""What is broken, and how."""


def sides_of(rng: np.random.Generator, keys: int, lateness: int, parts: int) -> list[list[pa.RecordBatch]]:
    """Batches of both inputs. With a lateness, some of an input may be out of order by that much, or be in order, but
    begin before the end of the one that came before.
    """
    sides: list[list[pa.RecordBatch]] = [[], []]
    for side in (LEFT, RIGHT):
        times = np.sort(rng.integers(0, 100 * parts, int(rng.integers(100, 200)) * parts))
        begin, disorder = 0, int(rng.choice([0, 1, 2])) if lateness else 0
        while begin < len(times):
            stop = min(len(times), begin + int(rng.integers(1, 300)))
            some = np.arange(begin, stop)
            pieces = [some]
            way = rng.integers(2) * disorder
            if way == 1:
                pieces = [some[np.argsort(times[some] + rng.integers(0, lateness + 1, len(some)), kind="stable")]]
            elif way == 2:
                stop = int(np.searchsorted(times, times[begin] + lateness, "right"))
                first = rng.random(stop - begin) < 0.5
                pieces = [np.arange(begin, stop)[first], np.arange(begin, stop)[~first]]
            for piece in pieces:
                columns = {"k": rng.integers(0, keys, len(piece)), "t": times[piece], "n": piece}
                sides[side].append(pa.record_batch(columns, schema=SIDE))
            begin = stop
    return sides


def run_random(seed: int) -> tuple[list[Any], list[Any], AsofJoin]:
    """What a join finds of inputs that are mostly in order, what it should, and the join: the memory may be small, one
    input may be ahead, and it may go on from a snapshot at any time.
    """
    rng = np.random.default_rng([seed, 23])
    how, tolerance = str(rng.choice(["inner", "left"])), [None, 5][int(rng.integers(2))]
    lateness, keys = int(rng.choice([0, 30])), int(rng.choice([1, 5, 60]))
    spec = AsofSpec(SIDE, SIDE, parse_on("k"), how, times=parse_asof("t", tolerance=tolerance, lateness=lateness))
    memory = AsofJoin.least_memory(spec) + int(rng.choice([0, 20_000, 500_000]))
    store = MemoryStore()
    join = AsofJoin(spec, memory, store, fan_in=3)
    sides = sides_of(rng, keys, lateness, parts=12)
    rows = [[row for batch in side for row in batch.to_pylist()] for side in sides]
    waiting, found = [list(side) for side in sides], []
    ahead = rng.choice([0.1, 0.5, 0.9])
    while any(waiting):
        side = int(rng.random() < ahead) if all(waiting) else int(not waiting[0])
        found += feed(join, Arrive(side, waiting[side].pop(0)))
        if rng.random() < 0.05:
            swept = join.events["swept"]
            join = AsofJoin.restore(spec, join.snapshot(), memory, store, fan_in=3)
            join.events["swept"] += swept
    for side in (LEFT, RIGHT):
        found += feed(join, End(side))
    return found, answers(rows, how, tolerance), join


def is_right(seed: int) -> bool:
    try:
        found, expected, _ = run_random(seed)
    except (AssertionError, IndexError):
        return False
    return Counter(map(str, found)) == Counter(map(str, expected))


def test_rows_mostly_in_order_in_any_memory_and_after_snapshots() -> None:
    swept = spilled = both = 0
    for seed in range(CASES):
        found, expected, join = run_random(seed)
        assert Counter(map(str, found)) == Counter(map(str, expected)), seed
        swept += join.events["swept"] > 0
        spilled += join.store.bytes_written > 0
        both += join.events["swept"] > 0 and join.events["right rows written"] > 0
    assert swept > CASES / 2 and spilled > CASES / 8 and both > 2, (swept, spilled, both)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_condition_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, broken = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, broken)
    assert not all(map(is_right, range(CASES)))


def feed(join: AsofJoin, event: Any) -> list[Any]:
    join.receive(event)
    found: list[Any] = []
    status = Status.HAS_OUTPUT
    while status is Status.HAS_OUTPUT or (status is not Status.DONE and join.wake_at() is not None):
        step = join.poll(0.0, 1 << 16)
        found += step.out.to_pylist() if step.out is not None else []
        status = step.status
        join.check()
    return found


@pytest.mark.parametrize("keys", [1, 7, 400, 5000])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("tolerance", [None, 3])
def test_rows_in_order_are_swept_whatever_the_number_of_keys(keys: int, how: str, tolerance: int | None) -> None:
    """Slots grow with the keys, rows that nobody asks for go, and every answer is the one that a search finds."""
    spec = AsofSpec(SIDE, SIDE, parse_on("k"), how, times=parse_asof("t", tolerance=tolerance, lateness=0))
    join = AsofJoin(spec, 2 << 20, MemoryStore())
    rng = np.random.default_rng(keys)
    found: list[Any] = []
    sides: list[list[Any]] = [[], []]
    for part in range(12):
        for side in rng.permutation([LEFT, RIGHT]).tolist():
            rows = int(rng.integers(1, 1500))
            times = np.sort(rng.integers(part * 1000, (part + 1) * 1000 + 200, rows))
            times = np.maximum(times, max((row["t"] for row in sides[side]), default=0))
            table = {"k": rng.integers(0, keys, rows), "t": times, "n": np.arange(rows) + 10_000 * part}
            batch = pa.record_batch(table, schema=SIDE)
            sides[side] += batch.to_pylist()
            found += feed(join, Arrive(side, batch))
    for side in (LEFT, RIGHT):
        found += feed(join, End(side))
    assert join.events["swept"] > 5 and not join.events["right rows written"]
    assert sorted(map(str, found)) == sorted(map(str, answers(sides, how, tolerance)))


def answers(sides: list[list[Any]], how: str, tolerance: int | None) -> list[Any]:
    """Of each left row the last right row up to its time, of those of one time the last that came."""
    newest: dict[int, Any] = {}
    lefts, rights = (sorted(side, key=lambda row: row["t"]) for side in sides)
    coming = iter(rights)
    waiting = next(coming, None)
    found = []
    for row in lefts:
        while waiting is not None and waiting["t"] <= row["t"]:
            newest[waiting["k"]] = waiting
            waiting = next(coming, None)
        partner = newest.get(row["k"])
        if partner is not None and tolerance is not None and row["t"] - partner["t"] > tolerance:
            partner = None
        if partner is not None or how == "left":
            told = partner or {"t": None, "n": None}
            found.append({**row, "t_right": told["t"], "n_right": told["n"]})
    return found


def test_the_input_that_has_come_further_can_wait() -> None:
    """If as many of its rows wait as are looked up together, and the times of both inputs say something."""

    def ahead(lateness: Any, *came: tuple[int, int]) -> int | None:
        spec = AsofSpec(SIDE, SIDE, parse_on("k"), times=parse_asof("t", lateness=lateness))
        join = AsofJoin(spec, 600_000, MemoryStore())
        for side, until in came:
            times = np.linspace(max(join.newest[side], 0), until, join.sizing.pairs).astype(np.int64)
            feed(join, Arrive(side, pa.record_batch({"k": times % 10, "t": times, "n": times}, schema=SIDE)))
        return join.ahead

    assert ahead(0) is None
    assert ahead(0, (LEFT, 500)) == LEFT
    assert ahead(0, (RIGHT, 500)) == RIGHT
    assert ahead(0, (LEFT, 500), (RIGHT, 500)) is None
    assert ahead(0, (LEFT, 500), (RIGHT, 900), (RIGHT, 1000)) == RIGHT
    assert ahead(0, (LEFT, 500), (RIGHT, 900), (RIGHT, 1000), (LEFT, 2000), (LEFT, 3000)) == LEFT
    assert ahead("unlimited", (LEFT, 500)) is None


@pytest.mark.parametrize("differ", [False, True])
def test_keys_that_a_hash_does_not_tell_are_compared(differ: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings are swept; from the first two on that have one hash and differ, all rows are searched for."""
    if differ:
        monkeypatch.setattr(AsofCodec, "hash", lambda self, side, columns: (np.zeros(len(columns[0]), np.int64), None))
    side = pa.schema({"k": pa.string(), "t": pa.int64(), "n": pa.int64()})
    spec = AsofSpec(side, side, parse_on("k"), "left", times=parse_asof("t", lateness=0))
    join = AsofJoin(spec, 2 << 20, MemoryStore())
    rng = np.random.default_rng(9)
    found: list[Any] = []
    sides: list[list[Any]] = [[], []]
    for part in range(6):
        for number in (LEFT, RIGHT):
            times = np.sort(rng.integers(part * 100, part * 100 + 100, 300))
            keys = pa.array([f"key {key}" for key in rng.integers(0, 20, 300)])
            batch = pa.record_batch({"k": keys, "t": times, "n": np.arange(300)}, schema=side)
            sides[number] += batch.to_pylist()
            found += feed(join, Arrive(number, batch))
    for number in (LEFT, RIGHT):
        found += feed(join, End(number))
    assert Counter(map(str, found)) == Counter(map(str, answers(sides, "left", None)))
    assert (join.events["swept"] == 0) == differ


def test_what_left_rows_have_passed_is_let_go() -> None:
    """Of 40,000 rows in order, those of ten keys that left rows have passed stay, and the last few."""
    spec = AsofSpec(SIDE, SIDE, parse_on("k"), times=parse_asof("t", lateness=0))
    join = AsofJoin(spec, 600_000, MemoryStore())
    most = 0
    for part in range(40):
        times = np.arange(1000) + 1000 * part
        for side in (LEFT, RIGHT):
            feed(join, Arrive(side, pa.record_batch({"k": times % 10, "t": times, "n": times}, schema=SIDE)))
            most = max(most, join.window_rows)
    assert join.events["right rows stayed"] > 3 and not join.store.names()
    assert most < 2500
