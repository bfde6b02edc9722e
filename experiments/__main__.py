"""`python -m experiments`: the same as `watersmeet reproduce`, without installing anything."""

from __future__ import annotations

import argparse
import sys

from watersmeet.cli import reproduce
from watersmeet.core.errors import WatersmeetError

if __name__ == "__main__":  # the processes of the pool import this module, too
    parser = argparse.ArgumentParser(prog="python -m experiments", description=reproduce.__doc__)
    reproduce.add_arguments(parser)
    try:
        sys.exit(reproduce.main(parser.parse_args()))
    except WatersmeetError as error:
        sys.exit(f"experiments: {error}")
