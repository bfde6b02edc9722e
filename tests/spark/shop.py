"""Orders, shipments and returns, as the example of a pipeline makes them, and what joins of them must give."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
_HALF_HOUR = 1800


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline_inputs", EXAMPLE / "inputs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


inputs = _loaded()


def expected_tables(goes: int) -> dict[str, Counter[Any]]:
    """The tables after so many goes, by loops over all rows."""
    made = [inputs.tables(number) for number in range(goes)]
    orders, shipments, returns = ([row for each in made for row in each[name].to_pylist()] for name in made[0])
    pairs = [(o, s) for o in orders for s in shipments if o["order_id"] == s["order_id"]]
    soon = [(o, s) for o, s in pairs if 0 <= (s["shipped"] - o["ts"]).total_seconds() <= _HALF_HOUR]
    back = Counter(row["order_id"] for row in returns)
    names = range(inputs.CUSTOMERS)
    return {
        "matched": Counter((o["order_id"], s["parcel"]) for o, s in pairs),
        "matched_soon": Counter((o["order_id"], s["parcel"]) for o, s in soon),
        "matched_in_slots": Counter((o["order_id"], s["parcel"]) for o, s in soon),
        "named_orders": Counter(
            (o["order_id"], f"customer {o['customer']}" if o["customer"] in names else None) for o in orders
        ),
        "returned": Counter((o["order_id"], s["parcel"]) for o, s in pairs if back[o["order_id"]]),
        "first_shipped": _nearest(orders, pairs),
    }


def _nearest(orders: list[Any], pairs: list[Any]) -> Counter[Any]:
    """Each order with the first of its shipments, and with none if it has none."""
    first: dict[int, Any] = {}
    for order, shipment in pairs:
        known = first.get(order["order_id"])
        if known is None or shipment["shipped"] < known["shipped"]:
            first[order["order_id"]] = shipment
    return Counter((o["order_id"], first.get(o["order_id"], {}).get("parcel")) for o in orders)


COLUMNS = {"named_orders": ["order_id", "name"]}
"""Of a table, what is compared; of others an order and a parcel."""
PARCELS = ["order_id", "parcel"]
