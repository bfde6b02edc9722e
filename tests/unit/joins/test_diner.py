"""DINER: which blocks have met, who keeps the memory, and when the loop gives way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watersmeet as wm
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Stall, Status
from watersmeet.core.spec import JoinSpec, Output, band, parse_on
from watersmeet.drivers.cost_model import CostModel
from watersmeet.drivers.simulate import simulate
from watersmeet.engine.sizing import Grain
from watersmeet.joins.progressive.block_loop import Loop, NestedLoop
from watersmeet.joins.progressive.diner import Diner
from watersmeet.sources.schedules import Schedule
from watersmeet.spill.store import MemoryStore
from watersmeet.tables import range_table
from watersmeet.tables.range_table import LooseRows, SortedSide

SCHEMA = pa.schema({"k": pa.int64(), "text": pa.string()})
MEMORY = 64 * 1024


def batch(keys: Any) -> pa.RecordBatch:
    keys = np.asarray(keys, np.int64)
    return pa.record_batch([pa.array(keys), pa.array(["x" * 40] * len(keys))], schema=SCHEMA)


def diner(on: Any = "k", memory: int = MEMORY, output: Output = Output.PAIRS, **options: Any) -> Diner:
    return Diner(JoinSpec(SCHEMA, SCHEMA, parse_on(on), output=output), memory, MemoryStore(), **options)


def work_off(join: Diner, pairs: list[tuple[int, int]], until: tuple[Status, ...]) -> None:
    for _ in range(100_000):
        step = join.poll(0.0, 500)
        join.check()
        if step.out is not None:
            pairs += zip(*(column.to_pylist() for column in step.out.columns), strict=True)
        if step.status in until:
            return
    raise AssertionError("does not come to an end")


def arrive(join: Diner, side: int, keys: Any, pairs: list[tuple[int, int]]) -> None:
    join.receive(Arrive(side, batch(keys)))
    work_off(join, pairs, (Status.NEED_INPUT, Status.HAS_WORK))


def all_pairs(join: Diner, left: Any, right: Any) -> list[tuple[int, int]]:
    return reference_pairs(pa.Table.from_batches([batch(left)]), pa.Table.from_batches([batch(right)]), join.spec)


# --- the counters ---


class Recorded(Loop):
    """A loop that notes which blocks met, and checks that the counters say the same."""

    def __init__(self, disks: Any) -> None:
        super().__init__(disks)
        self.pairs: list[tuple[int, int]] = []

    def inner_block_met(self) -> None:
        outer, inner, first, count, current = (
            self.outer,
            self.inner,
            self.joined[self.outer],
            self.loaded,
            self.current,
        )
        assert current < self.joined[inner]
        super().inner_block_met()
        for block in range(first, first + count):
            pair = (block, current) if outer == LEFT else (current, block)
            self.pairs.append(pair)

    def check(self) -> None:
        super().check()
        within = {(i, j) for i in range(self.joined[0]) for j in range(self.joined[1])}
        at_hand = {
            (i, j) if self.outer == LEFT else (j, i)
            for i in range(self.joined[self.outer], self.joined[self.outer] + self.loaded)
            for j in range(self.current)
        }
        assert len(self.pairs) == len(set(self.pairs)), "no two blocks meet twice"
        assert set(self.pairs) == within | at_hand


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["left", "right", "steps"]), st.integers(1, 6), st.integers(1, 3)), max_size=30)
)
def test_the_first_joined_outer_blocks_have_met_the_first_joined_inner_blocks(
    script: list[tuple[str, int, int]],
) -> None:
    """Both sides grow at any time, and the loop stops after any inner block."""
    disks: tuple[list[int], list[int]] = ([], [])
    loop = Recorded(disks)

    def step(memory: int) -> None:
        loop.choose_roles()
        if not loop.current and not loop.loaded:
            loop.loaded = min(memory, len(disks[loop.outer]) - loop.joined[loop.outer])
        loop.inner_block_met()
        loop.check()

    for what, count, memory in script:
        if what == "steps":
            for _ in range(count):
                if loop.unmet:
                    step(memory)
        else:
            disks[what == "right"].extend(range(count))
            loop.check()
    while loop.unmet:
        step(2)
    assert set(loop.pairs) == {(i, j) for i in range(len(disks[0])) for j in range(len(disks[1]))}


def test_the_inner_side_grows_after_everything_has_met() -> None:
    """Where the paper's algorithm would look for new blocks on the outer side only."""
    disks: tuple[list[int], list[int]] = ([0, 1], [0, 1, 2])
    loop = Recorded(disks)

    def run() -> None:
        while loop.unmet:
            loop.choose_roles()
            loop.loaded = loop.loaded or 1
            loop.inner_block_met()
            loop.check()

    run()
    for _ in range(3):
        disks[loop.inner].append(9)
        run()
        disks[loop.outer].append(9)
        run()
    assert len(loop.pairs) == len(disks[0]) * len(disks[1])


