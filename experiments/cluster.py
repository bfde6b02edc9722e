"""A cluster that joins two streams by windows, in virtual time: a master, its slaves, and what they send each other.

Rows have keys and times but no values: comparisons, results and bytes are counted, as many as there would be. What is
decided, by the master about groups and slots, and by a slave about its mini-partitions, is decided by the library's own
`Balancer` and `ExtendibleDirectory`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from experiments.extendible import ExtendibleDirectory
from watersmeet.core.arrays import Float64, Int64, Uint64
from watersmeet.kernels.hashing import hash_words
from watersmeet.policies.balancing import Balancer, Move

_HALF = 12
"""Bits of a key that are drawn at once."""
_NO_TUNING = 1 << 60
_GROUP_SHIFT = np.uint64(40)
"""Groups go by the upper bits of a hash, mini-partitions by the lower ones."""


def skewed_keys(count: int, bias: float, domain: int, seed: int) -> Int64:
    """Keys by the b-model: at every level one half of the domain gets the share `bias` of the rows."""
    random = np.random.default_rng([seed, 0xC])
    levels = max(1, int(domain).bit_length() - 1)
    keys = np.zeros(count, np.int64)
    while levels > 0:
        bits = min(levels, _HALF)
        shares = np.ones(1)
        for _ in range(bits):
            shares = np.concatenate([shares * bias, shares * (1 - bias)])
        drawn = np.searchsorted(np.cumsum(shares)[:-1], random.random(count), side="right")
        keys = (keys << bits) | drawn
        levels -= bits
    return keys


def poisson_times(rate: float, seconds: float, seed: int) -> Float64:
    """Arrivals at a steady rate, each on its own."""
    random = np.random.default_rng([seed, 0xD])
    times = np.cumsum(random.exponential(1 / rate, int(rate * seconds * 1.1) + 100))
    return times[times < seconds]


def partners(times: Sequence[Float64], keys: Sequence[Int64], window: float) -> list[Int64]:
    """For each row, how many rows of the other stream with its key came before it, and within the window.

    The rows of a stream are in the order of their times.

    >>> times, keys = [np.array([1.0, 5.0]), np.array([2.0, 4.0])], [np.array([7, 7]), np.array([7, 7])]
    >>> [each.tolist() for each in partners(times, keys, window=2.5)]
    [[0, 1], [1, 0]]
    """
    # Keys and times as one number, in ascending order: a key's times lie in a stretch of their own. Asking in that
    # order is many times as fast as in the order of time.
    orders = [np.argsort(each, kind="stable") for each in keys]
    span = max(float(t[-1]) if len(t) else 0.0 for t in times) + window + 1.0
    begins = [each[order] * span for each, order in zip(keys, orders, strict=True)]
    since = [each[order] for each, order in zip(times, orders, strict=True)]
    found = []
    for side in (0, 1):
        there = begins[1 - side] + since[1 - side]
        until = np.searchsorted(there, begins[side] + since[side], side="left")
        first = np.searchsorted(there, begins[side] + np.maximum(since[side] - window, 0.0), side="left")
        counts = np.empty(len(until), np.int64)
        counts[orders[side]] = until - first
        found.append(counts)
    return found


class Chunk(NamedTuple):
    """Rows of one stream and group that were sent together."""

    group: int
    stream: int
    begin: int
    end: int


class Group:
    """A partition-group: its rows of both streams in the order of time, of which a stretch is in the window."""

    def __init__(
        self, times: list[Float64], hashes: list[Uint64], matches: list[Int64], window: float, theta: int | None
    ) -> None:
        self.times, self._hashes, self.matches, self._window = times, hashes, matches, window
        self.sent = [0, 0]
        """Rows that have left the master."""
        self._come: list[list[int]] = [[], []]
        self._oldest = [0, 0]
        self._newest = [0, 0]
        self.directory = ExtendibleDirectory(_NO_TUNING if theta is None else theta)
        self._sizes: list[Int64] = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
        """Rows of each stream in each mini-partition."""

    @property
    def rows(self) -> int:
        """In the window."""
        return sum(self._newest) - sum(self._oldest)

    def plan(self, slot: float, turns: int) -> None:
        """Find which rows have come by the end of each turn; turn 0 is the beginning."""
        ends = np.arange(turns + 1) * slot
        self._come = [np.searchsorted(times, ends, side="right").tolist() for times in self.times]

    def come(self, turn: int) -> int:
        """Rows of both streams that have come by the end of a turn."""
        return self._come[0][turn] + self._come[1][turn]

    def due(self, number: int, stream: int, turn: int) -> Chunk | None:
        """What the master has of a stream, taken from it; `number` is the group's."""
        begin, end = self.sent[stream], self._come[stream][turn]
        self.sent[stream] = end
        return Chunk(number, stream, begin, end) if end > begin else None

    def join(self, chunk: Chunk) -> int:
        """Compare new rows with the other stream's, and keep them; returns the comparisons."""
        stream = chunk.stream
        self._expire(self.times[stream][chunk.begin] - self._window)
        buckets = self.directory.find(self._hashes[stream][chunk.begin : chunk.end])
        fresh = np.bincount(buckets, minlength=len(self.directory.sizes))
        comparisons = int(fresh @ self._sizes[1 - stream])
        self._sizes[stream] = self._sizes[stream] + fresh
        self._newest[stream] = chunk.end
        self.directory.add(buckets)
        self._tune()
        return comparisons

    def _expire(self, before: float) -> None:
        for stream in (0, 1):
            first, last = self._oldest[stream], self._newest[stream]
            until = first + int(self.times[stream][first:last].searchsorted(before))
            if until > first:
                buckets = self.directory.find(self._hashes[stream][first:until])
                self._sizes[stream] = self._sizes[stream] - np.bincount(buckets, minlength=len(self.directory.sizes))
                self.directory.remove(buckets)
                self._oldest[stream] = until

    def _tune(self) -> None:
        directory = self.directory
        changes = directory.splits + directory.merges
        directory.tune(self._count)
        if directory.splits + directory.merges != changes:
            self._sizes = [
                np.bincount(directory.find(hashes), minlength=len(directory.sizes)) for hashes in self._in_window()
            ]

    def _count(self, bits: int, depth: int) -> int:
        mask = np.uint64((1 << depth) - 1)
        return sum(int(np.count_nonzero((hashes & mask) == np.uint64(bits))) for hashes in self._in_window())

    def _in_window(self) -> Iterator[Uint64]:
        for stream in (0, 1):
            yield self._hashes[stream][self._oldest[stream] : self._newest[stream]]


