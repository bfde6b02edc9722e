"""A master that reorganizes as it likes: moves, more and fewer slots, keys that are split, split again, and joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from watersmeet.spark.rebalance.reorganizing import Epoch, SlotLoad, in_place, rehomed
from watersmeet.spark.rebalance.routing import Routing


class Whims:
    """In place of `reorganized`; the keys are those that may be split, or any that the slots tell of."""

    def __init__(self, rng: np.random.Generator, keys: Sequence[int] = ()) -> None:
        self._rng, self._keys = rng, list(keys)
        self.splits = self.visits = 0

    def __call__(
        self, routing: Routing, epoch: Epoch, slots: tuple[int, int], groups: int, newest: Sequence[int]
    ) -> Routing:
        rng = self._rng
        active = tuple(sorted(rng.choice(slots[1], int(rng.integers(1, slots[1] + 1)), replace=False).tolist()))
        owner = tuple(-1 if slot < 0 else int(rng.choice(active)) for slot in routing.owner)
        routing = replace(routing, owner=owner, active=active, moved=tuple(range(len(owner))))
        keys = self._keys or sorted(epoch.keys)
        for key in rng.choice(keys, min(2, len(keys)), replace=False).tolist() if keys else ():
            known = next((each for each in routing.hot if each.key == key), None)
            back = known is not None and len(known.homes) == 1 and rng.random() < 0.5
            ways = 1 if back else int(rng.integers(2, 4))
            routing = rehomed(routing, epoch, key, groups, newest, ways, int(rng.integers(2)), 1.0)
            self.splits += not back
        self.visits += sum(len(key.homes) > 1 for key in routing.hot)
        return routing


class SplitWhims:
    """In place of `split_only`: splits keys as it likes."""

    def __init__(self, rng: np.random.Generator, keys: Sequence[int]) -> None:
        self._rng, self._keys, self.splits = rng, list(keys), 0

    def __call__(self, routing: Routing, loads: Sequence[SlotLoad], groups: int, newest: Sequence[int]) -> Routing:
        before = len(routing.owner)
        for key in self._rng.choice(self._keys, 1).tolist() if self._rng.random() < 0.6 else ():
            ways, spread = int(self._rng.integers(2, groups + 1)), int(self._rng.integers(2))
            routing = rehomed(routing, Epoch(), key, groups, newest, ways, spread, 1.0)
        self.splits += len(routing.owner) > before
        return in_place(routing, groups)
