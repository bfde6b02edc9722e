"""DINER's contests: joins over the same inputs, and how their results compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from experiments import diner_streams as streams
from experiments import ours
from experiments.model import Cell, Claim, Measured, Panel, Results, Verdict, always
from experiments.ours import OURS
from experiments.papers import DINER
from experiments.simulated import close_pairs, equal_pairs, measured, run
from watersmeet.core.arrays import Int64
from watersmeet.core.spec import band

OF_THE_PAPER = ("RPJ", "HMJ")
"""Whom most of the paper's figures compare DINER with."""
RIVALS = (*OF_THE_PAPER, "XJoin")
JOINS = ("DINER", *RIVALS)
ALL = (*JOINS, OURS)
_EQUAL = 0.995
"""So close to each other is as good as equal."""


def contest(
    keys: tuple[Int64, Int64],
    join: str,
    seed: int,
    memory: float,
    delay: float = 0.0,
    width: int | None = None,
    scale: float = 1.0,
    outer_blocks: int = DINER.max_outer_blocks,
    gap: float = DINER.gap,
    whole: bool = False,
    partitions: int = DINER.partitions,
) -> Measured:
    """One join over these keys; memory is a share of all rows, or their number; `whole` is with the clean-up."""
    schedule = streams.arriving(keys, seed, delay, gap)
    rows = round(memory * schedule.total_rows) if memory <= 1 else round(memory)
    machine = streams.machine(rows, schedule.end_time, scale, partitions)
    if join == OURS:
        contestant = ours.contestant(machine)
    else:
        contestant = streams.contestant(join, machine, scale, outer_blocks)
    if width is None:
        return measured(run(contestant, schedule, machine, online_only=not whole), equal_pairs(schedule))
    return measured(run(contestant, schedule, machine, on=band("key", width)), close_pairs(schedule, width))


def real(
    scale: float,
    seed: int,
    join: str,
    data: str,
    memory: float = DINER.memory_share,
    delay: float = 0.0,
    width: int | None = None,
    gap: float = DINER.gap,
    whole: bool = False,
) -> Measured:
    """Real data, all of them at any scale: they are small."""
    return contest(streams.real_keys(data), join, seed, memory, delay, width, gap=gap, whole=whole)


def zipf(scale: float, seed: int, join: str, skew: float, gap: float = DINER.gap, whole: bool = False) -> Measured:
    """Zipf on [1, 999]."""
    keys = streams.zipf_keys(streams.tuples(scale), skew, seed)
    return contest(keys, join, seed, DINER.memory_share, scale=scale, gap=gap, whole=whole)


def apart(scale: float, seed: int, join: str, mean: float = 0.0, variance: float = 0.0) -> Measured:
    """Two normal distributions."""
    keys = streams.normal_keys(streams.tuples(scale), seed, mean, variance)
    return contest(keys, join, seed, DINER.memory_share, scale=scale)


def intervals(scale: float, seed: int, join: str, count: int) -> Measured:
    """Partly sorted inputs."""
    keys = streams.interval_keys(streams.tuples(scale), count, seed)
    return contest(keys, join, seed, DINER.memory_share, scale=scale)


def shifting(scale: float, seed: int, join: str, shift: float, whole: bool = False) -> Measured:
    """A mean that moves."""
    keys = streams.shifting_keys(streams.tuples(scale), shift, seed)
    return contest(keys, join, seed, DINER.memory_share, scale=scale, whole=whole)


def delayed(
    scale: float,
    seed: int,
    join: str,
    delay: float,
    outer_blocks: int = DINER.max_outer_blocks,
    gap: float = DINER.gap,
    whole: bool = False,
    partitions: int = DINER.partitions,
) -> Measured:
    """Zipf of skew 1, with silences."""
    keys = streams.zipf_keys(streams.tuples(scale), 1.0, seed)
    return contest(
        keys, join, seed, DINER.memory_share, delay, scale=scale, outer_blocks=outer_blocks, gap=gap, whole=whole,
        partitions=partitions,
    )  # fmt: skip


def unequal(scale: float, seed: int, join: str, other: float) -> Measured:
    """Zipf of skew 1; one input has a part of the other's rows. Memory stays a twentieth of two whole inputs."""
    left, right = streams.zipf_keys(streams.tuples(scale), 1.0, seed)
    memory = 2 * DINER.memory_share * len(left)
    return contest((left, right[: round(other * len(right))]), join, seed, max(2.0, memory), scale=scale)


# -- what is said of them ----------------------------------------------------------------------------------------------


