"""Joins of Spark DataFrames: streaming or batch in, an ordinary DataFrame out, whole state kept on disk.

```
left ──┐ tag, group by key
       ├── union ── shuffle by group ── mapInArrow: one task per group ──▶ DataFrame
right ─┘                                   │ state of batch N-1 in, state of batch N out
                                           ▼
                              state directory: sorted, indexed, write-once segments and a manifest per batch
```

    from watersmeet import spark as wms

    joined = wms.join(orders, shipments, on="order_id", memory="512 MiB", state="state/orders")
    joined.writeStream.format("parquet").option("checkpointLocation", "checkpoints/orders").start("out/orders")

`window_join` keeps only what rows to come may meet, and `parallel_join` moves its work between tasks while it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watersmeet.spark.join_plan import join as join
    from watersmeet.spark.lookup_plan import lookup_join as lookup_join
    from watersmeet.spark.metrics import figures as figures
    from watersmeet.spark.multi_plan import multijoin as multijoin
    from watersmeet.spark.parallel_plan import parallel_join as parallel_join
    from watersmeet.spark.signs import with_events as with_events
    from watersmeet.spark.signs import with_punctuations as with_punctuations
    from watersmeet.spark.source import register as register
    from watersmeet.spark.watch import Watch as Watch
    from watersmeet.spark.window_plan import window_join as window_join

# Where each public name lives. Spark starts many small Python processes, and each imports no more than it needs.
_HOMES = {
    "Watch": "watersmeet.spark.watch",
    "figures": "watersmeet.spark.metrics",
    "join": "watersmeet.spark.join_plan",
    "lookup_join": "watersmeet.spark.lookup_plan",
    "multijoin": "watersmeet.spark.multi_plan",
    "parallel_join": "watersmeet.spark.parallel_plan",
    "register": "watersmeet.spark.source",
    "window_join": "watersmeet.spark.window_plan",
    "with_events": "watersmeet.spark.signs",
    "with_punctuations": "watersmeet.spark.signs",
}

__all__ = [
    "Watch",
    "figures",
    "join",
    "lookup_join",
    "multijoin",
    "parallel_join",
    "register",
    "window_join",
    "with_events",
    "with_punctuations",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
