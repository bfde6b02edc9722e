"""Pages from `docs/`, generated pages beside them, and Zensical's HTML of both."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from website import errors, links, papers, reference
from website.markdown import fenced

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What Zensical would let pages fetch so that search works in files, too; `docs/offline.js` does it."""
SETTINGS = Path(__file__).with_name("zensical.toml")


def write_pages(target: Path) -> None:
    """All Markdown of the site, into an empty folder."""
    for path in sorted(DOCS.rglob("*")):
        place = target / path.relative_to(DOCS)
        if path.is_dir():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(_for_the_site(path.read_text(), place.relative_to(target)))
        else:
            shutil.copy(path, place)
    pages = {**reference.pages(), **papers.pages(DOCS), "joins/index.md": papers.overview()}
    for name, text in pages.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    listed = target / "errors.md"
    listed.write_text(listed.read_text().rstrip() + "\n\n" + errors.listing())
    changes = (ROOT / "CHANGELOG.md").read_text()
    (target / "changes.md").write_text(re.sub(r"\]\(docs/", "](", changes))


def _for_the_site(text: str, place: Path) -> str:
    """A page as the site shows it: examples as code, and names of joins that lead to their pages."""
    text = re.sub(r"<!-- .*? -->\n", "", fenced(text))
    up = "../" * (len(place.parts) - 1)
    known = papers.joins()

    def led(found: re.Match[str]) -> str:
        return f"| [`{found[1]}`]({up}joins/{found[1]}.md) |" if found[1] in known else found[0]

    return re.sub(r"^\| `(\w+)` \|", led, text, flags=re.MULTILINE)


def navigation(pages: Path) -> list[Any]:
    """What stands at the side: as in the settings, with what is generated put in, and without what is not there yet."""
    wanted = tomllib.loads(SETTINGS.read_text())["project"]["nav"]

    def kept(entries: list[Any]) -> list[Any]:
        found: list[Any] = []
        for entry in entries:
            [(title, what)] = entry.items()
            if isinstance(what, list):
                inner = kept(what)
                found += [{title: inner}] if inner else []
            elif "*" in what:
                listed = sorted(each for each in pages.glob(what) if each.name != "index.md")
                found += [{_title(each): str(each.relative_to(pages))} for each in listed]
            elif (pages / what).exists():
                found.append(entry)
        return found

    return kept(wanted)


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def configure(place: Path) -> Path:
    """Zensical's settings for a folder with `docs` in it."""
    text = SETTINGS.read_text()
    nav = _toml(navigation(place / "docs"))
    text = re.sub(r"^nav = \[.*?^\]", lambda _: f"nav = {nav}", text, flags=re.MULTILINE | re.DOTALL)
    settings = place / "zensical.toml"
    settings.write_text(text)
    return settings


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{name}" = {_toml(each)}' for name, each in value.items()) + " }"
    return f'"{value}"'


def build(place: Path) -> Path:
    """Make the whole site below a folder; returns where its HTML is. Raises if a link leads nowhere."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "docs").mkdir(parents=True)
    write_pages(place / "docs")
    settings = configure(place)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "-f", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    if done.returncode:
        raise SystemExit(f"docs: Zensical failed\n{done.stdout}{done.stderr}")
    site = place / "site"
    for page in site.rglob("*.html"):
        up = "../" * (len(page.relative_to(site).parts) - 1)
        page.write_text(page.read_text().replace(SHIM, f"{up}offline.js"))
    problems = links.problems(site)
    if problems:
        raise SystemExit("docs: these links lead nowhere\n" + "\n".join(problems))
    return site
