"""The rows that a join remembers, read from its state: those of one input, all or such as meet a condition.

A condition on the join's keys leads to one group, and there to one place in each sorted run. What is shown of a row are
the columns that the join keeps: those that reach its results, and its keys. Where rows are depends on the join:

    of two inputs   runs in the order of hashes, which tell the key where it is a word
    as-of           left: runs in the order of times, behind the place up to which rows were answered; right: runs in
                    the order of hash and time
    of several      sets of runs, each with all rows of the set in an order of its own: the first is read. A value that
                    another input brings to the results is told by its hash
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SnapshotError, SpecError
from watersmeet.joins.asof.join import AsofJoin
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.matching.reach import BandKeys
from watersmeet.records.asof_times import HASH
from watersmeet.records.keys import KeyCodec
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.offline.opened import OpenedState, Version
from watersmeet.spark.plan.grid import grid_for
from watersmeet.spark.state.described import many_spec_of
from watersmeet.spark.task.stored_rows import column_of_many, stored_rows
from watersmeet.spill.store import MemoryStore

SIDES = ("left", "right")
_LEFT = 0
_AT_ONCE = 1 << 16
_COMPARED = re.compile(r"""\s*(?P<column>"[^"]+"|[\w.]+)\s*(?P<how>=|==|!=|<>|<=|>=|<|>)\s*(?P<value>'[^']*'|\S+)\s*""")
_IS_NULL = re.compile(r"""\s*(?P<column>"[^"]+"|[\w.]+)\s+is(?P<no>\s+not)?\s+null\s*""", re.IGNORECASE)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with a value; without one, it is asked whether it is NULL."""

    column: str
    how: str
    value: pa.Scalar | None = None

    def expression(self) -> pc.Expression:
        """For Arrow."""
        field = pc.field(self.column)
        if self.value is None:
            return field.is_null() if self.how == "is null" else field.is_valid()
        found: pc.Expression = _COMPARE[self.how](field, self.value)
        return found


def parse_where(where: str | None, schema: pa.Schema) -> list[Comparison]:
    """Comparisons joined by `and`, from what people write.

    >>> schema = pa.schema({"id": pa.int32(), "name": pa.string()})
    >>> [(each.column, each.how, str(each.value)) for each in parse_where("id >= 7 and name != 'cup and pot'", schema)]
    [('id', '>=', '7'), ('name', '!=', 'cup and pot')]
    """
    if where is None or not where.strip():
        return []
    parts = re.split(r"\band\b(?=(?:[^']*'[^']*')*[^']*$)", where, flags=re.IGNORECASE)
    return [_comparison(part, schema) for part in parts]


def _comparison(part: str, schema: pa.Schema) -> Comparison:
    null, compared = _IS_NULL.fullmatch(part), _COMPARED.fullmatch(part)
    found = null or compared
    if found is None:
        raise SpecError(
            f"condition {part.strip()!r} is not understood; write 'column = value', with =, !=, <, <=, > or >=, or "
            f"'column is null', and 'and' between several"
        )
    column = found["column"].strip('"')
    if column not in schema.names:
        raise SpecError(f"column {column!r} is not kept by the join; kept are {', '.join(schema.names)}")
    if null is not None:
        return Comparison(column, "is not null" if null["no"] else "is null")
    text, type_ = found["value"].strip("'"), schema.field(column).type
    try:
        value = pa.scalar(text).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SpecError(f"{text!r} is no value of column {column!r} ({type_}); {error}") from error
    return Comparison(column, found["how"], value)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows of a run that follow each other."""

    run: SortedRun
    start: int
    stop: int


class _Inside(Protocol):
    """The rows of one input."""

    schema: pa.Schema
    """The columns that the join keeps of them."""
    keys: tuple[str, ...]
    """Columns that lead to a group, if a condition names all of them."""

    def groups(self, pinned: list[pa.Array] | None) -> list[int]:
        """The groups in which rows may be, of all keys or of these."""

    def open(self, version: Version) -> Any:
        """A group's operator, to be closed; None if nothing is left of it."""

    def stretches(self, join: Any, pinned: list[pa.Array] | None) -> Iterator[_Stretch]:
        """Where rows of a group are."""

    def rows(self, join: Any, run: SortedRun, numbers: Int64) -> pa.RecordBatch:
        """Rows of a run that follow each other."""


