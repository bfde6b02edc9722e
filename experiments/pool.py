"""Cells and seeds in a few processes: equal cells once, results in order, progress on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Generator, Hashable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import TextIO

from experiments.kept import Kept
from experiments.model import Cell, Experiment, Measured, Results
from watersmeet.core.errors import WatersmeetError

Work = tuple[Hashable, int]
"""A cell's key, and a seed."""


def run_all(
    experiments: Sequence[Experiment],
    scale: float,
    seeds: Sequence[int],
    jobs: int = 2,
    progress: TextIO | None = None,
    kept: Kept | None = None,
) -> Generator[tuple[Experiment, Results], None, None]:
    """Run everything that is not kept; yields each experiment as soon as it and those before it are complete."""
    wanted = {experiment.id: list(seeds[:1] if experiment.fixed else seeds) for experiment in experiments}
    work: dict[Work, Cell] = {}
    for experiment in experiments:
        for cell in experiment.cells.values():
            for seed in wanted[experiment.id]:
                work.setdefault((cell.key, seed), cell)
    with ExitStack() as cleanup:
        advance = cleanup.enter_context(_Progress(len(work), progress))
        found = _Found(work, scale, jobs, cleanup, advance, kept)
        for experiment in experiments:
            measured = {
                name: [found.get(experiment.id, name, cell, seed) for seed in wanted[experiment.id]]
                for name, cell in experiment.cells.items()
            }
            yield experiment, Results(scale, wanted[experiment.id], measured)


class _Found:
    """What was measured, or is being measured; with one job, measured when it is asked for."""

    def __init__(
        self,
        work: dict[Work, Cell],
        scale: float,
        jobs: int,
        cleanup: ExitStack,
        advance: _Progress,
        kept: Kept | None,
    ) -> None:
        self._scale = scale
        self._advance = advance
        self._kept = kept
        self._done: dict[Work, Measured] = {}
        for key, cell in work.items():
            known = kept.get(cell, scale, key[1]) if kept is not None else None
            if known is not None:
                self._done[key] = known
                advance.step()
        work = {key: cell for key, cell in work.items() if key not in self._done}
        self._running: dict[Work, Future[Measured]] = {}
        if jobs > 1 and len(work) > 1:
            pool = cleanup.enter_context(_Processes(min(jobs, len(work)))).pool
            for key, cell in work.items():
                future = pool.submit(cell.run, scale, key[1])
                future.add_done_callback(partial(self._keep, cell, key[1]))
                self._running[key] = future

    def _keep(self, cell: Cell, seed: int, future: Future[Measured]) -> None:
        """Take note that a cell is done; what it gave is kept even if nobody asks for it any more."""
        self._advance.step()
        if self._kept is not None and not future.cancelled() and future.exception() is None:
            self._kept.put(cell, self._scale, seed, future.result())

    def get(self, experiment: str, name: str, cell: Cell, seed: int) -> Measured:
        key = (cell.key, seed)
        try:
            if key in self._running:
                return self._running[key].result()
            if key not in self._done:
                self._done[key] = cell.run(self._scale, seed)
                self._advance.step()
                if self._kept is not None:
                    self._kept.put(cell, self._scale, seed, self._done[key])
            return self._done[key]
        except WatersmeetError as error:
            raise WatersmeetError(f"{experiment}, {name}, seed {seed}: {error}") from error


class _Processes:
    """Processes that end with this one: whoever interrupts or kills it does not leave them to finish their cells."""

    def __init__(self, jobs: int) -> None:
        # Not forked: a fork would copy locks that the threads of this process may hold.
        context = multiprocessing.get_context("spawn")
        # Nothing is ever sent: the other end is closed by us, or by the system if we are killed.
        theirs, self._ours = context.Pipe(duplex=False)
        self.pool = ProcessPoolExecutor(jobs, context, _end_with, (theirs,))

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Wait for cells that run, as they are kept; an interrupt waits for nothing."""
        if kind is not None and not issubclass(kind, Exception):
            self._ours.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self._ours.close()


def _end_with(parent: Connection) -> None:
    """In a process of the pool: end as soon as the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all of us; the parent decides
    Thread(target=_wait_for_end, args=(parent,), daemon=True).start()


def _wait_for_end(parent: Connection) -> None:
    with suppress(EOFError, OSError):
        parent.recv()
    os._exit(1)


class _Progress:
    """A bar on a terminal, nothing anywhere else."""

    def __init__(self, total: int, stream: TextIO | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        stream = stream or sys.stderr
        columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(file=stream), transient=True, disable=not stream.isatty())
        self._task = self._bar.add_task("", total=total)

    def step(self) -> None:
        """One more is done."""
        self._bar.advance(self._task)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
