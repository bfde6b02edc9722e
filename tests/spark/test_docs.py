"""The examples of the pages for Spark users, run one after the other as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
START = PAGE.with_name("start.md")


def test_the_examples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["expected"].count() > 5000
    assert (tmp_path / "pipeline" / "state" / "state.json").exists()
    clicks, views = (spark.read.parquet(str(tmp_path / "pipeline" / name)) for name in ("clicks", "views"))
    near = clicks.alias("c").join(views.alias("v"), "ad")
    near = near.where("v.ts between c.ts - interval 10 minutes and c.ts")
    found = spark.read.parquet(str(tmp_path / "pipeline" / "clicks on views"))
    assert found.count() == near.count() > 1000
    busy = spark.read.parquet(str(tmp_path / "pipeline" / "busy clicks on views"))
    assert busy.exceptAll(found).count() == found.exceptAll(busy).count() == 0
    named = spark.read.parquet(str(tmp_path / "pipeline" / "named clicks"))
    assert (named.count(), named.where("name is null").count()) == (2000, 400)


def test_the_example_of_the_start_page_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(
        r"^```python\n(from watersmeet import spark.*?)^```", START.read_text(), re.MULTILINE | re.DOTALL
    )
    for name in ("orders", "shipments"):
        spark.range(100).selectExpr("id % 10 as order_id", f"id as {name}").write.parquet(str(tmp_path / f"{name} in"))
    streams = {
        name: spark.readStream.schema(f"order_id long, {name} long").parquet(str(tmp_path / f"{name} in"))
        for name in ("orders", "shipments")
    }
    block = block.replace("512 MiB", "64 MiB")
    for name in ("state", "checkpoints", "out"):  # Spark began elsewhere
        block = block.replace(f'"{name}/', f'"{tmp_path}/{name}/')
    exec(compile(block, str(START), "exec"), dict(streams))
    [query] = spark.streams.active
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert spark.read.parquet(str(tmp_path / "out" / "orders")).count() == 1000
