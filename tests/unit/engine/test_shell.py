"""Progressive joins under the microscope: prompt return, the protocol, snapshots, a full disk, damaged segments."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulate.faults import Fault
from simulate.stores import FaultyStore, flip_byte, truncate_at
from watersmeet.core.errors import BudgetError, ProtocolError, SegmentError, SnapshotError, SpecError, SpillError
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Event, Punctuate, Snapshot, Stall, Status, Step
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.engine.shell import Operator
from watersmeet.joins.progressive.symmetric_hash import SymmetricHash
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.spill import MemoryStore, Segment, Store, StoreWriter

KIB = 1024
SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), output=Output.PAIRS)


def rows(keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(np.asarray(keys, np.int64)), "v": [f"v{key}" for key in keys]}, SCHEMA)


class Driven:
    """An operator and all the pairs it has handed out."""

    def __init__(self, join: Operator, check_every: int = 1) -> None:
        self.join = join
        self.polls = 0
        self.check_every = check_every
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.status = Status.NEED_INPUT
        self.keys: list[list[int]] = [[], []]

    def arrive(self, side: int, keys: Any) -> None:
        self.join.receive(Arrive(side, rows(keys)))
        self.keys[side] += [int(key) for key in keys]

    def poll(self, fuel: int = 100) -> Step:
        step = self.join.poll(0.0, fuel)
        self.status = step.status
        if step.out is not None:
            left, right = (column.to_pylist() for column in step.out.columns)
            self.pairs.update(zip(left, right, strict=True))
        self.polls += 1
        if self.polls % self.check_every == 0:
            self.join.check()
        return step

    def settle(self, fuel: int = 100) -> None:
        """Poll until nothing must be polled."""
        self.poll(fuel)
        while self.status is Status.HAS_OUTPUT:
            self.poll(fuel)

    def react(self, fuel: int = 100) -> None:
        """Stall until there is no more work."""
        self.join.receive(Stall())
        self.settle(fuel)
        while self.status is Status.HAS_WORK:
            self.poll(fuel)

    def end(self) -> None:
        for side in (LEFT, RIGHT):
            self.join.receive(End(side))
        while self.status is not Status.DONE:
            self.poll()

    def expected(self) -> Counter[tuple[int, int]]:
        places: dict[int, list[int]] = {}
        for number, key in enumerate(self.keys[RIGHT]):
            places.setdefault(key, []).append(number)
        return Counter((i, j) for i, key in enumerate(self.keys[LEFT]) for j in places.get(key, []))


def part_of(join: XJoin, key: int) -> int:
    hashes, _ = join.codec.hash(LEFT, [pa.array([key])])
    return int(join.tables[LEFT].parts_of(hashes)[0])


# -- prompt return -----------------------------------------------------------------------------------------------------


def half_spilled(on_disk: int, in_memory: int, memory: int = 128 * KIB) -> Driven:
    """Rows of one key: some of the left on disk, which some of the right in memory have not met."""
    driven = Driven(XJoin(SPEC, memory, MemoryStore()))
    assert isinstance(driven.join, XJoin)
    driven.arrive(LEFT, [7] * on_disk)
    driven.settle(10_000)
    driven.join.flush(LEFT, driven.join.whole(LEFT, [part_of(driven.join, 7)]))
    driven.arrive(RIGHT, [7] * in_memory)
    driven.settle(10_000)
    assert driven.join.disks[LEFT].total_rows == on_disk and driven.join.tables[RIGHT].rows == in_memory
    assert not driven.pairs, "they have not met"
    return driven


@pytest.mark.parametrize("interrupted_after", [1, 2, 5, 12])
def test_an_arrival_ends_reactive_work_within_one_rows_matches(interrupted_after: int) -> None:
    on_disk, in_memory = 40, 300
    driven = half_spilled(on_disk, in_memory)
    assert len(driven.join.pairs.probes) < in_memory, "one row's matches take several turns"
    driven.join.receive(Stall())
    for _ in range(interrupted_after):
        driven.poll(1)
        assert driven.status is not Status.HAS_OUTPUT
    assert driven.status is Status.HAS_WORK and driven.join.phase == "reactive"
    before = driven.pairs.total()
    assert 0 < before < on_disk * in_memory, "amid a visit"
    driven.arrive(LEFT, [7, 7, 7])
    while driven.join.phase == "reactive":
        driven.poll(1)
    of_the_visit = sum(count for (left, _), count in driven.pairs.items() if left < on_disk) - before
    assert of_the_visit < in_memory, "no more than the rest of one row's matches"
    driven.settle(1)
    assert sum(count for (left, _), count in driven.pairs.items() if left >= on_disk) == 3 * in_memory
    assert sum(count for (left, _), count in driven.pairs.items() if left < on_disk) == before + of_the_visit


def test_interrupted_visits_go_on_where_they_were_until_all_is_covered() -> None:
    on_disk, in_memory, arrivals = 30, 200, 0
    driven = half_spilled(on_disk, in_memory)
    while driven.pairs != driven.expected():
        assert arrivals < 2 * on_disk, "every visit gets on by a row at least"
        driven.join.receive(Stall())
        for _ in range(3):
            driven.poll(1)
            assert driven.status is Status.HAS_WORK
        driven.arrive(LEFT, [7])
        arrivals += 1
        driven.settle(1000)
    assert arrivals > 5, "interrupted again and again"
    driven.react()
    assert driven.status is Status.NEED_INPUT
    read = driven.join.cost.pages_read
    driven.react()
    assert driven.join.cost.pages_read == read > 0, "nothing is left to visit"
    driven.end()
    assert driven.pairs == driven.expected()


def test_a_visit_is_repeated_for_new_rows_only_and_repeats_no_pair() -> None:
    driven = half_spilled(20, 30)
    driven.react()
    assert driven.pairs == driven.expected() and driven.pairs.total() == 600
    driven.arrive(RIGHT, [7] * 5)
    driven.settle()
    assert driven.pairs.total() == 600, "the left rows are on disk"
    driven.react()
    assert driven.pairs == driven.expected() and driven.pairs.total() == 700


def test_without_a_stall_there_is_no_reactive_work() -> None:
    driven = half_spilled(20, 30)
    assert driven.poll(1000).status is Status.NEED_INPUT
    assert not driven.pairs and driven.join.cost.pages_read == 0


# -- the protocol ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SymmetricHash, XJoin])
def test_nothing_arrives_while_output_waits(kind: type[Operator]) -> None:
    driven = Driven(kind(SPEC, 128 * KIB, MemoryStore()))
    driven.arrive(LEFT, [1] * 100)
    driven.settle()
    driven.arrive(RIGHT, [1] * 100)
    assert driven.poll(1).status is Status.HAS_OUTPUT
    with pytest.raises(ProtocolError, match="poll until what was received is worked off"):
        driven.arrive(LEFT, [1])
    driven.join.receive(Stall())
    driven.join.receive(End(LEFT))
    driven.settle()
    assert driven.pairs.total() == 10_000, "the refused row is in no pair"


@pytest.mark.parametrize("kind", [SymmetricHash, XJoin])
def test_nothing_follows_the_end(kind: type[Operator]) -> None:
    driven = Driven(kind(SPEC, 128 * KIB, MemoryStore()))
    driven.join.receive(End(RIGHT))
    with pytest.raises(ProtocolError, match="right has ended; nothing can follow"):
        driven.join.receive(Arrive(RIGHT, rows([1])))
    with pytest.raises(ProtocolError, match="right has ended"):
        driven.join.receive(End(RIGHT))
    driven.arrive(LEFT, [1])
    driven.settle()
    driven.join.receive(End(LEFT))
    while driven.poll().status is not Status.DONE:
        pass
    assert driven.join.phase == "done" and not driven.pairs
    assert driven.poll().status is Status.DONE


def test_other_columns_and_other_events_are_refused() -> None:
    join = XJoin(SPEC, 128 * KIB, MemoryStore())
    with pytest.raises(SpecError, match="a batch of left has other columns than announced: it has id: string"):
        join.receive(Arrive(LEFT, pa.record_batch({"id": ["1"]})))
    with pytest.raises(ProtocolError, match="xjoin does not take Punctuate"):
        join.receive(Punctuate(LEFT, {"id": 1}))
    join.check()
    assert join.poll(0.0, 10).status is Status.NEED_INPUT


def test_a_row_that_no_memory_can_hold_is_an_error() -> None:
    join = XJoin(SPEC, 64 * KIB, MemoryStore())
    join.receive(Arrive(LEFT, pa.record_batch({"id": pa.array([1]), "v": ["x" * 200_000]}, SCHEMA)))
    spec = replace(SPEC, output=Output.ROWS)
    wide = XJoin(spec, 64 * KIB, MemoryStore())
    wide.receive(Arrive(LEFT, pa.record_batch({"id": pa.array([1]), "v": ["x" * 200_000]}, SCHEMA)))
    join.poll(0.0, 10)  # where only numbers are asked for, the text is not kept
    with pytest.raises(BudgetError, match=r"a row of left takes 195\.3 KiB, for which 64 KiB of memory are too little"):
        wide.poll(0.0, 10)


def test_memory_that_does_not_hold_all_rows_ends_a_symmetric_hash_join() -> None:
    driven = Driven(SymmetricHash(SPEC, 64 * KIB, MemoryStore()))
    driven.arrive(RIGHT, [1])
    driven.settle()
    driven.arrive(LEFT, range(10_000))
    with pytest.raises(BudgetError, match=r"hold no more than the [0-9,]+ rows of left and 1 rows of right.*'xjoin'"):
        driven.settle()
    assert driven.join.tables[LEFT].rows > 500


# -- snapshots ---------------------------------------------------------------------------------------------------------


def spilling(store: Store, memory: int = 64 * KIB) -> Driven:
    """A join with rows in memory and on disk."""
    driven = Driven(XJoin(SPEC, memory, store), check_every=10)
    for start in range(0, 1200, 200):
        for side in (LEFT, RIGHT):
            driven.arrive(side, [(key * 7) % 500 for key in range(start, start + 200)])
            driven.settle()
    assert driven.join.cost.pages_written > 0
    return driven


def taken_over(driven: Driven, snapshot: Snapshot, memory: int) -> Driven:
    other = Driven(XJoin.restore(SPEC, snapshot, memory, driven.join.store), driven.check_every)
    other.pairs, other.keys = driven.pairs.copy(), [list(keys) for keys in driven.keys]
    return other


def test_a_snapshot_of_another_join_is_refused() -> None:
    driven = spilling(MemoryStore())
    snapshot, store = driven.join.snapshot(), driven.join.store
    with pytest.raises(SnapshotError, match="the snapshot is of 'xjoin', not of 'symmetric_hash'"):
        SymmetricHash.restore(SPEC, snapshot, 64 * KIB, store)
    with pytest.raises(SnapshotError, match="of another join: its inputs, conditions or output differ"):
        XJoin.restore(replace(SPEC, output=Output.ROWS), snapshot, 64 * KIB, store)
    with pytest.raises(SnapshotError, match=r"taken with 64 KiB of memory; allow as much, not 63 KiB"):
        XJoin.restore(SPEC, snapshot, 63 * KIB, store)
    other = taken_over(driven, snapshot, 64 * KIB)
    other.end()
    assert other.pairs == other.expected()


def test_a_snapshot_of_another_version_is_refused() -> None:
    taken = Driven(XJoin(SPEC, 64 * KIB, MemoryStore())).join.snapshot()
    older = replace(taken, state={name: value for name, value in taken.state.items() if name != "format"})
    with pytest.raises(SnapshotError, match="taken by another version of Watersmeet; go on with that version"):
        XJoin.restore(SPEC, older, 64 * KIB, MemoryStore())


@pytest.mark.parametrize("memory", [65 * KIB, 128 * KIB, 1024 * KIB, 8192 * KIB])
def test_a_snapshot_is_taken_over_with_more_memory(memory: int) -> None:
    driven = spilling(MemoryStore())
    other = taken_over(driven, driven.join.snapshot(), memory)
    other.arrive(LEFT, range(300))
    other.settle()
    other.end()
    assert other.pairs == other.expected()
    assert other.join.budget.peak <= memory


def test_a_snapshot_without_its_segments_is_refused_by_name() -> None:
    driven = spilling(MemoryStore())
    snapshot = driven.join.snapshot()
    name = next(name for name in snapshot.segments if name.startswith("snapshot-"))
    driven.join.store.remove(name)
    with pytest.raises(SegmentError, match=name):
        XJoin.restore(SPEC, snapshot, 64 * KIB, driven.join.store)


def test_a_snapshot_that_the_disk_refuses_can_be_taken_again() -> None:
    for failures in range(200):  # so many writes succeed before one fails
        store = FaultyStore(MemoryStore())
        driven = spilling(store)
        driven.join.snapshot()
        driven.arrive(LEFT, range(100, 200))
        driven.poll(10)  # some rows in memory, some on their way
        store.faults.planned = [Fault("write", store.calls["write"] + failures + 1)]
        try:
            snapshot = driven.join.snapshot()
        except SpillError:
            driven.join.check()
            snapshot = driven.join.snapshot()
        store.faults.planned = []
        assert set(snapshot.segments) <= set(store.names())
        other = taken_over(driven, snapshot, 64 * KIB)
        other.settle(1000)
        other.end()
        assert other.pairs == other.expected()
        if not store.failures:
            break
    assert 5 < failures < 199


# -- the disk ----------------------------------------------------------------------------------------------------------


class NamingStore(FaultyStore):
    """Remembers the names in the order in which they were begun."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.begun: list[str] = []

    def create(self, name: str) -> StoreWriter:
        self.begun.append(name)
        return super().create(name)


