"""Budgets: memory is reserved before it grows, and everything that is held is counted.

A `Budget` is the promise made to the user. Each part of an operator that holds bytes owns a `Reservation` drawn on it,
so that the sum can be told apart by name and a leak shows in `check()`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from watersmeet.core.errors import BudgetError, SpecError
from watersmeet.core.given import plain_number

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "t": 1000**4,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}

_MOST = 2**62
"""More bytes than any machine has."""
_RECORDS = ("catalogue of", "history of")
"""What reservations are called that tell what was spilled, and what has met."""


def parse_memory(text: str | int, what: str = "memory") -> int:
    """Bytes from a number or from words.

    >>> parse_memory("64 MiB"), parse_memory("1.5kb"), parse_memory(4096)
    (67108864, 1500, 4096)
    """
    text = plain_number(text)
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise SpecError(f"{what} must be bytes or a string such as '64 MiB', not {text!r}")
    if isinstance(text, int):
        size = text
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", text)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise SpecError(f"{what} {text!r} is not understood; write a number and a unit, such as '64 MiB' or '2GB'")
        size = int(min(float(match[1]) * unit, _MOST))
    if size <= 0:
        raise SpecError(f"{what} must be more than nothing, not {text!r}")
    return min(size, _MOST)


def format_bytes(size: float) -> str:
    """Bytes for people, in the units `parse_memory` reads.

    >>> format_bytes(67108864), format_bytes(1500), format_bytes(12)
    ('64 MiB', '1.5 KiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.1f}".rstrip("0").rstrip(".") + f" {unit}"


class Budget:
    """So many bytes and no more.

    >>> budget = Budget(100)
    >>> blocks = budget.reservation("blocks")
    >>> blocks.try_grow(80), blocks.try_grow(40)
    (True, False)
    >>> blocks.shrink(50); budget.used, budget.peak
    (30, 80)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.peak = 0
        self._reservations: list[Reservation] = []

    @property
    def free(self) -> int:
        """Bytes nobody has reserved."""
        return self.total - self.used

    @property
    def most(self) -> int:
        """Bytes that it may ever be: of a part of a larger one, more than it is now."""
        return self.total

    def extend(self, size: int) -> bool:
        """Become large enough for so many more bytes than are reserved, if there is somebody to take them from."""
        return False

    def reservation(self, name: str) -> Reservation:
        """A new, empty claim on this budget."""
        claim = Reservation(self, name)
        self._reservations.append(claim)
        return claim

    def breakdown(self) -> dict[str, int]:
        """Who holds what, by name."""
        held: dict[str, int] = {}
        for claim in self._reservations:
            held[claim.name] = held.get(claim.name, 0) + claim.held
        return held

    def check(self) -> None:
        """Assert that the sum is the parts and that the promise holds."""
        assert self.used == sum(claim.held for claim in self._reservations), self.breakdown()
        assert 0 <= self.used <= self.total, f"{self.used} of {self.total} bytes: {self.breakdown()}"
        assert self.used <= self.peak <= self.total


def no_room_for(what: str, size: int, budget: Budget) -> BudgetError:
    """Why something does not fit even when everything that can be spilled is on disk.

    >>> budget = Budget(1000)
    >>> budget.reservation("catalogue of spilled runs").grow(990)
    >>> print(no_room_for("a row of orders", 33, budget))
    to remember what was spilled takes 990 B of 1000 B of memory, and a row of orders needs 33 B; allow more memory
    >>> print(no_room_for("a row of orders", 5000, Budget(1000)))
    a row of orders takes 4.9 KiB, for which 1000 B of memory are too little; allow more memory
    """
    held = budget.breakdown()
    records = sum(size for name, size in held.items() if name.startswith(_RECORDS))
    if size < records:
        return BudgetError(
            f"to remember what was spilled takes {format_bytes(records)} of {format_bytes(budget.total)} of memory, "
            f"and {what} needs {format_bytes(size)}; allow more memory"
        )
    return BudgetError(
        f"{what} takes {format_bytes(size)}, for which {format_bytes(budget.total)} of memory are too little; allow "
        f"more memory"
    )


class JointBudget(Budget):
    """What several joins may hold, and hold, together; each reserves from its own part.

    >>> parts = [Budget(60), Budget(40)]
    >>> together = JointBudget(100, parts)
    >>> parts[0].reservation("rows").grow(50); together.used, together.breakdown()
    (50, {'join 0: rows': 50})
    """

    part_name = "join"
    """What a part is called."""

    def __init__(self, total: int, parts: list[Budget]) -> None:
        self._parts = parts
        super().__init__(total)

    @property
    def used(self) -> int:
        """Bytes held by all joins."""
        return sum(part.used for part in self._parts)

    @used.setter
    def used(self, value: int) -> None:
        """Only the joins themselves reserve anything."""

    @property
    def peak(self) -> int:
        """Never less than the most bytes that were held at once."""
        return sum(part.peak for part in self._parts)

    @peak.setter
    def peak(self, value: int) -> None:
        """It follows from the joins' own."""

    def breakdown(self) -> dict[str, int]:
        """Who holds what, by name."""
        return {
            f"{self.part_name} {number}: {name}": held
            for number, part in enumerate(self._parts)
            for name, held in part.breakdown().items()
        }

    def check(self) -> None:
        """Assert that every join keeps to its part, and the parts to the whole."""
        for part in self._parts:
            part.check()
        assert sum(part.total for part in self._parts) <= self.total


_LEAST_STEP = 1024
_STEPS = 64
"""A share grows and shrinks by one part in so many of what would be everybody's."""


class PooledBudget(JointBudget):
    """So many bytes in shares that follow the need: what one has no use for is there for the others.

    Each share is sure of half of what would be its fair part, and draws the rest as it needs it, a step at a time, from
    what lies in the pool; what it no longer needs it gives back there. So whoever is full has taken what is free before
    it flushes, and nobody can be left without anything. The shares may be in different threads: the pool is behind a
    lock, and a share's own size is changed by its own thread alone. What is in shares and what is in the pool is always
    the whole, so that the sum of what is held never exceeds it.

    Nobody need fail that could go on with its fair part: it is lacking only where others have more than theirs, who are
    then asked to let go of it.

    >>> pool = PooledBudget(100_000, shares=2)
    >>> rows = [share.reservation("rows") for share in pool.shares]
    >>> rows[0].try_grow(70_000), rows[1].try_grow(40_000), rows[1].try_grow(25_000)
    (True, False, True)
    >>> rows[0].shrink(60_000); rows[1].try_grow(30_000)
    False
    >>> pool.shares[0].give_back(); rows[1].try_grow(30_000), pool.used, pool.breakdown()
    (True, 65000, {'share 0: rows': 10000, 'share 1: rows': 55000})
    """

    part_name = "share"

    def __init__(self, total: int, shares: int, beside: int = 0) -> None:
        """So many bytes of the total are a budget beside the shares, which stays as it is."""
        self._lock = threading.Lock()
        self.beside = Budget(beside)
        self.fair = (total - beside) // shares
        """What each would have if all had the same."""
        self.step = max(_LEAST_STEP, self.fair // _STEPS)
        self.sure = self.fair // 2
        """What a share has for certain."""
        self.given = 0
        """How often something came back to the pool."""
        self._wanting: set[Share] = set()
        self.shares = [Share(self) for _ in range(shares)]
        self._left = total - beside - shares * self.sure
        self._least_left = self._left
        super().__init__(total, [*self.shares, self.beside])

    def draw(self, share: Share, least: int) -> int:
        """Take bytes out of the pool, at least so many and at most a step more; 0 if there are not as many."""
        with self._lock:
            if least > self._left:
                return 0
            size = min(self._left, -(-least // self.step) * self.step)
            if self._wanting and share not in self._wanting and share.total + size > self.fair:
                return 0
            self._left -= size
            self._least_left = min(self._left, self._least_left)
            return size

    def put_back(self, size: int) -> None:
        """Give bytes back to the pool."""
        with self._lock:
            self._left += size
            self.given += 1

    def want(self, share: Share, wanting: bool) -> None:
        """A share cannot go on with what it has, which is no more than its fair part; or it can again."""
        with self._lock:
            (self._wanting.add if wanting else self._wanting.discard)(share)

    @property
    def wanted(self) -> bool:
        """Whether those that have more than their fair part are asked to let go of it."""
        return bool(self._wanting)

    def can_want(self, share: Share) -> bool:
        """Whether a share may wait for others to let go of what is more than their fair part."""
        return any(each is not share and each.total > self.fair and not each.stuck for each in self.shares)

    def divide(self, totals: Sequence[int]) -> None:
        """Make the shares as large as they once were, before anything is in them beyond what they begin with."""
        for share, total in zip(self.shares, totals, strict=True):
            assert share.used <= total
            self._left += share.total - total
            share.total = total
        self._least_left = min(self._left, self._least_left)

    @property
    def peak(self) -> int:
        """The most bytes that were in shares at once, and so never less than were held."""
        return self.total - self._least_left

    @peak.setter
    def peak(self, value: int) -> None:
        """It follows from what was drawn."""

    def check(self) -> None:
        """Assert that every share keeps to its size, and that shares and pool are the whole."""
        super().check()
        assert self._left >= 0
        assert sum(share.total for share in self.shares) + self.beside.total + self._left == self.total


class Share(Budget):
    """One part of a pooled budget."""

    def __init__(self, pool: PooledBudget) -> None:
        super().__init__(pool.sure)
        self.pool = pool
        self.stuck = False
        """It holds nothing that it could let go of."""

    @property
    def most(self) -> int:
        """The whole, if nobody else had anything."""
        return self.pool.total

    @property
    def must_give(self) -> bool:
        """Whether it is asked to let go of what is more than its fair part."""
        return self.total > self.pool.fair and self.pool.wanted and not self.stuck

    def extend(self, size: int) -> bool:
        """Take as much out of the pool as is lacking, if it is there."""
        drawn = self.pool.draw(self, self.used + size - self.total)
        self.total += drawn
        return drawn > 0

    def give_back(self) -> None:
        """Let the others have what is free, but for a step, so that the next few rows need not ask."""
        pool = self.pool
        slack = 0 if pool.wanted else pool.step
        kept = max(pool.sure, self.used + slack)
        if self.total > kept + slack:
            spare, self.total = self.total - kept, kept
            self.peak = self.used
            pool.put_back(spare)


class Reservation:
    """One holder's claim on a budget.

    Part of it may be set aside: it stays claimed while it is not used, and is there when all other memory is taken.

    >>> budget = Budget(100)
    >>> history = budget.reservation("history")
    >>> history.set_aside(20); history.try_grow(15), budget.used
    (True, 20)
    >>> history.set_aside(10); history.shrink(15); budget.used
    30
    """

    __slots__ = ("_aside", "_budget", "_used", "held", "name")

    def __init__(self, budget: Budget, name: str) -> None:
        self._budget = budget
        self._used = 0
        self._aside = 0
        self.name = name
        self.held = 0

    @property
    def used(self) -> int:
        """Bytes that are claimed and not merely set aside."""
        return self._used

    def set_aside(self, size: int) -> None:
        """Claim bytes for later use, beside what was set aside before, or say why that cannot be."""
        if not self._try_hold(self._aside + size):
            raise self._refusal(size)
        self._aside += size

    def try_grow(self, size: int) -> bool:
        """Claim more bytes if they are free; nothing changes if they are not."""
        if not self._try_hold(self._used + size):
            return False
        self._used += size
        return True

    def _try_hold(self, size: int) -> bool:
        """Have so many bytes at least."""
        budget, more = self._budget, size - self.held
        if more > 0:
            if budget.used + more > budget.total and not budget.extend(more):
                return False
            budget.used += more
            self.held += more
            if budget.used > budget.peak:
                budget.peak = budget.used
        return True

    def grow(self, size: int) -> None:
        """Claim more bytes, or say why that cannot be."""
        if not self.try_grow(size):
            raise self._refusal(size)

    def _refusal(self, size: int) -> BudgetError:
        return BudgetError(
            f"{self.name} needs {format_bytes(size)} more, but only {format_bytes(self._budget.free)} of the "
            f"{format_bytes(self._budget.total)} of memory are free; allow more memory"
        )

    def shrink(self, size: int) -> None:
        """Give bytes back."""
        assert 0 <= size <= self._used, f"{self.name} gives back {size} of {self._used} bytes"
        self._used -= size
        held = max(self._used, self._aside)
        self._budget.used -= self.held - held
        self.held = held

    def clear(self) -> None:
        """Give everything back, what was set aside too."""
        self._aside = 0
        self.shrink(self._used)
