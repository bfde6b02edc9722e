"""The suite for joins of inputs that promise something.

Beside what every join must do: rows that can find no more partners are gone, no more and no fewer; and no result comes
behind a punctuation of the output that covers it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.checks.conformance import check_determinism, check_refusals, check_snapshot
from watersmeet.checks.promised_cases import (
    PromisedCase,
    SideKeys,
    broken,
    make_promised_case,
    rescripted,
    unpromised,
)
from watersmeet.checks.run import CaseReport, CaseRun, ConformanceError, run_case
from watersmeet.core.errors import PromiseError
from watersmeet.core.promises import ANY, Among, Range
from watersmeet.core.protocol import Arrive, Event, Punctuate, Status
from watersmeet.spill.store import MemoryStore

_MOST_LOOKS = 40
"""At the rows in memory, in one case: each takes a while."""


@dataclass(frozen=True, slots=True)
class PromisedReport:
    """What a case went through."""

    report: CaseReport
    purged: int
    """Rows taken out of memory because of a promise."""
    dropped: int
    """Rows never kept because of a promise."""
    handed_on: int
    """Punctuations of the output."""
    looks: int
    """How often the rows in memory were compared with the fewest possible."""
    broken: int
    """Rows that came although they were promised not to."""


class PromisedRun(CaseRun):
    """The driver of one case, which knows what the inputs have promised so far."""

    _case: PromisedCase

    def __init__(self, operator_class: type[Any], case: PromisedCase, store: Any, options: dict[str, Any]) -> None:
        self._keys = [SideKeys(case.spec, side, case.table(side)) for side in (0, 1)]
        self._received = [0, 0]
        self._told: list[list[dict[str, object]]] = [[], []]
        self.looks = 0
        super().__init__(operator_class, case, store, False, options)

    def promised_report(self) -> PromisedReport:
        """Play the whole script."""
        report = self.report()
        operator = self._operator
        return PromisedReport(
            report,
            sum(operator.promised.purged),
            sum(operator.promised.dropped),
            len(self.punctuations),
            self.looks,
            sum(operator.promised.broken),
        )

    def _receive(self, event: Event) -> None:
        if isinstance(event, Arrive):
            self._received[event.input] += event.batch.num_rows
        elif isinstance(event, Punctuate):
            self._told[event.input].append(dict(event.pattern))
        super()._receive(event)

    def _after_step(self) -> None:
        super()._after_step()
        operator = self._operator
        settled = self._polls and self._status in (Status.NEED_INPUT, Status.HAS_WORK) and not self._waits
        strict = operator.policy.immediate and not operator.lenient
        if settled and strict and self.looks < _MOST_LOOKS and not any(disk.total_rows for disk in operator.disks):
            self.looks += 1
            self._compare_state()

    @property
    def _waits(self) -> bool:
        """Whether anything was received since the last poll."""
        return bool(self._operator._arrivals_wait or list(self._operator._ended) != list(self._operator._closed))

    def _compare_state(self) -> None:
        for side in (0, 1):
            fewest, found = self._fewest(side), self._operator.state_rows[side]
            # Promises that there was no memory for cannot be acted upon.
            all_known = not self._operator.known[1 - side].forgotten
            if found < fewest or (found > fewest and all_known):
                raise ConformanceError(
                    f"keeps {found} rows of input {side} in memory, where {fewest} can still find partners"
                )

    def _fewest(self, side: int) -> int:
        """Rows that came and that may still find partners: all but those whose keys the other input is done with."""
        other = 1 - side
        if self._ended[other]:
            return 0
        mine, theirs = self._keys[side], self._keys[other]
        here, there = self._received[side], self._received[other]
        needed = mine.valid[:here].copy()
        hashes = mine.hashes[:here]
        came = theirs.hashes[:there][theirs.valid[:there]]
        promises, names = self._case.spec.promises[other], self._case.spec.keys(other)
        if promises.unique_key(names):
            needed &= ~np.isin(hashes, came)
        descending = promises.sorted_key(names)
        if len(came) and descending is not None:
            ranks = _common_ranks(self._keys, side)[0][:here]
            last = _common_ranks(self._keys, side)[1][:there][theirs.valid[:there]][-1]
            needed &= (ranks <= last) if descending else (ranks >= last)
        elif len(came) and promises.clustered_key(names):
            needed &= ~np.isin(hashes, came[came != came[-1]])
        for pattern in self._told[other]:
            needed &= ~self._covered(side, pattern)[:here]
        return int(np.count_nonzero(needed))

    def _covered(self, side: int, pattern: dict[str, object]) -> np.ndarray:
        """Which rows of an input have the keys that a pattern of the other input speaks of."""
        other = 1 - side
        names = self._case.spec.keys(other)
        known = {name: value for name, value in pattern.items() if value is not ANY}
        mine = self._keys[side]
        if set(known) != set(names):
            return np.zeros(len(mine.hashes), np.bool_)
        patterns = [known]
        if len(names) == 1 and isinstance(known[names[0]], Among):
            patterns = [{names[0]: value} for value in known[names[0]].values]  # type: ignore[attr-defined]
        if isinstance(patterns[0][names[0]], Range):
            return self._in_range(side, patterns[0][names[0]])
        found = np.zeros(len(mine.hashes), np.bool_)
        for each in patterns:
            found |= mine.hashes == self._hash_of(other, each)
        return found & mine.valid

    def _hash_of(self, side: int, values: dict[str, object]) -> int:
        columns = [
            pa.array([values[name]], column.type)
            for name, column in zip(self._keys[side].names, self._keys[side].columns, strict=True)
        ]
        hashes, valid = self._operator.codec.hash_plain(columns)
        return int(hashes[0]) if valid is None or valid[0] else -1

    def _in_range(self, side: int, span: Any) -> np.ndarray:
        """Told by the rows of both inputs: a range's bounds are keys of the other one."""
        other = 1 - side
        mine, theirs = _common_ranks(self._keys, side)
        names = self._case.spec.keys(other)
        found = self._keys[side].valid.copy()
        for bound, is_open, above in ((span.low, span.low_open, True), (span.high, span.high_open, False)):
            if bound is None:
                continue
            row = np.flatnonzero(self._keys[other].hashes == self._hash_of(other, {names[0]: bound}))[0]
            rank = theirs[row]
            if above:
                found &= mine > rank if is_open else mine >= rank
            else:
                found &= mine < rank if is_open else mine <= rank
        return found


