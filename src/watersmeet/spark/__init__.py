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
"""

from __future__ import annotations

from watersmeet.spark.join_plan import join
from watersmeet.spark.source import register

__all__ = ["join", "register"]
