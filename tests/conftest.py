"""What holds for every test.

Hypothesis runs under one of two profiles, chosen by the environment variable HYPOTHESIS_PROFILE:

- ``ci``, the default: the same examples in every run, so that a red build is about the change and not about luck;
- ``deep``: ten times as many examples, new ones in each run; a failure prints the blob that reproduces it.

A property that says how many examples it wants says it as a multiple of ``settings().max_examples``, so that it
scales with the profile.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The first example of a property may have to compile kernels: neither a deadline nor "too slow" says anything then.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("ci", _COMMON, derandomize=True, database=None, max_examples=100)
settings.register_profile("deep", _COMMON, derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# What tests start, Spark's workers among it, shares byte code as it shares kernels: to compile all modules anew is a
# quarter of what a short join takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Plots are drawn into files; no test may want a screen.
os.environ.setdefault("MPLBACKEND", "Agg")

# Under nohup or in the background signals are ignored, and the processes that tests start would inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


_HERE = Path(__file__).parent
_FIRST = ("spark", "conformance", "simulate", "experiments", "cli", "live")
"""Where single tests take seconds, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, in the order of their files: what two processes share at the end are thousands of short ones.

    And Spark starts in one process alone: the other begins with the second half, and takes over from the end.
    """

    def place(item: pytest.Item) -> int:
        parts = item.path.relative_to(_HERE).parts if item.path.is_relative_to(_HERE) else ()
        return _FIRST.index(parts[0]) if parts and parts[0] in _FIRST else len(_FIRST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What was imported stays for good: to look through it again and again for cycles is a tenth of a run's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
