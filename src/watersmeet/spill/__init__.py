"""Spilling: immutable, checksummed segments of rows and arrays, kept by stores that know only bytes.

>>> import pyarrow as pa
>>> with MemoryStore() as store:
...     writer = SegmentWriter(store, "left-0", pa.schema({"id": pa.int64()}))
...     writer.write_page(pa.record_batch({"id": [1, 2, 3]}))
...     segment = writer.seal()
...     segment.rows, segment.read_page(0)["id"].to_pylist()
(3, [1, 2, 3])
"""

from __future__ import annotations

from watersmeet.spill.file_store import FileStore
from watersmeet.spill.segment import Segment, SegmentWriter
from watersmeet.spill.store import MemoryStore, Store, StoreWriter

__all__ = [
    "FileStore",
    "MemoryStore",
    "Segment",
    "SegmentWriter",
    "Store",
    "StoreWriter",
]
