"""A disk that is full for a moment, at any step of a join of any kind: a clear error, and nothing lost or repeated."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulate.stores import FaultyStore
from watersmeet.checks.oracle.kinds import results_of
from watersmeet.core.errors import SpillError
from watersmeet.core.kinds import KINDS
from watersmeet.core.protocol import Arrive, End, Event, Stall, Status
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.confluence import Confluence, catalogue, operator
from watersmeet.joins.confluence.upkeep import Wear
from watersmeet.policies.settling import Settling
from watersmeet.runs import matched_bits
from watersmeet.spill.store import MemoryStore, StoreWriter

SCHEMA = pa.schema({"id": pa.int64(), "row": pa.int64(), "pad": pa.string()})
PAD = "x" * 300
ROWS, TURNS = 120, 6
BUSY = Settling(idle_hashes_per_row=0)
Found = Counter[tuple[Any, ...]]


def keys() -> Any:
    return np.random.default_rng(6).integers(0, 600, (TURNS, 2, ROWS))


def script() -> Iterable[Event]:
    """Rows with silences amid, then the ends."""
    for turn, of_turn in enumerate(keys()):
        for side in (0, 1):
            numbers = np.arange(turn * ROWS, (turn + 1) * ROWS)
            yield Arrive(side, pa.record_batch([of_turn[side], numbers, [PAD] * ROWS], schema=SCHEMA))
        if turn % 3 == 2:
            yield Stall()
    yield End(0)
    yield End(1)


def expected(how: str) -> Found:
    left, right = keys()[:, 0].reshape(-1), keys()[:, 1].reshape(-1)
    pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(left[:, None] == right), strict=True)]
    return Counter(map(tuple, results_of(KINDS[how], pairs, len(left), len(right))))


class Store(FaultyStore):
    """Knows by the name which of the calls are about bits."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.about_bits: list[int] = []

    def create(self, name: str) -> StoreWriter:
        writer = super().create(name)
        self.about_bits += [self.calls["create"]] if name.startswith("bits") else []
        return writer


def play(how: str, store: FaultyStore, fan_in: int, survive: bool = False) -> tuple[Found, int, Confluence]:
    """Drive a join through the script; returns what it found, and how often the disk refused."""
    spec = JoinSpec(SCHEMA, SCHEMA, parse_on("id"), how)
    join = Confluence(spec, Confluence.least_memory(spec), store, floor=0, fan_in=fan_in, settling=BUSY)
    found: Found = Counter()
    refused = 0
    for event in script():
        join.receive(event)
        status = Status.HAS_OUTPUT
        while status in (Status.HAS_OUTPUT, Status.HAS_WORK):
            try:
                step = join.poll(0.0, 300)
            except SpillError as error:
                if not survive or "the disk is full" not in str(error):
                    raise
                refused += 1
                assert refused < 10
                join.check()
                continue  # there is room again: go on
            status = step.status
            if step.out is not None:
                names = [name for name in ("row", "row_right") if name in step.out.schema.names]
                found.update(zip(*(step.out[name].to_pylist() for name in names), strict=True))
    assert status is Status.DONE
    return found, refused, join


@pytest.mark.parametrize("fan_in", [3, 64], ids=["merging", "many runs"])
@pytest.mark.parametrize("how", ["left", "full", "semi", "anti"])
def test_a_full_disk_is_a_clear_error_and_nothing_is_lost(
    how: str, fan_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room for three pages of 32 bits: they are written and read all the time.
    monkeypatch.setattr(matched_bits, "_LEAST_PAGE", 4)
    for module in (operator, catalogue):
        monkeypatch.setattr(module, "LEAST_BYTES", 12)
    monkeypatch.setattr(catalogue, "_BITS_SHARE", 1 << 40)
    monkeypatch.setattr(Wear, "least", 8)
    clean = Store(MemoryStore())
    found, _, join = play(how, clean, fan_in)
    assert found == expected(how)
    left_over = len(clean.names())
    assert join.matched is not None and join.matched.bits.written > 3 and clean.about_bits
    assert join.events["merged"] > 1 or fan_in > 3
    for fail_at in clean.about_bits[:2]:
        with pytest.raises(SpillError, match=r"the disk is full .*; free space there or choose another"):
            play(how, Store(MemoryStore(), fail_at, "create", error=errno.ENOSPC, lasting=True), fan_in)
    for operation in ("create", "write", "commit"):
        calls = clean.calls[operation]
        some = {*range(1, calls + 1, max(1, calls // 5))}
        some.update(clean.about_bits[:: max(1, len(clean.about_bits) // 8)] if operation != "write" else ())
        for fail_at in sorted(some):
            store = Store(MemoryStore(), fail_at, operation, error=errno.ENOSPC)
            again, refused, _ = play(how, store, fan_in, survive=True)
            assert store.failures == 1, (operation, fail_at)
            # A semi join hands out whom it could mark, and asks again.
            assert refused == 1 or how == "semi", (operation, fail_at)
            assert again == found, f"{operation} {fail_at}: lost {found - again}, invented {again - found}"
            assert len(store.names()) == left_over, (operation, fail_at)
