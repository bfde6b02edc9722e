"""The options of the data source: words to values, and an error that names the option where one is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from watersmeet.core.errors import SpecError
from watersmeet.sources.numbered_rows import GeneratedRows, NumberedRows, Recipe, rows_of_files
from watersmeet.sources.pace import Pace

T = TypeVar("T")

ROWS_PER_TASK = 131_072
TEXT_ROWS_PER_BATCH = 131_072
"""Of files that the driver reads and holds until a batch is done, unless a limit is given."""
TICK_SECONDS = 0.25
_GENERATED = ("keys", "skew", "width", "seed", "columns")
_KNOWN = (
    "path", "rows", *_GENERATED, "rowsPerSecond", "rowsPerBurst", "stalls", "startsAt", "rowsPerBatch", "rowsPerTask",
    "events", "tickSeconds",
)  # fmt: skip


@dataclass(frozen=True)
class SourceOptions:
    """What a stream of the data source is asked to be.

    >>> options = SourceOptions.parse({"rows": "1000", "rowsPerSecond": "50", "stalls": "100: 1.5, 400: 2"})
    >>> options.recipe.rows, options.pace.stalls
    (1000, ((100, 1.5), (400, 2.0)))
    """

    path: str | None
    recipe: Recipe | None
    pace: Pace
    starts_at: float | Path | None
    """When second 0 is, in seconds since 1970, or the file whose appearance it is; the first question unless given."""
    rows_per_batch: int | None
    rows_per_task: int
    events: bool
    tick_seconds: float

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Understand the options; names in any case."""
        options = {name.lower(): value.strip() for name, value in given.items()}
        known = {name.lower(): name for name in _KNOWN}
        for name in options:
            if name not in known:
                raise SpecError(f"the watersmeet source has no option {name!r}; it takes {', '.join(_KNOWN)}")

        def take(name: str, kind: Callable[[str], T], default: T) -> T:
            return default if name.lower() not in options else _converted(name, options[name.lower()], kind)

        return cls(
            path=options.get("path"),
            recipe=_recipe(options, take),
            pace=Pace(take("rowsPerSecond", float, None), take("rowsPerBurst", _count, 1), take("stalls", _stalls, ())),
            starts_at=take("startsAt", _moment, None),
            rows_per_batch=take("rowsPerBatch", _count, None),
            rows_per_task=take("rowsPerTask", _count, ROWS_PER_TASK),
            events=take("events", _truth, False),
            tick_seconds=take("tickSeconds", _seconds, TICK_SECONDS),
        )

    def table(self, schema: pa.Schema | None = None) -> NumberedRows:
        """The rows; from files, brought to a schema if one is given."""
        if self.path is not None:
            return rows_of_files(self.path, schema)
        assert self.recipe is not None, "one of the two is given"
        return GeneratedRows(self.recipe)


def _recipe(options: Mapping[str, str], take: Callable[..., object]) -> Recipe | None:
    if ("path" in options) == ("rows" in options):
        raise SpecError("the watersmeet source needs either a path, as in .load('orders.parquet'), or the option rows")
    if "path" in options:
        for name in _GENERATED:
            if name in options:
                raise SpecError(f"option {name} is for generated rows, but there is a path; leave one of them out")
        return None
    rows = take("rows", _natural, 0)
    values: dict[str, object] = {
        "rows": rows,
        "keys": take("keys", _count, max(1, int(rows))),  # type: ignore[call-overload]
        "skew": take("skew", _seconds, 0.0),
        "width": take("width", _natural, 52),
        "seed": take("seed", _natural, 0),
        "columns": take("columns", _columns, ("key", "number", "measure", "text")),
    }
    assert set(values) == {field.name for field in fields(Recipe)}
    return Recipe(**values)  # type: ignore[arg-type]


def _converted(name: str, text: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(text)
    except ValueError as error:
        said = f"; {error}" if isinstance(error, _Wanted) else ""
        raise SpecError(f"option {name} is not understood: {text!r}{said}") from None


class _Wanted(ValueError):
    """What an option must look like."""


def _natural(text: str) -> int:
    if not text.isascii() or not text.replace("_", "").isdigit():
        raise _Wanted("give a whole number")
    return int(text)


def _count(text: str) -> int:
    number = _natural(text)
    if number < 1:
        raise _Wanted("give a whole number from 1 on")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise _Wanted("give a number of at least 0")
    return number


def _moment(text: str) -> float | Path:
    if Path(text).is_absolute():
        return Path(text)
    try:
        return float(text)
    except ValueError:
        raise _Wanted("give seconds since 1970, or the absolute path of a file that will appear") from None


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _Wanted("give true or false")
    return text.lower() == "true"


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) != 4 or len(set(names)) != 4 or not all(names):
        raise _Wanted("give four names with commas between, for the key, a number, a measure and a text")
    return names


def _stalls(text: str) -> tuple[tuple[int, float], ...]:
    found = []
    for each in filter(str.strip, text.split(",")):
        rows, colon, seconds = each.partition(":")
        if not colon:
            raise _Wanted("give ROWS:SECONDS with commas between, as in 1000:0.5, 4000:2")
        found.append((_natural(rows.strip()), _seconds(seconds)))
    return tuple(found)
