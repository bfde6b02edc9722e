"""Generated cases of one stream in several relations, and of several streams in one relation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.canonical import Row, canonical_rows
from watersmeet.checks.keys import KeyColumns, encoded, random_key
from watersmeet.checks.lookup_cases import (
    PLENTY,
    LookupMove,
    after_change,
    answers_for,
    nothing_beside,
    random_design,
    random_fuel,
)
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.checks.payload import random_payload
from watersmeet.core.lookup import HOW, LookupSpec
from watersmeet.core.many_lookups import ChainSpec, Link, SharedSpec
from watersmeet.core.spec import Equal, JoinSpec, Output
from watersmeet.memory import format_bytes
from watersmeet.relation.changes import StoredRelation
from watersmeet.relation.relation import RelationReader

Rng: TypeAlias = np.random.Generator


@dataclass(frozen=True, eq=False)
class ManyCase:
    """What both kinds of cases have: relations, and the script by which rows and changes come."""

    seed: int
    spec: Any
    relations: tuple[pa.Table, ...]
    keys: tuple[str, ...]
    """Of each relation."""
    designs: tuple[dict[str, Any], ...]
    moves: tuple[LookupMove, ...]
    fuel: tuple[int, ...]
    spare: int
    restores: tuple[int, ...] = ()
    kinds: tuple[str, ...] = field(default=())

    def make_relations(self) -> list[StoredRelation]:
        """The relations as they are at the beginning."""
        return [
            StoredRelation.in_memory(rows, (key,), **design)
            for rows, key, design in zip(self.relations, self.keys, self.designs, strict=True)
        ]

    def _arrivals(self) -> Iterator[tuple[LookupMove, list[pa.Table]]]:
        """Each batch of a stream, and the relations as they are then."""
        now = [rows.combine_chunks() for rows in self.relations]
        for move in self.moves:
            if move.what == "arrive":
                yield move, now
            elif move.what in ("upsert", "delete"):
                now[move.which] = after_change(now[move.which], (self.keys[move.which],), move)

    def __str__(self) -> str:
        return (
            f"case {self.seed}: {self.spec}\n  relations of {[rows.num_rows for rows in self.relations]} rows, "
            f"{list(self.designs)}; {format_bytes(self.spare)} beyond the least memory, fuel {list(self.fuel)}, "
            f"restores after steps {list(self.restores)}\n  moves {' '.join(map(str, self.moves))}"
        )


class ChainCase(ManyCase):
    """A stream in several relations."""

    maker = "make_chain_case"

    def readers(self, relations: list[StoredRelation]) -> list[RelationReader]:
        """What the operator is given."""
        return [relation.reader for relation in relations]

    @cached_property
    def expected(self) -> list[Row]:
        """What the oracle says: for each row all combinations of what nested loops find in each relation."""
        spec: ChainSpec = self.spec
        found: list[Row] = []
        for move, now in self._arrivals():
            assert move.batch is not None
            stream = canonical_rows(move.batch)
            beside = [self._beside(number, move.batch, now[number]) for number in range(len(spec.links))]
            for i, row in enumerate(stream):
                found += [sum(parts, row) for parts in product(*(each[i] for each in beside))]
        return found

    def _beside(self, number: int, batch: pa.RecordBatch, now: pa.Table) -> list[list[Row]]:
        """For each row of a batch: what one relation puts beside it, as many times as the row comes out."""
        link, stage = self.spec.links[number], self.spec.stages[number]
        partners: list[list[int]] = [[] for _ in range(batch.num_rows)]
        pairs = JoinSpec(batch.schema, now.schema, link.on, suffixes=("", "_right"))
        for i, j in reference_pairs(pa.Table.from_batches([batch]), now, pairs):
            partners[i].append(j)
        if link.how in ("semi", "anti"):
            return [[()] if bool(each) == (link.how == "semi") else [] for each in partners]
        kept = stage.pairs.kept[1]
        rows = [row for part in now.to_batches() for row in canonical_rows(part, kept)]
        none = [nothing_beside(stage)] if link.how == "left" else []
        return [[rows[j] for j in each] or none for each in partners]


class SharedCase(ManyCase):
    """Several streams in one relation."""

    maker = "make_shared_case"

    def readers(self, relations: list[StoredRelation]) -> RelationReader:
        """What the operator is given."""
        return relations[0].reader

    @cached_property
    def expected(self) -> list[Row]:
        """What the oracle says for each stream, as if it were alone; each row with the number of its stream."""
        found: list[Row] = []
        for move, now in self._arrivals():
            assert move.batch is not None
            found += [(move.which, *row) for row in answers_for(self.spec.streams[move.which], move.batch, now[0])]
        return found


def make_chain_case(seed: int) -> ChainCase:
    """The case of this seed: a stream in two or three relations.

    >>> str(make_chain_case(7)) == str(make_chain_case(7))
    True
    """
    rng = np.random.default_rng([seed, 0xC4A1])
    keys = [random_key(rng, int(rng.integers(10, 50))) for _ in range(int(rng.choice([2, 2, 3])))]
    rows = int(rng.integers(0, 80))
    columns = {f"a{k}": _keys(rng, key, 0, rows) for k, key in enumerate(keys)}
    stream = pa.RecordBatch.from_pydict({**columns, "n": pa.array(np.arange(rows)), "s": random_payload(rng, rows)})
    tables = [_relation(rng, key, f"b{k}") for k, key in enumerate(keys)]
    links = tuple(
        Link(f"r{k}", table.schema, (Equal(f"a{k}", f"b{k}"),), str(rng.choice(HOW, p=[0.4, 0.4, 0.1, 0.1])))
        for k, table in enumerate(tables)
    )
    output = Output.COUNTS if rng.random() < 0.06 else Output.ROWS
    case = _drawn(rng, [stream], tables)
    return ChainCase(
        seed, ChainSpec(stream.schema, links, output), keys=tuple(f"b{k}" for k in range(len(keys))),
        kinds=tuple(key.kind for key in keys), **case,
    )  # fmt: skip


def make_shared_case(seed: int) -> SharedCase:
    """The case of this seed: two or three streams in a relation.

    >>> str(make_shared_case(7)) == str(make_shared_case(7))
    True
    """
    rng = np.random.default_rng([seed, 0x54AE])
    key = random_key(rng, int(rng.integers(10, 60)))
    streams = []
    for number in range(int(rng.choice([2, 2, 3]))):
        rows = int(rng.integers(0, 80))
        own = {"n": pa.array(np.arange(rows)), f"s{number}": random_payload(rng, rows)}
        side = int(rng.random() < 0.3)
        streams.append(pa.RecordBatch.from_pydict({"a": _keys(rng, key, side, rows), **own}))
    table = _relation(rng, key, "b")
    output = Output.COUNTS if rng.random() < 0.06 else Output.ROWS
    specs = tuple(
        LookupSpec(stream.schema, table.schema, (Equal("a", "b"),), str(rng.choice(HOW)), output) for stream in streams
    )
    names = tuple(f"stream {number}" for number in range(len(streams)))
    case = _drawn(rng, streams, [table])
    return SharedCase(seed, SharedSpec(names, specs), keys=("b",), kinds=(key.kind,), **case)


def _drawn(rng: Rng, streams: list[pa.RecordBatch], tables: list[pa.RecordBatch]) -> dict[str, Any]:
    """What cases of both kinds have: relations to begin with, how they are laid out, the script, fuel and memory."""
    first = [int(table.num_rows * rng.choice([0.3, 0.6, 1.0], p=[0.3, 0.3, 0.4])) for table in tables]
    changes = [table.slice(start) for table, start in zip(tables, first, strict=True)]
    moves = _moves(rng, streams, changes)
    spares = [0, int(rng.integers(1, 8192)), int(rng.integers(8192, 200_000)), PLENTY]
    return {
        "relations": tuple(pa.Table.from_batches([t.slice(0, n)]) for t, n in zip(tables, first, strict=True)),
        "designs": tuple(random_design(rng) for _ in tables),
        "moves": moves,
        "fuel": random_fuel(rng),
        "spare": int(rng.choice(spares, p=[0.3, 0.2, 0.3, 0.2])),
        "restores": tuple(sorted(rng.integers(0, 3 * len(moves), 2).tolist())) if rng.random() < 0.2 else (),
    }


def _keys(rng: Rng, key: KeyColumns, side: int, rows: int) -> pa.Array:
    size = len(key.values[side])
    positions = (size * rng.random(rows) ** float(rng.choice([1, 1, 2]))).astype(np.int64)
    return key.column(side, positions, rng.random(rows) < float(rng.choice([0.0, 0.1])))


def _relation(rng: Rng, key: KeyColumns, name: str) -> pa.RecordBatch:
    """Each key a few times, or not at all."""
    size = len(key.values[1])
    rows = int(rng.integers(0, 2 * size))
    positions = rng.integers(0, size, rows)
    taken = key.values[1].take(pa.array(positions, pa.int64(), mask=rng.random(rows) < 0.05))
    columns = {
        name: encoded(taken, key.types[1]),
        "n": pa.array(np.arange(rows)),
        f"p{name}": random_payload(rng, rows),
    }
    return pa.RecordBatch.from_pydict(columns)


def _moves(rng: Rng, streams: list[pa.RecordBatch], changes: list[pa.RecordBatch]) -> tuple[LookupMove, ...]:
    """The streams in turns, in batches of some sizes, with changes and silences in between, and their ends."""
    most = int(rng.choice([1, 6, 30, 1000]))
    patience = int(rng.choice([1, 3, 10]))
    often = float(rng.choice([0.1, 0.3, 0.6]))
    starts, changed = [0] * len(streams), [0] * len(changes)
    open_ = list(range(len(streams)))
    moves: list[LookupMove] = []
    while open_:
        which = int(rng.integers(len(changes)))
        if changes[which].num_rows and rng.random() < often:
            size = int(rng.integers(0, 12))
            some = changes[which].slice(changed[which] % changes[which].num_rows, size)
            changed[which] += max(1, size)
            moves.append(LookupMove(str(rng.choice(["upsert", "upsert", "delete"])), some, 0, which))
        if rng.random() < 0.12:
            moves.append(LookupMove("stall", None, int(rng.integers(0, 8))))
        which = int(rng.choice(open_))
        stream = streams[which]
        left = stream.num_rows - starts[which]
        if not left:
            open_.remove(which)
            moves.append(LookupMove("end", None, int(rng.integers(1, 4)), which))
            continue
        size = left if len(moves) > 40 else min(left, int(rng.integers(0, most + 1)))
        some = stream.slice(starts[which], size)
        starts[which] += size
        moves.append(LookupMove("arrive", some, int(rng.integers(0, patience + 1)), which))
    return tuple(moves)
