"""Small objects in S3, and what PyArrow's file system does not offer there: to write a name only if it is new.

Each of these is one request: PyArrow asks for an object's size before it reads it, and asks for a directory before it
writes to one. Whoever writes a name with `if_absent` (`If-None-Match: *`) is told whether it was the first, by the
server, which alone can know; of several at once, one is.

**An answer that is lost.** A request that may have been carried out and was not answered is sent again. To read, to
remove and to replace again is harmless. To write if absent is not: the second request finds the object of the first,
and is told that somebody was before it. So whoever is refused must look at what is there; everyone here does, and knows
its own by what it has written (`state.publication`, `state.lineage`).

Requests are signed as AWS asks for (Signature Version 4), with keys from the address, from the environment, or from
botocore where it is installed. Without any, PyArrow finds its own way, and names are not written conditionally.
"""

from __future__ import annotations

import atexit
import datetime as dt
import hashlib
import hmac
import http.client
import os
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from watersmeet.core.errors import SpillError

_ATTEMPTS = 8
_FIRST_PAUSE = 0.05
"""Seconds before a request is sent again; twice as many each time."""
_TIMEOUT = 60.0
_CHUNK = 8 << 20
_EMPTY = hashlib.sha256(b"").hexdigest()
_PASSING = (429, 500, 502, 503, 504)
"""Answers that may be other ones in a moment."""
_CONFLICT, _PRECONDITION = 409, 412


@dataclass(frozen=True, slots=True)
class Keys:
    """Who asks."""

    key: str
    secret: str
    token: str = ""


