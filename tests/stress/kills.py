"""`make kills`: kill commands at random moments, and look at what each leaves behind.

make kills                                          1,000 kills
make kills ARGS="--count 50 --seed 7"               some of them, again

SIGKILL cannot be answered: what a process was at stays as it is. A kill is good if the output is whole, is what it was
before, or is not there; if a relation is whole, in its old version or its new one; and if the same command, run again,
gives all that it should and leaves nothing, of its own or of what the dead has spilled. Commands run in processes that
are forked off, which have all modules loaded: so kills find them at work, and not at importing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.process
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm
from stress.signals import WRITES, folder, left_behind
from watersmeet.checks.canonical import canonical_rows
from watersmeet.cli import main as command_line

ROWS = 12_000
OLD = pa.table({"old": [1, 2, 3]})
"""What the output is before, at times."""
PATIENCE = 300.0

_JOIN = ("left.parquet", "right.parquet", "--on", "id", "--memory", "1MiB")
COMMANDS: dict[str, Sequence[str]] = {
    "join": ["join", *_JOIN],
    "join, full": ["join", *_JOIN, "--how", "full"],
    "window-join": ["window-join", *_JOIN, "--time", "at", "--window", "500"],
    "asof-join": ["asof-join", "left.parquet", "right.parquet", "--on", "id", "--time", "at", "--memory", "1MiB"],
    "multijoin": ["multijoin", "r=left.parquet", "s=right.parquet", "t=third.parquet", "--on", "r.id = s.id",
                  "--on", "s.id = t.id", "--memory", "2MiB"],
    "lookup-join": ["lookup-join", "left.parquet", "right.parquet", "--on", "id", "--memory", "4MiB"],
}  # fmt: skip


@dataclass(frozen=True)
class Kill:
    """One process, and its moment as a share of the time that such a process takes."""

    index: int
    kind: str
    moment: float
    replaces: bool
    """Whether there was an output, or a relation, before."""


def kills(count: int, seed: int, kinds: Sequence[str] = ()) -> Iterator[Kill]:
    """What a seed draws, of all kinds unless some are named."""
    draw = random.Random(seed)
    for index in range(count):
        yield Kill(index, draw.choice(kinds or list(ACTIONS)), draw.uniform(0.0, 0.95), draw.random() < 0.5)


def write_inputs(where: Path) -> None:
    """The files that the commands join."""
    for side, step in (("left", 7), ("right", 11), ("third", 13)):
        ids = [i * step % 6_007 for i in range(ROWS)]
        table = pa.table({"id": ids, "at": range(ROWS), side: [f"{side} {i} " * 3 for i in range(ROWS)]})
        pq.write_table(table, where / f"{side}.parquet")


def rows_of(table: pa.Table) -> Counter[object]:
    """As a multiset."""
    return Counter(row for batch in table.to_batches() for row in canonical_rows(batch))


def _build(here: Path) -> None:
    table = pq.read_table(here / "left.parquet")
    wm.Relation.build(table, "id", here / "relation", memory="1MiB", segment=8192, spill=here / "spill", replace=True)


def _upsert(here: Path) -> None:
    table = pq.read_table(here / "right.parquet").rename_columns(["id", "at", "left"])
    wm.Relation.open(here / "relation").upsert(table)


def _command(words: Sequence[str]) -> Callable[[Path], None]:
    def run(here: Path) -> None:
        code = command_line.run([*words, *WRITES])
        if code:
            raise RuntimeError(f"ended with {code}")

    return run


ACTIONS: dict[str, Callable[[Path], None]] = {
    **{name: _command(words) for name, words in COMMANDS.items()},
    "relation, build": _build,
    "relation, upsert": _upsert,
}


def work(kind: str, here: Path) -> None:
    """What a process does that is to be killed."""
    os.chdir(here)
    tempfile.tempdir = str(here / "temporary")
    with (here / "temporary.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    ACTIONS[kind](here)


def forked(kind: str, here: Path) -> multiprocessing.process.BaseProcess:
    """Such a process, off one that has done nothing but import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stress.kills"])
    process = context.Process(target=work, args=(kind, here))
    process.start()
    return process


def ended(process: multiprocessing.process.BaseProcess) -> int:
    """How a process ended; negative: the signal."""
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"not over after {PATIENCE} s")
    return process.exitcode


