"""What becomes of a parallel join's routing at the end of a reorganization epoch: the master's choice.

The master sees what each slot did in the epoch. Spark has no input buffers that could be full: rows wait in the source
until all slots are done with the batch before. So a slot's share of time in which it worked stands for how full its
buffer was; time in which no slot can work, because Spark reads and sends the rows of a batch, is left out. A slot that
works for more than half of its time is a supplier if another one is idler than most; that one is the consumer. What
moves, and whether there are to be more or fewer slots, is then said by `policies.balancing`.

Where groups stay where they are, each in a task of its own, only hot keys are split. A task tells of its group only if
a key there has outgrown it, as far as the group itself can tell: keys are hashed, so that what it has to do for all
others is about what every group has to do. What a group has to do is told by its rows and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from watersmeet.policies.balancing import Balancer, Declustering, Thresholds
from watersmeet.spark.rebalance.routing import BOTH, NEITHER, Home, HotKey, Routing

SUPPLIER = 0.5
"""A slot that is busy for more of its time than this has too much to do."""
_BELOW_MEAN = 0.9
"""A slot that is busy for less than this share of what all are on average can take more."""
_HEADROOM = 0.7
"""Slots are let go if the others would be busy for this share of their time at most. What Spark does to end a batch and
to plan the next one takes its share, too, so that no slot is ever busy all the time."""
_OUTGROWN = 0.75
"""A key has outgrown a slot if it makes for more than this share of what each slot should have."""
_COLD = 0.25
"""And goes back to its group with less than this."""
_MOST_HOT = 16
"""Every row is compared with all hot keys."""
LEAST_WORK = 20_000
"""Rows and results of a key in a batch, from which on it is split where groups stay: less is done before it matters."""
_MOST_WAYS = 8
"""Groups of a home where groups stay: what is copied is copied to each of them."""


@dataclass(frozen=True, slots=True)
class TopKey:
    """The key of a group, by its hash, that makes for most of its work."""

    key: int
    share: float
    """Of the group's work."""
    rows: tuple[int, int]
    """Of each side, about."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """What a group took."""

    rows: int
    results: int
    seconds: float
    top: TopKey | None = None


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """What a slot did in one batch."""

    slot: int
    seconds: float
    groups: dict[int, GroupLoad]
    batch: int = 0
    lag: float = 0.0
    """Seconds from when the routing was settled until rows came to the slot."""

    def to_json(self) -> dict[str, Any]:
        """As something that JSON can hold."""
        groups = {
            number: [load.rows, load.results, load.seconds, load.top and [load.top.key, load.top.share, load.top.rows]]
            for number, load in self.groups.items()
        }
        rest = {"seconds": self.seconds, "batch": self.batch, "lag": self.lag}
        return {"slot": self.slot, "groups": groups, **rest}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> SlotLoad:
        """What `to_json` has made.

        >>> load = SlotLoad(1, 2.5, {7: GroupLoad(10, 20, 0.5, TopKey(-3, 0.25, (1, 2)))}, 3, 0.5)
        >>> import json
        >>> SlotLoad.from_json(json.loads(json.dumps(load.to_json()))) == load
        True
        """
        groups = {}
        for number, (rows, results, seconds, top) in found["groups"].items():
            key = None if top is None else TopKey(top[0], top[1], (top[2][0], top[2][1]))
            groups[int(number)] = GroupLoad(rows, results, seconds, key)
        return cls(found["slot"], found["seconds"], groups, found["batch"], found["lag"])


@dataclass
class Epoch:
    """What was done in an epoch, by slots, groups and keys."""

    busy: dict[int, float] = field(default_factory=dict)
    """The share of time in which each slot worked."""
    work: dict[int, float] = field(default_factory=dict)
    """Seconds that each group took."""
    keys: dict[int, list[tuple[int, TopKey, float]]] = field(default_factory=dict)
    """By the hash of each group's heaviest key: the group, the key and the seconds that it took, about."""

    @classmethod
    def of(cls, loads: Sequence[SlotLoad], seconds: float) -> Epoch:
        """The sum of what all slots have told in an epoch that was so long.

        >>> Epoch.of([SlotLoad(0, 3.0, {}, 5, 2.0), SlotLoad(1, 1.0, {}, 5, 2.5)], seconds=8.0).busy
        {0: 0.5, 1: 0.16666666666666666}
        """
        epoch = cls()
        lags: dict[int, float] = {}
        for load in loads:
            lags[load.batch] = min(load.lag, lags.get(load.batch, load.lag))
        # At least as much as the busiest one took: clocks differ.
        worked = [sum(load.seconds for load in loads if load.slot == slot) for slot in {load.slot for load in loads}]
        available = max([seconds - sum(lags.values()), *worked, 1e-3])
        for load in loads:
            epoch.busy[load.slot] = epoch.busy.get(load.slot, 0.0) + load.seconds / available
            for group, done in load.groups.items():
                epoch.work[group] = epoch.work.get(group, 0.0) + done.seconds
                if done.top is not None:
                    entry = (group, done.top, done.seconds * done.top.share)
                    epoch.keys.setdefault(done.top.key, []).append(entry)
        return epoch