def test_the_running_join_keeps_the_invariant() -> None:
    rng = np.random.default_rng(4)
    join, pairs = diner(), []
    join.loop = Recorded(join.disks)
    keys = [rng.integers(0, 3000, 2000) for _ in range(2)]
    reactive = 0
    for start in range(0, 2000, 100):
        for side in (LEFT, RIGHT):
            arrive(join, side, keys[side][start : start + 100], pairs)
        join.receive(Stall())
        for _ in range(6):
            step = join.poll(0.0, 300)
            join.check()
            reactive += join.phase == "reactive"
            if step.out is not None:
                pairs += zip(*(column.to_pylist() for column in step.out.columns), strict=True)
    loop = join.loop
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    work_off(join, pairs, (Status.DONE,))
    assert reactive > 20
    assert isinstance(loop, Recorded) and len(loop.pairs) > 20
    assert sorted(pairs) == all_pairs(join, *keys)


# --- memory ---


def test_pauses_read_several_pages_at_once_in_memory_that_arrivals_get_back() -> None:
    rng = np.random.default_rng(5)
    join, pairs = diner(), []
    keys = [rng.integers(0, 3000, 3000) for _ in range(2)]
    claimed = given_back = 0
    for start in range(0, 3000, 100):
        for side in (LEFT, RIGHT):
            arrive(join, side, keys[side][start : start + 100], pairs)
            given_back += claimed > 0 and not join.budget.breakdown()["inner pages"]
        join.receive(Stall())
        for _ in range(4):
            step = join.poll(0.0, 300)
            join.check()
            claimed += join.phase == "reactive" and join.budget.breakdown()["inner pages"] >= join.sizing.page_bytes
            if step.out is not None:
                pairs += zip(*(column.to_pylist() for column in step.out.columns), strict=True)
    assert claimed > 5 and given_back > 5
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    work_off(join, pairs, (Status.DONE,))
    assert sorted(pairs) == all_pairs(join, *keys)


def test_values_that_bring_nothing_leave_first() -> None:
    """The values of both inputs rise: what both bring now stays, and nearly all results come early."""
    join, pairs = diner(), []
    for start in range(0, 6000, 100):
        arrive(join, LEFT, range(start, start + 100), pairs)
        arrive(join, RIGHT, range(start - 50, start + 50), pairs)
    assert join.cost.pages_written > 0
    assert len(pairs) > 0.9 * 5_950
    kept = join.side(LEFT).hashes(join.side(LEFT).rows_of())
    assert np.median(kept) > 5_000


def test_memory_goes_to_the_input_that_has_ended() -> None:
    join, pairs = diner(), []
    arrive(join, LEFT, range(400), pairs)
    arrive(join, RIGHT, range(200), pairs)
    join.receive(End(LEFT))
    kept = join.side(LEFT).rows
    for start in range(1000, 6000, 100):
        arrive(join, RIGHT, range(start, start + 100), pairs)
    assert join.side(LEFT).rows == kept, "only rows that nobody will look for left memory"
    join.receive(End(RIGHT))
    work_off(join, pairs, (Status.DONE,))
    assert sorted(pairs) == [(i, i) for i in range(200)]


def with_left_ended() -> tuple[Diner, list[tuple[int, int]]]:
    """400 rows of a left input that has ended, partly on disk, and 900 of a right one that goes on."""
    join: Diner = diner()
    pairs: list[tuple[int, int]] = []
    arrive(join, LEFT, range(400), pairs)
    arrive(join, RIGHT, range(1000, 1900), pairs)
    join.flush(LEFT)
    assert not pairs
    join.receive(End(LEFT))
    join.poll(0.0, 1)
    join.check()
    return join, pairs


def test_blocks_of_an_ended_input_come_back_and_later_rows_need_not_be_kept() -> None:
    join, pairs = with_left_ended()
    assert join.resident.covers(LEFT) and not join.side(RIGHT).rows
    written = join.cost.pages_written
    arrive(join, RIGHT, range(400), pairs)
    assert sorted(pairs) == [(i, 900 + i) for i in range(400)], "all of them early"
    assert join.cost.pages_written == written
    join.receive(End(RIGHT))
    work_off(join, pairs, (Status.DONE,))
    assert len(pairs) == 400


