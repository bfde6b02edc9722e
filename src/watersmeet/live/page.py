"""The page's server: a thread of its own, on the loopback interface, for those who know the token."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from typing import Any
from urllib.parse import quote

from watersmeet.core.closing import Closing
from watersmeet.core.errors import SpecError, WatersmeetError
from watersmeet.drivers.history import History
from watersmeet.live.board import Board, ShownRun

LOOPBACK = "127.0.0.1"
PATIENCE = 3.0
"""Seconds for browsers to hear the end."""


class Page(Closing):
    """A page of joins, from now until it is closed: `page=` of every verb takes one, so that several can share it.

    ::

        with wm.Page() as page:
            print(page.address)
            orders = wm.join(a, b, on="id", page=page).table()
            wm.join(orders, c, on="sku", page=page).write("out.parquet")

    :param address: a port, `"HOST:PORT"`, or nothing: any free port of 127.0.0.1. On another host than that the page
        can be reached by whoever reaches the machine, and knows the token.
    :param token: what the address must carry; drawn by lot unless given.
    """

    def __init__(self, address: int | str | None = None, *, token: str | None = None) -> None:
        app, uvicorn, secrets = _needed()
        self._host, port = parse_address(address)
        self.token = secrets.token_urlsafe(24) if token is None else token
        """What every request must carry."""
        self.board = Board()
        """The joins that are shown."""
        self._socket = _bound(self._host, port)
        self._port: int = self._socket.getsockname()[1]
        self._closing = threading.Event()
        built = app.build(self.board, self.token, self.hosts, self._closing)
        config = uvicorn.Config(
            built, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1, ws="none"
        )
        server = uvicorn.Server(config)
        self._thread = threading.Thread(target=_serve, args=(server, self._socket), name="watersmeet-page", daemon=True)
        # The thread does not know the page: one that nobody has any more is closed, at the latest at exit.
        self._finalizer = weakref.finalize(self, _stop, server, self._thread, self._socket, self._closing, os.getpid())
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def address(self) -> str:
        """To be opened in a browser."""
        return f"{self.origin}/?token={quote(self.token)}"

    @property
    def origin(self) -> str:
        """The address without the token."""
        host = self._host if self._host not in ("0.0.0.0", "::") else socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def hosts(self) -> frozenset[str] | None:
        """By which names it may be asked for; None: by any, where it is not on the loopback interface alone."""
        if not is_loopback(self._host):
            return None
        return frozenset(f"{name}:{self.port}" for name in (LOOPBACK, "localhost", "[::1]"))

    @property
    def is_open(self) -> bool:
        """Whether it is served."""
        return self._thread.is_alive()

    def add(self, title: str, history: History, kind: str = "join") -> ShownRun:
        """Show a run."""
        return self.board.add(title, history, kind)

    def close(self) -> None:
        """Tell browsers what they do not know yet, stop listening, end the thread; harmless when it has ended."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"<Page: {self.address}>"


def _serve(server: Any, bound: socket.socket) -> None:
    import asyncio

    asyncio.run(server.serve(sockets=[bound]))


def _stop(server: Any, thread: threading.Thread, bound: socket.socket, closing: threading.Event, owner: int) -> None:
    if owner != os.getpid():  # in a process that was forked off there is no such thread
        return
    closing.set()
    server.should_exit = True
    if thread is not threading.current_thread():
        thread.join(PATIENCE)
    bound.close()


def parse_address(address: int | str | None) -> tuple[str, int]:
    """Host and port; port 0 is any that is free.

    >>> parse_address(None), parse_address(8000), parse_address("8000"), parse_address("0.0.0.0:8000")
    (('127.0.0.1', 0), ('127.0.0.1', 8000), ('127.0.0.1', 8000), ('0.0.0.0', 8000))
    >>> parse_address("everywhere")
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: the page's address 'everywhere' is not understood; give a port, or HOST:PORT
    """
    if address is None or address == "":
        return LOOPBACK, 0
    host, colon, port = str(address).rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535 or isinstance(address, bool) or (colon and not host):
        raise SpecError(f"the page's address {address!r} is not understood; give a port, or HOST:PORT")
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an interface."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(16)
    except OSError as error:
        bound.close()
        raise SpecError(
            f"the page cannot be at {host}:{port}: {error.strerror or error}; choose another port, or let one be chosen"
        ) from error
    return bound


def _needed() -> tuple[Any, Any, Any]:
    """What only a page needs."""
    import secrets

    try:
        import uvicorn

        from watersmeet.live import app
    except ImportError as error:
        raise WatersmeetError(
            f"the live page needs {error.name}, which is not installed; install it with 'pip install starlette uvicorn'"
        ) from error
    return app, uvicorn, secrets