def reorganized(routing: Routing, epoch: Epoch, slots: tuple[int, int], groups: int, newest: Sequence[int]) -> Routing:
    """The routing after an epoch: keys that have outgrown a slot get homes of their own, or else groups move.

    :param groups: those that keys are hashed to
    :param newest: the times that the inputs have reached
    """
    busy = {slot: epoch.busy.get(slot, 0.0) for slot in routing.active}
    fair = sum(epoch.work.values()) / len(routing.active)
    if len(routing.active) > 1 and max(busy.values()) > SUPPLIER:
        split = _split(routing, epoch, fair, slots[1], groups, newest)
        if split is not None:
            return split
    return _cooled(_moved(routing, epoch, busy, slots), epoch, fair, groups, newest)


def is_hot(group: GroupLoad, groups: int) -> bool:
    """Whether a key has outgrown its group, which is one of so many, as far as the group can tell.

    >>> tops = [TopKey(7, share, (9, 9)) for share in (0.3, 0.5, 0.9)]
    >>> [is_hot(GroupLoad(50_000, 50_000, 1.0, top), groups=4) for top in tops]
    [False, True, True]
    >>> is_hot(GroupLoad(500, 500, 1.0, tops[-1]), groups=4)
    False
    """
    if group.top is None:
        return False
    work = group.rows + group.results
    own = work * group.top.share
    fair = (work - own) + own / groups
    return own >= LEAST_WORK and own > _OUTGROWN * fair


def split_only(routing: Routing, loads: Sequence[SlotLoad], groups: int, newest: Sequence[int]) -> Routing:
    """The routing after a batch where groups stay where they are: with a key that has outgrown its group split.

    :param loads: what slots have told, of those groups in which there is a hot key, or were
    """
    told = {number: load for each in loads for number, load in each.groups.items()}
    own = [load for number, load in told.items() if number < groups]
    if not own:
        return routing
    # What silent groups have to do is what the others have beside their heaviest keys.
    usual = sum((load.rows + load.results) * (1 - (load.top.share if load.top else 0)) for load in own) / len(own)
    epoch = Epoch(work=dict.fromkeys(range(groups), usual))
    for number, load in told.items():
        epoch.work[number] = float(load.rows + load.results)
        if load.top is not None and (number >= groups or is_hot(load, groups)):
            entry = (number, load.top, epoch.work[number] * load.top.share)
            epoch.keys.setdefault(load.top.key, []).append(entry)
    fair = sum(epoch.work.values()) / groups
    split = _split(routing, epoch, fair, min(groups, _MOST_WAYS), groups, newest)
    if split is None and not routing.keeps:
        split = _cooled(routing, epoch, fair, groups, newest)
    return in_place(split or routing, groups)


def in_place(routing: Routing, groups: int) -> Routing:
    """The same with every group in the slot that its number tells, so that rows are sent there without being told.

    >>> in_place(Routing((0, 1, 2, -1, 0, 0), (0, 1, 2)), groups=3).owner
    (0, 1, 2, -1, 1, 2)
    """
    owner = tuple(slot if slot < 0 else number % groups for number, slot in enumerate(routing.owner))
    return replace(routing, owner=owner)


def _moved(routing: Routing, epoch: Epoch, busy: dict[int, float], slots: tuple[int, int]) -> Routing:
    mean = sum(busy.values()) / len(busy)
    thresholds = Thresholds(min(_BELOW_MEAN * mean, 0.99 * SUPPLIER), SUPPLIER)
    balancer = Balancer(
        max(len(routing.owner), slots[1]), slots, thresholds=thresholds, declustering=Declustering(headroom=_HEADROOM)
    )
    balancer.active = list(routing.active)
    balancer.owner = np.array(routing.owner, np.int64)
    work = np.array([epoch.work.get(group, 0.0) for group in range(len(routing.owner))])
    moves = balancer.reorganize(busy, busy, work)
    return replace(
        routing,
        owner=tuple(balancer.owner.tolist()),
        active=tuple(balancer.active),
        moved=tuple(move.group for move in moves),
    )