def keys_for(user: str | None, password: str | None) -> Keys | None:
    """From an address, the environment, or what botocore finds; None if nobody knows any."""
    if user and password:
        return Keys(urllib.parse.unquote(user), urllib.parse.unquote(password))
    told = os.environ
    if told.get("AWS_ACCESS_KEY_ID") and told.get("AWS_SECRET_ACCESS_KEY"):
        return Keys(told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"], told.get("AWS_SESSION_TOKEN", ""))
    try:
        import botocore.session  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    found = botocore.session.get_session().get_credentials()
    if found is None:
        return None
    frozen = found.get_frozen_credentials()
    return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")


@dataclass(frozen=True)
class Bucket:
    """A bucket, and where it is served."""

    name: str
    host: str
    secure: bool
    region: str
    by_path: bool
    """Whether its name is part of the path; else it is part of the host."""
    user: str | None = None
    password: str | None = None

    @classmethod
    def of(cls, address: str) -> Bucket | None:
        """That of an address; None if it is none of S3's, or nobody knows any keys.

        >>> bucket = Bucket.of("s3://me:secret@orders/state?endpoint_override=127.0.0.1:9000&scheme=http")
        >>> bucket.name, bucket.host, bucket.secure
        ('orders', '127.0.0.1:9000', False)
        """
        parts = urllib.parse.urlsplit(address)
        if parts.scheme != "s3" or not parts.hostname:
            return None
        if keys_for(parts.username, parts.password) is None:
            return None
        told = dict(urllib.parse.parse_qsl(parts.query))
        name = parts.netloc.rpartition("@")[2]
        region = (
            told.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        endpoint = told.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
        scheme = told.get("scheme", "https")
        if "://" in endpoint:
            scheme, _, endpoint = endpoint.partition("://")
        by_path = bool(endpoint) or "." in name
        host = endpoint.rstrip("/") or (
            f"s3.{region}.amazonaws.com" if by_path else f"{name}.s3.{region}.amazonaws.com"
        )
        return cls(name, host, scheme == "https", region, by_path, parts.username, parts.password)

    # --- what can be asked for ---

    def get(self, key: str) -> bytes:
        """An object; `FileNotFoundError` if there is none."""
        return self._asked("GET", key).content

    def fetch(self, key: str, file: BinaryIO) -> None:
        """Bring an object into a file, a part at a time."""
        self._asked("GET", key, into=file)

    def exists(self, key: str) -> bool:
        """Whether there is an object."""
        try:
            self._asked("HEAD", key)
        except FileNotFoundError:
            return False
        return True

    def put(self, key: str, content: bytes, if_absent: bool = False) -> bool:
        """Write an object; with `if_absent` only if there is none. Whether it was written, as far as is known."""
        headers = {"if-none-match": "*"} if if_absent else {}
        return self._asked("PUT", key, content, headers=headers, refusable=if_absent).status not in (
            _CONFLICT, _PRECONDITION,
        )  # fmt: skip

    def delete(self, key: str) -> None:
        """Remove an object; there need not be one."""
        self._asked("DELETE", key)

    def names(self, directory: str) -> list[str]:
        """The last parts of all keys right below a directory, and of those that go on below it."""
        found: list[str] = []
        prefix, after = f"{directory}/", ""
        while True:
            query = {"delimiter": "/", "list-type": "2", "prefix": prefix}
            if after:
                query["continuation-token"] = after
            tree = ET.fromstring(self._asked("GET", "", query=query).content)
            space = tree.tag.partition("}")[0] + "}" if tree.tag.startswith("{") else ""
            keys = [each.text or "" for each in tree.iter(f"{space}Key")]
            keys += [each.findtext(f"{space}Prefix") or "" for each in tree.iter(f"{space}CommonPrefixes")]
            found += [key.removeprefix(prefix).rstrip("/") for key in keys]
            after = tree.findtext(f"{space}NextContinuationToken") or ""
            if not after:
                return [name for name in found if name]

    # --- how it is asked for ---

    def _asked(
        self,
        verb: str,
        key: str,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        refusable: bool = False,
        into: BinaryIO | None = None,
    ) -> _Answer:
        """Ask, again and again while nothing but the moment speaks against it."""
        place = urllib.parse.quote(f"/{self.name}/{key}" if self.by_path else f"/{key}", safe="/-_.~")
        last = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                answer = self._once(verb, place, content, dict(headers or {}), query or {}, into)
            except (OSError, http.client.HTTPException) as error:
                last = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                continue
            if answer.status == _CONFLICT and refusable:
                last = "another request for the same name was under way"
                continue  # the server does not say who was first: ask it once more
            if answer.status == _PRECONDITION and refusable:
                return answer
            if answer.status == 404:
                raise FileNotFoundError(f"{self.name}/{key}")
            if answer.status in _PASSING:
                last = f"the answer was {answer.status}"
                continue
            if answer.status >= 300:
                told = answer.content[:300].decode(errors="replace")
                raise SpillError(f"could not {verb} {self.name}/{key} at {self.host}: {answer.status} {told}")
            return answer
        raise SpillError(
            f"could not {verb} {self.name}/{key} at {self.host} in {_ATTEMPTS} attempts ({last}); see whether the "
            f"server is well, and start the query again"
        )

    def _once(
        self,
        verb: str,
        place: str,
        content: bytes,
        headers: dict[str, str],
        query: Mapping[str, str],
        into: BinaryIO | None,
    ) -> _Answer:
        text = urllib.parse.urlencode(sorted(query.items()), quote_via=urllib.parse.quote)
        self._sign(verb, place, text, content, headers)
        connection = _taken(self)
        try:
            connection.request(verb, f"{place}?{text}" if text else place, content or None, headers)
            answer = _read(connection.getresponse(), into)
        except BaseException:
            connection.close()
            raise
        _given_back(self, connection)
        return answer

    def _sign(self, verb: str, place: str, query: str, content: bytes, headers: dict[str, str]) -> None:
        """Add what proves who asks."""
        keys = keys_for(self.user, self.password)
        if keys is None:
            raise SpillError(f"there are no keys for the bucket {self.name} any more; set AWS_ACCESS_KEY_ID")
        now = dt.datetime.now(dt.UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(content).hexdigest() if content else _EMPTY
        headers |= {"host": self.host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        signed = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        scope = f"{day}/{self.region}/s3/aws4_request"
        canonical = "\n".join([verb, place, query, lines, signed, digest])
        to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        secret = f"AWS4{keys.secret}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            secret = hmac.digest(secret, part.encode(), "sha256")
        signature = hmac.digest(secret, to_sign.encode(), "sha256").hex()
        credential = f"Credential={keys.key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        headers["authorization"] = f"AWS4-HMAC-SHA256 {credential}"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    content: bytes


def _read(found: http.client.HTTPResponse, into: BinaryIO | None) -> _Answer:
    """An answer, or its content in a file."""
    if into is None or found.status >= 300:
        return _Answer(found.status, found.read())
    into.seek(0)
    into.truncate()
    while chunk := found.read(_CHUNK):
        into.write(chunk)
    wanted = found.getheader("content-length")
    if wanted is not None and into.tell() != int(wanted):
        raise ConnectionError(f"{into.tell()} of {wanted} bytes came")
    return _Answer(found.status, b"")


_IDLE: dict[tuple[str, bool], list[http.client.HTTPConnection]] = {}
"""Connections that nobody uses, which stay open for the next request."""
_MOST_IDLE = 16
_IDLE_LOCK = threading.Lock()


def _taken(bucket: Bucket) -> http.client.HTTPConnection:
    """A connection to a server, for one request."""
    with _IDLE_LOCK:
        idle = _IDLE.get((bucket.host, bucket.secure))
        if idle:
            return idle.pop()
    if bucket.secure:
        return http.client.HTTPSConnection(bucket.host, timeout=_TIMEOUT)
    return http.client.HTTPConnection(bucket.host, timeout=_TIMEOUT)


def _given_back(bucket: Bucket, connection: http.client.HTTPConnection) -> None:
    """The answer was read whole: whoever comes next may use the connection."""
    with _IDLE_LOCK:
        idle = _IDLE.setdefault((bucket.host, bucket.secure), [])
        if len(idle) < _MOST_IDLE:
            idle.append(connection)
            return
    connection.close()


@atexit.register
def close_idle() -> None:
    """Close connections that nobody uses."""
    with _IDLE_LOCK:
        idle = [each for those in _IDLE.values() for each in those]
        _IDLE.clear()
    for connection in idle:
        connection.close()
