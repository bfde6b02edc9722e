"""People, auctions and bids of an online auction, in the proportions of the Nexmark benchmark [1]_.

Of 50 events one is a person, three are auctions and 46 are bids. Auctions are opened by people who came before them,
and bids go to auctions that came before them, most of them to the newest few.

.. [1] P. Tucker, K. Tufte, V. Papadimos and D. Maier. NEXMark: a benchmark for queries over data streams. 2002.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.core.arrays import Int64
from watersmeet.core.errors import SpecError

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
"""Of each 50 events."""
_PERIOD = PEOPLE + AUCTIONS + BIDS
_FIRST_ID = 1000
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")


@dataclass(frozen=True, slots=True)
class Nexmark:
    """The three streams, each in the order of its time `ts` (timestamp in ms)."""

    people: pa.Table
    auctions: pa.Table
    bids: pa.Table


def nexmark(events: int, rate: float = 10_000.0, seed: int = 0, hot: float = 0.5) -> Nexmark:
    """So many events, `rate` of them a second; the share `hot` of bids and auctions goes to the newest few.

    >>> made = nexmark(5000)
    >>> made.people.num_rows, made.auctions.num_rows, made.bids.num_rows
    (100, 300, 4600)
    """
    if events < 0 or not rate > 0 or not 0 <= hot <= 1:
        raise SpecError("nexmark makes 0 events or more, at a rate above 0, with a hot share of 0 to 1")
    random = np.random.default_rng([seed, 0xA0C7])
    number = np.arange(events)
    period, place = number // _PERIOD, number % _PERIOD
    time = (number * 1000.0 / rate).astype(np.int64)
    kinds = [place < PEOPLE, (place >= PEOPLE) & (place < PEOPLE + AUCTIONS), place >= PEOPLE + AUCTIONS]
    people_before = [period[kind] * PEOPLE + np.minimum(place[kind], PEOPLE) for kind in kinds]
    auctions_before = period[kinds[2]] * AUCTIONS + AUCTIONS
    people = _people(random, _stamps(time[kinds[0]]))
    auctions = _auctions(random, time[kinds[1]], _choose(random, people_before[1], hot, 4))
    bids = _bids(
        random,
        _stamps(time[kinds[2]]),
        _choose(random, auctions_before, hot, 8),
        _choose(random, people_before[2], hot, 16),
    )
    return Nexmark(people, auctions, bids)


def _stamps(milliseconds: Int64) -> pa.Array:
    return pa.array(milliseconds).cast(pa.timestamp("ms"))


def _choose(random: np.random.Generator, before: Int64, hot: float, newest: int) -> Int64:
    """One of those that came before: often one of the newest, else any."""
    reach = np.where(random.random(len(before)) < hot, np.minimum(before, newest), before)
    back = (random.random(len(before)) * reach).astype(np.int64)
    chosen: Int64 = _FIRST_ID + np.maximum(before - 1 - back, 0)
    return chosen


def _people(random: np.random.Generator, stamps: pa.Array) -> pa.Table:
    count = len(stamps)
    names = np.array(_NAMES)[random.integers(len(_NAMES), size=count)]
    return pa.table(
        {
            "person": pa.array(np.arange(_FIRST_ID, _FIRST_ID + count)),
            "name": pa.array(names.tolist(), pa.string()),
            "city": pa.array([_CITIES[i] for i in random.integers(len(_CITIES), size=count)], pa.string()),
            "state": pa.array([_STATES[i] for i in random.integers(len(_STATES), size=count)], pa.string()),
            "ts": stamps,
        }
    )


def _auctions(random: np.random.Generator, time: Int64, sellers: Int64) -> pa.Table:
    count = len(time)
    start = np.rint(10 ** (random.random(count) * 6)).astype(np.int64)
    return pa.table(
        {
            "auction": pa.array(np.arange(_FIRST_ID, _FIRST_ID + count)),
            "seller": pa.array(sellers),
            "category": pa.array(10 + random.integers(5, size=count)),
            "initial": pa.array(start),
            "reserve": pa.array(start + np.rint(10 ** (random.random(count) * 6)).astype(np.int64)),
            "expires": _stamps(time + 1 + random.integers(0, 20_000, count)),
            "ts": _stamps(time),
        }
    )


def _bids(random: np.random.Generator, stamps: pa.Array, auctions: Int64, bidders: Int64) -> pa.Table:
    price = np.rint(10 ** (random.random(len(stamps)) * 6)).astype(np.int64)
    return pa.table(
        {"auction": pa.array(auctions), "bidder": pa.array(bidders), "price": pa.array(price), "ts": stamps}
    )
