"""`make bits`: flip single bits of what we write, one at a time, and look at what comes of each.

make bits                                          10,000 flips
make bits ARGS="--count 500 --seed 7"              some of them, again
make bits ARGS="--only relations"                  of one kind of file

A bit is flipped after a file was written and before it is first read, as a disk would do it. The flip is good if an
error names the file, or if it makes no difference: all results are there, each as often as it should be. Half of the
flips are anywhere in a file, the others near its ends, where headers, directories and checksums lie.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import watersmeet as wm
from simulate.stores import FaultyStore
from watersmeet import planner
from watersmeet.checks import cases, multi_cases, windows
from watersmeet.checks.asof import make_asof_case
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.multi_windows import make_multi_window_case
from watersmeet.checks.run import ConformanceError, run_case
from watersmeet.core.errors import BudgetError, WatersmeetError
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.store import MemoryStore

DETECTED, HARMLESS, BAD = "detected", "harmless", "BAD"
ENDS = 400
"""Bytes at both ends of a file, in which half of the flips are."""
_ROWS, _LAST = 60, 3
"""Of a join on Spark: rows of an input, and the batch that reads what was altered."""


@dataclass(frozen=True)
class Flip:
    """What came of one."""

    kind: str
    outcome: str
    told: str


def place(draw: random.Random, size: int) -> int:
    """Which bit."""
    anywhere, close = draw.randrange(size), draw.randrange(min(ENDS, size))
    at = draw.choice([anywhere, anywhere, close, size - 1 - close])
    return 8 * at + draw.randrange(8)


def flipped(content: bytes, bit: int) -> bytes:
    """With one bit another."""
    altered = bytearray(content)
    altered[bit >> 3] ^= 1 << (bit & 7)
    return bytes(altered)


def judged(error: BaseException | None, name: str) -> tuple[str, str]:
    """What an error, or none, says of a flip in a file of this name."""
    if error is None:
        return HARMLESS, ""
    while isinstance(error, ConformanceError) and error.__cause__ is not None:
        error = error.__cause__
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, WatersmeetError):
        return (DETECTED, said) if name in str(error) else (BAD, f"{name} is not named: {said}")
    return BAD, f"{name}: {said}"


# --- what joins spill, and their snapshots ---


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
        self.content = b""
        self._draw = draw or random.Random(0)
        create = inner.create
        inner.create = lambda name: _Noted(create(name), lambda: self.published.append(name))

    def _flip(self, content: bytes) -> bytes:
        self.content = content
        return flipped(content, place(self._draw, len(content)))


def kind_of(name: str, content: bytes) -> str:
    """What is told apart in the table."""
    if content.startswith(b"watersmeet sorted run"):
        return "runs"
    if name.startswith("snapshot"):
        return "snapshots"
    return "segments" if content.startswith(b"watersmeet segment") else "bitmaps"


_JOINS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("ALGORITHMS", "confluence", cases.make_kind_case), ("ALGORITHMS", "confluence", cases.make_case),
    ("ALGORITHMS", "xjoin", cases.make_case), ("ALGORITHMS", "hmj", cases.make_case),
    ("ALGORITHMS", "rpj", cases.make_case), ("ALGORITHMS", "diner", cases.make_case),
    ("WINDOW_ALGORITHMS", "confluence", windows.make_window_case),
    ("WINDOW_ALGORITHMS", "rpwj", windows.make_window_case), ("WINDOW_ALGORITHMS", "ewj", windows.make_window_case),
    ("MULTIWAY", "confluence", multi_cases.make_multi_case), ("MULTIWAY", "mjoin", multi_cases.make_multi_case),
    ("WINDOWED_MULTIWAY", "confluence", make_multi_window_case), ("ASOF", "asof", make_asof_case),
)  # fmt: skip


def spilled(draw: random.Random) -> Iterator[Flip]:
    """Flips in what one join after the other spills, a few in each."""
    while True:
        listed, name, make = draw.choice(_JOINS)
        kind: type[Any] = getattr(planner, listed)[name]
        case = make(draw.randrange(1 << 20), kind)
        if draw.random() < 0.5 and hasattr(case, "restores"):
            case = replace(case, restores=tuple(sorted(draw.sample(range(3, 40), 4))))
        whole = Flipping(MemoryStore())
        error = _error(kind, case, whole)
        if isinstance(error, BudgetError) or not whole.calls["commit"]:
            continue
        assert error is None, f"{name}, {case.maker}({case.seed}) fails by itself: {error}"
        for _ in range(4):
            with tempfile.TemporaryDirectory() as directory:
                inner = FileStore(directory) if draw.random() < 0.5 else MemoryStore()
                store = Flipping(inner, 1 + draw.randrange(whole.calls["commit"]), draw)
                error = _error(kind, case, store)
                inner.close()
            if store.failures:
                file = store.published[store.fail_at - 1] if len(store.published) >= store.fail_at else "?"
                outcome, told = judged(error, repr(file))
                yield Flip(kind_of(file, store.content), outcome, f"{name}, {case.maker}({case.seed}): {told}")


def _error(kind: type[Any], case: Any, store: Any) -> BaseException | None:
    try:
        run_case(kind, case, store)
    except ConformanceError as error:
        return error.__cause__
    return None


# --- relations ---


@cache
def _relation() -> Path:
    """A relation with some versions."""
    where = Path(tempfile.mkdtemp(prefix="bits-")) / "relation"
    table = pa.table({"id": range(2_000), "name": [f"row {i}" for i in range(2_000)]})
    relation = wm.Relation.build(table, "id", where, segment=4096, durable=False)
    relation.upsert(pa.table({"id": [3, 900], "name": ["three", "new"]}))
    return where


def _looked_up(where: Path) -> Counter[Any]:
    stream = pa.table({"key": [i * 7 % 950 for i in range(500)]})
    out = wm.lookup_join(stream, wm.Relation.open(where), on="key = id", how="left", memory="1MiB")
    return _rows(out)


def _rows(batches: Any) -> Counter[Any]:
    return Counter(row for batch in batches for row in canonical_rows(batch))


def relations(draw: random.Random) -> Iterator[Flip]:
    """Flips in versions and segments of a relation, which is then looked up in."""
    sound = _relation()
    right = _looked_up(sound)
    files = sorted(path.name for path in sound.iterdir() if path.name[0] in "rv")
    while True:
        name = draw.choice(files)
        yield _of_a_directory(
            draw, sound, Path(name), f"relations, {'versions' if name[0] == 'v' else 'segments'}",
            lambda where: _looked_up(where) == right,
        )  # fmt: skip


def _of_a_directory(draw: random.Random, sound: Path, file: Path, kind: str, check: Callable[[Path], bool]) -> Flip:
    """A flip in one file of a copy of a directory; all other files are the same ones."""
    with tempfile.TemporaryDirectory() as parent:
        where = Path(parent) / "copy"
        shutil.copytree(sound, where, copy_function=os.link)
        content = (where / file).read_bytes()
        (where / file).unlink()
        (where / file).write_bytes(flipped(content, place(draw, len(content))))
        error: BaseException | None = None
        try:
            if not check(where):
                return Flip(kind, BAD, f"{file}: other results")
        except Exception as raised:
            error = raised
    return Flip(kind, *judged(error, file.name))


# --- the state of joins on Spark ---


def _stream(where: Path, timed: bool) -> Any:
    from spark.divided_streams import Stream
    from watersmeet.core.spec import JoinSpec, parse_on
    from watersmeet.core.windows import WindowJoinSpec, parse_windows

    schemas = [table.schema for table in _tables()]
    if timed:
        window = parse_windows(20, "at", lateness=5, late="drop")
        return Stream(where, WindowJoinSpec(*schemas, parse_on("id"), "left", window=window), 2)
    return Stream(where, JoinSpec(*schemas, parse_on("id"), "left"), 2)


@cache
def _tables() -> Sequence[pa.RecordBatch]:
    ids = {"a": [i % 11 for i in range(_ROWS)], "b": [3 + i % 7 for i in range(_ROWS)]}  # some have no partner
    return [pa.record_batch({"id": of_side, "at": range(_ROWS), name: range(_ROWS)}) for name, of_side in ids.items()]


def _batch(stream: Any, number: int) -> Counter[Any]:
    from spark.divided_streams import cut

    ended = (0, 1) if number == _LAST else ()  # then rows come out that have no partner
    with patch("os.fsync"):
        found: Counter[Any] = stream.batch(number, [cut(table, _LAST + 1)[number] for table in _tables()], ended)
    return found


@cache
def _state(timed: bool) -> tuple[Path, Counter[Any]]:
    """A state after three batches, and what the fourth gives."""
    where = Path(tempfile.mkdtemp(prefix="bits-")) / "state"
    stream = _stream(where, timed)
    for number in range(_LAST):
        _batch(stream, number)
    with tempfile.TemporaryDirectory() as parent:
        shutil.copytree(where, Path(parent) / "copy")
        return where, _batch(_stream(Path(parent) / "copy", timed), _LAST)


def states(draw: random.Random) -> Iterator[Flip]:
    """Flips in all files of a state: the next batch finds them, or the check of all checksums, or nothing differs."""
    from watersmeet.spark.offline.opened import OpenedState, verify

    while True:
        timed = draw.random() < 0.5
        sound, right = _state(timed)
        files = sorted(path.relative_to(sound) for path in sound.rglob("*") if path.is_file() and path.stat().st_size)
        file = draw.choice(files)

        def check(where: Path, timed: bool = timed, right: Counter[Any] = right) -> bool:
            found = verify(OpenedState(where)).damaged
            same = _batch(_stream(where, timed), _LAST) == right
            if found and same:  # the batch has not read it, which a later one would
                raise WatersmeetError(" ".join(found))
            return same

        part = "state.json" if file.name == "state.json" else str(file.parent) if len(file.parts) > 1 else file.name
        if part.startswith("group-"):
            head = (sound / file).read_bytes()[:64]
            part = "manifests" if file.name.startswith("manifest") else kind_of(file.name, head)
        yield _of_a_directory(draw, sound, file, f"state, {part}", check)


SOURCES = {"spilled": spilled, "relations": relations, "states": states}
"""Where flips come from."""


def flips(count: int, seed: int, only: str | None = None) -> Iterator[Flip]:
    """What a seed draws, from all sources in turn; half of them from what joins spill."""
    chosen = [SOURCES[only]] if only else [spilled, relations, spilled, states]
    made: list[Iterator[Flip]] = []
    for number, source in enumerate(chosen):
        made.append(source(random.Random(seed * 1_000 + number)))
    for number in range(count):
        yield next(made[number % len(made)])


def run(args: argparse.Namespace) -> int:
    """Flip, and print the table; 1 if a flip was neither found nor harmless."""
    print(f"{args.count} flips, seed {args.seed}", flush=True)
    counts: Counter[tuple[str, str]] = Counter()
    until = time.monotonic() + 60 * args.minutes
    for number, flip in enumerate(flips(args.count, args.seed, args.only)):
        counts[flip.kind, flip.outcome] += 1
        if flip.outcome == BAD:
            print(f"{number}: {flip.kind}: {flip.told}", flush=True)
        if time.monotonic() > until:
            break
    print(f"{'kind of file':<28}{'flipped':>9}{DETECTED:>10}{HARMLESS:>10}{BAD:>6}")
    for kind in [*sorted({kind for kind, _ in counts}), "all"]:
        of_kind = Counter[str]()
        for (each, outcome), n in counts.items():
            of_kind[outcome] += n if kind in (each, "all") else 0
        told = [of_kind[outcome] for outcome in (DETECTED, HARMLESS, BAD)]
        print(f"{kind:<28}{sum(told):>9,}{told[0]:>10,}{told[1]:>10,}{told[2]:>6,}")
    print(f"seed {args.seed}")
    return int(any(outcome == BAD for _, outcome in counts))


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
