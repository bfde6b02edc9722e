"""Generated cases: two small tables, and everything that could happen while they are joined.

A case is made from a seed and from the operator's smallest legal budget, so that small tables are enough to fill the
memory many times over. The same seed and the same operator give the same case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.bands import BandColumns, PointColumns, random_band, random_points
from watersmeet.checks.keys import KeyColumns, encoded, random_key
from watersmeet.checks.oracle.kinds import Result, results_of
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.checks.payload import WIDE_TYPES, random_payload, wide_column
from watersmeet.core.errors import SpecError
from watersmeet.core.promises import Punctuation
from watersmeet.core.protocol import AddQuery, Arrive, End, Event, Punctuate, RemoveQuery, Stall
from watersmeet.core.spec import Band, Condition, Equal, JoinSpec, Near, Output
from watersmeet.memory import format_bytes

Rng: TypeAlias = np.random.Generator

PLENTY = 64 * 1024**2
_MOST_ROWS = 240
_MOST_BYTES = 1_500_000
_MOST_OUTPUT_BYTES = 120_000
_LONGEST = 8_000
ROOM_FOR_LONGEST = 24 * _LONGEST
"""Memory in which the longest values are no more than a small part."""


@dataclass(frozen=True, slots=True)
class Move:
    """One event, and how often the operator is polled after it (unless it needs input sooner)."""

    event: Event
    polls: int
    pause: float = 0.0
    """Seconds of silence before it."""

    def __str__(self) -> str:
        match self.event:
            case Arrive(input=side, batch=batch):
                text = f"{side}:{batch.num_rows}"
            case End(input=side):
                text = f"{side}:end"
            case Punctuate(input=side, pattern=pattern):
                text = f"{side}:P({str(Punctuation(pattern))[:40]})"
            case AddQuery(query=query):
                text = f"+{query}"
            case RemoveQuery(name=name):
                text = f"-{name}"
            case _:
                text = "stall"
        return (f"+{self.pause:g}s " if self.pause else "") + f"{text}/{self.polls}"


@dataclass(frozen=True, eq=False)
class Case:
    """A join, its two inputs, and the script by which they arrive; `print` it, or make it again from its seed."""

    seed: int
    spec: JoinSpec
    left: pa.RecordBatch
    right: pa.RecordBatch
    moves: tuple[Move, ...]
    fuel: tuple[int, ...]
    """Taken in turn by the polls; doubled every so many polls, so that no case takes for ever."""
    memory: int
    least: int
    """The smallest legal budget: `memory` is this or more."""
    restores: tuple[int, ...] = ()
    """After these steps (receives and polls, counted together) the operator is snapshot, dropped and restored."""
    kinds: tuple[str, ...] = ()
    """What kinds of keys it joins on."""
    parts: int = field(default=1, kw_only=True)
    """Into how many parts the operator divides its memory: a row must fit into one of them."""

    @cached_property
    def pairs(self) -> Sequence[Result]:
        """What the oracle says: the row numbers of all pairs, and of what else the kind of join gives."""
        left, right = (pa.Table.from_batches([batch]) for batch in (self.left, self.right))
        return results_of(self.spec.kind, reference_pairs(left, right, self.spec), left.num_rows, right.num_rows)

    maker: ClassVar[str] = "make_case"

    @property
    def tags(self) -> Sequence[str] | None:
        """What each of the oracle's results has in one more column, as it is compared; None: there is none."""
        return None

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return 2

    def check_order(self, out: Sequence[pa.RecordBatch]) -> None:
        """An error if results are not in the order in which they must be: here, any will do."""

    def table(self, side: int) -> pa.RecordBatch:
        """All the rows of one input."""
        return self.right if side else self.left

    def __str__(self) -> str:
        on = ", ".join(map(self._told, self.spec.on))
        payload = " x ".join(
            "(" + ", ".join(str(field.type) for field in self.spec.input(side)) + ")" for side in (0, 1)
        )
        return (
            f"case {self.seed}: {self.spec.how}, {self.left.num_rows} x {self.right.num_rows} rows, {len(self.pairs)} "
            f"results as {self.spec.output.value}, on {on}\n  columns {payload}\n"
            f"  data {format_bytes(self.left.nbytes)} + {format_bytes(self.right.nbytes)}, memory "
            f"{format_bytes(self.memory)} (least {format_bytes(self.least)}), fuel {list(self.fuel)}, "
            f"restores after steps {list(self.restores)}\n  moves {' '.join(map(str, self.moves))}"
        )

    def _told(self, condition: Condition) -> str:
        """A condition with the types of its columns."""
        if isinstance(condition, Near):
            types = [self.spec.input(side).field(name).type for side in (0, 1) for name in condition.columns(side)]
            return f"{condition!r} of {', '.join(map(str, types))}"
        left, right = self.spec.left.field(condition.left).type, self.spec.right.field(condition.right).type
        width = f" within {condition.width!r}" if isinstance(condition, Band) else ""
        return f"{condition.left} {left} = {condition.right} {right}{width}"


