"""The conformance suite for many window joins in one: each query must get what it would get alone.

A case is one of the suite for windows whose rows got columns to filter by. Queries are there from the start, come and
go between any two events, and some come again under the name of one that has gone.

>>> from watersmeet.joins.window.confluence import WindowConfluence
>>> conform_queries(WindowConfluence, cases=2).cases
2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from watersmeet.checks.cases import Move
from watersmeet.checks.oracle.windows import reference_window_pairs
from watersmeet.checks.windows import WindowCase, WindowSummary, conform_timed, make_window_case
from watersmeet.core.protocol import AddQuery, Arrive, End, RemoveQuery
from watersmeet.core.queries import QueriesSpec, WindowQuery
from watersmeet.core.spec import Output
from watersmeet.core.windows import Age, WindowJoinSpec, parse_windows
from watersmeet.joins.window.queries import least_for

Rng: TypeAlias = np.random.Generator
Passes: TypeAlias = "Callable[[Mapping[str, Any]], bool | None]"
"""Whether a row passes a filter; None: nobody knows."""

_PLACES = ("north", "south", "east", "it's")
_SCORES = (-1.5, 0.0, 0.25, 2.0, float("nan"))


@dataclass(frozen=True)
class Wish:
    """A query, its filters as functions, and when it lives: from the event before which it comes to that of its end."""

    query: WindowQuery
    passes: tuple[Passes, Passes]
    since: int = 0
    until: int = 1 << 60


@dataclass(frozen=True, eq=False)
class QueriesCase(WindowCase):
    """Many window joins of the same inputs, and the script by which rows arrive, and queries come and go."""

    wishes: tuple[Wish, ...] = field(default=(), kw_only=True)
    maker: ClassVar[str] = "make_queries_case"

    @cached_property
    def _found(self) -> dict[tuple[int, int], list[str]]:
        """Of each pair that somebody wants, the names of the queries that do."""
        spec = self.spec
        assert isinstance(spec, QueriesSpec)
        tables = [pa.Table.from_batches([self.table(side)]) for side in (0, 1)]
        rows = [table.select(["amount", "score", "place"]).to_pylist() for table in tables]
        came = self._came
        found: dict[tuple[int, int], list[str]] = {}
        for wish in self.wishes:
            windows = parse_windows(wish.query.window, spec.window.time).windows
            alone = replace(spec.untagged, window=replace(spec.window, windows=windows))
            has = [
                [wish.since < at < wish.until and wish.passes[side](row) is True
                 for at, row in zip(came[side], rows[side], strict=True)]
                for side in (0, 1)
            ]  # fmt: skip
            for left, right in reference_window_pairs(tables[0], tables[1], alone, self.order, self.looks):
                if has[0][left] and has[1][right]:
                    found.setdefault((left, right), []).append(wish.query.name)
        return found

    @property
    def _came(self) -> list[list[int]]:
        """The number of the event by which each row came."""
        came: list[list[int]] = [[], []]
        for number, move in enumerate(self.moves):
            if isinstance(move.event, Arrive):
                came[move.event.input] += [number] * move.event.batch.num_rows
        return came

    @cached_property
    def pairs(self) -> Sequence[Any]:
        """What the oracle says: what each query finds alone."""
        return list(self._found)

    @property
    def tags(self) -> Sequence[str]:
        """The queries of each pair."""
        return [repr(sorted(names)) for names in self._found.values()]

    def __str__(self) -> str:
        return f"{super().__str__()}\n  queries {[wish.query for wish in self.wishes]}"


def make_queries_case(seed: int, operator_class: type[Any], **options: Any) -> QueriesCase:
    """The case of this seed."""
    rng = np.random.default_rng([seed, 0x9E1E])
    inner = type(operator_class.__name__, (operator_class,), {"kinds": ("inner",)})
    number = seed
    while True:
        base = make_window_case(number, inner, **options)
        assert isinstance(base.spec, WindowJoinSpec)
        if _plain(base.spec) and "queries" not in base.spec.schema.names:
            break
        number += 1_000_003
    tables = [_with_columns(rng, base.table(side)) for side in (0, 1)]
    window = base.spec.window
    most = tuple(each.most if isinstance(each, Age) else each for each in window.windows)
    window = replace(window, windows=(most[0], most[1]))
    wishes, moves = _with_queries(rng, _with_tables(base.moves, tables), most)
    spec = QueriesSpec(
        tables[0].schema, tables[1].schema, base.spec.on, suffixes=base.spec.suffixes, window=window,
        output=Output.ROWS if base.spec.output is Output.COUNTS else base.spec.output,
        queries=tuple(wish.query for wish in wishes if wish.since < 0),
    )  # fmt: skip
    least = int(operator_class.least_memory(spec, **options))
    # All queries that ever are may be there at once, under different names.
    every = [replace(wish.query, name=f"{wish.query.name}-{place}") for place, wish in enumerate(wishes)]
    more = least_for(replace(spec, queries=tuple(every))) - least_for(spec)
    return QueriesCase(
        seed, spec, tables[0], tables[1], moves, base.fuel, least + base.memory - base.least + more, least,
        base.restores, base.kinds, wishes=wishes,
    )  # fmt: skip


def _plain(spec: WindowJoinSpec) -> bool:
    """Whether windows are lengths of time, or ages."""
    if spec.left.names.count("amount") or spec.right.names.count("amount"):
        return False
    return all(isinstance(window, int | timedelta | Age) for window in spec.window.windows)


def _with_columns(rng: Rng, table: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with something to filter by."""
    count = table.num_rows

    def column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
        found = [values[int(place)] for place in rng.integers(0, len(values), count)]
        return pa.array([None if rng.random() < 0.1 else value for value in found], type_)

    table = table.append_column("amount", column(range(8), pa.int32()))
    table = table.append_column("score", column(_SCORES, pa.float64()))
    place = column(_PLACES, pa.string())
    return table.append_column("place", place.dictionary_encode() if rng.random() < 0.3 else place)


