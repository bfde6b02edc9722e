"""Arrays by the type of what they hold: the aliases that all signatures use."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Uint16: TypeAlias = NDArray[np.uint16]
Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Uint64: TypeAlias = NDArray[np.uint64]
Numbers: TypeAlias = NDArray[Any]
"""Of rows: 32 bits, or 64 where they carry the number of their source in the upper half."""
Float64: TypeAlias = NDArray[np.float64]
Bool: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
