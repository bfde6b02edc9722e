"""DINER's figures 16 to 19: inputs that fall silent, inputs of different sizes, the memory of the reactive phase."""

from __future__ import annotations

from collections.abc import Sequence

from experiments import diner_runs as runs
from experiments.diner_runs import ALL
from experiments.diner_streams import GIVING_WAY, new_arrivals
from experiments.model import Cell, Claim, Experiment, Panel, Results, Verdict
from experiments.papers import DINER

DELAYS = (0.05, 0.10, 0.20, 0.40)
SIZES = (1.0, 0.5, 0.25, 0.1)
OUTER_BLOCKS = (9, 19, 29, 39, 49, 59)
STOCK = "calm stock"
_PERCENT = tuple(f"delay {delay:.0%}" for delay in DELAYS)
_SIZES = tuple(f"{size:.0%} of the rows" for size in SIZES)


def _buffer_stays_small(results: Results) -> Verdict:
    limit = 2 * new_arrivals(results.scale)
    most = max(float(results.each(f"DINER, {point}", "buffer").max()) for point in _PERCENT)
    return Verdict(most <= limit, f"at most {most:,.0f} rows, where twice MaxNewArr is {limit:,}")


def _rivals_buffer_grows(results: Results) -> Verdict:
    limit = new_arrivals(results.scale)
    most = max(results.median(f"RPJ, {point}", "buffer") for point in _PERCENT)
    return Verdict(most >= 3 * limit, f"RPJ's reaches {most:,.0f} rows, where MaxNewArr is {limit:,}")


def _rivals_overflow(results: Results) -> Verdict:
    """Whether RPJ and HMJ let more rows wait somewhere than memory holds."""
    told, overflowing = [], set()
    for join in ("DINER", *runs.OF_THE_PAPER):
        waited = {point: float(results.each(f"{join}, {point}", "waited").max()) for point in _PERCENT}
        found = [point for point in _PERCENT if results.median(f"{join}, {point}", "overflow") < 1]
        overflowing |= {join} if found else set()
        said = f"overflows at {', '.join(found)}" if found else "never overflows"
        told.append(f"{join} {said}, {max(waited.values()):,.0f} rows wait at most")
    return Verdict(overflowing == set(runs.OF_THE_PAPER), "; ".join(told))


_GIVING_WAY = tuple(f"{join}{GIVING_WAY}" for join in runs.OF_THE_PAPER)


def _at(join: str, partitions: int, delay: float) -> str:
    return f"{join}, {partitions} partitions, delay {delay:.0%}"


def _ahead_of_giving_way(results: Results) -> Verdict:
    """DINER's results to the better of RPJ and HMJ that give way, by the number of their partitions."""
    leads = {
        f"{partitions} partitions, delay {delay:.0%}": min(
            results.ratio(f"DINER, delay {delay:.0%}", _at(join, partitions, delay), "online").median
            for join in _GIVING_WAY
        )
        for delay in _SWEPT
        for partitions in DINER.partitionings
    }
    return Verdict(min(leads.values()) >= 1, f"to the better of RPJ and HMJ: {runs.told(leads)}")


def _lead_of_the_paper(results: Results) -> Verdict:
    leads = {
        f"{partitions} partitions, delay {delay:.0%}": results.ratio(
            f"DINER, delay {delay:.0%}", _at(_GIVING_WAY[0], partitions, delay), "online"
        ).median
        for delay in _SWEPT
        for partitions in DINER.partitionings
    }
    return Verdict(max(leads.values()) >= 0.9 * 1.83, f"to RPJ that gives way: {runs.told(leads)}")


_SWEPT = (0.10, 0.20)


def _none_overflow(results: Results) -> Verdict:
    waited = {
        join: max(
            float(results.each(_at(join, partitions, delay), "waited").max())
            for partitions in DINER.partitionings
            for delay in _SWEPT
        )
        for join in _GIVING_WAY
    }
    limit = 2 * DINER.memory_share * DINER.tuples * results.scale
    told = ", ".join(f"{join} {rows:,.0f} rows" for join, rows in waited.items())
    return Verdict(max(waited.values()) <= limit, f"at most {told}, where memory holds {limit:,.0f}")


def _panels_of_giving_way(results: Results) -> Sequence[Panel]:
    return [
        Panel(
            f"delay {delay:.0%}",
            "partitions",
            "results online, DINER's being 1",
            {
                join: results.sweep(
                    DINER.partitionings,
                    [_at(join, partitions, delay) for partitions in DINER.partitionings],
                    "online",
                    over=[f"DINER, delay {delay:.0%}"] * len(DINER.partitionings),
                )
                for join in _GIVING_WAY
            },
        )
        for delay in _SWEPT
    ]


