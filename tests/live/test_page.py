"""The page in a browser: the run's numbers, as they come, whatever they are called."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm
from live.runs import NAMES, history, progress
from waiting import until
from watersmeet.core.report import BatchFigures, Probing
from watersmeet.drivers.history import CAPACITY, History
from watersmeet.drivers.progress import Progress
from watersmeet.live import app
from watersmeet.live.attach import write_report, write_runs
from watersmeet.live.board import ShownRun

Visit = Callable[..., Any]
NASTY = ('<script>window.hacked = "name"</script>', '"><img src=x onerror="window.hacked = 1">')


@pytest.fixture
def page() -> Iterator[wm.Page]:
    with wm.Page() as made:
        yield made


def shown(tab: Any, run: str = "run-1") -> Any:
    """The run that the browser has, as values."""
    return tab.evaluate("key => { const r = watersmeet.runs.get(key); return {samples: r.samples, now: r.now}; }", run)


def when(tab: Any, condition: str, argument: Any = None) -> None:
    tab.wait_for_function(condition, arg=argument)


def drawn(tab: Any, chart: str) -> int:
    """How many different colours a chart's canvas holds: an empty one has one."""
    return tab.evaluate(
        """id => { const c = document.querySelector(`#chart-${id} canvas`);
        const p = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, found = new Set();
        for (let i = 0; i < p.length; i += 4) found.add((p[i] << 16) | (p[i + 1] << 8) | p[i + 2] | (p[i + 3] << 24));
        return found.size; }""",
        chart,
    )


def column(tab: Any, chart: str, series: int) -> list[float]:
    """What a chart draws."""
    return tab.evaluate("([id, i]) => watersmeet.view.charts.find(c => c.spec.id === id).u.data[i]", [chart, series])


class TestARealJoin:
    def test_the_charts_have_the_numbers_of_the_run(self, page: wm.Page, visit: Visit) -> None:
        left, right = (pa.table({"id": range(60_000), "text": ["x" * 60] * 60_000}) for _ in "lr")
        result = wm.join(left, right, on="id", memory="1 MiB", names=("orders", "paid"), page=page)
        rows = sum(batch.num_rows for batch in result)
        assert rows == 60_000 and result.progress.spilled > 0
        tab = visit(page.address)
        when(tab, "() => document.querySelector('#phase').textContent === 'done'")
        assert tab.text_content("#title") == "orders ⋈ paid"
        assert tab.text_content("#tile-out .big") == "60,000"
        assert re.findall(r"[\d,]{3,}", tab.text_content("#tile-in")) == ["60,000", "60,000"]
        samples = result.history.samples()
        assert column(tab, "results", 1) == [each.rows_out for each in samples]
        assert column(tab, "inputs", 1) == [each.rows_in[0] for each in samples]
        assert column(tab, "memory", 1) == [each.memory for each in samples]
        assert column(tab, "disk", 1) == [each.on_disk for each in samples]
        assert all(drawn(tab, chart) > 5 for chart in ("results", "lanes", "inputs", "memory", "disk"))

    def test_it_follows_a_join_through_a_silence_to_its_end(self, page: wm.Page, visit: Visit) -> None:
        goes_on = threading.Event()

        def slow() -> Iterator[dict[str, int]]:
            for number in range(500):
                yield {"id": number}
            goes_on.wait(120)
            for number in range(500, 700):
                yield {"id": number}

        result = wm.join(slow(), pa.table({"id": range(1000)}), on="id", names=("slow", "fast"), page=page)
        reader = threading.Thread(target=result.table)
        reader.start()
        tab = visit(page.address)
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '500'")
        # The silence is seen as one while it lasts.
        when(tab, "() => watersmeet.silences(watersmeet.runs.get('run-1').samples).length > 0")
        goes_on.set()
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '700'")
        when(tab, "() => document.querySelector('#phase').textContent === 'done'")
        reader.join()
        assert shown(tab)["now"]["rows_in"] == [700, 1000]

    def test_a_failed_join_says_why(self, page: wm.Page, visit: Visit) -> None:
        def broken() -> Iterator[dict[str, int]]:
            yield {"id": 1}
            raise ValueError("the <b>cable</b>")

        with pytest.raises(wm.SourceError):
            wm.join(broken(), [{"id": 1}], on="id", page=page).table()
        tab = visit(page.address)
        when(tab, "() => document.querySelector('#phase').textContent === 'failed'")
        assert "the <b>cable</b>" in tab.text_content("#notice")

    def test_several_joins_share_a_page(self, page: wm.Page, visit: Visit) -> None:
        for rows in (10, 20):
            table = pa.table({"id": range(rows)})
            wm.join(table, table, on="id", names=(f"a{rows}", "b"), page=page).table()
        tab = visit(page.address)
        when(tab, "() => document.querySelectorAll('[role=tab]').length === 2")
        assert tab.text_content("#tile-out .big") == "20"  # the newest
        tab.click("[role=tab] >> nth=0")
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '10'")
        tab.keyboard.press("ArrowRight")
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '20'")


