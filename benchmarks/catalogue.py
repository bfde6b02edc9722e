"""The benchmarks by name, and what `watersmeet bench` does with them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import figures
from benchmarks.asof import asof
from benchmarks.batches import batches
from benchmarks.bounded import bounded
from benchmarks.figures import Figure
from benchmarks.growth import growth
from benchmarks.in_memory import inmemory, inmemory_large, skew
from benchmarks.kinds import kinds
from benchmarks.lookup import lookup
from benchmarks.memory import memory
from benchmarks.multiway import multiway
from benchmarks.online import online
from benchmarks.page import page
from benchmarks.page_cache import page_cache
from benchmarks.purge import purge
from benchmarks.queries import queries
from benchmarks.range_join import range_join
from benchmarks.rounds import Settings
from benchmarks.short import short
from benchmarks.small_batches import small_batches
from benchmarks.spark_batch import spark_batch
from benchmarks.spark_cluster import spark_cluster
from benchmarks.spark_equi import spark_drain, spark_equi
from benchmarks.spark_kafka import spark_kafka
from benchmarks.spark_kinds import spark_kinds
from benchmarks.spark_lookup import spark_lookup
from benchmarks.spark_many import spark_4way
from benchmarks.spark_repartition import spark_repartition
from benchmarks.spark_s3 import spark_s3
from benchmarks.spark_skew import spark_skew
from benchmarks.spark_trigger import spark_restart, spark_trigger
from benchmarks.spark_window import spark_window
from benchmarks.start import start
from benchmarks.suites import run
from benchmarks.suites.catalogue import SUITES
from benchmarks.window import window
from watersmeet.core.errors import SpecError

BENCHMARKS: Mapping[str, Callable[[Settings], Iterator[Figure]]] = {
    "inmemory": inmemory,
    "inmemory-large": inmemory_large,
    "small-batches": small_batches,
    "skew": skew,
    "bounded": bounded,
    "short": short,
    "growth": growth,
    "batches": batches,
    "page-cache": page_cache,
    "lookup": lookup,
    "memory": memory,
    "multiway": multiway,
    "online": online,
    "page": page,
    "purge": purge,
    "queries": queries,
    "range": range_join,
    "start": start,
    "window": window,
    "asof": asof,
    "kinds": kinds,
    "spark-equi": spark_equi,
    "spark-drain": spark_drain,
    "spark-trigger": spark_trigger,
    "spark-repartition": spark_repartition,
    "spark-restart": spark_restart,
    "spark-batch": spark_batch,
    "spark-window": spark_window,
    "spark-kinds": spark_kinds,
    "spark-4way": spark_4way,
    "spark-lookup": spark_lookup,
    "spark-skew": spark_skew,
    "spark-cluster": spark_cluster,
    "spark-kafka": spark_kafka,
    "spark-s3": spark_s3,
}

SUITE = "suite"
"""The word before the names of suites."""


def main(args: argparse.Namespace) -> int:
    """Run what was asked for; returns 1 if a result was wrong, 0 otherwise, however slow it was."""
    if args.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:<15} {_about(benchmark)}")
        for name, each in SUITES.items():
            print(f"{SUITE} {name:<9} {each.title}")
        return 0
    suites = args.names[1:] if args.names[:1] == [SUITE] else None
    names = [each.name for each in run.chosen(suites)] if suites is not None else chosen(args.names)
    usual = Settings(repeat=5 if suites is None else 1)
    repeat = getattr(args, "repeat", None)
    settings = Settings(args.peers, usual.repeat if repeat is None else repeat, getattr(args, "scale", usual.scale))
    if settings.repeat < 1 or not 0 < settings.scale <= 100:
        raise SpecError("a benchmark is repeated at least once, at a scale above 0 and up to 100")
    target = None if args.json is None else Path(args.json).absolute()
    if target is not None and not target.parent.is_dir():
        raise SpecError(f"{target.parent} is not a directory; the figures cannot be written there")
    return _run(names, settings, target) if suites is None else run.main(names, settings, target)


def chosen(names: Sequence[str]) -> list[str]:
    """The benchmarks of these names, or whose names begin so up to a hyphen; all if none is named.

    >>> chosen(["start", "spark"])[:3]
    ['start', 'spark-equi', 'spark-drain']
    """
    found = []
    for name in names or BENCHMARKS:
        meant = [name] if name in BENCHMARKS else [each for each in BENCHMARKS if each.startswith(f"{name}-")]
        if not meant:
            raise SpecError(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
        found += meant
    return list(dict.fromkeys(found))


def _run(names: list[str], settings: Settings, target: Path | None) -> int:
    full = settings.scale == 1
    records: list[dict[str, object]] = []
    wrong = False
    print(f"medians of {settings.repeat}" + ("" if full else f", inputs {settings.scale:g} times their size"))
    print(figures.HEADING)
    for name in names:
        print(f"{name}: {_about(BENCHMARKS[name])}", flush=True)
        measured = list(BENCHMARKS[name](settings))
        print(*figures.lines(measured, full), sep="\n", flush=True)
        records += [figure.record(name, full) for figure in measured]
        wrong |= any(figure.metric.startswith("wrong") and figure.value for figure in measured)
        if target is not None:
            figures.write(target, records)
    return int(wrong)


def _about(benchmark: Callable[[Settings], Iterator[Figure]]) -> str:
    return (benchmark.__doc__ or "").splitlines()[0].rstrip(".")