def _with_tables(moves: Sequence[Move], tables: Sequence[pa.RecordBatch]) -> list[Move]:
    """The same script, of rows with other columns."""
    found, next_row = [], [0, 0]
    for move in moves:
        event = move.event
        if isinstance(event, Arrive):
            start, count = next_row[event.input], event.batch.num_rows
            next_row[event.input] += count
            move = replace(move, event=Arrive(event.input, tables[event.input].slice(start, count)))
        found.append(move)
    return found


def _with_queries(rng: Rng, moves: list[Move], most: Sequence[Any]) -> tuple[tuple[Wish, ...], tuple[Move, ...]]:
    """Queries, each with the events by which it comes and goes; some are there before all of them."""
    there = [_wish(rng, f"q{number}", most) for number in range(int(rng.choice([0, 1, 2, 5, 9])))]
    wishes = [replace(wish, since=-1) for wish in there]
    live = {wish.query.name: place for place, wish in enumerate(wishes)}
    found: list[Move] = []
    often = float(rng.choice([0.0, 0.1, 0.4]))
    ended = 0
    for move in moves:
        while ended < 2 and rng.random() < often:
            polls = int(rng.integers(0, 3))
            if live and rng.random() < 0.5:
                name = str(rng.choice(sorted(live)))
                place = live.pop(name)
                wishes[place] = replace(wishes[place], until=len(found))
                found.append(Move(RemoveQuery(name), polls))
            else:
                name = next(name for name in (f"q{number}" for number in range(100)) if name not in live)
                live[name] = len(wishes)
                wishes.append(replace(_wish(rng, name, most), since=len(found)))
                found.append(Move(AddQuery(wishes[-1].query), polls))
        found.append(move)
        ended += isinstance(move.event, End)
    return tuple(wishes), tuple(found)