class TestNews:
    def test_updates_come_in(self, page: wm.Page, visit: Visit) -> None:
        run = history(10)
        page.add("a run", run)
        tab = visit(page.address)
        when(tab, "() => document.querySelector('#tile-out .big')?.textContent === '6,300'")
        for step in range(10, 30):
            run.add(progress(step))
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '20,300'")
        assert [sample["t"] for sample in shown(tab)["samples"]] == [each.elapsed for each in run.samples()]

    def test_ten_thousand_updates_without_growth(
        self, page: wm.Page, visit: Visit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app, "EVERY", 0.001)
        run, over = History(), threading.Event()
        page.add("a long run", run)

        def feed() -> None:
            step = 0
            while not over.wait(0.0005):
                run.add(progress(step))
                step += 1

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            tab = visit(page.address)
            session = tab.context.new_cdp_session(tab)

            def size() -> tuple[int, int]:
                session.send("HeapProfiler.collectGarbage")
                heap = tab.evaluate("() => performance.memory.usedJSHeapSize")
                return heap, tab.evaluate("() => document.querySelectorAll('*').length")

            when(tab, "() => watersmeet.state.updates > 4000")  # by then the history has been thinned out
            before, nodes = size()
            when(tab, "() => watersmeet.state.updates > 10000")
            after, nodes_then = size()
            count = tab.evaluate("() => watersmeet.runs.get('run-1').samples.length")
        finally:
            over.set()
            feeder.join()
        assert run.since(None).version[0] > 0, "it was never thinned out"
        assert len(run.samples()) <= CAPACITY and count <= CAPACITY
        assert after - before < 3_000_000 and nodes_then <= nodes + 20

    def test_a_broken_connection_comes_back(self, visit: Visit) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serve = (
            "import sys, watersmeet as wm; from live.runs import history\n"
            "page = wm.Page(int(sys.argv[1]), token='t'); page.add('a run', history(int(sys.argv[2])))\n"
            "print(page.address, flush=True); sys.stdin.read()"
        )

        def server(steps: int) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", serve, str(port), str(steps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={"PYTHONPATH": str(Path(__file__).parents[1])},
            )
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            return process

        first = server(10)
        try:
            tab = visit(f"http://127.0.0.1:{port}/?token=t", complains=True)
            when(tab, "() => document.querySelector('#tile-out .big')?.textContent === '6,300'")
        finally:
            first.send_signal(signal.SIGKILL)
            first.communicate()
        when(tab, "() => document.querySelector('#link').textContent.startsWith('Connection lost')")
        assert tab.text_content("#tile-out .big") == "6,300"
        second = server(20)
        try:
            when(tab, "() => document.querySelector('#tile-out .big').textContent === '13,300'")
            assert not tab.is_visible("#link")
            assert len(shown(tab)["samples"]) == 20
        finally:
            second.communicate("")

    def test_the_end_is_told_and_what_is_seen_stays(self, page: wm.Page, visit: Visit) -> None:
        run = history(10)
        page.add("a run", run)
        tab = visit(page.address)
        when(tab, "() => document.querySelector('#tile-out .big')?.textContent === '6,300'")
        run.add(progress(11, phase="done", done=True))
        run.end()
        page.close()
        when(tab, "() => document.querySelector('#link').textContent.includes('no longer served')")
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '7,700'")
        assert tab.text_content("#phase") == "done"

    def test_a_reader_who_holds_the_join_up_is_named(self, page: wm.Page, visit: Visit) -> None:
        page.add("a run", history(10))
        tab = visit("about:blank")
        tab.clock.install()
        tab.goto(page.address)
        when(tab, "() => watersmeet.runs.size === 1")
        tab.clock.fast_forward(6000)
        when(tab, "() => document.querySelector('#notice').textContent.startsWith('No news for')")


