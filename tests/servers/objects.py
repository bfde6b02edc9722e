"""Faults of an S3 server, as a test tells them; and a small server in this process that has them: `ObjectServer`.

What is asked for is counted, and may be answered by 503, late, not at all, or in half; a connection may be cut before
what is asked for is done, within an upload, or after it; and a listing may lag. `servers.between` has the same faults
between a test and a real server.
"""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.sax.saxutils import escape

Fault = Callable[[str, str], str]
"""What happens to a request, by its verb and key: "" for nothing, "503", "slow", "cut before", "cut within" an upload,
"cut after", "half" of the answer."""


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    verb: str
    """As HTTP has it, or LIST."""
    key: str
    query: dict[str, str]
    content: bytes
    path: str
    """As it came, with the query."""
    headers: Any


Answer = tuple[int, bytes, dict[str, str]]
"""The status, the content, and headers that go with it."""


class FaultyServer:
    """Serves one bucket on loopback until it is closed, with faults."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.requests: list[str] = []
        self.fault: Fault = lambda verb, key: ""
        self.hidden: Callable[[str], bool] = lambda key: False
        """Which keys a listing does not show yet."""
        self.lock = threading.Lock()
        server = self

        class Handler(_Handler):
            server_of = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, request: Request) -> Answer:
        """Do what is asked for."""
        raise NotImplementedError

    def cut_within(self, request: Request) -> None:
        """Let an upload break off half-way; nothing has come of it where it is not told otherwise."""

    def keys(self) -> set[str]:
        """What there is."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def address(self, path: str) -> str:
        """What `state=` is given."""
        where = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://me:secret@bucket/{path}?{where}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class ObjectServer(FaultyServer):
    """A server that keeps objects in memory, and writes names conditionally (`If-None-Match: *`)."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        super().__init__()

    def keys(self) -> set[str]:
        """What there is."""
        return set(self.objects)

    def answer(self, request: Request) -> Answer:
        """What a server of S3 would answer."""
        with self.lock:
            return *self._done(request), {}

    def _done(self, request: Request) -> tuple[int, bytes]:
        key = request.key
        if request.verb == "LIST":
            return 200, self._listed(request.query["prefix"])
        if request.verb == "PUT":
            if request.headers.get("if-none-match") == "*" and key in self.objects:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
            self.objects[key] = request.content
            return 200, b""
        if request.verb == "DELETE":
            self.objects.pop(key, None)
            return 204, b""
        return (200, self.objects[key]) if key in self.objects else (404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _listed(self, prefix: str) -> bytes:
        found, below = [], set()
        for key in self.objects:
            if key.startswith(prefix) and not self.hidden(key):
                name, slash, _ = key.removeprefix(prefix).partition("/")
                if slash:
                    below.add(f"{prefix}{name}/")
                else:
                    found.append(key)
        keys = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in sorted(found))
        dirs = "".join(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in sorted(below))
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<ListBucketResult xmlns="{space}">{keys}{dirs}</ListBucketResult>'.encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: FaultyServer

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _handle(self) -> None:
        server, request = self.server_of, self._request()
        named = request.key or request.query.get("prefix", "")
        with server.lock:
            server.asked[request.verb] += 1
            server.requests.append(f"{request.verb} {named}")
            fault = server.fault(request.verb, named)
        if fault == "slow":
            time.sleep(0.2)
        if fault == "cut within":
            server.cut_within(request)
        if fault in ("cut before", "cut within"):
            self.close_connection = True
            return
        if fault == "503":
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>", {})
            return
        answer = server.answer(request)
        if fault == "cut after":
            self.close_connection = True
            return
        self._answer(*answer, half=fault == "half")

    def _request(self) -> Request:
        parts = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        verb = "LIST" if self.command == "GET" and not key else self.command
        return Request(verb, key, dict(urllib.parse.parse_qsl(parts.query)), content, self.path, self.headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], half: bool = False) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle  # noqa: N815, as the library names them
