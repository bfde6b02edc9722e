"""What a task learns from Spark about where it runs."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark import TaskContext

from watersmeet.core.errors import SnapshotError
from watersmeet.spark.state.directory import Batch
from watersmeet.spark.state.remote import Place, place_of

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
"""Of a streaming query's jobs, the group is the run: a new one each time the query is started."""
QUERY = "{query}"
"""In the path of a state directory: where the query's id, which is its checkpoint's, is to be put in."""


def scratch_directory() -> Path | None:
    """Where Spark lets tasks put what does not fit into memory."""
    directories = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return Path(directories[0]) if directories[0] else None


def current_partition() -> int | None:
    """The number of this task among those of its stage, which is that of its group where rows are sent by number."""
    context = TaskContext.get()
    return None if context is None else context.partitionId()


def answers_for_all() -> bool:
    """Whether this task notes that a batch has begun, even without a row; others without rows touch no file."""
    return current_partition() in (None, 0)


def current_batch() -> tuple[Batch, str]:
    """Which batch of which query this task is part of."""
    context = TaskContext.get()
    number = context.getLocalProperty(_BATCH_ID) if context is not None else None
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if context is None or number is None or query is None:
        raise SnapshotError(
            "this task is not part of a streaming query's micro-batch, so it cannot tell which state to go on from; "
            "write the joined stream with writeStream, in micro-batches"
        )
    return Batch(int(number), context.getLocalProperty(_RUN_ID) or query), query


def state_place(state: str) -> Place:
    """Where this task's query keeps its state: what `state=` names, with the query's id where that is asked for."""
    return place_of(state.replace(QUERY, current_batch()[1]) if QUERY in state else state)