def _hardly_matters(results: Results) -> Verdict:
    online = [results.median(f"{blocks} blocks", "online") for blocks in OUTER_BLOCKS]
    spread = max(online) / min(online) - 1
    return Verdict(
        spread <= 0.05, f"results online differ by {spread:.1%} from {OUTER_BLOCKS[0]} to {OUTER_BLOCKS[-1]}"
    )


def _panels_of_delays(results: Results) -> Sequence[Panel]:
    xs = [100 * delay for delay in DELAYS]
    diner = [f"DINER, {point}" for point in _PERCENT]
    shares = {
        join: results.sweep(xs, [f"{join}, {point}" for point in _PERCENT], "online", over=diner) for join in ALL[1:]
    }
    buffers = {join: results.sweep(xs, [f"{join}, {point}" for point in _PERCENT], "buffer") for join in ALL}
    x = "delay, % of a fragment's time"
    return [
        Panel("results", x, "results online, DINER's being 1", shares),
        Panel("input buffer", x, "rows that waited, at most", buffers),
    ]


def _panels_of_sizes(results: Results) -> Sequence[Panel]:
    diner = [f"DINER, {point}" for point in _SIZES]
    lines = {
        join: results.sweep([100 * s for s in SIZES], [f"{join}, {p}" for p in _SIZES], "online", over=diner)
        for join in ALL[1:]
    }
    return [Panel("Zipf of skew 1", "the smaller input, % of the larger", "results online, DINER's being 1", lines)]


def _panels_of_outer(results: Results) -> Sequence[Panel]:
    line = results.sweep(OUTER_BLOCKS, [f"{blocks} blocks" for blocks in OUTER_BLOCKS], "online")
    return [Panel("DINER, delay 20%", "MaxOuterMem, blocks", "results online", {"DINER": line})]


# -- the mean gap, of which the paper can be read in two ways ----------------------------------------------------------

GAPS = (DINER.gap, DINER.other_gap)
_SETTINGS = {
    "Zipf": Cell(runs.zipf, skew=1),
    "calm stock": Cell(runs.real, data="calm stock"),
    "weather": Cell(runs.real, data="weather"),
    "Zipf, delay 20%": Cell(runs.delayed, delay=0.2),
}


def _with_gap(setting: str, gap: float) -> str:
    return f"{setting}, {1000 * gap:g} ms"


def _cell(setting: str, join: str, gap: float) -> Cell:
    """With the usual gap it is the cell of another figure, and run once."""
    of = _SETTINGS[setting]
    more = {} if gap == DINER.gap else {"gap": gap}
    return Cell(of.measure, join=join, **of.arguments, **more)


def _panels_of_gaps(results: Results) -> Sequence[Panel]:
    xs = [1000 * gap for gap in GAPS]
    return [
        Panel(
            setting,
            "mean gap, ms",
            "share of all results, online",
            {join: results.sweep(xs, [f"{join}, {_with_gap(setting, gap)}" for gap in GAPS], "share") for join in ALL},
        )
        for setting in _SETTINGS
    ]


_GAP_POINTS = tuple(_with_gap(setting, gap) for setting in _SETTINGS for gap in GAPS)


def _all_small(results: Results) -> Verdict:
    limit = 2 * new_arrivals(results.scale)
    points = [_with_gap("Zipf, delay 20%", gap) for gap in GAPS]
    most = {point: float(results.each(f"DINER, {point}", "buffer").max()) for point in points}
    told = ", ".join(f"{rows:,.0f} rows at {point}" for point, rows in most.items())
    return Verdict(max(most.values()) <= limit, f"at most {told}, where twice MaxNewArr is {limit:,}")


