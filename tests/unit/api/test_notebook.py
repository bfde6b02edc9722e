"""What notebooks show: names are escaped, nothing is read to be shown, and progress follows a join in a real kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core import html
from watersmeet.drivers import drawing
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress
from watersmeet.sources.schedules import Schedule, poisson

EVIL = "<script>alert('x')</script>"


def drawn(thing: object) -> str:
    return str(thing._repr_html_())  # type: ignore[attr-defined]


def check(text: str) -> None:
    """Well-formed: every tag that is opened is closed, in order; and nothing would run."""
    assert "<script" not in text
    opened: list[str] = []
    for slash, name, rest in re.findall(r"<(/?)([a-z]+)((?:\"[^\"]*\"|[^>\"])*)>", text):
        if rest.endswith("/"):
            continue
        if slash:
            assert opened.pop() == name, text
        else:
            opened.append(name)
    assert not opened


def test_names_of_columns_and_inputs_are_escaped(tmp_path: Path) -> None:
    rows = pa.table({EVIL: [1, 2]})
    result = wm.join(rows, rows, on=EVIL, memory="8 MiB", names=(EVIL, "right"))
    for shown in (drawn(result.explain()), drawn(result)):
        check(shown)
        assert "&lt;script&gt;" in shown
    relation = wm.Relation.build(rows, on=EVIL, path=tmp_path / "r<b>.rel")
    check(drawn(relation))
    plan = wm.explain({EVIL: rows, "b": rows}, [f"{EVIL}.{EVIL} = b.{EVIL}"], rows={EVIL: 1, "b": 1})
    check(drawn(plan))


def test_a_result_is_shown_without_being_read() -> None:
    def never() -> object:
        raise AssertionError("read")
        yield {}

    result = wm.join(pa.table({"id": [1]}), never(), on="id", memory="8 MiB")
    check(drawn(result))
    assert "not started" in drawn(result)
    result.close()


def test_a_result_tells_its_figures_when_it_is_done() -> None:
    result = wm.join(pa.table({"id": [1, 2]}), pa.table({"id": [2, 3]}), on="id", memory="8 MiB")
    result.table()
    shown = drawn(result)
    check(shown)
    assert "<b>1</b> rows" in shown and "confluence" in shown and "8 MiB" in shown


def test_a_trace_draws_its_curves() -> None:
    inputs = [pa.table({"id": [i % 50 for i in range(3000)]}) for _ in "lr"]
    schedule = Schedule(inputs, [poisson(3000, 1000.0, seed) for seed in (1, 2)])
    trace = wm.simulate("xjoin", schedule, on="id", memory="96 KiB")
    shown = drawn(trace)
    check(shown)
    assert f"{trace.total:,} results" in shown and f"{trace.online_share:.1%}" in shown
    assert html.SHADES["clean-up"] in shown, "the phases are told by colours"
    assert shown.count("<svg") == 2 and len(shown) < 60_000


def test_a_curve_ends_where_the_values_do() -> None:
    path = re.search(r'<path d="(M0[^"]*)" fill="none" stroke="#0072b2"', html.curve([0, 1, 4], [0, 5, 20], "rows"))
    assert path is not None
    places = [tuple(map(float, pair)) for pair in re.findall(r"H([\d.]+)V([\d.]+)", path[1])]
    assert places == [(0.0, 130.0), (140.0, 97.5), (560.0, 0.0)]
    assert html.curve([0], [1], "rows") == "", "one moment is no curve"
    many = html.curve(list(range(10_000)), list(range(10_000)), "rows")
    assert many.count("V") < 500 and "9,999 rows" in many


def test_ipython_is_not_imported() -> None:
    code = (
        "import sys, pyarrow as pa, watersmeet as wm\n"
        "t = pa.table({'id': [1]})\n"
        "assert wm.join(t, t, on='id', memory='8 MiB').table().num_rows == 1\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('IPython', 'ipykernel')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    class IPython:
        @staticmethod
        def get_ipython() -> object:
            return object()

    monkeypatch.setitem(sys.modules, "IPython", IPython)  # type: ignore[arg-type]
    assert drawing.follower(History()) is None


def test_short_joins_show_nothing() -> None:
    follow = drawing.Follower(History(), lambda *_, **__: pytest.fail("shown"))
    follow(Progress(("a", "b"), (1, 1), elapsed=0.1))
    follow(Progress(("a", "b"), (1, 1), elapsed=0.9, done=True))
    follow.close()


SLOW = """
import time
import IPython.display
import pyarrow as pa
import watersmeet as wm

shown = []
display = IPython.display.display

def noted(*args, **options):
    shown.append(args)
    return display(*args, **options)

IPython.display.display = noted

def slowly():
    for i in range(24):
        time.sleep(0.05)
        yield {"id": i % 3}
    while not shown:
        time.sleep(0.01)
    while "ENDING" == "left":
        time.sleep(0.01)
        yield {"id": 0}
    if "ENDING" == "failed":
        raise OSError("the <b>wire</b> was cut")

def join():
    return wm.join(pa.table({"id": [0, 1]}), slowly(), on="id", memory="8 MiB", wait=0.2)
"""


def in_a_kernel(code: str, place: Path) -> tuple[list[str], list[nbformat.NotebookNode]]:
    """Everything that a cell shows as HTML, one after the other, and what stays in its output."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    seen: list[str] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, msg, cell, cell_index):  # type: ignore[no-untyped-def]
            if msg["msg_type"] in ("display_data", "update_display_data"):
                seen.append(msg["content"]["data"]["text/html"])
            return super().process_message(msg, cell, cell_index)

    Client(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    return seen, book.cells[0].outputs


def test_progress_follows_a_slow_join_in_a_kernel(tmp_path: Path) -> None:
    seen, outputs = in_a_kernel(SLOW + "join().table().num_rows", tmp_path)
    assert outputs[-1]["data"]["text/plain"] == "16"
    shown = [each for each in outputs if each["output_type"] == "display_data"]
    assert len(shown) == 1, "one place, drawn anew"
    assert len(seen) >= 2 and "done" not in seen[0]
    last = shown[0]["data"]["text/html"]
    check(last)
    assert "done" in last and "<b>16</b> rows" in last and "<svg" in last


ENDINGS = {
    "left": "for batch in join():\n    if shown: break\n",
    "failed": "try:\n    join().table()\nexcept wm.SourceError: pass\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_join_that_ends_early_says_so(ending: str, tmp_path: Path) -> None:
    code = SLOW.replace("ENDING", ending) + ENDINGS[ending]
    seen, _ = in_a_kernel(code, tmp_path)
    check(seen[-1])
    assert "closed" in seen[-1]
    assert ("the &lt;b&gt;wire&lt;/b&gt; was cut" in seen[-1]) == (ending == "failed")
