"""Numbers as people give them."""

from __future__ import annotations

import operator
from numbers import Integral, Rational, Real
from typing import Any


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