EXPERIMENTS = [
    Experiment(
        "diner-16",
        "figure 16, table 3",
        "DINER",
        "Results and input buffers when inputs fall silent",
        {
            f"{join}, {point}": Cell(runs.delayed, join=join, delay=delay)
            for delay, point in zip(DELAYS, _PERCENT, strict=True)
            for join in ALL
        },
        [
            Claim("ahead", "DINER is ahead of RPJ and HMJ at every delay.", "ahead", runs.ahead(_PERCENT)),
            Claim("up-to-rpj", "DINER has up to 1.83 times as many results as RPJ.", "up to 1.83x",
                  runs.up_to(_PERCENT, "RPJ", 1.83)),
            Claim("up-to-hmj", "DINER has up to 8.65 times as many results as HMJ.", "up to 8.65x",
                  runs.up_to(_PERCENT, "HMJ", 8.65)),
            Claim("small-buffer", "DINER's input buffer stays near MaxNewArr: within twice that.", "near 1,000",
                  _buffer_stays_small),
            Claim("large-buffer", "RPJ's input buffer grows to several times MaxNewArr.", "up to 40,000",
                  _rivals_buffer_grows),
            Claim("overflow", "RPJ and HMJ let more rows wait than memory holds, and DINER does not.",
                  "buffers of 40,000 rows, memory of 10,000", _rivals_overflow),
            *runs.of_ours(_PERCENT),
        ],
        _panels_of_delays,
        key=True,
    ),
    Experiment(
        "diner-16-giving-way",
        "figure 16, table 3, otherwise",
        "DINER",
        "The same, if RPJ and HMJ end reactive work as DINER does",
        {f"DINER, delay {delay:.0%}": Cell(runs.delayed, join="DINER", delay=delay) for delay in _SWEPT}
        | {
            _at(join, partitions, delay): Cell(runs.delayed, join=join, delay=delay)
            if partitions == DINER.partitions
            else Cell(runs.delayed, join=join, delay=delay, partitions=partitions)
            for delay in _SWEPT
            for partitions in DINER.partitionings
            for join in _GIVING_WAY
        },
        [
            Claim("fits", "Then nobody lets more rows wait than memory holds.", "(not of the paper)", _none_overflow),
            Claim("ahead", "DINER is ahead of both, however many partitions they have.", "ahead",
                  _ahead_of_giving_way),
            Claim("up-to-rpj", "DINER has up to 1.83 times as many results as RPJ.", "up to 1.83x",
                  _lead_of_the_paper),
        ],
        _panels_of_giving_way,
        note=(
            "The paper gives all joins the same memory and counts the input buffer as a part of it, which RPJ and HMJ "
            "as their own papers describe them do not keep to (diner-16). Here they give way when MaxNewArr rows wait. "
            "It does not say how many partitions they have: that is swept."
        ),
    ),
    Experiment(
        "diner-17",
        "figure 17",
        "DINER",
        "Results when trades fall silent",
        {
            f"{join}, {point}": Cell(runs.real, join=join, data=STOCK, delay=delay)
            for delay, point in zip(DELAYS, _PERCENT, strict=True)
            for join in ALL
        }
        | runs.to_the_end(_PERCENT[2], Cell(runs.real, data=STOCK, delay=DELAYS[2])),
        [
            Claim("ahead", "DINER is ahead of RPJ and HMJ at every delay.", "ahead", runs.ahead(_PERCENT)),
            *runs.of_ours(_PERCENT, _PERCENT[2:3]),
        ],
        _panels_of_delays,
    ),
    Experiment(
        "diner-18",
        "figure 18",
        "DINER",
        "Results when one input is smaller",
        {
            f"{join}, {point}": Cell(runs.unequal, join=join, other=size)
            for size, point in zip(SIZES, _SIZES, strict=True)
            for join in ALL
        },
        [
            Claim("ahead", "DINER is ahead of RPJ and HMJ at every size.", "ahead", runs.ahead(_SIZES)),
            Claim("grows", "DINER's lead over RPJ and HMJ grows as one input shrinks.", "superior as one gets smaller",
                  runs.grows(_SIZES, runs.OF_THE_PAPER)),
            *runs.of_ours(_SIZES),
        ],
        _panels_of_sizes,
    ),
    Experiment(
        "diner-19",
        "figure 19",
        "DINER",
        "How much memory the reactive phase takes",
        {
            f"{blocks} blocks": Cell(runs.delayed, join="DINER", delay=0.2, outer_blocks=blocks)
            if blocks != DINER.max_outer_blocks
            else Cell(runs.delayed, join="DINER", delay=0.2)
            for blocks in OUTER_BLOCKS
        },
        [
            Claim("hardly-matters", "MaxOuterMem from 9 to 59 blocks hardly matters (5% at most).",
                  "very marginally affected", _hardly_matters)
        ],
        _panels_of_outer,
    ),
    Experiment(
        "diner-gap",
        "section 5, parameter settings",
        "DINER",
        "Results by what the rate of arrivals is taken to mean",
        {
            f"{join}, {_with_gap(setting, gap)}": _cell(setting, join, gap)
            for setting in _SETTINGS
            for gap in GAPS
            for join in ALL
        },
        [
            Claim("ahead", "DINER is ahead of RPJ and HMJ with either gap.", "ahead", runs.ahead(_GAP_POINTS)),
            Claim("small-buffer", "DINER's input buffer stays within twice MaxNewArr with either gap.", "near 1,000",
                  _all_small),
            *runs.of_ours(_GAP_POINTS),
        ],
        _panels_of_gaps,
        note=(
            "The paper's rate of 0.1 has no unit. The mean gap between two rows of an input is 1 ms in all other "
            "tables (the periods of figure 15 and the buffers of table 3 ask for it); it would be 10 ms if the rate "
            "were by the millisecond."
        ),
    ),
]  # fmt: skip
