"""Flips in what operators spill, and in their snapshots: every operator, in every suite that applies to it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from simulate.stores import FaultyStore
from stress.flips import Flip, flipped, judged, kind_of, part_at, place
from watersmeet import planner
from watersmeet.checks import cases, multi_cases, windows
from watersmeet.checks.asof import make_asof_case
from watersmeet.checks.multi_windows import make_multi_window_case
from watersmeet.checks.promised_cases import make_promised_case, make_promised_kind_case
from watersmeet.checks.queries import make_queries_case
from watersmeet.checks.run import ConformanceError, run_case
from watersmeet.checks.suites import make_band, make_equality
from watersmeet.core.errors import BudgetError
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.store import MemoryStore


class _Noted:
    """A writer that tells when it has published."""

    def __init__(self, inner: Any, told: Callable[[], None]) -> None:
        self._inner, self._told = inner, told
        self.write, self.abort = inner.write, inner.abort

    def commit(self) -> None:
        self._inner.commit()
        self._told()


class Flipping(FaultyStore):
    """Flips one bit of the `fail_at`-th file that is published, and remembers the names of all."""

    def __init__(self, inner: Any, fail_at: int | None = None, draw: random.Random | None = None) -> None:
        super().__init__(inner, fail_at, "commit", damage=self._flip)
        self.fail_at = fail_at or 1
        self.published: list[str] = []
        self.content, self.bit = b"", 0
        self._draw = draw or random.Random(0)
        create = inner.create
        inner.create = lambda name: _Noted(create(name), lambda: self.published.append(name))

    def _flip(self, content: bytes) -> bytes:
        self.content, self.bit = content, place(self._draw, content)
        return flipped(content, self.bit)


@cache
def joins() -> tuple[tuple[str, type[Any], Callable[..., Any], dict[str, Any]], ...]:
    """All operators, with what they are called, who makes their cases, and their options."""
    from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
    from watersmeet.joins.sharded import Sharded

    ours, windowed = planner.ALGORITHMS["confluence"], planner.WINDOW_ALGORITHMS["confluence"]
    many = planner.MULTIWAY["confluence"]
    in_shards = {"shards": 2, "order": 5}
    return (
        *((f"join by {name}", planner.ALGORITHMS[name], make_equality, {}) for name in planner.ALGORITHMS),
        *(
            (f"band by {name}", kind, make_band, {})
            for name, kind in planner.ALGORITHMS.items()
            if getattr(kind, "joins_ranges", False)
        ),
        ("join by kind", ours, cases.make_kind_case, {}), ("near", ours, cases.make_near_case, {}),
        ("join with promises", MetadataMJoin, make_promised_case, {}),
        ("join by kind with promises", ours, make_promised_kind_case, {}),
        ("join in shards", Sharded, cases.make_case, in_shards),
        ("join by kind in shards", Sharded, cases.make_kind_case, in_shards),
        *((f"window_join by {n}", kind, windows.make_window_case, {}) for n, kind in planner.WINDOW_ALGORITHMS.items()),
        ("window_queries", windowed, make_queries_case, {}),
        *((f"multijoin by {name}", kind, multi_cases.make_multi_case, {}) for name, kind in planner.MULTIWAY.items()),
        ("multijoin, left", many, multi_cases.make_preserving_case, {}),
        *(
            (f"multijoin in windows by {name}", kind, make_multi_window_case, {})
            for name, kind in planner.WINDOWED_MULTIWAY.items()
        ),
        ("asof_join", planner.ASOF["asof"], make_asof_case, {}),
    )  # fmt: skip


def spilled(draw: random.Random) -> Iterator[Flip]:
    """Flips in what one join after the other spills, a few in each."""
    while True:
        yield from of_one(draw, *draw.choice(joins()))


def of_one(
    draw: random.Random, name: str, kind: type[Any], make: Callable[..., Any], options: dict[str, Any], count: int = 4
) -> Iterator[Flip]:
    """Flips in what one case of an operator spills; half of the cases are restored from snapshots."""
    whole = Flipping(MemoryStore())
    while not whole.calls["commit"]:
        case = make(draw.randrange(1 << 16), kind)
        if draw.random() < 0.5:
            case = replace(case, restores=tuple(sorted(draw.sample(range(3, 40), 4))))
        whole = Flipping(MemoryStore())
        error = _error(kind, case, whole, options)
        if isinstance(error, BudgetError):
            whole = Flipping(MemoryStore())
        else:
            assert error is None, f"{name}, {case.maker}({case.seed}) fails by itself: {error}"
    for _ in range(count):
        with tempfile.TemporaryDirectory() as directory:
            inner = FileStore(directory) if draw.random() < 0.5 else MemoryStore()
            store = Flipping(inner, 1 + _among(draw, whole.published), draw)
            error = _error(kind, case, store, options)
            inner.close()
        if store.failures:
            file = store.published[store.fail_at - 1] if len(store.published) >= store.fail_at else "?"
            outcome, told = judged(error, repr(file))
            part = part_at(store.content, store.bit)
            told = f"{name}, {case.maker}({case.seed}), bit {store.bit}: {told}"
            yield Flip(f"{name}: {kind_of(file, store.content)}", part, outcome, told)


def _among(draw: random.Random, names: list[str]) -> int:
    """One of the files, of kinds that are rare as often as of those that are many."""
    kinds = [name.rstrip("0123456789").split("-")[0] for name in names]
    kind = draw.choice(sorted(set(kinds)))
    return draw.choice([number for number, each in enumerate(kinds) if each == kind])


def _error(kind: type[Any], case: Any, store: Any, options: dict[str, Any]) -> BaseException | None:
    try:
        run_case(kind, case, store, **options)
    except ConformanceError as error:
        return error.__cause__
    return None
