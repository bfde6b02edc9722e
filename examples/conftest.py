"""The notebooks run as tests; that of Spark only where there is a Java to run it."""

from __future__ import annotations

import os
import shutil

collect_ignore = [] if shutil.which("java") else ["spark.ipynb"]
# As for the tests of Spark: it lives for seconds, and would spend most of them compiling.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
