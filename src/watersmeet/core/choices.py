"""What may be asked for: an algorithm by its name, and the options that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from watersmeet.core.errors import SpecError


def check_choice(algorithm: str, options: Mapping[str, Any], algorithms: Mapping[str, type], given: int = 3) -> None:
    """Refuse an algorithm that is not among these, or options it does not take beyond the first `given` arguments."""
    if algorithm != "auto" and algorithm not in algorithms:
        known = ", ".join(sorted(algorithms))
        raise SpecError(f"algorithm {algorithm!r} is not known; choose auto, or one of {known}")
    if not options:
        return  # what algorithms take is known once they are imported: not for nothing
    kinds = algorithms.values() if algorithm == "auto" else [algorithms[algorithm]]
    taken = {name for kind in kinds for name in option_names(kind, given)}
    for name in options:
        if name not in taken:
            choice = f"it takes {', '.join(sorted(taken))}" if taken else "it takes none"
            raise SpecError(f"algorithm {algorithm} has no option {name!r}; {choice}")


def option_names(kind: type, given: int = 3) -> list[str]:
    """The options that an algorithm takes, beyond the first arguments; with those that it passes on to its base."""
    found: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" in vars(each):
            parameters = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1 + given :]
            passes_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
            found |= dict.fromkeys(one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD)
            if not passes_on:
                break
    return list(found)
