"""Nested loops over plain Python values: the join everyone can check by eye, and every other join is checked against.

Nothing here is shared with the fast joins: no hashes, no key codec, no kernels. It reads both inputs whole, compares
every row with every row, and is as slow as that sounds.

Of several inputs it is more loops: whether two values are equal, or close, is asked as of two inputs, edge by edge.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.bands import Width
from watersmeet.core.cost import Cost
from watersmeet.core.errors import BudgetError, ProtocolError, SnapshotError
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Event, PlainOperator, Snapshot, Status, Step
from watersmeet.core.spec import Band, Equal, JoinSpec, Near, Output
from watersmeet.memory import Budget
from watersmeet.spill.store import Store

NOT_A_NUMBER = "NaN"
"""Stands for every NaN, so that NaN equals NaN; a float column holds no strings, so nothing else equals it."""

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9


def reference_pairs(left: pa.Table, right: pa.Table, spec: JoinSpec) -> list[tuple[int, int]]:
    """The row numbers of all matching pairs, in the order of two nested loops.

    >>> from watersmeet.core.spec import parse_on
    >>> spec = JoinSpec(pa.schema({"k": pa.int8()}), pa.schema({"k": pa.float64()}), parse_on("k"))
    >>> left = pa.table({"k": [1, 2, None]}, spec.left)
    >>> reference_pairs(left, pa.table({"k": [2.0, 1.0, 2.0, None]}, spec.right), spec)
    [(0, 1), (1, 0), (1, 2)]
    """
    left_keys, right_keys = _keys(left, right, spec, 0), _keys(right, left, spec, 1)
    equal = [
        (i, j)
        for i, left_key in enumerate(left_keys)
        if left_key is not None
        for j, right_key in enumerate(right_keys)
        if left_key == right_key
    ]
    if spec.near is not None:
        return _near(left, right, spec.near, equal)
    return equal if spec.band is None else _within(left, right, spec.band, equal)


def _near(left: pa.Table, right: pa.Table, near: Near, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs of points whose distance is the radius at most, told by fractions over one denominator."""
    columns = [[table.column(name) for name in near.columns(side)] for side, table in enumerate((left, right))]
    exact = not any(pa.types.is_floating(_value_type(column.type)) for side in columns for column in side)
    points = [_points(side, exact) for side in columns]
    radius = Fraction(_exact_width(near.radius) if exact else float(near.radius))
    known = [value for side in points for point in side if point is not None for value in point]
    unit = math.lcm(radius.denominator, *(value.denominator for value in known))
    whole = [[None if point is None else [int(value * unit) for value in point] for point in side] for side in points]
    most = int(radius * unit) ** 2
    return [
        (i, j)
        for i, j in pairs
        if (one := whole[0][i]) is not None and (other := whole[1][j]) is not None
        if sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) <= most
    ]


def _points(columns: list[pa.ChunkedArray], exact: bool) -> list[list[Fraction] | None]:
    """The points of one side as fractions, None where one has no place."""
    values = [_each(_decoded(column).to_pylist(), Decimal if exact else float) for column in columns]
    return [
        [Fraction(value) for value in row] if all(value is not None and math.isfinite(value) for value in row) else None
        for row in zip(*values, strict=True)
    ]


