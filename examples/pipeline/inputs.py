"""Inputs for the pipeline: run it for more of them, and `spark-pipelines run` after each time.

python examples/pipeline/inputs.py /tmp/watersmeet-pipeline [--end]
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm

ROWS = 200
CUSTOMERS = 20
_START = datetime(2026, 1, 1, tzinfo=UTC)


def tables(number: int) -> dict[str, pa.Table]:
    """The rows of one go: every order is shipped in none to two parcels, and some are returned."""
    rng = np.random.default_rng(number)
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    at = [_START + timedelta(seconds=20 * int(i)) for i in ids]
    shipped = np.repeat(np.arange(ROWS), rng.integers(0, 3, ROWS))
    later = rng.integers(0, 3600, len(shipped))
    parcels = [int(i) for i in np.arange(len(shipped)) - np.searchsorted(shipped, shipped)]
    back = ids[rng.random(ROWS) < 0.2]
    return {
        "orders": pa.table(
            {
                "order_id": ids,
                "customer": rng.integers(0, CUSTOMERS + 5, ROWS),
                "amount": rng.uniform(1, 500, ROWS),
                "ts": pa.array(at, pa.timestamp("us", "UTC")),
            }
        ),
        "shipments": pa.table(
            {
                "order_id": ids[shipped],
                "parcel": pa.array(parcels, pa.int32()),
                "shipped": pa.array(
                    [at[i] + timedelta(seconds=int(s)) for i, s in zip(shipped, later, strict=True)],
                    pa.timestamp("us", "UTC"),
                ),
            }
        ),
        "returns": pa.table({"order_id": back, "refund": rng.uniform(1, 500, len(back))}),
    }


def add(place: Path, end: bool = False) -> None:
    """One go more; after the last one, `end` tells the streams that end."""
    made = place / "in"
    number = len(list((made / "orders").glob("*.parquet"))) if made.exists() else 0
    for name, table in tables(number).items():
        for folder in (made / name, made / f"{name}-control"):
            folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, made / name / f"{number:06d}.parquet")
        if end:
            (made / f"{name}-control" / "end.txt").write_text("end\n")
    if not (made / "customers.rel").exists():
        customers = ({"customer": i, "name": f"customer {i}"} for i in range(CUSTOMERS))
        wm.Relation.build(customers, on="customer", path=made / "customers.rel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("place", type=Path)
    parser.add_argument("--end", action="store_true", help="say that nothing follows")
    given = parser.parse_args()
    add(given.place.absolute(), given.end)


if __name__ == "__main__":
    main()
