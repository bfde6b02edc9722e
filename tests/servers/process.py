"""What was fetched, and a server's process that ends with the one that started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from waiting import PATIENCE

SCRIPT = Path(__file__).parents[2] / "scripts" / "servers.sh"
_FETCHING = 600.0
"""Seconds that Maven or pip may take."""
# A virtual machine that lives for a minute spends most of it compiling, unless it compiles little.
JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# The shell reads from a pipe that closes when its starter ends, in whatever way; then the server must end, too.
_GUARDED = (
    'log=$1 ending=$2; shift 2; "$@" >>"$log" 2>&1 & echo $!; '
    'read -r _; kill -s "$ending" $! 2>/dev/null; wait $! 2>/dev/null'
)


class Unavailable(Exception):
    """A server cannot be had here; says why, and what to do."""


def fetched(name: str) -> Path:
    """The folder with the jars or packages of a server, which are fetched if they are not there."""
    return Path(_told("fetch", name))


def spark_jars(name: str) -> str:
    """The jars of a connector, as `spark.jars` wants them."""
    return _told("jars", name)


def _told(*words: str) -> str:
    try:
        done = subprocess.run(
            ["sh", str(SCRIPT), *words], capture_output=True, text=True, timeout=_FETCHING, check=False,
            env={**os.environ, "PYTHON": sys.executable},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{words[-1]} was not fetched within {_FETCHING:.0f} s") from None
    if done.returncode:
        raise Unavailable((done.stderr.strip().splitlines() or ["scripts/servers.sh failed"])[-1])
    return done.stdout.strip()


def java() -> str:
    """The Java to run servers with, chosen as PySpark chooses it."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise Unavailable("no Java was found; see scripts/java.sh")
    return found


def free_ports(count: int, wanted: int | None = None) -> list[int]:
    """So many ports of the loopback that nobody listens on, the first of them this one if it is free."""
    sockets: list[socket.socket] = []
    if wanted is not None:
        with suppress(OSError):
            sockets.append(socket.create_server(("127.0.0.1", wanted)))
    sockets += [socket.create_server(("127.0.0.1", 0)) for _ in range(count - len(sockets))]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Guarded:
    """A process that ends when told, by the signal that its kind ends in an orderly way by, or when this one ends.

    It is in a session of its own: Ctrl-C is for its starter, who ends it.
    """

    def __init__(
        self, command: Sequence[str], log: Path, place: Path, *, user: str | None = None, ending: str = "TERM"
    ) -> None:
        self.log = log
        self._shell = subprocess.Popen(
            ["sh", "-c", _GUARDED, "sh", str(log), ending, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=place, user=user, start_new_session=True,
        )  # fmt: skip
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def is_alive(self) -> bool:
        """Whether it runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return self._shell.poll() is None

    def stop(self, at_once: bool = False) -> None:
        """End it, in an orderly way unless at once, and wait for it."""
        if at_once and self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self._shell.communicate("\n", timeout=PATIENCE)

    def last_words(self) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
