"""Conformance by the thousands: every operator through every suite that applies to it, on every way.

make conformance ARGS="--cases 2000 --jobs 2"                              everything
make conformance ARGS="--only confluence/bands --cases 500 --seed 7000"    one suite of one operator
make conformance ARGS="--list"                                             what there is

Each case is compared with the oracle. What is counted of the others in the table are cases in which something
happened, so that a path that was never taken shows. The exit code is the number of failures, at most 100.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatchcase

from conformance.trials import BLOCK, Tally, Trials, again, by_name, play_named

COLUMNS: dict[str, tuple[str, ...]] = {
    "results": ("results",),
    "spilled": ("spilled", "read", "rows on disk"),
    "restored": ("restored",),
    "flush": ("settled before a flush",),
    "silence": ("settled in a silence", "reactive"),
    "delay": ("settled by delay",),
    "overload": ("flushed owing", "rows shed"),
    "batch": ("settled at the end of a batch",),
    "end": ("settled at the end", "cleaned_up"),
}
"""What is in the table, and what each column counts: of several names the first that happened."""
_SAID_EVERY = 15.0
"""Seconds."""
Chosen = tuple[Trials, str | None]
"""Trials, and the way that all cases are to go."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; returns the number of failures, at most 100."""
    parser = argparse.ArgumentParser(
        prog="make conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000, help="of each operator and suite, spread over its ways")
    parser.add_argument("--seed", type=int, default=0, help="the first; every case has its own")
    parser.add_argument("--only", action="append", default=[], help="operator, operator/suite or operator/suite/way")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--events", action="store_true", help="tell all that operators say they did")
    parser.add_argument("--list", action="store_true", help="show what there is, and run nothing")
    args = parser.parse_args(arguments)
    chosen = _chosen(args.only)
    if not chosen:
        parser.error(f"nothing is called {', '.join(args.only)}; see --list")
    if args.list:
        for trials, way in chosen:
            print(f"{trials.name}: {way or ', '.join(trials.ways)}")
        return 0
    try:
        return _Run(args, chosen).report()
    except BrokenProcessPool:
        print("FAILED: a process died; --jobs 1 with the suites that are not in the table yet shows in which case")
        return 1


def _chosen(only: Sequence[str]) -> list[Chosen]:
    """Those whose names fit."""
    if not only:
        return [(trials, None) for trials in by_name().values()]
    found: list[Chosen] = []
    for trials in by_name().values():
        if any(fnmatchcase(name, each) for each in only for name in (trials.operator, trials.name)):
            found.append((trials, None))
            continue
        ways = [way for way in trials.ways if any(fnmatchcase(f"{trials.name}/{way}", each) for each in only)]
        found += [(trials, way) for way in ways]
    return found


class _Run:
    """All that was chosen, in blocks of seeds; each row of the table is printed as soon as it is whole."""

    def __init__(self, args: argparse.Namespace, chosen: list[Chosen]) -> None:
        self._args, self._chosen = args, chosen
        self._failures = 0
        self._cases: Counter[str] = Counter()
        self._began = self._said = time.monotonic()

    def report(self) -> int:
        """The table, and how many failures there were."""
        print(_line("operator", "suite", "cases", *COLUMNS, "failed", "ms/case"), flush=True)
        seconds = 0.0
        for (trials, way), tallies in zip(self._chosen, self._played(), strict=False):
            tally = Tally()
            for each in tallies:
                tally.add(each)
                self._progress(trials, tally)
                if tally.failed and not self._args.keep_going:
                    break
            seconds += tally.seconds
            self._show(trials, way, tally)
            if self._failures and not self._args.keep_going:
                break
        took = time.monotonic() - self._began
        print(
            f"{self._cases['cases']:,} cases, {self._cases['results']:,} results, {self._failures} failed; seeds from "
            f"{self._args.seed} on; {took:.0f} s, {seconds:.0f} s of work in {self._args.jobs} processes"
        )
        return min(self._failures, 100)

    def _played(self) -> Iterator[Iterator[Tally]]:
        blocks = [
            (trials.name, way, seeds, not self._args.keep_going)
            for trials, way in self._chosen
            for seeds in _blocks(self._args.seed, self._args.cases)
        ]
        each = len(blocks) // len(self._chosen)
        if self._args.jobs == 1:
            for number in range(len(self._chosen)):
                yield (play_named(*block) for block in blocks[number * each : (number + 1) * each])
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self._args.jobs, context)
        try:
            futures = [pool.submit(play_named, *block) for block in blocks]
            for number in range(len(self._chosen)):
                some = slice(number * each, (number + 1) * each)
                yield (future.result() for future in futures[some])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _progress(self, trials: Trials, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._said < _SAID_EVERY:
            return
        self._said = now
        done = tally.total["cases"]
        sys.stderr.write(
            f"{now - self._began:.0f} s: {trials.name}, {done} of {self._args.cases} cases, "
            f"{done / max(tally.seconds, 1e-9):.1f} a second and process\n"
        )

    def _show(self, trials: Trials, way: str | None, tally: Tally) -> None:
        total = tally.total
        unproven = list(tally.unproven(trials))
        self._failures += len(tally.failed) + len(unproven)
        self._cases += total
        figures = [next((total[name] for name in names if total[name]), 0) for names in COLUMNS.values()]
        suite = trials.suite if way is None else f"{trials.suite}, {way}"
        rate = f"{1000 * tally.seconds / max(1, total['cases']):.0f}"
        failed = len(tally.failed) + len(unproven)
        print(_line(trials.operator, suite, total["cases"], *figures, failed, rate), flush=True)
        if self._args.events:
            told = (f"{count} {name}" for name, count in sorted(total.items()) if name not in ("cases", "results"))
            print(f"    {', '.join(told)}", flush=True)
        for name, seed, said in tally.failed:
            indented = "\n    ".join(said.splitlines())
            print(f"  FAILED {trials.name}/{name} {seed}: {indented}\n    {again(trials, name, seed)}", flush=True)
        for sentence in unproven:
            print(f"  UNPROVEN {sentence}", flush=True)


def _blocks(first: int, cases: int) -> list[range]:
    """Seeds in portions that are about as long."""
    return [range(start, min(start + BLOCK, first + cases)) for start in range(first, first + cases, BLOCK)]


def _line(operator: object, suite: object, *figures: object) -> str:
    return f"{operator!s:<17} {suite!s:<26} " + " ".join(f"{figure!s:>8}" for figure in figures)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Processes that are still at a block are not waited for: nobody asks for what they find.
    os._exit(code)
