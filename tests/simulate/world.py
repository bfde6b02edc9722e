"""Where one seed happens: a directory, a disk and a memory that fail, a clock that jumps, and who runs next."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulate.disk import Clock, Disk
from simulate.faults import Fault, Faults, Killed, Memory
from simulate.schedule import Schedule

_SHARED_MEMORY = Path("/dev/shm")
_ERRORS = {
    "open": ((errno.EIO, errno.EMFILE, errno.ENOSPC, errno.EACCES), ("error", "error", "blind", "kill", "slow")),
    "map": ((errno.EIO, errno.ENOMEM), ("error", "kill", "slow")),
    "read": ((errno.EIO,), ("error", "kill", "slow")),
    "write": ((errno.ENOSPC, errno.ENOSPC, errno.EIO), ("error", "half", "kill", "kill after", "slow")),
    "fsync": ((errno.EIO,), ("error", "kill", "kill after", "slow")),
    "rename": ((errno.EIO, errno.ENOSPC), ("error", "after", "kill", "kill after")),
    "link": ((errno.EIO, errno.ENOSPC), ("error", "after", "kill", "kill after")),
    "unlink": ((errno.EIO, errno.EACCES), ("error", "after", "kill", "kill after")),
    "mkdir": ((errno.ENOSPC, errno.EIO), ("error", "kill", "kill after")),
    "rmdir": ((errno.EIO,), ("error", "kill")),
    "list": ((errno.EIO,), ("error", "kill", "slow")),
    "reserve": ((errno.ENOMEM,), ("error",)),
    "put": ((errno.ECONNRESET,), ("error", "after", "after", "kill", "kill after", "slow")),
    "get": ((errno.ECONNRESET,), ("error", "kill", "slow")),
    "delete": ((errno.ECONNRESET,), ("error", "after")),
}
"""What can happen to each kind of operation."""
_OFTEN = {"write": 80, "open": 40, "map": 40, "reserve": 120, "put": 12, "get": 12}
"""How many operations of a kind a seed has, about; of others there are a few."""
_MOST_LISTED = 5


@dataclass(frozen=True)
class Trial:
    """A seed, and what was taken away from what it means in order to make it smaller."""

    seed: int
    dropped: frozenset[int] = frozenset()
    """Steps that do not happen."""
    spared: frozenset[int] = frozenset()
    """Faults that do not happen."""
    rows: float = 1.0
    """The share of each arrival's rows that comes."""
    fuel: int = 1
    """Times the fuel of each poll."""
    stream: str = ""
    """The kind of query on Spark that it is about; unless given, the seed tells."""

    @property
    def again(self) -> str:
        """One line that runs it once more."""
        told = f"--seed {self.seed}"
        if self.dropped:
            told += f" --drop {','.join(map(str, sorted(self.dropped)))}"
        if self.spared:
            told += f" --spare {','.join(map(str, sorted(self.spared)))}"
        if self.rows != 1.0:
            told += f" --rows {self.rows:g}"
        if self.fuel != 1:
            told += f" --fuel {self.fuel}"
        if self.stream:
            told += f" --stream '{self.stream}'"
        return f'make simulate ARGS="{told}"'

    def rng(self, what: int) -> np.random.Generator:
        """Chance of its own for each purpose, so that to take away from one changes nothing of the others."""
        return np.random.default_rng([self.seed, 0x51A0, what])


def drawn_faults(rng: np.random.Generator, kinds: Sequence[str]) -> list[Fault]:
    """What goes wrong in a seed: nothing, or something a few times, each of any kind."""
    found = []
    for _ in range(int(rng.choice([0, 1, 2, 3, 5], p=[0.1, 0.3, 0.3, 0.2, 0.1]))):
        kind = str(rng.choice(kinds))
        errors, ways = _ERRORS[kind]
        at = 1 + int(np.exp(rng.random() * np.log(_OFTEN.get(kind, 8))))
        error, how, lasts = int(rng.choice(errors)), str(rng.choice(ways)), 1
        if how == "slow" or (kind in ("write", "reserve", "open") and how in ("error", "half") and rng.random() < 0.25):
            lasts = int(rng.integers(2, 12))  # a disk that stays full, or slow, for a while
        found.append(Fault(kind, at, how, error, lasts))
    return found


class World:
    """One seed's surroundings; what happens in them is counted."""

    def __init__(self, trial: Trial, kinds: Sequence[str]) -> None:
        self.trial = trial
        self.counts: Counter[str] = Counter()
        self.schedule = Schedule(trial.rng(1))
        planned = drawn_faults(trial.rng(2), kinds)
        self.faults = Faults(
            [fault for number, fault in enumerate(planned) if number not in trial.spared], self.schedule.pause
        )
        self.planned = len(planned)
        self.faults.on_kill = self.schedule.die
        self.faults.on_slow = self._take_long
        self._slowness = trial.rng(7)
        self.waited = 0.0
        """Seconds that operations on files have taken."""
        self.clock = Clock()
        self.root = Path()
        self._stack = ExitStack()
        self._made = trial.rng(3)

    def __enter__(self) -> World:
        parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="simulate-", dir=parent))
        stack = self._stack
        stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        # What a killed process would have cleaned up at its end stays; it cannot raise there, either.
        told = sys.unraisablehook
        stack.callback(setattr, sys, "unraisablehook", told)
        sys.unraisablehook = lambda args: None if args.exc_type is Killed else told(args)
        for module, name in ((uuid, "uuid4"), (secrets, "token_hex")):
            stack.callback(setattr, module, name, getattr(module, name))
        secrets.token_hex = lambda size=8: self._made.bytes(size or 8).hex()
        uuid.uuid4 = lambda: uuid.UUID(bytes=self._made.bytes(16), version=4)
        self.disk = stack.enter_context(Disk(self.root, self.faults))
        self.disk.owner = lambda: self.schedule.current and self.schedule.current.process
        stack.enter_context(Memory(self.faults))
        stack.enter_context(self.clock)
        return self

    def __exit__(self, *_: Any) -> None:
        self.faults.on = False
        for actor in list(self.schedule.actors):
            self.schedule.kill(actor)
        self._stack.close()

    def _take_long(self) -> None:
        """The disk is slow: time passes, and whoever else can go on does."""
        seconds = float(self._slowness.exponential(5.0))
        self.waited += seconds
        self.clock.jump(seconds)
        self.schedule.sleep(int(self._slowness.integers(1, 60)))

    @contextmanager
    def calm(self) -> Iterator[None]:
        """What the harness itself does is no part of what happens."""
        was, self.faults.on = self.faults.on, False
        try:
            yield
        finally:
            self.faults.on = was

    def listed(self, directory: Path) -> list[str]:
        """What there is below a directory, a few of it."""
        with self.calm():
            found = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
        return found[:_MOST_LISTED]
