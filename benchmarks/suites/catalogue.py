"""The suites by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.suites import alliance, datafusion_24768, db_benchmark, growing, nexmark, tpch
from benchmarks.suites.model import Suite

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        nexmark.SUITE, datafusion_24768.SUITE, db_benchmark.SUITE, tpch.SUITE, alliance.SUITE, growing.SUITE,
    )
}  # fmt: skip
