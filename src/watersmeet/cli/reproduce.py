"""`watersmeet reproduce`: the figures of the papers, run in virtual time by the experiments of a source checkout."""

from __future__ import annotations

import argparse
from pathlib import Path

from watersmeet.cli import checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="which experiments, or all (the default)")
    parser.add_argument(
        "--scale",
        type=float,
        default=0.1,
        metavar="F",
        help="size of the data, 1 being the papers' (default %(default)s)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each (default 5 at scale 1, else 1)")
    parser.add_argument("--out", metavar="DIR", help="write the curves (CSV) and their pictures (PNG) here")
    parser.add_argument("--json", metavar="FILE", help="write the claims and what was measured here")
    parser.add_argument("--markdown", metavar="FILE", help="bring this page up to date with what was measured")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once (default %(default)s)")
    parser.add_argument(
        "--keep",
        metavar="DIR",
        help="keep what was measured here: a run that was stopped goes on, while the code is the same",
    )
    parser.add_argument("--list", action="store_true", help="say which experiments there are")


def find_experiments() -> Path:
    """The folder of the experiments: beside the sources this package is run from, or in the current directory."""
    return checkout.find("experiments", __file__)


def main(args: argparse.Namespace) -> int:
    """Run the experiments that were asked for."""
    return int(checkout.catalogue(find_experiments()).main(args))
