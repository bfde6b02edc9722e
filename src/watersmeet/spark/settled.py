"""What lives as long as a worker process is set aside, so that nobody looks through it for garbage after each task.

Spark's workers collect garbage when a task is over, and go through every object for it: with kernels loaded these are
hundreds of thousands, and as many milliseconds as a small batch takes to be joined.
"""

from __future__ import annotations

import gc

_tasks = 0


def settle() -> None:
    """Called at the end of each task: after the first, second, fourth and so on, sets aside what there is.

    What was garbage is let go before. Not every time, since what is set aside and becomes garbage in a cycle later on
    stays; objects in no cycle go as soon as nobody needs them, as ever.

    >>> settle()
    >>> gc.get_freeze_count() > 1_000
    True
    >>> gc.unfreeze()
    """
    global _tasks
    _tasks += 1
    if _tasks & (_tasks - 1) == 0:
        gc.collect()
        gc.freeze()
