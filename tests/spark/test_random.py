"""Every verb on Spark against nested loops: random specs and rows, cut into batches, over a restart, in little memory.

The cases are those of the conformance suites. A few in the usual run; `HYPOTHESIS_PROFILE=deep` has ten times as many.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings

from spark.random_streams import Replayed, as_sparks, cases, combined, cut, is_refused, respecified, with_ends
from spark.window_oracle import expected_pairs
from watersmeet import Relation, band
from watersmeet.checks.cases import Case, make_case
from watersmeet.checks.lookup_cases import LookupMove, after_change, answers_for, make_lookup_case
from watersmeet.checks.multi_cases import MultiCase, make_multi_case
from watersmeet.checks.oracle.nested_loops import reference_combinations, reference_pairs
from watersmeet.checks.windows import WindowCase, make_window_case
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.spec import Condition, Output
from watersmeet.core.windows import WindowJoinSpec
from watersmeet.planner import ALGORITHMS, MULTIWAY, WINDOW_ALGORITHMS
from watersmeet.spark import join, lookup_join, multijoin, parallel_join, window_join
from watersmeet.spark.rebalance.reorganizing import GroupLoad, SlotLoad, TopKey

FIRST = 0
"""The seed that cases are counted from."""


def _count() -> int:
    return max(1, settings().max_examples // 100)


def _two_inputs(name: str) -> Any:
    """Makes cases of two inputs for an algorithm; None for one that is not for streams."""

    def make(seed: int) -> Case | None:
        case = make_case(seed, ALGORITHMS[name])
        left, right = as_sparks(case.left), as_sparks(case.right)
        spec = respecified(case.spec, [left, right])
        if spec is None or not spec.equalities:
            return None
        return Case(case.seed, spec, left, right, (), (), case.memory, case.least)

    return make


def _with_band(seed: int) -> Case | None:
    """A case of values that are close, beside an equality; None for one that is not."""
    case: Case | None = _two_inputs("confluence")(seed)
    return case if case is not None and case.spec.band is not None else None


def _on(on: tuple[Condition, ...]) -> list[Any]:
    return [each if hasattr(each, "width") else f"{each.left} = {each.right}" for each in on]


def _tables(case: Case) -> list[pa.Table]:
    return [pa.Table.from_batches([case.table(side)]) for side in (0, 1)]


def test_joins_of_endless_streams(spark: Any, tmp_path: Path) -> None:
    banded = cases(_with_band, 1, FIRST)
    for case in (*cases(_two_inputs("confluence"), _count(), FIRST), *banded):
        rng = np.random.default_rng([case.seed, 1])
        place = tmp_path / str(case.seed)
        given = {"memory": str(rng.choice(["256 KiB", "1 MiB"])), "partitions": int(rng.integers(1, 4))}
        options = {"on": _on(case.spec.on), "suffixes": case.spec.suffixes, "state": place / "state", **given}
        replayed = Replayed(spark, place, lambda frames, o=options: join(*frames, **o))
        found = replayed.run_all(cut([case.left, case.right], rng), rng)
        pairs = reference_pairs(*_tables(case), case.spec)
        assert found == combined([case.left, case.right], case.spec.kept, pairs), case
        assert sum(each["results"] for each in replayed.told) == found.total()


def test_joins_of_streams_that_end(spark: Any, tmp_path: Path) -> None:
    on_disk = 0
    for number, name in enumerate(sorted(set(ALGORITHMS) - {"symmetric_hash"})[: _count()]):
        for case in cases(_two_inputs(name), 1, FIRST + 10 * number):
            rng = np.random.default_rng([case.seed, 2])
            place = tmp_path / f"{name} {case.seed}"
            least = ALGORITHMS[name].least_memory(case.spec)
            given = {"memory": max(case.memory, least) * 8 // 5 + 64, "partitions": int(rng.integers(1, 4))}
            given |= {"algorithm": name, "fuel": int(rng.choice([0, 50, 5_000]))}
            options = {"on": _on(case.spec.on), "suffixes": case.spec.suffixes, "state": place / "state", **given}
            replayed = Replayed(spark, place, lambda frames, o=options: join(*frames, **o))
            found = replayed.run_all(with_ends(cut([case.left, case.right], rng, most=3), rng), rng)
            pairs = reference_pairs(*_tables(case), case.spec)
            assert found == combined([case.left, case.right], case.spec.kept, pairs), (name, case)
            assert replayed.told[-1]["state_rows"] == 0
            on_disk += sum(each["spilled"] + each["state_bytes"] for each in replayed.told)
    assert on_disk


def _window_case(seed: int) -> WindowCase | None:
    case = make_window_case(seed, WINDOW_ALGORITHMS["ah_ewj"])
    assert isinstance(case.spec, WindowJoinSpec)
    left, right = as_sparks(case.left), as_sparks(case.right)
    spec = None if case.spec.counted else respecified(case.spec, [left, right])
    if spec is None or not left.num_rows or not right.num_rows or case.spec.window.late == "error":
        return None
    return WindowCase(case.seed, spec, left, right, (), (), case.memory, case.least)


def _window_options(case: WindowCase) -> dict[str, Any]:
    spec = case.spec
    assert isinstance(spec, WindowJoinSpec) and spec.window.time is not None
    words = spec.window
    least = max(WINDOW_ALGORITHMS[name].least_memory(spec) for name in ("ah_ewj", "confluence"))
    memory = max(case.memory, least) * 8 // 5 + 64
    return {
        "on": _on(spec.on), "time": " = ".join(words.time), "window": words.windows, "slide": words.slide,
        "lateness": words.lateness, "late": words.late, "suffixes": spec.suffixes, "memory": memory,
    }  # fmt: skip


def test_window_joins(spark: Any, tmp_path: Path) -> None:
    for case in cases(_window_case, _count(), FIRST):
        rng = np.random.default_rng([case.seed, 3])
        place = tmp_path / str(case.seed)
        options = {**_window_options(case), "partitions": int(rng.integers(1, 4)), "state": place / "state"}
        replayed = Replayed(spark, place, lambda frames, o=options: window_join(*frames, **o))
        batches = cut([case.left, case.right], rng)
        assert replayed.run_all(batches, rng) == expected_pairs(case.spec, batches), case


class Rumours(Replayed):
    """What the slots have told is made worse after each batch: any of them may seem busy, any key may seem hot."""

    rng: np.random.Generator

    def see(self, frame: Any, number: int) -> None:
        super().see(frame, number)
        for path in (self.place / "state" / "routing").glob(f"load-{number}-*"):
            load = SlotLoad.from_json(json.loads(path.read_text()))
            groups = {group: self._told(each) for group, each in load.groups.items()}
            rumour = SlotLoad(load.slot, float(self.rng.choice([0.01, 1_000.0])), groups, load.batch, 0.0)
            path.write_text(json.dumps(rumour.to_json()))

    def _told(self, load: GroupLoad) -> GroupLoad:
        top = load.top
        if top is not None:
            top = TopKey(top.key, float(self.rng.choice([0.1, 0.95])), top.rows)
        return GroupLoad(load.rows, load.results, float(self.rng.choice([0.01, 500.0])), top)


def test_parallel_joins(spark: Any, tmp_path: Path) -> None:
    moved = 0
    for case in cases(_window_case, _count(), FIRST + 50):
        rng = np.random.default_rng([case.seed, 4])
        place = tmp_path / str(case.seed)
        slots = int(rng.integers(2, 4))
        given = {"slots": (1, slots), "groups": slots + int(rng.integers(0, 5)), "reorganize": "0 s"}
        options = {**_window_options(case), **given, "state": place / "state"}
        options["memory"] *= 2
        replayed = Rumours(spark, place, lambda frames, o=options: parallel_join(*frames, **o))
        replayed.rng = rng
        batches = cut([case.left, case.right], rng, fewest=5, most=7)
        assert replayed.run_all(batches, rng) == expected_pairs(case.spec, batches), case
        moved += sum(each["moved"] for each in replayed.told)
    assert moved


def _multi_case(seed: int) -> MultiCase | None:
    case = make_multi_case(seed, MULTIWAY["miner" if seed % 2 else "mjoin"])
    tables = [as_sparks(table) for table in case.tables]
    spec = respecified(case.spec, tables)
    if spec is None:
        return None
    return MultiCase(case.seed, spec, tuple(t for t in tables if t is not None), (), (), case.memory, case.least)


def test_joins_of_several_streams(spark: Any, tmp_path: Path) -> None:
    spilled = 0
    for case in cases(_multi_case, _count(), FIRST):
        rng = np.random.default_rng([case.seed, 5])
        place, spec, name = tmp_path / str(case.seed), case.spec, "miner" if case.seed % 2 else "mjoin"
        memory = max(case.memory, MULTIWAY[name].least_memory(spec)) * 8 // 5 + 64
        on = [_multi_condition(case, number) for number in range(len(spec.edges))]
        options = {"on": on, "memory": memory, "algorithm": name, "fuel": int(rng.choice([0, 50, 5_000]))}
        if any(edge.width is None for edge in spec.edges):
            options["partitions"] = int(rng.integers(1, 4))

        def joined(frames: list[Any], names: Any = spec.names, at: Path = place, given: Any = options) -> Any:
            return multijoin(dict(zip(names, frames, strict=True)), state=at / "state", **given)

        replayed = Replayed(spark, place, joined)
        found = replayed.run_all(with_ends(cut(case.tables, rng, most=3), rng), rng)
        rows = reference_combinations([pa.Table.from_batches([table]) for table in case.tables], spec)
        assert found == combined(case.tables, spec.kept, rows), case
        assert replayed.told[-1]["state_rows"] == 0
        spilled += sum(each["spilled"] for each in replayed.told)
    assert spilled


def _multi_condition(case: MultiCase, number: int) -> Any:
    edge, names = case.spec.edges[number], case.spec.names
    text = f"{names[edge.first]}.{edge.first_column} = {names[edge.second]}.{edge.second_column}"
    return text if edge.width is None else band(text, edge.width)


@dataclass(frozen=True)
class Lookups:
    """A stream, a relation, and what changes in the relation after each batch of the stream."""

    seed: int
    spec: LookupSpec
    stream: pa.RecordBatch
    relation: pa.Table
    changes: list[LookupMove]


def _lookup_case(seed: int) -> Lookups | None:
    case = make_lookup_case(seed)
    arrived = [move.batch for move in case.moves if move.what == "arrive" and move.batch is not None]
    changes = [move for move in case.moves if move.what in ("upsert", "delete") and move.batch is not None]
    relation = case.relation.combine_chunks().to_batches()
    if not arrived or not relation or not changes or case.spec.output is not Output.ROWS:
        return None
    stream = as_sparks(pa.Table.from_batches(arrived).combine_chunks().to_batches()[0])
    tables = [as_sparks(each) for each in (relation[0], *(move.batch for move in changes))]
    if stream is None or is_refused(stream) or any(each is None or is_refused(each) for each in tables):
        return None
    spec = replace(case.spec, stream=stream.schema, relation=tables[0].schema)
    moved = [LookupMove(move.what, each, 0) for move, each in zip(changes, tables[1:], strict=True)]
    return Lookups(seed, spec, stream, pa.Table.from_batches([tables[0]]), moved)


class Changing(Replayed):
    """The relation changes after each batch."""

    relation: Relation
    changes: list[list[LookupMove]]

    def see(self, frame: Any, number: int) -> None:
        super().see(frame, number)
        for move in self.changes[number]:
            assert move.batch is not None
            if move.what == "upsert":
                self.relation.upsert(move.batch)
            else:
                self.relation.delete(move.batch)


def test_look_ups(spark: Any, tmp_path: Path) -> None:
    changed = read = 0
    for case in cases(_lookup_case, _count(), FIRST):
        rng = np.random.default_rng([case.seed, 6])
        place, keys = tmp_path / str(case.seed), tuple(each.right for each in case.spec.on)
        relation = Relation.build(
            case.relation,
            on=keys,
            path=place / "relation",
            segment="4 KiB",
            partition=str(rng.choice(["range", "hash"])),
        )
        batches = cut([case.stream], rng)
        after = sorted(rng.integers(0, len(batches), len(case.changes)).tolist())
        changes = [[c for c, at in zip(case.changes, after, strict=True) if at == i] for i in range(len(batches))]
        options = {"on": [f"{each.left} = {each.right}" for each in case.spec.on], "how": case.spec.how}
        options |= {"memory": str(rng.choice(["192 KiB", "1 MiB"])), "state": place / "state"}
        replayed = Changing(spark, place, lambda frames, o=options, r=relation: lookup_join(*frames, r, **o))
        replayed.relation, replayed.changes = relation, changes
        found = replayed.run_all(batches, rng)
        expected: Counter[Any] = Counter()
        now = case.relation
        for [batch], moves in zip(batches, changes, strict=True):
            expected.update(answers_for(case.spec, batch, now))
            for move in moves:
                now = after_change(now, keys, move)
                changed += 1
        assert found == expected, case
        read += sum(each["read"] for each in replayed.told)
    assert changed and read
