"""How far a run is: one immutable picture of it, taken at any moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from watersmeet.core import html
from watersmeet.core.report import (
    BatchFigures,
    Lateness,
    LookupFigures,
    Probing,
    PromiseFigures,
    ShedFigures,
    SpoolFigures,
)
from watersmeet.memory import format_bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment.

    >>> print(Progress(("left", "right"), (1200, 800), 950, 0.012, 1.5, memory=3 << 20, peak=4 << 20, budget=8 << 20))
    1.5 s · left 1,200 + right 800 rows in · 950 out · first after 12 ms · memory 3 MiB of 8 MiB · not started
    """

    names: tuple[str, ...]
    """What the inputs are called."""
    rows_in: tuple[int, ...]
    """Rows that reached the operator, one count for each input; none where they are not known."""
    rows_out: int = 0
    """Rows handed to the consumer."""
    first_result_after: float | None = None
    """Seconds from the start to the first result; None as long as there is none."""
    elapsed: float = 0.0
    """Seconds since the start, or for the whole run once it is over."""
    memory: int = 0
    """Bytes held now: the operator's and those of the input queues."""
    peak: int = 0
    """Never less than the most bytes that were held at once."""
    budget: int = 0
    """Bytes the user allowed."""
    spilled: int = 0
    """Bytes written to disk so far."""
    on_disk: int = 0
    """Bytes on disk now."""
    phase: str = "not started"
    """What the run is at: waiting for schemas, arriving, reactive, clean-up, done, closed."""
    algorithm: str | None = None
    """The join that runs; None before it is chosen."""
    reason: str | None = None
    """Why that join was chosen, where the choice was left open."""
    late: tuple[int, ...] | None = None
    """Of a window join: rows of each input that came later than allowed."""
    window_rows: int | None = None
    """Of a window join: rows that are remembered, in memory and on disk."""
    delays: tuple[float, float] | None = None
    """Of a window join: half of the results were found so many seconds after their later row came; and 99 in 100."""
    delayed: int | None = None
    """Of a window join: rows that met the last of what they had to meet after they had left their own window."""
    done: bool = False
    """True once every result has been handed out."""
    lookup: LookupFigures | None = None
    """Of a join with a relation: misses, delays, reads."""
    lateness: Lateness | None = None
    """Of `confluence`: how long pairs waited that were not found as their later row came, and what still waits."""
    promises: PromiseFigures | None = None
    """Of a join that relies on promises: rows kept, purged, dropped, and those that broke a promise."""
    reached: tuple[float | None, ...] | None = None
    """Of a window join: the newest time that each input has told; seconds since 1970 for dates and timestamps."""
    dated: bool = False
    """Whether `reached` is in seconds since 1970, and not what an integer column has."""
    probing: Probing | None = None
    """Of a join of several inputs: in which order rows are looked up, and how often they match."""
    batch: BatchFigures | None = None
    """Of a join on Spark: its last micro-batch."""
    silent: bool = False
    """Whether no row of any input has come for a while."""
    events: tuple[tuple[str, int], ...] = ()
    """What the join has done how often so far, in its own words: flushed, settled, merged."""
    spool: SpoolFigures | None = None
    """With `spool=`: how far sources have run ahead of the join, onto the disk."""
    shed: ShedFigures | None = None
    """With `shed=`: rows that were let go because the join could not keep up, and the pairs that this cost."""

    def __str__(self) -> str:
        inputs = " + ".join(f"{name} {rows:,}" for name, rows in zip(self.names, self.rows_in, strict=False))
        parts = [
            f"{self.elapsed:.1f} s",
            f"{inputs} rows in",
            f"{self.rows_out:,} out",
            f"memory {format_bytes(self.memory)} of {format_bytes(self.budget)}",
            self.phase,
        ]
        if self.first_result_after is not None:
            parts.insert(3, f"first after {format_seconds(self.first_result_after)}")
        if self.delays is not None:
            parts.insert(-1, f"delay {format_seconds(self.delays[0])}, p99 {format_seconds(self.delays[1])}")
        if self.spilled:
            parts.insert(-1, f"spilled {format_bytes(self.spilled)}")
        if self.spool is not None and self.spool.rows:
            parts.insert(-1, describe_spool(self.spool))
        if self.shed is not None and any(self.shed.rows):
            parts.insert(-1, describe_shed(self.shed))
        if self.lookup is not None:
            parts.insert(-1, describe_lookup(self.lookup))
        if self.promises is not None:
            parts.insert(-1, describe_promises(self.promises))
        return " · ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """All figures under their names, as JSON knows them: bytes, seconds, counts.

        >>> Progress(("a", "b"), (1, 2), 3).as_dict()["rows_in"]
        [1, 2]
        """
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        first = self.first_result_after
        since = "" if first is None else f", the first after {format_seconds(first)}"
        kept = f"{format_bytes(self.memory)} of {format_bytes(self.budget)}"
        rows = [
            ("in", escape(f"{count:,} rows of {name}")) for name, count in zip(self.names, self.rows_in, strict=False)
        ]
        rows += [
            ("out", f"<b>{self.rows_out:,}</b> rows{since}"),
            ("memory", html.bar(self.memory, self.peak, self.budget, f"{kept}, {format_bytes(self.peak)} at most")),
            ("spilled", f"{format_bytes(self.spilled)}, {format_bytes(self.on_disk)} on disk now"),
        ]
        if self.spool is not None:
            rows.append(("ahead", escape(describe_spool(self.spool))))
        if self.shed is not None:
            rows.append(("let go", escape(describe_shed(self.shed))))
        if self.lookup is not None:
            rows.append(("look-ups", escape(describe_lookup(self.lookup))))
        if self.promises is not None:
            rows.append(("promises", escape(describe_promises(self.promises))))
        if self.delays is not None:
            rows.append(("delay", f"{format_seconds(self.delays[0])}, p99 {format_seconds(self.delays[1])}"))
        how = "" if self.algorithm is None else f" ({self.algorithm}{f': {self.reason}' if self.reason else ''})"
        rows.append(("phase", escape(f"{self.phase}, {format_seconds(self.elapsed)}{how}")))
        return html.table(rows)


def describe_lookup(figures: LookupFigures) -> str:
    """How the rows of a stream fared with a relation, for people.

    >>> describe_lookup(LookupFigures(1000, misses=10, hits=900, bytes_read=1 << 20, delay_p50=0.002, delay_p99=0.15))
    '10 misses, 90% from memory, delay 2 ms (p99 150 ms), read 1 MiB'
    """
    share = figures.hits / figures.answered if figures.answered else 0.0
    return (
        f"{figures.misses:,} misses, {share:.0%} from memory, delay {format_seconds(figures.delay_p50)} "
        f"(p99 {format_seconds(figures.delay_p99)}), read {format_bytes(figures.bytes_read)}"
    )


def describe_shed(figures: ShedFigures) -> str:
    """What was let go, and what that cost, for people.

    >>> describe_shed(ShedFigures((120, 0), 0.05, 300, 300, 300))
    'let go 120 + 0 rows, 300 pairs lost'
    >>> describe_shed(ShedFigures((120, 0), 0.05, 300, 250, 350))
    'let go 120 + 0 rows, 250 to 350 pairs lost'
    """
    rows = " + ".join(f"{count:,}" for count in figures.rows)
    pairs = f"{figures.pairs:,}" if figures.exact else f"{figures.pairs_low:,} to {figures.pairs_high:,}"
    return f"let go {rows} rows, {pairs} pairs lost"


def describe_spool(figures: SpoolFigures) -> str:
    """How far sources have run ahead of a join, for people.

    >>> describe_spool(SpoolFigures(1200, 3 << 20, 9 << 20, 50_000, 120 << 20, 1 << 30))
    '1,200 rows ahead on disk, 3 MiB of 1 GiB'
    """
    waiting = f"{figures.waiting_rows:,} rows ahead on disk, {format_bytes(figures.waiting_bytes)}"
    full = ", which takes no more" if figures.refused is not None else ""
    return f"{waiting} of {format_bytes(figures.room)}{full}"


def describe_promises(figures: PromiseFigures) -> str:
    """What a join made of its inputs' promises, for people.

    >>> describe_promises(PromiseFigures(kept=(10, 0), purged=(990, 20), dropped=(0, 5000), broken=(0, 3)))
    '10 + 0 rows kept, 990 + 20 purged, 0 + 5,000 dropped at once, 0 + 3 broke their promises'
    """
    kept, purged, dropped, broken = (
        " + ".join(f"{count:,}" for count in counts)
        for counts in (figures.kept, figures.purged, figures.dropped, figures.broken)
    )
    told = f"{kept} rows kept, {purged} purged, {dropped} dropped at once"
    return f"{told}, {broken} broke their promises" if any(figures.broken) else told


def format_seconds(seconds: float) -> str:
    """Seconds for people.

    >>> format_seconds(0.0123), format_seconds(2.34), format_seconds(135)
    ('12 ms', '2.3 s', '2 min 15 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"
