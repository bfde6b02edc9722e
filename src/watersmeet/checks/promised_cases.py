"""Generated cases for inputs that promise something: rows that keep the promises, and punctuations among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from watersmeet.checks.cases import Case, Move, arrivals, interleaved, make_case, make_kind_case, random_fuel
from watersmeet.core.keys import KeyKind, common_key_type
from watersmeet.core.promises import ANY, Among, Promises, Range
from watersmeet.core.protocol import Arrive, End, Event, Punctuate
from watersmeet.core.spec import JoinSpec
from watersmeet.records.keys import KeyCodec
from watersmeet.records.patterns import plain_array

Rng: TypeAlias = np.random.Generator
Pattern: TypeAlias = "dict[str, object]"

_MOST_PUNCTUATIONS = 24


@dataclass(frozen=True, eq=False)
class PromisedCase(Case):
    """A join of inputs that promise something, with the punctuations of each and where they stand."""

    punctuations: tuple[tuple[tuple[int, Pattern], ...], ...] = ((), ())
    """By input: the number of rows before each punctuation, and its pattern."""

    maker: ClassVar[str] = "make_promised_case"

    def __str__(self) -> str:
        return f"{super().__str__()}\n  promises {self.spec.promises}"


class SideKeys:
    """The keys of one input: which rows have the same, which can match, and, where that can be told, their order."""

    def __init__(self, spec: JoinSpec, side: int, table: pa.RecordBatch) -> None:
        names = spec.keys(side)
        codec = KeyCodec(spec)
        columns = [table.column(name) for name in names]
        self.hashes, valid = codec.hash(side, columns)
        self.valid = np.ones(len(self.hashes), np.bool_) if valid is None else valid
        self.names = names
        self.columns = [plain_array(column) for column in columns]
        self.ranks: NDArray[np.int64] | None = None
        """Numbers in the order of the keys; None if they have none."""
        kinds = {common_key_type(spec.left.field(a).type, spec.right.field(b).type) for a, b in _pairs(spec)}
        if codec.exact:
            self.ranks = codec.ranks_of_hashes(self.hashes)
        elif len(names) == 1 and all(each is not None and each.kind in _TEXT for each in kinds):
            raw = [b"" if each is None else _raw(each) for each in self.columns[0].to_pylist()]
            order = {value: i for i, value in enumerate(sorted(set(raw)))}
            self.ranks = np.array([order[value] for value in raw], np.int64)

    def value(self, row: int) -> Pattern:
        """The key of a row as a pattern."""
        return {name: _told(column[row]) for name, column in zip(self.names, self.columns, strict=True)}


_TEXT = (KeyKind.STRING, KeyKind.BINARY)


def _pairs(spec: JoinSpec) -> list[tuple[str, str]]:
    return list(zip(spec.keys(0), spec.keys(1), strict=True))


def _told(value: pa.Scalar) -> Any:
    """A value as a user would give it; as it is where Python has no such value, such as a time to the nanosecond."""
    plain = value.as_py()
    return value if pa.types.is_time(value.type) and not value.equals(pa.scalar(plain, value.type)) else plain


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def make_promised_case(seed: int, operator_class: type[Any], **options: Any) -> PromisedCase:
    """The case of this seed for this operator: that of `make_case`, with its rows made to keep some promises.

    >>> from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
    >>> str(make_promised_case(7, MetadataMJoin)) == str(make_promised_case(7, MetadataMJoin))
    True
    """
    return _promised(make_case(seed, operator_class, **options))


def make_promised_kind_case(seed: int, operator_class: type[Any], **options: Any) -> PromisedCase:
    """The same of any kind that the operator can do but inner joins, with enough memory for its promises.

    >>> from watersmeet.joins.confluence import Confluence
    >>> sorted({make_promised_kind_case(seed, Confluence).spec.how for seed in range(20)})
    ['anti', 'full', 'left', 'right', 'semi']
    """
    case = _promised(make_kind_case(seed, _without_bands(operator_class), **options))
    least = int(operator_class.least_memory(case.spec, **options))
    return _PromisedKindCase(**{**_fields(case), "least": least, "memory": case.memory + least - case.least})


def _without_bands(operator_class: type[Any]) -> type[Any]:
    return type(operator_class.__name__, (operator_class,), {"joins_ranges": False})


class _PromisedKindCase(PromisedCase):
    maker: ClassVar[str] = "make_promised_kind_case"


def _fields(case: PromisedCase) -> dict[str, Any]:
    return {field.name: getattr(case, field.name) for field in fields(case)}


def _promised(base: Case) -> PromisedCase:
    """A case with its rows made to keep some promises."""
    seed = base.seed
    rng = np.random.default_rng([seed, 0x9207])
    tables, promises, punctuations = [], [], []
    for side in (0, 1):
        table, promised = _keep_promises(rng, base.spec, side, base.table(side))
        tables.append(table)
        promises.append(promised)
    for side in (0, 1):
        some = _punctuations(rng, base.spec, side, tables) if promises[side].punctuated else ()
        punctuations.append(some)
    spec = replace(base.spec, promises=(promises[0], promises[1]))
    case = PromisedCase(
        seed, spec, tables[0], tables[1], (), base.fuel, base.memory, base.least, base.restores, base.kinds,
        tuple(punctuations),
    )  # fmt: skip
    return replace(case, moves=promised_moves(case, rng))


def _keep_promises(rng: Rng, spec: JoinSpec, side: int, table: pa.RecordBatch) -> tuple[pa.RecordBatch, Promises]:
    """Rows of a table, in an order, that keep some promises; and the promises."""
    keys = SideKeys(spec, side, table)
    names = list(spec.keys(side))
    order = np.arange(table.num_rows)
    unique: tuple[str, ...] = ()
    if rng.random() < 0.35:
        first = np.zeros(table.num_rows, np.bool_)
        first[np.unique(keys.hashes, return_index=True)[1]] = True
        order = np.flatnonzero(first | ~keys.valid)
        unique = tuple(names)
    clustered: tuple[str, ...] = ()
    ordered: tuple[tuple[str, bool], ...] = ()
    choice = rng.random()
    if choice < 0.25 and keys.ranks is not None:
        descending = bool(rng.random() < 0.3)
        ranks = _with_strays(rng, keys.ranks, keys.valid)
        # Not by negation: the lowest of all words has no opposite.
        by = np.argsort(ranks[order], kind="stable")
        order = order[by[::-1]] if descending else order[by]
        ordered = ((names[0], descending),)
    elif choice < 0.5:
        _, group = np.unique(keys.hashes, return_inverse=True)
        shuffled = rng.permutation(int(group.max(initial=0)) + 1)[group]
        order = order[np.argsort(_with_strays(rng, shuffled, keys.valid)[order], kind="stable")]
        clustered = tuple(rng.permutation(names).tolist())
    punctuated = bool(rng.random() < 0.7)
    return reordered(table, order), Promises(unique, clustered, ordered, punctuated)


def _with_strays(rng: Rng, ranks: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[Any]:
    """Rows that match nothing need keep no promise: they stand anywhere."""
    if valid.all() or not valid.any():
        return ranks
    mixed = ranks.copy()
    mixed[~valid] = rng.choice(ranks[valid], int(np.count_nonzero(~valid)))
    return mixed


def reordered(table: pa.RecordBatch, order: NDArray[np.intp]) -> pa.RecordBatch:
    """Rows of a batch in another order; Arrow cannot take from every type, but can put slices together."""
    if not len(order):
        return table.slice(0, 0)
    columns = []
    for column in table.columns:
        if column.type in (pa.string_view(), pa.binary_view()):  # slices of views would share all their bytes
            columns.append(plain_array(column).take(pa.array(order)).cast(column.type))
        elif pa.types.is_dictionary(column.type):  # put together, dictionaries of half floats would be garbled
            columns.append(column.take(pa.array(order)))
        else:
            columns.append(pa.concat_arrays([column.slice(int(row), 1) for row in order]))
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _punctuations(
    rng: Rng, spec: JoinSpec, side: int, tables: Sequence[pa.RecordBatch]
) -> tuple[tuple[int, Pattern], ...]:
    """Punctuations that are true where they stand: values, sets and ranges of keys, and some that are of no use."""
    keys, others = SideKeys(spec, side, tables[side]), SideKeys(spec, 1 - side, tables[1 - side])
    rows = len(keys.hashes)
    found: list[tuple[int, Pattern]] = []
    share = float(rng.choice([0.2, 0.6, 1.0]))
    _, last = np.unique(keys.hashes[::-1], return_index=True)
    for row in rows - 1 - rng.permutation(last):
        if keys.valid[row] and rng.random() < share:
            delay = int(rng.integers(0, 1 + rows // 4)) if rng.random() < 0.4 else 0
            found.append((min(rows, int(row) + 1 + delay), keys.value(int(row))))
    found += [(int(rng.integers(0, rows + 1)), value) for value in _foreign(rng, spec, keys, others)]
    if len(keys.names) == 1:
        found = _grouped(rng, keys.names[0], found)
        if keys.ranks is not None and rows:
            found += [_range(rng, keys) for _ in range(int(rng.integers(0, 4)))]
    found = [found[i] for i in rng.permutation(len(found))[:_MOST_PUNCTUATIONS]]
    return tuple(
        sorted(((at, _with_more(rng, spec, side, pattern)) for at, pattern in found), key=lambda each: each[0])
    )


def _foreign(rng: Rng, spec: JoinSpec, keys: SideKeys, others: SideKeys) -> list[Pattern]:
    """Keys of the other input that this one never sends, in this one's types."""
    found = []
    missing = np.flatnonzero(~np.isin(others.hashes, keys.hashes) & others.valid)
    for row in rng.permutation(missing)[: int(rng.integers(0, 8))]:
        try:
            values = [
                column.slice(int(row), 1).cast(mine.type)
                for column, mine in zip(others.columns, keys.columns, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
        if KeyCodec(spec).hash_plain(values)[0][0] not in keys.hashes:  # casting may have rounded
            found.append({name: _told(value[0]) for name, value in zip(keys.names, values, strict=True)})
    return found


def _grouped(rng: Rng, name: str, found: list[tuple[int, Pattern]]) -> list[tuple[int, Pattern]]:
    """Now and then, several values in one punctuation."""
    out = []
    while found:
        count = int(rng.integers(2, 5)) if rng.random() < 0.2 else 1
        some, found = found[:count], found[count:]
        if len(some) == 1:
            out += some
        else:
            out.append((max(at for at, _ in some), {name: Among(tuple(each[name] for _, each in some))}))
    return out


def _range(rng: Rng, keys: SideKeys) -> tuple[int, Pattern]:
    """A range of keys, behind the last row that lies in it."""
    assert keys.ranks is not None
    rows = np.flatnonzero(keys.valid)
    if not len(rows):
        return 0, {keys.names[0]: ANY}
    ends = sorted(rng.choice(rows, 2).tolist(), key=lambda row: int(keys.ranks[row]))  # type: ignore[index]
    low, high = (None if rng.random() < 0.25 else row for row in ends)
    if low is None and high is None:
        low = ends[0]
    low_open, high_open = bool(rng.random() < 0.3), bool(rng.random() < 0.3)
    ranks = keys.ranks
    inside = keys.valid.copy()
    if low is not None:
        inside &= ranks > ranks[low] if low_open else ranks >= ranks[low]
    if high is not None:
        inside &= ranks < ranks[high] if high_open else ranks <= ranks[high]
    behind = int(np.flatnonzero(inside)[-1]) + 1 if inside.any() else 0
    bounds = [None if row is None else keys.value(int(row))[keys.names[0]] for row in (low, high)]
    return behind, {keys.names[0]: Range(bounds[0], bounds[1], low_open, high_open)}


def _with_more(rng: Rng, spec: JoinSpec, side: int, pattern: Pattern) -> Pattern:
    """A wildcard for another column; or now and then a value for it, with which the punctuation says less."""
    others = [name for name in spec.input(side).names if name not in spec.keys(side)]
    if others and rng.random() < 0.2:
        name = others[int(rng.integers(len(others)))]
        return {**pattern, name: ANY if rng.random() < 0.6 else None}
    return pattern


def promised_moves(case: PromisedCase, rng: Rng) -> tuple[Move, ...]:
    """A script with the rows in batches, the punctuations where they stand, stalls and ends."""
    waiting: list[list[Event]] = []
    for side in (0, 1):
        events: list[Event] = []
        start = 0
        table = case.table(side)
        for at, pattern in case.punctuations[side]:
            if at > start:
                events += arrivals(rng, side, table.slice(start, at - start))
                start = at
            events.append(Punctuate(side, pattern))
        events += arrivals(rng, side, table.slice(start))
        waiting.append([*_few(events), End(side)])
    size = sum(case.table(side).nbytes for side in (0, 1))
    rows = sum(case.table(side).num_rows for side in (0, 1))
    return interleaved(waiting, rng, case.memory, size / (rows + 1))


def _few(events: list[Event]) -> list[Event]:
    """Without the empty batches that cutting leaves."""
    return [event for event in events if not isinstance(event, Arrive) or event.batch.num_rows]


def rescripted(case: PromisedCase, rng: Rng) -> PromisedCase:
    """The same rows and punctuations by another script, with other fuel."""
    return replace(case, moves=promised_moves(case, rng), fuel=random_fuel(rng))


def unpromised(case: PromisedCase, rng: Rng) -> PromisedCase:
    """The same rows, of which nothing is promised."""
    spec = replace(case.spec, promises=(Promises(), Promises()))
    plain = replace(case, spec=spec, punctuations=((), ()))
    return replace(plain, moves=promised_moves(plain, rng))


def broken(case: PromisedCase, rng: Rng) -> PromisedCase:
    """The same promises and punctuations with the rows in another order, so that many of them are not true."""
    left, right = (reordered(table, rng.permutation(table.num_rows)) for table in (case.left, case.right))
    other = replace(case, left=left, right=right)
    return replace(other, moves=promised_moves(other, rng))
