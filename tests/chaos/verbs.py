"""The verbs that things fail under: what each makes of files, what must be in the sink, and what Spark makes of it."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as fn

from spark.whims import Whims
from watersmeet import Relation
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spark import asof_join, join, lookup_join, multijoin, parallel_join, window_join
from watersmeet.spark.plan import asof_join as asof_plan
from watersmeet.spark.plan import join as join_plan
from watersmeet.spark.plan import lookup_join as lookup_plan
from watersmeet.spark.plan import multijoin as multi_plan
from watersmeet.spark.plan import parallel_join as parallel_plan
from watersmeet.spark.plan import window_join as window_plan
from watersmeet.spark.rebalance import master_task
from watersmeet.spark.rebalance.master_task import MasterTask, RoutingFiles
from watersmeet.spark.rebalance.reorganizing import Epoch, SlotLoad, in_place, rehomed
from watersmeet.spark.rebalance.routing import Routing
from watersmeet.spark.task.placement import Placement

Row = tuple[Any, ...]

KEYS = 2_000
HOT_KEYS = (0, 1, 2)
WINDOW = 300
"""Of the column `at`, which grows by a hundred with every file of an input."""
_FUEL = 500
"""So little that pairs of spilled rows are left over from batch to batch."""
_COLUMNS = ("number", "word", "at")
_PAIRS = ("id", *_COLUMNS, "number_right", "word_right", "at_right")
_ANSWERS = ("id", *_COLUMNS, "at_right")
"""Of right rows of one time the values and the batches decide: only their time is compared."""
_TRIPLES = (*_PAIRS, "ref", "number_third", "word_third", "at_third")


STATE_ADDRESS = "WATERSMEET_CHAOS_STATE"
"""In the environment: the address of all state, with braces for the path of each; without, it is on the disk."""


def state_of(place: Path) -> Path | str:
    """Where the state of a query is that works here."""
    address = os.environ.get(STATE_ADDRESS)
    return place / "state" if address is None else address.format(f"{place.name}/state")


@dataclass(frozen=True)
class Verb:
    """A verb at work."""

    module: ModuleType
    task: str
    """The class in the module whose tasks are watched."""
    inputs: tuple[str, ...]
    columns: tuple[str, ...]
    joined: Callable[[list[Any], Path, int], Any]
    """The streams, where to work, and in how many groups."""
    expected: Callable[..., Counter[Row]]
    """What must come out, of the rows of all inputs."""
    own: Callable[..., Any]
    """Spark's own join of the same rows, as batch DataFrames."""
    ends: bool = False
    """Whether its inputs say when they end."""
    owes: bool = False
    """Whether pairs may be owed until then."""
    publishes: bool = True
    """Whether its tasks publish a state."""
    keeps_operators: bool = True
    """Whether a worker process keeps what it has read of the state."""
    keys: int = KEYS
    """How many there are; fewer make more results."""
    hot: float = 0.0
    """The share of rows that have one of the few keys in `HOT_KEYS`."""
    due: Callable[[Counter[Row]], Counter[Row]] | None = None
    """Where results may be owed for good: those of all results that must have come by now."""


def _join(streams: list[Any], place: Path, groups: int) -> Any:
    return join(*streams, on="id", memory="256 KiB", state=state_of(place), partitions=groups)


def _progressive(streams: list[Any], place: Path, groups: int) -> Any:
    """With an operator of which pairs are left over from batch to batch."""
    given = {"memory": "256 KiB", "state": state_of(place), "partitions": groups}
    return join(*streams, on="id", algorithm="xjoin", fuel=_FUEL, **given)


def _window_join(streams: list[Any], place: Path, groups: int) -> Any:
    given = {"memory": "192 KiB", "state": state_of(place), "partitions": groups}
    return window_join(*streams, on="id", time="at", window=WINDOW, lateness=200, **given)


def _outer_window_join(streams: list[Any], place: Path, groups: int) -> Any:
    given = {"memory": "192 KiB", "state": state_of(place), "partitions": groups}
    return window_join(*streams, on="id", time="at", window=WINDOW, lateness=200, how="left", **given)


