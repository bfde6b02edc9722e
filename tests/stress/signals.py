"""`make signals`: stop joins on the command line at random moments, and look at what each leaves behind.

make signals                                        500 stops, two at a time
make signals ARGS="--count 50 --seed 7"             some of them, again
make signals ARGS="--load 2 --jobs 4"               on a machine that has other things to do

A stop is good if the process says that it was stopped and ends with the signal's code, or if it was over before; and if
it leaves neither spilled files nor unfinished output. A signal that comes before the command has asked for signals, or
after it has done with them, does what the system does with it: that is counted apart, and must leave nothing either.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAYS = "watersmeet: stopped\n"
GOOD = {"stopped", "stopped late", "was over", "before or after our part"}
PATIENCE = 60.0
"""Seconds after which a process that was told to stop counts as stuck."""

LAUNCH = """
import faulthandler, itertools, signal, sys, time
faulthandler.register(signal.SIGUSR1)
from watersmeet.cli import main

def rows(pause):
    for i in itertools.count():
        yield {"id": i % 500, "at": i, "v": i}
        if i >= 100:
            time.sleep(pause)

PAUSES = {"silent": 600, "slow": 0.002}
build_parser = main.build_parser

def with_slow_sources():  # called once signals were asked for: what is imported before, Python stops in its own way
    from watersmeet.api import run as opening
    as_source = opening.as_source
    opening.as_source = lambda data, name: as_source(rows(PAUSES[data]) if data in PAUSES else data, name)
    return build_parser()

