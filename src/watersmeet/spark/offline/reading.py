"""The rows that a join remembers, read from its state: those of one side, all or such as meet a condition.

A condition on the join's keys leads to one group, and there to one place in each sorted run. What is shown of a row are
the columns that the join keeps: those that reach its results, and its keys.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError
from watersmeet.joins.confluence import Confluence
from watersmeet.matching.reach import BandKeys
from watersmeet.records.keys import KeyCodec
from watersmeet.runs.sorted_run import SortedRun, let_go
from watersmeet.spark.offline.opened import OpenedState, Version
from watersmeet.spark.task.stored_rows import stored_rows
from watersmeet.spill.store import MemoryStore

SIDES = ("left", "right")
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


class StateRows:
    """The rows of one side of a join."""

    def __init__(self, state: OpenedState, side: str, where: str | None = None) -> None:
        if side not in SIDES:
            raise SpecError(f"side={side!r} is not understood; write 'left' or 'right'")
        state.refuse_others()
        self._state = state
        self._side = SIDES.index(side)
        probe = state.kind(state.spec, state.kind.least_memory(state.spec), MemoryStore())
        kept = set(probe.plans[self._side].sources)
        probe.close()
        source = state.spec.input(self._side)
        self._keys = state.spec.keys(self._side)
        told = {source.get_field_index(name) for name in self._keys} if state.hash_tells_key else set[int]()
        self._columns = [i for i in sorted(kept | told) if i >= 0]
        self.schema = pa.schema([source.field(i) for i in self._columns])
        """The columns that the join keeps."""
        self._where = parse_where(where, self.schema)
        self._pinned = self._pinned_keys()

    def _pinned_keys(self) -> list[pa.Array] | None:
        """The keys that a condition asks for, if it names all of them."""
        found: dict[str, Any] = {each.column: each.value for each in self._where if each.how in ("=", "==")}
        if not self._keys or any(name not in found for name in self._keys):
            return None
        return [pa.array([found[name].as_py()], self.schema.field(name).type) for name in self._keys]

    def groups(self) -> list[int]:
        """The groups in which such rows may be."""
        numbers = [number for number in self._state.group_numbers() if self._side in self._state.counted(number)]
        if self._pinned is None or self._state.verb == "parallel_join":
            return numbers
        (own,) = self._state.placement.groups(self._pinned, self._side, self._state.groups).tolist()
        return [number for number in numbers if number == own or number >= self._state.groups]

    def read(self, groups: Sequence[int] | None = None, batch: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, of some groups or of all in which they may be, as they are now or were after a batch."""
        for number in self.groups() if groups is None else groups:
            version = self._state.version(number, 1 << 60 if batch is None else batch)
            if version is not None:
                yield from self._of_group(version)

    def _of_group(self, version: Version) -> Iterator[pa.RecordBatch]:
        join = self._state.open(version)
        if join is None:
            return
        try:
            for run in join.runs[self._side]:
                start, stop = self._between(join, run)
                for first in range(start, stop, _AT_ONCE):
                    rows = self._rows(join, run, np.arange(first, min(stop, first + _AT_ONCE)))
                    if self._where:
                        rows = self._such(rows)
                    if rows.num_rows:
                        yield rows
                let_go([run])
        finally:
            join.close()

    def _between(self, join: Confluence, run: SortedRun) -> tuple[int, int]:
        """Between which rows of a run they are."""
        if self._pinned is None or isinstance(join.codec, BandKeys):
            return 0, run.rows
        hashes, _ = KeyCodec(self._state.spec).hash(self._side, self._pinned)
        run.check_hashes(0, run.rows)
        wanted = hashes.view(np.uint64)[0]
        return int(np.searchsorted(run.hashes(), wanted)), int(np.searchsorted(run.hashes(), wanted, "right"))

    def _rows(self, join: Confluence, run: SortedRun, numbers: Int64) -> pa.RecordBatch:
        return stored_rows(join, self._state.spec, self._side, run, numbers, self._columns)

    def _such(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those that meet the conditions."""
        wanted = self._where[0].expression()
        for each in self._where[1:]:
            wanted = wanted & each.expression()
        found: pa.Table = pa.Table.from_batches([rows]).filter(wanted).combine_chunks()
        return found.to_batches()[0] if found.num_rows else rows.slice(0, 0)
