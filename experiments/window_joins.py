"""Sliding windows larger than memory: EWJ, RPWJ and AH-EWJ under bursty streams (thesis, chapters 3 to 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from experiments.model import Cell, Claim, Experiment, Panel, Results, Verdict, always
from experiments.ours import NOT_OF_THE_PAPER, OURS
from experiments.papers import WINDOWS
from experiments.window_runs import run

PAPER = "Exact window joins"
BOTH = ("ah_ewj", "rpwj")
_KEEPS_UP = 0.02
"""Of all rows, at most, wait at the end."""
_FITTED = (
    f"The thesis does not tell the CPU's costs. It is taken to be {WINDOWS.faster:g} times as fast as the MJoin "
    "paper's of 1 GHz, which was chosen so that at full scale, in four hours as in the thesis, about two million rows "
    "wait at 300 rows a second: that is no finding. "
    "What is found is with which other speeds it holds, what happens beside it, and what AH-EWJ and RPWJ do with the "
    "same CPU."
)

_SCALE = (
    "At scale 1 rates, windows, memory and keys are the thesis's, and a run lasts three windows and a half. A smaller "
    "scale shortens windows, runs, mini-intervals and disk accesses alike and has less memory and fewer keys, so that "
    "rates mean what they do in full; a partition has at least 60 rows in memory, so that below scale 0.05 there are "
    "fewer."
)

_MEASURES = {
    "delay": "mean delay, s", "delayed": "delayed rows, share", "cpu": "CPU time, s", "disk": "disk time, s"
}  # fmt: skip


def _cells(joins: Sequence[str], what: str, values: Sequence[float]) -> dict[str, Cell]:
    """One thing varies. All others are said, so that what several experiments have in common is run once."""
    usual = {
        "bias": WINDOWS.bias, "slide": WINDOWS.slide, "flush": WINDOWS.flush, "partitions": WINDOWS.partitions,
        "block": WINDOWS.block,
    }  # fmt: skip
    papers = {"ewj": WINDOWS.ewj, "ah_ewj": WINDOWS.ah_ewj, "rpwj": WINDOWS.ah_ewj, OURS: WINDOWS.ah_ewj}
    return {
        f"{join} {value:g}": Cell(
            run, **{"join": join, "rate": papers[join].rate, "memory": papers[join].memory, **usual, what: value}
        )
        for join in joins
        for value in values
    }


def _of(cells: Mapping[str, Cell], join: str) -> list[str]:
    return [name for name in cells if name.split()[0] == join]


def _at_speed(rate: int, speed: float) -> str:
    return f"ewj {rate}" if speed == WINDOWS.faster else f"ewj {rate} speed {speed:g}"


_EWJ_RATES = _cells(["ewj"], "rate", WINDOWS.ewj.rates)
_SWEPT = (200, 250, 300)
"""Rates around the one up to which EWJ keeps up in the thesis."""
_EWJ_SPEEDS = {
    _at_speed(rate, speed): Cell(run, **_EWJ_RATES[f"ewj {rate}"].arguments, faster=speed)
    for speed in WINDOWS.speeds
    for rate in _SWEPT
    if speed != WINDOWS.faster
}
_EWJ_BIAS = _cells(["ewj"], "bias", WINDOWS.biases)
_SLIDES = _cells(["rpwj"], "slide", WINDOWS.slides)
_FLUSHES = _cells(["rpwj"], "flush", WINDOWS.flushes)
_RATES = _cells((*BOTH, OURS), "rate", WINDOWS.ah_ewj.rates)
for _name in _of(_RATES, "rpwj"):  # the baseline of the thesis, which reads all of both partitions in a dd-task
    _RATES[_name] = Cell(run, **_RATES[_name].arguments, reread=True)
_SAVING = {f"{_name} unseen": Cell(run, **_RATES[_name].arguments | {"reread": False}) for _name in ("rpwj 1400",)}
_PARTS = _cells(BOTH, "partitions", WINDOWS.partitionings)
_BIAS = _cells((*BOTH, OURS), "bias", WINDOWS.biases)
_MEMORY = _cells(["ah_ewj", OURS], "memory", WINDOWS.memories)
_BLOCKS = _cells(BOTH, "block", WINDOWS.memory_blocks)


# --- claims -----------------------------------------------------------------------------------------------------------


def _keeps_up(results: Results, join: str, rates: Sequence[int], to: int) -> Verdict:
    backlog = {rate: results.median(f"{join} {rate}", "backlog") for rate in rates}
    holds = all(share < _KEEPS_UP for rate, share in backlog.items() if rate <= to)
    return Verdict(holds, "; ".join(f"{rate}/s: {share:.1%} wait" for rate, share in backlog.items()))


def _saturates(results: Results, join: str, rates: Sequence[int], at: int) -> Verdict:
    """It keeps up below a rate, and not from there on."""
    backlog = {rate: results.median(f"{join} {rate}", "backlog") for rate in rates}
    holds = all((share < _KEEPS_UP) == (rate < at) for rate, share in backlog.items())
    return Verdict(holds, "; ".join(f"{rate}/s: {share:.1%} wait" for rate, share in backlog.items()))


def _by_speed(results: Results) -> Verdict:
    """With which speeds of the CPU all that the thesis says of EWJ's rates is so."""
    fine, told = [], []
    for speed in WINDOWS.speeds:
        waits = {rate: results.median(_at_speed(rate, speed), "backlog") for rate in _SWEPT}
        usual = _at_speed(200, speed)
        delayed, cpu, disk = (results.median(usual, value) for value in ("delayed", "cpu", "disk"))
        if all((share < _KEEPS_UP) == (rate < 300) for rate, share in waits.items()):
            fine.append(f"{speed:g}")
        shown = ", ".join(f"{share:.1%}" for share in waits.values())
        told.append(f"{speed:g}: {shown} wait, {delayed:.2%} delayed at 200/s, disk {disk / cpu:.1%} of CPU")
    so = f"with {', '.join(fine)}" if fine else "with none"
    return Verdict(bool(fine), f"{so}; speed: at {', '.join(str(rate) for rate in _SWEPT)}/s: {'; '.join(told)}")


