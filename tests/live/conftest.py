"""A browser for the tests of the page, started once; without one they are skipped by name, and say what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from waiting import PATIENCE

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""As scripts/browser.sh looks for it."""


def find() -> str | None:
    told = os.environ.get("WATERSMEET_BROWSER")
    return next((path for name in ([told] if told else NAMES) if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = find()
    if path is None:
        pytest.skip(
            "the live page was not tested: no Chromium was found; install one (Debian: apt-get install "
            "chromium-headless-shell), or point WATERSMEET_BROWSER at it"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Debian's Chromium will not sandbox itself as root, as tests run in containers.
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens addresses; whatever a page complains of is a failure."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_(address: str, *, width: int = 1360, theme: str = "light", complains: bool = False) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        if not complains:
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
