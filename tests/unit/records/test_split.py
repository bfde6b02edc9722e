"""Batches split among shards: every row that can match is in one piece, and pieces become batches with equal rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks import make_case
from watersmeet.checks.canonical import canonical_rows
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.joins.sharded import Sharded
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.records.split import Piece, SplitCodec, SplitIntake, SplitPlan, Splitter

SCHEMA = pa.schema({"id": pa.int64(), "note": pa.string()})
SPEC = JoinSpec(SCHEMA, SCHEMA, parse_on("id"))


def batch(*ids: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "note": [str(i) for i in ids]}, SCHEMA)


def splitter_of(shards: int, spec: JoinSpec = SPEC, stays: bool = False) -> Splitter:
    return Splitter(spec, 0, KeyCodec(spec), shards, stays)


def pieces_of(rows: pa.RecordBatch, shards: int) -> list[Piece | None]:
    return splitter_of(shards).split(rows, 0)


@pytest.mark.parametrize("shards", [1, 2, 3, 8, 100])
def test_rows_are_in_one_piece_each_by_their_hashes_and_in_their_order(shards: int) -> None:
    rows = batch(*range(1000), None, *range(500))
    pieces = pieces_of(rows, shards)
    found = [row for piece in pieces if piece is not None for row in piece.rows.tolist()]
    assert sorted(found) == [row for row in range(1501) if row != 1000], "NULL goes nowhere"
    assert all((np.diff(piece.rows) > 0).all() for piece in pieces if piece is not None)
    shard_of = {row: number for number, piece in enumerate(pieces) if piece is not None for row in piece.rows.tolist()}
    assert all(shard_of[i] == shard_of[1001 + i] for i in range(500)), "equal keys are in the same shard"
    sizes = Counter(shard_of.values())
    assert len(sizes) == shards and max(sizes.values()) < 3 * 1500 / shards


def test_no_piece_where_there_is_no_row() -> None:
    pieces = pieces_of(batch(7, 7, 7), 5)
    assert sum(piece is not None for piece in pieces) == 1
    assert pieces_of(batch(None, None), 3) == [None, None, None]


@pytest.mark.parametrize("seed", range(60))
def test_pieces_of_any_types_become_batches_with_the_same_rows(seed: int) -> None:
    case = make_case(seed, Sharded, shards=2)
    spec = case.spec
    for side in (0, 1):
        codec, plan = KeyCodec(spec), RowPlan(spec, side, KeyCodec(spec).exact)
        split_plan = SplitPlan(spec, side, codec.exact)
        splitter = Splitter(spec, side, codec, 2)
        table = case.table(side)
        intakes = [SplitIntake(4096, split_plan) for _ in range(2)]
        for start in range(0, table.num_rows, 37):  # slices have offsets into their buffers
            for intake, piece in zip(intakes, splitter.split(table.slice(start, 37), start), strict=True):
                if piece is not None:
                    intake.add_piece(piece)
        hashes, valid = codec.hash(side, plan.key_arrays(table))
        numbers = np.arange(table.num_rows)
        stored = pa.RecordBatch.from_arrays([pa.array(hashes), *plan.store(table, numbers)], schema=split_plan.schema)
        wanted = canonical_rows(stored)
        found: list[tuple[int, Any]] = []
        for intake in intakes:
            while intake.rows:
                rows, places = intake.next()
                rows.validate(full=True)
                assert SplitCodec(spec).hash(side, split_plan.key_arrays(rows))[0].tolist() == hashes[places].tolist()
                found += zip(places.tolist(), canonical_rows(rows), strict=True)
        known = range(table.num_rows) if valid is None else np.flatnonzero(valid).tolist()
        assert dict(found) == {row: wanted[row] for row in known} and len(found) == len(known)


def test_many_small_pieces_become_one_batch_within_the_limit() -> None:
    plan = SplitPlan(SPEC, 0, True)
    intake = SplitIntake(1 << 20, plan)
    splitter, shared = splitter_of(1), []
    for number in range(50):
        piece = splitter.split(batch(number, number + 1), first=2 * number)[0]
        assert piece is not None
        shared.append(piece.batch)
        intake.add_piece(piece)
    rows, numbers = intake.next()
    assert rows.num_rows == 100 and numbers.tolist() == list(range(100)) and not intake.rows
    assert list(intake.taken) == shared, "they are needed no longer"
    small = SplitIntake(1, plan)
    small.add_piece(pieces_of(batch(1, 2, 3), 1)[0])  # type: ignore[arg-type]
    assert [small.next()[0].num_rows for _ in range(3)] == [1, 1, 1], "never less than a row"
    assert len(small.taken) == 1


def test_the_first_rows_go_on_in_small_batches() -> None:
    intake = SplitIntake(1 << 30, SplitPlan(SPEC, 0, True))
    piece = pieces_of(batch(*range(20_000)), 1)[0]
    assert piece is not None
    intake.add_piece(piece)
    assert [intake.next()[0].num_rows for _ in range(3)] == [2048, 4096, 8192]


def test_numbers_of_rows_are_those_of_the_whole_input() -> None:
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), output=Output.PAIRS)
    plan = SplitPlan(spec, 0, True)
    intake = SplitIntake(1 << 20, plan)
    splitter = splitter_of(1, spec)
    for first in (0, 3):
        piece = splitter.split(batch(5, 6, 7), first)[0]
        assert piece is not None
        intake.add_piece(piece)
    rows, numbers = intake.next()
    assert numbers.tolist() == rows.column(1).to_pylist() == [0, 1, 2, 3, 4, 5]