class Killing:
    """The inputs, what each action gives when nobody kills it, and how long it takes."""

    def __init__(self, inputs: Path, kinds: Sequence[str] = tuple(ACTIONS)) -> None:
        self._inputs = inputs
        write_inputs(inputs)
        self._whole: dict[str, Counter[object]] = {}
        self._before: Counter[object] = Counter()
        self._takes: dict[str, float] = {}
        for kind in kinds:
            for _ in range(2):  # the first compiles what is not in the cache
                with folder(inputs) as here:
                    self._prepare(kind, here, kind == "relation, upsert")
                    begun = time.monotonic()
                    code = ended(forked(kind, here))
                    self._takes[kind] = time.monotonic() - begun
                    assert code == 0, (here / "temporary.log").read_text()
                    self._whole[kind] = self._found(kind, here) or Counter()
                    assert left_behind(here) == [], kind
        self._before = self._whole.get("relation, build", Counter())
        assert all(self._whole.values())

    def _prepare(self, kind: str, here: Path, replaces: bool) -> None:
        if kind.startswith("relation"):
            if kind.endswith("upsert") or replaces:
                _build(here)
        elif replaces:
            pq.write_table(OLD, here / "out.parquet")

    def _found(self, kind: str, here: Path) -> Counter[object] | None:
        """What there is; None if nothing is."""
        if not kind.startswith("relation"):
            return rows_of(pq.read_table(here / "out.parquet")) if (here / "out.parquet").exists() else None
        if not wm.Relation.is_at(here / "relation"):
            return None
        relation = wm.Relation.open(here / "relation")
        return rows_of(pa.Table.from_batches(relation.batches(), relation.schema))

    def outcome(self, kill: Kill) -> tuple[str, str]:
        """How one kill ended, in a word, and what is wrong if anything is."""
        with folder(self._inputs) as here:
            self._prepare(kill.kind, here, kill.replaces)
            process = forked(kill.kind, here)
            time.sleep(kill.moment * self._takes[kill.kind])
            process.kill()
            code = ended(process)
            if code not in (0, -signal.SIGKILL):
                return "failed", (here / "temporary.log").read_text()[-600:]
            try:
                return self._judged(kill, code, here)
            except Exception as error:
                return "BAD", f"{type(error).__name__}: {error}"

    def _judged(self, kill: Kill, code: int, here: Path) -> tuple[str, str]:
        found, whole = self._found(kill.kind, here), self._whole[kill.kind]
        old = None
        if kill.kind.startswith("relation"):
            old = self._before if kill.kind.endswith("upsert") or kill.replaces else None
        elif kill.replaces:
            old = rows_of(OLD)
        if found not in (whole, old) or (code == 0 and found != whole):
            return "BAD", f"there are {'no' if found is None else found.total()} rows"
        spilled = len(list((here / "spill").iterdir())) + len(list((here / "temporary").iterdir()))
        if not kill.kind.startswith("relation") or old is not None or found is not None:
            again = ended(forked(kill.kind, here))
        else:  # there is nothing to change yet
            again = ended(forked("relation, build", here))
        if again:
            return "BAD", f"run again, it ends with {again}: {(here / 'temporary.log').read_text()[-600:]}"
        if self._found(kill.kind, here) != whole and kill.kind != "relation, upsert":
            return "BAD", "run again, it gives something else"
        left = [name for name in left_behind(here) if not name.endswith(".part")]
        if left:
            return "BAD", f"not swept by the next run: {', '.join(left)}"
        # A dead writer's unfinished files, too.
        if [path for path in here.glob("relation/.*") if path.name.startswith((".r", ".v"))]:
            return "BAD", "unfinished files of a relation stay"
        if code == 0:
            return "was over", ""
        return (
            "whole" if found == whole and found != old else "as before, spill swept" if spilled else "as before"
        ), ""


def run(args: argparse.Namespace) -> int:
    """Carry out all kills; 1 if one of them was bad."""
    inputs = Path(tempfile.mkdtemp(prefix="kills-"))
    counts: Counter[tuple[str, str]] = Counter()
    print(f"{args.count} kills, seed {args.seed}", flush=True)
    until = time.monotonic() + 60 * args.minutes
    try:
        killing = Killing(inputs)
        for kill in kills(args.count, args.seed):
            word, why = killing.outcome(kill)
            counts[kill.kind, word] += 1
            if why:
                print(f"{kill.index}: {kill.kind}, at {kill.moment:.2f}: {word}, {why}", flush=True)
            if time.monotonic() > until:
                break
    finally:
        shutil.rmtree(inputs)
    for kind in ACTIONS:
        told = ", ".join(f"{n} {word}" for (each, word), n in sorted(counts.items()) if each == kind)
        print(f"{kind:<18}{told}")
    print(f"seed {args.seed}, {counts.total()} kills, {sum(n for (_, word), n in counts.items() if word == 'BAD')} bad")
    return int(any(word in ("BAD", "failed") for _, word in counts))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000, help="kills (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=600, help="at most so long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the kinds and the moments")
    return run(parser.parse_args())


if __name__ == "__main__":
    from stress import kills as imported  # by the name by which processes that are forked off know it

    sys.exit(imported.main())