def _common_ranks(keys: list[SideKeys], side: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of one side's keys and of the other's, comparable with each other."""
    mine, theirs = keys[side], keys[1 - side]
    assert mine.ranks is not None and theirs.ranks is not None
    texts = [_texts(each) for each in (mine, theirs)]
    if texts[0] is None or texts[1] is None:
        return mine.ranks, theirs.ranks
    order = {text: i for i, text in enumerate(sorted({*texts[0], *texts[1]}))}
    first, second = (np.array([order[text] for text in some], np.int64) for some in texts if some is not None)
    return first, second


def _texts(keys: SideKeys) -> list[bytes] | None:
    type_ = keys.columns[0].type
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_null(type_):
        return None
    return [
        b"" if value is None else value.encode() if isinstance(value, str) else value
        for value in keys.columns[0].to_pylist()
    ]


def run_promised(operator_class: type[Any], case: PromisedCase, **options: Any) -> PromisedReport:
    """Drive an operator through a case; whatever it does wrong is a `ConformanceError` that shows the case.

    >>> from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
    >>> case = make_promised_case(3, MetadataMJoin)
    >>> run_promised(MetadataMJoin, case, optimize="memory").report.results == len(case.pairs)
    True
    """
    store = MemoryStore()
    try:
        return PromisedRun(operator_class, case, store, options).promised_report()
    except Exception as error:
        raise ConformanceError(
            f"{operator_class.__name__}: {str(error) or type(error).__name__}\n{case}\n  options {options}\n"
            f"  again: run_promised({operator_class.__name__}, make_promised_case({case.seed}, "
            f"{operator_class.__name__}), **options)"
        ) from error
    finally:
        store.close()


@dataclass(frozen=True, slots=True)
class PromisedSummary:
    """How many cases there were, and which paths they took."""

    cases: int
    spilled: int
    reactive: int
    cleaned_up: int
    restored: int
    purged: int
    dropped: int
    handed_on: int
    looks: int
    broken: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.cases} cases: {self.spilled} spilled, {self.reactive} went through the reactive stage, "
            f"{self.cleaned_up} through clean-up, {self.restored} were restored; {self.purged} purged rows, "
            f"{self.dropped} dropped some, {self.handed_on} handed punctuations on, in {self.looks} the rows in memory "
            f"were the fewest possible, {self.broken} had broken promises; {1000 * self.seconds / self.cases:.1f} ms a "
            f"case"
        )


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """Any goal, purging and scheduling."""
    return {
        "optimize": str(rng.choice(["rate", "memory"])),
        "purge_every": None if rng.random() < 0.5 else int(rng.choice([1, 1, 2, 7])),
        "search": str(rng.choice(["index", "scan"])),
        "streams": [None, "random", "priority"][int(rng.integers(3))],
        "tuples": [None, "sequential", "value"][int(rng.integers(3))],
        "quotas": (int(rng.choice([1, 5, 50])), int(rng.choice([1, 5, 50]))),
        "turn": int(rng.choice([1, 7, 256])),
        "seed": int(rng.integers(100)),
    }


def conform_to_promises(operator_class: type[Any], cases: int = 500, seed: int = 0) -> PromisedSummary:
    """Put an operator through so many cases; the first that fails is a `ConformanceError`.

    >>> from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
    >>> conform_to_promises(MetadataMJoin, cases=3).cases
    3
    """
    began = time.perf_counter()
    reports = list(_reports(operator_class, range(seed, seed + cases)))
    return PromisedSummary(
        cases=len(reports),
        spilled=sum(each.report.spilled for each in reports),
        reactive=sum(each.report.reactive for each in reports),
        cleaned_up=sum(each.report.cleaned_up for each in reports),
        restored=sum(each.report.restored > 0 for each in reports),
        purged=sum(each.purged > 0 for each in reports),
        dropped=sum(each.dropped > 0 for each in reports),
        handed_on=sum(each.handed_on > 0 for each in reports),
        looks=sum(each.looks > 0 for each in reports),
        broken=sum(each.broken > 0 for each in reports),
        seconds=time.perf_counter() - began,
    )


def _reports(operator_class: type[Any], seeds: range) -> Iterator[PromisedReport]:
    for seed in seeds:
        rng = np.random.default_rng([seed, 0x0B7])
        options = random_options(rng)
        case = make_promised_case(seed, operator_class)
        if seed % 5 == 4:
            yield run_promised(operator_class, broken(case, rng), **options, broken="count")
            continue
        match seed % 20:
            case 0:
                check_refusals(operator_class, case, **options)
                check_determinism(operator_class, case, **options)
            case 5 | 10 | 15:
                check_snapshot(operator_class, case, **options)
            case 7:
                check_what_must_not_matter(operator_class, case, options, rng)
        yield run_promised(operator_class, case, **options)


def check_broken_promise(operator_class: type[Any], seed: int) -> None:
    """Of a case whose rows break their promises: the first row that does so, and no other, is an error."""
    rng = np.random.default_rng([seed, 0xB70])
    case = broken(make_promised_case(seed, operator_class), rng)
    counted = run_promised(operator_class, case, broken="count").broken
    try:
        run_case(operator_class, case, broken="error")
    except ConformanceError as error:
        if not isinstance(error.__cause__, PromiseError) or not counted:
            raise
    else:
        if counted:
            raise ConformanceError(f"{operator_class.__name__}: took {counted} rows that should not have come\n{case}")


def check_what_must_not_matter(
    operator_class: type[Any], case: PromisedCase, options: dict[str, Any], rng: np.random.Generator
) -> None:
    """Neither another script nor more memory nor the promises themselves change the multiset of rows."""
    rows = run_case(operator_class, case, **options).rows
    changed = {
        "chunking, interleaving and fuel": rescripted(case, rng),
        "memory": replace(case, memory=case.least + (64 << 20)),
        "making no promises": unpromised(case, rng),
    }
    for change, other in changed.items():
        if run_case(operator_class, other, **options).rows != rows:
            raise ConformanceError(f"{operator_class.__name__}: {change} changed the results of\n{case}")
