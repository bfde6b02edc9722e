"""Results that come in parts, by stream or by query: read once, closed at any time, and never taken for the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm

PRODUCTS = pa.table({"sku": range(5), "name": list("abcde")})
NOT_ALL = "closed before its end, so that not all of its results are there"


def forever() -> Iterator[dict[str, int]]:
    return ({"sku": number % 5, "ts": number // 100} for number in range(10**9))


def looked_up(sold: object, **options: Any) -> Any:
    return wm.shared_lookup_join({"sold": sold, "lost": [{"sku": 1}]}, PRODUCTS, on="sku", memory="8 MiB", **options)


def queried(left: object, **options: Any) -> Any:
    right = pa.table({"sku": [1], "ts": [0]})
    queries = [wm.WindowQuery("all", 5)]
    return wm.window_queries(left, right, on="sku", time="ts", queries=queries, memory="8 MiB", **options)


@pytest.mark.parametrize("begin", [looked_up, queried])
def test_who_asks_for_all_parts_gets_an_error_where_some_are_missing(begin: Callable[..., Any], tmp_path: Path) -> None:
    def close(progress: wm.Progress) -> None:
        if progress.rows_out:
            result.close()

    result = begin(forever(), on_progress=close, spill=tmp_path)
    with pytest.raises(wm.WatersmeetError, match=NOT_ALL):
        result.tables()
    assert not list(tmp_path.iterdir())


def test_streams_that_share_a_relation_are_read_once(tmp_path: Path) -> None:
    result = looked_up([{"sku": 2}], spill=tmp_path)
    assert {name: table.num_rows for name, table in result.tables().items()} == {"sold": 1, "lost": 1}
    assert result.schemas["lost"].names == ["sku", "name"]
    for read in (lambda: next(iter(result)), result.tables):
        with pytest.raises(wm.WatersmeetError, match="can be read only once"):
            read()
    assert result.history.samples() and "SharedResult" in repr(result) and result.page is None
    assert not list(tmp_path.iterdir())


def test_threads_that_read_the_same_streams_are_told_apart(tmp_path: Path) -> None:
    """Of three, one gets everything; the relation is laid out once, and nothing is left of it."""
    result = looked_up([{"sku": number % 5} for number in range(10_000)], spill=tmp_path)
    got: list[int] = []
    refused: list[str] = []

    def read() -> None:
        try:
            got.append(sum(batch.num_rows for _, batch in result))
        except wm.WatersmeetError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [10_001] and len(refused) == 2
    assert all("can be read only once" in said for said in refused)
    assert not list(tmp_path.iterdir())
