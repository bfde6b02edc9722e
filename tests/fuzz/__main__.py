"""`make fuzz`: feed every parser with what it does not expect, for as long as you like.

make fuzz                                        all parsers, for ten minutes
make fuzz ARGS="--minutes 60"                    for an hour
make fuzz ARGS="--only XML --seed 7"             one of them, with the inputs that a seed draws

Each parser is asked in a process of its own for some seconds, then the next, and again from the first with another
seed: a crash of the process is told like any other fault. What failed is shrunk, and printed with its seed.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import subprocess
import sys
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from fuzz.guard import SECONDS, guarded
from fuzz.targets import TARGETS, Target

ENVIRONMENT = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Other allocators reserve addresses by the gigabyte, and those are what is counted."""
AT_ONCE = 250
"""Inputs that are drawn before the next parser has its turn."""


def feed(target: Target, inputs: int, seed: int | None = None) -> int:
    """Ask a parser this often; returns how often it was asked. What fails is raised, as small as it can be."""
    asked = 0
    how = settings(
        deadline=None,
        database=None,
        derandomize=seed is None,
        max_examples=inputs,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=True,
    )

    @how
    @given(target.inputs)
    def ask(given_input: object) -> None:
        nonlocal asked
        asked += 1
        with guarded(target.room):
            target.ask(given_input)

    (ask if seed is None else seeded(seed)(ask))()
    return asked


def child(name: str, seed: int) -> int:
    """One turn of one parser."""
    faulthandler.enable()
    target = next(each for each in TARGETS if each.name == name)
    print(feed(target, AT_ONCE, seed))
    return 0


def run(args: argparse.Namespace) -> int:
    """Turn after turn, until the time is over; 1 if anything failed."""
    draw = random.Random(args.seed)
    targets = [each for each in TARGETS if args.only is None or args.only.lower() in each.name.lower()]
    if not targets:
        print(f"no parser is called {args.only}; there are {', '.join(each.name for each in TARGETS)}")
        return 2
    until = time.monotonic() + 60 * args.minutes
    asked, faults = Counter[str](), Counter[str]()
    print(f"{len(targets)} parsers, {args.minutes} minutes, seed {args.seed}", flush=True)
    while time.monotonic() < until:
        for target in targets:
            seed = draw.randrange(1 << 30)
            line = [sys.executable, "-m", "fuzz", f"--turn={target.name}", "--seed", str(seed)]
            try:
                done = subprocess.run(line, capture_output=True, text=True, timeout=AT_ONCE * SECONDS, env=ENVIRONMENT)
                code, out, error = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                code, out, error = -1, "", f"still at it after {late.timeout} seconds"
            if code:
                faults[target.name] += 1
                print(f"{target.name}, seed {seed}: ended with {code}\n{error[-3000:]}", flush=True)
            else:
                asked[target.name] += int(out)
    print(f"seed {args.seed}: {asked.total():,} inputs, {faults.total()} faults")
    for target in targets:
        print(f"  {target.name:<32} {asked[target.name]:>10,} inputs {faults[target.name]:>4} faults")
    return int(bool(faults))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long (default %(default)s)")
    parser.add_argument("--only", help="parsers whose name has this in it")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the inputs")
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    args = parser.parse_args()
    return run(args) if args.turn is None else child(args.turn, args.seed)


if __name__ == "__main__":
    sys.exit(main())
