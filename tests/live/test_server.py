"""The page's server: who is answered, what, and that nothing of it is left."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import watersmeet as wm
from live.runs import history, progress
from waiting import PATIENCE, ended, until
from watersmeet.core.errors import SpecError
from watersmeet.drivers.history import History
from watersmeet.live import app
from watersmeet.live.board import MOST_RUNS, Board, Reader


@pytest.fixture
def page() -> Iterator[wm.Page]:
    with wm.Page() as made:
        made.add("a run", history(5))
        yield made


def ask(
    page: wm.Page, path: str, *, token: str | None = "", method: str = "GET", **headers: str
) -> tuple[int, str, Any]:
    """Status, text and headers; the page's token unless another one, or None, is given."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    given = page.token if token == "" else token
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path if given is None else f"{path}?token={given}", headers=headers)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def pages_alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watersmeet-page"]


class TestWhoIsAnswered:
    @pytest.mark.parametrize("path", ["/", "/metrics"])
    def test_whoever_has_the_token(self, page: wm.Page, path: str) -> None:
        assert ask(page, path)[0] == 200

    @pytest.mark.parametrize("path", ["/", "/events", "/metrics"])
    @pytest.mark.parametrize("token", [None, "wrong", "%00"])
    def test_nobody_else(self, page: wm.Page, path: str, token: str | None) -> None:
        status, text, _ = ask(page, path, token=token)
        assert status == 403 and text == "the address lacks the token; use the whole address that was printed\n"

    @pytest.mark.parametrize("path", ["/", "/events", "/metrics"])
    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1.evil.example:{port}"])
    def test_not_under_another_name(self, page: wm.Page, path: str, host: str) -> None:
        assert ask(page, path, Host=host.format(port=page.port))[0] == 403

    @pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
    def test_under_our_names(self, page: wm.Page, name: str) -> None:
        assert ask(page, "/metrics", Host=f"{name}:{page.port}", Origin=f"http://{name}:{page.port}")[0] == 200

    @pytest.mark.parametrize("path", ["/", "/events", "/metrics"])
    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
    )
    def test_not_for_another_origin(self, page: wm.Page, path: str, origin: str) -> None:
        assert ask(page, path, Origin=origin.format(port=page.port))[0] == 403

    def test_not_for_another_sites_frames_and_images(self, page: wm.Page) -> None:
        assert ask(page, "/events", Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(page, "/", Sec_Fetch_Site="cross-site")[0] == 200  # a link in a mail or a terminal

    @pytest.mark.parametrize(
        "path",
        ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/assets/page.js", "//etc/passwd", "/..%5cx", "/%00"],
    )
    def test_only_what_there_is(self, page: wm.Page, path: str) -> None:
        assert ask(page, path)[0] == 404 and ask(page, "/", method="POST")[0] == 405

    def test_a_scraper_may_send_the_token_as_a_bearer(self, page: wm.Page) -> None:
        assert ask(page, "/metrics", token=None, Authorization=f"Bearer {page.token}")[0] == 200
        assert ask(page, "/metrics", token=None, Authorization="Bearer wrong")[0] == 403

    def test_what_a_browser_is_told(self, page: wm.Page) -> None:
        _, text, headers = ask(page, "/")
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
        assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers
        assert page.token not in text and "//cdn" not in text

    def test_it_listens_on_the_loopback_interface_alone(self, page: wm.Page) -> None:
        assert page._socket.getsockname()[0] == "127.0.0.1"
        assert urlsplit(page.address).hostname == "127.0.0.1"

    def test_tokens_differ(self, page: wm.Page) -> None:
        with wm.Page() as other:
            assert len(page.token) >= 32 and page.token != other.token


class TestNews:
    def events(self, page: wm.Page) -> Generator[tuple[str, Any], None, None]:
        with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)) as connection:
            connection.request("GET", f"/events?token={page.token}")
            answer = connection.getresponse()
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            name = ""
            with closing(answer):
                while line := answer.readline():
                    word, _, value = line.decode().strip().partition(": ")
                    if word == "event":
                        name = value
                    elif word == "data":
                        yield name, json.loads(value)

    def test_first_all_then_what_is_new_then_the_end(self, page: wm.Page) -> None:
        run = page.board.runs[0].history
        news = self.events(page)
        name, [document] = next(news)
        assert name == "news" and document["start"] == 0 and len(document["kept"]) + len(document["tail"]) == 5
        run.add(progress(5))
        name, [document] = next(news)
        assert name == "news" and document["start"] > 0 and document["tail"][-1:] + document["kept"][-1:]
        assert document["now"]["rows_out"] == 3500
        run.add(progress(6, done=True))
        run.end()
        page.close()
        rest = list(news)
        assert rest[-1] == ("end", None)
        assert rest[0][1][0]["ended"] and rest[0][1][0]["now"]["rows_out"] == 4200

    def test_runs_that_have_ended_make_room(self) -> None:
        board = Board()
        for number in range(3 * MOST_RUNS):
            made = History()
            made.add(progress(number))
            made.end()
            board.add(f"run {number}", made)
        assert [run.title for run in board.runs] == [f"run {number}" for number in range(2 * MOST_RUNS, 3 * MOST_RUNS)]

    def test_a_reader_forgets_runs_that_are_gone(self) -> None:
        board, reader = Board(), None
        reader = Reader(board)
        for number in range(3 * MOST_RUNS):
            made = History()
            made.add(progress(number))
            made.end()
            board.add(f"run {number}", made)
            assert len(reader.news()) == 1
        assert len(reader._known) <= MOST_RUNS


