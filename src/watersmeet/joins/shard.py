"""One shard of a join: its rows, and what is left for it by others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from watersmeet.core.protocol import End, Snapshot, Stall, Status, Step
from watersmeet.core.spec import JoinSpec
from watersmeet.engine.arrival import Arriving
from watersmeet.joins.confluence import Confluence
from watersmeet.memory import Budget, Share
from watersmeet.records.intake import Received
from watersmeet.records.keys import KeyCodec
from watersmeet.records.plan import Rows
from watersmeet.records.split import (
    Piece,
    Portion,
    PortionRows,
    Shared,
    Shelf,
    SplitCodec,
    SplitIntake,
    SplitPlan,
    portion_of,
)
from watersmeet.spill.store import Store
from watersmeet.tables.memtables import SharedMemtable

Mail: TypeAlias = "tuple[int, Piece] | Stall | End | None"
"""Rows of an input, an event, or the end of a silence."""


class Shard(Confluence):
    """The join of one shard's rows, which come with their hashes; whoever runs it is the only one to touch it.

    All others leave `mail`, which it takes in when it is run the next time.
    """

    codec: SplitCodec
    plans: tuple[SplitPlan, SplitPlan]
    budget: Share
    _intakes: tuple[SplitIntake, ...]

    def __init__(
        self, spec: JoinSpec, memory: int, store: Store, *, share: Share, shelves: Sequence[Shelf], **options: Any
    ) -> None:
        self._share = share
        self._shelves = shelves
        self.mail: deque[Mail] = deque()
        self.status = Status.NEED_INPUT
        """What the last run left."""
        self._starved_at: int | None = None
        """What the pool had been given when there was too little memory for the next row; None: there was enough."""
        super().__init__(spec, memory, store, **options)
        self._intakes = tuple(SplitIntake(self.sizing.input_bytes, plan) for plan in self.plans)

    def _make_budget(self, memory: int) -> Budget:
        return self._share

    def _make_codec(self) -> KeyCodec:
        return SplitCodec(self.spec)

    def _make_plans(self) -> tuple[SplitPlan, SplitPlan]:
        return SplitPlan(self.spec, 0, self.codec.exact), SplitPlan(self.spec, 1, self.codec.exact)

    def _make_table(self, side: int) -> Any:
        types, name, shelf = self.plans[side].types, self.spec.names[side], self._shelves[side]
        marked = self.spec.kind.tracked[side]
        return SharedMemtable(types, self.budget, self.sizing.layout, name, shelf=shelf, marked=marked)

    def loose_rows(self, columns: list[pa.Array]) -> Rows:
        portion = portion_of(columns)
        return super().loose_rows(columns) if portion is None else PortionRows(portion)

    def waiting_schema(self, number: int) -> pa.Schema:
        return self.plans[number].schema

    def waiting(self, number: int) -> list[Received]:
        """Rows that lie in batches of others are copied for a snapshot."""
        return [
            replace(each, batch=each.batch.copied(self.plans[number])) if isinstance(each.batch, Portion) else each
            for each in super().waiting(number)
        ]

    @property
    def join(self) -> Shard:
        """Itself, as a member of a whole."""
        return self

    @property
    def ready(self) -> bool:
        """Whether there is something to do that does not wait for a silence."""
        if self._share.must_give:
            return True
        if self._starved_at is not None and self._starved_at == self._share.pool.given:
            return not self._share.pool.can_want(self._share)
        return bool(self.mail) or self.status is Status.HAS_OUTPUT

    def is_due(self, now: float) -> bool:
        """Whether it wanted to be woken by now."""
        at = self.wake_at()
        return at is not None and at <= now

    def take_mail(self) -> None:
        """Take note of all that has come."""
        if self.mail:
            self.status = Status.HAS_OUTPUT
        while self.mail:
            item = self.mail.popleft()
            if isinstance(item, tuple):
                number, piece = item
                self._intakes[number].add_piece(piece)
            elif item is None:
                self._stalled = False
            else:
                self.receive(item)

    def run(self, now: float, fuel: int) -> Step:
        """Take note of all that has come, and work a little."""
        self.take_mail()
        self._starved_at = None
        share = self.budget
        share.stuck = False
        if share.must_give:
            # Others cannot go on: what is in memory goes to disk.
            share.give_back()
            share.stuck = share.must_give and not any(table.rows for table in self.tables)
            self.full |= share.must_give
        step = self.poll(now, fuel)
        share.give_back()
        share.pool.want(share, self._starved_at is not None)
        self.status = step.status
        return step

    def _work(self, fuel: int) -> int:
        return 0 if self._starved_at is not None else super()._work(fuel)

    def _may_go_on(self, arrival: Arriving) -> bool:
        if not super()._may_go_on(arrival):
            return False
        share = self.budget
        if any(table.rows for table in self.tables) or self._has_room_for(arrival, 1) or not share.pool.can_want(share):
            return True
        # There is nothing here to make room with, and others have more than their part: they are asked for it.
        self._starved_at = share.pool.given
        return False

    def taken(self, number: int) -> deque[Shared]:
        """Batches of an input of which this shard has taken what was its own."""
        return self._intakes[number].taken

    def take_pieces(self) -> None:
        """Take all that waits, however much it is."""
        self.take_mail()
        for intake in self._intakes:
            intake.waiting()

    def resume(self, snapshot: Snapshot, status: Status) -> None:
        """Go on where a snapshot was taken."""
        self._load(snapshot)
        self.status = status
