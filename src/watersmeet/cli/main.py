"""The command line: `watersmeet join` and its kin, `explain`, `demo`, `reproduce`, `bench`, `completion`.

A sub-command is one `add_…_parser` function, which says its arguments, and the module whose `main(args)` does the work;
that module is imported only once the arguments are understood.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from watersmeet.cli import colour, figures, looking
from watersmeet.cli.signals import SIGNALLED, Stopped, stop_behind, unwinding

if TYPE_CHECKING:
    from watersmeet.api.result import Result
    from watersmeet.cli.on_spark import SparkFileJoin
    from watersmeet.core.spec import Band, Near

USAGE_ERROR = 2
FAILURE = 1
_HOW = "which rows: inner, left, right, full, semi or anti (default %(default)s)"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is."""
        name = colour.red("watersmeet:", sys.stderr)
        self.exit(USAGE_ERROR, f"{name} {message}; see '{self.prog} --help'\n")


def build_parser() -> Parser:
    """All sub-commands with their arguments."""
    parser = Parser(prog="watersmeet", description="Exact, early, memory-bounded joins of streams.")
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for add in (
        add_join_parser,
        add_multijoin_parser,
        add_window_join_parser,
        add_asof_join_parser,
        add_lookup_parser,
        add_explain_parser,
        add_demo_parser,
        add_serve_parser,
        add_state_parser,
        add_reproduce_parser,
        add_bench_parser,
        add_completion_parser,
    ):
        added = add(commands)
        added.add_argument("--debug", action="store_true", help="show stack traces")
        if add in JOINING:
            looking.add_arguments(added)
    return parser


def add_join_parser(commands: Any) -> Parser:
    """`watersmeet join`."""
    parser: Parser = commands.add_parser(
        "join",
        help="join two files",
        description="Join two files (Parquet, CSV, NDJSON, Arrow IPC; globs in quotes) within a given memory.",
    )
    _add_inputs(parser)
    parser.add_argument(
        "--near",
        metavar="COLUMNS:RADIUS",
        help="two or three columns, or LEFT=RIGHT each, of points that are so far apart at most (x,y:0.5)",
    )
    parser.add_argument("--how", metavar="KIND", default="inner", help=_HOW)
    parser.add_argument("--delay", metavar="SPAN", help="how long a pair may wait, such as 1s (default: no bound)")
    parser.add_argument("--threads", type=int, metavar="N", help="how many work at the join (default: one)")
    parser.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="in this process, or on local Spark (default %(default)s)",
    )
    parser.set_defaults(run=run_join)
    return parser