def _within(left: pa.Table, right: pa.Table, band: Band, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs whose values differ by the band's width at most, told by plain subtraction."""
    columns = left.column(band.left), right.column(band.right)
    kinds = [_value_type(column.type) for column in columns]
    exact = not any(pa.types.is_floating(kind) for kind in kinds)
    left_values, right_values = (
        _each(comparable_values(column, other), Decimal if exact else _as_number)
        for column, other in zip(columns, reversed(kinds), strict=True)
    )
    width = _exact_width(band.width) if exact else float(band.width)  # type: ignore[arg-type]
    with localcontext(Context(prec=400)):
        return [
            (i, j)
            for i, j in pairs
            if left_values[i] is not None and right_values[j] is not None
            if abs(left_values[i] - right_values[j]) <= width
        ]


def _exact_width(width: Width) -> Decimal:
    if isinstance(width, timedelta):
        return Decimal((width.days * 86_400 + width.seconds) * 10**9 + width.microseconds * 1000)
    return Decimal(repr(width)) if isinstance(width, float) else Decimal(width)


def _as_number(value: float | str) -> float | None:
    return None if isinstance(value, str) else value


def reference_join(left: pa.Table, right: pa.Table, spec: JoinSpec) -> pa.Table:
    """The rows of the join (or its pairs, if that is what the spec asks for; of counts there is no table).

    >>> from watersmeet.core.spec import parse_on
    >>> spec = JoinSpec(pa.schema({"k": pa.string(), "a": pa.int8()}), pa.schema({"k": pa.string()}), parse_on("k"))
    >>> left = pa.table({"k": ["x", "y"], "a": [1, 2]}, spec.left)
    >>> reference_join(left, pa.table({"k": ["y", "y"]}, spec.right), spec).to_pylist()
    [{'k': 'y', 'a': 2}, {'k': 'y', 'a': 2}]
    """
    return _rows(left, right, spec, reference_pairs(left, right, spec))


def _rows(left: pa.Table, right: pa.Table, spec: JoinSpec, pairs: Sequence[tuple[int, int]]) -> pa.Table:
    if spec.output is Output.PAIRS:
        return pa.table([[i for i, _ in pairs], [j for _, j in pairs]], schema=spec.schema)
    sides = (left, [i for i, _ in pairs]), (right, [j for _, j in pairs])
    columns = [_pick(table.column(c), rows) for side, (table, rows) in enumerate(sides) for c in spec.kept[side]]
    return pa.Table.from_arrays(columns, schema=spec.schema)


def _pick(column: pa.ChunkedArray, rows: list[int]) -> pa.ChunkedArray:
    try:
        return column.take(pa.array(rows, pa.int64()))
    except pa.ArrowNotImplementedError:  # Arrow does not take from views and run-end encoded columns
        values = column.to_pylist()
        return pa.chunked_array([pa.array([values[row] for row in rows], column.type)])


def _keys(mine: pa.Table, other: pa.Table, spec: JoinSpec, side: int) -> list[Any]:
    """One comparable value for each row, None for a row that matches nothing."""
    columns = [
        comparable_values(mine.column(equal.column(side)), other.column(equal.column(1 - side)).type)
        for equal in spec.equalities
    ]
    if not columns:
        return [()] * mine.num_rows
    if len(columns) == 1:
        return columns[0]
    return [None if None in row else row for row in zip(*columns, strict=True)]


def comparable_values(column: pa.ChunkedArray, other: pa.DataType) -> list[Any]:
    """A column's values as Python compares them with those of a column of another type; times are in nanoseconds."""
    column = _decoded(column)
    kind, other = column.type, _value_type(other)
    if pa.types.is_floating(kind) or pa.types.is_floating(other):
        return _each(column.to_pylist(), _as_double)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return _each(_integers(column), lambda ticks: ticks * _NANOSECONDS[kind.unit])
    if pa.types.is_date32(kind):
        return _each(_integers(column), lambda days: days * _DAY)
    if pa.types.is_date64(kind):
        return _each(_integers(column), lambda milliseconds: milliseconds * _NANOSECONDS["ms"])
    values: list[Any] = column.to_pylist()  # int, Decimal, str, bytes, bool: Python compares them exactly
    return values


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        chunks = [chunk.dictionary_decode() for chunk in column.chunks]
    elif pa.types.is_run_end_encoded(column.type):
        chunks = [pc.run_end_decode(chunk) for chunk in column.chunks]
    elif isinstance(column.type, pa.BaseExtensionType):
        return _decoded(pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type))
    else:
        return column
    return _decoded(pa.chunked_array(chunks, column.type.value_type))


def _value_type(kind: pa.DataType) -> pa.DataType:
    return _decoded(pa.chunked_array([], kind)).type


def _integers(column: pa.ChunkedArray) -> list[int | None]:
    integers: list[int | None] = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).to_pylist()
    return integers


def _each(values: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else change(value) for value in values]


def _as_double(value: Any) -> float | str:
    double = float(value)
    return double if double == double else NOT_A_NUMBER


