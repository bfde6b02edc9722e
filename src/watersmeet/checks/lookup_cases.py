"""Generated cases of look-ups: a stream, a relation, and changes of the relation while the stream arrives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.canonical import Row, canonical_null, canonical_rows
from watersmeet.checks.keys import KeyColumns, random_key
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.checks.payload import WIDE_TYPES, random_payload, wide_column
from watersmeet.core.lookup import HOW, LookupSpec, lookup_conditions
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.memory import format_bytes
from watersmeet.relation.changes import StoredRelation
from watersmeet.relation.relation import RelationReader

Rng: TypeAlias = np.random.Generator

PLENTY = 16 << 20
_MOST_ROWS = 160


@dataclass(frozen=True, slots=True)
class LookupMove:
    """One thing that happens (`arrive`, `upsert`, `delete`, `stall`, `end`), and how often the operator is polled
    then.
    """

    what: str
    batch: pa.RecordBatch | None
    polls: int
    which: int = 0
    """Of several streams or relations: the one it is about."""

    def __str__(self) -> str:
        rows = "" if self.batch is None else str(self.batch.num_rows)
        return f"{self.what}{rows}/{self.polls}" + (f"@{self.which}" if self.which else "")


@dataclass(frozen=True, eq=False)
class LookupCase:
    """A look-up, its relation, and the script by which rows and changes come."""

    seed: int
    spec: LookupSpec
    relation: pa.Table
    design: dict[str, Any]
    moves: tuple[LookupMove, ...]
    fuel: tuple[int, ...]
    spare: int
    """Memory beyond the least."""
    restores: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    maker: ClassVar[str] = "make_lookup_case"

    @property
    def keys(self) -> tuple[str, ...]:
        """The relation's key columns."""
        return tuple(equal.right for equal in self.spec.on)

    def make_relations(self) -> list[StoredRelation]:
        """The relation as it is at the beginning."""
        return [StoredRelation.in_memory(self.relation, self.keys, **self.design)]

    def readers(self, relations: list[StoredRelation]) -> RelationReader:
        """What the operator is given."""
        return relations[0].reader

    @cached_property
    def expected(self) -> list[Row]:
        """What the oracle says: nested loops of every batch with the rows that the relation has when it arrives."""
        found: list[Row] = []
        now = self.relation.combine_chunks()
        for move in self.moves:
            if move.what == "arrive":
                assert move.batch is not None
                found += answers_for(self.spec, move.batch, now)
            elif move.what in ("upsert", "delete"):
                now = after_change(now, self.keys, move)
        return found

    def __str__(self) -> str:
        on = ", ".join(
            f"{each.left} {self.spec.stream.field(each.left).type} = {each.right} "
            f"{self.spec.relation.field(each.right).type}"
            for each in self.spec.on
        )
        return (
            f"case {self.seed}: {self.spec.how}, as {self.spec.output.value}, on {on}\n  columns "
            f"{self.spec.stream.types} x {self.spec.relation.types}\n  relation of {self.relation.num_rows} rows, "
            f"{self.design}; "
            f"{format_bytes(self.spare)} beyond the least memory, fuel {list(self.fuel)}, restores after steps "
            f"{list(self.restores)}\n  moves {' '.join(map(str, self.moves))}"
        )


def after_change(now: pa.Table, keys: tuple[str, ...], move: LookupMove) -> pa.Table:
    """A relation after an upsert or a delete, by nested loops."""
    assert move.batch is not None
    came = pa.Table.from_batches([move.batch])
    changes = JoinSpec(now.schema, now.schema, parse_on(list(keys)))
    gone = {i for i, _ in reference_pairs(now, came, changes)}
    kept = [now.slice(i, 1) for i in range(now.num_rows) if i not in gone]
    return pa.concat_tables([now.slice(0, 0), *kept, *([came] if move.what == "upsert" else [])])


def answers_for(spec: LookupSpec, batch: pa.RecordBatch, now: pa.Table) -> list[Row]:
    """What comes out for a batch that meets a relation, by nested loops."""
    pairs = reference_pairs(pa.Table.from_batches([batch]), now, spec.pairs)
    stream = canonical_rows(batch)
    matched = {i for i, _ in pairs}
    if spec.how == "semi":
        return [stream[i] for i in sorted(matched)]
    alone = [row for i, row in enumerate(stream) if i not in matched]
    if spec.how == "anti":
        return alone
    rows = [row for part in now.to_batches() for row in canonical_rows(part, spec.pairs.kept[1])]
    found = [stream[i] + rows[j] for i, j in pairs]
    return found if spec.how == "inner" else found + [row + nothing_beside(spec) for row in alone]


def nothing_beside(spec: LookupSpec) -> Row:
    """What stands beside a row that has found nothing."""
    kept = spec.pairs.kept[1]
    return tuple(canonical_null(spec.relation.field(i).type) for i in kept)


