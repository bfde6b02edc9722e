"""A PostgreSQL server: one process and its children, on the loopback, for anybody who asks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from servers.process import Guarded, Unavailable, free_ports
from waiting import PATIENCE, until

_NEEDED = ("initdb", "postgres", "pg_isready")


def programs() -> Path:
    """Where PostgreSQL's programs are."""
    found = shutil.which("initdb")
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), *([Path(found).resolve().parent] if found else [])]
    for folder in reversed(folders):
        if all((folder / name).exists() for name in _NEEDED):
            return folder
    raise Unavailable("no PostgreSQL is installed (Debian: apt-get install postgresql)")


class Postgres:
    """A server below a folder, until it is closed.

    PostgreSQL does not run as root: then it is somebody without any rights, who must be able to reach the folder.
    """

    def __init__(self, place: Path, port: int | None = None) -> None:
        where = programs()
        place.mkdir(parents=True, exist_ok=True)
        user = "nobody" if os.getuid() == 0 else None
        if user:
            shutil.chown(place, user)
        (self.port,) = free_ports(1, port)
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
        data = place / "data"
        if not data.exists():
            lay_out = [where / "initdb", "-D", data, "-U", "tester", "--auth=trust", "--no-sync"]
            done = subprocess.run(lay_out, user=user, cwd=place, **options)
            if done.returncode:
                raise Unavailable(f"PostgreSQL could not lay out its storage: {done.stderr.strip()[-300:]}")
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        told = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        # Told to terminate, it would wait for those who are connected; an interrupt ends their sessions.
        command = [str(where / "postgres"), "-D", str(data), *told]
        self._process = Guarded(command, place / "postgres.log", place, user=user, ending="INT")

        def answers() -> bool:
            assert self._process.is_alive(), f"PostgreSQL ended: {self._process.last_words()}"
            ask = [where / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            return subprocess.run(ask, **options).returncode == 0

        until(answers, "PostgreSQL answers")

    @property
    def address(self) -> str:
        """What drivers are given."""
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        """End it, and the sessions of all who are connected."""
        self._process.stop()