def _split(
    routing: Routing, epoch: Epoch, fair: float, most: int, groups: int, newest: Sequence[int]
) -> Routing | None:
    """With a home for the heaviest key that has outgrown its slot; None if there is none."""
    known = {key.key: key for key in routing.hot}
    if len(known) >= _MOST_HOT or routing.tracked == BOTH:
        return None
    weights = {key: sum(entry[2] for entry in entries) for key, entries in epoch.keys.items()}
    for key, weight in sorted(weights.items(), key=lambda each: (-each[1], each[0])):
        ways = known[key].home.ways if key in known else 1
        wanted = min(most, max(2, int(np.ceil(2 * weight / fair)))) if fair else 1
        if weight / ways <= _OUTGROWN * fair or wanted <= ways or (key in known and known[key].home.since is not None):
            continue
        told = [entry[1].rows for entry in epoch.keys[key]]
        rows = [max(each[side] for each in told) if ways > 1 else sum(each[side] for each in told) for side in (0, 1)]
        if routing.keeps and (
            key in known or (routing.tracked != NEITHER and rows[routing.tracked] < rows[1 - routing.tracked])
        ):
            continue  # it is split for good; or what would be copied for good is more than what is spread
        return rehomed(routing, epoch, key, groups, newest, wanted, int(rows[1] > rows[0]), weight)
    return None


def _cooled(routing: Routing, epoch: Epoch, fair: float, groups: int, newest: Sequence[int]) -> Routing:
    """With keys that have cooled down back in their groups."""
    for key in routing.hot:
        weight = sum(epoch.work.get(group, 0.0) for group in key.home.groups)
        if key.home.ways > 1 and len(key.homes) == 1 and weight < _COLD * fair:
            routing = rehomed(routing, epoch, key.key, groups, newest, 1, 0, weight)
    return routing


def rehomed(
    routing: Routing, epoch: Epoch, key: int, groups: int, newest: Sequence[int], ways: int, spread: int, weight: float
) -> Routing:
    """With a new home for a key, its parts in the slots that have least to do."""
    tracked = routing.tracked
    if routing.keeps:
        if tracked == BOTH or ways == 1 or any(each.key == key for each in routing.hot):
            return routing
        side = spread if tracked == NEITHER else tracked
        base, home = Home(key % groups, spread=side), Home(len(routing.owner), ways, side)
        return _with_homes(routing, epoch, HotKey(key, (base, home), side), base, weight)
    base = Home(key % groups, spread=max(0, tracked))
    known = next((each for each in routing.hot if each.key == key), HotKey(key, (base,), tracked))
    if tracked != NEITHER:
        if tracked == BOTH or known.home.since is not None:
            return routing  # no key is split; or one move after the other
        return _rehomed_tracked(routing, epoch, known, base, newest, ways, weight)
    left = replace(known.home, until=(newest[0], newest[1]))
    home = base if ways == 1 else Home(len(routing.owner), ways, spread)
    return _with_homes(routing, epoch, replace(known, homes=(*known.homes[:-1], left, home)), known.home, weight)


def _rehomed_tracked(
    routing: Routing, epoch: Epoch, known: HotKey, base: Home, newest: Sequence[int], ways: int, weight: float
) -> Routing:
    """The same where each row of one side must find all of the other side's: see `routing`."""
    now = (newest[0], newest[1])
    if ways > 1:
        home = Home(len(routing.owner), ways, base.spread, since=now)
        return _with_homes(routing, epoch, replace(known, homes=(*known.homes, home)), known.home, weight)
    if any(home.first == base.first for home in known.homes):  # it has been given copies all along
        others = tuple(home for home in known.homes if home.first != base.first)
        return _with_homes(routing, epoch, replace(known, homes=(*others, base)), known.home, weight)
    return _with_homes(
        routing, epoch, replace(known, homes=(*known.homes, replace(base, since=now))), known.home, weight
    )


def _with_homes(routing: Routing, epoch: Epoch, key: HotKey, left: Home, weight: float) -> Routing:
    """With a key's homes, the groups of the last one in the slots that have least to do."""
    owner, home = list(routing.owner), key.home
    fresh = list(home.groups) if home.ways > 1 else []
    work = dict(epoch.work)
    for group in left.groups:
        work[group] = max(0.0, work.get(group, 0.0) - weight / left.ways)
    loads = {slot: sum(work.get(group, 0.0) for group in routing.groups_of(slot)) for slot in routing.active}
    for _ in fresh:
        slot = min(loads, key=lambda each: (loads[each], each))
        loads[slot] += weight / home.ways
        owner.append(slot)
    others = [each for each in routing.hot if each.key != key.key]
    return replace(routing, owner=tuple(owner), hot=(*others, key), moved=(*routing.moved, *fresh))
