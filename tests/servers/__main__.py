"""`make servers`: fetch the servers that tests use and start one of each on this machine, until Ctrl-C.

make servers                                  a broker, at 127.0.0.1:9092 if that is free
make servers ARGS="--place /tmp/broker"       its files in a folder that is kept
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from servers.kafka import Broker
from servers.process import Unavailable


def main() -> int:
    """Start them, tell their addresses, and wait."""
    parser = argparse.ArgumentParser(
        prog="make servers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--place", type=Path, help="where to keep their files; a temporary folder unless given")
    given = parser.parse_args()
    with ExitStack() as stack:
        place = given.place or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="watersmeet-servers-")))
        place.mkdir(parents=True, exist_ok=True)
        try:
            broker = stack.enter_context(Broker(place, port=9092))
        except Unavailable as reason:
            print(f"servers: {reason}", file=sys.stderr)
            return 1
        print(f"Kafka   {broker.address}", flush=True)
        print("Ctrl-C stops them.", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
