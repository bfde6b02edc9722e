"""Which slot joins which partition-group, and how many slots there are: the master of a parallel join.

There are many more partition-groups than slots, so that work can be moved in small pieces. At the end of a
reorganization epoch each slot tells how full its input buffer was on average: above a threshold it is a supplier, below
another a consumer, and each supplier hands one group to a consumer. If no slot is a supplier, all of them have time to
spare, and some are let go; if suppliers are too many for the consumers, slots are added (thesis [1]_, sections
7.4.3 and 7.5.1).

Beyond the thesis: a supplier may hand over the groups that even out the two slots instead of one at random, and slots
come and go only if the work does not fit into those there are, or fits into fewer. By the thesis' own rule a slot goes
as soon as none is overloaded, until one is, and then comes back: their number swings around the right one for ever.

.. [1] A. Chakraborty. Processing Exact Results for Queries over Data Streams. PhD thesis, University of Waterloo, 2010.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from watersmeet.core.arrays import Float64, Int64
from watersmeet.core.errors import SpecError

Pick = Callable[[Sequence[int], Float64, float], int]
"""Of a supplier's groups, with the work of each, and how much more work it has than the consumer: the one to move."""


class Role(Enum):
    """What a slot is at the end of an epoch."""

    SUPPLIER = "supplier"
    NEUTRAL = "neutral"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How full a slot's buffer is, on average over an epoch, when it has too much or too little to do."""

    consumer: float = 0.01
    supplier: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.consumer < self.supplier < 1:
            raise SpecError(
                f"a consumer's buffer is emptier than a supplier's: 0 <= consumer < supplier < 1, not consumer "
                f"{self.consumer!r} and supplier {self.supplier!r}"
            )

    def role(self, occupancy: float) -> Role:
        """What a slot is.

        >>> [Thresholds().role(occupancy).value for occupancy in (0.0, 0.2, 0.9)]
        ['consumer', 'neutral', 'supplier']
        """
        if occupancy > self.supplier:
            return Role.SUPPLIER
        return Role.CONSUMER if occupancy < self.consumer else Role.NEUTRAL


@dataclass(frozen=True, slots=True)
class Declustering:
    """When slots are added, and when they are let go."""

    suppliers: int = 1
    """With fewer suppliers than this, slots are let go (S_low)."""
    ratio: float = 0.5
    """With more suppliers than this times the consumers, slots are added (beta)."""
    step: int = 1
    """So many at a time (delta)."""
    headroom: float | None = 0.9
    """Slots are let go if the others would be busy for this share of their time at most, and added if those there are
    would be busy for more; None: without asking, as in the thesis."""

    def __post_init__(self) -> None:
        if self.suppliers < 0 or not 0 < self.ratio < 1 or self.step < 1:
            raise SpecError(
                f"declustering needs suppliers >= 0, a ratio between 0 and 1 and a step of one slot or more, not {self}"
            )


@dataclass(frozen=True, slots=True)
class Move:
    """A group goes from one slot to another."""

    group: int
    giver: int
    taker: int


def evening(groups: Sequence[int], work: Float64, surplus: float) -> int:
    """The group whose move leaves the two slots as equal as can be: with half of the surplus, if there is one.

    >>> evening([4, 7, 9], np.array([1.0, 5.0, 20.0]), surplus=12.0)
    7
    """
    return groups[int(np.argmin(np.abs(work - surplus / 2)))]


