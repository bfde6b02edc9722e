"""A join in shards whose shards are actors: they meet in any order at every operation on files, as threads would."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import pyarrow as pa

from simulate.schedule import Schedule
from watersmeet.core.protocol import Status, Step
from watersmeet.joins.sharded import Sharded


class Crewed(Sharded):
    """In place of `drivers.crew`: each poll lets all shards that have something to do work at once."""

    def __init__(self, *given: Any, schedule: Schedule | None = None, **options: Any) -> None:
        super().__init__(*given, **options)
        self._schedule = schedule
        self._found: deque[pa.RecordBatch] = deque()

    def poll(self, now: float, fuel: int) -> Step:
        """Let all shards work that have work, and hand out what one of them has found."""
        before, woken = self.cost, []
        if not self._found:
            self.hand_on()
            able = [shard for shard in self.shards if shard.ready]
            if not able and self._next_shard(now, woken) is not None:
                able = woken
            self._work_at_once(able, now, fuel)
            self.hand_on()
        out = self._found.popleft() if self._found else None
        return Step(out, Status.HAS_OUTPUT if self._found else self.status, self.cost - before)

    def _work_at_once(self, able: list[Any], now: float, fuel: int) -> None:
        assert self._schedule is not None
        crew = [self._schedule.spawn("a shard", partial(shard.run, now, fuel), joins=True) for shard in able]
        self._schedule.wait_for(crew)
        self._found += [member.result.out for member in crew if member.error is None and member.result.out is not None]
        for member in crew:
            if member.error is not None:
                raise member.error
