"""Runs seeds, one after the other; of the first that fails, shows the least of it and one line that runs it again."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from simulate.seeds import Outcome, play, shrunk
from simulate.tasks import STREAMS
from simulate.world import Trial


def main() -> int:
    """The command line; returns the number of seeds that failed, at most 100."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone, with the whole error")
    parser.add_argument("--drop", type=_numbers, default=frozenset(), help="steps that do not happen: 3,7")
    parser.add_argument("--spare", type=_numbers, default=frozenset(), help="faults that do not happen: 0,2")
    parser.add_argument("--rows", type=float, default=1.0, help="the share of rows that come")
    parser.add_argument("--fuel", type=int, default=1, help="times the fuel of a poll")
    parser.add_argument("--stream", choices=STREAMS, default="", help="queries on Spark of this kind alone")
    parser.add_argument("--keep-going", action="store_true", help="go on after a seed that fails, and shrink none")
    args = parser.parse_args()
    if args.seed is not None:
        return _one(Trial(args.seed, args.drop, args.spare, args.rows, args.fuel, args.stream))
    began, failed = time.monotonic(), 0
    steps: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    for seed in range(args.first, args.first + args.seeds):
        outcome = play(Trial(seed, stream=args.stream))
        steps += outcome.steps
        injected += outcome.injected
        if outcome.error is not None:
            failed += 1
            print(outcome, flush=True)
            if not args.keep_going:
                least = shrunk(outcome)
                print(f"least: {least}\n{least.trial.again}")
                return 1
        if (seed + 1 - args.first) % 500 == 0:
            print(f"{seed + 1 - args.first} seeds, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(summary(steps, injected))
    print(f"{args.seeds} seeds from {args.first} on, {failed} failed, {time.monotonic() - began:.0f} s")
    return min(failed, 100)


def summary(steps: Counter[str], injected: Counter[str]) -> str:
    """What happened how often."""
    lines = [f"  {count:>9,}  {name}" for name, count in sorted(steps.items())]
    faults = [f"  {count:>9,}  {name}" for name, count in sorted(injected.items())]
    return "\n".join(["what happened:", *lines, "faults:", *faults])


def _one(trial: Trial) -> int:
    outcome: Outcome = play(trial)
    print(summary(outcome.steps, outcome.injected))
    if outcome.error is None:
        print(f"seed {trial.seed} is fine")
        return 0
    traceback.print_exception(outcome.error)
    print(outcome)
    return 1


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
