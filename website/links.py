"""Whether all links of a built site lead somewhere, and whether it would fetch anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a browser fetches by itself as it shows a page."""
SELDOM_FETCHED = {"canonical", "prev", "next", "alternate"}
"""Links that a browser does not follow by itself."""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        for name in ("id", "name"):
            if told.get(name):
                self.ids.add(str(told[name]))
        if tag == "a" and told.get("href"):
            self.links.append(str(told["href"]))
        if tag in FETCHING and told.get(FETCHING[tag]) and not SELDOM_FETCHED & set(str(told.get("rel")).split()):
            self.fetched.append(str(told[FETCHING[tag]]))


def read(path: Path) -> _Page:
    """What a page has and asks for."""
    page = _Page()
    page.feed(path.read_text())
    return page


def problems(site: Path) -> list[str]:
    """Each link that leads nowhere, and each thing that would be fetched from elsewhere."""
    pages = {path.resolve(): read(path) for path in site.rglob("*.html")}
    return [problem for path, page in pages.items() for problem in _problems(site.resolve(), path, page, pages)]


def _problems(site: Path, path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    where = path.relative_to(site)
    if where.name == "404.html":  # its links begin at the root of wherever the site is served
        return
    for address in page.fetched:
        if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
            yield f"{where}: would fetch {address}"
        elif not urlsplit(address).scheme and not _target(path, address).exists():
            yield f"{where}: {address} is not there"
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme or address.startswith("//"):
            continue
        target = _target(path, address)
        if not target.exists():
            yield f"{where}: {address} is not there"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
            yield f"{where}: {address} has no such heading"


def _target(path: Path, address: str) -> Path:
    inside = unquote(urlsplit(address).path)
    target = (path.parent / inside).resolve() if inside else path
    return target / "index.html" if target.is_dir() else target
