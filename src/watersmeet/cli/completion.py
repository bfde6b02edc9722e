"""`watersmeet completion SHELL`: what makes a shell complete our commands, options, algorithms and columns.

The scripts are a few lines: with each press of the tab key they ask `watersmeet completion --at N -- WORDS` what fits,
so they need not be made anew when the commands change. Where nothing is answered, the shell completes file names.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from watersmeet.core.errors import SpecError

SCRIPTS = {
    "bash": """\
# In ~/.bashrc:  eval "$(watersmeet completion bash)"
_watersmeet() {
    local found
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("$(printf '%q' "$found")")
    done < <(watersmeet completion --at "$COMP_CWORD" -- "${COMP_WORDS[@]}" 2>/dev/null)
}
complete -o bashdefault -o default -F _watersmeet watersmeet
""",
    "zsh": """\
# In ~/.zshrc, after compinit:  eval "$(watersmeet completion zsh)"
_watersmeet() {
    local -a found
    found=("${(@f)$(watersmeet completion --at $((CURRENT - 1)) -- "${(@)words}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -- "${(@)found}"
    else
        _files
    fi
}
compdef _watersmeet watersmeet
""",
    "fish": """\
# In ~/.config/fish/config.fish:  watersmeet completion fish | source
function __watersmeet_found
    set -l words (commandline -opc) (commandline -ct | string collect --allow-empty)
    watersmeet completion --at (math (count $words) - 1) -- $words 2>/dev/null
end
complete -c watersmeet -a '(__watersmeet_found)'
""",
}
CHOICES = {
    "how": ("inner", "left", "semi", "anti"),
    "late": ("keep", "drop", "error"),
    "memory": ("64MiB", "256MiB", "1GiB"),
}
"""What is known of options that take any word."""
COLUMNS = ("on", "time", "band")
"""Options that name columns of the inputs."""
INPUTS = ("left", "right", "stream", "relations", "inputs")
"""Arguments that name files with columns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the sub-command."""
    parser.add_argument("words", nargs="*", metavar="SHELL", help=f"{', '.join(SCRIPTS)}: print what it is to load")
    parser.add_argument("--at", type=int, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> str:
    """What is to be printed: a shell's script, or the words that fit in one place."""
    if args.at is not None:
        from watersmeet.cli.main import build_parser

        return "".join(f"{word}\n" for word in fitting(build_parser(), args.words, args.at))
    if len(args.words) != 1 or args.words[0] not in SCRIPTS:
        raise SpecError(f"name the shell whose words are to be completed: {', '.join(SCRIPTS)}")
    return SCRIPTS[args.words[0]]


def fitting(parser: argparse.ArgumentParser, words: Sequence[str], at: int) -> list[str]:
    """The words that may stand at a place of a command line; none where a file name may.

    >>> from watersmeet.cli.main import build_parser
    >>> fitting(build_parser(), ["watersmeet", "look"], 1)
    ['lookup-join']
    >>> fitting(build_parser(), ["watersmeet", "join", "a.csv", "--qu"], 3)
    ['--quiet']
    >>> fitting(build_parser(), ["watersmeet", "demo", "--engine", ""], 3)
    ['spark', 'local']
    """
    prefix = words[at] if at < len(words) else ""
    place = _Place(parser)
    for word in words[1:at]:
        place.pass_by(word)
    return sorted_as_given(word for word in place.candidates(prefix) if word.startswith(prefix))


def sorted_as_given(words: Iterable[str]) -> list[str]:
    """Each word once, in the order of their first coming."""
    return list(dict.fromkeys(words))


class _Place:
    """Where one is on a command line: in which command, after which option, with which files named so far."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._path: list[str] = []
        self._option: argparse.Action | None = None  # whose value comes next
        self._files: list[str] = []

    def pass_by(self, word: str) -> None:
        """Go on behind a word."""
        commands = self._commands()
        if self._option is not None:
            self._option = None
        elif word.startswith("-"):
            action = self._parser._option_string_actions.get(word)
            self._option = action if action is not None and action.nargs != 0 else None
        elif commands is not None and word in commands:
            self._path.append(word)
            self._parser = commands[word]
        else:
            self._files.append(word.partition("=")[2] or word)

    def candidates(self, prefix: str) -> Iterable[str]:
        """All that may stand here, whatever it begins with."""
        commands = self._commands()
        if self._option is not None:
            return self._values(self._option)
        if prefix.startswith("-"):
            return [
                name
                for action in self._parser._actions
                if action.help != argparse.SUPPRESS
                for name in action.option_strings
                if name.startswith("--") or prefix == "-"
            ]
        if commands is not None:
            return commands
        return SCRIPTS if self._path == ["completion"] else ()

    def _commands(self) -> dict[str, argparse.ArgumentParser] | None:
        for action in self._parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                return {name: each for name, each in action.choices.items() if action.help != argparse.SUPPRESS}
        return None

    def _values(self, option: argparse.Action) -> Iterable[str]:
        if option.choices is not None:
            return map(str, option.choices)
        if option.dest == "algorithm":
            return ("auto", *sorted(_algorithms(self._path[-1])))
        if option.dest in COLUMNS:
            return columns(self._files)
        return CHOICES.get(option.dest, ())


def _algorithms(command: str) -> Iterable[str]:
    from watersmeet import planner

    return {
        "join": planner.ALGORITHMS,
        "multijoin": planner.MULTIWAY,
        "window-join": planner.WINDOW_ALGORITHMS,
        "lookup-join": planner.LOOKUPS,
    }.get(command, ())


def columns(paths: Iterable[str]) -> list[str]:
    """The columns of files, those that more than one has first; files that cannot be read have none."""
    from collections import Counter
    from pathlib import Path

    from watersmeet.sources.files import FileSource

    counts: Counter[str] = Counter()
    for path in paths:
        if not Path(path).is_file():  # a relation, or a name that is no file's
            continue
        try:
            source = FileSource(path)
            counts.update(source.schema().names)
            source.close()
        except Exception:  # whatever is wrong with it is told when it is joined
            continue
    return [name for name, _ in counts.most_common()]
