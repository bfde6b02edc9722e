"""The experiments by their ids, and what `watersmeet reproduce` does with them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import watersmeet as wm
from experiments import report
from experiments.diner_delays import EXPERIMENTS as DINER_DELAYS
from experiments.diner_figures import EXPERIMENTS as DINER_FIGURES
from experiments.hybrid import EXPERIMENTS as HYBRID
from experiments.hybrid_sweeps import EXPERIMENTS as HYBRID_SWEEPS
from experiments.kept import Kept
from experiments.metadata import EXPERIMENTS as METADATA
from experiments.miner import EXPERIMENTS as MINER
from experiments.miner_snowflake import EXPERIMENTS as MINER_SNOWFLAKE
from experiments.mjoin import EXPERIMENTS as MJOIN
from experiments.mjoin_example import EXPERIMENTS as MJOIN_EXAMPLE
from experiments.mjoin_plans import EXPERIMENTS as MJOIN_PLANS
from experiments.mjoin_windows import EXPERIMENTS as MJOIN_WINDOWS
from experiments.model import Experiment
from experiments.parallel import EXPERIMENTS as PARALLEL
from experiments.pool import run_all
from experiments.rpj_figures import EXPERIMENTS as RPJ_FIGURES
from experiments.rpj_flush import EXPERIMENTS as RPJ_FLUSH
from experiments.window_joins import EXPERIMENTS as WINDOW_JOINS
from watersmeet.core.errors import SpecError

FULL_SEEDS = 5
"""Runs of each experiment at full scale unless said otherwise: what is random is told with its range."""

EXPERIMENTS: Sequence[Experiment] = (
    *RPJ_FIGURES,
    *RPJ_FLUSH,
    *DINER_FIGURES,
    *DINER_DELAYS,
    *MINER,
    *MINER_SNOWFLAKE,
    *MJOIN,
    *MJOIN_WINDOWS,
    *MJOIN_PLANS,
    *MJOIN_EXAMPLE,
    *METADATA,
    *WINDOW_JOINS,
    *HYBRID,
    *HYBRID_SWEEPS,
    *PARALLEL,
)


def main(args: argparse.Namespace) -> int:
    """Run what was asked for; a claim that does not hold is a result like any other, so this returns 0."""
    if args.list:
        for experiment in EXPERIMENTS:
            print(f"{experiment.id:<14} {experiment.paper}, {experiment.figure}: {experiment.title}")
        return 0
    chosen = choose(args.ids)
    if not 0 < args.scale <= 1:
        raise SpecError(f"--scale {args.scale:g} is no part of the papers' data; give more than 0 and up to 1")
    seeds = args.seeds if args.seeds is not None else (FULL_SEEDS if args.scale == 1 else 1)
    if seeds < 1 or args.jobs < 1:
        raise SpecError("an experiment runs at least once, in at least one process")
    out = None if args.out is None else Path(args.out)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    for target in (args.json, args.markdown):
        if target is not None and not Path(target).absolute().parent.is_dir():
            raise SpecError(f"{Path(target).absolute().parent} is not a directory; {target} cannot be written")
    kept = None if args.keep is None else Kept(Path(args.keep), [Path(__file__).parent, Path(wm.__file__).parent])
    outcomes: list[report.Outcome] = []
    with closing(run_all(chosen, args.scale, range(1, seeds + 1), args.jobs, kept=kept)) as found:
        for experiment, results in found:
            outcome = report.Outcome.of(experiment, results)
            outcomes.append(outcome)
            report.show(outcome)
            if out is not None:
                report.write_files(outcome, out)
            if args.json is not None:
                report.write_json(Path(args.json), outcomes)
            if args.markdown is not None:
                report.write_page(Path(args.markdown), outcome, [each.id for each in EXPERIMENTS])
    report.show_summary(outcomes)
    return 0


def choose(ids: Sequence[str]) -> list[Experiment]:
    """The experiments of these ids, in the catalogue's order; all of them if none is named."""
    if not ids or "all" in ids:
        return list(EXPERIMENTS)
    known = {name: experiment.id for experiment in EXPERIMENTS for name in experiment.names}
    for each in ids:
        if each not in known:
            raise SpecError(
                f"there is no experiment {each!r}; there are all, {', '.join(each.id for each in EXPERIMENTS)}"
            )
    wanted = {known[each] for each in ids}
    return [experiment for experiment in EXPERIMENTS if experiment.id in wanted]