class ReferenceJoin(PlainOperator):
    """The nested loops as an operator: it keeps everything, and answers when both inputs have ended.

    It is early in nothing and spills nothing, but it obeys the protocol, so that whatever drives a join can be tried
    with a join that is certainly right. The budget counts the rows it keeps.

    ::

        Arrive, Arrive, ... ──▶ keep ──▶ End, End ──▶ compare all with all ──▶ hand out, a batch a poll

    >>> from watersmeet.spill.store import MemoryStore
    >>> from watersmeet.core.spec import parse_on
    >>> spec = JoinSpec(pa.schema({"k": pa.int8()}), pa.schema({"k": pa.int8()}), parse_on("k"))
    >>> join = ReferenceJoin(spec, 1024, MemoryStore())
    >>> for side in (0, 1):
    ...     join.receive(Arrive(side, pa.record_batch({"k": [1, 2]}, spec.input(side))))
    ...     join.receive(End(side))
    >>> join.poll(0.0, fuel=10).out.to_pydict()
    {'k': [1, 2]}
    """

    name: ClassVar[str] = "reference"
    spills: ClassVar[bool] = False

    def __init__(self, spec: JoinSpec, memory: int, store: Store) -> None:
        if memory < self.least_memory(spec):
            raise BudgetError(
                f"the reference join needs at least {self.least_memory(spec)} bytes of memory; allow more"
            )
        self.spec = spec
        self.store = store
        self.budget = Budget(memory)
        self.cost = Cost()
        self.phase = "arriving"
        self._kept = self.budget.reservation("rows kept")
        self._received: list[tuple[int, pa.RecordBatch]] = []
        self._counted = 0  # how many of them the budget knows of
        self._saved: list[str] = []  # one name for each received batch that a snapshot has written
        self._ended = [False, False]
        self._pairs: list[tuple[int, int]] | None = None
        self._emitted = 0

    @classmethod
    def least_memory(cls, spec: JoinSpec) -> int:
        """It needs what its inputs need, which the spec does not tell; the least is a formality."""
        return 1024

    def receive(self, event: Event) -> None:
        """Keep the rows; ends are what it waits for."""
        if isinstance(event, Arrive | End) and self._ended[event.input]:
            raise ProtocolError(f"{self.spec.names[event.input]} has ended; nothing more can come from it")
        if isinstance(event, Arrive):
            if not event.batch.schema.equals(self.spec.input(event.input)):
                raise ProtocolError(
                    f"a batch of {self.spec.names[event.input]} has the schema {event.batch.schema}, not the one that "
                    f"was announced; cast it first"
                )
            self._received.append((event.input, event.batch))
        elif isinstance(event, End):
            self._ended[event.input] = True

    def poll(self, now: float, fuel: int) -> Step:
        """Nothing before both ends; then at most `fuel` rows."""
        self._reserve()
        if not all(self._ended):
            return Step(None, Status.NEED_INPUT, Cost())
        tables = self._tables()
        if self._pairs is None:
            self._pairs = reference_pairs(*tables, self.spec)
            self.phase = "clean-up"
        handed = self._pairs[self._emitted : self._emitted + min(fuel, 4096)]
        self._emitted += len(handed)
        cost = Cost(results=len(handed))
        self.cost += cost
        done = self._emitted == len(self._pairs)
        self.phase = "done" if done else self.phase
        status = Status.DONE if done else Status.HAS_OUTPUT
        if not handed or self.spec.output is Output.COUNTS:
            return Step(None, status, cost)
        return Step(_rows(*tables, self.spec, handed).combine_chunks().to_batches()[0], status, cost)

    def wake_at(self) -> float | None:
        """Never."""
        return None

    def snapshot(self) -> Snapshot:
        """Every batch is written once, by the first snapshot after it came."""
        for number in range(len(self._saved), len(self._received)):
            side, batch = self._received[number]
            buffer = io.BytesIO()
            with pa.ipc.new_stream(buffer, batch.schema) as stream:
                stream.write_batch(batch)
            writer = self.store.create(f"reference-{number}-{side}")
            writer.write(buffer.getvalue())
            writer.commit()
            self._saved.append(f"reference-{number}-{side}")
        state = {"ended": list(self._ended), "emitted": self._emitted, "phase": self.phase}
        return Snapshot(self.name, self.spec.fingerprint, state, tuple(self._saved))

    @classmethod
    def restore(cls, spec: JoinSpec, snapshot: Snapshot, memory: int, store: Store) -> ReferenceJoin:
        """Go on where the snapshot was taken."""
        if (snapshot.algorithm, snapshot.fingerprint) != (cls.name, spec.fingerprint):
            raise SnapshotError(f"the snapshot is of another join ({snapshot.algorithm}); restore it with its own spec")
        join = cls(spec, memory, store)
        for name in snapshot.segments:
            batch = pa.ipc.open_stream(store.open(name)).read_next_batch()
            join._received.append((int(name.rpartition("-")[2]), batch))
        join._saved = list(snapshot.segments)
        join._ended = list(snapshot.state["ended"])
        join._emitted = snapshot.state["emitted"]
        join.phase = snapshot.state["phase"]
        join._reserve()
        return join

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        assert self._pairs is None or (all(self._ended) and self._emitted <= len(self._pairs))

    def close(self) -> None:
        """Let go of everything."""
        self._received.clear()
        self._kept.clear()

    def _reserve(self) -> None:
        for _, batch in self._received[self._counted :]:
            self._kept.grow(batch.nbytes)
            self._counted += 1

    def _tables(self) -> tuple[pa.Table, pa.Table]:
        left, right = (
            pa.Table.from_batches([batch for side, batch in self._received if side == wanted], self.spec.input(wanted))
            for wanted in (0, 1)
        )
        return left, right


