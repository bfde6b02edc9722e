"""An S3 server: one process with a bucket in memory."""

from __future__ import annotations

import http.client
from pathlib import Path

from servers.process import JVM, Guarded, fetched, free_ports, java
from waiting import until

_SETTINGS = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=none
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={place}/buckets
jclouds.identity=none
jclouds.credential=none
"""
BUCKET = "bucket"


def has_bucket(port: int) -> bool:
    """Whether a server has made the bucket, or had it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("PUT", f"/{BUCKET}")
        answer = connection.getresponse()
        answer.read()
        return answer.status in (200, 409)
    except OSError:
        return False
    finally:
        connection.close()


class S3Proxy:
    """A server below a folder, until it is closed."""

    def __init__(self, place: Path, port: int | None = None) -> None:
        jar = next(fetched("s3proxy").glob("*.jar"))
        place.mkdir(parents=True, exist_ok=True)
        (place / "buckets").mkdir(exist_ok=True)
        (self.port,) = free_ports(1, port)
        settings = place / "s3proxy.properties"
        settings.write_text(_SETTINGS.format(port=self.port, place=place))
        command = [java(), *JVM, "-jar", str(jar), "--properties", str(settings)]
        self._process = Guarded(command, place / "s3proxy.log", place)
        until(self._answers, "the S3 server answers")

    def _answers(self) -> bool:
        assert self._process.is_alive(), f"the S3 server ended: {self._process.last_words()}"
        return has_bucket(self.port)

    def address(self, path: str) -> str:
        """What `state=` is given."""
        where = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://me:secret@{BUCKET}/{path}?{where}"

    def close(self) -> None:
        """End it."""
        self._process.stop()