main.build_parser = with_slow_sources
main.main()
"""

COMMANDS = {
    "join, silent": ["join", "silent", "b.csv", "--on", "id"],
    "join, slow": ["join", "slow", "b.csv", "--on", "id", "--memory", "2MiB"],
    "join, busy": ["join", "same.parquet", "same.parquet", "--on", "id"],
    "join, short": ["join", "a.parquet", "b.csv", "--on", "id"],
    "multijoin, silent": [
        "multijoin",
        "s=silent",
        "b=b.csv",
        "a=a.parquet",
        "--on",
        "s.id = b.id",
        "--on",
        "a.id = b.id",
    ],
    "window-join, slow": ["window-join", "slow", "a.parquet", "--on", "id", "--time", "at", "--window", "100"],
}

WRITES = ("--quiet", "--spill", "spill", "-o", "out.parquet")
"""What all of them are told."""


@dataclass(frozen=True)
class Stop:
    """One process, and the moment of its signal as a share of the time such a process takes to get going."""

    index: int
    kind: str
    number: signal.Signals
    moment: float


def stops(count: int, seed: int) -> list[Stop]:
    """What a seed draws."""
    draw = random.Random(seed)
    return [
        Stop(index, draw.choice(list(COMMANDS)), draw.choice(SIGNALS), draw.uniform(0.0, 1.5)) for index in range(count)
    ]


def write_inputs(here: Path) -> None:
    """The files that the commands join."""
    pq.write_table(pa.table({"id": range(500), "at": range(500), "w": range(500)}), here / "a.parquet")
    pyarrow.csv.write_csv(pa.table({"id": range(250, 750), "key": range(500)}), here / "b.csv")
    pq.write_table(pa.table({"id": [1] * 100_000}), here / "same.parquet")


@contextmanager
def folder(inputs: Path) -> Iterator[Path]:
    """A folder of its own for a command, where it finds its inputs, spills and writes."""
    with tempfile.TemporaryDirectory(dir=inputs) as name:
        here = Path(name)
        (here / "spill").mkdir()
        (here / "temporary").mkdir()
        for file in inputs.iterdir():
            if file.is_file():
                (here / file.name).symlink_to(file)
        yield here


@contextmanager
def started(inputs: Path, kind: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A command in a folder of its own."""
    with folder(inputs) as here:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *COMMANDS[kind], *WRITES],
            cwd=here,
            env={**os.environ, "TMPDIR": str(here / "temporary")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process, here
        finally:
            process.kill()
            process.communicate()


def left_behind(here: Path) -> list[str]:
    """What a run should not leave."""
    found = [*(here / "spill").iterdir(), *(here / "temporary").iterdir(), *here.glob(".*")]
    return [str(path.relative_to(here)) for path in found]


def time_to_get_going(inputs: Path, kind: str) -> float:
    """Seconds until a process has opened its output and a place to spill, and a little more to work in."""
    begun = time.monotonic()
    with started(inputs, kind) as (process, here):
        while process.poll() is None and not (list(here.glob(".out*")) and list((here / "spill").iterdir())):
            time.sleep(0.01)
        return time.monotonic() - begun + 0.3


def outcome(inputs: Path, stop: Stop, going: float) -> tuple[str, str]:
    """How one stop ended, in a word, and what was wrong if anything was."""
    with started(inputs, stop.kind) as (process, here):
        time.sleep(stop.moment * going)
        process.send_signal(stop.number)
        begun = time.monotonic()
        try:
            output, error = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR1)  # says where
            time.sleep(2)
            process.kill()
            return "stuck", f"still there after {PATIENCE} s:\n{process.communicate()[1]}"
        took = time.monotonic() - begun
        code, left = process.returncode, left_behind(here)
    if left:
        return "left something", f"{code}: {', '.join(left)}"
    if (code, output, error) == (128 + stop.number, "", SAYS):
        return ("stopped", "") if took < 5 else ("stopped late", f"after {took:.1f} s")
    if (code, output, error) == (0, "", ""):
        return "was over", ""
    interrupted = stop.number == signal.SIGINT and "KeyboardInterrupt" in error
    if (code == -stop.number and not error) or (code in (1, -signal.SIGINT) and interrupted):
        return "before or after our part", ""
    return f"ended with {code}", f"{output!r}, {error[-600:]!r}"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Others that want the processor."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def carry_out(args: argparse.Namespace, inputs: Path) -> Generator[tuple[Stop, float, str, str], None, None]:
    """Each stop in turn, with the second of its signal, and how it ended."""
    with busy_loops(args.load), ThreadPoolExecutor(args.jobs) as pool:
        going = {}
        for kind in COMMANDS:
            time_to_get_going(inputs, kind)  # compiles what is not in the cache
            going[kind] = time_to_get_going(inputs, kind)
        todo = stops(args.count, args.seed)
        try:
            for stop, (word, why) in zip(
                todo, pool.map(lambda s: outcome(inputs, s, going[s.kind]), todo), strict=True
            ):
                yield stop, stop.moment * going[stop.kind], word, why
        finally:
            pool.shutdown(cancel_futures=True)


def run(args: argparse.Namespace) -> int:
    """Carry out all stops, or those until someone interrupts or ends this; 1 if one of them was bad."""
    for number in (signal.SIGINT, signal.SIGTERM):  # busy loops would stay, and in the background SIGINT is ignored
        signal.signal(number, signal.default_int_handler)
    inputs = Path(tempfile.mkdtemp(prefix="signals-"))
    counts: Counter[str] = Counter()
    print(f"{args.count} stops, {args.jobs} at a time beside {args.load} busy loops, seed {args.seed}", flush=True)
    try:
        write_inputs(inputs)
        with suppress(KeyboardInterrupt), closing(carry_out(args, inputs)) as results:
            for stop, at, word, why in results:
                counts[word] += 1
                if why:
                    print(f"{stop.index}: {stop.kind}, {stop.number.name} after {at:.2f} s: {word}, {why}", flush=True)
    finally:
        shutil.rmtree(inputs)
    print(f"seed {args.seed}, {counts.total()} stops: " + ", ".join(f"{n} {word}" for word, n in counts.most_common()))
    return int(any(word not in GOOD for word in counts))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="stops (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default %(default)s)")
    parser.add_argument("--load", type=int, default=0, help="busy loops beside them (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the kinds and the moments")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
