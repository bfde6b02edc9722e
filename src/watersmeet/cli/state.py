"""`watersmeet state DIR show | read | verify | repartition`: what a join on Spark remembers."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from watersmeet.cli.colour import harmless

if TYPE_CHECKING:
    from rich.table import Table

_MOST_GROUPS = 16
"""That are shown one by one: those with most bytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("directory", metavar="DIR", help="state=... of a join on Spark, or its address")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="batches, groups, rows, bytes, runs, watermarks, hot keys")
    show.add_argument("--json", action="store_true", help="all of it, as JSON")
    read = actions.add_parser("read", help="the rows that are remembered of one input")
    whose = read.add_mutually_exclusive_group(required=True)
    whose.add_argument("--side", choices=("left", "right"), help="whose rows")
    whose.add_argument("--input", metavar="NAME", help="the same by the name of one of several inputs")
    read.add_argument("--where", metavar="CONDITION", help="such as \"order_id = 7 and day >= '2026-11-17'\"")
    read.add_argument("--batch", type=int, metavar="N", help="as they were after this batch (default: the last)")
    read.add_argument("-o", "--output", metavar="FILE", help="Parquet, CSV or Arrow IPC file, by its ending")
    verify = actions.add_parser("verify", help="check every checksum, and name what is damaged")
    divide = actions.add_parser("repartition", help="divide it into another number of groups; stop the query first")
    divide.add_argument("--partitions", type=int, required=True, metavar="N", help="how many groups there will be")
    for each in (verify, divide):
        each.add_argument("--quiet", action="store_true", help="no progress")
    for each in (show, read, verify, divide):
        each.add_argument("--debug", action="store_true", help="show stack traces")


def main(args: argparse.Namespace) -> int:
    """Do what is asked for; 1 if something is damaged."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "show": _show, "read": _read, "verify": _verify, "repartition": _repartition,
    }  # fmt: skip
    return actions[args.action](args)


def _show(args: argparse.Namespace) -> int:
    from watersmeet.spark.offline.opened import OpenedState, figures

    found = figures(OpenedState(args.directory))
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return 0
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size((100, 24)).columns
    console = Console(file=sys.stdout, width=width, highlight=False)
    for name, value in _summary(found):
        console.print(Text.assemble((f"{harmless(name):<12}", "dim"), harmless(value)))
    if found["by group"]:
        console.print(_table(found))
        hidden = len(found["by group"]) - _MOST_GROUPS
        if hidden > 0:
            console.print(f"{hidden} smaller groups are not shown; --json has all")
    return 0


def _summary(found: dict[str, Any]) -> list[tuple[str, str]]:
    from watersmeet.memory import format_bytes

    told = []
    if found["verb"]:
        how = f", {found['how']}" if found["how"] not in (None, "inner") else ""
        told.append(
            ("join", f"wms.{found['verb']} on {', '.join(found['on']) or 'time'}{how}, by {found['algorithm']}")
        )
    told += [(_short(each["name"]), _columns(each["columns"])) for each in found["inputs"]]
    told.append(("query", f"{found['query']}, started {_times(found['runs of the query'])}"))
    wrote = f", begun by Watersmeet {found['version']}" if found["version"] else ""
    told.append(("format", f"{found['format']}{wrote}"))
    if found["batches"]:
        told.append(("batches", f"up to {found['batches']['last']:,}, kept from {found['batches']['kept from']:,} on"))
    told.append(("groups", f"{found['groups']:,}, of which {len(found['by group']):,} hold something"))
    rows = "" if found["rows"] is None else f"{' + '.join(f'{each:,}' for each in found['rows'])} rows, "
    told.append(("holds", f"{rows}{format_bytes(found['bytes'])} in the last version, {found['files']:,} files in all"))
    if found["watermarks"] is not None:
        times = [_time(each, found["dated"]) for each in found["watermarks"]]
        named = zip(_names(found, len(times)), times, strict=True)
        told.append(("watermarks", ", ".join(f"{name} {at}" for name, at in named)))
    return told + [("hot key", f"{each['key']}, over {each['ways']} groups") for each in found["hot keys"]]


def _short(name: str) -> str:
    """What an input is called in a column of names.

    >>> _short("the left input"), _short("orders")
    ('left', 'orders')
    """
    return name.removeprefix("the ").removesuffix(" input")


def _names(found: dict[str, Any], count: int) -> list[str]:
    """Of the inputs, where the state tells, for it has so many."""
    return [_short(each["name"]) for each in found["inputs"]] or ["left", "right"][:count]


def _columns(columns: list[list[str]]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _time(value: float | None, dated: bool) -> str:
    if value is None:
        return "not known"
    return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="milliseconds") if dated else f"{value:,}"


def _table(found: dict[str, Any]) -> Table:
    from rich.table import Table

    from watersmeet.memory import format_bytes

    table = Table()
    inputs = _names(found, 2)
    for name in ("group", "batch", *(f"{harmless(name)} rows" for name in inputs), "bytes", "runs"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in sorted(found["by group"], key=lambda each: -each["bytes"])[:_MOST_GROUPS]:
        rows = ["-"] * len(inputs) if each["rows"] is None else [f"{count:,}" for count in each["rows"]]
        table.add_row(str(each["group"]), f"{each['batch']:,}", *rows, format_bytes(each["bytes"]), f"{each['runs']:,}")
    return table


def _read(args: argparse.Namespace) -> int:
    from watersmeet.cli.table import first_rows, print_table
    from watersmeet.spark.offline.opened import OpenedState
    from watersmeet.spark.offline.reading import StateRows

    rows = StateRows(OpenedState(args.directory), args.input or args.side, args.where)
    batches = rows.read(batch=args.batch)
    if args.output is None:
        print_table(rows.schema, *first_rows(batches))
        return 0
    from watersmeet.api.sinks import write

    written = write(batches, rows.schema, args.output)
    sys.stderr.write(f"{written:,} rows in {args.output}\n")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from watersmeet.memory import format_bytes
    from watersmeet.spark.offline.opened import OpenedState, verify

    found = verify(OpenedState(args.directory), _progress(args, "checked"))
    for sentence in found.damaged:
        sys.stdout.write(f"damaged: {sentence}\n")
    for name in found.left_over:
        sys.stdout.write(f"left over by a repartition that was killed, and removed by the next: {name}\n")
    sound = f"{len(found.damaged)} of them damaged" if found.damaged else "all sound"
    sys.stdout.write(f"{found.files:,} files with {format_bytes(found.nbytes)} checked, {sound}\n")
    return 1 if found.damaged else 0


def _repartition(args: argparse.Namespace) -> int:
    from watersmeet.memory import format_bytes
    from watersmeet.spark.offline.repartition import repartition

    done = repartition(args.directory, args.partitions, _progress(args, "divided"))
    if done.before == done.after:
        sys.stdout.write(f"The state has {done.after} groups already.\n")
        return 0
    sys.stdout.write(
        f"{done.rows:,} rows ({format_bytes(done.nbytes)}) are in {done.after} groups now, of {done.before} before; "
        f"start the query with partitions={done.after}\n"
    )
    return 0


def _progress(args: argparse.Namespace, what: str) -> Callable[[int, int], None]:
    def tell(done: int, of: int) -> None:
        if not args.quiet and sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {of} groups {what}{chr(10) if done == of else ''}")
            sys.stderr.flush()

    return tell
