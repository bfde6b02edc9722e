"""`watersmeet serve`: a live page of the state directory of a join on Spark, from another process than the query's."""

from __future__ import annotations

import argparse
import sys
import time

from watersmeet.cli.looking import add_page_address
from watersmeet.drivers.history import History

LOOK_EVERY = 1.0
"""Seconds between two looks at the directory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("directory", metavar="DIR", help="state=... of a join on Spark")
    add_page_address(parser)
    parser.add_argument("--report", metavar="FILE", help="write the page to one HTML file instead, and leave")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from watersmeet.live.attach import write_runs
    from watersmeet.live.board import ShownRun
    from watersmeet.spark.io.state_view import StateView

    view, history = StateView(args.directory), History()
    title = view.title
    view.tell(history)
    if args.report is not None:
        write_runs(args.report, [ShownRun("run-1", title, history, view.extras(), kind="state")])
        return 0
    from watersmeet.live.page import Page

    with Page(args.page_address) as page:
        run = page.add(title, history, kind="state")
        run.extras = view.extras()
        sys.stderr.write(f"Look at it at {page.address}\nCtrl-C ends it.\n")
        sys.stderr.flush()
        while page.is_open:
            time.sleep(LOOK_EVERY)
            if view.tell(history):
                run.extras = view.extras()
    return 0