@dataclass(frozen=True)
class Machine:
    """What things cost, in seconds."""

    comparison: float
    row: float
    """To put a row where it belongs."""
    message: float
    """To begin an exchange."""
    byte: float
    """To send one."""
    row_bytes: int
    buffer: int
    """Rows of a slave's input buffer: full when an occupancy is 1."""


@dataclass
class Slave:
    """A node that joins: what it has before it, and how it has spent its time."""

    speed: float = 1.0
    free_at: float = 0.0
    queue: deque[Chunk] = field(default_factory=deque)
    cpu: float = 0.0
    communication: float = 0.0
    occupancies: list[float] = field(default_factory=list)
    """At the end of each distribution epoch since the last reorganization."""
    reported: float = 0.0
    """CPU and communication at the last reorganization."""

    @property
    def waiting(self) -> int:
        """Rows in the input buffer."""
        return sum(chunk.end - chunk.begin for chunk in self.queue)


class Cluster:
    """A run: `run` goes through the distribution epochs; then the figures are there to be read."""

    def __init__(
        self,
        groups: list[Group],
        balancer: Balancer,
        machine: Machine,
        distribution: float,
        reorganization: float,
        sub_groups: int = 1,
        balancing: bool = True,
        slow: float = 1.0,
    ) -> None:
        """:param slow: the first slave's speed, where others have 1"""
        self.groups, self.balancer, self._machine = groups, balancer, machine
        self._distribution, self._every = distribution, max(1, round(reorganization / distribution))
        self._sub_groups, self._balancing = sub_groups, balancing
        self.slaves = {slot: Slave() for slot in balancer.active}
        self.slaves[0].speed = slow
        self.measure_from = 0.0
        self.delay = 0.0
        """Of all results together."""
        self.results = 0
        self.moves = 0
        self.buffered: list[int] = []
        """Rows at the master whenever it is about to send, once measuring has begun."""
        self.active: list[int] = []
        """Slots, at each distribution epoch that is measured."""
        self.begun: dict[int, tuple[float, float]] = {}
        """Each slave's CPU and communication when measuring begins."""
        self._work = np.zeros(len(groups))

    def run(self, seconds: float, warm_up: float) -> None:
        """Distribute, join, and reorganize until the time is over."""
        self.measure_from = warm_up
        slot = self._distribution / self._sub_groups
        turns = int(seconds / slot + 1e-9)
        for group in self.groups:
            group.plan(slot, turns)
        for turn in range(1, turns + 1):
            now = turn * slot
            if now > warm_up:
                self.begun = self.begun or self.spent()
                self.buffered.append(self._buffered(turn))
            part = (turn - 1) % self._sub_groups
            self._distribute(self.balancer.active[part :: self._sub_groups], turn, now)
            if part == self._sub_groups - 1:
                self._end_epoch(now, turn // self._sub_groups)

    def spent(self) -> dict[int, tuple[float, float]]:
        """Each slave's CPU and communication so far."""
        return {number: (slave.cpu, slave.communication) for number, slave in self.slaves.items()}

    def _buffered(self, turn: int) -> int:
        """Rows that wait at the master."""
        return sum(group.come(turn) - sum(group.sent) for group in self.groups)

    def _end_epoch(self, now: float, epoch: int) -> None:
        if now > self.measure_from:
            self.active.append(len(self.balancer.active))
        if epoch % self._every == 0 and self._balancing:
            self._reorganize(now)

    def _distribute(self, slots: list[int], turn: int, now: float) -> None:
        """The master serves one slave after the other; each waits for its turn."""
        served = now
        for number in slots:
            slave = self.slaves[number]
            self._process(slave, now)
            slave.occupancies.append(slave.waiting / self._machine.buffer)
            rows = 0
            for group in self.balancer.groups_of(number):
                for stream in (0, 1):
                    chunk = self.groups[group].due(group, stream, turn)
                    if chunk is not None:
                        slave.queue.append(chunk)
                        rows += chunk.end - chunk.begin
            came = max(now, slave.free_at)
            served = max(served, came) + self._machine.message + rows * self._machine.row_bytes * self._machine.byte
            slave.communication += served - came
            slave.free_at = served

    def _process(self, slave: Slave, until: float) -> None:
        """Join what is in the buffer, as far as time allows."""
        while slave.queue and slave.free_at < until:
            chunk = slave.queue.popleft()
            group, rows = self.groups[chunk.group], chunk.end - chunk.begin
            comparisons = group.join(chunk)
            cost = (comparisons * self._machine.comparison + rows * self._machine.row) / slave.speed
            self._work[chunk.group] += cost * slave.speed
            if slave.free_at + cost > self.measure_from:
                matches = group.matches[chunk.stream][chunk.begin : chunk.end]
                done = slave.free_at + cost * np.arange(1, rows + 1) / rows
                self.delay += float(matches @ (done - group.times[chunk.stream][chunk.begin : chunk.end]))
                self.results += int(matches.sum())
            slave.free_at += cost
            slave.cpu += cost

    def _reorganize(self, now: float) -> None:
        epoch = self._every * self._distribution
        occupancy, busy = {}, {}
        for number in self.balancer.active:
            slave = self.slaves[number]
            occupancy[number] = float(np.mean(slave.occupancies)) if slave.occupancies else 0.0
            busy[number] = (slave.cpu + slave.communication - slave.reported) / epoch
            slave.occupancies.clear()
            slave.reported = slave.cpu + slave.communication
        for move in self.balancer.reorganize(occupancy, busy, self._work):
            self._move(move, now)
        self._work[:] = 0

    def _move(self, move: Move, now: float) -> None:
        """Send a group's window, and what of it is still to be joined."""
        giver, taker = self.slaves[move.giver], self.slaves[move.taker]
        going = [chunk for chunk in giver.queue if chunk.group == move.group]
        giver.queue = deque(chunk for chunk in giver.queue if chunk.group != move.group)
        rows = self.groups[move.group].rows + sum(chunk.end - chunk.begin for chunk in going)
        cost = self._machine.message + rows * self._machine.row_bytes * self._machine.byte
        for slave in (giver, taker):
            slave.free_at = max(slave.free_at, now) + cost
            slave.communication += cost
        taker.queue.extend(going)
        self.moves += 1


Part: TypeAlias = tuple[Float64, Uint64, Int64]
"""Times, hashes and numbers of partners of one stream's rows."""


def by_group(times: list[Float64], keys: list[Int64], groups: int, window: float) -> list[tuple[Part, Part]]:
    """The rows of both streams by partition-group, each with the number of its partners."""
    matches = partners(times, keys, window)
    parts: list[list[Part]] = []
    for stream in (0, 1):
        hashes = np.empty(len(keys[stream]), np.uint64)
        hash_words(keys[stream], hashes)
        numbers = ((hashes >> _GROUP_SHIFT) % np.uint64(groups)).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")
        rows = np.split(order, np.cumsum(np.bincount(numbers, minlength=groups))[:-1])
        parts.append([(times[stream][each], hashes[each], matches[stream][each]) for each in rows])
    return list(zip(*parts, strict=True))


def make_groups(parts: list[tuple[Part, Part]], window: float, theta: int | None) -> list[Group]:
    """Partition-groups of which nothing has come yet."""
    return [
        Group([left[0], right[0]], [left[1], right[1]], [left[2], right[2]], window, theta) for left, right in parts
    ]
