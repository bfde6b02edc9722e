"""Confluence: debts to the disk are settled by merging sorted hashes, while rows still arrive.

Our own join. `operator` decides what comes next; what it decides about are parts that it has, each in a file:

    workspace     the buffers through which rows go, and how memory is divided
    settlements   rows that owe meet what is on disk; how late their pairs are
    flushing      rows leave memory, and which of them stay
    catalogue     the runs: their names, what is remembered of them, and how they become few
    wear          which rows on disk nobody needs any more
    alone         rows without a partner come out
    foretold      what inputs promise, and who is settled by it before they end
    saving        what a snapshot says
"""

from watersmeet.joins.confluence.operator import Confluence
from watersmeet.joins.confluence.workspace import FLOOR

__all__ = ["FLOOR", "Confluence"]