class Balancer:
    """The map from groups to slots, changed at the end of each reorganization epoch.

    >>> balancer = Balancer(groups=6, slots=(1, 3), start=2)
    >>> balancer.owner.tolist()
    [0, 1, 0, 1, 0, 1]
    >>> work = np.array([4.0, 1.0, 4.0, 1.0, 1.0, 1.0])
    >>> balancer.reorganize(occupancy={0: 0.8, 1: 0.0}, busy={0: 1.0, 1: 0.3}, work=work)
    [Move(group=0, giver=0, taker=1)]
    >>> balancer.owner.tolist(), balancer.active
    ([1, 1, 0, 1, 0, 1], [0, 1])
    """

    def __init__(
        self,
        groups: int,
        slots: tuple[int, int],
        start: int | None = None,
        thresholds: Thresholds | None = None,
        declustering: Declustering | None = None,
        pick: Pick = evening,
        one_each: bool = False,
    ) -> None:
        """:param groups: partition-groups; many more than slots
        :param slots: the fewest and the most that may be active; equal: their number is not changed
        :param start: slots at the beginning; the most if None
        :param pick: which group a supplier hands over
        :param one_each: a supplier hands over one group at the end of an epoch, as in the thesis, and not as many as
            make it and the consumer even
        """
        least, most = slots
        start = most if start is None else start
        if not 1 <= least <= start <= most <= groups:
            raise SpecError(
                f"a parallel join needs 1 <= fewest slots <= slots at the start <= most slots <= partition-groups, "
                f"not {least}, {start}, {most} and {groups}"
            )
        self._least, self._most = least, most
        self._thresholds = thresholds or Thresholds()
        self._declustering = declustering or Declustering()
        self._pick = pick
        self._one_each = one_each
        self.active = list(range(start))
        """Slots that have groups, or are to get some."""
        self.owner: Int64 = np.arange(groups, dtype=np.int64) % start
        """The slot of each group."""

    def groups_of(self, slot: int) -> list[int]:
        """What a slot joins."""
        found: list[int] = np.flatnonzero(self.owner == slot).tolist()
        return found

    def reorganize(self, occupancy: dict[int, float], busy: dict[int, float], work: Float64) -> list[Move]:
        """End an epoch.

        :param occupancy: of each active slot, how full its buffer was on average
        :param busy: of each active slot, the share of its time in which it worked
        :param work: of each group, how much there was to do
        :returns: what moves; the map has been changed already
        """
        roles = {slot: self._thresholds.role(occupancy[slot]) for slot in self.active}
        suppliers = self._ranked(roles, Role.SUPPLIER, lambda slot: -occupancy[slot])
        consumers = self._ranked(roles, Role.CONSUMER, lambda slot: busy[slot])
        rules, wanted = self._declustering, len(self.active)
        if len(suppliers) < rules.suppliers:
            wanted = max(self._least, wanted - rules.step)
            if wanted < len(self.active) and self._fits(busy, wanted):
                return self._shrink(wanted, busy, work)
            return []
        if len(suppliers) > rules.ratio * len(consumers) and not self._fits(busy, wanted, without=False):
            added = self._grow(min(self._most, wanted + rules.step))
            consumers = [*added, *consumers]
        return self._hand_over(suppliers, consumers, work)

    def _ranked(self, roles: dict[int, Role], role: Role, key: Callable[[int], float]) -> list[int]:
        return sorted((slot for slot in self.active if roles[slot] is role), key=lambda slot: (key(slot), slot))

    def _fits(self, busy: dict[int, float], slots: int, without: bool = True) -> bool:
        """Whether the work has room in so many slots; `without` headroom that it should have, this is the answer."""
        headroom = self._declustering.headroom
        return without if headroom is None else sum(busy.values()) <= headroom * slots

    def _hand_over(self, suppliers: list[int], consumers: list[int], work: Float64) -> list[Move]:
        moves = []
        # The fullest supplier meets the idlest consumer; each supplier yields one group, each consumer takes one.
        for giver, taker in zip(suppliers, consumers, strict=False):
            groups = self.groups_of(giver)
            surplus = float(work[groups].sum() - work[self.groups_of(taker)].sum())
            while len(groups) > 1:  # moving the only group would move the overload
                group = self._pick(groups, work[groups], surplus)
                if not self._one_each and work[group] >= surplus:  # it would only swap the two
                    break
                moves.append(Move(group, giver, taker))
                groups.remove(group)
                surplus -= 2 * float(work[group])
                if self._one_each:
                    break
        return self._apply(moves)

    def _grow(self, slots: int) -> list[int]:
        added = [slot for slot in range(self._most) if slot not in self.active][: slots - len(self.active)]
        self.active = sorted([*self.active, *added])
        return added

    def _shrink(self, slots: int, busy: dict[int, float], work: Float64) -> list[Move]:
        leaving = sorted(self.active, key=lambda slot: (busy[slot], -slot))[: len(self.active) - slots]
        self.active = [slot for slot in self.active if slot not in leaving]
        loads = {slot: float(work[self.groups_of(slot)].sum()) for slot in self.active}
        moves = []
        for giver in leaving:
            for group in sorted(self.groups_of(giver), key=lambda group: -work[group]):
                taker = min(self.active, key=lambda slot: (loads[slot], slot))
                loads[taker] += float(work[group])
                moves.append(Move(group, giver, taker))
        return self._apply(moves)

    def _apply(self, moves: list[Move]) -> list[Move]:
        for move in moves:
            self.owner[move.group] = move.taker
        return moves
