"""From `page=` and `report(...)`, in the words of a user, to pages and files."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from watersmeet.core.errors import SpecError, WatersmeetError
from watersmeet.drivers.history import History
from watersmeet.drivers.live import LiveRun
from watersmeet.live import html
from watersmeet.live.board import ShownRun
from watersmeet.live.page import Page


def attach(run: LiveRun, page: bool | int | str | Page, names: Sequence[str]) -> None:
    """Show a run on a page: on one that there is, or on one of its own, which ends with it and whose address is told.

    Nothing that the page knows leads back to the run, which may be forgotten at any time.
    """
    title = " ⋈ ".join(names)
    if isinstance(page, Page):
        page.add(title, run.history)
        run.accompany(_nothing)
        run.page = page.address
        return
    own = own_page(page, "this join")
    own.add(title, run.history)
    run.accompany(own.close)
    run.page = own.address


def own_page(page: bool | int | str, what: str) -> Page:
    """A new page, whose address standard error tells."""
    own = Page(None if page is True else page)
    sys.stderr.write(f"watersmeet: look at {what} at {own.address}\n")
    sys.stderr.flush()
    return own


def _nothing() -> None:
    """Whose page it is closes it."""


def write_report(path: str | os.PathLike[str], title: str, history: History, kind: str = "join") -> None:
    """Write the page of one run, as far as it is, to a file."""
    write_runs(path, [ShownRun("run-1", title, history, kind=kind)])


def write_runs(path: str | os.PathLike[str], runs: Sequence[ShownRun]) -> None:
    """Write the page of some runs to a file: whole, or not at all."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise SpecError(f"a report is a web page; name it .html, not {target.name!r}")
    part = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        try:
            part.write_text(html.report([run.document() for run in runs]), encoding="utf-8")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise WatersmeetError(f"cannot write {target}: {error.strerror or error}") from error
