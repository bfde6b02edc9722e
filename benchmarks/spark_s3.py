"""Two streams joined on Spark with their state in a bucket, against the same on the disk; and what is asked of S3."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, Target, exactness
from benchmarks.rounds import Settings
from benchmarks.spark_contestants import BUCKET
from benchmarks.spark_inputs import Keys, write_files
from benchmarks.spark_query import Step, measure
from benchmarks.spark_verbs import PARTITIONS
from benchmarks.spark_warm import Measured
from watersmeet.core.errors import WatersmeetError

ROWS = 2_000_000
FILES = 20
FILES_PER_BATCH = 4
MOST_REPEATS = 3
COUNTED = 20_000
"""Rows of each side of the run whose requests are counted: they depend on batches and groups, hardly on rows."""


def spark_s3(settings: Settings) -> Iterator[Figure]:
    """2M+2M rows on Spark, local[2], 800k rows a batch, keys uniform over 2M, state on an S3 server of this machine."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from servers.objects import ObjectServer
    from servers.process import Unavailable
    from servers.s3proxy import S3Proxy

    with tempfile.TemporaryDirectory(prefix="watersmeet-bench-") as directory:
        place, rows = Path(directory), settings.rows(ROWS)
        expected = write_files(place / "all", Keys(rows), [rows // FILES] * FILES)
        try:
            server = S3Proxy(place / "s3")
        except Unavailable as reason:
            raise WatersmeetError(f"the bench needs an S3 server: {reason}") from None
        try:
            os.environ[BUCKET] = server.address("{}/state")
            measured = Measured.of(["s3 join", "ours"], place, FILES_PER_BATCH, min(MOST_REPEATS, settings.repeat))
        finally:
            server.close()
        few = write_files(place / "few", Keys(COUNTED), [COUNTED // FILES] * FILES)
        counting = ObjectServer()
        os.environ[BUCKET] = counting.address("{}/state")
        [counted] = measure("s3 join", Step(str(place / "few"), str(place / "counted"), FILES_PER_BATCH))
        counting.close()
    yield measured.rate("ours", "disk", Target(">=", 0.6, of_ratio=True))
    yield measured.cpu("ours", "disk")
    asked = sum(counting.asked.values()) / (len(counted.rows) * PARTITIONS)
    yield Figure("requests a batch and group", asked, "", None, Target("<=", 6.0))
    yield exactness(measured.wrong(expected) + (counted.results != few), "wrong runs, by row count")