def script() -> Iterable[Event | None]:
    """Rows of few keys with silences amid, then the ends; None is a silence."""
    rng = np.random.default_rng(6)
    for turn in range(5):
        for side in (LEFT, RIGHT):
            yield Arrive(side, rows(rng.integers(0, 300, 130)))
        if turn % 2 == 0:
            yield None
    yield End(LEFT)
    yield End(RIGHT)


def play(store: Store, survive: bool = False) -> tuple[Counter[tuple[int, int]], Driven, int]:
    """Drive a join through the script; returns the pairs, the join, and how often the disk refused."""
    driven = Driven(XJoin(SPEC, XJoin.least_memory(SPEC), store), check_every=10)
    refused = 0

    def poll(fuel: int) -> None:
        nonlocal refused
        try:
            driven.poll(fuel)
        except SpillError as error:
            if not survive or "the disk is full" not in str(error):
                raise
            refused += 1
            driven.join.check()
            driven.status = Status.HAS_OUTPUT  # the disk has room again: go on

    for event in script():
        if event is None:
            driven.join.receive(Stall())
            for _ in range(6):
                poll(60)
        elif isinstance(event, Arrive):
            driven.join.receive(event)
            driven.keys[event.input] += event.batch.column("id").to_pylist()
        else:
            driven.join.receive(event)
        driven.status = Status.HAS_OUTPUT
        while driven.status is Status.HAS_OUTPUT:
            poll(500)
    assert driven.status is Status.DONE
    return driven.pairs, driven, refused


