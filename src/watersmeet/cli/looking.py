"""`--page` and `--report` of all commands that join: a page while they run, a file afterwards."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from watersmeet.cli.signals import Stopped
from watersmeet.core.errors import SpecError

if TYPE_CHECKING:
    from watersmeet.live.page import Page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the commands take."""
    parser.add_argument("--page", action="store_true", help="serve a live page of the join on 127.0.0.1 while it runs")
    add_page_address(parser)
    parser.add_argument("--report", metavar="FILE", help="write the charts of the run to one HTML file")


def add_page_address(parser: argparse.ArgumentParser) -> None:
    """Where a page is."""
    parser.add_argument("--page-address", metavar="ADDRESS", help="the page at this PORT or HOST:PORT")


def check(args: argparse.Namespace) -> None:
    """Refuse a report that could not be written before anything is done."""
    if args.report is None:
        return
    target = Path(args.report)
    if target.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"--report {target}: a report is a web page; name it .html")
    if not target.absolute().parent.is_dir():
        raise SpecError(f"cannot write {target}: there is no folder {target.absolute().parent}; create it first")


@contextmanager
def page_for(args: argparse.Namespace) -> Iterator[Page | None]:
    """A page, if one was asked for, with its address told; whoever sits at a terminal may look at it afterwards."""
    if not (args.page or args.page_address):
        yield None
        return
    from watersmeet.live.page import Page

    with Page(args.page_address) as page:
        _say(f"Look at it at {page.address}")
        yield page
        if sys.stdin.isatty() and sys.stderr.isatty():
            _say("The page stays until you press Ctrl-C.")
            with suppress(Stopped):  # all is done: it is no failure
                while page.is_open:
                    time.sleep(1)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
