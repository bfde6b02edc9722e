"""`python -m benchmarks`: the same as `watersmeet bench`, without installing anything."""

from __future__ import annotations

import argparse
import sys

from watersmeet.cli import bench
from watersmeet.core.errors import WatersmeetError

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=bench.__doc__)
bench.add_arguments(parser)
try:
    sys.exit(bench.main(parser.parse_args()))
except WatersmeetError as error:
    sys.exit(f"benchmarks: {error}")