def make_lookup_case(seed: int) -> LookupCase:
    """The case of this seed.

    >>> str(make_lookup_case(7)) == str(make_lookup_case(7))
    True
    """
    rng = np.random.default_rng([seed, 0x100C])
    keys = [random_key(rng, int(rng.integers(1, 80))) for _ in range(int(rng.choice([1, 1, 1, 2])))]
    distinct = int(np.prod([len(key.values[0]) for key in keys]))
    rows = [int(rng.integers(0, _MOST_ROWS)), int(rng.integers(0, 2 * _MOST_ROWS))]
    skew = float(rng.choice([1, 1, 2, 4]))
    positions = [(distinct * rng.random(n) ** skew).astype(np.int64) for n in rows]
    while _pairs(positions) > 1_500:
        positions = [at[: int(len(at) * 0.8)] for at in positions]
    tables = [_table(rng, keys, side, positions[side]) for side in (0, 1)]
    names = tuple(f"b{k}" for k in range(len(keys)))
    on = [f"a{k} = b{k}" for k in range(len(keys))]
    how = str(rng.choice(HOW))
    output = Output.COUNTS if rng.random() < 0.06 else Output.ROWS
    spec = LookupSpec(tables[0].schema, tables[1].schema, lookup_conditions(on, names), how, output)
    first = int(tables[1].num_rows * rng.choice([0.3, 0.6, 1.0], p=[0.3, 0.3, 0.4]))
    design = random_design(rng)
    moves = random_lookup_moves(rng, tables[0], tables[1].slice(first))
    spares = [0, int(rng.integers(1, 4096)), int(rng.integers(4096, 65_536)), PLENTY]
    spare = int(rng.choice(spares, p=[0.4, 0.2, 0.25, 0.15]))
    restores = tuple(sorted(rng.integers(0, 3 * len(moves), 2).tolist())) if rng.random() < 0.15 else ()
    fuel = random_fuel(rng)
    return LookupCase(
        seed,
        spec,
        pa.Table.from_batches([tables[1].slice(0, first)]),
        design,
        moves,
        fuel,
        spare,
        restores,
        tuple(key.kind for key in keys),
    )


def random_design(rng: Rng) -> dict[str, Any]:
    """How a relation is laid out."""
    return {
        "partition": str(rng.choice(["range", "hash"])),
        "theta": int(rng.choice([512, 1024, 2048, 1 << 16], p=[0.4, 0.3, 0.2, 0.1])),
    }


def random_fuel(rng: Rng) -> tuple[int, ...]:
    """Of one poll after the other."""
    few = int(rng.integers(2, 40))
    fuels: list[tuple[int, ...]] = [(1,), (few,), (200,), (10**6,), (1, 500), (few, 1, 10**4)]
    return fuels[int(rng.integers(len(fuels)))]


def _pairs(positions: list[np.ndarray]) -> int:
    size = 1 + max(int(at.max(initial=0)) for at in positions)
    return int(np.bincount(positions[0], minlength=size) @ np.bincount(positions[1], minlength=size))


def _table(rng: Rng, keys: list[KeyColumns], side: int, positions: np.ndarray) -> pa.RecordBatch:
    rows = len(positions)
    nulls = float(rng.choice([0.0, 0.05, 0.3]))
    columns: dict[str, pa.Array] = {}
    for k, key in enumerate(keys):
        size = len(key.values[0])
        columns[f"{'ab'[side]}{k}"] = key.column(side, positions % size, rng.random(rows) < nulls)
        positions = positions // size
    columns[f"{'sr'[side]}n"] = pa.array(np.arange(rows))
    for c in range(int(rng.integers(0, 3))):
        columns[f"{'sr'[side]}{c}"] = random_payload(rng, rows)
    if rng.random() < 0.5:
        kind = WIDE_TYPES[int(rng.integers(len(WIDE_TYPES)))]
        columns[f"{'sr'[side]}w"] = wide_column(rng, rows, int(rng.choice([10, 60, 200])), 600, kind)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def random_lookup_moves(rng: Rng, stream: pa.RecordBatch, changes: pa.RecordBatch) -> tuple[LookupMove, ...]:
    """The stream in batches of some sizes, changes and silences in between, and the end."""
    most = int(rng.choice([1, 6, 30, 1000]))
    patience = int(rng.choice([1, 3, 10]))
    moves: list[LookupMove] = []
    start = changed = 0
    while start < stream.num_rows:
        if changes.num_rows and rng.random() < 0.35:
            size = int(rng.integers(0, 12))
            some = changes.slice(changed % changes.num_rows, size)
            changed += max(1, size)
            moves.append(LookupMove(str(rng.choice(["upsert", "upsert", "delete"])), some, 0))
        if rng.random() < 0.15:
            moves.append(LookupMove("stall", None, int(rng.integers(0, 8))))
        left = stream.num_rows - start
        size = left if len(moves) > 30 else min(left, int(rng.integers(0, most + 1)))
        moves.append(LookupMove("arrive", stream.slice(start, size), int(rng.integers(0, patience + 1))))
        start += size
    if rng.random() < 0.3:
        moves.append(LookupMove("stall", None, int(rng.integers(0, 8))))
    return (*moves, LookupMove("end", None, 1))
