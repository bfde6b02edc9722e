"""The inputs of MINER's experiments: chains, stars on one attribute, snowflakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from experiments.papers import DINER, MINER
from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.spec import Output
from watersmeet.sources.generators import zipf
from watersmeet.sources.schedules import Schedule, fragments, poisson

_NAMES = {2: ("r2", "r3"), 3: ("r1", "r2", "r3"), 4: ("r1", "r2", "r3", "r4")}
_COLUMNS = {"r1": ("a1",), "r2": ("a1", "a2"), "r3": ("a2", "a3"), "r4": ("a3",)}
_CHAIN = ("r1.a1 = r2.a1", "r2.a2 = r3.a2", "r3.a3 = r4.a3")


def chain_tables(scale: float, seed: int, inputs: int) -> dict[str, pa.Table]:
    """Two inputs of Zipf keys, and one or two of unique ones; a scale makes the domain smaller, too."""
    rows, domain = max(20, round(scale * MINER.tuples)), max(20, round(scale * MINER.domain))
    tables = {}
    for name in _NAMES[inputs]:
        columns = {}
        for number, column in enumerate(_COLUMNS[name]):
            key = 10 * seed + 2 * int(name[1]) + number
            if name in ("r1", "r4"):
                columns[column] = np.random.default_rng([key, 7]).permutation(domain)
            else:
                columns[column] = zipf(rows, domain, MINER.skew, key) - 1
        tables[name] = pa.table(columns)
    return tables


def star_tables(scale: float, seed: int, inputs: int) -> dict[str, pa.Table]:
    """The same inputs, joined on one attribute."""
    wanted = {"r1": "a1", "r2": "a2", "r3": "a2", "r4": "a3"}
    tables = chain_tables(scale, seed, inputs)
    return {name: table.select([wanted[name]]).rename_columns(["a"]) for name, table in tables.items()}


def chain_spec(inputs: int) -> MultiSpec:
    """The paper's chain, or the part of it that two or three inputs have."""
    names = _NAMES[inputs]
    on = [each for each in _CHAIN if all(end.split(".")[0].strip() in names for end in each.split("="))]
    schemas = {name: pa.schema([(column, pa.int64()) for column in _COLUMNS[name]]) for name in names}
    return MultiSpec.of(schemas, on, Output.COUNTS)


def star_spec(inputs: int) -> MultiSpec:
    """All inputs on one attribute."""
    names = _NAMES[inputs]
    on = [f"{a}.a = {b}.a" for a, b in pairwise(names)]
    return MultiSpec.of(dict.fromkeys(names, pa.schema({"a": pa.int64()})), on, Output.COUNTS)


def arriving(tables: Mapping[str, pa.Table], seed: int, delay: float = 0.0) -> Schedule:
    """All inputs at one rate; with a delay, in ten fragments with a silence after each, as a part of its length.

    Inputs of keys are smaller and so end sooner.
    """
    times = [
        fragments(table.num_rows, DINER.fragments, DINER.gap, delay, seed=1000 * seed + number)
        if delay
        else poisson(table.num_rows, 1 / DINER.gap, 1000 * seed + number)
        for number, table in enumerate(tables.values())
    ]
    return Schedule(list(tables.values()), times)


def _counts(column: pa.ChunkedArray, domain: int) -> npt.NDArray[np.float64]:
    return np.bincount(column.to_numpy(), minlength=domain).astype(np.float64)


def chain_total(tables: Mapping[str, pa.Table]) -> int:
    """All results: every row of the middle inputs has one partner at most among the keys."""
    return int(_counts(tables["r2"]["a2"], MINER.domain) @ _counts(tables["r3"]["a2"], MINER.domain))


def star_total(tables: Mapping[str, pa.Table]) -> int:
    """All results of a join on one attribute."""
    product = np.ones(MINER.domain)
    for table in tables.values():
        product *= _counts(table["a"], MINER.domain)
    return int(product.sum())


