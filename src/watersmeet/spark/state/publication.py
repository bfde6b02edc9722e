"""Publishing what a batch has made of a group's state: once, whole, and in agreement with what the sink has.

A task may be run again: because it failed, in another worker at the same time (speculation), or because the query was
started again from before the batch ended. Spark takes the results of one attempt at each task into the sink, or those
of a later start of the query if the sink had not finished. Which attempt publishes first is another matter. So what has
to be shown is that *any* attempt's results go with *any* attempt's state. There are two ways.

**Settled** (`publish`): by its end, a batch owes nothing. Then the pairs that it gives are those of its rows with each
other and with all rows before, and the state after it has all rows: as multisets, both follow from the rows before the
batch and from those in it. They do not depend on the order in which rows came, on how much memory there was, on how
rows are divided into runs, or on which attempt at the batch before was published. So attempts may differ in the order
of what they give and in their files, and in nothing that counts: a canonical order of the rows is needed for nothing.

- Results are handed out as they are found; the state is published before the last of them. An attempt that fails before
  has given nothing, for Spark drops what it handed out; one that fails after leaves a state that is right for the next.
- The first attempt to publish is the one that counts, and what others have written goes. On a disk that is a link to a
  name that must be new, in S3 a conditional put. Both are decided in one place, so of several attempts one is first,
  and each finds out by reading what is there: an attempt that was first and did not learn of it (its answer was lost,
  it asked again and was refused) finds its own name in the manifest, and goes on as the first. Where two may both
  succeed (a remote file system without such a way), the later one takes the place of an equal.
- A query that goes back forgets the states of the batches it did not finish: it will make equal ones.

**With results** (`publish` of a content that names files of `RESULTS`): where pairs may wait for a later batch, which
pairs a batch gives depends on memory, fuel and order. Two attempts might give a pair twice, or never, if the state of
one went with the results of the other. So results are written to files before, and the state names them: whoever finds
the batch published hands these out and nothing else, in a later start of the query, too, unless it goes back further.
The files go when the next batch has been published, for that one begins only when the sink has the results.

`tests/spark/test_settled_group.py` and `test_operator_group.py` repeat batches in other orders, with other memory, and
kill attempts at every write; `make chaos` does it to running queries.
"""

from __future__ import annotations

from typing import Any

from watersmeet.core.protocol import Snapshot
from watersmeet.spark.state.directory import RESULTS, SEGMENTS, GroupState
from watersmeet.spark.state.store import VersionedStore

__all__ = ["RESULTS", "described", "publish"]


def described(snapshot: Snapshot | None, store: VersionedStore) -> dict[str, Any]:
    """What a manifest says of an operator; None: there is nothing left of it."""
    files = store.files(snapshot.segments) if snapshot is not None else {}
    saved = None if snapshot is None else snapshot.to_json()
    return {"snapshot": saved, "files": files, SEGMENTS: [each[0] for each in files.values()]}


def publish(group: GroupState, store: VersionedStore, content: dict[str, Any]) -> dict[str, Any]:
    """Make this the group's state after the batch, unless another attempt was first; returns what holds now.

    If it is another's, what this attempt has written goes. Once this was called the files may be the state's, whatever
    else fails; if they are not, they are swept in time.
    """
    manifest = group.publish_once(content)
    if manifest["attempt"] != group.attempt:
        store.abandon()
    return manifest
