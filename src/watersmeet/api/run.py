"""From inputs and a spec to a run: what all verbs of the library have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from watersmeet.api.explanation import Choice, Explanation
from watersmeet.core.errors import BudgetError, SourceError, SpecError
from watersmeet.core.given import directory
from watersmeet.core.lookup import LookupSpec
from watersmeet.core.many_lookups import ChainSpec, SharedSpec
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import JoinSpec
from watersmeet.core.windows import Span
from watersmeet.drivers.drawing import follower
from watersmeet.drivers.inbox import MAX_ROWS
from watersmeet.drivers.live import LiveOperator, LiveRun, queue_bytes
from watersmeet.drivers.progress import Progress
from watersmeet.drivers.spool import Spool
from watersmeet.memory import format_bytes, parse_memory
from watersmeet.sources import Source, as_source
from watersmeet.sources.base import BaseSource, expanded

if TYPE_CHECKING:
    from watersmeet.live.page import Page
    from watersmeet.spill import FileStore

PageOption: TypeAlias = "bool | int | str | Page | None"
"""Of `page=`: whether to serve a live page, at which port or HOST:PORT, or the page to show the run on."""
Spec = TypeVar("Spec", bound="JoinSpec | MultiSpec | LookupSpec | ChainSpec | SharedSpec")


@dataclass(frozen=True, slots=True)
class Settings:
    """What every verb is told beside what it joins."""

    memory: int
    spill: Path | None
    wait: Span | float
    on_progress: Callable[[Progress], None] | None
    page: PageOption = None
    spool: int | None = None
    """Bytes by which sources may run ahead onto the disk; None: they wait."""
    shed: float | None = None
    """The share of the rows of sources that do not wait which may be let go; None: no row is."""

    @classmethod
    def of(
        cls,
        memory: str | int,
        spill: str | os.PathLike[str] | None,
        wait: Span | float,
        on_progress: Callable[[Progress], None] | None,
        page: PageOption = None,
        spool: str | int | None = None,
    ) -> Settings:
        """Settings in the words of a user."""
        place = None if spill is None else directory(spill, "spill")
        room = None if spool is None else parse_memory(spool, "spool")
        if on_progress is not None and not callable(on_progress):
            raise SpecError(
                f"on_progress must be a function that is called with the progress, not {on_progress!r}; leave it out "
                f"where nobody is to be told"
            )
        return cls(parse_memory(memory), place, wait, on_progress, page, room)

    def new_spool(self) -> Spool | None:
        """Where sources run ahead to, if they may."""
        if self.spool is None:
            return None
        from watersmeet.spill import FileStore

        return Spool(self.spool, lambda: FileStore(self.spill))


@dataclass(frozen=True, slots=True)
class Told:
    """What a verb was told, as far as it can be told again."""

    verb: str
    on: Sequence[str]
    how: str = "inner"
    window: str | None = None
    beside: Mapping[str, pa.Schema] = field(default_factory=dict)
    """What is joined with, and is no input that is read row by row."""


def open_sources(
    inputs: Iterable[tuple[str, object]],
    table_rows: int | None = None,
    beside: Iterable[tuple[str, Source | None]] = (),
) -> list[Source]:
    """Every input as a source, by its name; if one cannot be opened, the others are closed again.

    Tables in memory, of which nobody has said otherwise, come in batches of up to `table_rows` rows, if that is given.
    No two may drain the same iterator, be it among these or `beside` them: each would get some of the rows.
    """
    sources: list[Source] = []
    drained: dict[int, str] = {}
    try:
        for name, other in beside:
            if other is not None:
                _claim(other, name, drained)
        for name, data in inputs:
            made = as_source(data, name)
            sources.append(made)
            _claim(made, name, drained)
            if table_rows is not None and made is not data and isinstance(made, BaseSource) and made.stays:
                made.batch_rows = table_rows
    except BaseException:
        close_all(sources)
        raise
    return sources


def _claim(source: Source, name: str, drained: dict[int, str]) -> None:
    """Note what an input will read up: an iterator, or the source itself; refuse it if another one will."""
    own = source.drains if isinstance(source, BaseSource) else None
    rows = source if own is None else own
    if id(rows) in drained:
        raise SourceError(
            f"{drained[id(rows)]} and {name} are one and the same {type(rows).__name__}, whose rows can be read "
            f"only once; give each of them an iterator of its own, or both a table"
        )
    drained[id(rows)] = name


def close_all(sources: Iterable[Source]) -> None:
    """Let go of sources that nobody will read."""
    for source in sources:
        source.close()


def open_run(
    sources: Sequence[Source],
    specify: Callable[[Sequence[pa.Schema]], Spec],
    make: Callable[[Spec, int, FileStore], LiveOperator],
    settings: Settings,
    new_store: Callable[[Path | None], FileStore] | None = None,
    *,
    told: Told,
    choose: Callable[[Spec], Choice],
    threads: int = 1,
    queue_rows: int = MAX_ROWS,
) -> tuple[LiveRun, pa.Schema | None, Callable[[], Explanation]]:
    """A run over sources, which it closes, the result's schema where nobody has to be waited for, and what explains it.

    There, mistakes come to light here and not at the first use.

    :param specify: from the inputs' schemas to the spec; refuses what cannot be joined.
    :param make: from the spec, the memory that the queues leave, and a store to the operator.
    :param new_store: makes the store below the directory for spilled rows, which is gone when the run is over.
    :param told: what the verb was told, to be explained.
    :param choose: from the spec to the algorithm that `make` would take.
    :param threads: how many run an operator that is in shards.
    :param queue_rows: how many rows of an input may wait, at most.
    """

    def build(schemas: Sequence[pa.Schema], rest: int) -> LiveOperator:
        from watersmeet.spill import FileStore

        spec = specify(schemas)
        store = (new_store or FileStore)(settings.spill)
        try:
            return make(spec, rest, store)
        except BaseException:
            store.close()
            raise

    try:
        known = all(source.schema_known for source in sources)
        schemas = [source.schema() for source in sources] if known else None
        schema = specify(schemas).schema if schemas is not None else None
        run = LiveRun(
            sources, build, settings.memory, schemas=schemas, wait=settings.wait, observe=settings.on_progress,
            threads=threads, queue_rows=queue_rows, spool=settings.new_spool(), shed=settings.shed,
        )  # fmt: skip
        if settings.page is not None and settings.page is not False:
            from watersmeet.live.attach import attach

            attach(run, settings.page, [source.name for source in sources])
        following = follower(run.history) if settings.on_progress is None else None
        if following is not None:
            run.observe(following)
            run.accompany(following.close)
        names = [source.name for source in sources]

        def explain() -> Explanation:
            known = run.schemas()
            inputs = dict(zip(names, known, strict=True)) | dict(told.beside)
            spec = specify(known)
            return Explanation(
                told.verb, told.how, inputs, told.on, told.window, choose(spec), settings.memory, spec.schema
            )

        return run, schema, explain
    except BaseException:
        close_all(sources)
        raise


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def two_names(names: tuple[str, str] | None, data: Sequence[object], otherwise: Sequence[str]) -> tuple[str, str]:
    """What the two inputs are called: as told, else files by their paths and anything else by its role."""
    if names is not None and (isinstance(names, str) or len(names) != 2):
        raise SpecError(f"names must be two strings, not {names!r}")
    return names or (usual_name(data[0], otherwise[0]), usual_name(data[1], otherwise[1]))


def usual_name(data: object, otherwise: str) -> str:
    """What an input is called that was given no name: a file by its path."""
    return str(expanded(data, otherwise)) if isinstance(data, str | os.PathLike) else otherwise


def with_queues(least: int) -> int:
    """The memory of a join that leaves its operator so much."""
    return -(-least * 8 // 7)


def check_least(least: int, memory: int) -> None:
    """Refuse memory that leaves an operator less than it needs."""
    if memory - queue_bytes(memory) < least:
        needed = with_queues(least)
        raise BudgetError(
            f"memory of {format_bytes(memory)} is too small for this join; "
            f"allow at least {format_bytes(needed)} ({needed:,} bytes)"
        )