def test_blocks_that_came_back_and_left_again() -> None:
    join, pairs = with_left_ended()
    arrive(join, RIGHT, range(250), pairs)
    join.resident.drop()
    arrive(join, RIGHT, range(250, 400), pairs)
    assert 250 <= len(pairs) < 400
    carried = join.snapshot()
    join = Diner.restore(join.spec, carried, MEMORY, join.store)
    join.receive(End(RIGHT))
    work_off(join, pairs, (Status.DONE,))
    assert sorted(pairs) == [(i, 900 + i) for i in range(400)]


def test_a_snapshot_brings_the_blocks_back_again() -> None:
    join, pairs = with_left_ended()
    arrive(join, RIGHT, range(250), pairs)
    join = Diner.restore(join.spec, join.snapshot(), MEMORY, join.store)
    assert join.resident.covers(LEFT)
    arrive(join, RIGHT, range(250, 400), pairs)
    assert sorted(pairs) == [(i, 900 + i) for i in range(400)]


def test_one_value_only_squeezes_the_middle() -> None:
    join, pairs = diner(), []
    for _ in range(8):
        arrive(join, LEFT, [7] * 100, pairs)
        arrive(join, RIGHT, [7] * 100, pairs)
    assert join.cost.pages_written > 0
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    work_off(join, pairs, (Status.DONE,))
    assert len(pairs) == len(set(pairs)) == 800 * 800


def test_blocks_on_disk_are_sorted() -> None:
    join, pairs = diner(band("k", 2)), []
    arrive(join, LEFT, np.random.default_rng(1).permutation(3000), pairs)
    assert len(join.disks[LEFT]) > 2
    for number, block in enumerate(join.disks[LEFT]):
        pages = [join.disks[LEFT].read(number, page).hashes for page in range(len(block.page_ends))]
        words = np.concatenate(pages)
        assert (np.diff(words) >= 0).all()
        assert (block.first, block.last) == (words[0], words[-1])


# --- giving way ---


def on_disk(**options: Any) -> tuple[Diner, list[tuple[int, int]]]:
    join: Diner = diner(**options)
    pairs: list[tuple[int, int]] = []
    rng = np.random.default_rng(2)
    for _ in range(20):
        for side in (LEFT, RIGHT):
            arrive(join, side, rng.integers(0, 500, 100), pairs)
    join.receive(Stall())
    join.poll(0.0, 10)
    assert isinstance(join._task, NestedLoop)
    return join, pairs


def test_new_rows_wait_for_one_inner_block_at_most() -> None:
    join, _ = on_disk()
    met: list[int] = []
    block_met = join.loop.inner_block_met

    def noted() -> None:
        met.append(join.loop.current)
        block_met()

    join.loop.inner_block_met = noted  # type: ignore[method-assign]
    join.receive(Arrive(LEFT, batch([1])))
    while join.phase == "reactive":
        assert join.poll(0.0, 1).status is Status.HAS_OUTPUT
    assert len(met) <= 1
    join.poll(0.0, 1)
    assert join.side(LEFT).latest_tick(0) == join.clock, "the row has arrived"


def fragments(rows: int, parts: int, gap: float) -> Schedule:
    """Rows at 1,000 a second and side, with a silence after each fragment, and one value for all in a hundred."""
    rng = np.random.default_rng(11)
    times = [np.sort(rng.random(rows)) * rows / 1000 for _ in (LEFT, RIGHT)]
    times = [each + gap * np.floor(parts * each / (rows / 1000)) for each in times]
    return Schedule([pa.table({"k": rng.integers(0, 2000, rows)}) for _ in (LEFT, RIGHT)], times)


@pytest.mark.parametrize("most", [0, 300])
def test_rows_wait_in_the_reactive_phase_as_many_as_may(most: int) -> None:
    schedule = fragments(12_000, 6, gap=0.4)
    disk = CostModel(random_page=0.02, sequential_page=0.005)
    trace = simulate("diner", schedule, on="k", memory=200_000, cost=disk, quantum=0.01, max_new_arrivals=most)
    everything = simulate("symmetric_hash", schedule, on="k", memory="64 MiB", quantum=0.01)
    assert trace.total == everything.total
    reactive = trace.input_buffer[trace.phase == "reactive"]
    assert len(reactive) > 20
    if most:
        assert most < reactive.max() <= 2 * most
    else:
        assert reactive.max() < 100, "only what comes while an inner block is joined"


