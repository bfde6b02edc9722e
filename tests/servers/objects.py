"""A small S3 server in this process, for tests: as much of the protocol as state needs, and every fault there is.

It keeps objects in memory, writes names conditionally (`If-None-Match: *`), counts what it is asked for, and does as a
test tells it: answers 503, waits, cuts a connection before or after it has done what was asked, or lists late.
"""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

Fault = Callable[[str, str], str]
"""What happens to a request, by its verb and key: "" for nothing, "503", "slow", "cut before", "cut after", "half"."""


class ObjectServer:
    """Serves one bucket on loopback until it is closed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.requests: list[str] = []
        self.fault: Fault = lambda verb, key: ""
        self.hidden: Callable[[str], bool] = lambda key: False
        """Which keys a listing does not show yet."""
        self.lock = threading.Lock()
        server = self

        class Handler(_Handler):
            objects = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: ObjectServer

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _handle(self) -> None:
        server = self.objects
        parts = urllib.parse.urlsplit(self.path)
        key = urllib.parse.unquote(parts.path).removeprefix("/bucket").removeprefix("/")
        query = dict(urllib.parse.parse_qsl(parts.query))
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        verb = "LIST" if self.command == "GET" and not key else self.command
        with server.lock:
            server.asked[verb] += 1
            server.requests.append(f"{verb} {key or query.get('prefix', '')}")
            fault = server.fault(verb, key or query.get("prefix", ""))
        if fault == "slow":
            time.sleep(0.2)
        if fault == "cut before":
            self.close_connection = True
            return
        if fault == "503":
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
            return
        status, body = self._done(verb, key, query, content)
        if fault == "cut after":
            self.close_connection = True
            return
        self._answer(status, body, half=fault == "half")

    def _done(self, verb: str, key: str, query: dict[str, str], content: bytes) -> tuple[int, bytes]:
        objects = self.objects.objects
        with self.objects.lock:
            if verb == "LIST":
                return 200, self._listed(query["prefix"])
            if verb == "PUT":
                if self.headers.get("if-none-match") == "*" and key in objects:
                    return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
                objects[key] = content
                return 200, b""
            if verb == "DELETE":
                objects.pop(key, None)
                return 204, b""
            return (200, objects[key]) if key in objects else (404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _listed(self, prefix: str) -> bytes:
        found, below = [], set()
        for key in self.objects.objects:
            if key.startswith(prefix) and not self.objects.hidden(key):
                name, slash, _ = key.removeprefix(prefix).partition("/")
                if slash:
                    below.add(f"{prefix}{name}/")
                else:
                    found.append(key)
        keys = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in sorted(found))
        dirs = "".join(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in sorted(below))
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<ListBucketResult xmlns="{space}">{keys}{dirs}</ListBucketResult>'.encode()

    def _answer(self, status: int, body: bytes, half: bool = False) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_DELETE = _handle  # noqa: N815, as the library names them
