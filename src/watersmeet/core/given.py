"""Numbers and directories as people give them."""

from __future__ import annotations

import operator
import os
from numbers import Integral, Rational, Real
from pathlib import Path
from typing import Any

from watersmeet.core.errors import SpecError


def plain_number(value: Any) -> Any:
    """A number of NumPy's as one of Python's own, and anything else as it is: what takes numbers asks this first.

    What is computed from arrays is of NumPy's types, and those of whole numbers are no `int`. Not every check shall
    know that. Truth values are no numbers here, be they Python's or NumPy's. NumPy itself is not asked, which the
    command line does without until there is something to join.

    >>> import numpy as np
    >>> plain_number(np.int64(3)), plain_number(np.float32(0.5)), plain_number("3"), plain_number(True)
    (3, 0.5, '3', True)
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        return operator.index(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, Rational) else value


def directory(given: object, what: str) -> Path:
    """The path of a directory that the parameter `what` names, with the user's home in the place of `~`.

    >>> directory("spilled", "spill").name
    'spilled'
    >>> directory("", "spill")
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: spill must be the path of a directory, not ''
    """
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        try:
            if isinstance(text, str) and text:
                return Path(text).expanduser()
        except RuntimeError:  # there is no such user
            pass
    raise SpecError(f"{what} must be the path of a directory, not {given!r}")
