"""From counted work to virtual seconds: what a hash, a comparison or a disk page costs on the simulated machine.

No clock is read. The defaults are a machine of around 2000: the CPU costs were measured on a 1 GHz processor [1]_, the
disk takes 10 ms to find a place and 0.1 ms for each page of 1 KB from there on. An experiment that wants another
machine says so with `CostModel.with_disk` or with `dataclasses.replace`.

.. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
   Information Sources (the MJoin paper), table 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from watersmeet.core.cost import Cost
from watersmeet.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds for each unit of work.

    >>> CostModel().seconds(Cost(hashes=1000, pages_read=10, seeks=1))
    (0.000175, 0.011)
    """

    hash: float = 1.75e-7
    """One key hashed."""
    move: float = 4.27e-7
    """One row inserted into a table in memory."""
    comparison: float = 4.91e-8
    """One candidate row visited by a look-up."""
    probe: float = 0.0
    """One look-up, beyond its hash and its comparisons: the paper counts nothing more."""
    result: float = 0.0
    """One pair emitted, beyond the comparison that found it: the paper counts nothing more."""
    random_page: float = 0.0101
    """One page after moving the head: seek, rotation and transfer."""
    sequential_page: float = 0.0001
    """One page that follows the page before: transfer alone."""
    run: float = 0.0
    """One run written behind another: nothing, unless each partition has a place of its own on the disk."""
    disk_row: float = 0.0
    """One row read or written, where transfers are charged by the byte: nothing, where they are by the page."""
    nested: float = 0.0
    """One row compared in a nested loop: nothing, where look-ups go by an index."""

    def seconds(self, cost: Cost) -> tuple[float, float]:
        """The time that the CPU and that the disk need for this work; they do not overlap."""
        cpu = (
            cost.hashes * self.hash
            + cost.inserts * self.move
            + cost.comparisons * self.comparison
            + cost.probes * self.probe
            + cost.results * self.result
            + cost.nested * self.nested
        )
        sequential = cost.pages_read + cost.pages_written - cost.seeks
        pages = cost.seeks * self.random_page + sequential * self.sequential_page
        return cpu, pages + cost.runs * self.run + cost.disk_rows * self.disk_row

    def with_disk(self, *, seek: float, latency: float, bandwidth: float, page: int) -> CostModel:
        """The same CPU, another disk: mean seek and rotational latency in seconds, bytes per second, bytes a page.

        >>> ibm_9lzx = CostModel().with_disk(seek=0.0054, latency=0.003, bandwidth=20e6, page=4096)
        >>> round(ibm_9lzx.random_page, 7), round(ibm_9lzx.sequential_page, 7)
        (0.0086048, 0.0002048)
        """
        if bandwidth <= 0:
            raise SpecError(f"a disk's bandwidth must be more than nothing, not {bandwidth!r} bytes per second")
        transfer = page / bandwidth
        return replace(self, random_page=seek + latency + transfer, sequential_page=transfer)

    def by_bytes(self, *, access: float, bandwidth: float, row: int) -> CostModel:
        """The same CPU, another disk: seconds for an access, and rows of so many bytes at so many bytes per second.

        >>> ibm_9lzx = CostModel().by_bytes(access=0.0084, bandwidth=20e6, row=64)
        >>> cpu, disk = ibm_9lzx.seconds(Cost(seeks=1, pages_read=9, disk_rows=100))
        >>> cpu, round(disk, 5)
        (0.0, 0.00872)
        """
        if bandwidth <= 0:
            raise SpecError(f"a disk's bandwidth must be more than nothing, not {bandwidth!r} bytes per second")
        return replace(self, random_page=access, sequential_page=0.0, disk_row=row / bandwidth)

    def faster(self, times: float) -> CostModel:
        """The same disk, a processor that is so many times as fast.

        >>> CostModel().faster(2).hash == CostModel().hash / 2
        True
        """
        names = ("hash", "move", "comparison", "probe", "result", "nested")
        return replace(self, **{name: getattr(self, name) / times for name in names})


FREE = CostModel(hash=0.0, move=0.0, comparison=0.0, random_page=0.0, sequential_page=0.0)
"""A machine on which work takes no time: what is left is the schedule alone."""