def _wish(rng: Rng, name: str, most: Sequence[Any]) -> Wish:
    left, right = _filter(rng), _filter(rng)
    window = tuple(_window(rng, each) for each in most)
    query = WindowQuery(name, window, None if left is None else left[0], None if right is None else right[0])
    return Wish(query, (_any if left is None else left[1], _any if right is None else right[1]))


def _any(_: Mapping[str, Any]) -> bool:
    return True


def _window(rng: Rng, most: Any) -> Any:
    """A window that is no longer than this."""
    share = int(rng.choice([0, 1, 2, 4, 4, 4, 4, 4]))
    length = most * share // 4
    if rng.random() < 0.2:
        least = length // 2
        # Between two ages there is to be a whole unit of any column of times, or none at all.
        narrow = isinstance(length, timedelta) and length - least < timedelta(seconds=1)
        return Age(0 * length, 0 * length) if narrow else Age(least, length)
    return length


# --- filters, as text and as functions of plain values ---


def _filter(rng: Rng, depth: int = 0) -> tuple[str, Passes] | None:
    """A condition, or none at all."""
    if depth == 0 and rng.random() < 0.5:
        return None
    if depth < 2 and rng.random() < 0.4:
        one, other = _filter(rng, depth + 1), _filter(rng, depth + 1)
        assert one is not None and other is not None
        if rng.random() < 0.3:
            return f"not ({one[0]})", _negated(one[1])
        if rng.random() < 0.5:
            return f"({one[0]}) and ({other[0]})", _joined(one[1], other[1], decides=False)
        return f"({one[0]} or {other[0]})", _joined(one[1], other[1], decides=True)
    return _atom(rng)


def _negated(passes: Passes) -> Passes:
    def negated(row: Mapping[str, Any]) -> bool | None:
        found = passes(row)
        return None if found is None else not found

    return negated


def _joined(one: Passes, other: Passes, decides: bool) -> Passes:
    """True or false if one of them decides it; else unknown if one of them is."""

    def joined(row: Mapping[str, Any]) -> bool | None:
        found = one(row), other(row)
        return decides if decides in found else None if None in found else not decides

    return joined


_MEANINGS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other, "!=": lambda one, other: one != other, "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other, ">": lambda one, other: one > other, ">=": lambda one, other: one >= other,
}  # fmt: skip


def _atom(rng: Rng) -> tuple[str, Passes]:
    column = str(rng.choice(["amount", "amount", "score", "place"]))
    values: Sequence[Any] = {"amount": (0, 3, 3.5, 5, 7, 900_000_000_000), "score": (-2, 0, 0.25, 1), "place": _PLACES}[
        column
    ]
    if rng.random() < 0.1:
        return f"{column} is null", lambda row: row[column] is None
    if rng.random() < 0.1:
        return "amount < score", lambda row: _compared("<", row["amount"], row["score"])
    if rng.random() < 0.2:
        some = [values[int(place)] for place in rng.integers(0, len(values), int(rng.integers(1, 4)))]
        text = f"{column} in ({', '.join(map(_written, some))})"
        return text, lambda row: None if row[column] is None else row[column] in some
    sign, value = str(rng.choice(list(_MEANINGS))), values[int(rng.integers(len(values)))]
    return f"{column} {sign} {_written(value)}", lambda row: _compared(sign, row[column], value)


def _compared(sign: str, one: Any, other: Any) -> bool | None:
    return None if one is None or other is None else _MEANINGS[sign](_placed(one), _placed(other))


def _placed(value: Any) -> tuple[bool, Any]:
    """A value by its place among others: NaN equals itself, and is above all numbers."""
    is_nan = value != value
    return is_nan, None if is_nan else value


def _written(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def conform_queries(operator_class: type[Any], cases: int = 500, seed: int = 0, **options: Any) -> WindowSummary:
    """Put a window join with queries through so many cases; the first that fails is a `ConformanceError`."""
    return conform_timed(operator_class, range(seed, seed + cases), make_queries_case, None, **options)
