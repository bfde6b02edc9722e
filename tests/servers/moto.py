"""Another S3 server: moto, which keeps buckets in memory, in a Python process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from servers.process import Guarded, fetched, free_ports
from servers.s3proxy import has_bucket
from waiting import until


class Moto:
    """A server until it is closed."""

    def __init__(self, place: Path) -> None:
        libraries = fetched("moto")
        place.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        start = f"import sys; sys.path.insert(0, {str(libraries)!r}); from moto.server import main; main()"
        command = [sys.executable, "-W", "ignore", "-c", start, "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = Guarded(command, place / "moto.log", place)

        def answers() -> bool:
            assert self._process.is_alive(), f"moto ended: {self._process.last_words()}"
            return has_bucket(self.port)

        until(answers, "moto answers")

    def close(self) -> None:
        """End it."""
        self._process.stop()
