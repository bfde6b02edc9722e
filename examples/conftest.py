"""The notebooks run as tests; that of Spark only where there is a Java to run it."""

from __future__ import annotations

import os
import shutil

# The transformations are loaded by a pipeline, which gives them a session.
collect_ignore = ["pipeline/transformations/joins.py", *([] if shutil.which("java") else ["spark.ipynb"])]
# As for the tests of Spark: it lives for seconds, and would spend most of them compiling.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