def add_multijoin_parser(commands: Any) -> Parser:
    """`watersmeet multijoin`."""
    from watersmeet.cli.multijoin import add_arguments

    parser: Parser = commands.add_parser(
        "multijoin",
        help="join several files",
        description="Join two and more files in one operator, on any graph of conditions, within a given memory.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run_multijoin)
    return parser


def add_window_join_parser(commands: Any) -> Parser:
    """`watersmeet window-join`."""
    parser: Parser = commands.add_parser(
        "window-join",
        help="join two files by windows of time",
        description="Join rows of two files whose times lie close together, as if they were streams without an end.",
    )
    _add_inputs(parser)
    parser.add_argument("--time", required=True, metavar="COLUMN", help="column that tells the time, or LEFT=RIGHT")
    parser.add_argument(
        "--window",
        action="append",
        default=[],
        metavar="SPAN",
        help="how long rows are met, such as 10min; a second one is for the right input",
    )
    parser.add_argument(
        "--queries",
        metavar="FILE",
        help='many joins at once: JSON such as [{"name": "large", "window": "1 min", "left": "amount > 100"}]',
    )
    parser.add_argument(
        "--how", default="inner", help="kind of join: inner, left, right, full, semi, anti (default %(default)s)"
    )
    parser.add_argument("--slide", metavar="SPAN", help="windows move by so much at once")
    parser.add_argument("--lateness", metavar="SPAN", help="by so much rows may be out of order")
    parser.add_argument("--late", help="later rows: keep, drop or error (default keep, or drop with --emit final)")
    parser.add_argument("--idle", metavar="SPAN", help="a silent input holds back the other for so long")
    parser.add_argument(
        "--emit", default="early", help="early: as results are found (default); final: in order of time"
    )
    parser.set_defaults(run=run_window_join)
    return parser


def add_asof_join_parser(commands: Any) -> Parser:
    """`watersmeet asof-join`."""
    from watersmeet.cli.asof_join import add_arguments

    parser: Parser = commands.add_parser(
        "asof-join",
        help="join each row of a file with the nearest by time of another",
        description="For each row of the left file the one row of the right that is nearest by time, among its key's.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run_asof_join)
    return parser


def _add_inputs(parser: Parser) -> None:
    """What joins of two files take."""
    parser.add_argument("left", metavar="LEFT", help="path or glob of the left input")
    parser.add_argument("right", metavar="RIGHT", help="path or glob of the right input")
    parser.add_argument(
        "--on", action="append", default=[], metavar="COLUMN", help="column, or LEFT=RIGHT; repeat for more than one"
    )
    parser.add_argument(
        "--band",
        metavar="COLUMN:WIDTH",
        help="column, or LEFT=RIGHT, whose values differ by a number (price:0.05) or a time (ts:90s) at most",
    )
    parser.add_argument("--memory", default="64MiB", metavar="SIZE", help="memory to work in (default %(default)s)")
    parser.add_argument("--algorithm", default="auto", metavar="NAME", help="which join (default %(default)s)")
    parser.add_argument(
        "--suffixes", nargs=2, default=("", "_right"), metavar=("LEFT", "RIGHT"), help="for columns both inputs have"
    )
    parser.add_argument("--spill", metavar="DIR", help="where to spill (default: the temporary directory)")
    parser.add_argument(
        "--spool", metavar="SIZE", help="how far inputs may run ahead of the join, onto the disk (default: they wait)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    figures.add_argument(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="Parquet, CSV or Arrow IPC file, by its ending")


def add_lookup_parser(commands: Any) -> Parser:
    """`watersmeet lookup-join`."""
    from watersmeet.cli.lookup_join import add_arguments

    parser: Parser = commands.add_parser(
        "lookup-join",
        help="enrich a file from a relation, or from several",
        description="Join a file with relations on disk (made by wm.Relation.build), or with other files, in one pass.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run_lookup)
    return parser


def add_explain_parser(commands: Any) -> Parser:
    """`watersmeet explain`."""
    parser: Parser = commands.add_parser(
        "explain",
        help="say what a join would do, without doing it",
        description="Say what a join would do: its inputs, algorithm, memory and columns. No row is joined.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, required=True)
    for add in JOINS:
        verb = add(verbs)
        verb.set_defaults(explain=True)
        verb.add_argument("--debug", action="store_true", help="show stack traces")
    return parser


def add_completion_parser(commands: Any) -> Parser:
    """`watersmeet completion`."""
    from watersmeet.cli.completion import add_arguments

    parser: Parser = commands.add_parser("completion", help="let a shell complete commands, algorithms and columns")
    add_arguments(parser)
    parser.set_defaults(run=run_completion)
    return parser


def add_demo_parser(commands: Any) -> Parser:
    """`watersmeet demo`."""
    parser: Parser = commands.add_parser("demo", help="watch two slow, stalling sources being joined in little memory")
    parser.add_argument(
        "--engine",
        choices=("spark", "local"),
        default="spark",
        help="on local Spark, or in this process (default %(default)s)",
    )
    parser.add_argument("--out", metavar="DIR", help="where to put the picture and the results (default demo-output)")
    parser.add_argument("--rows", type=int, metavar="N", help="orders; there are 0.8 times as many shipments")
    parser.add_argument("--memory", metavar="SIZE", help="memory to work in (default 2MiB; on Spark 1MiB a task)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the generated rows (default %(default)s)")
    figures.add_argument(parser)
    parser.set_defaults(run=_in_module("watersmeet.demo"))
    return parser


def add_serve_parser(commands: Any) -> Parser:
    """`watersmeet serve`."""
    from watersmeet.cli.serve import add_arguments

    parser: Parser = commands.add_parser("serve", help="a live page of the state directory of a join on Spark")
    add_arguments(parser)
    parser.set_defaults(run=_in_module("watersmeet.cli.serve"))
    return parser


def add_state_parser(commands: Any) -> Parser:
    """`watersmeet state`."""
    from watersmeet.cli.state import add_arguments

    parser: Parser = commands.add_parser(
        "state",
        help="what a join on Spark remembers: show, read, verify, repartition",
        description="Look into the state directory of a join on Spark, check it, or divide it anew. Needs no Spark.",
    )
    add_arguments(parser)
    parser.set_defaults(run=_in_module("watersmeet.cli.state"))
    return parser


def add_reproduce_parser(commands: Any) -> Parser:
    """`watersmeet reproduce`."""
    from watersmeet.cli.reproduce import add_arguments

    parser: Parser = commands.add_parser("reproduce", help="run the papers' experiments, and check what they claim")
    add_arguments(parser)
    parser.set_defaults(run=_in_module("watersmeet.cli.reproduce"))
    return parser


def add_bench_parser(commands: Any) -> Parser:
    """`watersmeet bench`."""
    from watersmeet.cli.bench import add_arguments

    parser: Parser = commands.add_parser("bench", help="measure speed and memory on this machine")
    add_arguments(parser)
    parser.set_defaults(run=_in_module("watersmeet.cli.bench"))
    return parser


JOINS = (add_join_parser, add_multijoin_parser, add_window_join_parser, add_asof_join_parser, add_lookup_parser)
JOINING = (*JOINS, add_demo_parser)
"""Commands of which there is something to look at."""


def _in_module(name: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        from watersmeet.core.errors import SpecError

        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise SpecError(f"{args.command} is not part of this installation") from error
        return int(module.main(args) or 0)

    return run


def run_join(args: argparse.Namespace) -> int:
    """Join two files into a third, or show the first rows."""
    import watersmeet as wm

    on = _conditions(args)

    def begin(**watching: Any) -> Result | SparkFileJoin:
        if args.engine == "spark":
            from watersmeet.cli.on_spark import SparkFileJoin

            return SparkFileJoin(args, on, **watching)
        return wm.join(
            args.left,
            args.right,
            on=on,
            how=args.how,
            memory=args.memory,
            algorithm=args.algorithm,
            delay=args.delay,
            threads=args.threads,
            suffixes=tuple(args.suffixes),
            spill=args.spill,
            spool=args.spool,
            **watching,
        )

    _run(args, begin)
    return 0


def run_multijoin(args: argparse.Namespace) -> int:
    """Join several files into another, or show the first rows."""
    import watersmeet as wm
    from watersmeet.cli.multijoin import what_to_join

    wanted = what_to_join(args)
    _run(
        args,
        lambda **watching: wm.multijoin(
            **wanted, memory=args.memory, algorithm=args.algorithm, spill=args.spill, **watching
        ),
    )
    return 0


def run_window_join(args: argparse.Namespace) -> int:
    """Join two files by windows."""
    from watersmeet.api.window_join import window_join
    from watersmeet.api.window_queries import read_queries, window_queries
    from watersmeet.core.errors import SpecError

    on = _conditions(args) if args.on or args.band is not None else None
    if len(args.window) > 2:
        raise SpecError("there are two windows at most, one for each input")
    names = ("time", "slide", "lateness", "late", "idle", "emit", "memory", "spill", "spool")
    told: dict[str, Any] = {name: getattr(args, name) for name in names}
    told |= {"on": on, "suffixes": tuple(args.suffixes)}
    window = tuple(args.window) if len(args.window) == 2 else args.window[0] if args.window else None
    if args.queries is not None:
        if args.how != "inner" or args.algorithm not in ("auto", "confluence"):
            raise SpecError("queries are inner joins by confluence; leave --how and --algorithm out, or --queries")
        queries = read_queries(args.queries)
        _run(args, lambda **w: window_queries(args.left, args.right, queries=queries, window=window, **told, **w))
        return 0
    if window is None:
        raise SpecError("a join by windows needs --window, such as --window 10min; or --queries FILE")
    told |= {"how": args.how, "algorithm": args.algorithm}
    _run(args, lambda **w: window_join(args.left, args.right, window=window, **told, **w))
    return 0


def run_asof_join(args: argparse.Namespace) -> int:
    """Join each row of a file with the nearest of another."""
    from watersmeet.api.asof_join import asof_join
    from watersmeet.cli.asof_join import what_to_join

    _run(args, lambda **watching: asof_join(args.left, args.right, **what_to_join(args), **watching))
    return 0


def _conditions(args: argparse.Namespace) -> list[str | Band | Near]:
    """What two files are joined on."""
    from watersmeet.core.errors import SpecError

    on = [*args.on, *([] if args.band is None else [_band(args.band)])]
    if getattr(args, "near", None) is not None:
        on.append(_near(args.near))
    if not on:
        raise SpecError("the join needs a condition: --on COLUMN, --band COLUMN:WIDTH, or both")
    return on


def run_lookup(args: argparse.Namespace) -> int:
    """Enrich a file into another, or show the first rows."""
    from watersmeet.api.lookup_join import lookup_join
    from watersmeet.cli.lookup_join import what_to_join

    wanted = what_to_join(args)
    _run(
        args,
        lambda **watching: lookup_join(
            args.stream,
            **wanted,
            memory=args.memory,
            algorithm=args.algorithm,
            suffixes=tuple(args.suffixes),
            spill=args.spill,
            **watching,
        ),
    )
    return 0


def run_completion(args: argparse.Namespace) -> int:
    """Print what a shell asks for."""
    from watersmeet.cli.completion import main

    print(main(args), end="")
    return 0


def _run(args: argparse.Namespace, begin: Callable[..., Result | SparkFileJoin]) -> None:
    """Carry out a join with its progress on the terminal: into a file, or the first rows to the screen.

    `begin` is given whoever watches: `on_progress` and `page`.
    """
    from watersmeet.api import sinks
    from watersmeet.cli.progress import display
    from watersmeet.cli.table import first_rows, print_table

    if args.output is not None:
        sinks.check_target(args.output)
    figures.check_target(args.json)
    figures.check_apart(args)
    if getattr(args, "explain", False):
        _explain(args, begin)
        return
    looking.check(args)
    with looking.page_for(args) as page:
        with display(args.quiet) as show:
            result = begin(on_progress=show, page=page)
            with result:
                if args.output is not None:
                    result.write(args.output)
                else:
                    head, rows = first_rows(result)
                    show.clear()
                    if args.json != figures.STANDARD_OUTPUT:
                        print_table(result.schema, head, rows)
            show.finish(result.progress)
        if args.report is not None:
            result.report(args.report)
        figures.write(args.json, result.progress.as_dict())


def _explain(args: argparse.Namespace, begin: Callable[..., Result | SparkFileJoin]) -> None:
    """Say what a join would do."""
    from watersmeet.api.result import Result
    from watersmeet.core.errors import SpecError

    with begin(on_progress=lambda _: None, page=None) as result:
        if not isinstance(result, Result):
            raise SpecError("explain tells what happens in one process; leave --engine spark out")
        told = result.explain()
    if args.json != figures.STANDARD_OUTPUT:
        print(told)
    figures.write(args.json, told.as_dict())


def _band(text: str) -> Band:
    from watersmeet.core.bands import parse_width
    from watersmeet.core.errors import SpecError
    from watersmeet.core.spec import band

    column, colon, width = text.rpartition(":")
    if not colon:
        raise SpecError(f"--band {text!r} is not understood; write COLUMN:WIDTH, such as price:0.05 or ts:90s")
    return band(column, parse_width(width))


def _near(text: str) -> Near:
    from watersmeet.core.bands import parse_width
    from watersmeet.core.errors import SpecError
    from watersmeet.core.spec import near

    columns, colon, radius = text.rpartition(":")
    if not colon:
        raise SpecError(f"--near {text!r} is not understood; write COLUMNS:RADIUS, such as x,y:0.5")
    return near(columns.split(","), parse_width(radius, "radius"))  # type: ignore[arg-type]  # a time is refused


def run(argv: Sequence[str] | None = None) -> int:
    """Understand and carry out a command line; returns the exit code and never raises."""
    debug = False
    try:
        with unwinding():
            parser = build_parser()
            args = parser.parse_args(argv)
            if args.version:
                import watersmeet as wm

                print(f"watersmeet {wm.__version__}")
                return 0
            if args.command is None:
                parser.error("a command is missing")
            debug = args.debug
            return int(args.run(args))
    except Stopped as stopped:
        _say("stopped")
        return stopped.exit_code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else FAILURE
    except BrokenPipeError:
        # Whoever read our output has had enough. Without this, Python complains once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        stop = stop_behind(error)
        if stop is not None:
            _say("stopped")
            return stop.exit_code
        if debug:
            raise
        return _report(error)


def _report(error: Exception) -> int:
    """One sentence about an error; the exit code that goes with it."""
    from watersmeet.core.errors import BudgetError, SourceError, SpecError, WatersmeetError

    if isinstance(error, WatersmeetError):
        _say(str(error))
        return USAGE_ERROR if isinstance(error, SpecError | SourceError | BudgetError) else FAILURE
    if isinstance(error, MemoryError):
        _say("the machine has no memory left; allow the join less with --memory, or free some")
    elif isinstance(error, OSError) and error.strerror:
        _say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    else:
        _say(f"unexpected {type(error).__name__}: {error}; run again with --debug to see where")
    return FAILURE


def _say(text: str) -> None:
    print(colour.red("watersmeet:", sys.stderr), colour.harmless(" ".join(text.split())), file=sys.stderr, flush=True)


def main() -> NoReturn:
    """The entry point of the installed command."""
    code = run()
    at_once = code > SIGNALLED or any(thread.name.startswith("watersmeet-read-") for thread in threading.enumerate())
    if at_once:  # then nobody else would do what is left for the exit, such as to remove what was spilled
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        os._exit(FAILURE)
    if at_once:
        # A reader may be stuck in a source, and an orderly exit would wait for it, or take away what it uses. And what
        # a signal interrupted may be half done: nothing good comes of its destructors.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
