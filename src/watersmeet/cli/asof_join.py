"""`watersmeet asof-join`: what its words mean for `wm.asof_join`."""

from __future__ import annotations

import argparse
from typing import Any

from watersmeet.cli import figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument("left", metavar="LEFT", help="path or glob of the rows to be answered")
    parser.add_argument("right", metavar="RIGHT", help="path or glob of the rows among which the nearest is looked for")
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column, or LEFT=RIGHT; repeat for more than one; without, all rows are on one timeline",
    )
    parser.add_argument("--time", required=True, metavar="COLUMN", help="column that tells the time, or LEFT=RIGHT")
    parser.add_argument(
        "--direction",
        default="backward",
        metavar="WHICH",
        help="the last row before (backward), the first after (forward) or the nearest (default %(default)s)",
    )
    parser.add_argument("--tolerance", metavar="SPAN", help="rows further away do not count, such as 5s")
    parser.add_argument("--how", default="inner", help="inner, or left: rows without a partner, too (default inner)")
    parser.add_argument(
        "--lateness",
        action="append",
        default=[],
        metavar="SPAN",
        help="by so much rows may be out of order; a second one is for the right input; without, files are sorted",
    )
    parser.add_argument("--late", default="keep", help="later rows: keep, drop or error (default %(default)s)")
    parser.add_argument("--memory", default="64MiB", metavar="SIZE", help="memory to work in (default %(default)s)")
    parser.add_argument(
        "--suffixes", nargs=2, default=("", "_right"), metavar=("LEFT", "RIGHT"), help="for columns both inputs have"
    )
    parser.add_argument("--spill", metavar="DIR", help="where to spill (default: the temporary directory)")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    figures.add_argument(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="Parquet, CSV or Arrow IPC file, by its ending")


def what_to_join(args: argparse.Namespace) -> dict[str, Any]:
    """What is asked of the two files, as `wm.asof_join` takes it.

    >>> words = argparse.Namespace(on=[], time="ts", direction="forward", tolerance="5s", how="left",
    ...     lateness=["1s", "2s"], late="keep", memory="8MiB", suffixes=("", "_r"), spill=None)
    >>> found = what_to_join(words)
    >>> found["on"], found["lateness"]
    (None, ('1s', '2s'))
    """
    lateness = args.lateness[0] if len(args.lateness) == 1 else tuple(args.lateness) or None
    return {
        "on": args.on or None,
        "time": args.time,
        "direction": args.direction,
        "tolerance": args.tolerance,
        "how": args.how,
        "lateness": lateness,
        "late": args.late,
        "memory": args.memory,
        "suffixes": tuple(args.suffixes),
        "spill": args.spill,
    }