def _inside(state: OpenedState, name: str) -> _Inside:
    """The rows of an input, by its name: of joins of two it is left or right."""
    if state.verb == "multijoin":
        return _OfMany(state, name)
    if name not in SIDES:
        raise SpecError(f"side={name!r} is not understood; write 'left' or 'right'")
    return (_OfAsof if state.verb == "asof_join" else _OfTwo)(state, SIDES.index(name))


class _OfTwo:
    """A join of two inputs that keeps runs in the order of hashes."""

    def __init__(self, state: OpenedState, side: int) -> None:
        self._check(state)
        self._state, self._side = state, side
        kind = self._kind
        probe = kind(state.spec, kind.least_memory(state.spec), MemoryStore())
        kept = set(probe.plans[side].sources)
        probe.close()
        source = state.spec.input(side)
        self.keys = state.spec.keys(side)
        told = {source.get_field_index(name) for name in self.keys} if state.hash_tells_key else set[int]()
        self._columns = [i for i in sorted(kept | told) if i >= 0]
        self.schema = pa.schema([source.field(i) for i in self._columns])

    def _check(self, state: OpenedState) -> None:
        state.refuse_others()

    @property
    def _kind(self) -> Any:
        return self._state.kind

    def groups(self, pinned: list[pa.Array] | None) -> list[int]:
        """Those of a key are its own, and those of hot keys that are split."""
        state = self._state
        numbers = [number for number in state.group_numbers() if self._side in state.counted(number)]
        if pinned is None or state.verb == "parallel_join":
            return numbers
        (own,) = state.placement.groups(pinned, self._side, state.groups).tolist()
        return [number for number in numbers if number == own or number >= state.groups]

    def open(self, version: Version) -> Any:
        """A group's operator."""
        return self._state.open(version)

    def stretches(self, join: Any, pinned: list[pa.Array] | None) -> Iterator[_Stretch]:
        """All rows of all runs, or between which they are."""
        for run in join.runs[self._side]:
            yield self._stretch(run, None if isinstance(join.codec, BandKeys) else pinned)

    def _stretch(self, run: SortedRun, pinned: list[pa.Array] | None) -> _Stretch:
        if pinned is None:
            return _Stretch(run, 0, run.rows)
        hashes, _ = KeyCodec(self._state.spec).hash(self._side, pinned)
        run.check_hashes(0, run.rows)
        wanted, known = hashes.view(np.uint64)[0], run.hashes()
        return _Stretch(run, int(np.searchsorted(known, wanted)), int(np.searchsorted(known, wanted, "right")))

    def rows(self, join: Confluence, run: SortedRun, numbers: Int64) -> pa.RecordBatch:
        """Rows of a run."""
        return stored_rows(join.plans[self._side], self._state.spec, self._side, run, numbers, self._columns)


class _OfAsof(_OfTwo):
    """An as-of join: left rows that are not answered yet, and right rows that may still be asked for."""

    def _check(self, state: OpenedState) -> None:
        """All of them can be read."""

    @property
    def _kind(self) -> Any:
        return AsofJoin

    def groups(self, pinned: list[pa.Array] | None) -> list[int]:
        """Without a key, all rows are one group."""
        return super().groups(pinned if self.keys else None)

    def open(self, version: Version) -> Any:
        """A group's operator."""
        if version.manifest["snapshot"] is None:
            return None
        return self._state.restored(AsofJoin, self._state.spec, version, self._state.store(version))

    def stretches(self, join: AsofJoin, pinned: list[pa.Array] | None) -> Iterator[_Stretch]:
        """Left runs are in the order of times, so that a key may be anywhere in them."""
        if self._side == _LEFT:
            yield from (_Stretch(each.run, each.place, each.run.rows) for each in join.left.runs)
        else:
            yield from (self._stretch(each.timed.run, pinned) for each in join.right.runs)

    def rows(self, join: Any, run: SortedRun, numbers: Int64) -> pa.RecordBatch:
        """Rows of a run."""
        told_in = HASH if self._side == _LEFT else None
        plan = join.plans[self._side]
        return stored_rows(plan, self._state.spec, self._side, run, numbers, self._columns, told_in)


