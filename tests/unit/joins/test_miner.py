"""MINER in small: its regions, its order of look-ups, its loop over blocks, and bands between several inputs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.checks.oracle.nested_loops import reference_combinations
from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Stall, Status
from watersmeet.core.spec import Output
from watersmeet.engine.sizing import Grain
from watersmeet.joins.multiway.block_loop import OuterRows
from watersmeet.joins.multiway.miner import Miner
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.joins.multiway.tree import JoinTree
from watersmeet.policies.probing import ProbingOrder, SelectivityOrder, join_sequences, nesting
from watersmeet.spill.store import MemoryStore
from watersmeet.tables.multi_range_table import ManySorted

TWO = pa.schema({"a": pa.int64(), "b": pa.int64()})


def chain(names: str = "rst", output: Output = Output.PAIRS) -> MultiSpec:
    on = ["r.a = s.a", "s.b = t.b", "t.a = u.a"][: len(names) - 1]
    return MultiSpec.of(dict.fromkeys(names, TWO), on, output)


class Run:
    """A join, and all that it has handed out."""

    def __init__(self, spec: MultiSpec, memory: int = 1 << 20, **options: Any) -> None:
        self.join = Miner(spec, memory, MemoryStore(), **options)
        self.tables: list[list[pa.RecordBatch]] = [[] for _ in spec.names]
        self.found: Counter[tuple[int, ...]] = Counter()

    def arrive(self, number: int, **columns: Any) -> None:
        batch = pa.record_batch(columns, self.join.spec.input(number))
        self.tables[number].append(batch)
        self.join.receive(Arrive(number, batch))
        self.work()

    def work(self, polls: int = 1_000_000, fuel: int = 1000) -> Status:
        for _ in range(polls):
            step = self.join.poll(0.0, fuel)
            self.join.check()
            if step.out is not None:
                self.found.update(tuple(row.values()) for row in step.out.to_pylist())
            if step.status is not Status.HAS_OUTPUT and (polls == 1_000_000 or step.status is not Status.HAS_WORK):
                break
        return step.status

    def pause(self, polls: int = 1_000, fuel: int = 1000) -> None:
        self.join.receive(Stall())
        self.work(polls, fuel)

    def end(self) -> None:
        for number in range(len(self.tables)):
            if not self.join._ended[number]:
                self.join.receive(End(number))
        assert self.work() is Status.DONE

    def is_exact(self) -> bool:
        schemas = self.join.spec.schemas
        tables = [pa.Table.from_batches(each, schemas[i]) for i, each in enumerate(self.tables)]
        return self.found == Counter(reference_combinations(tables, self.join.spec))


# --- what leaves memory ---


def test_whole_results_count_in_a_region_of_every_attribute() -> None:
    run = Run(chain())
    run.arrive(0, a=[1, 2, 3], b=[0, 0, 0])
    run.arrive(1, a=[1, 1, 2], b=[7, 8, 9])
    assert not run.join.regions[1].attributes[0].joins.any(), "two of three inputs are no result"
    run.arrive(2, a=[0, 0], b=[7, 7])
    for number in range(3):
        for regions in run.join.regions[number].attributes:
            assert regions.joins.sum() == 2
    assert run.join.table(1).joined(np.arange(3, dtype=np.int32)).tolist() == [True, False, False]


def test_the_region_with_the_fewest_results_a_row_is_flushed_whatever_its_attribute() -> None:
    run = Run(chain(), grain=Grain(block_rows=4))
    values = np.arange(40)
    run.arrive(1, a=values, b=values[::-1])
    run.join.flush(1)  # the first one divides
    regions = run.join.regions[1].attributes
    assert all(each.divided for each in regions)
    regions[0].joins[:] = 5, 50, 5
    regions[1].joins[:] = 5, 50, 1  # the highest values of b, which are the lowest of a
    before = run.join.table(1).words(0)[run.join.table(1).rows_of()]
    run.join.flush(1)
    run.join.check()  # both indexes have the rows that stay, and no others
    after = run.join.table(1).words(0)[run.join.table(1).rows_of()]
    assert sorted(set(before) - set(after)) == sorted(before)[:4]
    assert all(index.lengths == [32] for index in run.join.table(1).indexes)
    assert regions[0].joins.tolist() == [5, 50, 5], "a flush that follows at once goes by the same counts"
    run.arrive(1, a=[100], b=[100])
    assert regions[1].joins.tolist() == [5, 50, 1], "and so does one that rows of the same input bring about"
    run.arrive(0, a=[7], b=[7])
    assert not any(each.joins.any() for each in regions), "rows of another input begin anew, for all attributes"
    assert (regions[0].lower, regions[0].upper) == tuple(sorted(after)[i] for i in (3, -4))


def test_what_the_others_asked_for_stays_when_an_input_needs_room_batch_after_batch() -> None:
    run = Run(chain("rs"), grain=Grain(block_rows=10))
    run.arrive(0, a=np.arange(100), b=np.arange(100))
    run.join.flush(0)
    run.arrive(1, a=[*range(5), 200], b=[0] * 6)  # of the lowest keys, and of one that is yet to come
    for key in (200, 201, 202):
        run.join.flush(0)
        run.arrive(0, a=[key], b=[0])
    table = run.join.table(0)
    assert set(range(5)) <= set(table.words(0)[table.rows_of()].tolist())
    run.end()
    assert run.is_exact()


def test_a_row_that_stays_in_the_index_of_another_attribute_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManySorted, "_renumber", lambda table, numbers: table.index.renumber(numbers))
    run = Run(chain(), grain=Grain(block_rows=4))
    run.arrive(1, a=np.arange(40), b=np.arange(40))
    run.join.flush(1)
    with pytest.raises(AssertionError):
        run.join.check()


def test_the_input_with_most_rows_gives_up_a_block_and_a_last_open_one_everything() -> None:
    run = Run(chain(), grain=Grain(block_rows=10))
    for number, count in enumerate((30, 60, 40)):
        run.arrive(number, a=np.arange(count), b=np.arange(count))
    assert run.join._make_room()
    assert [disk.rows for disk in run.join.disks] == [0, 10, 0]
    run.join.receive(End(0))
    run.join.receive(End(2))
    run.work()
    assert run.join._make_room()
    assert [disk.rows for disk in run.join.disks] == [0, 60, 0]
    run.arrive(1, a=[5, 6], b=[5, 6])
    run.end()
    assert run.is_exact()


def test_a_flush_measures_selectivity_factors_and_looks_up_by_them() -> None:
    run = Run(chain("rst"))
    run.arrive(0, a=np.zeros(20, np.int64), b=np.zeros(20, np.int64))
    run.arrive(2, a=np.zeros(10, np.int64), b=np.arange(10))
    run.arrive(1, a=np.zeros(10, np.int64), b=np.arange(9, 19))
    run.join.flush(0)
    # Each of 10 rows met 20 of the first input, and of these 200 the 20 with one value met one of 10 of the third; 20
    # and 10 rows had looked for the second input before it came.
    assert run.join.order.factors == [200 / (10 * 20 + 20 * 10), 20 / (200 * 10 + 10 * 10)]
    assert [step.input for step in run.join.order.of(1)] == [2, 0]
    assert not any(map(any, run.join.order._found))


def test_partial_combinations_that_are_looked_up_by_a_key_do_not_make_it_less_selective() -> None:
    """A row of s meets one of r, which has keys, and very many of t; whichever came first, r has to come first next."""
    spec = chain("rst", Output.COUNTS)
    for partial in (50, 50 * 80):
        order = SelectivityOrder(spec)
        order.count(0, 0, looked_up=partial, found=partial)
        order.count(1, 1, looked_up=50, found=50 * 80)
        order.flushed([100, 100, 100])
        assert order.factors == [1 / 100, 80 / 100]
        assert [spec.names[step.input] for step in order.of(1)] == ["r", "t"]
        order.count(1, 1, looked_up=10, found=10)
        order.flushed([100, 100, 100])
        assert order.factors == [1 / 100, 1 / 100], "what was not looked up keeps its factor"


# --- the loop over blocks ---


def test_a_snowflake_has_a_sequence_for_each_branch_and_the_one_that_matches_least_is_outermost() -> None:
    schema = pa.schema({"a": pa.int64()})
    on = ["c.a = p.a", "p.a = q.a", "c.a = x.a", "x.a = y.a", "c.a = z.a"]
    spec = MultiSpec.of(dict.fromkeys("cpqxyz", schema), on)
    assert join_sequences(spec, 0) == [{1, 2}, {3, 4}, {5}]
    assert join_sequences(spec, 1) == [{0, 3, 4, 5}, {2}]
    order = ProbingOrder(spec)
    for edge, matches in enumerate([8, 1, 4, 9, 6]):
        for side in (0, 1):
            order.count(edge, side, 100, 100 * matches)
    assert [spec.names[step.input] for step in order.of(0)] == ["x", "z", "p", "q", "y"]
    assert [spec.names[step.input] for step in nesting(spec, 0, order)] == ["x", "y", "z", "p", "q"]


def test_blocks_that_came_later_are_met_when_roles_change() -> None:
    run = Run(chain(), grain=Grain(block_rows=8))
    random = np.random.default_rng(3)
    outers = []
    for _ in range(4):
        for number, count in enumerate((8, 24, 16)):
            run.arrive(number, a=random.integers(0, 6, count), b=random.integers(0, 6, count))
            run.join.flush(number)
        run.pause()
        outers.append(run.join.loop.outer)
        assert run.join.loop.joined == [disk.rows for disk in run.join.disks]
        assert not run.join.loop.unmet
    assert len(set(outers)) > 1
    run.end()
    assert run.is_exact() and run.found


def interrupted() -> tuple[Run, list[str]]:
    """Four inputs whose pauses are so short that hardly a block is looked up, and where each of them began."""
    run = Run(chain("rstu"), grain=Grain(block_rows=5))
    places: list[str] = []
    random = np.random.default_rng(5)
    for _ in range(4):
        for number in range(4):
            run.arrive(number, a=random.integers(0, 9, 12), b=random.integers(0, 9, 12))
            run.join.flush(number)
    while run.join.loop.unmet and len(places) < 40:
        places.append(f"{run.join.loop.joined} {run.join.loop.marks}")
        run.pause(polls=2, fuel=1)
        run.arrive(len(places) % 4, a=[100], b=[100])
        assert run.join.phase == "arriving"
    return run, places


def test_the_loop_gives_way_after_any_block_and_goes_on_where_it_was() -> None:
    run, places = interrupted()
    assert len(places) == len(set(places)) == 40, "each time it goes on from another place"
    assert sum("[[" in place for place in places) > 20, "mostly amid the blocks"
    run.end()
    assert run.is_exact() and run.found


def test_a_loop_that_forgets_where_it_gave_way_repeats_results(monkeypatch: pytest.MonkeyPatch) -> None:
    give_way = OuterRows.give_way
    asked = []

    def forgetful(task: OuterRows) -> bool:
        gone = give_way(task)
        asked.append(gone)
        if gone and len(asked) % 12 == 0:
            task._miner.loop.marks = []
        return gone

    monkeypatch.setattr(OuterRows, "give_way", forgetful)
    run, _ = interrupted()
    run.end()
    assert not run.is_exact()


def test_max_new_arrivals_is_the_patience_that_drivers_ask_for() -> None:
    assert Miner(chain(), 1 << 20, MemoryStore(), max_new_arrivals=1000).patience == 1000
    assert Miner(chain(), 1 << 20, MemoryStore()).patience == 0
    with pytest.raises(SpecError, match="max_outer_blocks 1 or more"):
        Miner(chain(), 1 << 20, MemoryStore(), max_outer_blocks=0)


# --- bands ---


def test_bands_and_equalities_together_are_exact_in_little_memory() -> None:
    random = np.random.default_rng(11)
    quotes = pa.table({"sym": random.integers(0, 20, 900), "at": np.sort(random.random(900)) * 60})
    trades = pa.table(
        {"sym": random.integers(0, 20, 900), "at": np.sort(random.random(900)) * 60, "p": ["x" * 50] * 900}
    )
    news = pa.table({"at": pa.array((np.sort(random.random(40)) * 60_000_000).astype(np.int64), pa.int64()),
                     "about": random.integers(0, 20, 40)})  # fmt: skip
    inputs = {"quotes": quotes, "trades": trades, "news": news}
    on: list[Any] = ["quotes.sym = trades.sym", wm.band("quotes.at = trades.at", 0.5), "trades.sym = news.about"]
    result = wm.multijoin({name: iter(table.to_batches(64)) for name, table in inputs.items()}, on, memory="160 KiB")
    found = result.table()
    assert result.progress.algorithm == "miner" and result.progress.spilled > 0
    spec = MultiSpec.of({name: table.schema for name, table in inputs.items()}, on)
    expected = reference_combinations(list(inputs.values()), spec)
    columns = ["sym", "quotes_at", "trades_at", "news_at"]
    rows = Counter(zip(*(found[name].to_pylist() for name in columns), strict=True))
    values = [quotes["sym"], quotes["at"], trades["at"], news["at"]]
    assert rows == Counter(
        tuple(column[row].as_py() for column, row in zip(values, (q, q, t, n), strict=True)) for q, t, n in expected
    )


def test_columns_of_a_band_both_come_out_and_times_take_a_timedelta() -> None:
    schema = pa.schema({"at": pa.timestamp("s")})
    spec = MultiSpec.of({"r": schema, "s": schema}, wm.band("r.at = s.at", timedelta(minutes=1)))
    assert spec.schema.names == ["r_at", "s_at"] and spec.has_bands and not spec.on_one_attribute
    with pytest.raises(SpecError, match=r"r.at \(timestamp\[s\]\) cannot be within 5 of s.at"):
        MultiSpec.of({"r": schema, "s": schema}, wm.band("r.at = s.at", 5))
    with pytest.raises(SpecError, match="is within one input"):
        MultiSpec.of({"r": schema, "s": schema}, wm.band("r.at", 5))


def test_bands_of_one_column_that_compare_alike_share_an_index() -> None:
    schema = pa.schema({"a": pa.int64()})
    spec = MultiSpec.of(
        {"r": schema, "s": schema, "t": schema, "u": pa.schema({"a": pa.decimal128(9, 2)})},
        [wm.band("r.a = s.a", 1), wm.band("r.a = t.a", 5), wm.band("r.a = u.a", 1), "s.a = t.a"],
    )
    assert [len(each) for each in spec.attributes] == [2, 2, 2, 1]


def test_nothing_is_close_to_null() -> None:
    empty = pa.table({"a": pa.nulls(3)})
    some = pa.table({"a": [1, 2, 3]})
    on: list[Any] = [wm.band("r.a = s.a", 1), "s.a = t.a"]
    assert wm.multijoin({"r": empty, "s": some, "t": some}, on, memory="8 MiB").table().num_rows == 0


@pytest.mark.parametrize("operator_class", [MJoin, JoinTree])
def test_operators_of_hashes_refuse_bands(operator_class: type[Any]) -> None:
    schema = pa.schema({"a": pa.int64()})
    spec = MultiSpec.of(dict.fromkeys("rst", schema), ["r.a = s.a", wm.band("s.a = t.a", 1)])
    with pytest.raises(SpecError, match=r"equal values only; for a band choose algorithm='miner'"):
        operator_class(spec, 1 << 20, MemoryStore())
    with pytest.raises(SpecError, match="equal values only"):
        operator_class.least_memory(spec)
