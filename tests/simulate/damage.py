"""Files that are not what was written: torn, altered, or with a page of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WAYS = ("torn", "altered", "with another page")
_PAGE = 64


def damaged(rng: np.random.Generator, path: Path, others: list[Path]) -> str | None:
    """Put another file in the place of one, so that whoever has it mapped has it as it was; returns what is wrong."""
    content = path.read_bytes()
    if not content:
        return None
    place, way = int(rng.integers(len(content))), int(rng.integers(len(WAYS)))
    if way == 0:
        found = content[:place]
    elif way == 1:
        found = content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :]
    else:
        page = others[int(rng.integers(len(others)))].read_bytes()[place : place + _PAGE]
        found = content[:place] + page + content[place + len(page) :]
    if found == content:
        return None
    path.unlink()
    path.write_bytes(found)
    return WAYS[way]
