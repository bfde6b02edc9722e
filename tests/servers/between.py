"""What stands between a test and a real S3 server: passes everything on, but for the faults that the test tells."""

from __future__ import annotations

import html
import http.client
import re
import socket
import urllib.parse
import uuid

from servers.objects import Answer, FaultyServer, Request

_HOP_BY_HOP = {"connection", "content-length", "expect", "keep-alive", "transfer-encoding"}
_LISTED = re.compile(r"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_NEXT = re.compile(r"<NextContinuationToken>(.*?)</NextContinuationToken>")


class Between(FaultyServer):
    """Serves the bucket of a server at this port, below a folder of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._folder = uuid.uuid4().hex
        super().__init__()

    def address(self, path: str) -> str:
        """What `state=` is given."""
        return super().address(f"{self._folder}/{path}")

    def answer(self, request: Request) -> Answer:
        """What the real server answers; of a listing, without what is not to be seen yet."""
        verb = "GET" if request.verb == "LIST" else request.verb
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        status, content, told = self._asked(verb, request.path, request.content, headers)
        if request.verb == "LIST" and status == 200:
            content = _LISTED.sub(self._seen, content.decode()).encode()
            told.pop("content-length", None)
        return status, content, told

    def _seen(self, listed: re.Match[str]) -> str:
        return "" if self.hidden(_key(listed[1])) else listed[0]

    def _asked(self, verb: str, path: str, content: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(verb, path, content or None, headers)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            kept = {name: value for name, value in told.items() if name not in _HOP_BY_HOP - {"content-length"}}
            return answer.status, answer.read(), kept
        finally:
            connection.close()

    def cut_within(self, request: Request) -> None:
        """Send half of what is uploaded, and hang up."""
        half = request.content[: len(request.content) // 2]
        lines = [f"{request.verb} {request.path} HTTP/1.1", f"content-length: {len(request.content)}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP]
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + half)

    def keys(self) -> set[str]:
        """What there is below the folder."""
        found: set[str] = set()
        token = ""
        while True:
            told = {"list-type": "2", "prefix": f"{self._folder}/", **({"continuation-token": token} if token else {})}
            status, content, _ = self._asked("GET", f"/bucket?{urllib.parse.urlencode(told)}", b"", {})
            assert status == 200, content
            found |= {_key(each) for each in _LISTED.findall(content.decode())}
            more = _NEXT.search(content.decode())
            if more is None:
                return found
            token = html.unescape(more[1])


def _key(told: str) -> str:
    return urllib.parse.unquote(html.unescape(told))
