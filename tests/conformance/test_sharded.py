"""Shards find every pair exactly once, in whatever order they are run; rows in a wrong shard would be missed."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest

from watersmeet.checks import ConformanceError, check_determinism, conform, make_case, run_case
from watersmeet.joins.shard import Shard
from watersmeet.joins.sharded import Sharded
from watersmeet.memory import PooledBudget, Share
from watersmeet.records.split import Piece, Splitter

CASES = 100
PROMPT = 0.004
"""Seconds of the clock that the cases run by, a millisecond a poll."""


class Watched(Sharded):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        Watched.seen["cases with rows in several shards"] += sum(shard.cost.inserts > 0 for shard in self.shards) > 1
        super().close()


@pytest.mark.parametrize("delay", [None, PROMPT], ids=["usual", "delay"])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_every_pair_exactly_once_in_any_order(shards: int, delay: float | None) -> None:
    Watched.seen = Counter()
    summary = conform(Watched, cases=CASES, seed=9_000 + shards, shards=shards, order=shards, delay=delay)
    print(summary, Watched.seen)
    assert summary.restored >= CASES // 10
    assert {"settled before a flush", "settled in a silence", "settled at the end", "flushed"} <= set(+Watched.seen)
    assert shards == 1 or Watched.seen["cases with rows in several shards"] > CASES // 2


@pytest.mark.parametrize("seed", range(12))
def test_the_order_in_which_shards_are_run_changes_no_result(seed: int) -> None:
    case = make_case(seed, Sharded, shards=3)
    orders = (None, 1, 2)
    rows = [run_case(Sharded, case, shards=3, order=order).rows for order in orders]
    assert rows[0] == rows[1] == rows[2]


def test_orders_differ_and_each_is_the_same_every_time() -> None:
    case = make_case(77, Sharded, shards=3)
    one, other = (check_determinism(Sharded, case, shards=3, order=order).trace for order in (1, 2))
    assert one != other


def one_row_astray(splitter: Splitter, batch: Any, first: int) -> list[Piece | None]:
    """The last row of a piece goes to the next shard."""
    pieces = real_split(splitter, batch, first)
    sizes = [0 if piece is None else len(piece.rows) for piece in pieces]
    wrong = sizes.index(max(sizes))
    piece = pieces[wrong]
    if piece is None or sizes[wrong] < 2:
        return pieces
    other = (wrong + 1) % len(pieces)
    if pieces[other] is None:
        piece.batch.left += 1
        pieces[other] = Piece(piece.batch, piece.rows[-1:], piece.hashes[-1:], first)
        pieces[wrong] = Piece(piece.batch, piece.rows[:-1], piece.hashes[:-1], first)
    return pieces


def rows_to_all(splitter: Splitter, batch: Any, first: int) -> list[Piece | None]:
    """Every shard gets all rows."""
    pieces = real_split(splitter, batch, first)
    known = [piece for piece in pieces if piece is not None]
    if not known:
        return pieces
    known[0].batch.left = len(pieces)
    rest = known[1:]
    rows = [known[0].rows, *(piece.rows for piece in rest)]
    hashes = [known[0].hashes, *(piece.hashes for piece in rest)]
    whole = Piece(known[0].batch, np.concatenate(rows), np.concatenate(hashes), first)
    return [whole for _ in pieces]


def drawn_twice(pool: PooledBudget, share: Share, least: int) -> int:
    """What is drawn stays in the pool, for others to draw again."""
    drawn = real_draw(pool, share, least)
    pool.put_back(drawn)
    return drawn


def given_and_kept(share: Share) -> None:
    """What is given back stays in the share, too."""
    before = share.total
    real_give_back(share)
    share.total = before


def silence_for_one(shard: Any) -> None:
    """A shard is not told that an input has ended."""
    while shard.mail and not isinstance(shard.mail[0], tuple):
        shard.mail.popleft()
    real_take_mail(shard)


real_split, real_draw, real_give_back = Splitter.split, PooledBudget.draw, Share.give_back
real_take_mail = Shard.take_mail

MUTANTS: dict[str, tuple[type[Any], str, Any, str]] = {
    "a row goes to the wrong shard": (Splitter, "split", one_row_astray, r"lost [0-9]+ and|counted [0-9]+ results"),
    "rows go to all shards": (Splitter, "split", rows_to_all, r"lost 0 and invented or repeated [1-9]|counted"),
    "what was drawn can be drawn again": (PooledBudget, "draw", drawn_twice, "AssertionError"),
    "what was given back is kept": (Share, "give_back", given_and_kept, "AssertionError"),
    "ends are not told": (Shard, "take_mail", silence_for_one, "does nothing|is not done|needs input"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, sentence = MUTANTS[mutant]
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=sentence):
        run_many()


def run_many() -> None:
    for seed in range(200):
        run_case(Sharded, make_case(seed, Sharded, shards=2), shards=2)