class TestItsCost:
    """At most 2% of a join's time at ten updates a second: 2 ms of a processor for each."""

    UPDATES = 300

    def test_of_telling_a_browser(self, page: wm.Page, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(app, "EVERY", 0.001)
        run = page.board.runs[0].history
        for step in range(5, 2000):
            run.add(progress(step))
        news = TestNews().events(page)
        next(news)
        thread = time.pthread_getcpuclockid(page._thread.ident or 0)
        before, told = time.clock_gettime(thread), 0
        for step in range(self.UPDATES):
            run.add(progress(2000 + step))
            told += next(news)[0] == "news"
        news.close()
        assert told == self.UPDATES
        assert (time.clock_gettime(thread) - before) / self.UPDATES < 0.001

    def test_of_taking_a_sample(self) -> None:
        left, right = (pa.table({"id": range(60_000), "text": ["x" * 60] * 60_000}) for _ in "lr")
        result = wm.join(left, right, on="id", memory="1 MiB")
        batches = iter(result)
        while not result.progress.spilled:
            next(batches)
        before = time.thread_time()
        for _ in range(self.UPDATES):
            result.history.add(result.progress)
        assert (time.thread_time() - before) / self.UPDATES < 0.0005
        result.close()


class TestItsEnd:
    def test_a_join_leaves_no_thread_and_no_port(self, capfd: pytest.CaptureFixture[str]) -> None:
        before = pages_alive()
        table = pa.table({"id": range(100)})
        result = wm.join(table, table, on="id", page=True)
        assert result.page is not None and result.page in capfd.readouterr().err
        assert len(pages_alive()) == len(before) + 1
        port = urlsplit(result.page).port
        assert port is not None
        result.table()
        assert pages_alive() == before
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
            pass

    def test_nor_does_one_that_fails_is_closed_or_forgotten(self) -> None:
        def broken() -> Iterator[dict[str, int]]:
            yield {"id": 1}
            raise ValueError("no more")

        before = pages_alive()
        with pytest.raises(wm.SourceError):
            wm.join(broken(), [{"id": 1}], on="id", page=True).table()
        assert pages_alive() == before
        wm.join([{"id": 1}], [{"id": 1}], on="id", page=True).close()
        assert pages_alive() == before
        forgotten = wm.join([{"id": 1}], [{"id": 1}], on="id", page=True)
        assert pages_alive() != before
        del forgotten
        until(lambda: pages_alive() == before, "the page of a join that nobody has is still served")

    def test_a_page_that_nobody_has_is_closed(self) -> None:
        before = pages_alive()
        page = wm.Page()
        page.add("a run", history(3))
        assert len(pages_alive()) == len(before) + 1
        del page
        until(lambda: pages_alive() == before, "the page is still served")

    def test_at_exit_browsers_hear_the_end_and_nobody_complains(self) -> None:
        code = (
            "import sys, pyarrow as pa, watersmeet as wm\n"
            "page = wm.Page(token='t'); table = pa.table({'id': [1]})\n"
            "result = wm.join(table, table, on='id', page=page); next(iter(result))\n"
            "print(page.port, flush=True); sys.stdin.readline()"
        )
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline())
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/events?token=t")
            answer = connection.getresponse()
            answer.readline()
            process.stdin.write("\n")
            process.stdin.flush()
            heard = answer.read().decode()
        _, complaints = ended(process, "its input has ended")
        assert heard.endswith("event: end\ndata: null\n\n") and complaints == "" and process.returncode == 0

    @pytest.mark.parametrize("verb", ["multijoin", "window_join", "lookup_join", "shared_lookup_join"])
    def test_every_verb_has_a_page(self, verb: str) -> None:
        table = pa.table({"id": [1, 2], "ts": [1, 2]})
        verbs = {
            "multijoin": lambda page: wm.multijoin({"a": table, "b": table}, on="a.id = b.id", page=page).table(),
            "window_join": lambda page: wm.window_join(table, table, on="id", time="ts", window=5, page=page).table(),
            "lookup_join": lambda page: wm.lookup_join(table, table, on="id", page=page).table(),
            "shared_lookup_join": lambda page: wm.shared_lookup_join({"s": table}, table, on="id", page=page).tables(),
        }
        with wm.Page() as page:
            verbs[verb](page)
            [run] = page.board.runs
            assert run.history.ended and run.document()["now"]["rows_out"] == 2
            assert ask(page, "/metrics")[0] == 200

    def test_without_a_page_nothing_of_it_is_imported(self) -> None:
        code = (
            "import sys, pyarrow as pa, watersmeet as wm\n"
            "table = pa.table({'id': [1]}); result = wm.join(table, table, on='id'); result.table()\n"
            "assert len(result.history.samples()) > 1\n"
            "print([name for name in sys.modules if name.startswith(('starlette', 'uvicorn', 'anyio', 'asyncio', "
            "'watersmeet.live'))])"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        assert found.stdout.strip() == "[]"

    def test_a_report_needs_no_server(self, tmp_path: Path) -> None:
        code = (
            "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
            "import pyarrow as pa, watersmeet as wm\n"
            "table = pa.table({'id': [1]}); result = wm.join(table, table, on='id'); result.table()\n"
            "result.report(sys.argv[1])\n"
            "try: wm.join(table, table, on='id', page=True)\n"
            "except wm.WatersmeetError as error: print(error)"
        )
        place = tmp_path / "run.html"
        found = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=True)
        assert "'pip install starlette uvicorn'" in found.stdout and place.stat().st_size > 50_000