def _asof_join(streams: list[Any], place: Path, groups: int) -> Any:
    given = {"memory": "256 KiB", "state": state_of(place), "partitions": groups}
    return asof_join(*streams, on="id", time="at", lateness=200, tolerance=WINDOW, **given)


_MANY = ("left", "right", "third")
_MANY_ON = ["left.id = right.id", "right.at_right = third.at_third"]
"""An id that two inputs have, and the time of a third one, whose rows are copied to all groups."""


def _multijoin(streams: list[Any], place: Path, groups: int) -> Any:
    inputs = {name: _renamed(stream, name) for name, stream in zip(_MANY, streams, strict=True)}
    return multijoin(inputs, on=_MANY_ON, memory="320 KiB", state=state_of(place), partitions=groups)


def _progressive_multijoin(streams: list[Any], place: Path, groups: int) -> Any:
    inputs = {name: _renamed(stream, name) for name, stream in zip(_MANY, streams, strict=True)}
    given = {"memory": "320 KiB", "state": state_of(place), "partitions": groups}
    return multijoin(inputs, on=_MANY_ON, algorithm="mjoin", fuel=_FUEL, **given)


def _window_multijoin(streams: list[Any], place: Path, groups: int) -> Any:
    inputs = {name: _renamed(stream, name) for name, stream in zip(_MANY, streams, strict=True)}
    times = {"left": "at", "right": "at_right", "third": "at_third"}
    given = {"memory": "320 KiB", "state": state_of(place), "partitions": groups}
    return multijoin(inputs, on=_MANY_ON, time=times, window=WINDOW, lateness=200, **given)


def _renamed(frame: Any, name: str) -> Any:
    """With names of its own for all columns but the common id."""
    if name == "left":
        return frame
    renamed = {column: f"{column}_{name}" for column in _COLUMNS}
    return frame.withColumnsRenamed(renamed if name == "right" else {**renamed, "id": "ref"})


class RestlessMaster(MasterTask):
    """Moves groups, adds and lets go of slots, and splits keys with almost every batch, whatever the slots tell."""

    def routing(self) -> Routing:
        """That of the batch which is at work."""
        own, master_task.reorganized = master_task.reorganized, Whims(np.random.default_rng())
        try:
            return super().routing()
        finally:
            master_task.reorganized = own


class Splitter(MasterTask):
    """Splits keys with almost every batch, whatever the tasks tell."""

    def routing(self) -> Routing:
        """That of the batch which is at work."""
        own, master_task.split_only = master_task.split_only, _split_any
        loads, RoutingFiles.loads = RoutingFiles.loads, lambda files, since: [SlotLoad(0, 0.0, {})]  # type: ignore[method-assign]
        try:
            return super().routing()
        finally:
            master_task.split_only, RoutingFiles.loads = own, loads  # type: ignore[method-assign]


def _split_any(routing: Routing, loads: Any, groups: int, newest: Any) -> Routing:
    """With one more of the hot keys split, or all of them."""
    rng = np.random.default_rng()
    known = {key.key for key in routing.hot}
    keys = [key for key in _HOT_HASHES if key not in known]
    if keys and rng.random() < 0.7:
        ways = int(rng.integers(2, groups + 1))
        routing = rehomed(routing, Epoch(), int(rng.choice(keys)), groups, newest, ways, int(rng.integers(2)), 1.0)
    return in_place(routing, groups)


def _hot_join(streams: list[Any], place: Path, groups: int) -> Any:
    return _with(join_plan, Splitter, _join, streams, place, groups)


def _hot_window_join(streams: list[Any], place: Path, groups: int) -> Any:
    return _with(window_plan, Splitter, _window_join, streams, place, groups)


def _with(module: ModuleType, master: type[MasterTask], joined: Any, *given: Any) -> Any:
    """A join whose plan has another master."""
    own = module.MasterTask
    try:
        setattr(module, "MasterTask", master)  # noqa: B010 - a class, for a while
        return joined(*given)
    finally:
        setattr(module, "MasterTask", own)  # noqa: B010


