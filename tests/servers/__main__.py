"""`make servers`: fetch the servers that tests use and start one of each on this machine, until Ctrl-C.

make servers                                  all of them, each at its usual port if that is free
make servers ARGS="kafka s3"                  some of them
make servers ARGS="--place /tmp/servers"      their files in a folder that is kept
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from servers.kafka import Broker
from servers.postgres import Postgres
from servers.process import Unavailable
from servers.s3proxy import S3Proxy


def _kafka(place: Path, stack: ExitStack) -> str:
    place.mkdir(exist_ok=True)
    return stack.enter_context(Broker(place, port=9092)).address


def _s3(place: Path, stack: ExitStack) -> str:
    server = S3Proxy(place, port=9000)
    stack.callback(server.close)
    return server.address("FOLDER")


def _postgresql(place: Path, stack: ExitStack) -> str:
    server = Postgres(place, port=5432)
    stack.callback(server.close)
    return server.address


SERVERS: dict[str, tuple[str, Callable[[Path, ExitStack], str]]] = {
    "kafka": ("Kafka", _kafka),
    "s3": ("S3", _s3),
    "postgresql": ("PostgreSQL", _postgresql),
}


def main() -> int:
    """Start them, tell their addresses, and wait."""
    parser = argparse.ArgumentParser(
        prog="make servers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("which", nargs="*", choices=[*SERVERS, []], help="which of them; all unless given")
    parser.add_argument("--place", type=Path, help="where to keep their files; a temporary folder unless given")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = 0
    try:
        with ExitStack() as stack:
            place = given.place or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="watersmeet-servers-")))
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o711)  # root's PostgreSQL runs as somebody else, and has to reach its own folder
            for name in given.which or SERVERS:
                title, start = SERVERS[name]
                try:
                    address = start(place.resolve() / name, stack)
                except Unavailable as reason:
                    print(f"servers: {reason}", file=sys.stderr, flush=True)
                    continue
                started += 1
                print(f"{title:<12}{address}", flush=True)
            if not started:
                return 1
            print("Ctrl-C stops them.", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0 if started else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
