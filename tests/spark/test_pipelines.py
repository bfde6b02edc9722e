"""The example of a declarative pipeline: runs that go on where the last one was, and a full refresh, which begins anew.

All definitions are loaded and checked by Spark; two tables are filled, and all with HYPOTHESIS_PROFILE=deep.
"""

from __future__ import annotations

import importlib.util
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
from watersmeet import spark as wms

_EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"
_HALF_HOUR = 1800

# `spark-pipelines run` with these arguments, time and again in one process, so that one Java will do.
_RUNS = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import inputs
from pyspark.pipelines import cli
from pyspark.sql.connect.session import SparkSession

place, stop = Path(sys.argv[2]), SparkSession.stop
SparkSession.stop = lambda self: None
for number, told in enumerate(sys.argv[3:]):
    inputs.add(place, end=number == len(sys.argv) - 4)
    sys.argv[1:] = ["run", *told.split()]
    cli.main()
"""


def _inputs() -> Any:
    spec = importlib.util.spec_from_file_location("pipeline_inputs", _EXAMPLE / "inputs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rows(runs: int) -> dict[str, list[dict[str, Any]]]:
    made = [_inputs().tables(number) for number in range(runs)]
    return {name: [row for tables in made for row in tables[name].to_pylist()] for name in made[0]}


def _expected(runs: int) -> dict[str, Counter[Any]]:
    """The tables, by loops over all rows."""
    rows = _rows(runs)
    pairs = [
        (order, parcel)
        for order in rows["orders"]
        for parcel in rows["shipments"]
        if order["order_id"] == parcel["order_id"]
    ]
    soon = [(o, s) for o, s in pairs if 0 <= (s["shipped"] - o["ts"]).total_seconds() <= _HALF_HOUR]
    back = Counter(row["order_id"] for row in rows["returns"])
    names = range(_inputs().CUSTOMERS)
    return {
        "matched": Counter((o["order_id"], s["parcel"]) for o, s in pairs),
        "matched_soon": Counter((o["order_id"], s["parcel"]) for o, s in soon),
        "matched_in_slots": Counter((o["order_id"], s["parcel"]) for o, s in soon),
        "named_orders": Counter(
            (o["order_id"], f"customer {o['customer']}" if o["customer"] in names else None) for o in rows["orders"]
        ),
        "returned": Counter((o["order_id"], s["parcel"]) for o, s in pairs if back[o["order_id"]]),
    }


_COLUMNS = {"named_orders": ["order_id", "name"], "returned": ["order_id", "parcel"]}


def _found(place: Path, table: str) -> Counter[Any]:
    files = ds.dataset(place / "spark-warehouse" / table, exclude_invalid_files=True)
    columns = _COLUMNS.get(table, ["order_id", "parcel"])
    return Counter(tuple(row.values()) for row in files.to_table(columns).to_pylist())


def test_a_pipeline_goes_on_and_a_full_refresh_begins_anew(java: None, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.pipelines", reason="declarative pipelines came with PySpark 4.1")
    for needed in ("grpc", "yaml"):
        pytest.importorskip(needed, reason="declarative pipelines need pyspark[connect] and PyYAML")
    project = tmp_path / "project"
    shutil.copytree(_EXAMPLE, project)
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
    expected = _expected(len(runs))
    tables = [*expected] if deep else ["matched", "matched_soon"]
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