def _parallel_join(streams: list[Any], place: Path, groups: int) -> Any:
    given: dict[str, Any] = {"state": state_of(place), "slots": (1, groups), "groups": 2 * groups}
    given |= {"time": "at", "window": WINDOW, "lateness": 200, "reorganize": "0 s", "memory": "320 KiB"}
    return _with(parallel_plan, RestlessMaster, partial(parallel_join, on="id", **given), *streams)


def _lookup_join(streams: list[Any], place: Path, groups: int) -> Any:
    path = place / "names.rel"
    if not Relation.is_at(path):
        names = ({"id": i, "name": _name(i)} for i in range(KEYS) if _name(i))
        Relation.build(names, on="id", path=path, segment="8 KiB")
    return lookup_join(streams[0], path, how="left", memory="192 KiB", state=state_of(place))


def _name(key: int | None) -> str | None:
    return None if key is None or key % 3 == 0 else f"name {key}"


def _pairs(left: Iterable[Row], right: Iterable[Row], most: float = float("inf")) -> Counter[Row]:
    """Every pair of all rows, by the plainest of joins; their times differ by so much at most."""
    rights = defaultdict(list)
    for key, *rest in right:
        rights[key].append(rest)
    return Counter(
        (key, *mine, *other)
        for key, *mine in left
        if key is not None
        for other in rights[key]
        if abs(mine[-1] - other[-1]) <= most
    )


def _close_pairs(left: Iterable[Row], right: Iterable[Row]) -> Counter[Row]:
    return _pairs(left, right, WINDOW)


def _close_or_alone(left: Iterable[Row], right: Iterable[Row]) -> Counter[Row]:
    """All close pairs, and every left row that is in none."""
    left = list(left)
    pairs = _close_pairs(left, right)
    met = {pair[: 1 + len(_COLUMNS)] for pair in pairs}
    nobody = (None,) * len(_COLUMNS)
    return pairs + Counter((*row, *nobody) for row in left if tuple(row) not in met)


def _settled(results: Counter[Row]) -> Counter[Row]:
    """All pairs, and rows that the right input has passed by window, lateness and some files more."""
    newest = max(row[3] for row in results)
    return Counter(
        {row: count for row, count in results.items() if row[-1] is not None or row[3] < newest - WINDOW - 700}
    )


def _answers(left: Iterable[Row], right: Iterable[Row]) -> Counter[Row]:
    """Every left row with the last time of its key's right rows up to its own."""
    times = defaultdict(list)
    for key, *rest in right:
        times[key].append(rest[-1])
    found: Counter[Row] = Counter()
    for key, *mine in left:
        near = [time for time in times[key] if mine[-1] - WINDOW <= time <= mine[-1]] if key is not None else []
        if near:
            found[(key, *mine, max(near))] += 1
    return found


def _passed(answers: Counter[Row]) -> Counter[Row]:
    """Those of rows that the right input has passed, in every group, by the lateness and some files more."""
    newest = max(row[3] for row in answers)
    return Counter({row: count for row, count in answers.items() if row[3] < newest - 500})


def _triples(left: Iterable[Row], right: Iterable[Row], third: Iterable[Row]) -> Counter[Row]:
    """Every pair of the first two, with each row of the third that has the second one's time."""
    thirds = defaultdict(list)
    for row in third:
        thirds[row[-1]].append(row)
    return Counter((*pair, *row) for pair in _pairs(left, right).elements() for row in thirds[pair[-1]])


def _close_triples(left: Iterable[Row], right: Iterable[Row], third: Iterable[Row]) -> Counter[Row]:
    """Those of one window; the third row has the second one's time."""
    found = _triples(left, right, third)
    return Counter({row: count for row, count in found.items() if abs(row[3] - row[6]) <= WINDOW})


def _named(left: Iterable[Row]) -> Counter[Row]:
    return Counter((*row, _name(row[0])) for row in left)


def _own_pairs(left: Any, right: Any) -> Any:
    return left.join(_renamed(right, "right"), "id")


def _own_close_pairs(left: Any, right: Any) -> Any:
    return _own_pairs(left, right).where(f"abs(at - at_right) <= {WINDOW}")


