"""What an input may promise: before its first row, or in the midst of its rows.

- `Promises` hold for the whole input and are known before it begins: keys that are unique, rows that come clustered or
  sorted by a column.
- A `Punctuation` stands between rows: none that matches its pattern will follow.

```
rows of an input   9  12  5  3  12  P(3)  5  11  4  P(4)  8 ...        after P(3) there is no 3 any more
```

Both are the input's word. A join that relies on them needs to remember less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from watersmeet.core.errors import SpecError


class _Any:
    """Matches every value."""

    def __repr__(self) -> str:
        return "ANY"


ANY = _Any()
"""In a pattern: whatever stands in this column. A column that a pattern does not name may hold anything, too."""


@dataclass(frozen=True, slots=True)
class Among:
    """One of some values."""

    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """Values from `low` to `high`; None is no bound. NaN is larger than every number."""

    low: object = None
    high: object = None
    low_open: bool = False
    """The lowest value itself is not among them."""
    high_open: bool = False


def among(values: Iterable[object]) -> Among:
    """For a punctuation's pattern: any of these values.

    >>> Punctuation({"sno": among([3, 4])})
    Punctuation(sno in (3, 4))
    """
    return Among(tuple(values))


def between(low: object, high: object, closed: str = "both") -> Range:
    """For a punctuation's pattern: values from `low` to `high`, None being no bound.

    `closed` says which bounds are among them: `"both"`, `"left"`, `"right"` or `"neither"`.

    >>> Punctuation({"day": between(None, 17, closed="left")})
    Punctuation(day < 17)
    """
    if closed not in ("both", "left", "right", "neither"):
        raise SpecError(f"closed={closed!r} is not known; choose 'both', 'left', 'right' or 'neither'")
    if low is None and high is None:
        raise SpecError("a range needs a bound; leave the column out of the pattern if all its values are meant")
    return Range(low, high, closed in ("right", "neither"), closed in ("left", "neither"))


class Punctuation:
    """Among the rows of an input: no row that matches the pattern will follow.

    A pattern maps column names to a value, to `among([...])` or to `between(low, high)`; all named columns must match,
    and other columns may hold anything.

    >>> Punctuation({"sno": 79})
    Punctuation(sno = 79)
    >>> Punctuation({"sno": 79}) == Punctuation({"sno": 79, "ipaddr": ANY})
    True
    """

    __slots__ = ("pattern",)

    def __init__(self, pattern: Mapping[str, object]) -> None:
        self.pattern: dict[str, object] = {name: value for name, value in pattern.items() if value is not ANY}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Punctuation) and self.pattern == other.pattern

    def __hash__(self) -> int:
        return hash(tuple(sorted((name, repr(value)) for name, value in self.pattern.items())))

    def __repr__(self) -> str:
        return f"Punctuation({self})"

    def __str__(self) -> str:
        return ", ".join(_told(name, value) for name, value in self.pattern.items()) or "anything"


def _told(name: str, value: object) -> str:
    if isinstance(value, Among):
        return f"{name} in ({', '.join(map(repr, value.values))})"
    if not isinstance(value, Range):
        return f"{name} = {value!r}"
    if value.low is None:
        return f"{name} {'<' if value.high_open else '<='} {value.high!r}"
    above = f"{value.low!r} {'<' if value.low_open else '<='} {name}"
    return above if value.high is None else f"{above} {'<' if value.high_open else '<='} {value.high!r}"


Sorting: TypeAlias = "tuple[tuple[str, bool], ...]"


@dataclass(frozen=True)
class Promises:
    """What an input promises for all its rows.

    >>> Promises.of(unique=["sno"], sorted=[("day", "descending")])
    Promises(unique=('sno',), clustered=(), sorted=(('day', True),), punctuated=False)
    """

    unique: tuple[str, ...] = ()
    """No two rows have the same values in these columns, taken together."""
    clustered: tuple[str, ...] = ()
    """Rows with the same values in these columns come one after the other."""
    sorted: Sorting = ()
    """Rows come in the order of these columns; each with whether it descends."""
    punctuated: bool = False
    """There may be punctuations among the rows."""

    @classmethod
    def of(
        cls,
        unique: Sequence[str] | str = (),
        clustered: Sequence[str] | str = (),
        sorted: Sequence[str | tuple[str, str]] | str = (),
        punctuated: bool = False,
    ) -> Promises:
        """From what people write."""
        orders = tuple(_order(item) for item in _names(sorted, "sorted"))
        return cls(
            tuple(map(str, _names(unique, "unique"))),
            tuple(map(str, _names(clustered, "clustered"))),
            orders,
            punctuated,
        )

    def __bool__(self) -> bool:
        return bool(self.unique or self.clustered or self.sorted or self.punctuated)

    def check(self, schema: pa.Schema, name: str) -> None:
        """An error if a column that something is promised of is not there."""
        for column in (*self.unique, *self.clustered, *(column for column, _ in self.sorted)):
            if column not in schema.names:
                raise SpecError(
                    f"{name} promises something of column {column!r}, which it does not have; it has "
                    f"{', '.join(schema.names) or 'no columns'}"
                )

    # --- what it means for the keys of a join ---

    def unique_key(self, keys: Sequence[str]) -> bool:
        """Whether no two rows have the same values in all of these columns."""
        return bool(self.unique) and set(self.unique) <= set(keys)

    def clustered_key(self, keys: Sequence[str]) -> bool:
        """Whether rows with the same values in these columns come one after the other."""
        return bool(self.clustered) and set(self.clustered) == set(keys)

    def sorted_key(self, keys: Sequence[str]) -> bool | None:
        """Whether rows come sorted by the one column there is: descending or not; None if they do not."""
        if len(keys) == 1 and self.sorted and self.sorted[0][0] == keys[0]:
            return self.sorted[0][1]
        return None

    def tell_of(self, keys: Sequence[str]) -> bool:
        """Whether it comes to be known that values of these columns are over."""
        return self.punctuated or self.clustered_key(keys) or self.sorted_key(keys) is not None

    def help(self, keys: Sequence[str]) -> bool:
        """Whether a join on these columns can make use of any of it."""
        return self.unique_key(keys) or self.tell_of(keys)


def _names(given: Any, what: str) -> list[Any]:
    if isinstance(given, str):
        return [given]
    names = list(given)
    for name in names:
        if not isinstance(name, str) and not (what == "sorted" and isinstance(name, tuple) and len(name) == 2):
            raise SpecError(f"{what} takes names of columns, not {name!r}")
    if len({name if isinstance(name, str) else name[0] for name in names}) < len(names):
        raise SpecError(f"{what}={given!r} names a column twice")
    return names


def _order(item: str | tuple[str, str]) -> tuple[str, bool]:
    if isinstance(item, str):
        return item, False
    name, order = item
    if order not in ("ascending", "descending"):
        raise SpecError(f"sorted by {name!r} {order!r} is not understood; write 'ascending' or 'descending'")
    return name, order == "descending"