def test_nothing_is_left_in_the_store_when_all_is_done() -> None:
    store = NamingStore(MemoryStore())
    pairs, driven, _ = play(store)
    assert pairs == driven.expected() and pairs.total() > 500
    assert len(store.begun) > 5 and driven.join.cost.pages_read > 10
    assert store.names() == [] and store.bytes_held == 0
    assert driven.join.budget.breakdown()["catalogue of spilled runs"] == 0
    set_aside = max(768, driven.join.budget.total // 256)
    assert driven.join.budget.breakdown()["history of visits"] == set_aside


@pytest.mark.parametrize("operation", ["write", "create", "commit"])
def test_a_full_disk_leaves_the_operator_as_it_was(operation: str) -> None:
    clean = FaultyStore(MemoryStore())
    pairs, driven, _ = play(clean)
    assert driven.join.cost.pages_read > 0 and pairs == driven.expected()
    calls = clean.calls[operation]
    assert calls > 5
    for fail_at in range(1, calls + 1):
        store = FaultyStore(MemoryStore(), fail_at, operation, error=errno.ENOSPC)
        found, driven, refused = play(store, survive=True)
        assert refused == store.failures == 1, fail_at
        assert found == pairs, f"after failure {fail_at}: lost {pairs - found}, invented {found - pairs}"
        assert store.names() == []


@pytest.mark.parametrize(
    "damage",
    [truncate_at(0), truncate_at(700), flip_byte(0), flip_byte(200), flip_byte(-1), flip_byte(-100), flip_byte(400, 1)],
    ids=["gone", "torn", "first byte", "a row", "last byte", "the directory", "one bit"],
)
def test_a_damaged_segment_is_named_and_never_joined(damage: Any) -> None:
    clean = NamingStore(MemoryStore())
    pairs, _, _ = play(clean)
    noticed = 0
    for fail_at in range(1, len(clean.begun) + 1):
        store = NamingStore(MemoryStore(), fail_at, "commit", damage=damage)
        try:
            found, _, _ = play(store)
        except SegmentError as error:
            message = str(error)
        else:
            assert found == pairs, "it was never read"
            continue
        assert f"spill segment {store.begun[fail_at - 1]!r} cannot be used: it" in message or "altered" in message
        assert repr(store.begun[fail_at - 1]) in message
        assert store.failures == 1
        noticed += 1
    assert noticed > 3


def test_a_segment_that_vanished_is_named() -> None:
    driven = half_spilled(20, 30)
    [name] = driven.join.store.names()
    driven.join.store.remove(name)
    driven.join.receive(Stall())
    with pytest.raises(SegmentError, match=f"'{name}' is missing"):
        driven.poll()


def test_what_was_spilled_is_as_it_was_in_memory() -> None:
    driven = half_spilled(20, 30)
    [name] = driven.join.store.names()
    segment = Segment.open(driven.join.store, name)
    assert segment.rows == 20
    page = segment.read_page(0)
    assert page.column("tick").to_pylist() == list(range(1, 1 + page.num_rows))
    assert len(set(page.column("hash").to_pylist())) == 1