def make_case(seed: int, operator_class: type[Any], **options: Any) -> Case:
    """The case of this seed for this operator; its tables grow with the operator's smallest budget.

    >>> from watersmeet.checks.oracle.nested_loops import ReferenceJoin
    >>> str(make_case(7, ReferenceJoin)) == str(make_case(7, ReferenceJoin))
    True
    """
    return _make_case(seed, operator_class, ["inner"], options)


def make_kind_case(seed: int, operator_class: type[Any], **options: Any) -> Case:
    """The same, of any kind that the operator can do but inner joins.

    >>> from watersmeet.joins.confluence import Confluence
    >>> sorted({make_kind_case(seed, Confluence).spec.how for seed in range(20)})
    ['anti', 'full', 'left', 'right', 'semi']
    """
    return _make_case(seed, operator_class, [kind for kind in operator_class.kinds if kind != "inner"], options)


def make_near_case(seed: int, operator_class: type[Any], **options: Any) -> Case:
    """The same, of points that are near each other, alone or beside equalities; of any kind, most of them inner.

    >>> from watersmeet.joins.confluence import Confluence
    >>> sorted({len(make_near_case(seed, Confluence).spec.near.left) for seed in range(9)})
    [2, 3]
    """
    others = [kind for kind in operator_class.kinds if kind != "inner"]
    return _make_case(seed, operator_class, ["inner"] * 5 + others, options, points=True)


