"""The example of a declarative pipeline: runs that go on where the last one was, and a full refresh, which begins anew.

All definitions are loaded and checked by Spark; two tables are filled, and all with HYPOTHESIS_PROFILE=deep.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import watersmeet as wm
from spark.shop import COLUMNS, EXAMPLE, PARCELS, expected_tables
from watersmeet import spark as wms

# `spark-pipelines run` with these arguments, time and again in one process, so that one Java will do.
_RUNS = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import inputs
from pyspark.pipelines import cli
from pyspark.sql.connect.session import SparkSession

place, runs = Path(sys.argv[2]), sys.argv[3:]
SparkSession.stop = lambda self: None
for number, told in enumerate(runs):
    inputs.add(place, end=number == len(runs) - 1)
    sys.argv[1:] = ["run", *told.split()]
    cli.main()
"""


def _found(place: Path, table: str) -> Counter[Any]:
    files = ds.dataset(place / "spark-warehouse" / table, exclude_invalid_files=True)
    columns = COLUMNS.get(table, PARCELS)
    return Counter(tuple(row.values()) for row in files.to_table(columns).to_pylist())


def test_a_pipeline_goes_on_and_a_full_refresh_begins_anew(java: None, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.pipelines", reason="declarative pipelines came with PySpark 4.1")
    for needed in ("grpc", "yaml"):
        pytest.importorskip(needed, reason="declarative pipelines need pyspark[connect] and PyYAML")
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    settings = project / "spark-pipeline.yml"
    settings.write_text(settings.read_text().replace("/tmp/watersmeet-pipeline", str(tmp_path)))
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYSPARK_GATEWAY_PORT", "MASTER")},
        "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_REMOTE": "local[2]", "SPARK_API_MODE": "connect",
    }  # fmt: skip
    deep = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    some = "" if deep else "--refresh matched,matched_soon"
    again = "--full-refresh matched" if deep else "--full-refresh matched --refresh matched_soon"
    runs = [some, *([some] if deep else []), again]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _RUNS, str(project), str(tmp_path), *runs],
        env=environment, cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    expected = expected_tables(len(runs))
    tables = [name for name in expected if name != "first_shipped"] if deep else ["matched", "matched_soon"]
    for table in tables:
        assert _found(project, table) == expected[table], table
    assert sum(expected["matched"].values()) > sum(expected["matched_soon"].values()) > 100
    # One query's state for each life of the table: the old one is left to be deleted.
    assert len(list((tmp_path / "state" / "matched").iterdir())) == 2
    assert len(list((tmp_path / "state" / "matched_soon").iterdir())) == 1
    if deep:
        first = ds.dataset(project / "spark-warehouse" / "first_shipped", exclude_invalid_files=True).to_table()
        orders = Counter(first["order_id"].to_pylist())
        assert orders and max(orders.values()) == 1


def test_a_checkpoint_that_begins_anew_has_a_state_of_its_own(spark: Any, tmp_path: Path) -> None:
    spark.range(50).selectExpr("id % 10 as id", "id as number").write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema("id long, number long").parquet(str(tmp_path / "in"))
    for life in ("first", "first", "second"):
        joined = wms.join(rows, rows, on="id", memory="4 MiB", state=tmp_path / "of numbers" / "{query}")
        writer = joined.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"checkpoint {life}"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / life))
        query.awaitTermination()
        told = [wms.figures(each) for each in query.recentProgress if each.numInputRows]
        assert [each["of numbers"]["results"] for each in told] in ([250], []), "the second run finds nothing new"
        assert (tmp_path / "of numbers" / str(query.id) / "state.json").exists()
    assert spark.read.parquet(str(tmp_path / "first")).count() == 250
    assert spark.read.parquet(str(tmp_path / "second")).count() == 250
    assert len(list((tmp_path / "of numbers").iterdir())) == 2
    with pytest.raises(wm.SpecError, match="laid out before there is a query"):
        wms.lookup_join(rows, spark.range(5), on="id", state=tmp_path / "{query}")