class TestNames:
    def check(self, tab: Any) -> None:
        when(tab, "() => watersmeet.runs.size === 1 && watersmeet.view.charts.length > 0")
        tab.click("summary")
        assert tab.evaluate("() => window.hacked") is None
        assert tab.evaluate("() => document.querySelectorAll('main script, main img, header img').length") == 0
        assert NASTY[0] in tab.text_content("#tile-in") and NASTY[1] in tab.text_content("#chart-inputs")
        assert tab.text_content("#title") == " ⋈ ".join(NASTY)

    def run(self) -> History:
        probing = Probing((f"{NASTY[0]} = x",), ((0, 1),), ((1.0, 2.0),), ((1,), (0,)))
        return history(20, names=NASTY, algorithm=NASTY[0], probing=probing, phase=NASTY[1])

    def test_a_column_called_script(self, page: wm.Page, visit: Visit) -> None:
        page.add(" ⋈ ".join(NASTY), self.run())
        self.check(visit(page.address))

    def test_in_a_report(self, tmp_path: Path, visit: Visit) -> None:
        write_report(tmp_path / "run.html", " ⋈ ".join(NASTY), self.run())
        self.check(visit((tmp_path / "run.html").as_uri()))

    def test_in_a_join(self, page: wm.Page, visit: Visit) -> None:
        name = "<script>hacked()</script>"
        table = pa.table({name: [1, 2]})
        wm.join(table, table, on=name, names=(name, "b"), page=page).table()
        tab = visit(page.address)
        when(
            tab, "() => document.querySelector('#tile-in')?.textContent.includes('<script>hacked()')"
        )  # else the console complains of it


class TestLooks:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 820, 1360])
    def test_nothing_runs_over_the_edge(self, page: wm.Page, visit: Visit, width: int, theme: str) -> None:
        page.add("a-rather-long-name-of-an-input/2026/*.parquet ⋈ another-one-that-is-longer-still.parquet", history())
        tab = visit(page.address, width=width, theme=theme)
        when(tab, "() => document.querySelectorAll('.uplot').length >= 6")
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
        assert tab.evaluate("() => document.documentElement.dataset.theme") == theme
        dark = tab.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 27)"
        assert dark == (theme == "dark")

    def test_windows_lookups_spark_and_multijoins_have_their_own(self, page: wm.Page, visit: Visit) -> None:
        probing = Probing(
            ("a.x = b.x", "b.y = c.y"), ((0, 1), (1, 2)), ((2.0, 0.5), (130.0, 1.0)), ((1, 2), (2, 0), (1, 0))
        )
        run = History()
        for step in range(30):
            run.add(
                Progress(
                    ("a", "b", "c"), (step, step, step), step, 0.1, step / 10, budget=100, memory=10, phase="arriving",
                    late=(step, 0, 1), window_rows=step, reached=(1.7e9 + step, 1.7e9, None), dated=True,
                    delays=(0.1, 0.2), probing=probing, batch=BatchFigures(step, 2.0, 1.5), on_disk=step,
                )
            )  # fmt: skip
        shown_run = page.add("all of them", run)
        groups = [{"number": n, "slot": n % 2, "load": n / 2, "moved": n == 3} for n in range(8)]
        shown_run.extras = {
            "groups": groups,
            "unit": "seconds",
            "batch": 29,
            "hot": [{"key": "7f", "ways": 2, "groups": [8, 9]}],
        }
        tab = visit(page.address)
        when(tab, "() => document.querySelector('#chart-probing svg text')")
        assert tab.locator(".slot").count() == 2 and tab.locator(".slot .cell").count() == 8
        assert tab.locator(".slot .cell.moved").get_attribute("title") == "group 3: 1.5 s, has just moved here"
        assert "7f" in tab.text_content("#chart-grid table")
        assert column(tab, "batch", 2) == [1.5] * 30 and column(tab, "late", 1)[-1] == 29
        assert column(tab, "reached", 1)[-1] == 1.7e9 + 29 and column(tab, "waits", 1) == [0.2] * 30
        assert "2023-11-14" in tab.text_content("#chart-reached .legend")
        assert tab.locator(".order").all_text_contents() == ["a→b→c", "b→c→a", "c→b→a"]

    def test_possible_results_are_drawn_beside_those_found(self, page: wm.Page, visit: Visit) -> None:
        run = history(30)
        run.possible = ([0.5, 1.05, 2.5], [1000, 5000, 40000])
        page.add("a run", run)
        tab = visit(page.address)
        when(tab, "() => document.querySelectorAll('#chart-results .legend span').length >= 2")
        at = dict(zip(column(tab, "results", 0), column(tab, "results", 1), strict=True))
        assert (at[0.4], at[0.5], at[0.9], at[1.05], at[2.9]) == (0, 1000, 1000, 5000, 40000)
        found = dict(zip(column(tab, "results", 0), column(tab, "results", 2), strict=True))
        assert (found[1.0], found[1.05], found[1.1]) == (7000, 7000, 7700)

    def test_keys(self, page: wm.Page, visit: Visit, tmp_path: Path) -> None:
        run = history(50)
        page.add("a run", run)
        tab = visit(page.address)
        when(tab, "() => document.querySelectorAll('.uplot').length >= 6")
        tab.keyboard.press("t")
        assert tab.evaluate("() => document.documentElement.dataset.theme") == "dark"
        tab.keyboard.press("ArrowLeft")
        tab.keyboard.press("ArrowLeft")
        assert "at 4.7 s" in tab.text_content("#chart-results h2 + span")
        assert "32,900" in tab.text_content("#chart-results .legend")
        box = tab.locator("#chart-results .u-over").bounding_box()
        tab.mouse.move(box["x"] + 50, box["y"] + 40)
        tab.mouse.down()
        tab.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
        tab.mouse.up()
        when(tab, "() => watersmeet.view.zoom !== null")
        scales = "() => watersmeet.view.charts.filter(c => c.u).map(c => c.u.scales.x.max)"
        assert len(set(tab.evaluate(scales))) == 1 and tab.evaluate(scales)[0] < 4
        assert tab.is_visible("#whole")
        tab.keyboard.press("Escape")
        assert tab.evaluate(scales)[0] == 4.9 and not tab.is_visible("#whole")
        tab.keyboard.press(" ")
        assert tab.get_attribute("#hold", "aria-pressed") == "true"
        run.add(progress(60))
        when(tab, "() => watersmeet.runs.get('run-1').now.elapsed === 6")
        assert tab.text_content("#tile-out .big") == "34,300"
        tab.keyboard.press(" ")
        when(tab, "() => document.querySelector('#tile-out .big').textContent === '42,000'")
        with tab.expect_download() as download:
            tab.keyboard.press("s")
        download.value.save_as(tmp_path / "saved.html")
        saved = visit((tmp_path / "saved.html").as_uri())
        when(saved, "() => document.querySelector('#tile-out .big')?.textContent === '42,000'")
        assert len(shown(saved)["samples"]) == len(run.samples())


