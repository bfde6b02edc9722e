"""Where the rows of a parallel join go: which slot joins which group of keys, and how hot keys are split over slots.

There are many more groups than slots, and a row belongs to the group of its key's hash. A key that outgrows a slot gets
a home of its own: some more groups, over which the rows of one side are spread, while those of the other are copied to
all of them. So every pair meets in one of these groups, once.

When a key moves to a new home, the rows that came before stay in the old one. Until they have expired, new rows visit
them there: they are looked up, and not kept::

    left row of the key  ──▶ one group of the new home     right row ──▶ all groups of the new home    (kept there)
                         ──▶ the old home                            ──▶ the old home                  (only looks)

Where it matters which rows of one side have a partner (`how`), each of these must be in one group, and that group must
have all of the other side's. So that side is spread, never copied, and nobody visits: what a visitor finds would have
to be noted where it is kept. A new home is given copies of the other side's rows until all of them that came before
have expired; only then is it *ripe*, and the spread side's rows go there. The old home is given copies until its last
row has expired and, if it found nobody, has come out. Where it matters of both sides, no key is split::

    left row  ──▶ one group of the last home that is ripe        right row ──▶ all groups of all homes

Where rows never expire (`keeps`), an old home would be visited for good, and by most rows of the key, for whom the few
rows of the other side came long ago. So the new home's groups begin with copies of what the old one has of the copied
side (`operator_task`), which makes them ripe at once, whatever the kind of the join. Rows of the spread side stay where
they are, and rows of the other side go on to be copied there, too. So a pair is found in the group that has its row of
the spread side: each of these is in one group, and that group is given all rows of the other side, once. Such a key is
split once, and for good.

Any map from groups to slots gives the same results. The homes of keys are part of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from watersmeet.core.kinds import Kind
from watersmeet.records.times import NEVER, Timing

INPUTS = 2
NEITHER, BOTH = -1, 2
"""Of which side it matters who has found a partner, if not of one."""


def tracked_side(kind: Kind) -> int:
    """Of which side it matters who has found a partner.

    >>> from watersmeet.core.kinds import KINDS
    >>> [tracked_side(KINDS[how]) for how in ("inner", "left", "right", "full", "semi")]
    [-1, 0, 1, 2, 0]
    """
    sides = [side for side, tracked in enumerate(kind.tracked) if tracked]
    return BOTH if len(sides) > 1 else sides[0] if sides else NEITHER


def routing_name(division: str) -> str:
    """The directory of routings: another one once the keys were divided anew, which puts hot keys together."""
    return f"routing-{division}" if division else "routing"


class Role(IntEnum):
    """What a row does in the group that it is sent to."""

    OWN = 0
    """It is kept, and looks up rows of the other side."""
    COPY = 1
    """The same, but it is there only because it is copied: it is counted elsewhere."""
    VISIT = 2
    """It looks up rows of the other side, and is not kept."""


WAKE = INPUTS * len(Role)
"""The kind of rows that only wake a slot; the others' is their role's, and their side."""
KINDS = WAKE + 1

_PLAIN = ("epoch", "began", "run", "settled", "tracked", "keeps")
"""What of a routing JSON holds as it is."""
Place = tuple[int, int]
"""A group that a row is sent to, and the kind of row that it is there."""


def kind_of(role: Role, side: int) -> int:
    """What the tag of a row says of it, besides the group.

    >>> kind_of(Role.OWN, 1), kind_of(Role.VISIT, 0)
    (1, 4)
    """
    return role * INPUTS + side


@dataclass(frozen=True, slots=True)
class Home:
    """The groups in which a key's rows meet: so many from the first on."""

    first: int
    ways: int = 1
    spread: int = 0
    """The side whose rows are spread; the other side's are copied to all of them."""
    until: tuple[int, int] | None = None
    """Of a home that the key has left: the newest times of the inputs, then."""
    since: tuple[int, int] | None = None
    """Of a home that gets copies, and no row of the spread side yet: the newest times of the inputs when that began."""

    @property
    def groups(self) -> range:
        """All of them."""
        return range(self.first, self.first + self.ways)

    def has_expired(self, newest: Sequence[int], timing: Timing) -> bool:
        """Whether no row is left in it that rows to come can meet, now that the inputs have reached these times."""
        if self.until is None:
            return False
        return all(
            last == NEVER or last < timing.expired_before(side, newest[1 - side], 0)
            for side, last in enumerate(self.until)
        )

    def ripened(self, newest: Sequence[int], timing: Timing) -> Home:
        """The same, and ripe if rows of the copied side that it never got can meet nobody any more."""
        copied = 1 - self.spread
        if self.since is None:
            return self
        last, before = self.since[copied], timing.expired_before(copied, newest[self.spread], 0)
        return replace(self, since=None) if last == NEVER or last < before else self

    def is_left(self, newest: Sequence[int], timing: Timing) -> bool:
        """Whether no row of the spread side is left in it that rows to come can meet."""
        if self.until is None:
            return False
        last = self.until[self.spread]
        return last == NEVER or last < timing.expired_before(self.spread, newest[1 - self.spread], 0)


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that has, or had, a home of its own: by its hash, so that keys of one hash go together.

    >>> key = HotKey(77, (Home(3, until=(10, 10)), Home(16, ways=2, spread=0)))
    >>> key.places(0)
    [[(16, 0), (3, 4)], [(17, 0), (3, 4)]]
    >>> key.places(1)
    [[(16, 1), (17, 3), (3, 5)]]
    """

    key: int
    homes: tuple[Home, ...]
    """The last one is the present one; in those before are rows that have not expired."""
    tracked: int = NEITHER
    """The side of which each row must be in one group, which has all of the other side's."""

    @property
    def home(self) -> Home:
        """Where its rows are kept."""
        return self.homes[-1]

    def places(self, side: int) -> list[list[Place]]:
        """Where a row of a side goes: one of these lists, whichever."""
        if self.tracked != NEITHER:
            return self._tracked_places(side)
        found = []
        home = self.home
        for choice in range(home.ways if side == home.spread else 1):
            if side == home.spread:
                places = [(home.first + choice, kind_of(Role.OWN, side))]
            else:
                places = [(group, kind_of(Role.COPY if i else Role.OWN, side)) for i, group in enumerate(home.groups)]
            for old in self.homes[:-1]:
                # What was copied is in every group, what was spread in one of them.
                visited = [old.first + choice % old.ways] if side == old.spread else list(old.groups)
                places += [(group, kind_of(Role.VISIT, side)) for group in visited]
            found.append(places)
        return found

    def _tracked_places(self, side: int) -> list[list[Place]]:
        """The same where a row of one side must be in one group, and find all of the other side's there."""
        home = next(home for home in reversed(self.homes) if home.since is None)
        if side == self.tracked:
            return [[(group, kind_of(Role.OWN, side))] for group in home.groups]
        groups = dict.fromkeys([*home.groups, *(group for each in self.homes for group in each.groups)])
        return [[(group, kind_of(Role.COPY if i else Role.OWN, side)) for i, group in enumerate(groups)]]

    def kept_up(self, newest: Sequence[int], timing: Timing, is_empty: Callable[[int], bool]) -> HotKey:
        """The same, now that the inputs have reached these times: homes ripen, are left, and are given up."""
        homes = [home.ripened(newest, timing) for home in self.homes]
        last = max(i for i, home in enumerate(homes) if home.since is None)
        homes[:last] = [replace(home, until=home.until or (newest[0], newest[1])) for home in homes[:last]]
        over = [home.is_left(newest, timing) and (home.ways == 1 or all(map(is_empty, home.groups))) for home in homes]
        return replace(self, homes=tuple(home for home, gone in zip(homes, over, strict=True) if not gone))


