"""What the page's server answers, and whom.

The page shows names and figures of somebody's data, and listens on a port that every program on the machine, and every
web site in a browser on it, can send requests to. So a request is answered only if

- it carries the token, which only the address has that the user was given;
- it names the server as we do (`Host`), so that a name that was bent to 127.0.0.1 leads nowhere;
- it does not come from another site's page (`Origin`, `Sec-Fetch-Site`); and no answer may be read or framed by one.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from watersmeet.live import html
from watersmeet.live.board import CONTENT_TYPE, Board, Reader, exposition

EVERY = 0.1
"""Seconds between two looks at what is new."""
HEARTBEAT = 2.0
"""Seconds after which a connection without news shows that it lives."""
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def build(board: Board, token: str, hosts: frozenset[str] | None, closing: threading.Event) -> Starlette:
    """The application; `closing` is set when the last news are to be told."""

    async def page(request: Request) -> Response:
        policy = f"{html.policy()}; frame-ancestors 'none'"
        return HTMLResponse(html.live_page(), headers={**HEADERS, "Content-Security-Policy": policy})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(exposition(board.runs), headers=HEADERS, media_type=CONTENT_TYPE)

    async def events(request: Request) -> Response:
        return StreamingResponse(news(board, closing), media_type="text/event-stream", headers=HEADERS)

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guard(request: Request) -> Response:
            wrong = refusal(request, token, hosts)
            return PlainTextResponse(f"{wrong}\n", 403, headers=HEADERS) if wrong else await answer(request)

        return guard

    answers = {"/": page, "/events": events, "/metrics": metrics}
    return Starlette(routes=[Route(path, guarded(answer), methods=["GET"]) for path, answer in answers.items()])


def refusal(request: Request, token: str, hosts: frozenset[str] | None) -> str | None:
    """Why a request is not answered; None: it is."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if hosts is not None and host not in hosts:
        return "this page is not served under that name; use the address that was printed"
    if origin is not None and origin != f"http://{host}":
        return "pages of other sites may not ask"
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.url.path != "/":
        return "pages of other sites may not ask"
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = bearer if scheme.lower() == "bearer" else request.query_params.get("token", "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return "the address lacks the token; use the whole address that was printed"
    return None


async def news(board: Board, closing: threading.Event) -> AsyncIterator[str]:
    """Server-sent events: what is new of the runs, as it happens; at last, that nothing follows."""
    reader = Reader(board)
    quiet_since = time.monotonic()
    yield "retry: 1000\n\n"
    while True:
        over = closing.is_set()  # looked at before the news, so that the last ones are told
        found = reader.news()
        if found:
            yield _event("news", found)
            quiet_since = time.monotonic()
        elif time.monotonic() > quiet_since + HEARTBEAT:
            yield _event("alive", None)
            quiet_since = time.monotonic()
        if over:
            yield _event("end", None)
            return
        await asyncio.sleep(EVERY)


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"
