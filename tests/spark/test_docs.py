"""The examples of the page for Spark users, run one after the other as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_examples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
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