def _own_close_or_alone(left: Any, right: Any) -> Any:
    other = _renamed(right, "right").withColumnRenamed("id", "id_right")
    return left.join(other, fn.expr(f"id = id_right and abs(at - at_right) <= {WINDOW}"), "left").drop("id_right")


def _own_answers(left: Any, right: Any) -> Any:
    times = right.select("id", fn.col("at").alias("at_right")).distinct()
    numbered = left.withColumn("row", fn.monotonically_increasing_id())
    near = numbered.join(times, "id").where(f"at_right <= at and at - at_right <= {WINDOW}")
    return near.groupBy("row", "id", *_COLUMNS).agg(fn.max("at_right").alias("at_right"))


def _own_triples(left: Any, right: Any, third: Any) -> Any:
    return _own_pairs(left, right).join(_renamed(third, "third"), fn.expr("at_right = at_third"))


def _own_close_triples(left: Any, right: Any, third: Any) -> Any:
    return _own_triples(left, right, third).where(f"abs(at - at_right) <= {WINDOW}")


def _own_named(left: Any) -> Any:
    return left.selectExpr("*", "case when id % 3 != 0 then concat('name ', id) end as name")


_SPEC = JoinSpec(pa.schema({"id": pa.int64()}), pa.schema({"id": pa.int64()}), parse_on("id"))
_HOT_HASHES: list[int] = Placement(_SPEC, by_id=True).hashes([pa.array(HOT_KEYS)]).tolist()

_BOTH = ("left", "right")
VERBS = {
    "join": Verb(join_plan, "SplitTask", _BOTH, _PAIRS, _join, _pairs, _own_pairs, keeps_operators=False),
    "hot_join": Verb(
        join_plan, "SplitTask", _BOTH, _PAIRS, _hot_join, _pairs, _own_pairs, keeps_operators=False, hot=0.3
    ),
    "hot_window_join": Verb(
        window_plan, "SlotTask", _BOTH, _PAIRS, _hot_window_join, _close_pairs, _own_close_pairs, hot=0.1
    ),
    "ending": Verb(
        join_plan, "SplitTask", _BOTH, _PAIRS, _join, _pairs, _own_pairs, ends=True, keeps_operators=False
    ),
    "progressive": Verb(join_plan, "OperatorTask", _BOTH, _PAIRS, _progressive, _pairs, _own_pairs, True, True),
    "window_join": Verb(window_plan, "SlotTask", _BOTH, _PAIRS, _window_join, _close_pairs, _own_close_pairs),
    "outer_window_join": Verb(
        window_plan, "SlotTask", _BOTH, _PAIRS, _outer_window_join, _close_or_alone, _own_close_or_alone, owes=True,
        due=_settled,
    ),
    "parallel_join": Verb(parallel_plan, "SlotTask", _BOTH, _PAIRS, _parallel_join, _close_pairs, _own_close_pairs),
    "asof_join": Verb(
        asof_plan, "AsofTask", _BOTH, _ANSWERS, _asof_join, _answers, _own_answers, owes=True, keys=KEYS // 10,
        due=_passed,
    ),
    "multijoin": Verb(
        multi_plan, "OperatorTask", _MANY, _TRIPLES, _multijoin, _triples, _own_triples, keys=10 * KEYS,
        keeps_operators=False,
    ),
    "ending_multijoin": Verb(
        multi_plan, "OperatorTask", _MANY, _TRIPLES, _multijoin, _triples, _own_triples, ends=True, keys=10 * KEYS,
        keeps_operators=False,
    ),
    "progressive_multijoin": Verb(
        multi_plan, "OperatorTask", _MANY, _TRIPLES, _progressive_multijoin, _triples, _own_triples, ends=True,
        owes=True, keys=10 * KEYS,
    ),
    "window_multijoin": Verb(
        multi_plan, "WindowTask", _MANY, _TRIPLES, _window_multijoin, _close_triples, _own_close_triples,
        keys=10 * KEYS,
    ),
    "lookup_join": Verb(
        lookup_plan, "LookupTask", ("left",), ("id", *_COLUMNS, "name"), _lookup_join, _named, _own_named,
        publishes=False,
    ),
}  # fmt: skip
