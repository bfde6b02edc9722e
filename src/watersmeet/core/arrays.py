"""Arrays by the type of what they hold: the aliases that all signatures use."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Uint64: TypeAlias = NDArray[np.uint64]
Float64: TypeAlias = NDArray[np.float64]
Bool: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
