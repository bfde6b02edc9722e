"""Rows that a join keeps in sorted runs, as rows of their input again.

A run holds the columns that reach results, and those keys that their hash does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.keys import KeyType
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import RowPlan
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.task.placement import Placement, keys_of_hashes, values_of_hashes

_AT_ONCE = 1 << 16


def hash_tells_key(spec: JoinSpec) -> bool:
    """Whether a row's key is told by its hash, and kept nowhere else."""
    return bool(spec.equalities) and KeyCodec(spec).exact


def stored_rows(
    plan: RowPlan,
    spec: JoinSpec,
    side: int,
    run: SortedRun,
    numbers: Int64,
    columns: Sequence[int],
    told_in: int | None = None,
) -> pa.RecordBatch:
    """Some columns of rows of a run, which follow each other; columns that the join does not keep are NULL.

    :param told_in: the column of the run that has the hashes of keys, if it is sorted by something else.
    """
    source = spec.input(side)
    before = len(plan.types) - len(plan.sources)  # words that come before what the input brings
    places = {i: before + place for place, i in enumerate(plan.sources)}
    told = {source.get_field_index(name) for name in spec.keys(side)} if hash_tells_key(spec) else set[int]()
    stored = tuple(places[i] for i in columns if i in places)
    found = dict(zip(stored, run.gather_all(stored, numbers), strict=True))
    arrays = []
    for i in columns:
        if i in places:
            arrays.append(plan.original(places[i], found[places[i]]))
        elif i in told:
            arrays.append(keys_of_hashes(spec, side, _hashes(run, numbers, told_in)))
        else:
            arrays.append(pa.nulls(len(numbers), source.field(i).type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([source.field(i) for i in columns]))


def _hashes(run: SortedRun, numbers: Int64, told_in: int | None) -> Int64:
    """The hashes of rows that follow each other: what a run is sorted by, or one of its columns."""
    if told_in is not None:
        found: Int64 = run.gather_all((told_in,), numbers)[0].to_numpy()
        return found
    run.check_hashes(int(numbers[0]), int(numbers[-1]) + 1)
    return run.hashes()[numbers[0] : numbers[-1] + 1].view(np.int64)


def column_of_many(
    join: ManyConfluence, spec: MultiSpec, number: int, place: int, run: SortedRun, numbers: Int64
) -> pa.Array:
    """A column of rows of a run of a join of several inputs, which follow each other."""
    plan, schema = join.plans[number], spec.input(number)
    if place in plan.sources:
        before = len(plan.types) - len(plan.sources)  # words that come before what the input brings
        stored = before + plan.sources.index(place)
        return plan.original(stored, run.gather_all((stored,), numbers)[0])
    # It comes out with another input's, and is told by its hash.
    attributes = spec.attributes[number]
    which = next(i for i, each in enumerate(attributes) if each.column == schema.field(place).name)
    form = attributes[which].form
    assert isinstance(form, KeyType)
    told_in = join.tables[number].first_hashes + which if len(attributes) > 1 else None
    return values_of_hashes(form, schema.field(place).type, _hashes(run, numbers, told_in))


def rows_of_key(join: Confluence, spec: JoinSpec, side: int, key: int) -> Iterator[pa.RecordBatch]:
    """All rows of a side whose keys have this hash, as Spark takes it; what the join does not keep of them is NULL."""
    placement, source = Placement(spec, by_id=True), spec.input(side)
    keys = [source.get_field_index(name) for name in spec.keys(side)]
    for run in join.runs[side]:
        for first in range(0, run.rows, _AT_ONCE):
            numbers = np.arange(first, min(run.rows, first + _AT_ONCE))
            hashes = placement.hashes(stored_rows(join.plans[side], spec, side, run, numbers, keys).columns)
            wanted = pa.array(np.flatnonzero(hashes == key))
            if len(wanted):
                yield stored_rows(join.plans[side], spec, side, run, numbers, range(len(source))).take(wanted)
        let_go([run])