class FullAfter(MemoryStore):
    """Takes so many segments more, then none; None: any number."""

    room: int | None = None

    def create(self, name: str) -> Any:
        if self.room == 0:
            raise wm.SpillError("the disk is full")
        self.room = None if self.room is None else self.room - 1
        return super().create(name)


def test_rows_that_found_no_room_are_not_lost_when_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FullAfter()
    join = Diner(JoinSpec(SCHEMA, SCHEMA, parse_on("k"), output=Output.PAIRS), MEMORY, store)
    remove = SortedSide.remove

    def remove_more(table: SortedSide, rows: Any) -> list[LooseRows]:
        """As if the first rows that stay found no room."""
        extra = np.setdiff1d(table.rows_of(), rows)[:5].astype(np.int32)
        columns = [table.gather(column, extra) for column in range(len(table.types))]
        loose = LooseRows(table.types, table.hashes(extra), table.ticks(extra), columns)
        assert not remove(table, np.concatenate([rows, extra]))
        return [loose]

    monkeypatch.setattr(SortedSide, "remove", remove_more)
    rng = np.random.default_rng(3)
    keys: list[list[int]] = [[], []]
    pairs: list[tuple[int, int]] = []
    failures = 0
    for number in range(60):
        side = number % 2
        some = rng.integers(0, 300, 60).tolist()
        keys[side] += some
        join.receive(Arrive(side, batch(some)))
        store.room = 1  # the block is written, and what found no room is not
        for _ in range(1000):
            try:
                step = join.poll(0.0, 500)
            except wm.SpillError:
                failures += bool(join._loose)
                store.room = None
                continue
            if step.out is not None:
                pairs += zip(*(column.to_pylist() for column in step.out.columns), strict=True)
            if step.status is not Status.HAS_OUTPUT:
                break
        join.check()
    store.room = None
    assert failures > 0, "the disk refused what had left memory"
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    work_off(join, pairs, (Status.DONE,))
    assert sorted(pairs) == all_pairs(join, *keys)


@pytest.mark.parametrize("options", [{"max_new_arrivals": -1}, {"max_outer_blocks": 0}])
def test_options_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(wm.SpecError, match="max_"):
        diner(**options)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_how_many_outer_blocks_are_loaded_does_not_matter(most: int) -> None:
    join, pairs = on_disk(max_outer_blocks=most)
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    work_off(join, pairs, (Status.DONE,))
    rng = np.random.default_rng(2)
    keys: list[list[int]] = [[], []]
    for _ in range(20):
        for side in (LEFT, RIGHT):
            keys[side] += rng.integers(0, 500, 100).tolist()
    assert sorted(pairs) == all_pairs(join, *keys)
    assert not join.store.names(), "nothing is left on disk"


@pytest.mark.parametrize("most", [9, 19, 29])
def test_as_many_blocks_leave_memory_as_are_loaded_in_their_place(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more at most: memory is handed from one table to another by smaller units than blocks."""
    schema = pa.schema({"k": pa.int64()})
    spec = JoinSpec(schema, schema, parse_on("k"), output=Output.COUNTS)
    join = Diner(spec, 192 * 1024, MemoryStore(), max_outer_blocks=most, grain=Grain(block_rows=51, pairs=64))
    flushed: list[int] = []
    flush = Diner.flush

    def counting(self: Diner, side: int, everything: bool = False) -> None:
        flushed.append(len(self.disks[side]))
        flush(self, side, everything)

    monkeypatch.setattr(Diner, "flush", counting)
    rng = np.random.default_rng(5)
    while min(map(len, join.disks)) < 45:
        for side in (LEFT, RIGHT):
            join.receive(Arrive(side, pa.record_batch({"k": rng.integers(0, 999, 100)})))
            while join.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                pass
    flushed.clear()
    join.receive(Stall())
    while not join.loop.loaded:
        join.poll(0.0, 1)
        join.check()
    assert join.loop.loaded == most
    assert 0 < len(flushed) <= most + 1
    join.close()


def test_rows_from_as_many_blocks_as_there_are_slots_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_table, "_MOST_SLOTS", 3)
    join, pairs = on_disk(max_outer_blocks=9)
    join.receive(Stall())
    loaded = 0
    for _ in range(1000):
        step = join.poll(0.0, 100)
        if step.out is not None:
            pairs += zip(*(column.to_pylist() for column in step.out.columns), strict=True)
        loaded = max(loaded, join.loop.loaded)
    assert 0 < loaded <= 3
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    work_off(join, pairs, (Status.DONE,))
    assert len(pairs) == len(set(pairs)) > 0
