"""Metrics in Prometheus' text format, and a Grafana dashboard that asks for what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa

import watersmeet as wm
from live.runs import history
from watersmeet.core.report import BatchFigures, Lateness, LookupFigures, PromiseFigures
from watersmeet.drivers.history import History
from watersmeet.drivers.progress import Progress
from watersmeet.live.board import METRICS, ShownRun, exposition

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
LINE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+)')


def read(text: str) -> dict[tuple[str, str], float]:
    """Values by name and labels, as Prometheus reads them; an error if it could not."""
    found, typed = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge") and name not in typed
            typed[name] = kind
        elif not line.startswith("# HELP "):
            whole = LINE.fullmatch(line)
            assert whole is not None, line
            name, labels, value = whole.groups()
            assert typed[name] == ("counter" if name.endswith("_total") else "gauge")
            assert (name, labels) not in found
            found[name, labels] = float(value)
    return found


def everything() -> History:
    """A run that has every figure there is."""
    run = History()
    run.add(
        Progress(
            ("a", "b"), (1, 2), 3, 0.5, 1.5, memory=4, peak=5, budget=6, spilled=7, on_disk=8, phase="arriving",
            algorithm="confluence", late=(9, 10), window_rows=11, delays=(0.1, 0.2), done=False,
            lookup=LookupFigures(12, 13, 14, 15, 0.3, 0.4), lateness=Lateness(0.1, 0.2, 0.3, 16),
            promises=PromiseFigures((1, 1), (17, 18), (0, 0), (0, 0)), reached=(19.0, None),
            batch=BatchFigures(20, 2.5, 1.0), events=(("flushed", 21),),
        )
    )  # fmt: skip
    return run


def test_every_figure_is_told() -> None:
    found = read(exposition([ShownRun("run-1", "a ⋈ b", everything())]))
    assert {name for name, _ in found} == {metric.name for metric in METRICS}
    labels = 'run="run-1",title="a ⋈ b"'
    assert found["watersmeet_rows_in_total", f'{labels},input="b"'] == 2
    assert found["watersmeet_batch_seconds", f'{labels},part="spark"'] == 1.5
    assert found["watersmeet_wait_seconds", f'{labels},quantile="0.99"'] == 0.4
    assert found["watersmeet_events_total", f'{labels},event="flushed"'] == 21
    assert ("watersmeet_reached", f'{labels},input="b"') not in found


def test_several_runs_and_names_that_need_care() -> None:
    first, second = history(3, names=('a"b', "c\\d\ne")), history(4)
    text = exposition(
        [
            ShownRun("run-1", 'odd "names"\n', first),
            ShownRun("run-2", "plain", second),
            ShownRun("run-3", "new", History()),
        ]
    )
    found = read(text)
    assert found["watersmeet_rows_out_total", 'run="run-2",title="plain"'] == 2100
    assert 'input="a\\"b"' in text and 'input="c\\\\d\\ne"' in text and "run-3" not in text


def test_those_of_a_join() -> None:
    table = pa.table({"id": range(50)})
    result = wm.join(table, table, on="id", names=("a", "b"))
    result.table()
    found = read(exposition([ShownRun("run-1", "t", result.history)]))
    assert found["watersmeet_rows_out_total", 'run="run-1",title="t"'] == 50
    assert found["watersmeet_done", 'run="run-1",title="t"'] == 1


def test_the_dashboard_asks_for_what_there_is_and_shows_all_of_it() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["definition"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    names = set(re.findall(r"watersmeet_\w+", " ".join(asked)))
    assert names == {metric.name for metric in METRICS}
    # What is grouped and shown by is a label that the metric has.
    found = read(exposition([ShownRun("run-1", "t", everything())]))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            [name] = set(re.findall(r"watersmeet_\w+", target["expr"]))
            labels = {label for told, each in found if told == name for label in re.findall(r'(\w+)="', each)}
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) | set(
                re.findall(r"(\w+)=~", target["expr"])
            )
            assert used <= labels | {"instance"}, (panel["title"], used - labels)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_documentation_names_all_of_them() -> None:
    told = re.findall(r"^\| `(watersmeet_\w+)`", (DASHBOARD.parent / "live.md").read_text(), re.MULTILINE)
    assert told == [metric.name for metric in METRICS]
