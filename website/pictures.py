"""Pictures of the live page for `docs/live.md`, each of a real run: `python -m website.pictures [NAME ...]`.

Needs a headless Chromium, as the tests of the page do, and for `spark` Java. Look at them before they are committed.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm
from website.build import DOCS

IMAGES = DOCS / "images"
PATIENCE = 600.0
"""Seconds for a query to come so far that there is something to see."""


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("WATERSMEET_BROWSER") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


def take(address: str, name: str, *, width: int, theme: str = "light") -> None:
    """A picture of the whole page, in so few colours that it stays small."""
    with browser() as launched:
        page = launched.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        page.goto(address)
        page.wait_for_function("() => document.querySelectorAll('.uplot').length > 3")
        page.wait_for_timeout(500)
        content = page.screenshot(full_page=True)
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)
    sys.stdout.write(f"{IMAGES / name}.png {picture.size}\n")


def demo(folder: Path) -> None:
    """The demo in this process, at three widths."""
    report = folder / "demo.html"
    command = [sys.executable, "-m", "watersmeet.cli.main", "demo", "--engine", "local", "--out", str(folder)]
    subprocess.run([*command, "--report", str(report)], check=True)
    take(report.as_uri(), "page", width=1240)
    take(report.as_uri(), "page-dark", width=820, theme="dark")
    take(report.as_uri(), "page-narrow", width=390)


def spark(folder: Path) -> None:
    """A query on Spark while it runs, once groups have moved and a key was split."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

    from watersmeet import spark as wms

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    session = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "4").getOrCreate()
    joined = _joined(session, folder / "rehearsal", files=2)  # after it, kernels are compiled and workers there
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(folder / "rehearsal" / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    joined = _joined(session, folder / "run", files=60)
    with wm.Page() as page, wms.Watch(session, io.StringIO(), page=page):
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(folder / "run" / "checkpoint"))
        query = writer.start()
        _wait(lambda: _has_moved(page), query)
        take(page.address, "page-spark", width=1240)
        query.stop()
    session.stop()


def _joined(session: Any, folder: Path, files: int) -> Any:
    from watersmeet import spark as wms

    for name in ("clicks", "sales"):
        _write(folder / name, files, seed=len(name))
    clicks, sales = (
        session.readStream.schema("ad long, at timestamp, value long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / name))
        for name in ("clicks", "sales")
    )
    return wms.parallel_join(
        clicks, sales, on="ad", time="at", window="20 s", slots=(2, 4), groups=32, reorganize="3 s", memory="32 MiB",
        state=folder / "clicks-and-sales",
    )  # fmt: skip


def _write(place: Path, files: int, seed: int, rows: int = 4_000) -> None:
    """One row in four has the same key; the keys of the others follow a power law."""
    rng = np.random.default_rng(seed)
    place.mkdir(parents=True)
    began = datetime(2026, 3, 1, tzinfo=UTC)
    for number in range(files):
        keys = np.where(rng.random(rows) < 0.25, 7, rng.zipf(1.4, rows) % 5_000)
        offsets = np.sort(rng.integers(0, 10_000, rows)) + 10_000 * number
        times = [began + timedelta(milliseconds=int(each)) for each in offsets]
        table = pa.table({"ad": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "value": np.arange(rows)})
        pq.write_table(table, place / f"{number:04d}.parquet")
        os.utime(place / f"{number:04d}.parquet", (1e9 + number,) * 2)


def _has_moved(page: wm.Page) -> bool:
    runs = page.board.runs
    extras = runs[0].extras if runs else {}
    some = any(group.get("moved") for group in extras.get("groups", ()))
    return some and bool(extras.get("hot")) and extras["batch"] >= 12


def _wait(condition: Callable[[], bool], query: Any) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if not query.isActive or time.monotonic() > give_up:
            raise RuntimeError(f"there was nothing to see: {query.exception()}")
        time.sleep(0.1)


PICTURES: dict[str, Callable[[Path], None]] = {"demo": demo, "spark": spark}


def main(names: list[str]) -> None:
    """Make those of these names, or all."""
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            PICTURES[name](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
