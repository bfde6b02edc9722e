"""`watersmeet.spark.multijoin`: several inputs joined in one operator, how tasks make it, and where rows go."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import ManyOn, MultiSpec
from watersmeet.memory import parse_memory
from watersmeet.spark.io.source import EVENT
from watersmeet.spark.plan.control_rows import has_signs, signs_last
from watersmeet.spark.plan.described import described
from watersmeet.spark.plan.grouping import check_collation
from watersmeet.spark.plan.inputs import (
    FUEL,
    checked_fuel,
    checked_partitions,
    plain_schemas,
    retained_batches,
    state_path,
    with_measures,
)
from watersmeet.spark.plan.tagging import Tagging, places_by_id
from watersmeet.spark.plan.types import arrow_schema
from watersmeet.spark.state.remote import CACHE_BYTES
from watersmeet.spark.task.figures import figure_names, observed
from watersmeet.spark.task.operator_group import Shares
from watersmeet.spark.task.operator_task import OperatorTask
from watersmeet.spark.task.worker import portable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


from collections.abc import Iterator
from dataclasses import dataclass

from watersmeet import planner
from watersmeet.core.protocol import Punctuate, Snapshot
from watersmeet.spark.plan.recipe import Recipe
from watersmeet.spark.task.operator_cache import Keepable
from watersmeet.spark.task.punctuations import Punctuations
from watersmeet.spill.store import MemoryStore, Store


def multijoin(
    inputs: Mapping[str, DataFrame],
    on: ManyOn,
    *,
    how: Mapping[str, str] | str = "inner",
    memory: str | int = "512 MiB",
    state: str | os.PathLike[str] | None = None,
    partitions: int | None = None,
    algorithm: str = "auto",
    fuel: int = FUEL,
    cache: str | int = CACHE_BYTES,
) -> DataFrame:
    """Join several DataFrames in one operator, without intermediate results: all batch ones, or all streams that end.

    Each stream says when it ends, in a column `watersmeet_event` (see `watersmeet.spark.with_events`). Rows are kept in
    memory as long as they fit and wait on disk when they do not; what they lead to is found with what is left of each
    batch's `fuel`, and the rest in the batch that brings the last end. Every result comes once.

    Rows are sent to tasks by the value that most inputs are joined on, such as an id that all of them have. An input
    that is not joined on it is copied to every task, so that few tasks are made unless `partitions` says how many.
    Where no value is shared (bands alone), all rows go to one task.

    A column keeps its name in the result if no other input has one of that name; else it is called `input_column`.
    Columns of one name that must be equal come out once.

    :param inputs: by name.
    :param on: conditions such as `"orders.id = items.order_id"` or `watersmeet.band("trades.at = quotes.at", width)`,
        enough of them to hold all inputs together.
    :param how: `{"orders": "left"}` for one input whose rows come out in any case, with NULLs beside those that are in
        no result, as soon as the other inputs have ended; `"inner"`: for none.
    :param memory: bytes, or words such as `"512 MiB"`, that each task may hold.
    :param state: of streams: a directory that all workers reach under this path, or an address that PyArrow has a file
        system for.
    :param partitions: how many tasks share the rows, for good; `spark.sql.shuffle.partitions` unless given. Where
        inputs are copied, it is no more than keeps copies from being more than half of a task's rows if all inputs are
        equally large: say more where the copied ones are small.
    :param algorithm: one of `watersmeet.multijoin`'s.
    :param fuel: units of work (a row probed, inserted or emitted) that a group may use in a batch; rows that arrive and
        the work after the last end are done in any case.
    :param cache: of state at an address: how much of it a machine keeps on its own disk, in Spark's local directory.
    """
    names, frames = tuple(inputs), list(inputs.values())
    streaming = _are_streams(names, frames)
    if streaming or any(has_signs(frame, name) for name, frame in inputs.items()):
        frames = _with_ends(names, frames, streaming)
    schemas = plain_schemas(*frames)
    arrow = {name: arrow_schema(schema, name) for name, schema in zip(names, schemas, strict=True)}
    spec = MultiSpec.of(arrow, on, how=how)
    factory = MultiFactory.of(spec, algorithm)
    budget = parse_memory(memory)
    Shares.check(budget, factory.least_memory())
    directory = state_path(state, streaming)
    columns = routes(spec)
    groups = _group_count(frames[0], partitions, columns)
    keys = tuple([schema.names.index(name)] if name else [] for schema, name in zip(schemas, columns, strict=True))
    for name, schema, positions in zip(names, schemas, keys, strict=True):
        for position in positions:
            check_collation(schema.fields[position].dataType, schema.names[position], name)
    preserved = tuple(number == spec.preserved for number in range(len(names)))
    tagging = Tagging(schemas, keys, groups, streaming, preserved=preserved)
    task = OperatorTask(
        factory, tagging.layout, budget, groups, checked_fuel(fuel), directory, retained_batches(frames[0]), None,
        parse_memory(cache), by_id=places_by_id(),
    )  # fmt: skip
    rows, results = tagging.shuffled(*frames, carry_sign=True), _output_schema(spec, schemas)
    run = portable(task, frames[0].sparkSession)
    if directory is None:
        return rows.mapInArrow(run, results)
    return observed(rows.mapInArrow(run, with_measures(results)), str(directory), budget, figure_names(names))


def _are_streams(names: Sequence[str], frames: Sequence[DataFrame]) -> bool:
    streams = [name for name, frame in zip(names, frames, strict=True) if frame.isStreaming]
    if streams and len(streams) < len(names):
        others = [name for name in names if name not in streams]
        raise SpecError(
            f"{', '.join(streams)}: read with readStream, and {', '.join(others)}: with read; read all in one way"
        )
    return bool(streams)


def _with_ends(names: Sequence[str], frames: Sequence[DataFrame], streaming: bool) -> list[DataFrame]:
    """The inputs, their columns of signs last, or left out if they are no streams."""
    missing = [name for name, frame in zip(names, frames, strict=True) if not has_signs(frame, name)]
    if streaming and missing:
        raise SpecError(
            f"{', '.join(missing)}: say when it ends, in a column {EVENT!r} (watersmeet.spark.with_events gives it); a "
            f"join of several streams waits for their ends. Endless streams are joined two at a time, by wms.join"
        )
    return [
        frame if name in missing else signs_last(frame, keep=streaming)
        for name, frame in zip(names, frames, strict=True)
    ]


def _group_count(frame: DataFrame, partitions: int | None, columns: Sequence[str | None]) -> int:
    if any(columns):
        groups = checked_partitions(frame, partitions)
        copied = columns.count(None)
        if copied and partitions is None:
            return max(1, min(groups, (len(columns) - copied) // copied))
        return groups
    if partitions not in (None, 1):
        raise SpecError(
            f"partitions={partitions!r} cannot be: bands alone do not say which rows can meet, so all go to one task; "
            f"leave partitions= out, or add an equality"
        )
    return 1


def _output_schema(spec: MultiSpec, schemas: Sequence[st.StructType]) -> st.StructType:
    types = [schemas[number].fields[i].dataType for number, kept in enumerate(spec.kept) for i in kept]
    return st.StructType([st.StructField(name, type_) for name, type_ in zip(spec.schema.names, types, strict=True)])


@dataclass(frozen=True)
class MultiFactory(Recipe):
    """A join of several inputs and the name of its algorithm.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"id": pa.int64()})
    >>> MultiFactory.of(MultiSpec.of({"r": schema, "s": schema}, "r.id = s.id"), "auto").algorithm
    'confluence'
    """

    spec: MultiSpec
    algorithm: str

    @classmethod
    def of(cls, spec: MultiSpec, algorithm: str) -> MultiFactory:
        """A factory for an algorithm; an error if there is none of this name, or it cannot carry out the spec."""
        name = algorithm if algorithm != "auto" else "miner" if spec.has_bands else "confluence"
        if name not in planner.MULTIWAY:
            known = ", ".join(sorted(planner.MULTIWAY))
            raise SpecError(f"there is no algorithm {algorithm!r}; there are auto, {known}")
        found = cls(spec, name)
        found.build(found.least_memory(), MemoryStore()).close()  # says what it cannot do
        return found

    @property
    def fingerprint(self) -> str:
        """Of the join and its algorithm."""
        return f"{self.spec.fingerprint}-{self.algorithm}"

    def described(self) -> dict[str, Any]:
        """The join for its state."""
        return described("multijoin", self.spec, self.algorithm)

    def least_memory(self) -> int:
        """The smallest budget the algorithm can work in."""
        return planner.MULTIWAY[self.algorithm].least_memory(self.spec)

    @property
    def punctuated(self) -> bool:
        """Whether it makes use of punctuations."""
        return False

    def punctuations(self, told: Punctuations) -> Iterator[Punctuate]:
        """What an operator is told of these."""
        return iter(())

    def rows_held(self, operator: Keepable, seen: int) -> int:
        """Rows that are remembered."""
        return seen

    def build(self, memory: int, store: Store) -> Keepable:
        """An operator that has seen nothing."""
        return planner.build_multiway(self.spec, memory, store, self.algorithm)

    def restore(self, snapshot: Snapshot, memory: int, store: Store) -> Keepable:
        """An operator that goes on where the snapshot was taken."""
        return planner.MULTIWAY[self.algorithm].restore(self.spec, snapshot, memory, store)


def routes(spec: MultiSpec) -> list[str | None]:
    """The column of each input by whose value its rows are sent to their group; None: they are copied to all groups.

    Columns that conditions make equal, directly or through others, are of one class. The class that most inputs have
    a column of decides (the first, if there are several); a whole result has one value of it, so it is found in one
    group, whatever is copied. The preserved input is never copied: only classes count that have a column of it.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    >>> inputs = {name: schema for name in "rst"}
    >>> routes(MultiSpec.of(inputs, ["r.a = s.a", "s.a = t.b"]))
    ['a', 'a', 'b']
    >>> routes(MultiSpec.of(inputs, ["r.a = s.a", "s.b = t.b"]))
    ['a', 'a', None]
    >>> routes(MultiSpec.of(inputs, ["r.a = s.a", "s.b = t.b"], how={"t": "left"}))
    [None, 'b', 'b']
    """
    classes: list[set[tuple[int, str]]] = []
    for edge in spec.edges:
        if edge.width is None:
            ends = {(edge.first, edge.first_column), (edge.second, edge.second_column)}
            touched = [each for each in classes if each & ends]
            classes = [each for each in classes if not each & ends]
            classes.append(ends.union(*touched))
    if spec.preserved is not None:
        classes = [each for each in classes if any(number == spec.preserved for number, _ in each)]
    order = [(edge.first, edge.first_column) for edge in spec.edges]
    best = max(
        sorted(classes, key=lambda each: min(order.index(end) for end in each if end in order)),
        key=lambda each: len({number for number, _ in each}),
        default=set[tuple[int, str]](),
    )
    return [min((column for i, column in best if i == number), default=None) for number in range(len(spec.names))]
