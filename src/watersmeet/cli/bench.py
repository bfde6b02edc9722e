"""`watersmeet bench`: speed and memory on this machine, measured by the benchmarks of a source checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from watersmeet.cli import checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which benchmarks (default: all); or suite, and which of those"
    )
    parser.add_argument("--peers", action="store_true", help="run other engines beside it, and compare")
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of each (default 5, of a suite 1)")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="F", help="size of the inputs, 1 being the full one"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here, too")
    parser.add_argument("--list", action="store_true", help="say which benchmarks there are")


def find_benchmarks() -> Path:
    """The folder of the benchmarks: beside the sources this package is run from, or in the current directory."""
    return checkout.find("benchmarks", __file__)


def main(args: argparse.Namespace) -> int:
    """Run the benchmarks that were asked for."""
    return int(checkout.catalogue(find_benchmarks()).main(args))
