"""What a join of each kind gives, told from all its pairs and the numbers of rows."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.core.kinds import Kind

Result = tuple[int | None, ...]
"""The numbers of a left and a right row, None where there is none; or of a left row alone."""


def results_of(kind: Kind, pairs: Sequence[tuple[int, int]], left: int, right: int) -> list[Result]:
    """All results, where these are all pairs of so many rows of each input.

    >>> from watersmeet.core.kinds import KINDS
    >>> [results_of(KINDS[how], [(0, 0), (0, 1)], 2, 3) for how in ("full", "semi", "anti")]
    [[(0, 0), (0, 1), (1, None), (None, 2)], [(0,)], [(1,)]]
    """
    have = [{pair[side] for pair in pairs} for side in (0, 1)]
    alone = [[row for row in range(rows) if row not in have[side]] for side, rows in enumerate((left, right))]
    if kind.name == "semi":
        return [(row,) for row in sorted(have[0])]
    if kind.name == "anti":
        return [(row,) for row in alone[0]]
    results: list[Result] = list(pairs)
    if kind.name in ("left", "full"):
        results += [(row, None) for row in alone[0]]
    if kind.name in ("right", "full"):
        results += [(None, row) for row in alone[1]]
    return results