def reference_combinations(
    tables: Sequence[pa.Table], spec: MultiSpec, most: int | None = None
) -> list[tuple[int, ...]]:
    """The row numbers of all combinations in which every edge holds.

    With `most`, it gives up once there are more partial combinations, and returns that many numbers of nothing.

    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({"r": schema, "s": schema, "t": schema}, ["r.a = s.a", "s.a = t.a"])
    >>> reference_combinations([pa.table({"a": [1, 2]}), pa.table({"a": [2, 1]}), pa.table({"a": [2, 2]})], spec)
    [(1, 0, 0), (1, 0, 1)]
    """
    partners = [_partners(tables, spec, number) for number in range(len(spec.edges))]
    order = _order(spec)
    found: list[tuple[int, ...]] = [()]  # one row of each input that was met, in this order
    for at, number in enumerate(order):
        # Of each edge to an input that was met before: where its row is, and which rows of this input match that.
        edges = [
            (order.index(edge.input(1 - side)), partners[e][1 - side])
            for e, edge in enumerate(spec.edges)
            for side in (0, 1)
            if edge.input(side) == number and edge.input(1 - side) in order[:at]
        ]
        everyone = range(tables[number].num_rows)
        found = [
            (*rows, row)
            for rows in found
            for row in (edges[0][1].get(rows[edges[0][0]], ()) if edges else everyone)
            if all(row in matching.get(rows[place], ()) for place, matching in edges[1:])
        ]
        if most is not None and len(found) > most:
            return [()] * len(found)
    places = [order.index(number) for number in range(len(tables))]
    return sorted(tuple(rows[place] for place in places) for rows in found)


def _order(spec: MultiSpec) -> list[int]:
    """Each input after one that it is joined with, so that the loops are not over cross products."""
    order = [0]
    for at in range(len(spec.names)):
        order += [other for other in spec.neighbours(order[at]) if other not in order]
    return order


def _partners(
    tables: Sequence[pa.Table], spec: MultiSpec, edge: int
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Of each row at one end of an edge, the rows at the other end that match it; for both ends."""
    ends = spec.edges[edge]
    left, right = (tables[ends.input(side)].select([ends.column(side)]) for side in (0, 1))
    columns = (ends.first_column, ends.second_column)
    on = Equal(*columns) if ends.width is None else Band(*columns, ends.width)
    found: tuple[dict[int, set[int]], dict[int, set[int]]] = {}, {}
    for i, j in reference_pairs(left, right, JoinSpec(left.schema, right.schema, (on,))):
        found[0].setdefault(i, set()).add(j)
        found[1].setdefault(j, set()).add(i)
    return found