def cells(
    points: Sequence[float | str], make: Callable[[str, float | str], Cell], joins: Sequence[str] = JOINS
) -> dict[str, Cell]:
    """Every join at every point of a figure's axis."""
    return {f"{join}, {point}": make(join, point) for point in points for join in joins}


def to_the_end(point: float | str, cell: Cell) -> dict[str, Cell]:
    """Every join at one point, with its clean-up."""
    return {f"{join} to the end, {point}": Cell(cell.measure, join=join, whole=True, **cell.arguments) for join in ALL}


def of_ours(
    points: Sequence[float | str], whole: Sequence[float | str] = (), rivals: Sequence[str] = JOINS
) -> list[Claim]:
    """What we claim of our own join at these points; of clean-ups, at those of them where joins ran to the end."""

    def cell_of(before: str, point: float | str) -> Callable[[str], str]:
        return lambda join: f"{join}{before}, {point}"

    ends = {str(point): cell_of(" to the end", point) for point in whole} if whole else None
    return ours.claims({str(point): cell_of("", point) for point in points}, rivals, ends)


def leads(results: Results, points: Sequence[float | str], rivals: Sequence[str] = RIVALS) -> dict[str, float]:
    """DINER's results online to those of the best rival, at each point."""
    return {
        str(point): min(results.ratio(f"DINER, {point}", f"{join}, {point}", "online").median for join in rivals)
        for point in points
    }


def told(ratios: Mapping[str, float]) -> str:
    """Ratios in a row."""
    return ", ".join(f"{ratio:.2f}x at {point}" for point, ratio in ratios.items())


def ahead(points: Sequence[float | str]) -> Callable[[Results], Verdict]:
    """DINER has at least as many results as RPJ and HMJ, at each point; how it stands to XJoin is told, too."""

    def check(results: Results) -> Verdict:
        return ahead_of(leads(results, points, OF_THE_PAPER), leads(results, points, ("XJoin",)))

    return check


def ahead_of(rivals: Mapping[str, float], xjoin: Mapping[str, float]) -> Verdict:
    """From DINER's leads over the better of RPJ and HMJ, and those over XJoin."""
    verdict = always("DINER ahead", {point: lead >= _EQUAL for point, lead in rivals.items()})
    return Verdict(
        verdict.holds,
        f"{verdict.measured}; to the better of {' and '.join(OF_THE_PAPER)}: {told(rivals)}; to XJoin, which the paper "
        f"leaves out here: {told(xjoin)}",
    )


def up_to(points: Sequence[float | str], rival: str, factor: float) -> Callable[[Results], Verdict]:
    """Somewhere DINER has about so many times as many results as a rival: nine tenths of that will do."""

    def check(results: Results) -> Verdict:
        found = {str(point): results.ratio(f"DINER, {point}", f"{rival}, {point}", "online").median for point in points}
        return Verdict(max(found.values()) >= 0.9 * factor, f"to {rival}: {told(found)}")

    return check


def rises(values: Iterable[float]) -> bool:
    """Whether the last is larger than the first, and none on the way is smaller than one before it.

    >>> rises([1.0, 1.1, 1.1, 1.3]), rises([1.0, 1.2, 1.1, 1.3]), rises([1.0, 1.0])
    (True, False, False)
    """
    first, *_, last = sequence = list(values)
    return last > first and all(later >= _EQUAL * before for before, later in combinations(sequence, 2))


def grows(points: Sequence[float | str], rivals: Sequence[str] = RIVALS) -> Callable[[Results], Verdict]:
    """DINER's lead grows from each point to the next: one that falls in between does not grow with what is varied.

    Of figures 11 and 12 the paper says (section 5.1) that DINER gains the more, the further the distributions are
    apart; of figure 15 (5.2), that it does the faster they change: both speak of all points.
    """

    def check(results: Results) -> Verdict:
        found = leads(results, points, rivals)
        return Verdict(rises(found.values()), f"to the best of {', '.join(rivals)}: {told(found)}")

    return check


def shares_of_diner(
    title: str, x: str, points: Sequence[float], rivals: Sequence[str] = RIVALS
) -> Callable[[Results], Sequence[Panel]]:
    """The rivals' results as a share of DINER's, along an axis: what the paper plots."""

    def panels(results: Results) -> Sequence[Panel]:
        diner = [f"DINER, {point}" for point in points]
        lines = {
            join: results.sweep(points, [f"{join}, {point}" for point in points], "online", over=diner)
            for join in rivals
        }
        return [Panel(title, x, "results online, DINER's being 1", lines)]

    return panels
