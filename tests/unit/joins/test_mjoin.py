"""MJoin in small: its spec, its order of look-ups, the paper's worked example, and what it counts."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import BudgetError, SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Stall, Status
from watersmeet.core.spec import Output
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.planner import MULTIWAY
from watersmeet.policies.flush import coordinated, largest, many_flush, scattered
from watersmeet.spill.store import MemoryStore

KEY = pa.schema({"v": pa.string()})


def spec(names: str, on: list[str], schema: pa.Schema = KEY, output: Output = Output.PAIRS) -> MultiSpec:
    return MultiSpec.of(dict.fromkeys(names, schema), on, output)


# --- the spec ---


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("r.v < s.v", "is not understood"),
        ("r.v = x.v", "names no input"),
        ("r.v = r.v", "within one input"),
        ("r.v = s.w", "join column 'w' is not in s; it has v"),
        ([], "is not understood"),
        (["r.v = s.v"], "nothing joins t with r, s"),
    ],
)
def test_what_cannot_be_joined_is_refused(on: str | list[str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        MultiSpec.of(dict.fromkeys("rst", KEY), on)


def test_types_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(SpecError, match=r"r.v \(string\) cannot be compared with s.v \(int64\)"):
        MultiSpec.of({"r": KEY, "s": pa.schema({"v": pa.int64()})}, "r.v = s.v")


def test_columns_of_one_name_that_are_joined_come_out_once_and_others_get_their_inputs_name() -> None:
    schema = pa.schema({"id": pa.int64(), "note": pa.string()})
    made = MultiSpec.of({"r": schema, "s": schema, "t": pa.schema({"id": pa.int32(), "x": pa.bool_()})},
                        ["r.id = s.id", "s.id = t.id"])  # fmt: skip
    assert made.schema.names == ["id", "r_note", "s_note", "x"]
    assert made.on_one_attribute


def test_an_input_joined_on_one_column_in_two_forms_has_two_attributes() -> None:
    made = MultiSpec.of(
        {"r": pa.schema({"a": pa.int64()}), "s": pa.schema({"b": pa.int64()}), "t": pa.schema({"c": pa.float64()})},
        ["r.a = s.b", "r.a = t.c"],
    )
    assert [len(each) for each in made.attributes] == [2, 1, 1]
    assert not made.on_one_attribute


# --- the policies ---


def test_coordinated_flushing_goes_on_with_the_partitions_it_began_with() -> None:
    in_memory = np.array([[100, 800], [100, 800]])
    on_disk = np.array([[5, 0], [0, 0]])
    assert coordinated(in_memory, on_disk, 1) == {0: [0, 1], 1: [0, 1]}  # the first alone frees too little
    assert coordinated(np.array([[400, 800], [400, 800]]), on_disk, 1) == {0: [0], 1: [0]}
    assert largest(in_memory, on_disk, 1) == {0: [1]}
    assert largest(np.array([[9, 8], [7, 6]]), on_disk, 1) == {0: [0, 1], 1: [0, 1]}  # too few to be picky
    assert scattered(in_memory, on_disk, 3) == scattered(in_memory, on_disk, 3)


def test_coordinated_flushing_needs_one_attribute() -> None:
    with pytest.raises(SpecError, match="joined on several"):
        many_flush("coordinated", on_one_attribute=False)
    with pytest.raises(SpecError, match="is not known"):
        many_flush("smallest", on_one_attribute=True)


# --- the paper's example of section 2.7 ---


class Example:
    """Three inputs of one attribute, flushed by hand."""

    def __init__(self) -> None:
        self.join = MJoin(spec("abc", ["a.v = b.v", "b.v = c.v"]), 1 << 20, MemoryStore())

    def arrive(self, number: int, *values: str) -> list[tuple[int, ...]]:
        self.join.receive(Arrive(number, pa.record_batch({"v": list(values)}, KEY)))
        return self.run(Status.NEED_INPUT)

    def run(self, *until: Status) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        while True:
            step = self.join.poll(0.0, 100)
            self.join.check()
            if step.out is not None:
                found += [tuple(row.values()) for row in step.out.to_pylist()]
            if step.status in until:
                return found

    def flush(self, number: int) -> None:
        rows = self.join.tables[number].part_rows
        self.join.overflow.policy = lambda *_: {number: np.flatnonzero(rows).tolist()}
        assert self.join._make_room()


def test_the_worked_example_of_overflow_visits_and_clean_up() -> None:
    example = Example()
    assert example.arrive(1, "d", "f") == []  # d arrives on the second input, and leaves memory
    example.flush(1)
    assert example.arrive(0, "d") == []
    example.flush(0)
    assert example.arrive(0, "d", "b") == []  # another d, which stays
    assert example.arrive(1, "b", "f") == []
    assert example.arrive(2, "f") == []  # f has no partner in the first input
    assert example.arrive(2, "b") == [(2, 2, 1)]  # all three in memory
    assert example.arrive(2, "d") == []  # the second input's d is on disk
    example.join.receive(Stall())
    assert example.run(Status.NEED_INPUT) == [(1, 0, 2)]  # the second input's disk visits the memory of the others
    assert example.join.phase != "clean-up"
    for number in range(3):
        example.join.receive(End(number))
    assert example.run(Status.DONE) == [(0, 0, 2)]  # once: the combination with the other d came before
    assert example.join.cost.pages_written == 2


# --- the paper's formulas of section 2.5 ---


@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_what_an_arrival_finds_after_an_overflow_follows_the_papers_formulas(inputs: int) -> None:
    """Half of every input is on disk: of n^(k-1) s^(k-1) results, an arrival finds the half if the same partitions
    were flushed of all inputs, and half to the power of k-1 if they were flushed independently; for two it is the same.
    """
    keys, times, part_in_memory = 512, 4, 0.5
    found = {}
    for flushing in ("none", "coordinated", "independent"):
        names = "abcd"[:inputs]
        on = [f"{left}.v = {right}.v" for left, right in pairwise(names)]
        join = MJoin(spec(names, on, pa.schema({"v": pa.int64()}), Output.COUNTS), 8 << 20, MemoryStore())
        for number in range(inputs):
            join.receive(Arrive(number, pa.record_batch({"v": np.tile(np.arange(keys), times)})))
            while join.poll(0.0, 100_000).status is Status.HAS_OUTPUT:
                pass
        parts = np.arange(join.sizing.layout.partitions)
        assert len(parts) >= 16, "as many halves as inputs can be chosen independently of each other"
        gone = {
            "none": {},
            "coordinated": {number: parts[parts % 2 == 1].tolist() for number in range(inputs)},
            "independent": {number: parts[(parts >> number) % 2 == 1].tolist() for number in range(inputs)},
        }[flushing]
        join.overflow.policy = lambda *_, gone=gone: gone
        assert join._make_room() == bool(gone)
        before = join.cost.results
        join.receive(Arrive(0, pa.record_batch({"v": np.arange(keys)})))
        while join.poll(0.0, 100_000).status is Status.HAS_OUTPUT:
            pass
        found[flushing] = (join.cost.results - before) / keys
    everything = (keys * times) ** (inputs - 1) * (1 / keys) ** (inputs - 1)
    assert found["none"] == everything
    assert found["coordinated"] == pytest.approx(part_in_memory * everything, rel=0.15)
    assert found["independent"] == pytest.approx(part_in_memory ** (inputs - 1) * everything, rel=0.25)


# --- look-ups ---


def test_look_ups_begin_with_the_input_that_matches_least() -> None:
    schema = pa.schema({"v": pa.int64()})
    join = MJoin(spec("rst", ["r.v = s.v", "r.v = t.v"], schema, Output.COUNTS), 8 << 20, MemoryStore())
    join.receive(Arrive(1, pa.record_batch({"v": np.zeros(1000, np.int64)})))
    join.receive(Arrive(2, pa.record_batch({"v": np.arange(1000) + 5})))
    while join.poll(0.0, 10_000).status is Status.HAS_OUTPUT:
        pass
    join.receive(Arrive(0, pa.record_batch({"v": np.zeros(50, np.int64)})))
    while join.poll(0.0, 10_000).status is Status.HAS_OUTPUT:
        pass
    assert [step.input for step in join.order.of(0)] == [2, 1]


def test_a_pinned_order_is_kept_and_checked() -> None:
    made = spec("rst", ["r.v = s.v", "s.v = t.v"])
    pinned = {"r": ["s", "t"], "s": ["t", "r"], "t": ["s", "r"]}
    join = MJoin(made, 1 << 20, MemoryStore(), probing=pinned)
    assert [step.input for step in join.order.of(1)] == [2, 0]
    with pytest.raises(SpecError, match="must give, for each of r, s, t"):
        MJoin(made, 1 << 20, MemoryStore(), probing={"r": ["s", "t"]})
    with pytest.raises(SpecError, match="must name every other input once"):
        MJoin(made, 1 << 20, MemoryStore(), probing={**pinned, "r": ["s", "s"]})


def test_every_row_is_hashed_and_moved_once() -> None:
    schema = pa.schema({"v": pa.int64()})
    join = MJoin(spec("rst", ["r.v = s.v", "s.v = t.v"], schema, Output.COUNTS), 8 << 20, MemoryStore())
    for number in range(3):
        join.receive(Arrive(number, pa.record_batch({"v": np.arange(500) % 10})))
    while join.poll(0.0, 10_000).status is Status.HAS_OUTPUT:
        pass
    assert (join.cost.hashes, join.cost.inserts, join.cost.results) == (1500, 1500, 10 * 50**3)


# --- wm.multijoin ---


def tables() -> dict[str, pa.Table]:
    rng = np.random.default_rng(5)
    return {
        "r": pa.table({"a": rng.integers(0, 300, 3000), "x": np.arange(3000)}),
        "s": pa.table({"a": rng.integers(0, 300, 3000), "b": rng.integers(0, 400, 3000)}),
        "t": pa.table({"b": rng.integers(0, 400, 1000), "y": np.arange(1000), "pad": ["p" * 200] * 1000}),
    }


def test_multijoin_equals_joins_in_sequence_in_memory_and_on_disk() -> None:
    inputs = tables()
    expected = inputs["r"].join(inputs["s"], "a", join_type="inner").join(inputs["t"], "b", join_type="inner")
    order = [(name, "ascending") for name in ("x", "y", "a", "b")]
    names = ["a", "x", "b", "y", "pad"]
    wanted = expected.select(names).sort_by(order)
    for memory in ("16 MiB", "400 KiB"):
        small = {name: iter(table.to_batches(max_chunksize=64)) for name, table in inputs.items()}
        result = wm.multijoin(small, on=["r.a = s.a", "s.b = t.b"], memory=memory)
        assert result.table().select(names).sort_by(order).equals(wanted)
        assert (result.progress.spilled > 0) == (memory == "400 KiB")
        assert result.progress.algorithm == "confluence"
        assert result.progress.peak <= result.progress.budget


def test_multijoin_refuses_what_it_cannot_do_before_a_row_is_read() -> None:
    with pytest.raises(BudgetError, match="memory of 20 KiB is too small"):
        wm.multijoin(tables(), on=["r.a = s.a", "s.b = t.b"], memory="20 KiB")
    with pytest.raises(SpecError, match="'xjoin' is not known; choose auto, or one of confluence, miner, mjoin, tree"):
        wm.multijoin(tables(), on=["r.a = s.a", "s.b = t.b"], algorithm="xjoin")
    with pytest.raises(SpecError, match="has no option 'speed'"):
        wm.multijoin(tables(), on=["r.a = s.a", "s.b = t.b"], speed=3)


# --- snapshots ---


def _visiting(fuel: int) -> tuple[MJoin, MultiSpec, MemoryStore, list[pa.Table], list[dict[str, object]], bool]:
    """A join that was stopped in a silence when so much fuel was used, and what it had found by then."""
    made, store = spec("rst", ["r.k = s.k", "s.k = t.k"], WIDE, Output.ROWS), MemoryStore()
    join = MJoin(made, 128 * 1024, store)
    tables = [
        pa.table({"k": [i % 60 for i in range(240)], "w": [f"{n}.{i:03}" * 60 for i in range(240)]}) for n in "rst"
    ]
    found: list[dict[str, object]] = []
    for start in range(0, 180, 20):
        for number, table in enumerate(tables):
            join.receive(Arrive(number, table.slice(start, 20).to_batches()[0].cast(WIDE)))
            _drain(join, found)
    join.receive(Stall())
    before = len(found)
    step = join.poll(0.0, fuel)
    while True:
        if step.out is not None:
            found += step.out.to_pylist()
        if step.status is not Status.HAS_OUTPUT:
            break
        step = join.poll(0.0, 1)
    return join, made, store, tables, found, len(found) > before and step.status is Status.HAS_WORK


WIDE = pa.schema({"k": pa.int64(), "w": pa.string()})


def _drain(join: MJoin, found: list[dict[str, object]]) -> None:
    status = Status.HAS_OUTPUT
    while status is Status.HAS_OUTPUT:
        step = join.poll(0.0, 10_000)
        status = step.status
        if step.out is not None:
            found += step.out.to_pylist()


def test_rows_that_come_right_after_a_restore_do_not_bring_back_what_a_silence_has_found() -> None:
    stopped = 0
    for fuel in range(1, 600, 23):
        join, made, store, tables, found, halfway = _visiting(fuel)
        stopped += halfway
        join = MJoin.restore(made, join.snapshot(), 128 * 1024, store)
        for number, table in enumerate(tables):
            join.receive(Arrive(number, table.slice(180).to_batches()[0].cast(WIDE)))
            _drain(join, found)
        for number in range(3):
            join.receive(End(number))
        status = Status.HAS_OUTPUT
        while status is not Status.DONE:
            step = join.poll(0.0, 10_000)
            status = step.status
            found += step.out.to_pylist() if step.out is not None else []
        each = Counter(i % 60 for i in range(240))
        assert len(found) == sum(count**3 for count in each.values())
        assert len({tuple(row.values()) for row in found}) == len(found)
    assert stopped > 3, "some were stopped in the midst of a visit that had found something"


@pytest.mark.parametrize(
    "algorithm, tree, words",
    [
        ("mjoin", None, r"to remember what was spilled takes [\d.]+ KiB of 5[\d.]+ KiB of memory, and a row of"),
        ("tree", ("r", "s", "t"), r"a row of \w needs \d\d B; allow more memory \(the tree has 5[\d.]+ KiB, divided"),
    ],
)
def test_too_little_memory_for_what_was_spilled_is_told_with_true_figures(
    algorithm: str, tree: object, words: str
) -> None:
    schemas = {"r": pa.schema({"a": pa.int64()}), "s": pa.schema({"a": pa.int64(), "b": pa.int64()}),
               "t": pa.schema({"b": pa.int64()})}  # fmt: skip
    spec = MultiSpec.of(schemas, ["r.a = s.a", "s.b = t.b"], Output.COUNTS)  # nothing of the rows is kept but hashes
    options = {} if tree is None else {"tree": tree}
    least = MULTIWAY[algorithm].least_memory(spec, **options)
    join = MULTIWAY[algorithm](spec, least, MemoryStore(), **options)
    rng = np.random.default_rng(1)

    def work() -> None:
        for _ in range(200):
            for number, schema in enumerate(schemas.values()):
                batch = pa.record_batch({name: rng.integers(0, 2000, 50) for name in schema.names}, schema)
                join.receive(Arrive(number, batch))
                while join.poll(0.0, 1 << 20).status is Status.HAS_OUTPUT:
                    pass
            join.receive(Stall())
            for _ in range(20):
                join.poll(0.0, 1 << 14)

    with pytest.raises(BudgetError, match=words) as raised:
        work()
    told = re.search(r"spilled takes ([\d.]+) KiB of", str(raised.value))
    records = {name: size for name, size in join.budget.breakdown().items() if re.search("catalogue|history", name)}
    assert told is not None and float(told[1]) == pytest.approx(sum(records.values()) / 1024, abs=0.05)


def test_small_runs_become_one_and_every_result_still_comes_once() -> None:
    """Wide rows in the least memory: each run has few of them, and to remember all runs would fill the memory."""
    schema = pa.schema({"k": pa.int64(), "wide": pa.string()})
    asked = MultiSpec.of(dict.fromkeys("rst", schema), ["r.k = s.k", "s.k = t.k"])
    rng = np.random.default_rng(5)
    tables = [
        pa.record_batch({"k": rng.integers(0, 30, 90), "wide": ["x" * int(n) for n in rng.integers(900, 1500, 90)]})
        for _ in range(3)
    ]
    counts = [Counter(table.column("k").to_pylist()) for table in tables]
    expected = sum(counts[0][key] * counts[1][key] * counts[2][key] for key in range(30))
    assert expected > 500
    found, joined = 0, MJoin(asked, MJoin.least_memory(asked), MemoryStore())
    departures: set[int] = set()
    for first in range(0, 90, 6):
        for number, table in enumerate(tables):
            joined.receive(Arrive(number, table.slice(first, 6)))
            while (step := joined.poll(0.0, 500)).status is Status.HAS_OUTPUT or step.out is not None:
                found += 0 if step.out is None else step.out.num_rows
            joined.check()
        if first % 30 == 0:
            joined.receive(Stall())
            while (step := joined.poll(0.0, 500)).status in (Status.HAS_OUTPUT, Status.HAS_WORK):
                found += 0 if step.out is None else step.out.num_rows
    for run in (run for disk in joined.disks for run in disk.runs):
        departures |= set(np.unique(run.departures(np.arange(run.rows, dtype=np.int32))).tolist())
    runs = sum(len(disk.runs) for disk in joined.disks)
    assert runs < len(departures), "some runs have rows that left memory at several ticks"
    joined = MJoin.restore(asked, joined.snapshot(), joined.budget.total, joined.store)
    for number in range(3):
        joined.receive(End(number))
    while (step := joined.poll(0.0, 500)).status is not Status.DONE:
        found += 0 if step.out is None else step.out.num_rows
        joined.check()
    found += 0 if step.out is None else step.out.num_rows
    assert found == expected
