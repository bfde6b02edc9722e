"""`watersmeet lookup-join`: what its words mean for `wm.lookup_join`, with one relation or with several."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watersmeet.cli import figures
from watersmeet.core.errors import SpecError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument("stream", metavar="STREAM", help="path or glob of the rows to enrich")
    parser.add_argument(
        "relations",
        metavar="RELATION",
        nargs="+",
        help="directory of a relation, or path or glob of its rows; of several, each may be NAME=PATH",
    )
    parser.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column, or STREAM=RELATION; repeat for more; with several relations NAME:COLUMN",
    )
    parser.add_argument("--memory", default="64MiB", metavar="SIZE", help="memory to work in (default %(default)s)")
    parser.add_argument(
        "--how",
        action="append",
        default=[],
        help="inner, left, semi or anti (default inner); with several relations also NAME:HOW, repeated",
    )
    parser.add_argument("--algorithm", default="auto", metavar="NAME", help="which join (default %(default)s)")
    parser.add_argument(
        "--suffixes", nargs=2, default=("", "_right"), metavar=("STREAM", "RELATION"), help="for columns both have"
    )
    parser.add_argument("--spill", metavar="DIR", help="where to lay out rows (default: the temporary directory)")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    figures.add_argument(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="Parquet, CSV or Arrow IPC file, by its ending")


def what_to_join(args: argparse.Namespace) -> dict[str, Any]:
    """The relation, or the relations by name, with their conditions and kinds of join, as `wm.lookup_join` takes them.

    >>> words = argparse.Namespace(relations=["a.rel", "towns=b.csv"], on=["towns:town=id"], how=["left", "a:inner"])
    >>> what_to_join(words) == {
    ...     "relation": {"a": "a.rel", "towns": "b.csv"}, "on": {"towns": ["town=id"]},
    ...     "how": {"a": "inner", "towns": "left"},
    ... }
    True
    """
    if len(args.relations) == 1:
        return {
            "relation": args.relations[0],
            "on": args.on or None,
            "how": args.how[-1] if args.how else "inner",
        }
    relations = paths_by_name(args.relations, "relations")
    on: dict[str, list[str]] = {}
    for text in args.on:
        name, condition = _addressed(text, relations)
        if name is None:
            raise SpecError(f"--on {text}: say for which relation, such as --on {next(iter(relations))}:{text}")
        on.setdefault(name, []).append(condition)
    how = dict.fromkeys(relations, "inner")
    addressed = [_addressed(text, relations) for text in args.how]
    for name, kind in addressed:
        if name is None and ":" in kind:
            called = kind.partition(":")[0]
            raise SpecError(f"--how {kind} names {called!r}, which is no relation; there are {', '.join(relations)}")
    for name, kind in sorted(addressed, key=lambda each: each[0] is not None):  # what is said of one counts more
        how.update(dict.fromkeys(relations if name is None else [name], kind))
    return {"relation": relations, "on": on, "how": how}


def paths_by_name(texts: Sequence[str], what: str) -> dict[str, str]:
    """Paths by the names given before an equals sign, or else by those of their files.

    >>> paths_by_name(["orders=a.csv", "data/items.parquet"], "inputs")
    {'orders': 'a.csv', 'items': 'data/items.parquet'}
    """
    from watersmeet.sources.base import expanded

    paths: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not name.isidentifier() or expanded(text, what).exists():
            name, path = Path(text).stem, text
        if name in paths:
            raise SpecError(f"two {what} are called {name!r}; give them names, such as other={path}")
        paths[name] = path
    return paths


def _addressed(text: str, relations: Mapping[str, str]) -> tuple[str | None, str]:
    """The relation that is named before a colon, if one is, and what is said of it."""
    name, colon, rest = text.partition(":")
    return (name, rest) if colon and name in relations else (None, text)