def _delayed(results: Results, cell: str, most: float) -> Verdict:
    share = results.spread(cell, "delayed")
    return Verdict(share.median <= most, f"{share:.2%}")


def _trend(results: Results, cells: Sequence[str], value: str, rises: bool, form: str = ".3g") -> Verdict:
    first, last = (results.median(cell, value) for cell in (cells[0], cells[-1]))
    return Verdict(last > first if rises else last < first, f"{first:{form}} to {last:{form}}")


def _smallest_near_half(results: Results) -> Verdict:
    delays = {flush: results.median(f"rpwj {flush:g}", "delay") for flush in WINDOWS.flushes}
    best = min(delays, key=lambda flush: delays[flush])
    return Verdict(0.35 <= best <= 0.65, "; ".join(f"{flush:g}: {delay:.3g} s" for flush, delay in delays.items()))


def _unseen_runs(results: Results) -> Verdict:
    whole, unseen = (results.spread(name, "disk") for name in ("rpwj 1400", "rpwj 1400 unseen"))
    return Verdict(unseen.median < whole.median, f"{unseen:.0f} s and not {whole:.0f} s at 1,400 rows a second")


def _less_time(results: Results) -> Verdict:
    ratio = results.ratio("ah_ewj 1400", "rpwj 1400", "total")
    return Verdict(ratio.median <= 0.75, f"{1 - ratio.median:.0%} less than RPWJ")


def _more_than(results: Results, value: str, times: float) -> Verdict:
    ratios = {rate: results.ratio(f"rpwj {rate}", f"ah_ewj {rate}", value).median for rate in WINDOWS.ah_ewj.rates}
    shown = f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f} times AH-EWJ's"
    return Verdict(min(ratios.values()) > times, shown)