class _OfMany:
    """A join of several inputs that keeps whole sets of runs."""

    keys: tuple[str, ...] = ()

    def __init__(self, state: OpenedState, name: str) -> None:
        self._state, self._spec = state, many_spec_of(state.described)
        if name not in self._spec.names:
            raise SpecError(f"{name!r} is no input of the join in {state.path}; it has {', '.join(self._spec.names)}")
        if state.algorithm != ManyConfluence.name:
            raise SnapshotError(
                f"{state.path} is the state of a wms.multijoin by {state.algorithm!r}, whose rows are not all in runs, "
                f"so that they cannot be read from outside; those of one by 'confluence' can"
            )
        self._input = self._spec.names.index(name)
        self._grid = grid_for(self._spec, state.groups)
        probe = ManyConfluence(self._spec, ManyConfluence.least_memory(self._spec), MemoryStore())
        kept = set(probe.plans[self._input].sources)
        probe.close()
        source = self._spec.input(self._input)
        told = {source.get_field_index(each.column) for each in self._spec.attributes[self._input]}
        self._columns = sorted(kept | told)
        self.schema = pa.schema([source.field(i) for i in self._columns])

    def groups(self, pinned: list[pa.Array] | None) -> list[int]:
        """Of rows that are copied to several groups, the first has them all."""
        return [number for number in self._state.group_numbers() if self._grid.is_first(self._input, number)]

    def open(self, version: Version) -> Any:
        """A group's operator."""
        if version.manifest["snapshot"] is None:
            return None
        return self._state.restored(ManyConfluence, self._spec, version, self._state.store(version))

    def stretches(self, join: ManyConfluence, pinned: list[pa.Array] | None) -> Iterator[_Stretch]:
        """Each set has its rows in several orders, of which one is as good as another."""
        for each in join.disks[self._input].sets:
            yield _Stretch(each.runs[0], 0, each.rows)

    def rows(self, join: ManyConfluence, run: SortedRun, numbers: Int64) -> pa.RecordBatch:
        """Rows of a run."""
        arrays = [column_of_many(join, self._spec, self._input, place, run, numbers) for place in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class StateRows:
    """The rows of one input of a join: left or right, or one of several by its name."""

    def __init__(self, state: OpenedState, side: str, where: str | None = None) -> None:
        self._state = state
        self._inside = _inside(state, side)
        self.schema = self._inside.schema
        """The columns that the join keeps."""
        self._where = parse_where(where, self.schema)
        self._pinned = self._pinned_keys()

    def _pinned_keys(self) -> list[pa.Array] | None:
        """The keys that a condition asks for, if it names all of them."""
        found: dict[str, Any] = {each.column: each.value for each in self._where if each.how in ("=", "==")}
        keys = self._inside.keys
        if not keys or any(name not in found for name in keys):
            return None
        return [pa.array([found[name].as_py()], self.schema.field(name).type) for name in keys]

    def groups(self) -> list[int]:
        """The groups in which such rows may be."""
        return self._inside.groups(self._pinned)

    def read(self, groups: Sequence[int] | None = None, batch: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, of some groups or of all in which they may be, as they are now or were after a batch."""
        for number in self.groups() if groups is None else groups:
            version = self._state.version(number, 1 << 60 if batch is None else batch)
            if version is not None:
                yield from self._of_group(version)

    def _of_group(self, version: Version) -> Iterator[pa.RecordBatch]:
        join = self._inside.open(version)
        if join is None:
            return
        try:
            for of in self._inside.stretches(join, self._pinned):
                for first in range(of.start, of.stop, _AT_ONCE):
                    rows = self._inside.rows(join, of.run, np.arange(first, min(of.stop, first + _AT_ONCE)))
                    if self._where:
                        rows = self._such(rows)
                    if rows.num_rows:
                        yield rows
                let_go([of.run])
        finally:
            join.close()

    def _such(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those that meet the conditions."""
        wanted = self._where[0].expression()
        for each in self._where[1:]:
            wanted = wanted & each.expression()
        found: pa.Table = pa.Table.from_batches([rows]).filter(wanted).combine_chunks()
        return found.to_batches()[0] if found.num_rows else rows.slice(0, 0)
