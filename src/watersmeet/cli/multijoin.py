"""`watersmeet multijoin`: what its words mean for `wm.multijoin`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from watersmeet.cli import figures
from watersmeet.cli.lookup_join import paths_by_name
from watersmeet.core.errors import SpecError

if TYPE_CHECKING:  # what imports Arrow waits until there is something to join
    from watersmeet.core.spec import Band


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument(
        "inputs", metavar="NAME=PATH", nargs="+", help="paths or globs of the inputs; without NAME, that of the file"
    )
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as 'orders.id = items.order_id'; repeat until all inputs hold together",
    )
    parser.add_argument(
        "--band",
        action="append",
        default=[],
        metavar="CONDITION:WIDTH",
        help="such as 'trades.at = quotes.at:90s': values that differ by so much at most; miner joins them",
    )
    parser.add_argument(
        "--how",
        action="append",
        default=[],
        metavar="NAME:left",
        help="rows of this input come out in any case, with NULLs beside those that are in no result",
    )
    parser.add_argument(
        "--window",
        action="append",
        default=[],
        metavar="SPAN",
        help="rows meet within 10min, or among the last '1000 rows', of each input; NAME:SPAN is for one of them",
    )
    parser.add_argument(
        "--time",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column that tells the time, or NAME:COLUMN for one input",
    )
    parser.add_argument("--lateness", metavar="SPAN", help="by so much rows may be out of order")
    parser.add_argument("--late", default="keep", help="later rows: keep, drop or error (default %(default)s)")
    parser.add_argument("--idle", metavar="SPAN", help="a silent input holds back the others for so long")
    parser.add_argument("--delay", metavar="SPAN", help="how long a result may wait, such as 1s (default: no bound)")
    parser.add_argument(
        "--rows",
        action="append",
        default=[],
        metavar="NAME:COUNT",
        help="about so many rows has an input; told of all, it lets auto choose between one join and a tree",
    )
    parser.add_argument("--memory", default="64MiB", metavar="SIZE", help="memory to work in (default %(default)s)")
    parser.add_argument(
        "--algorithm", default="auto", metavar="NAME", help="confluence, mjoin, tree or miner (default %(default)s)"
    )
    parser.add_argument("--spill", metavar="DIR", help="where to spill (default: the temporary directory)")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    figures.add_argument(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="Parquet, CSV or Arrow IPC file, by its ending")


def what_to_join(args: argparse.Namespace) -> dict[str, Any]:
    """The inputs by name, and what is asked of them, as `wm.multijoin` takes it.

    >>> words = argparse.Namespace(
    ...     inputs=["a.csv", "b=other.csv"], on=["a.id = b.id"], band=["a.at = b.at:90s"],
    ...     how=[], window=["10min", "b:5 rows"], time=[], lateness=None, late="keep", idle=None, delay=None,
    ...     rows=[],
    ... )
    >>> found = what_to_join(words)
    >>> found["inputs"], found["window"]
    ({'a': 'a.csv', 'b': 'other.csv'}, {'a': '10min', 'b': Rows(count=5)})
    """
    inputs = paths_by_name(args.inputs, "inputs")
    on = [*args.on, *map(_band, args.band)]
    if not on:
        first, second = (*inputs, "other")[:2]
        raise SpecError(f"the join needs conditions, such as --on '{first}.id = {second}.id'")
    return {
        "inputs": inputs,
        "on": on,
        "how": _how(args.how),
        "window": _of_all_or_each("--window", args.window, inputs, _window),
        "time": _of_all_or_each("--time", args.time, inputs, str),
        "lateness": args.lateness,
        "late": args.late,
        "idle": args.idle,
        "delay": args.delay,
        **({"rows": _counts(args.rows)} if args.rows else {}),
    }


def _how(texts: Sequence[str]) -> object:
    """As `wm.multijoin` takes it.

    >>> _how(["orders:left"]), _how([])
    ({'orders': 'left'}, 'inner')
    """
    if not texts:
        return "inner"
    for text in texts:
        if ":" not in text and text != "inner":
            raise SpecError(f"--how {text} does not say of which input; write --how NAME:{text}")
    if any(":" not in text for text in texts):
        return "inner"
    return dict(text.rsplit(":", 1) for text in texts)


def _counts(texts: Sequence[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for text in texts:
        name, _, count = text.rpartition(":")
        if not name or not re.fullmatch(r"[0-9]{1,18}(_[0-9]{1,18}){0,9}", count):
            raise SpecError(f"--rows {text!r} is not understood; write NAME:COUNT, such as orders:1000000")
        counts[name] = float(count)
    return counts


def _band(text: str) -> Band:
    from watersmeet.core.bands import parse_width
    from watersmeet.core.spec import band, equated

    condition, colon, width = text.rpartition(":")
    ends = equated(condition)
    if not colon or len(ends) != 2:
        raise SpecError(f"--band {text!r} is not understood; write 'INPUT.COLUMN = OTHER.COLUMN:WIDTH'")
    return band(f"{ends[0]} = {ends[1]}", parse_width(width))


def _window(text: str) -> object:
    from watersmeet.core.windows import rows

    number, _, word = text.strip().partition(" ")
    if word.strip() in ("row", "rows") and re.fullmatch("[0-9]{1,18}", number):
        return rows(int(number))
    return text


def _of_all_or_each(
    option: str, texts: Sequence[str], inputs: Mapping[str, str], read: Callable[[str], object]
) -> object:
    """What is said of all inputs, or, where something is said of one, by input; None if nothing is."""
    common: object = None
    own: dict[str, object] = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        if colon and name in inputs:
            own[name] = read(rest)
        elif common is not None:
            raise SpecError(f"{option} {text}: say for which input, such as {option} {next(iter(inputs))}:{text}")
        else:
            common = read(text)
    if not own:
        return common
    if common is not None:
        own = {name: own.get(name, common) for name in inputs}
    return own