def _ahead(results: Results) -> Verdict:
    ratios = [results.ratio(f"rpwj {bias:g}", f"ah_ewj {bias:g}", "delay").median for bias in WINDOWS.biases]
    shown = "; ".join(f"b {bias:g}: {ratio:.3g} times" for bias, ratio in zip(WINDOWS.biases, ratios, strict=True))
    return Verdict(ratios[-1] > ratios[0] and ratios[-1] > 1.5, f"RPWJ's delay to AH-EWJ's: {shown}")


def _beyond_60(results: Results) -> Verdict:
    delays = {parts: results.median(f"rpwj {parts}", "delay") for parts in WINDOWS.partitionings}
    shown = "; ".join(f"{parts}: {delay:.3g} s" for parts, delay in delays.items())
    return Verdict(delays[128] > delays[64], shown)


def _hardly_matters(results: Results, join: str) -> Verdict:
    delays = [results.median(cell, "delay") for cell in _of(_BLOCKS, join)]
    change = max(delays) / min(delays) - 1
    return Verdict(change < 0.25, f"delays differ by {change:.0%}")


def _ours(points: Sequence[float], rivals: Sequence[str]) -> list[Claim]:
    """What we claim of our own join, where times are measured and not results."""
    return [
        Claim("confluence-delay", f"{OURS}'s pairs are the least late.", NOT_OF_THE_PAPER,
              partial(_least, points=points, rivals=rivals, value="delay")),
        Claim("confluence-time", f"{OURS} takes the least time, CPU and disk.", NOT_OF_THE_PAPER,
              partial(_least, points=points, rivals=rivals, value="total")),
        Claim("confluence-keeps-up", f"With {OURS} hardly any row waits in the end.", NOT_OF_THE_PAPER,
              partial(_none_wait, points=points)),
    ]  # fmt: skip


def _least(results: Results, points: Sequence[float], rivals: Sequence[str], value: str) -> Verdict:
    holds, told = {}, []
    for point in points:
        own = results.median(f"{OURS} {point:g}", value)
        others = {join: results.median(f"{join} {point:g}", value) for join in rivals}
        holds[f"{point:g}"] = own <= min(others.values())
        told.append(f"{point:g}: {own:.3g} s, " + ", ".join(f"{join} {found:.3g} s" for join, found in others.items()))
    verdict = always("least", holds)
    return Verdict(verdict.holds, f"{verdict.measured}; {'; '.join(told)}")


def _none_wait(results: Results, points: Sequence[float]) -> Verdict:
    backlog = {f"{point:g}": results.median(f"{OURS} {point:g}", "backlog") for point in points}
    shown = "; ".join(f"{point}: {share:.1%} wait" for point, share in backlog.items())
    return Verdict(max(backlog.values()) < _KEEPS_UP, shown)


def _panels(cells: Mapping[str, Cell], xs: Sequence[float], x: str) -> Callable[[Results], Sequence[Panel]]:
    def panels(results: Results) -> list[Panel]:
        joins = list(dict.fromkeys(name.split()[0] for name in cells))
        return [
            Panel(value, x, label, {join: results.sweep(xs, _of(cells, join), value) for join in joins})
            for value, label in _MEASURES.items()
        ]

    return panels


def _falls(value: str, word: str, cells: Sequence[str], what: str, join: str) -> Claim:
    return Claim(f"{value}-falls", f"{what} means {word} of {join}.", "it falls",
                 partial(_trend, cells=cells, value=value, rises=False))  # fmt: skip


