"""The site is built, every link leads somewhere, nothing is fetched from elsewhere, and what pages say is true."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from watersmeet import planner
from watersmeet import spark as wms
from watersmeet.cli.main import build_parser
from website import build, errors, links, papers, reference
from website.markdown import slug

ROOT = build.ROOT
COMMANDS = next(each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)).choices
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site; building it fails where a link leads nowhere or something would be fetched."""
    return build.build(tmp_path_factory.mktemp("site") / "website")


# -- the site ----------------------------------------------------------------------------------------------------------


def test_the_site_has_every_page_and_all_of_its_navigation(site: Path) -> None:
    made = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    written = {
        str(path.relative_to(ROOT / "docs").with_suffix("")) for path in PAGES if path.is_relative_to(ROOT / "docs")
    }
    assert written <= made
    assert {f"joins/{name}" for name in papers.joins()} <= made
    reached = {(site / "index.html").resolve()}
    waiting = list(reached)
    while waiting:
        page = waiting.pop()
        for address in links.read(page).links:
            target = links._target(page, address)
            if "://" not in address and target.suffix == ".html" and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert {path.resolve() for path in site.rglob("*.html") if path.name != "404.html"} <= reached


def test_a_broken_link_and_a_foreign_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h2 id="here">x</h2><a href="#here">ok</a><a href="#gone">1</a><a href="b.html">2</a>'
        '<script src="https://cdn.example/x.js"></script><img src="none.png"><a href="https://elsewhere.example">ok</a>'
    )
    found = links.problems(tmp_path)
    assert [problem.partition(": ")[2] for problem in found] == [
        "would fetch https://cdn.example/x.js",
        "none.png is not there",
        "#gone has no such heading",
        "b.html is not there",
    ]


def test_the_reference_has_every_public_name_and_every_command(site: Path) -> None:
    pages = reference.pages()
    errors_ = {name for name in wm.__all__ if name.endswith("Error")}
    for name in set(wm.__all__) - errors_ - {"__version__", "errors"}:
        assert f"\n### wm.{name}\n" in pages["reference/library.md"], name
    for name in wms.__all__:
        assert f"\n## wms.{name}\n" in pages["reference/spark.md"], name
    for name, command in COMMANDS.items():
        assert f"\n## watersmeet {name}\n" in pages["reference/commands.md"]
        for option in command._option_string_actions.values():
            if option.help != argparse.SUPPRESS and option.dest != "help" and name != "explain":
                assert option.option_strings[-1] in pages["reference/commands.md"]
    assert "memory='64 MiB'" in pages["reference/library.md"]
    assert "**`delay`**" in pages["reference/library.md"]


def test_every_experiment_is_on_a_page_of_its_join() -> None:
    told = papers.experiments(ROOT / "docs" / "reproduction.md")
    assert len(told) == (ROOT / "docs" / "reproduction.md").read_text().count("<!-- experiment ")
    prefixes = (papers.PARALLEL, *(each for some in papers.EXPERIMENTS.values() for each in some))
    for experiment in told:
        assert experiment.claims, experiment.id
        assert experiment.id.startswith(prefixes), experiment.id
    assert set(papers.EXPERIMENTS) <= set(papers.joins())


def test_every_join_is_in_the_table_of_all_joins() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text().partition("## All joins")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) - {"algorithm"} == set(papers.joins())
    assert set(planner.ALGORITHMS) <= set(papers.joins())


# -- errors ------------------------------------------------------------------------------------------------------------


def test_the_sentences_that_the_page_explains_are_in_the_source() -> None:
    known = errors.sentences()
    said = errors.quoted((ROOT / "docs" / "errors.md").read_text())
    assert len(said) > 10
    for sentence in said:
        assert any(each.matches(sentence) for each in known), f"no error says: {sentence}"


