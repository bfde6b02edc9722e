"""An object store in this process that answers late, twice or not at all, and lists late.

It stands below the library's own retries, where a request would go out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, BinaryIO
from urllib.parse import unquote
from xml.sax.saxutils import escape

import numpy as np

from simulate.faults import Faults
from watersmeet.spark.state import s3
from watersmeet.spark.state.s3 import Bucket

ADDRESS = "s3://me:secret@bucket/state?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
_LATE = 0.15
_MOST_LATE = 3


class Objects:
    """While this is entered, all buckets are here."""

    def __init__(self, faults: Faults, rng: np.random.Generator, counts: Any) -> None:
        self.objects: dict[str, bytes] = {}
        self._faults, self._rng, self._counts = faults, rng, counts
        self._hidden: dict[str, int] = {}
        """Names that some listings do not show yet, and how many."""

    def __enter__(self) -> Objects:
        self._real = Bucket._once, s3.time
        objects = self

        def once(
            bucket: Bucket, verb: str, place: str, content: bytes, headers: dict[str, str], query: Mapping[str, str],
            into: BinaryIO | None,
        ) -> Any:  # fmt: skip
            return objects.asked(verb, unquote(place).removeprefix("/bucket/"), content, headers, query, into)

        Bucket._once = once  # type: ignore[method-assign]
        s3.time = _Patient(self._faults)  # type: ignore[assignment]
        return self

    def __exit__(self, *_: Any) -> None:
        Bucket._once, s3.time = self._real  # type: ignore[method-assign]

    def asked(
        self, verb: str, key: str, content: bytes, headers: Mapping[str, str], query: Mapping[str, str],
        into: BinaryIO | None,
    ) -> Any:  # fmt: skip
        """What the server answers, if its answer comes."""
        kind = {"PUT": "put", "DELETE": "delete"}.get(verb, "list" if query else "get")
        found = self._faults.perform(kind, lambda: self._done(kind, key, content, headers, query))
        if into is not None and found.status < 300:
            into.seek(0)
            into.truncate()
            into.write(found.content)
        return found

    def _done(self, kind: str, key: str, content: bytes, headers: Mapping[str, str], query: Mapping[str, str]) -> Any:
        objects = self.objects
        if kind == "list":
            return s3._Answer(200, self._listed(query["prefix"]))
        if kind == "put":
            if headers.get("if-none-match") == "*" and key in objects:
                self._counts["puts refused"] += 1
                return s3._Answer(412, b"")
            if key not in objects and "/group-" in key and self._rng.random() < _LATE:
                self._hidden[key] = int(self._rng.integers(1, _MOST_LATE + 1))
            objects[key] = content
            return s3._Answer(200, b"")
        if kind == "delete":
            objects.pop(key, None)
            return s3._Answer(204, b"")
        return s3._Answer(200, objects[key]) if key in objects else s3._Answer(404, b"")

    def _listed(self, prefix: str) -> bytes:
        found, below = [], set()
        for key in sorted(self.objects):
            if not key.startswith(prefix):
                continue
            name, slash, _ = key.removeprefix(prefix).partition("/")
            if slash:
                below.add(f"{prefix}{name}/")
            elif self._hidden.get(key, 0) > 0:
                self._hidden[key] -= 1
                self._counts["names listed late"] += 1
            else:
                found.append(key)
        keys = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in found)
        more = "".join(f"<CommonPrefixes><Prefix>{escape(key)}</Prefix></CommonPrefixes>" for key in sorted(below))
        return f"<ListBucketResult>{keys}{more}</ListBucketResult>".encode()


class _Patient:
    """In place of the module: to wait is to let others go first."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def sleep(self, seconds: float) -> None:
        self._faults.before("sleep")

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
