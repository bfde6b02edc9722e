"""The reference of the library, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import ModuleType

import watersmeet as wm
from website.markdown import first_sentence, of_docstring

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Joins": (
        "join",
        "window_join",
        "window_queries",
        "asof_join",
        "multijoin",
        "lookup_join",
        "shared_lookup_join",
    ),
    "What they return": ("Result", "QueriesResult", "SharedResult", "Progress"),
    "Conditions, windows, promises": (
        "band",
        "rows",
        "landmark",
        "age",
        "WindowQuery",
        "Punctuation",
        "among",
        "between",
    ),
    "Inputs": ("source", "query", "Relation"),
    "Looking ahead": ("explain", "simulate", "Trace", "Grain"),
}
"""The public names by what they are for; `errors` have a page of their own, and what is left comes last."""


def pages() -> dict[str, str]:
    """Path and text of each page of the reference."""
    spark = importlib.import_module("watersmeet.spark")
    return {
        "reference/library.md": _page("The library", "import watersmeet as wm", wm, "wm", _grouped()),
        "reference/spark.md": _page(
            "The library on Spark", "from watersmeet import spark as wms", spark, "wms", {"": tuple(spark.__all__)}
        ),
        "reference/commands.md": commands(),
    }


def _grouped() -> dict[str, tuple[str, ...]]:
    listed = {name for names in GROUPS.values() for name in names}
    errors = {name for name in wm.__all__ if name.endswith("Error")}
    rest = tuple(sorted(set(wm.__all__) - listed - errors - {"__version__", "errors"}))
    return {**GROUPS, **({"More": rest} if rest else {})}


def _page(title: str, how: str, module: ModuleType, prefix: str, groups: Mapping[str, tuple[str, ...]]) -> str:
    out = [f"# {title}", "", "```python", how, "```", ""]
    for heading, names in groups.items():
        out += [f"## {heading}", ""] if heading else []
        for name in names:
            out += [*_entry(getattr(module, name), f"{prefix}.{name}", level=3 if heading else 2), ""]
    return "\n".join(out) + "\n"


def _entry(thing: object, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield ""
    if inspect.isclass(thing):
        yield from _class(thing, name, level)
        return
    yield from _signature(thing, name)
    yield of_docstring(inspect.getdoc(thing))


def _class(kind: type, name: str, level: int) -> Iterator[str]:
    documented = inspect.cleandoc(kind.__doc__ or "")
    if dataclasses.is_dataclass(kind):
        yield of_docstring(documented)
        yield ""
        yield from _fields(kind)
    else:
        if "__init__" in vars(kind) and not name.endswith(("Result", "Relation")):  # these are made by others
            yield from _signature(kind, name)
        yield of_docstring(documented)
        yield ""
    for member, found in _members(kind):
        if isinstance(found, property):
            yield f"**`.{member}`**: {' '.join(inspect.cleandoc(found.__doc__ or '').split())}"
            yield ""
            continue
        function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        owner = name if isinstance(found, classmethod | staticmethod) else name.rpartition(".")[2].lower()
        yield f"{'#' * (level + 1)} {name.rpartition('.')[2]}.{member}"
        yield ""
        yield from _signature(function, f"{owner}.{member}", method=True)
        yield of_docstring(function.__doc__)
        yield ""


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties in the order of the source, inherited ones that are documented at the end."""
    seen: set[str] = set()
    for each in kind.__mro__:
        if not each.__module__.startswith("watersmeet"):
            continue
        for member, found in vars(each).items():
            callable_ = inspect.isfunction(found) or isinstance(found, property | classmethod | staticmethod)
            if not member.startswith("_") and callable_ and member not in seen:
                seen.add(member)
                yield member, found


def _fields(kind: type) -> Iterator[str]:
    """The fields of a dataclass with the sentences that stand below them in the source."""
    said = _said_below(kind)
    for field in dataclasses.fields(kind):
        told = said.get(field.name, "")
        yield f"- **`.{field.name}`**" + (f": {told}" if told else "")
    yield ""


def _said_below(kind: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(kind))
    pattern = r"^    (\w+): [^\n]*\n    \"\"\"(.*?)\"\"\"$"
    return {name: " ".join(text.split()) for name, text in re.findall(pattern, source, re.MULTILINE | re.DOTALL)}


def _signature(thing: object, name: str, *, method: bool = False) -> Iterator[str]:
    """How it is called, one parameter a line where there are many."""
    signature = inspect.signature(thing)  # type: ignore[arg-type]
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    line = f"{name}{text}"
    if len(line) > 88:
        inner = [str(each) for each in bare]
        keyword = next((i for i, each in enumerate(bare) if each.kind is each.KEYWORD_ONLY), None)
        if keyword is not None and not any(each.kind is each.VAR_POSITIONAL for each in bare):
            inner.insert(keyword, "*")
        line = f"{name}(\n" + "".join(f"    {each},\n" for each in inner) + ")"
    yield "```python"
    yield line
    yield "```"
    yield ""


def commands() -> str:
    """The command line, from its parser."""
    import argparse

    from watersmeet.cli.main import build_parser

    parser = build_parser()
    out = ["# The command line", "", "Every command is told by `watersmeet COMMAND --help`, too.", ""]
    actions = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    helps = {each.dest: each.help or "" for each in actions._choices_actions}
    for name, command in actions.choices.items():
        out += [f"## watersmeet {name}", "", (command.description or helps[name]).rstrip(".") + ".", ""]
        nested = next((each for each in command._actions if isinstance(each, argparse._SubParsersAction)), None)
        if nested is not None:
            verbs = ", ".join(f"`{verb}`" for verb in nested.choices)
            out += [f"Followed by {verbs} with the arguments of that command.", ""]
            continue
        out += ["| argument | meaning |", "|---|---|"]
        for action in command._actions:
            if action.help in (None, argparse.SUPPRESS) or action.dest == "help":
                continue
            out.append(f"| {_argument(action)} | {_help(action)} |")
        out.append("")
    return "\n".join(out)


def _argument(action: object) -> str:
    import argparse

    assert isinstance(action, argparse.Action)
    shown = action.metavar if action.metavar is not None else action.dest.upper()
    words = " ".join(shown) if isinstance(shown, tuple) else shown
    if action.choices is not None:
        words = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"`{words}`"
    value = "" if action.nargs == 0 else f" {words}"
    return f"`{', '.join(action.option_strings)}{value}`".replace("|", "\\|")


def _help(action: object) -> str:
    import argparse

    assert isinstance(action, argparse.Action)
    return (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")


def summary(name: str) -> str:
    """The first sentence that is said of a public name."""
    return first_sentence(inspect.getdoc(getattr(wm, name)))
