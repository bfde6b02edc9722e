"""Cells and seeds in a few processes: equal cells once, results in order, progress on the way."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from typing import TextIO

from experiments.model import Cell, Experiment, Measured, Results
from watersmeet.core.errors import WatersmeetError

Work = tuple[Hashable, int]
"""A cell's key, and a seed."""


def run_all(
    experiments: Sequence[Experiment], scale: float, seeds: Sequence[int], jobs: int = 2, progress: TextIO | None = None
) -> Iterator[tuple[Experiment, Results]]:
    """Run everything; yields each experiment as soon as it and those before it are complete."""
    wanted = {experiment.id: list(seeds[:1] if experiment.fixed else seeds) for experiment in experiments}
    work: dict[Work, Cell] = {}
    for experiment in experiments:
        for cell in experiment.cells.values():
            for seed in wanted[experiment.id]:
                work.setdefault((cell.key, seed), cell)
    with ExitStack() as cleanup:
        advance = cleanup.enter_context(_Progress(len(work), progress))
        found = _Found(work, scale, jobs, cleanup, advance)
        for experiment in experiments:
            measured = {
                name: [found.get(experiment.id, name, cell, seed) for seed in wanted[experiment.id]]
                for name, cell in experiment.cells.items()
            }
            yield experiment, Results(scale, wanted[experiment.id], measured)


class _Found:
    """What was measured, or is being measured; with one job, measured when it is asked for."""

    def __init__(self, work: dict[Work, Cell], scale: float, jobs: int, cleanup: ExitStack, advance: _Progress) -> None:
        self._scale = scale
        self._advance = advance
        self._done: dict[Work, Measured] = {}
        self._running: dict[Work, Future[Measured]] = {}
        if jobs > 1 and len(work) > 1:
            # Not forked: a fork would copy locks that the threads of this process may hold.
            pool = ProcessPoolExecutor(min(jobs, len(work)), multiprocessing.get_context("spawn"))
            cleanup.callback(pool.shutdown, wait=True, cancel_futures=True)
            for key, cell in work.items():
                future = pool.submit(cell.run, scale, key[1])
                future.add_done_callback(lambda _: advance.step())
                self._running[key] = future

    def get(self, experiment: str, name: str, cell: Cell, seed: int) -> Measured:
        key = (cell.key, seed)
        try:
            if key in self._running:
                return self._running[key].result()
            if key not in self._done:
                self._done[key] = cell.run(self._scale, seed)
                self._advance.step()
            return self._done[key]
        except WatersmeetError as error:
            raise WatersmeetError(f"{experiment}, {name}, seed {seed}: {error}") from error


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
