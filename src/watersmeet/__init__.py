"""Watersmeet: exact, early, memory-bounded joins of streams.

>>> import pyarrow as pa, watersmeet as wm
>>> wm.join(pa.table({"id": [1, 2]}), pa.table({"id": [2, 3]}), on="id").table().to_pylist()
[{'id': 2}]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watersmeet.api.asof_join import asof_join as asof_join
    from watersmeet.api.join import join as join
    from watersmeet.api.lookup_join import lookup_join as lookup_join
    from watersmeet.api.multijoin import explain as explain
    from watersmeet.api.multijoin import multijoin as multijoin
    from watersmeet.api.relation import Relation as Relation
    from watersmeet.api.result import Result as Result
    from watersmeet.api.shared_lookup_join import SharedResult as SharedResult
    from watersmeet.api.shared_lookup_join import shared_lookup_join as shared_lookup_join
    from watersmeet.api.window_join import window_join as window_join
    from watersmeet.api.window_queries import QueriesResult as QueriesResult
    from watersmeet.api.window_queries import window_queries as window_queries
    from watersmeet.core import errors as errors
    from watersmeet.core.errors import BudgetError as BudgetError
    from watersmeet.core.errors import LateRowError as LateRowError
    from watersmeet.core.errors import PromiseError as PromiseError
    from watersmeet.core.errors import RelationError as RelationError
    from watersmeet.core.errors import SourceError as SourceError
    from watersmeet.core.errors import SpecError as SpecError
    from watersmeet.core.errors import SpillError as SpillError
    from watersmeet.core.errors import WatersmeetError as WatersmeetError
    from watersmeet.core.promises import Punctuation as Punctuation
    from watersmeet.core.promises import among as among
    from watersmeet.core.promises import between as between
    from watersmeet.core.queries import WindowQuery as WindowQuery
    from watersmeet.core.spec import band as band
    from watersmeet.core.spec import near as near
    from watersmeet.core.windows import age as age
    from watersmeet.core.windows import landmark as landmark
    from watersmeet.core.windows import rows as rows
    from watersmeet.drivers.progress import Progress as Progress
    from watersmeet.drivers.simulate import simulate as simulate
    from watersmeet.drivers.trace import Trace as Trace
    from watersmeet.engine.sizing import Grain as Grain
    from watersmeet.live.page import Page as Page
    from watersmeet.sources import source as source
    from watersmeet.sources.databases import query as query

    __version__: str

# Where each public name lives. Importing the package imports none of it, so that it costs next to nothing.
_HOMES = {
    "BudgetError": "watersmeet.core.errors",
    "Grain": "watersmeet.engine.sizing",
    "LateRowError": "watersmeet.core.errors",
    "Page": "watersmeet.live.page",
    "Progress": "watersmeet.drivers.progress",
    "PromiseError": "watersmeet.core.errors",
    "Punctuation": "watersmeet.core.promises",
    "QueriesResult": "watersmeet.api.window_queries",
    "Relation": "watersmeet.api.relation",
    "RelationError": "watersmeet.core.errors",
    "Result": "watersmeet.api.result",
    "SharedResult": "watersmeet.api.shared_lookup_join",
    "SourceError": "watersmeet.core.errors",
    "SpecError": "watersmeet.core.errors",
    "SpillError": "watersmeet.core.errors",
    "Trace": "watersmeet.drivers.trace",
    "WatersmeetError": "watersmeet.core.errors",
    "WindowQuery": "watersmeet.core.queries",
    "age": "watersmeet.core.windows",
    "among": "watersmeet.core.promises",
    "asof_join": "watersmeet.api.asof_join",
    "band": "watersmeet.core.spec",
    "between": "watersmeet.core.promises",
    "explain": "watersmeet.api.multijoin",
    "join": "watersmeet.api.join",
    "landmark": "watersmeet.core.windows",
    "lookup_join": "watersmeet.api.lookup_join",
    "multijoin": "watersmeet.api.multijoin",
    "near": "watersmeet.core.spec",
    "query": "watersmeet.sources.databases",
    "rows": "watersmeet.core.windows",
    "shared_lookup_join": "watersmeet.api.shared_lookup_join",
    "simulate": "watersmeet.drivers.simulate",
    "source": "watersmeet.sources",
    "window_join": "watersmeet.api.window_join",
    "window_queries": "watersmeet.api.window_queries",
}

__all__ = [
    "BudgetError",
    "Grain",
    "LateRowError",
    "Page",
    "Progress",
    "PromiseError",
    "Punctuation",
    "QueriesResult",
    "Relation",
    "RelationError",
    "Result",
    "SharedResult",
    "SourceError",
    "SpecError",
    "SpillError",
    "Trace",
    "WatersmeetError",
    "WindowQuery",
    "__version__",
    "age",
    "among",
    "asof_join",
    "band",
    "between",
    "errors",
    "explain",
    "join",
    "landmark",
    "lookup_join",
    "multijoin",
    "near",
    "query",
    "rows",
    "shared_lookup_join",
    "simulate",
    "source",
    "window_join",
    "window_queries",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _version()
    elif name == "errors":
        value = importlib.import_module("watersmeet.core.errors")
    elif name == "spark":
        value = importlib.import_module("watersmeet.spark")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("watersmeet")
    except PackageNotFoundError:
        return "0+unknown"