EXPERIMENTS = [
    Experiment(
        "ewj-rate",
        "figures 3.4-3.8",
        PAPER,
        "EWJ: rates",
        _EWJ_RATES | _EWJ_SPEEDS,
        [
            Claim("buffer-bounded", "Up to 250 rows a second hardly any rows wait at the end, at 300 many do.",
                  "bounded to 250/s, 2 million at 300/s",
                  lambda results: _saturates(results, "ewj", WINDOWS.ewj.rates, 300)),
            Claim("few-delayed", "At 200 rows a second less than 0.4% of the rows are delayed.", "under 0.4%",
                  lambda results: _delayed(results, "ewj 200", 0.004)),
            Claim("by-speed", "There are speeds of the CPU with which EWJ keeps up with 250/s and not with 300/s.",
                  "3.4 GHz, no costs of operations given", _by_speed),
            Claim("cpu-bound", "Disk time is a small part of the time at 200 rows a second.", "CPU-bound",
                  lambda results: Verdict(results.median("ewj 200", "disk") < 0.2 * results.median("ewj 200", "cpu"),
                                          f"disk {results.spread('ewj 200', 'disk'):.3g} s, CPU "
                                          f"{results.spread('ewj 200', 'cpu'):.3g} s")),
        ],
        _panels(_EWJ_RATES, WINDOWS.ewj.rates, "rows per second"),
        note=f"{_FITTED} {_SCALE}",
    ),
    Experiment(
        "ewj-bias",
        "figures 3.9, 3.10",
        PAPER,
        "EWJ: bursts",
        _EWJ_BIAS,
        [
            Claim("delay-rises", "Burstier arrivals lengthen the delay.", "it rises",
                  lambda results: _trend(results, list(_EWJ_BIAS), "delay", rises=True)),
            Claim("delayed-rise", "Burstier arrivals delay more rows.", "they rise",
                  lambda results: _trend(results, list(_EWJ_BIAS), "delayed", rises=True, form=".2%")),
        ],
        _panels(_EWJ_BIAS, WINDOWS.biases, "bias b"),
        note=_SCALE,
    ),
    Experiment(
        "ahewj-slide",
        "figure 5.4",
        PAPER,
        "RPWJ: how far the window moves between invalidations",
        _SLIDES,
        [_falls(value, word, list(_SLIDES), "A longer slide", "RPWJ")
         for value, word in (("delay", "less delay"), ("disk", "less disk time"), ("delayed", "fewer delayed rows"))],
        _panels(_SLIDES, WINDOWS.slides, "slide, s"),
        note=_SCALE,
    ),
    Experiment(
        "ahewj-flush",
        "figure 5.5",
        PAPER,
        "RPWJ: how much is flushed at once",
        _FLUSHES,
        [Claim("half", "The delay is smallest where about half of the memory is flushed.", "about half",
               _smallest_near_half)],
        _panels(_FLUSHES, WINDOWS.flushes, "share of memory"),
        note=_SCALE,
    ),
    Experiment(
        "ahewj-rate",
        "figures 5.6-5.12",
        PAPER,
        "AH-EWJ and RPWJ: rates",
        _RATES | _SAVING,
        [
            Claim("rpwj-saturates", "RPWJ falls behind at 1,400 rows a second of each input, and not before.",
                  "saturated at 1,400/s", lambda results: _saturates(results, "rpwj", WINDOWS.ah_ewj.rates, 1400)),
            Claim("holds-to-1600", "AH-EWJ keeps up with 1,600 rows a second of each input.",
                  "holds to 1,600/s and more",
                  lambda results: _keeps_up(results, "ah_ewj", WINDOWS.ah_ewj.rates, 1600)),
            Claim("less-time", "At 1,400 rows a second AH-EWJ takes about 40% less time, CPU and disk (25% at least).",
                  "around 40%", _less_time),
            Claim("rpwj-cpu", "RPWJ takes more CPU time than AH-EWJ.", "higher",
                  lambda results: _more_than(results, "cpu", 1.0)),
            Claim("rpwj-disk", "RPWJ takes far more disk time than AH-EWJ (twice at least).", "very high",
                  lambda results: _more_than(results, "disk", 2.0)),
            Claim("few-delayed", "At 1,400 rows a second about 0.05% of AH-EWJ's rows are delayed.", "0.05%",
                  lambda results: _delayed(results, "ah_ewj 1400", 0.001)),
            Claim("some-delayed", "At 1,600 rows a second about 0.1% of AH-EWJ's rows are delayed.", "about 0.1%",
                  lambda results: _delayed(results, "ah_ewj 1600", 0.002)),
            Claim("rpwj-delayed", "RPWJ's delayed rows grow with the rate.", "sharply beyond 1,000/s",
                  lambda results: _trend(results, _of(_RATES, "rpwj"), "delayed", rises=True, form=".2%")),
            Claim("unseen-runs", "A dd-task that reads only runs which none has seen saves disk time.",
                  "(not of the thesis)", _unseen_runs),
            *_ours(WINDOWS.ah_ewj.rates, BOTH),
        ],
        _panels(_RATES, WINDOWS.ah_ewj.rates, "rows per second"),
        key=True,
        note=f"{_SCALE} RPWJ reads all of both partitions in each dd-task, as the thesis says.",
    ),
    Experiment(
        "ahewj-parts",
        "figure 5.13",
        PAPER,
        "AH-EWJ and RPWJ: partitions",
        _PARTS,
        [
            Claim("rpwj-worsens", "RPWJ's delay grows with more than 60 partitions.", "increased beyond 60",
                  _beyond_60),
            Claim("ahewj-improves", "More partitions mean less delay of AH-EWJ.", "lower",
                  lambda results: _trend(results, _of(_PARTS, "ah_ewj"), "delay", rises=False)),
        ],
        _panels(_PARTS, WINDOWS.partitionings, "partitions"),
        note=_SCALE,
    ),
    Experiment(
        "ahewj-bias",
        "figures 5.14-5.16",
        PAPER,
        "AH-EWJ and RPWJ: bursts",
        _BIAS,
        [
            Claim("ahead", "AH-EWJ is far ahead of RPWJ as bursts grow.", "significantly better", _ahead),
            Claim("rpwj-cpu-falls", "RPWJ's CPU time falls with the bias.", "it falls",
                  lambda results: _trend(results, _of(_BIAS, "rpwj"), "cpu", rises=False)),
            Claim("rpwj-disk-falls", "RPWJ's disk time falls with the bias.", "it falls",
                  lambda results: _trend(results, _of(_BIAS, "rpwj"), "disk", rises=False)),
            *_ours(WINDOWS.biases, BOTH),
        ],
        _panels(_BIAS, WINDOWS.biases, "bias b"),
        note=_SCALE,
    ),
    Experiment(
        "ahewj-memory",
        "figure 5.17",
        PAPER,
        "AH-EWJ: memory",
        _MEMORY,
        [*(_falls(value, word, _of(_MEMORY, "ah_ewj"), "More memory", "AH-EWJ")
           for value, word in (("delay", "less delay"), ("cpu", "less CPU time"), ("disk", "less disk time"))),
         *_ours(WINDOWS.memories, ["ah_ewj"])],
        _panels(_MEMORY, [memory / 1e6 for memory in WINDOWS.memories], "memory, MB"),
        note=_SCALE,
    ),
    Experiment(
        "ahewj-block",
        "figure 5.18",
        PAPER,
        "AH-EWJ and RPWJ: block size",
        _BLOCKS,
        [
            Claim("hardly-matters", "The size of blocks hardly changes AH-EWJ's delay (25% at most).", "almost fixed",
                  lambda results: _hardly_matters(results, "ah_ewj")),
            Claim("rpwj-too", "The size of blocks hardly changes RPWJ's delay (25% at most).", "no significant change",
                  lambda results: _hardly_matters(results, "rpwj")),
        ],
        _panels(_BLOCKS, WINDOWS.memory_blocks, "bytes"),
        note=_SCALE,
    ),
]  # fmt: skip
