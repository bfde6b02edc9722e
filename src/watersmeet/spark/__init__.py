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

`window_join` keeps only what rows to come may meet, `asof_join` the last row of each key and those since, and
`parallel_join` moves its work between tasks while it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watersmeet.spark.io.source import register as register
    from watersmeet.spark.io.watch import Watch as Watch
    from watersmeet.spark.offline.state_source import register_state as register_state
    from watersmeet.spark.plan.asof_join import asof_join as asof_join
    from watersmeet.spark.plan.control_rows import with_events as with_events
    from watersmeet.spark.plan.control_rows import with_punctuations as with_punctuations
    from watersmeet.spark.plan.join import join as join
    from watersmeet.spark.plan.kafka import from_kafka as from_kafka
    from watersmeet.spark.plan.kafka import poisoned as poisoned
    from watersmeet.spark.plan.kafka import to_kafka as to_kafka
    from watersmeet.spark.plan.lookup_join import lookup_join as lookup_join
    from watersmeet.spark.plan.multijoin import multijoin as multijoin
    from watersmeet.spark.plan.parallel_join import parallel_join as parallel_join
    from watersmeet.spark.plan.window_join import window_join as window_join
    from watersmeet.spark.task.figures import figures as figures

# Where each public name lives. Spark starts many small Python processes, and each imports no more than it needs.
_HOMES = {
    "Watch": "watersmeet.spark.io.watch",
    "asof_join": "watersmeet.spark.plan.asof_join",
    "figures": "watersmeet.spark.task.figures",
    "from_kafka": "watersmeet.spark.plan.kafka",
    "join": "watersmeet.spark.plan.join",
    "lookup_join": "watersmeet.spark.plan.lookup_join",
    "multijoin": "watersmeet.spark.plan.multijoin",
    "parallel_join": "watersmeet.spark.plan.parallel_join",
    "poisoned": "watersmeet.spark.plan.kafka",
    "register": "watersmeet.spark.io.source",
    "register_state": "watersmeet.spark.offline.state_source",
    "to_kafka": "watersmeet.spark.plan.kafka",
    "window_join": "watersmeet.spark.plan.window_join",
    "with_events": "watersmeet.spark.plan.control_rows",
    "with_punctuations": "watersmeet.spark.plan.control_rows",
}

__all__ = [
    "Watch",
    "asof_join",
    "figures",
    "from_kafka",
    "join",
    "lookup_join",
    "multijoin",
    "parallel_join",
    "poisoned",
    "register",
    "register_state",
    "to_kafka",
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
