"""Rows that a join keeps in sorted runs, as rows of their input again.

A run holds the columns that reach results, and those keys that their hash does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.spec import JoinSpec
from watersmeet.joins.confluence import Confluence
from watersmeet.records.keys import KeyCodec
from watersmeet.records.times import FIRST_PAYLOAD, WindowPlan
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.task.placement import Placement, keys_of_hashes

_AT_ONCE = 1 << 16


def hash_tells_key(spec: JoinSpec) -> bool:
    """Whether a row's key is told by its hash, and kept nowhere else."""
    return bool(spec.equalities) and KeyCodec(spec).exact


def stored_rows(
    join: Confluence, spec: JoinSpec, side: int, run: SortedRun, numbers: Int64, columns: Sequence[int]
) -> pa.RecordBatch:
    """Some columns of rows of a run, which follow each other; columns that the join does not keep are NULL."""
    plan, source = join.plans[side], spec.input(side)
    before = FIRST_PAYLOAD if isinstance(plan, WindowPlan) else 0
    places = {i: before + place for place, i in enumerate(plan.sources)}
    told = {source.get_field_index(name) for name in spec.keys(side)} if hash_tells_key(spec) else set[int]()
    stored = tuple(places[i] for i in columns if i in places)
    found = dict(zip(stored, run.gather_all(stored, numbers), strict=True))
    arrays = []
    for i in columns:
        if i in places:
            arrays.append(plan.original(places[i], found[places[i]]))
        elif i in told:
            run.check_hashes(int(numbers[0]), int(numbers[-1]) + 1)
            hashes = run.hashes()[numbers[0] : numbers[-1] + 1].view(np.int64)
            arrays.append(keys_of_hashes(spec, side, hashes))
        else:
            arrays.append(pa.nulls(len(numbers), source.field(i).type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([source.field(i) for i in columns]))


def rows_of_key(join: Confluence, spec: JoinSpec, side: int, key: int) -> Iterator[pa.RecordBatch]:
    """All rows of a side whose keys have this hash, as Spark takes it; what the join does not keep of them is NULL."""
    placement, source = Placement(spec, by_id=True), spec.input(side)
    keys = [source.get_field_index(name) for name in spec.keys(side)]
    for run in join.runs[side]:
        for first in range(0, run.rows, _AT_ONCE):
            numbers = np.arange(first, min(run.rows, first + _AT_ONCE))
            hashes = placement.hashes(stored_rows(join, spec, side, run, numbers, keys).columns)
            wanted = pa.array(np.flatnonzero(hashes == key))
            if len(wanted):
                yield stored_rows(join, spec, side, run, numbers, range(len(source))).take(wanted)
        let_go([run])
