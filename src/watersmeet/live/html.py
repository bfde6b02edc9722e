"""The page as one file: scripts, styles and, in a report, the run itself inside; it asks nobody for anything more."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

STYLES = ("uplot.min.css", "page.css")
SCRIPTS = ("uplot.min.js", "format.js", "charts.js", "panels.js", "spark.js", "page.js")


def policy() -> str:
    """What a browser is to allow the page: its own scripts and no others, and to ask its own server alone."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )


def live_page() -> str:
    """The page that asks its server what is new."""
    return _document(None)


def report(runs: Sequence[dict[str, Any]]) -> str:
    """The page of runs that are over, or as far as they are."""
    return _document(runs)


def in_script(value: object) -> str:
    r"""A value as JSON that can stand between script tags, whatever names it holds.

    >>> in_script({"column": "</script><!--"})
    '{"column":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _document(runs: Sequence[dict[str, Any]] | None) -> str:
    # What is replaced comes once and in this order: what is put in is not looked through again.
    parts = _asset("page.html").split("@@")
    pieces = [policy(), _style(), in_script(runs), _script()]
    assert len(parts) == len(pieces) + 1
    return "".join(text + piece for text, piece in zip(parts, [*pieces, ""], strict=True))


@cache
def _style() -> str:
    return "\n".join(map(_asset, STYLES))


@cache
def _script() -> str:
    library, *ours = map(_asset, SCRIPTS)
    text = f'{library}\n(() => {{\n"use strict";\n{"".join(ours)}}})();\n'
    assert "</script" not in text
    return text


def _asset(name: str) -> str:
    return (files("watersmeet.live") / "assets" / name).read_text(encoding="utf-8")
