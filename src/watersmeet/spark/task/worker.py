"""Tasks on their way to Spark's Python workers, and what to say when these cannot run them.

What lives as long as a worker process is set aside: Spark's workers collect garbage when a task is over, and go through
every object for it: with kernels loaded these are
hundreds of thousands, and as many milliseconds as a small batch takes to be joined.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Task = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def portable(task: Task, session: SparkSession) -> Task:
    """A task as a function that any Python can unpack, and that says so if the worker's one has no Watersmeet."""
    use_own_python(session)
    packed: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    driver = sys.executable

    # Nested, so that it travels by value: a worker without Watersmeet can begin it. It imports what it needs.
    def run(batches: Any) -> Any:
        import pickle
        import sys

        try:
            found = pickle.loads(packed)
        except ImportError as error:
            raise RuntimeError(
                f"the Python of Spark's workers, {sys.executable}, has no Watersmeet that this join can run with "
                f"({error}); install it there, or set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has "
                f"it, before Spark starts; the driver's is {driver}"
            ) from None
        yield from found(batches)
        from watersmeet.spark.task.worker import settle

        settle()

    return run


def is_connected(session: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return getattr(session, "_sc", None) is None


def use_own_python(session: SparkSession) -> None:
    """Where the workers run on this machine and nobody has said with which Python: with this one, not the path's."""
    context = getattr(session, "_sc", None)  # there is none under Spark Connect, whose server chooses
    if context is None or os.environ.get("PYSPARK_PYTHON"):
        return
    if context.getConf().get("spark.pyspark.python") is None and context.master.startswith("local"):
        context.pythonExec = sys.executable


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
