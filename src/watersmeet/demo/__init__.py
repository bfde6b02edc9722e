"""`watersmeet demo`: two slow, stalling sources joined in little memory, watched, drawn and verified.

Orders and shipments arrive in bursts and fall silent together several times. The join hands out pairs as they are
found, keeps on disk what does not fit into memory, and uses the silences; afterwards another engine joins the same
tables, and the two results must be the same, row for row.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.cli import looking
from watersmeet.cli.figures import check_target
from watersmeet.cli.figures import write as write_figures
from watersmeet.demo.picture import draw
from watersmeet.demo.report import figures, remark, shortcomings, summary
from watersmeet.demo.scenario import NAMES, Scenario, silences
from watersmeet.memory import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from watersmeet.demo.record import Engine
    from watersmeet.live.page import Page

OUT = Path("demo-output")
WIDTH = 80


def main(args: argparse.Namespace) -> int:
    """Run the demo; 0 only if the result is right and everything that was to be shown took place."""
    from rich.console import Console

    check_target(args.json)
    engine = _engine(args.engine)
    out = OUT if args.out is None else Path(args.out)
    scenario = engine.scenario(args.rows, args.seed)
    memory = engine.memory if args.memory is None else args.memory
    engine.check(scenario, memory)
    out.mkdir(parents=True, exist_ok=True)
    console = Console(file=sys.stdout, width=min(WIDTH, shutil.get_terminal_size().columns), highlight=False)
    looking.check(args)
    with looking.page_for(args) as page:
        return _show(args, engine, scenario, memory, out, console, page)


def _show(
    args: argparse.Namespace,
    engine: Engine,
    scenario: Scenario,
    memory: str,
    out: Path,
    console: Console,
    page: Page | None,
) -> int:
    with engine.ready(scenario, memory, out, console.print) as run:
        schedule = scenario.schedule
        size = sum(table.nbytes for table in schedule.inputs)
        console.print(
            f"Joining {' and '.join(NAMES)}, {format_bytes(size)} in all, in {memory} of memory{engine.allowance}. "
            f"They come in bursts, and both fall silent {len(silences(schedule))} times; the last row comes after "
            f"{schedule.end_time:.0f} s."
        )
        record, progress = run.join(page)
        wrong = run.verify()
        draw(schedule, record, progress, out / "demo.png", engine.title)
        if args.report is not None:
            from watersmeet.live.attach import write_report

            write_report(
                args.report, " ⋈ ".join(NAMES), record.history, "join" if args.engine == "local" else "batches"
            )
    console.print(summary(schedule, record, progress, wrong is None, engine.peer))
    console.print(f"The picture is {out / 'demo.png'}, the result {out / engine.result}.", soft_wrap=True)
    said = remark(schedule, record)
    if said is not None:
        console.print(f"{said}.")
    problems = shortcomings(schedule, record, progress, wrong)
    write_figures(args.json, figures(schedule, record, progress, verified=wrong is None, problems=problems))
    for problem in problems:
        console.print(f"Not as it should be: {problem}.", style="red")
    return 1 if problems else 0


def _engine(name: str) -> Engine:
    if name == "spark":
        from watersmeet.demo.on_spark import SparkEngine

        return SparkEngine()
    from watersmeet.demo.embedded import EmbeddedEngine

    return EmbeddedEngine()