class TestReports:
    def test_a_finished_run_in_one_file_that_asks_for_nothing(self, tmp_path: Path, visit: Visit) -> None:
        left, right = (pa.table({"id": range(3000)}) for _ in "lr")
        result = wm.join(left, right, on="id", memory="8 MiB", names=NAMES)
        result.table()
        result.report(tmp_path / "run.html")
        tab = visit("about:blank")
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto((tmp_path / "run.html").as_uri())
        when(tab, "() => document.querySelector('#tile-out .big')?.textContent === '3,000'")
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert tab.text_content("#phase") == "done" and column(tab, "results", 1)[-1] == 3000
        assert not tab.is_visible("#hold") and not tab.is_visible("#link")

    def test_a_state_directory(self, tmp_path: Path, visit: Visit) -> None:
        run = History()
        for batch in range(5):
            run.add(
                Progress(
                    (),
                    (),
                    elapsed=float(batch),
                    on_disk=1000 * batch,
                    phase=f"after batch {batch}",
                    batch=BatchFigures(batch, 1.0, 1.0),
                )
            )
        groups = [{"number": n, "slot": None, "load": 100 * n} for n in range(4)]
        write_runs(
            tmp_path / "state.html",
            [ShownRun("run-1", "orders", run, {"groups": groups, "unit": "bytes"}, kind="state")],
        )
        tab = visit((tmp_path / "state.html").as_uri())
        when(tab, "() => document.querySelectorAll('.slot .cell').length === 4")
        assert tab.text_content("#tile-batch .big") == "4" and column(tab, "disk", 1) == [0, 1000, 2000, 3000, 4000]
        assert tab.locator("#chart-results").count() == 0


class TestOtherOrigins:
    def test_a_page_of_another_origin_reads_nothing(self, page: wm.Page, visit: Visit) -> None:
        page.add("a secret", history(3))
        with wm.Page() as other:
            tab = visit(other.address, complains=True)
            when(tab, "() => typeof watersmeet === 'object'")
            tab.context.new_page()  # keeps the context alive whatever the policy does to this one
            ask = "async url => { try { return (await fetch(url)).status; } catch (error) { return 'refused'; } }"
            blank = visit("about:blank", complains=True)
            for path in ("/", "/events", "/metrics"):
                url = page.address.replace("/?", f"{path}?")
                assert tab.evaluate(ask, url) == "refused" and blank.evaluate(ask, url) == "refused"


def test_nothing_in_the_page_needs_the_network(page: wm.Page, visit: Visit) -> None:
    page.add("a run", history(5))
    asked: list[str] = []
    tab = visit("about:blank")
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.address)
    when(tab, "() => watersmeet.runs.size === 1")
    until(lambda: asked, "it asked for nothing at all")
    assert {url.split("?")[0] for url in asked if not url.startswith("data:")} == {
        f"{page.origin}/",
        f"{page.origin}/events",
    }
    assert json.dumps(shown(tab)["now"]["names"]) == json.dumps(list(NAMES))