class TestAddresses:
    def test_a_port_that_is_taken(self, page: wm.Page) -> None:
        with pytest.raises(SpecError, match=f"the page cannot be at 127.0.0.1:{page.port}: .* choose another port"):
            wm.Page(page.port)

    @pytest.mark.parametrize("address", ["nowhere", ":80", "127.0.0.1:", 70000, True])
    def test_what_is_no_address(self, address: Any) -> None:
        with pytest.raises(SpecError, match="is not understood; give a port, or HOST:PORT"):
            wm.Page(address)

    def test_a_join_with_a_bad_address_leaves_nothing(self) -> None:
        before = threading.active_count()
        with pytest.raises(SpecError, match="is not understood"):
            wm.join([{"id": 1}], [{"id": 1}], on="id", page="nowhere")
        assert threading.active_count() == before

    def test_other_interfaces_when_told(self) -> None:
        with wm.Page("0.0.0.0:0") as page:
            assert ask(page, "/metrics", Host="this-machine.example:1234")[0] == 200
            assert ask(page, "/metrics", Host="this-machine.example:1234", token=None)[0] == 403
            assert ask(page, "/metrics", Host="this-machine.example:1234", Origin="http://evil.example")[0] == 403


class TestReports:
    def test_what_cannot_be_written(self, tmp_path: Path) -> None:
        result = wm.join([{"id": 1}], [{"id": 1}], on="id")
        result.table()
        with pytest.raises(SpecError, match=r"name it \.html"):
            result.report(tmp_path / "run.pdf")
        with pytest.raises(wm.WatersmeetError, match=r"cannot write .*No such file"):
            result.report(tmp_path / "no" / "run.html")
        assert list(tmp_path.iterdir()) == []
