"""What a snapshot of Confluence says beside what every operator's does: runs by their names, debts, and how far it is.

Rows are not in it but for those in memory, which the shell saves: whoever goes on opens the runs and reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watersmeet.matching.reach import BandKeys
from watersmeet.runs.sorted_run import OpenRun

if TYPE_CHECKING:
    from watersmeet.joins.confluence.operator import Confluence


def saved(join: Confluence, at_hand: Any) -> tuple[list[str], dict[str, Any]]:
    """The segments and the state that only this operator has, with some task at hand."""
    matched = None if join.matched is None else join.matched.to_state(join.catalogue.bits_to_keep)
    bits = [] if join.matched is None or matched is None else join.matched.versions(matched)
    return join.catalogue.names + bits, {
        "matched": matched,
        "foretold": None if join.foretold is None else join.foretold.to_state(),
        **join.debts.to_state(),
        "upkeep": join.catalogue.upkeep.to_state(),
        "batch": [join.catalogue.batch_began, join.batch_ends],
        "settled_at": list(join.settlements.began_at),
        "settling": join.settlements.to_state(at_hand),
        "idle_share": join.idle_share,
        "full": join.full,
        "written": join.catalogue.written,
        "built": [table.index.built for table in join.tables],
        "origin": join.codec.to_state() if isinstance(join.codec, BandKeys) else None,
    }


def load(join: Confluence, state: dict[str, Any], open_run: OpenRun) -> None:
    """Take that over, but for rows in memory and the work at hand, which come later."""
    join.catalogue.load(state, open_run)
    if join.foretold is not None:
        join.foretold.load(state["foretold"])
    join.batch_ends = state["batch"][1]
    join.settlements.began_at = list(state["settled_at"])
    join.idle_share = state["idle_share"]
    join.full = state["full"]
    for table, built in zip(join.tables, state["built"], strict=True):
        table.built = built
    if isinstance(join.codec, BandKeys):
        join.codec.load(state["origin"])