@dataclass(frozen=True)
class Routing:
    """Where rows go in one micro-batch.

    >>> routing = Routing.begin(groups=4, slots=2)
    >>> routing.owner, routing.groups_of(1)
    ((0, 1, 0, 1), [1, 3])
    """

    owner: tuple[int, ...]
    """The slot of each group; -1 for groups of homes that are no more."""
    active: tuple[int, ...]
    """Slots that have groups, or are to get some."""
    hot: tuple[HotKey, ...] = ()
    moved: tuple[int, ...] = ()
    """Groups that come to another slot, or into being, with this batch."""
    epoch: int = 0
    """The batch with which the present epoch began."""
    began: float = 0.0
    """When that was, in seconds since 1970; 0: not yet known."""
    run: str = ""
    """The run of the query that has settled this."""
    settled: float = 0.0
    """When, in seconds since 1970: Spark then begins to send rows to the slots."""
    tracked: int = NEITHER
    """The side of which it matters who has found a partner."""
    keeps: bool = False
    """Whether rows never expire."""

    @classmethod
    def begin(cls, groups: int, slots: int, tracked: int = NEITHER, *, keeps: bool = False) -> Routing:
        """All groups dealt to so many slots."""
        owner = tuple(group % slots for group in range(groups))
        return cls(owner, tuple(range(slots)), tracked=tracked, keeps=keeps)

    @property
    def live(self) -> list[int]:
        """All groups that there are."""
        return [group for group, owner in enumerate(self.owner) if owner >= 0]

    def groups_of(self, slot: int) -> list[int]:
        """What a slot joins."""
        return [group for group, owner in enumerate(self.owner) if owner == slot]

    def within(self, least: int, most: int) -> Routing:
        """The same if it has as many slots as there may be now, else all groups dealt anew."""
        if least <= len(self.active) <= most and max(self.active) < most:
            return self
        slots = min(max(len(self.active), least), most)
        owner = tuple(-1 if slot < 0 else group % slots for group, slot in enumerate(self.owner))
        moved = tuple(group for group, slot in enumerate(owner) if slot != self.owner[group])
        return replace(self, owner=owner, active=tuple(range(slots)), moved=moved)

    def without_expired(self, newest: Sequence[int], timing: Timing, is_empty: Callable[[int], bool]) -> Routing:
        """The same without homes in which nothing is left, the inputs having reached these times.

        `is_empty` says of a group whether no row waits there to come out alone.
        """
        if self.keeps or not self.hot:
            return self
        owner = list(self.owner)
        hot = []
        for key in self.hot:
            if self.tracked == NEITHER:
                homes = tuple(home for home in key.homes if not home.has_expired(newest, timing))
            else:
                homes = key.kept_up(newest, timing, is_empty).homes
            there = {home.first for home in homes}
            for gone in key.homes:
                if gone.ways > 1 and gone.first not in there:
                    owner[gone.first : gone.first + gone.ways] = [-1] * gone.ways
            if len(homes) > 1 or homes[0].ways > 1:
                hot.append(replace(key, homes=homes))
        return replace(self, owner=tuple(owner), hot=tuple(hot))

    def sides_in_homes(self) -> dict[int, frozenset[int]] | None:
        """Of each group of a hot key, the sides whose rows count there, the others being copies.

        None: a home is not ripe yet, and nobody can tell which rows are copies.

        >>> Routing((0, 1, 0, 1), (0, 1), (HotKey(77, (Home(1), Home(2, 2)), tracked=0),), keeps=True).sides_in_homes()
        {2: frozenset({0}), 3: frozenset({0})}
        """
        found: dict[int, frozenset[int]] = {}
        for key in self.hot:
            if any(home.since is not None for home in key.homes):
                return None
            for place, home in enumerate(key.homes):
                # What is copied is in every group of a home. Where one side is spread for good, it is in all homes.
                whole = place == 0 if key.tracked != NEITHER else True
                if home.ways > 1:
                    both = frozenset({0, 1})
                    found |= dict.fromkeys(home.groups, frozenset({home.spread}))
                    found[home.first] = both if whole else found[home.first]
        return found

    def to_json(self) -> dict[str, Any]:
        """As something that JSON can hold."""
        hot = [
            [key.key, [[home.first, home.ways, home.spread, home.until, home.since] for home in key.homes], key.tracked]
            for key in self.hot
        ]
        rest = {name: getattr(self, name) for name in _PLAIN}
        return {"owner": self.owner, "active": self.active, "hot": hot, "moved": self.moved, **rest}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Routing:
        """What `to_json` has made.

        >>> key = HotKey(77, (Home(3, until=(10, 10)), Home(4, ways=2)))
        >>> routing = Routing((0, 1, 0, 0, 1, 0), (0, 1), (key,), (4, 5), 7, 1.5, "run", 2.5)
        >>> import json
        >>> Routing.from_json(json.loads(json.dumps(routing.to_json()))) == routing
        True
        """
        tracked = found.get("tracked", NEITHER)
        hot = tuple(HotKey(key, tuple(map(_home, homes)), *(own or [tracked])) for key, homes, *own in found["hot"])
        rest = {**{name: found[name] for name in _PLAIN if name in found}, "tracked": tracked}
        return cls(tuple(found["owner"]), tuple(found["active"]), hot, tuple(found["moved"]), **rest)


def _home(found: list[Any]) -> Home:
    first, ways, spread, until, *since = found
    times = [None if each is None else (each[0], each[1]) for each in (until, *since)]
    return Home(first, ways, spread, *times)
