"""Shards find every pair exactly once, in whatever order they are run; rows in a wrong shard would be missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from conformance.ways import PROMPT
from watersmeet.checks import ConformanceError, check_determinism, conform, make_case, run_case
from watersmeet.joins.shard import Shard
from watersmeet.joins.sharded import Sharded
from watersmeet.memory import PooledBudget, Share
from watersmeet.records import split
from watersmeet.records.plan import RowPlan
from watersmeet.records.split import Piece, Portion, Splitter
from watersmeet.tables.memtables import SharedMemtable

CASES = 60


class Watched(Sharded):
    """Adds up what happened in all cases."""

    seen: ClassVar[Counter[str]] = Counter()

    def close(self) -> None:
        Watched.seen += self.events
        Watched.seen["cases with rows in several shards"] += sum(shard.cost.inserts > 0 for shard in self.shards) > 1
        super().close()


COPIED, SHARED = (False, False), (True, True)
real_place = SharedMemtable._place


@pytest.fixture
def stays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool]:
    """Of which inputs batches stay; even single rows are then not copied, unless nested or of a snapshot."""
    monkeypatch.setattr(split, "_LEAST_SHARED", 1)
    monkeypatch.setattr(RowPlan, "as_they_are", True)
    monkeypatch.setattr(SharedMemtable, "_place", counted_place)
    chosen: tuple[bool, bool] = request.param
    return chosen


def counted_place(table: SharedMemtable, columns: list[Any], count: int) -> None:
    real_place(table, columns, count)
    Watched.seen["rows copied" if split.portion_of(columns) is None else "rows shared"] += count


@pytest.mark.parametrize(
    ("shards", "stays", "delay"),
    [
        (1, COPIED, None),
        (2, COPIED, None),
        (2, SHARED, None),
        (3, (True, False), None),
        (8, SHARED, None),
        (2, COPIED, PROMPT),
        (8, SHARED, PROMPT),
    ],
    indirect=["stays"],
    ids=["1", "2-copied", "2-shared", "3-left shared", "8-shared", "2-copied-delay", "8-shared-delay"],
)
def test_every_pair_exactly_once_in_any_order(shards: int, delay: float | None, stays: tuple[bool, bool]) -> None:
    Watched.seen = Counter()
    seed = 9_000 + shards + 100 * sum(stays)
    summary = conform(Watched, cases=CASES, seed=seed, shards=shards, order=shards, delay=delay, stays=stays)
    print(summary, Watched.seen)
    assert Watched.seen["rows copied"] > 0, "after a snapshot all are"
    assert Watched.seen["rows shared"] > 10 * CASES * sum(stays) or not any(stays)
    assert Watched.seen["rows shared"] == 0 or any(stays)
    assert summary.restored >= CASES // 10
    assert {"settled before a flush", "settled in a silence", "settled at the end", "flushed"} <= set(+Watched.seen)
    assert shards == 1 or Watched.seen["cases with rows in several shards"] > CASES // 2


@pytest.mark.parametrize("seed", range(5))
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


def in_each_others_place(portion: Portion, pieces: Sequence[Piece]) -> None:
    """Each row is looked for where the next one is."""
    real_portion(portion, pieces)
    if len(pieces) == 1:
        portion.places = np.roll(portion.places, 1)


real_portion = Portion.__init__
real_split, real_draw, real_give_back = Splitter.split, PooledBudget.draw, Share.give_back
real_take_mail = Shard.take_mail

MUTANTS: dict[str, tuple[type[Any], str, Any, str]] = {
    "a row goes to the wrong shard": (Splitter, "split", one_row_astray, r"lost [0-9]+ and|counted [0-9]+ results"),
    "rows go to all shards": (Splitter, "split", rows_to_all, r"lost 0 and invented or repeated [1-9]|counted"),
    "what was drawn can be drawn again": (PooledBudget, "draw", drawn_twice, "AssertionError"),
    "what was given back is kept": (Share, "give_back", given_and_kept, "AssertionError"),
    "rows are in each other's place": (Portion, "__init__", in_each_others_place, r"lost [1-9]|fail"),
    "ends are not told": (Shard, "take_mail", silence_for_one, "does nothing|is not done|needs input"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, rule, broken, sentence = MUTANTS[mutant]
    monkeypatch.setattr(split, "_LEAST_SHARED", 1)
    monkeypatch.setattr(owner, rule, broken)
    with pytest.raises(ConformanceError, match=sentence):
        run_many()


def run_many() -> None:
    for seed in range(200):
        run_case(Sharded, make_case(seed, Sharded, shards=2), shards=2, stays=SHARED)