def test_every_error_of_the_state_is_explained_with_operations() -> None:
    page = (ROOT / "docs" / "operations.md").read_text().partition("## What errors of the state mean")[2]
    phrases = [each for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for each in re.findall("`(.*?)`", row)]
    patterns = [re.compile(re.sub(r"\\\.\\\.\\\.|\b[NM]\b", ".*?", re.escape(each))) for each in phrases]
    known = errors.sentences()
    assert len(phrases) > 20
    for phrase, pattern in zip(phrases, patterns, strict=True):
        assert any(pattern.search(each.text) for each in known), f"no error says: {phrase}"
    of_state = [each for each in known if each.kind == "SnapshotError" and each.module.startswith("spark.")]
    assert len(of_state) > 20
    for sentence in of_state:
        assert any(pattern.search(sentence.text) for pattern in patterns), f"not explained: {sentence.text}"


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: wm.join([{"a": 1}], [{"b": 1}], on="a").table(),
        lambda: wm.join("none.csv", [{"a": 1}], on="a"),
        lambda: wm.join([{"a": 1}], [{"a": 1}], on="a", algorithm="hash"),
        lambda: wm.join(wm.source([{"a": 1}]), wm.source([{"a": 1}]), on="a", memory=100).table(),
        lambda: wm.Relation.open("none.rel"),
        lambda: wm.window_join([{"a": 1}], [{"a": 1}], on="a", window="10 min"),
        lambda: wm.multijoin({"a": [{"x": 1}], "b": [{"x": 1}]}, on="a.x"),
    ],
)
def test_what_is_really_said_is_among_the_sentences(
    mistake: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(wm.WatersmeetError) as raised:
        mistake()  # type: ignore[operator]
    said = " ".join(str(raised.value).split())
    assert any(each.matches(said) and each.kind == raised.type.__name__ for each in errors.sentences()), said


def test_every_kind_of_error_is_on_the_page() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    missing = [name for name in errors.kinds() if name not in page and name != "SegmentError"]  # a SpillError
    assert not missing
    told = errors.listing()
    assert all(f"### {name}\n" in told for name in ("SpecError", "SourceError", "BudgetError", "SpillError"))


# -- the pages as they lie in the repository ---------------------------------------------------------------------------


def headings(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_the_repository(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in address:
            continue
        name, _, heading = address.partition("#")
        target = page if not name else page.parent / name
        assert target.exists(), address
        assert not heading or heading in headings(target), address


def test_the_readme_is_one_screen_with_two_pictures() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 50
    assert sum(line.startswith("![") for line in lines) == 2


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    pq.write_table(pa.table({"order_id": [1, 2, 3]}), "orders.parquet")
    names = {"slow_iterator": iter([{"order_id": 2, "sent": True}]), "found": []}
    exec(block.replace("...", "found += batch.to_pylist()"), names)
    assert names["found"] == [{"order_id": 2, "sent": True}]


def test_commands_in_the_pages_are_understood() -> None:
    understood = 0
    for page in PAGES:
        for line in re.findall(r"^(?:\$ )?(watersmeet [a-z].*)$", page.read_text(), re.MULTILINE):
            command = re.split(r"\s{2,}| \| ", line)[0]  # what follows is said of it, or reads its output
            words = shlex.split(command, comments=True)[1:]
            if words[0] in COMMANDS:
                build_parser().parse_args(words)
                understood += 1
    assert understood > 10


def test_the_start_page_does_what_it_says(tmp_path: Path) -> None:
    """The commands of the page, in a new folder, and what they are said to print."""
    page = (ROOT / "docs" / "start.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    files = next(block for block in blocks if block.startswith("printf"))
    join = next(block for block in blocks if block.startswith("watersmeet join"))
    expected = next(block for block in blocks if block.startswith("┏"))
    place = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COLUMNS": "100"}

    def shell(script: str) -> str:
        done = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, env=place, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shell(files)
    assert sorted(shell(join).splitlines()) == sorted(expected.splitlines())
    told = re.search(
        r"^\$ (watersmeet explain .*?)\n(.*?)^```",
        (ROOT / "docs" / "command_line.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert told is not None
    assert shell(told[1]) == told[2]