def possible(tables: Mapping[str, pa.Table], memory_rows: int) -> float:
    """About the share of a chain's results that the best choice of rows would give online.

    It is an estimate, of a memory that is full from the beginning and of which all inputs have equal parts to the end.
    A pair of rows comes online only if the first to arrive is still in memory when the second does. Of a value that is
    n times in each middle input, of which k are in memory, that is about 1 - (1 - k/n)^2 of all pairs; so memory is
    best used by taking from the most frequent values until all have equally many rows outside. And those rows find
    the keys that they refer to only if these are in memory: at best the most frequent ones.
    """
    keys = [name for name in tables if name in ("r1", "r4")]
    share = memory_rows // len(tables)
    kept_keys = {name: min(share, tables[name].num_rows) for name in keys}
    rows = (memory_rows - sum(kept_keys.values())) // 2
    counts = np.sqrt(_counts(tables["r2"]["a2"], MINER.domain) * _counts(tables["r3"]["a2"], MINER.domain))
    found = float((counts**2 - np.minimum(counts, _level(counts, rows)) ** 2).sum() / (counts**2).sum())
    for name, middle, column in (("r1", "r2", "a1"), ("r4", "r3", "a3")):
        if name in tables:
            references = np.sort(_counts(tables[middle][column], MINER.domain))[::-1]
            found *= float(references[: kept_keys[name]].sum() / references.sum())
    return found


def _level(counts: npt.NDArray[np.float64], rows: int) -> float:
    """How many rows of each value stay outside if so many are taken, always from the most frequent."""
    falling = np.sort(counts)[::-1]
    taken = np.cumsum(falling) - falling * np.arange(1, len(falling) + 1)
    values = int(np.searchsorted(taken, rows, side="right"))
    return max(0.0, float((falling[:values].sum() - rows) / values))


# -- snowflakes --------------------------------------------------------------------------------------------------------


def snowflake_tables(scale: float, seed: int, inputs: int) -> dict[str, pa.Table]:
    """The chain of four, whose third input has one more reference for each input more, to an input of keys."""
    tables = chain_tables(scale, seed, 4)
    rows, domain = tables["r3"].num_rows, tables["r1"].num_rows
    for number in range(5, inputs + 1):
        key = 10 * seed + 2 * number
        references = pa.array(zipf(rows, domain, MINER.skew, key) - 1)
        tables["r3"] = tables["r3"].append_column(f"a{number - 1}", references)
        keys = np.random.default_rng([key, 7]).permutation(domain)
        tables[f"r{number}"] = pa.table({f"a{number - 1}": keys})
    return tables


def snowflake_spec(inputs: int) -> MultiSpec:
    """As in figure 6 of the paper: one input is joined on more than two attributes."""
    more = range(5, inputs + 1)
    columns = {**_COLUMNS, "r3": ("a2", "a3", *(f"a{number - 1}" for number in more))}
    columns |= {f"r{number}": (f"a{number - 1}",) for number in more}
    on = [*_CHAIN, *(f"r3.a{number - 1} = r{number}.a{number - 1}" for number in more)]
    schemas = {name: pa.schema([(column, pa.int64()) for column in mine]) for name, mine in columns.items()}
    return MultiSpec.of(schemas, on, Output.COUNTS)


@dataclass(frozen=True)
class Shape:
    """How inputs are joined: their rows, the conditions, and how many results there are."""

    tables: Callable[[float, int, int], dict[str, pa.Table]]
    spec: Callable[[int], MultiSpec]
    total: Callable[[Mapping[str, pa.Table]], int]


SHAPES = {
    "chain": Shape(chain_tables, chain_spec, chain_total),
    "star": Shape(star_tables, star_spec, star_total),
    "snowflake": Shape(snowflake_tables, snowflake_spec, chain_total),
}
"""By name, as cells have it. References of a snowflake find one key each: it has as many results as the chain."""
