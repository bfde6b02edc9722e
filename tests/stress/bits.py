"""`make bits`: flip single bits of what we write, one at a time, and look at what comes of each.

make bits                                          10,000 flips
make bits ARGS="--count 500 --seed 7"              some of them, again
make bits ARGS="--only relations"                  of one kind of file

A bit is flipped after a file was written and before it is first read, as a disk would do it. The flip is good if an
error names the file, or if it makes no difference: all results are there, each as often as it should be. Some of the
flips are anywhere in a file, others in its smallest parts and near its ends, where headers, indexes of pages and
checksums lie. Two tables tell what came of them: by whose file it was, and by what was flipped in it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from stress.flipped_relations import relations
from stress.flipped_runs import runs
from stress.flipped_spill import spilled
from stress.flipped_states import states
from stress.flips import BAD, DETECTED, HARMLESS, Flip

SOURCES: dict[str, Callable[[random.Random], Iterator[Flip]]] = {
    "spilled": spilled,
    "runs": runs,
    "relations": relations,
    "states": states,
}
"""Where flips come from: operators and their snapshots, whole runs of verbs, relations, state on Spark."""


def flips(count: int, seed: int, only: str | None = None) -> Iterator[Flip]:
    """What a seed draws, from all sources in turn; more of them from operators, and from state on Spark."""
    chosen = [SOURCES[only]] if only else [spilled, states, relations, spilled, states, runs]
    made: list[Iterator[Flip]] = []
    for number, source in enumerate(chosen):
        made.append(source(random.Random(seed * 1_000 + number)))
    for number in range(count):
        yield next(made[number % len(made)])


def told(counts: Counter[tuple[str, str]], title: str) -> None:
    """One of the tables."""
    print(f"{title:<48}{'flipped':>9}{DETECTED:>10}{HARMLESS:>10}{BAD:>6}")
    for kind in [*sorted({kind for kind, _ in counts}), "all"]:
        of_kind = Counter[str]()
        for (each, outcome), n in counts.items():
            of_kind[outcome] += n if kind in (each, "all") else 0
        numbers = [of_kind[outcome] for outcome in (DETECTED, HARMLESS, BAD)]
        print(f"{kind:<48}{sum(numbers):>9,}{numbers[0]:>10,}{numbers[1]:>10,}{numbers[2]:>6,}")


def run(args: argparse.Namespace) -> int:
    """Flip, and print the tables; 1 if a flip was neither found nor harmless."""
    print(f"{args.count} flips, seed {args.seed}", flush=True)
    by_kind, by_part = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    until = time.monotonic() + 60 * args.minutes
    for number, flip in enumerate(flips(args.count, args.seed, args.only)):
        by_kind[flip.kind, flip.outcome] += 1
        by_part[flip.part, flip.outcome] += 1
        if flip.outcome == BAD:
            print(f"{number}: {flip.kind}, {flip.part}: {flip.told}", flush=True)
        if time.monotonic() > until:
            break
    told(by_kind, "kind of file")
    print()
    told(by_part, "part of it")
    print(f"seed {args.seed}")
    return int(any(outcome == BAD for _, outcome in by_kind))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="flips (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="at most so long (default %(default)s)")
    parser.add_argument("--only", choices=SOURCES, help="flips in these alone")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20), help="of the files and the bits")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
