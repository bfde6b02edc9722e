"""Four inputs: one operator for all of them, a binary tree of our own, and DuckDB, which reads three of them first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, Target, exactness
from benchmarks.inputs import RowCount
from benchmarks.ours import Run, Watch, work_off
from benchmarks.peer import engine
from benchmarks.rounds import Settings, middle, take_turns
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.joins.multiway.miner import Miner
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.joins.multiway.tree import JoinTree
from watersmeet.spill import FileStore

ROWS = 250_000
BATCH_ROWS = 8192
AMPLE = 1 << 30
LITTLE = 0.1
"""The part of the input that little memory is."""
INFLATED = 16
"""Matches of each row in the first join of the inputs whose intermediate results inflate."""
CHAIN = ("r.a = s.a", "s.b = t.b", "t.c = u.c")
STAR = ("r.a = s.a", "r.b = t.b", "r.c = u.c")
_COLUMNS = {
    "chain": {"r": "a", "s": "ab", "t": "bc", "u": "c"},
    "star": {"r": "abc", "s": "a", "t": "b", "u": "c"},
}
_JOINS: Mapping[str, type[ManyConfluence] | type[MJoin] | type[Miner] | type[JoinTree]] = {
    "confluence": ManyConfluence, "mjoin": MJoin, "miner": Miner, "tree": JoinTree,
}  # fmt: skip


def multiway(settings: Settings) -> Iterator[Figure]:
    """4 x 250k rows in a chain and in a star; in memory, and in 10% of it."""
    rows = settings.rows(ROWS)
    for shape, on in (("chain", CHAIN), ("star", STAR)):
        yield from _speed(settings, shape, on, tables(shape, rows, rows))
    yield from _state(settings, rows)


def tables(shape: str, rows: int, domain: int, inflated: int = 1) -> dict[str, pa.Table]:
    """Rows of uniform keys, each of which matches about one of the next input; of `a`, about `inflated`."""
    made = {}
    for number, (name, keys) in enumerate(_COLUMNS[shape].items()):
        random = np.random.default_rng([number, rows])
        columns = {key: random.integers(0, max(1, domain // (inflated if key == "a" else 1)), rows) for key in keys}
        made[name] = pa.table({**columns, f"{name}_number": np.arange(rows), f"{name}_measure": random.random(rows)})
    return made


def _speed(settings: Settings, shape: str, on: tuple[str, ...], inputs: Mapping[str, pa.Table]) -> Iterator[Figure]:
    rows = sum(table.num_rows for table in inputs.values())
    little = max(1 << 20, int(LITTLE * sum(table.nbytes for table in inputs.values())))
    contestants: dict[str, Callable[[], Run]] = {}
    for name in _JOINS:
        drive(name, inputs, on, AMPLE)  # compiles, or loads what was compiled
        contestants[name] = lambda name=name: drive(name, inputs, on, AMPLE)
        contestants[f"{name} in 10%"] = lambda name=name: drive(name, inputs, on, little)
    if settings.peers:
        contestants["duckdb"] = lambda: duckdb(inputs, on)
    runs = take_turns(contestants, settings.repeat)
    peer, peer_first = (middle(runs.get("duckdb"), of) for of in (lambda run: run.total, lambda run: 1e3 * run.first))
    tree_first = middle(runs["tree"], lambda run: 1e3 * run.first)
    for ours, most in (("confluence", 1.0), ("mjoin", 1.5)):
        first = middle(runs[ours], lambda run: 1e3 * run.first)
        yield Figure(f"{shape}: rows a second, {ours}", middle(runs[ours], lambda run: rows / run.total), "rows/s")
        yield Figure(f"{shape}: total, {ours}", middle(runs[ours], lambda run: run.total), "s", peer,
                     Target("<=", most, of_ratio=True))  # fmt: skip
        yield Figure(f"{shape}: first, {ours}", first, "ms", peer_first, Target("<=", 1, of_ratio=True))
        yield Figure(f"{shape}: first, {ours} to tree", first, "ms", tree_first, Target("<=", 1, of_ratio=True))
    in_memory = middle(runs["confluence"], lambda run: run.total)
    yield Figure(f"{shape}: total, confluence in 10% to all of the memory",
                 middle(runs["confluence in 10%"], lambda run: run.total), "s", in_memory,
                 Target("<=", 5, of_ratio=True))  # fmt: skip
    for name in contestants:
        if name not in ("confluence", "mjoin", "duckdb"):
            yield Figure(f"{shape}: total, {name}", middle(runs[name], lambda run: run.total), "s", peer)
            yield Figure(f"{shape}: first, {name}", middle(runs[name], lambda run: 1e3 * run.first), "ms", peer_first)
    expected = runs["tree"][0].result[0] if not settings.peers else runs["duckdb"][0].result[0]
    wrong = [run for each in runs.values() for run in each if run.result[0] != expected]
    yield exactness(len(wrong), f"wrong runs, {shape}")


def _state(settings: Settings, rows: int) -> Iterator[Figure]:
    """Where the first join finds many partners for each row, and the last few, a tree stores what it finds between."""
    inputs = tables("chain", rows, rows, INFLATED)
    inputs["u"] = inputs["u"].slice(0, max(1, rows // 100))
    runs = {name: drive(name, inputs, CHAIN, 4 * AMPLE) for name in ("mjoin", "tree")}
    yield Figure(
        "inflating chain: state, mjoin to tree", runs["mjoin"].peak / (1 << 20), "MiB", runs["tree"].peak / (1 << 20),
        Target("<=", 0.5, of_ratio=True),
    )  # fmt: skip
    yield exactness(int(runs["mjoin"].result[0] != runs["tree"].result[0]), "wrong runs, inflating chain")


def drive(name: str, inputs: Mapping[str, pa.Table], on: tuple[str, ...], memory: int) -> Run:
    """One of our joins, its inputs in turn."""
    spec = MultiSpec.of({each: table.schema for each, table in inputs.items()}, list(on))
    store = FileStore()
    watch = Watch(RowCount())
    try:
        operator = _JOINS[name](spec, max(memory, _JOINS[name].least_memory(spec)), store)
        for batches in zip_longest(*(table.to_batches(max_chunksize=BATCH_ROWS) for table in inputs.values())):
            for number, batch in enumerate(batches):
                if batch is not None:
                    operator.receive(Arrive(number, batch))
                    work_off(operator, watch)
        arrived = watch.elapsed
        for number in range(len(inputs)):
            operator.receive(End(number))
        work_off(operator, watch)
        run = watch.run(arrived, operator.budget.peak, store.bytes_written)
        operator.close()
        return run
    finally:
        store.close()


def duckdb(inputs: Mapping[str, pa.Table], on: tuple[str, ...]) -> Run:
    """DuckDB on one thread."""
    with engine().connect() as connection:
        connection.execute("SET threads=1")
        for name, table in inputs.items():
            connection.register(name, table)
        watch = Watch(RowCount())
        query = f"SELECT * FROM {', '.join(inputs)} WHERE {' AND '.join(on)}"
        for batch in connection.sql(query).to_arrow_reader(BATCH_ROWS):
            watch.take(batch)
        return watch.run()