def _make_case(
    seed: int, operator_class: type[Any], kinds: Sequence[str], options: dict[str, Any], points: bool = False
) -> Case:
    rng = np.random.default_rng([seed, 0x3A7E])
    keys, rows, positions = _keys_and_rows(rng)
    pairs = _count_pairs(positions)
    band: BandColumns | PointColumns | None = None
    if points:
        band, keys, positions, pairs = _with_points(seed, keys, positions, pairs)
    elif getattr(operator_class, "joins_ranges", False):
        band, keys, positions, pairs = _perhaps_with_band(seed, keys, positions, pairs)
    rows = [len(at) for at in positions]
    columns = [_narrow_columns(rng, keys, side, positions[side]) for side in (0, 1)]
    wide = [_pick(rng, WIDE_TYPES) if rng.random() < 0.92 else None for _ in range(2)]
    names = _names(rng, keys, columns)
    schemas = [_schema(rng, names[side], columns[side], wide[side]) for side in (0, 1)]
    on: tuple[Condition, ...] = tuple(Equal(names[0][k], names[1][k]) for k in range(len(keys)))
    if isinstance(band, BandColumns):
        on = (*on[:-1], Band(names[0][len(keys) - 1], names[1][len(keys) - 1], band.width))
    elif band is not None:
        first = len(keys) - len(band.columns)
        left, right = (tuple(names[side][first : len(keys)]) for side in (0, 1))
        on = (*on[:first], Near(left, right, band.radius))
    output = _pick(rng, [Output.ROWS] * 18 + [Output.PAIRS, Output.COUNTS])
    suffixes = _pick(rng, [("", "_right"), ("_l", "_r")])
    spec = JoinSpec(schemas[0], schemas[1], on, output=output, suffixes=suffixes)
    spec = _of_some_kind(seed, spec, kinds)
    least = int(operator_class.least_memory(spec, **options))
    memory = random_memory(rng, least)
    parts = int(options.get("shards", 1))
    target = min(_MOST_BYTES, int(memory * rng.choice([0.3, 1.5, 2.5, 4.0, 8.0], p=[0.06, 0.2, 0.34, 0.3, 0.1])))
    width = min(target // max(1, sum(n for n, kind in zip(rows, wide, strict=True) if kind)), memory // parts // 32)
    # Results go out a few KiB at a time: what is wide and meets much would take a case a thousand polls.
    width = min(width, _LONGEST // 2, _MOST_OUTPUT_BYTES // (1 + pairs))
    tables = []
    for side in (0, 1):
        arrays = columns[side]
        if (kind := wide[side]) is not None:
            arrays = [*arrays, wide_column(rng, rows[side], width, min(_LONGEST, memory // parts // 24), kind)]
        tables.append(pa.RecordBatch.from_arrays(arrays, schema=schemas[side]))
    if not getattr(operator_class, "spills", True):
        memory = least + PLENTY
    moves = random_moves(rng, tables[0], tables[1], memory)
    restores = tuple(sorted(rng.integers(0, 3 * len(moves), 2).tolist())) if rng.random() < 0.12 else ()
    kinds = tuple(key.kind for key in keys[: len(spec.equalities)])
    if isinstance(band, BandColumns):
        kinds += (f"band of {band.columns.kind}",)
    elif band is not None:
        kinds += tuple(f"{len(band.columns)} dimensions of {key.kind}" for key in band.columns)
    return Case(seed, spec, tables[0], tables[1], moves, random_fuel(rng), memory, least, restores, kinds, parts=parts)


def _of_some_kind(seed: int, spec: JoinSpec, kinds: Sequence[str]) -> JoinSpec:
    try:
        return replace(spec, how=_pick(np.random.default_rng([seed, 0x41D5]), kinds))
    except SpecError:  # keys of one name that no type has room for
        return replace(spec, how="left")


def _perhaps_with_band(
    seed: int, keys: list[KeyColumns], positions: list[np.ndarray], pairs: int
) -> tuple[BandColumns | None, list[KeyColumns], list[np.ndarray], int]:
    """Half the cases get a band, which is then the last of the keys: beside the equalities, or alone."""
    rng = np.random.default_rng([seed, 0xBA2D])
    if rng.random() < 0.5:
        return None, keys, positions, pairs
    beside = rng.random() < 0.4
    product = len(positions[0]) * len(positions[1])
    wanted = int(rng.integers(4, 20)) if beside else max(8, 5 * product // int(rng.choice([60, 150, 400])))
    band = random_band(rng, min(wanted, 4_000))
    size = len(band.columns.values[0])
    at = [rng.integers(0, size, len(each)) for each in positions]
    if not beside:
        estimate = product * (2 * band.steps + 1) // size
        if estimate > 3_000:  # a type of few values: fewer rows
            at = [each[:: 1 + int((estimate / 3_000) ** 0.5)] for each in at]
        return band, [band.columns], at, min(estimate, 3_000)
    distinct = int(np.prod([len(key.values[0]) for key in keys]))
    together = [each + distinct * also for each, also in zip(positions, at, strict=True)]
    return band, [*keys, band.columns], together, pairs


def _with_points(
    seed: int, keys: list[KeyColumns], positions: list[np.ndarray], pairs: int
) -> tuple[PointColumns, list[KeyColumns], list[np.ndarray], int]:
    """Points, which are then the last of the keys: beside the equalities, or alone."""
    rng = np.random.default_rng([seed, 0x9EA2])
    beside = rng.random() < 0.3
    product = len(positions[0]) * len(positions[1])
    points = random_points(rng, 12 if beside else max(1, product // int(rng.choice([60, 150, 400]))))
    sizes = [len(each.values[0]) for each in points.columns]
    at = [rng.integers(0, int(np.prod(sizes)), len(each)) for each in positions]
    if not beside:
        return points, [*points.columns], at, min(3_000, product // 60)
    distinct = int(np.prod([len(key.values[0]) for key in keys]))
    together = [each + distinct * also for each, also in zip(positions, at, strict=True)]
    return points, [*keys, *points.columns], together, pairs


def _pick(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def _keys_and_rows(rng: Rng) -> tuple[list[KeyColumns], list[int], list[np.ndarray]]:
    """The key columns, the number of rows, and each row's key: from one single key to all unique, few enough pairs."""
    count = int(rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1]))
    distinct = max(1, int(np.exp(rng.random() ** 0.6 * np.log(600))))
    keys = [random_key(rng, max(1, round(distinct ** (1 / count)))) for _ in range(count)]
    distinct = int(np.prod([len(key.values[0]) for key in keys]))
    most_pairs = int(rng.choice([60, 120, 200, 3_000, 15_000], p=[0.25, 0.45, 0.25, 0.04, 0.01]))
    rows = [0 if rng.random() < 0.02 else int(rng.integers(_MOST_ROWS // 4, _MOST_ROWS)) for _ in range(2)]
    skew = float(_pick(rng, [1, 1, 1, 2, 3]))
    positions = [(distinct * rng.random(n) ** skew).astype(np.int64) for n in rows]
    while _count_pairs(positions) > most_pairs:
        positions = [at[: int(len(at) * 0.8)] for at in positions]
    return keys, [len(at) for at in positions], positions


def _count_pairs(positions: list[np.ndarray]) -> int:
    """How many rows meet, but for NULLs and values that just miss."""
    counts = [np.bincount(at, minlength=1 + max(int(each.max(initial=0)) for each in positions)) for at in positions]
    return int(np.dot(counts[0], counts[1]))


def _narrow_columns(rng: Rng, keys: list[KeyColumns], side: int, positions: np.ndarray) -> list[pa.Array]:
    """The keys, then perhaps a row number, then payload of any type."""
    rows = len(positions)
    nulls = float(rng.choice([0.0, 0.05, 0.4], p=[0.5, 0.4, 0.1]))
    columns = []
    for key in keys:
        size = len(key.values[0])
        columns.append(key.column(side, positions % size, rng.random(rows) < nulls))
        positions = positions // size
    if rng.random() < 0.7:
        columns.append(pa.array(np.arange(rows), pa.int64()))
    columns += [random_payload(rng, rows) for _ in range(int(rng.integers(0, 4)))]
    return columns


def _names(rng: Rng, keys: list[KeyColumns], columns: list[list[pa.Array]]) -> list[list[str]]:
    """One name for each column and one for a wide one: keys named alike or not, payloads that clash or not."""
    same_keys, clash = rng.random() < 0.6, rng.random() < 0.3
    names = []
    for side in (0, 1):
        of_keys = [f"k{k}" if same_keys else f"{'ab'[side]}{k}" for k in range(len(keys))]
        of_payload = [f"{'v' if clash else 'lr'[side]}{c}" for c in range(len(columns[side]) - len(keys) + 1)]
        names.append(of_keys + of_payload)
    return names


def _schema(rng: Rng, names: list[str], columns: list[pa.Array], wide: pa.DataType | None) -> pa.Schema:
    required = rng.random() < 0.2
    fields = [
        pa.field(name, column.type, nullable=not (required and _has_no_null(column)))
        for name, column in zip(names, columns, strict=False)
    ]
    return pa.schema(fields if wide is None else [*fields, pa.field(names[len(columns)], wide)])


def _has_no_null(column: pa.Array) -> bool:
    # A run-end encoded array counts no NULLs of its own, and a field of type null may not be without.
    return column.null_count == 0 and not pa.types.is_run_end_encoded(column.type) and not pa.types.is_null(column.type)


def random_memory(rng: Rng, least: int) -> int:
    """Mostly the least there may be, or little more; now and then plenty."""
    match int(rng.choice(4, p=[0.5, 0.27, 0.15, 0.08])):
        case 0:
            return least
        case 1:
            return least + int(rng.integers(1, max(2, least // 8)))
        case 2:
            return least + int(rng.integers(0, 2 * least))
        case _:
            return least + PLENTY


def random_fuel(rng: Rng) -> tuple[int, ...]:
    """One, a little, a lot, or now this and now that."""
    few = int(rng.integers(2, 40))
    fuels = [(1,), (few,), (few,), (200,), (200,), (10**6,), (10**6,), (1, 500), (few, 1, 10**4), (70, 7, 700)]
    fuel: tuple[int, ...] = _pick(rng, fuels)
    return fuel


def random_moves(rng: Rng, left: pa.RecordBatch, right: pa.RecordBatch, memory: int) -> tuple[Move, ...]:
    """A script: the rows in batches of some sizes, the sides in some order, stalls in between, the ends somewhere."""
    return moves_of([left, right], rng, memory)


def moves_of(tables: Sequence[pa.RecordBatch], rng: Rng, memory: int) -> tuple[Move, ...]:
    """A script for any number of inputs."""
    waiting: list[list[Event]] = [[*arrivals(rng, i, table), End(i)] for i, table in enumerate(tables)]
    row_bytes = sum(table.nbytes for table in tables) / (sum(table.num_rows for table in tables) + 1)
    return interleaved(waiting, rng, memory, row_bytes)


def interleaved(waiting: list[list[Event]], rng: Rng, memory: int, row_bytes: float) -> tuple[Move, ...]:
    """A script of each input's events, with stalls in between."""
    order = _order(rng, [len(events) for events in waiting])
    patience = int(_pick(rng, [1, 3, 10]))
    together = 0
    moves: list[Move] = []
    for side in order:
        event = waiting[side].pop(0)
        polls = 1 + int(rng.integers(patience))
        small = not isinstance(event, Arrive) or event.batch.num_rows * row_bytes < memory / 20
        if small and together < 4 and rng.random() < 0.3:
            polls, together = 0, together + 1
        else:
            together = 0
        moves.append(Move(event, polls))
    return tuple(_with_stalls(rng, moves))


def _with_stalls(rng: Rng, moves: list[Move]) -> list[Move]:
    """Silence anywhere before the last end; most of it where there is something on disk to work on."""
    if rng.random() < 0.15:
        return moves
    first = 0 if rng.random() < 0.2 else len(moves) // 2
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(first, len(moves)))
        moves.insert(at, Move(Stall(), int(rng.integers(0, 15))))
    return moves


def _order(rng: Rng, counts: Sequence[int]) -> list[int]:
    sides = np.repeat(np.arange(len(counts)), counts)
    match _pick(rng, ["random", "random", "random", "left first", "right first", "in turn"]):
        case "random":
            sides = rng.permutation(sides)
        case "right first":
            sides = sides[::-1]
        case "in turn":
            places = np.concatenate([np.arange(n) / max(1, n) for n in counts])
            sides = sides[np.argsort(places, kind="stable")]
    order: list[int] = sides.tolist()
    return order


def arrivals(rng: Rng, side: int, table: pa.RecordBatch) -> list[Event]:
    """The rows of one input as batches: tiny, middling, whole or mixed; slices of a larger one, or of their own."""
    most = int(_pick(rng, [1, 4, 20, 20, 60, 60, 1000]))
    start = 0
    sizes: list[int] = []
    while start < table.num_rows and len(sizes) < 12:
        size = 0 if rng.random() < 0.05 else int(rng.integers(1, most + 1))
        sizes.append(min(size, table.num_rows - start))
        start += sizes[-1]
    sizes.append(table.num_rows - start)
    own = rng.random() < 0.5
    start, events = 0, []
    for size in sizes:
        batch = table.slice(start, size)
        events.append(Arrive(side, _compact(batch) if own else batch))
        start += size
    return [*events]


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with buffers (and dictionaries) of their own."""
    return pa.RecordBatch.from_arrays([_own(column) for column in batch.columns], schema=batch.schema)


def _own(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return encoded(column.dictionary_decode(), column.type)
    return pa.concat_arrays([column, column.slice(0, 0)])
