"""Small runs of everything that spills or writes: each verb, its results as files, relations, and the state on Spark.

A run is given a folder to spill to, and leaves nothing in it but what its name says it keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.feather
import pyarrow.parquet as pq

import watersmeet as wm
from simulate.embedded import expect_sentence
from simulate.small_queries import BATCHES, QUERIES, Query
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.errors import WatersmeetError
from watersmeet.spark.offline.opened import OpenedState, figures, verify
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition

ROWS, MEMORY = 3_000, 384 << 10
Found = Counter[tuple[Any, ...]]
Run = Callable[[Path], Found]
KEPT = "kept"
"""What the names of relations, states and files begin with that stay when their run is over."""
RETRIED: Counter[str] = Counter()
"""Tasks and tools that failed with a sentence, and were run again."""


def table(side: int, seed: int = 3) -> pa.Table:
    """An input: about as many keys as rows, so that some have no partner."""
    rng = np.random.default_rng([seed, side])
    ids, pad = rng.integers(0, ROWS, ROWS), ["x" * 120] * ROWS
    return pa.table(
        {"id": ids, "at": np.arange(ROWS), "x": 10.0 * ids, "y": np.zeros(ROWS), f"row{side}": np.arange(ROWS),
         "pad": pad}
    )  # fmt: skip


TABLES = [table(side) for side in range(3)]
ON = ["r.id = s.id", "s.id = t.id"]
QUERIED = [wm.WindowQuery(f"q{i}", window=ROWS // (i + 1), left=f"id >= {i}") for i in range(3)]


def rows_of(found: pa.Table) -> Found:
    """As a multiset."""
    return Counter(row for batch in found.to_batches() for row in canonical_rows(batch))


def two(verb: Any, **options: Any) -> Run:
    """Of two inputs."""
    return lambda spill: rows_of(verb(*TABLES[:2], **{"memory": MEMORY, "spill": spill, **options}).table())


def join(how: str) -> Run:
    """By equal keys."""
    return two(wm.join, on="id", how=how, threads=1)


def many(**options: Any) -> Run:
    """Of three inputs."""
    inputs = dict(zip("rst", TABLES, strict=True))
    return lambda spill: rows_of(wm.multijoin(inputs, on=ON, memory=3 * MEMORY, spill=spill, **options).table())


def paced(side: int) -> Iterator[pa.RecordBatch]:
    """The rows of an input in small batches, which come when they are asked for."""
    yield from TABLES[side].to_batches(max_chunksize=100)


def spooled(spill: Path) -> Found:
    """Sources run ahead of a join whose results nobody takes for a while, onto the disk."""
    sides = [wm.source(paced(side), schema=TABLES[side].schema) for side in (0, 1)]
    result = wm.join(*sides, on="id", memory=MEMORY, spill=spill, spool="8 MiB", threads=1)
    found = rows_of(result.table())
    told = result.progress.spool
    SPOOLED["rows"] += 0 if told is None else told.rows
    return found


SPOOLED: Counter[str] = Counter()
"""Rows that went through the disk before they were joined."""


def shed(spill: Path) -> Found:
    """A join that may let rows go, and keeps up: what it counts for that is in its memory."""
    sides = [wm.source(paced(side), schema=TABLES[side].schema) for side in (0, 1)]
    result = wm.join(*sides, on="id", memory=4 * MEMORY, spill=spill, shed=1e-9, threads=1)
    return rows_of(result.table())


# --- relations ---


def built(place: Path, **options: Any) -> wm.Relation:
    """A relation that stays, on the disk before anybody may ask it."""
    options = {"segment": "16 KiB", "memory": "1 MiB", "spill": place, "durable": True, **options}
    return wm.Relation.build(TABLES[0], "id", place / KEPT, **options)


def lookup(place: Path) -> Found:
    """A relation is built, changed and asked; what a failure leaves of it is one of its versions."""
    relation = built(place)
    relation.upsert(TABLES[0].slice(0, 50))
    stream = TABLES[1].select(["id", "row1"])
    return rows_of(wm.lookup_join(stream, relation, on="id", memory="1 MiB", spill=place).table())


def lookup_by(algorithm: str, partition: str) -> Run:
    """A relation that is laid out for the one join alone."""
    stream = TABLES[1].select(["id", "row1"])

    def run(spill: Path) -> Found:
        options = {"algorithm": algorithm, "partition": partition, "memory": "1 MiB", "spill": spill}
        return rows_of(wm.lookup_join(stream, TABLES[0], on="id", how="left", **options).table())

    return run


def chain(spill: Path) -> Found:
    """Two relations, one after the other."""
    stream = TABLES[1].select(["id", "row1"])
    relations = {"first": TABLES[0], "second": TABLES[2].select(["id", "row2"])}
    on = {"first": "id", "second": "id"}
    return rows_of(wm.lookup_join(stream, relations, on=on, memory="2 MiB", spill=spill).table())


def shared(spill: Path) -> Found:
    """Two streams, one relation."""
    streams = {f"of {side}": TABLES[side].select(["id", f"row{side}"]) for side in (1, 2)}
    found = wm.shared_lookup_join(streams, TABLES[0], on="id", memory="1 MiB", spill=spill).tables()
    return Counter((name, *row) for name, each in found.items() for row in rows_of(each).elements())


def deleted(place: Path) -> Found:
    """A relation by hash, of which rows go, and which is built anew in its own place."""
    relation = built(place, partition="hash")
    relation.delete(list(range(0, ROWS, 3)))
    before = rows_of(relation.table())
    return before + rows_of(built(place, replace=True).table())


# --- results as files ---


def written(ending: str, read: Callable[[Path], pa.Table]) -> Run:
    """The results as a file, which is read again; if that fails there is none."""

    def run(place: Path) -> Found:
        target = place / f"{KEPT}{ending}"
        result = wm.join(*TABLES[:2], on="id", memory=MEMORY, spill=place, threads=1)
        try:
            result.write(target)
        except WatersmeetError:
            assert not target.exists()
            raise
        return rows_of(read(target).cast(result.schema))

    return run


# --- on Spark ---


def again(act: Callable[[], Any]) -> Any:
    """What fails with a sentence is done once more, as Spark or a user would."""
    try:
        return act()
    except WatersmeetError as error:
        expect_sentence(error)
        RETRIED["all"] += 1
        return act()


def begun(name: str, place: Path) -> Query:
    """A query, whose tasks spill below the place, too."""
    query = again(lambda: QUERIES[name](place / KEPT))
    query.scratch = place
    return query


def batches(query: Query, numbers: range) -> Found:
    """So many of its batches."""
    found: Found = Counter()
    for number in numbers:
        again(partial(query.begin, number))
        for group in range(query.groups):
            found.update(again(partial(query.run, number, group)))
    return found


def tasks(name: str) -> Run:
    """All batches of a query."""
    return lambda place: batches(begun(name, place), range(BATCHES))


def divided(name: str) -> Run:
    """A query whose state is divided anew on the way."""

    def run(place: Path) -> Found:
        query = begun(name, place)
        found = batches(query, range(BATCHES - 1))
        again(lambda: repartition(query.state, 3))
        query.groups = query.stream.groups = 3
        return found + batches(query, range(BATCHES - 1, BATCHES))

    return run


def looked_into(place: Path) -> Found:
    """A state that is verified, counted and read."""
    query = begun("join", place)
    batches(query, range(BATCHES - 1))

    def look() -> Found:
        state = OpenedState(query.state)
        damaged = verify(state).damaged
        if damaged:
            raise WatersmeetError(" ".join(damaged))
        found = Counter([("rows", *figures(state)["rows"])])
        for side in ("left", "right"):
            for batch in StateRows(state, side).read(state.group_numbers()):
                found.update((side, *row) for row in canonical_rows(batch))
        return found

    return again(look)  # type: ignore[no-any-return]


RUNS: dict[str, Run] = {
    **{f"join {how}": join(how) for how in ("inner", "left", "right", "full", "semi", "anti")},
    **{
        f"join by {name}": two(wm.join, on="id", algorithm=name)
        for name in ("xjoin", "hmj", "pmj", "rpj", "diner", "metadata_mjoin")
    },
    "join in threads": two(wm.join, on="id", how="left", threads=2, memory=2 * MEMORY),
    "join with spool": spooled,
    "join with shed": shed,
    "band": two(wm.join, on=wm.band("x", 0.5)),
    "near": two(wm.join, on=[wm.near(["x", "y"], 0.5)]),
    "multijoin": many(),
    "multijoin left": many(how={"r": "left"}),
    **{f"multijoin by {name}": many(algorithm=name) for name in ("mjoin", "miner", "tree")},
    "multijoin in windows": many(time="at", window=2 * ROWS),
    "multijoin in windows by mjoin": many(time="at", window=2 * ROWS, algorithm="mjoin"),
    "window_join": two(wm.window_join, on="id", time="at", window=2 * ROWS),
    "window_join full": two(wm.window_join, on="id", time="at", window=ROWS, how="full"),
    **{
        f"window_join by {name}": two(wm.window_join, on="id", time="at", window=2 * ROWS, algorithm=name)
        for name in ("ah_ewj", "ewj", "rpwj")
    },
    "window_queries": two(wm.window_queries, on="id", time="at", queries=QUERIED),
    "asof_join": two(wm.asof_join, on="id", time="at"),
    "lookup_join": lookup,
    **{
        f"lookup_join by {name}": lookup_by(name, cut)
        for name, cut in (("partitioned", "hash"), ("meshjoin", "range"), ("index_nested_loop", "range"))
    },
    "lookup_join in two relations": chain,
    "shared_lookup_join": shared,
    "Relation.delete and replace": deleted,
    "write Parquet": written(".parquet", pq.read_table),
    "write CSV": written(".csv", pc_csv.read_csv),
    "write Arrow IPC": written(".arrow", pyarrow.feather.read_table),
    **{f"tasks of {name}": tasks(name) for name in QUERIES},
    **{f"state of {name}, divided anew": divided(name) for name in ("join", "window_join", "asof_join", "multijoin")},
    "state looked into": looked_into,
}
