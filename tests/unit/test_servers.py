"""`make servers` starts what it says, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psycopg
import pytest

from servers.postgres import programs
from servers.process import Unavailable, fetched, java
from waiting import ended

_TESTS = Path(__file__).parents[1]


def test_servers_answer_at_what_is_printed_until_they_are_told_to_stop() -> None:
    try:
        programs(), java(), fetched("s3proxy")
    except Unavailable as reason:
        pytest.skip(str(reason))
    started = subprocess.Popen(
        [sys.executable, "-m", "servers", "s3", "postgresql"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(_TESTS), "TMPDIR": "/tmp"},
    )  # fmt: skip
    assert started.stdout is not None
    try:
        said = [started.stdout.readline() for _ in range(2)]
        assert all(said), ended(started, "it has said nothing")
        told = dict(line.split() for line in said)
        assert list(told) == ["S3", "PostgreSQL"]
        assert started.stdout.readline() == "Ctrl-C stops them.\n"
        ports = [int(told["S3"].partition("endpoint_override=127.0.0.1:")[2].partition("&")[0])]
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/bucket", timeout=60) as answer:
            assert b"<ListBucketResult" in answer.read()
        # One who is connected does not keep it from stopping.
        with psycopg.connect(told["PostgreSQL"]) as connection:
            ports += [connection.info.port]
            [[folder]] = connection.execute("show data_directory").fetchall()
            assert Path(folder).exists()
            started.send_signal(signal.SIGINT)
            assert ended(started, "it was told to stop") == ("", "")
            assert started.returncode == 0
    except psycopg.OperationalError:
        assert started.returncode == 0  # the session ended with its server, before it was closed
    finally:
        if started.poll() is None:
            started.kill()
            started.wait()
    assert not Path(folder).parents[1].exists()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
