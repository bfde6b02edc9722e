"""HMJ, RPJ and PMJ where they differ from each other; that they are exact is the conformance suite's to show."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.errors import SpecError
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Stall, Status
from watersmeet.core.spec import JoinSpec, Output, band, parse_on
from watersmeet.joins.progressive.disk_visits import Visit
from watersmeet.joins.progressive.hmj import HMJ
from watersmeet.joins.progressive.pmj import PMJ
from watersmeet.joins.progressive.rpj import RPJ
from watersmeet.joins.progressive.spilling import SpillingJoin
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.matching.ledger import Ledger
from watersmeet.runs.presence import FOREVER, Stay
from watersmeet.spill.store import MemoryStore

SCHEMA = pa.schema({"id": pa.int64()})
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), output=Output.PAIRS)
MEMORY = 96 * 1024
RNG = np.random.default_rng(5)
ROWS = 6_000
KEYS = [RNG.integers(0, 1_500, ROWS) for _ in (LEFT, RIGHT)]


def batch(side: int, start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(KEYS[side][start : start + count])], schema=SCHEMA)


class Driver:
    def __init__(self, join: Any) -> None:
        self.join = join
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.at = [0, 0]

    def poll(self, fuel: int = 10_000) -> Status:
        step = self.join.poll(0.0, fuel)
        if step.out is not None:
            self.pairs.update(zip(*(column.to_pylist() for column in step.out.columns), strict=True))
        self.join.check()
        status: Status = step.status
        return status

    def arrive(self, side: int, count: int = 200) -> None:
        self.join.receive(Arrive(side, batch(side, self.at[side], count)))
        self.at[side] += count

    def work_off(self, fuel: int = 10_000) -> None:
        while self.poll(fuel) is Status.HAS_OUTPUT:
            pass

    def fill(self, rows: int) -> None:
        while self.at[0] < rows:
            for side in (LEFT, RIGHT):
                self.arrive(side)
                self.work_off()

    def end(self) -> None:
        for side in (LEFT, RIGHT):
            self.join.receive(End(side))
        while self.poll() is not Status.DONE:
            pass

    @property
    def expected(self) -> Counter[tuple[int, int]]:
        left, right = (KEYS[side][: self.at[side]].tolist() for side in (LEFT, RIGHT))
        return Counter((i, j) for i, l in enumerate(left) for j, r in enumerate(right) if l == r)


def driver(kind: type[Any], memory: int = MEMORY, **options: Any) -> Driver:
    return Driver(kind(SPEC, memory, MemoryStore(), **options))


VARIANTS: list[tuple[type[SpillingJoin], dict[str, Any]]] = [
    (HMJ, {}),
    *((HMJ, {"flush": flush}) for flush in ("all", "smallest", "largest", "optimal")),
    (HMJ, {"prompt": False}),
    (RPJ, {}),
    *((RPJ, {"flush": flush}) for flush in ("all", "smallest", "largest", "adaptive")),
    (RPJ, {"reactive": "md"}),
    (RPJ, {"reactive": "dd"}),
    (RPJ, {"prompt": False}),
    (PMJ, {}),
    (PMJ, {"prompt": False}),
]


@pytest.mark.parametrize("kind, options", VARIANTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_every_variant_is_exact_with_silences_of_any_length(kind: type[SpillingJoin], options: dict[str, Any]) -> None:
    run = driver(kind, **options)
    read = 0
    for i in range(10):
        run.fill(400 * (i + 1))
        run.join.receive(Stall())
        before = run.join.cost.pages_read
        for _ in range(3 * i):
            if run.poll(300) is Status.NEED_INPUT:
                break
        read += run.join.cost.pages_read - before
    assert read > 0, "silences were used"
    run.end()
    assert run.pairs == run.expected


@pytest.mark.parametrize("kind", [HMJ, RPJ, PMJ])
def test_a_merge_lets_arrivals_pass_and_goes_on(kind: type[SpillingJoin]) -> None:
    run = driver(kind, **({"reactive": "dd"} if kind is RPJ else {}))
    run.fill(3_000)
    run.join.receive(Stall())
    while not run.join.cost.pages_read:
        assert run.poll(1) is Status.HAS_WORK
    inserted = run.join.cost.inserts
    run.arrive(LEFT, 1)
    for _ in range(40):  # the pairs in the buffer go first, each a poll
        run.poll(1)
        if run.join.cost.inserts == inserted + 1:
            break
    assert run.join.cost.inserts == inserted + 1, "the row was kept while the merge waited"
    assert run.join.stages.suspended is not None
    state = run.join.snapshot().state["stages"]["suspended"]
    assert state["kind"] == "merge"
    run.join.receive(Stall())
    run.work_off(1)
    run.end()
    assert run.pairs == run.expected


@pytest.mark.parametrize("better", [True, False])
def test_rpj_takes_a_better_visit_before_a_merge_that_was_set_aside(better: bool) -> None:
    run = driver(RPJ)
    run.fill(3_000)
    join = run.join
    join.expected.md[:] = 0.0  # so that merging comes first
    join.receive(Stall())
    while not join.cost.pages_read:
        assert run.poll(1) is Status.HAS_WORK
    merging = join._task.merge.part
    run.arrive(LEFT, 200)
    run.work_off(1)
    assert join.stages.suspended is not None and join.stages.suspended.merge.part == merging
    others = [part for part in range(join.sizing.layout.partitions) if part != merging]
    assert len(others) > 0
    visiting = next(part for part in others if join._visits.has_news(LEFT, part))
    join.expected.md[LEFT, visiting] = join.expected.dd.max() * (1e6 if better else 1e-6)
    join.expected.md[LEFT, merging] = 1e12  # what is being merged is not visited meanwhile
    join.receive(Stall())
    run.poll(1)
    if better:
        assert isinstance(join._task, Visit) and join._task.part == visiting
        assert join.stages.suspended is not None, "the merge waits"
        assert join.snapshot().state["stages"]["suspended"]["part"] == merging
    else:
        assert join.stages.suspended is None and join._task.merge.part == merging
    run.end()
    assert run.pairs == run.expected


@pytest.mark.parametrize("kind", [HMJ, RPJ])
def test_without_promptness_arrivals_wait_for_the_end_of_the_task(kind: type[SpillingJoin]) -> None:
    run = driver(kind, prompt=False, **({"reactive": "dd"} if kind is RPJ else {}))
    run.fill(3_000)
    run.join.receive(Stall())
    while not run.join.cost.pages_read:
        run.poll(1)
    task = run.join._task
    run.arrive(LEFT, 1)
    while run.join._task is task and not task.done:
        assert run.join.phase == "reactive"
        run.poll(1)
    assert run.join.stages.suspended is None
    run.end()
    assert run.pairs == run.expected


def test_hmj_rows_were_together_exactly_if_their_runs_have_one_number() -> None:
    run = driver(HMJ)
    run.fill(3_000)
    seen = 0
    for part in range(run.join.sizing.layout.partitions):
        stays = []
        for disk in run.join.disks:
            pages = [disk.read_page(part, r, i) for r in disk.runs(part) for i in range(len(r.page_ends))]
            found = [disk.stay(part, page, np.arange(len(page), dtype=np.int32)) for page in pages]
            stays.append([np.concatenate([getattr(s, name) for s in found]) for name in ("arrived", "departed")])
        (left_from, left_to), (right_from, right_to) = stays
        together = (left_from[:, None] < right_to) & (right_from < left_to[:, None])
        assert np.array_equal(together, left_to[:, None] == right_to)
        seen += len(np.unique(left_to))
    assert seen > 2 * run.join.sizing.layout.partitions


def test_rpj_does_only_the_tasks_it_may() -> None:
    for reactive, merged in (("md", False), ("dd", True)):
        run = driver(RPJ, reactive=reactive)
        run.fill(3_000)
        run.join.receive(Stall())
        while run.poll() is Status.HAS_WORK:
            pass
        levels = [level for disk in run.join.disks for part in range(len(disk.rows)) for level in disk.levels(part)]
        assert any(levels) is merged
        assert bool(run.join.expected.dd.any()) is not merged
        assert bool(run.join.expected.md.any()) is merged
        run.end()
        assert run.pairs == run.expected


def test_rpj_leaves_nothing_to_expect_after_a_long_silence() -> None:
    run = driver(RPJ)
    run.fill(3_000)
    run.join.receive(Stall())
    while run.poll() is Status.HAS_WORK:
        pass
    assert run.pairs == run.expected, "all that can be found without further rows was found"
    assert not run.join.expected.md.any() and not run.join.expected.dd.any()


def interrupted_visits(run: Driver) -> int:
    """Silences that merge all there is, then short ones that arrivals end amid a visit of a merged run."""
    interrupted = 0
    while run.at[0] < 3_600:
        run.fill(run.at[0] + 800)
        run.join.receive(Stall())
        while run.poll() is Status.HAS_WORK:
            pass
        for _ in range(8):
            run.arrive(RIGHT, 50)
            run.work_off()
            run.join.receive(Stall())
            run.poll(30)
            task = run.join._task
            interrupted += isinstance(task, Visit) and 0 < task.covered < task._rows
            run.arrive(LEFT, 5)
            run.work_off()
    return interrupted


def test_a_visit_that_ends_amid_a_merged_run_is_remembered_exactly() -> None:
    run = driver(RPJ)
    assert interrupted_visits(run) > 5
    assert any((histories.entries[5] < FOREVER).any() for side in run.join.ledger._visits for histories in side)
    run.end()
    assert run.pairs == run.expected


def test_that_it_covered_the_whole_run_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ledger.visited

    def whole_run(visits: Any, memory: Stay, disk: Stay) -> Any:
        everything = visits.copy()
        everything[3:5], everything[5:7] = np.iinfo(np.int64).min, FOREVER
        return real(everything, memory, disk)

    monkeypatch.setattr(Ledger, "visited", staticmethod(whole_run))
    run = driver(RPJ)
    interrupted_visits(run)
    run.end()
    assert run.pairs != run.expected


def test_pmj_finds_its_first_pairs_when_memory_is_full() -> None:
    run = driver(PMJ)
    while not run.join.cost.pages_written:
        assert not run.pairs
        for side in (LEFT, RIGHT):
            run.arrive(side, 100)
            run.work_off()
    assert run.pairs
    run.end()
    assert run.pairs == run.expected


def test_pmj_in_plenty_of_memory_joins_at_the_end_without_a_disk() -> None:
    run = driver(PMJ, memory=1 << 24)
    run.fill(2_000)
    assert not run.pairs
    run.end()
    assert run.pairs == run.expected and not run.join.cost.pages_written


def test_optimal_flush_keeps_what_the_faster_input_looks_for() -> None:
    """The left input is five times as fast: more of the right should stay in memory."""
    run = driver(RPJ)
    while run.at[0] < 3_500:
        for _ in range(5):
            run.arrive(LEFT, 100)
            run.work_off()
        run.arrive(RIGHT, 100)
        run.work_off()
    left, right = (table.rows for table in run.join.tables)
    assert right > left
    assert run.join.disks[0].total_rows > 0


def test_a_flush_takes_no_more_of_the_last_partition_than_it_should() -> None:
    """Once one partition has most of the memory, a tenth of the rows in memory is a part of it."""
    run = driver(RPJ)
    run.fill(1_000)
    join = run.join
    block = join.sizing.layout.block_rows
    partial = 0
    while run.at[0] < ROWS:
        before = np.array([table.part_rows for table in join.tables])
        flushes = [disk.total_rows for disk in join.disks]
        for side in (LEFT, RIGHT):
            run.arrive(side, 50)
            run.work_off()
        left = sum(disk.total_rows for disk in join.disks) - sum(flushes)
        if left:
            assert left <= 2 * (np.ceil(0.1 * (before.sum() + 100)) + block), (
                "one or two flushes, each a block too large"
            )
            moved = [disk.total_rows - was for disk, was in zip(join.disks, flushes, strict=True)]
            partial += any(moved) and bool((np.array([t.part_rows for t in join.tables])[before > 2 * block] > 0).all())
    assert partial
    run.end()
    assert run.pairs == run.expected


@pytest.mark.parametrize("kind", [HMJ, RPJ, XJoin])
def test_an_unknown_flush_policy_is_refused(kind: type[Any]) -> None:
    with pytest.raises(SpecError, match="no flush policy 'random'"):
        driver(kind, flush="random")


@pytest.mark.parametrize("kind", [HMJ, RPJ, PMJ])
def test_nothing_stays_in_the_store(kind: type[SpillingJoin]) -> None:
    run = driver(kind)
    run.fill(3_000)
    run.join.receive(Stall())
    for _ in range(50):
        run.poll(100)
    run.end()
    assert run.join.store.names() == []


@pytest.mark.parametrize("memory", [200 * 1024, 1 << 20], ids=["tails read again", "tails kept"])
@pytest.mark.parametrize("beside", [False, True])
def test_pmj_merges_bands(memory: int, beside: bool) -> None:
    rows = 12_000 if memory < 1 << 20 else 50_000
    rng = np.random.default_rng(17)
    prices = [np.round(rng.normal(100.0, 20.0, rows), 2) for _ in (LEFT, RIGHT)]
    symbols = [rng.integers(0, 3, rows) for _ in (LEFT, RIGHT)]
    schema = pa.schema({"sym": pa.int64(), "price": pa.float64()})
    on = parse_on([*(["sym"] if beside else []), band("price", 0.005)])
    join = PMJ(JoinSpec(schema, schema, on, output=Output.PAIRS), memory, MemoryStore())
    found: list[pa.RecordBatch] = []
    for start in range(0, rows, 1000):
        for side in (LEFT, RIGHT):
            columns = [pa.array(each[side][start : start + 1000]) for each in (symbols, prices)]
            join.receive(Arrive(side, pa.record_batch(columns, schema=schema)))
            while (step := join.poll(0.0, 10_000)).status is Status.HAS_OUTPUT:
                found += [step.out] if step.out is not None else []
        if start == rows // 2:
            join.receive(Stall())
            for _ in range(20):
                step = join.poll(0.0, 1_000)
                found += [step.out] if step.out is not None else []
    for side in (LEFT, RIGHT):
        join.receive(End(side))
    while (step := join.poll(0.0, 100_000)).status is not Status.DONE:
        found += [step.out] if step.out is not None else []
        join.budget.check()
    assert join.cost.pages_written > 0 and join.cost.pages_read > 0
    left, right = (np.concatenate([each.column(c).to_numpy() for each in found]) for c in (0, 1))
    assert len(np.unique(left * rows + right)) == len(left), "each pair once"
    assert (np.abs(prices[0][left] - prices[1][right]) <= 0.005).all()
    cents = [np.rint(100 * price).astype(np.int64) for price in prices]
    groups = [cent * 3 + symbol if beside else cent for cent, symbol in zip(cents, symbols, strict=True)]
    many = max(int(each.max()) for each in groups) + 1
    counts = [np.bincount(each, minlength=many) for each in groups]
    assert len(left) == int(np.dot(*counts))
