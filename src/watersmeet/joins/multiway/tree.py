"""A tree of joins as one operator: results of one join are the input of the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from watersmeet.core.errors import BudgetError, ProtocolError, SpecError
from watersmeet.core.join_tree import Branch, Shape, left_deep, parse_shape
from watersmeet.core.kinds import KINDS, refuse_kind
from watersmeet.core.multi_spec import Edge, MultiSpec
from watersmeet.core.protocol import Arrive, End, Event, Snapshot, Stall, Status, Step
from watersmeet.core.spec import Equal, JoinSpec, Output
from watersmeet.engine.compose import Cascade, member_prefix
from watersmeet.engine.phases import Phase, phase_of
from watersmeet.engine.snapshot import FORMAT, check_snapshot
from watersmeet.joins.multiway.mjoin import MJoin
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.memory import JointBudget, format_bytes
from watersmeet.spill.shared_store import SharedStore
from watersmeet.spill.store import Store


@dataclass
class _Node:
    """One join of the tree."""

    branch: Branch
    join: XJoin | MJoin
    parent: int
    """-1 at the top."""
    place: int
    """Which input of its parent it is."""
    status: Status = Status.NEED_INPUT


class JoinTree(Cascade):
    """Joins that hand their results on to each other, within one budget.

    ```
    r ─┐
       ├─▶ r ⋈ s ─┐
    s ─┘          ├─▶ results        a node of two inputs is an XJoin, one of more an MJoin
    t ────────────┘
    ```

    Intermediate results are stored like any other input: that is what a tree costs, and where conditions find many
    partners for a row it pays, for a single join of all inputs would find the same combinations again and again [1]_.
    Only columns that are needed further up are passed on.

    >>> import pyarrow as pa
    >>> from watersmeet.spill.store import MemoryStore
    >>> schema = pa.schema({"a": pa.int64()})
    >>> spec = MultiSpec.of({name: schema for name in "rst"}, ["r.a = s.a", "s.a = t.a"])
    >>> tree = JoinTree(spec, 1 << 20, MemoryStore(), tree=(("r", "s"), "t"))
    >>> found = []
    >>> for number in range(3):
    ...     tree.receive(Arrive(number, pa.record_batch({"a": [7, number]})))
    ...     while (step := tree.poll(0.0, 1000)).status is Status.HAS_OUTPUT or step.out is not None:
    ...         found += step.out.to_pylist() if step.out is not None else []
    >>> found
    [{'a': 7}]

    .. [1] S. Viglas, J. Naughton, J. Burger: Maximizing the Output Rate of Multi-Way Join Queries over Streaming
       Information Sources, VLDB 2003, sections 2.3, 3.6 and A.2.
    """

    name: ClassVar[str] = "tree"
    spills: ClassVar[bool] = True

    def __init__(
        self, spec: MultiSpec, memory: int, store: Store, *, tree: Shape | None = None, flush: str = "auto"
    ) -> None:
        """`tree` tells which inputs are joined first, as nested sequences of names, left-deep unless given; `flush` is
        how joins of more than two inputs choose what leaves memory, see `MJoin`.
        """
        _refuse_unfit(spec)
        self._flush = flush
        self.spec = spec
        self.store = store
        self.shape = _shape(spec, tree)
        self._columns = _Columns(spec, self.shape)
        least = _least(self._columns)
        if memory < sum(least):
            raise BudgetError(
                f"{format_bytes(memory)} of memory are too little for the tree join of these rows; allow at least "
                f"{format_bytes(sum(least))}"
            )
        # Everybody gets what is needed, and an equal share of the rest.
        share = (memory - sum(least)) // len(least)
        self._nodes = [
            self._make_node(number, branch, least[number] + share)
            for number, branch in enumerate(self._columns.branches)
        ]
        self.budget = JointBudget(memory, [node.join.budget for node in self._nodes])
        self._leaves = {
            child: (number, place)
            for number, node in enumerate(self._nodes)
            for place, child in enumerate(node.branch.children)
            if isinstance(child, int)
        }
        self._numbered = [0] * len(spec.names)
        self._ended = [False] * len(spec.names)
        self._must_poll = False

    def _make_node(self, number: int, branch: Branch, memory: int) -> _Node:
        node_spec = self._columns.node_spec(branch)
        store = SharedStore(self.store, member_prefix(number))
        join: XJoin | MJoin
        if isinstance(node_spec, JoinSpec):
            join = XJoin(node_spec, memory, store)
        else:
            join = MJoin(node_spec, memory, store, flush=self._flush)
        for above, other in enumerate(self._columns.branches):
            if branch in other.children:
                return _Node(branch, join, above, other.children.index(branch))
        return _Node(branch, join, -1, 0)

    @classmethod
    def least_memory(cls, spec: MultiSpec, *, tree: Shape | None = None, flush: str = "auto") -> int:
        """The smallest budget this tree can work in, if no single row is large."""
        _refuse_unfit(spec)
        return sum(_least(_Columns(spec, _shape(spec, tree))))

    @classmethod
    def widest_row(cls, spec: MultiSpec, memory: int) -> int:
        """Bytes that a row may take for certain in so much memory: at the top it stands beside those of all others."""
        return memory // (48 * len(spec.names) * (len(spec.names) - 1))

    # --- the protocol ---

    def receive(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, Stall):
            for node in self._nodes:
                node.join.receive(event)
                if node.status is Status.NEED_INPUT:
                    node.status = Status.HAS_WORK
            return
        if not isinstance(event, Arrive | End):
            raise ProtocolError(f"{self.name} does not take {type(event).__name__}")
        if self._ended[event.input]:
            raise ProtocolError(f"{self.spec.names[event.input]} has ended; nothing can follow")
        number, place = self._leaves[event.input]
        node = self._nodes[number]
        if isinstance(event, End):
            self._ended[event.input] = True
            node.join.receive(End(place))
        else:
            self._check_arrival(event)
            first = self._numbered[event.input]
            self._numbered[event.input] += event.batch.num_rows
            node.join.receive(Arrive(place, self._columns.leaf(event.input, event.batch, first)))
        node.status = Status.HAS_OUTPUT

    def _check_arrival(self, event: Arrive) -> None:
        if self._must_poll:
            raise ProtocolError("poll until what was received is worked off, before the next arrival")
        if event.batch.schema != self.spec.input(event.input):
            raise SpecError(
                f"a batch of {self.spec.names[event.input]} has other columns than announced: it has "
                f"{', '.join(f'{field.name}: {field.type}' for field in event.batch.schema)}"
            )

    def poll(self, now: float, fuel: int) -> Step:
        """Let the highest join that has something to do work a little; at the top, that is a result."""
        before = self.cost
        try:
            out = self._work(now, fuel)
        except BudgetError as error:
            raise BudgetError(
                f"{error} (the tree has {format_bytes(self.budget.total)}, divided among {len(self._nodes)} joins)"
            ) from error
        status = self._joint_status(all(self._ended))
        self._must_poll = status is Status.HAS_OUTPUT
        return Step(out, status, self.cost - before)

    @property
    def _members(self) -> list[_Node]:
        return self._nodes

    def _hand_on(self, number: int, step: Step, now: float) -> pa.RecordBatch | None:
        node = self._nodes[number]
        if node.parent < 0:
            return None if step.out is None else self._columns.result(step.out)
        above = self._nodes[node.parent]
        if step.out is not None:
            above.join.receive(Arrive(node.place, step.out))
            above.status = Status.HAS_OUTPUT
        if step.status is Status.DONE:
            above.join.receive(End(node.place))
            above.status = Status.HAS_OUTPUT
        return None

    def wake_at(self) -> float | None:
        """Never: all work follows events."""
        return None

    @property
    def phase(self) -> str:
        """Arriving, reactive, clean-up or done."""
        phases = [Phase(node.join.phase) for node in self._nodes]
        done, reacting = phases[-1] is Phase.DONE, Phase.REACTIVE in phases
        return phase_of(done=done, ended=all(self._ended), reacting=reacting).value

    def close(self) -> None:
        """Let go of all rows."""
        for node in self._nodes:
            node.join.close()

    def check(self) -> None:
        """Assert the invariants."""
        self.budget.check()
        for node in self._nodes:
            node.join.check()

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """The state as of now: that of all joins."""
        nodes, segments = self._member_snapshots()
        state = {
            "format": FORMAT,
            "memory": self.budget.total,
            "tree": self.shape.describe(self.spec.names),
            "numbered": list(self._numbered),
            "ended": list(self._ended),
            "must_poll": self._must_poll,
            "nodes": nodes,
        }
        return Snapshot(self.name, self.spec.fingerprint, state, tuple(segments))

    @classmethod
    def restore(cls, spec: MultiSpec, snapshot: Snapshot, memory: int, store: Store, **options: Any) -> Self:
        """A tree that goes on where the snapshot was taken."""
        check_snapshot(cls.name, spec.fingerprint, snapshot, memory)
        tree = cls(spec, snapshot.state["memory"], store, **options)
        if tree.shape.describe(spec.names) != snapshot.state["tree"]:
            raise SpecError(f"the snapshot is of the tree {snapshot.state['tree']}; ask for that one")
        tree._numbered = list(snapshot.state["numbered"])
        tree._ended = list(snapshot.state["ended"])
        tree._must_poll = snapshot.state["must_poll"]
        for node, saved in zip(tree._nodes, snapshot.state["nodes"], strict=True):
            join: Any = node.join
            own = {"flush": tree._flush} if isinstance(join, MJoin) else {}
            node.join = type(join).restore(join.spec, Snapshot.from_json(saved), join.budget.total, join.store, **own)
            node.status = Status(saved["status"])
        tree.budget = JointBudget(snapshot.state["memory"], [node.join.budget for node in tree._nodes])
        return tree


def _refuse_unfit(spec: MultiSpec) -> None:
    if spec.has_bands:
        raise SpecError("tree joins on equal values only; for a band choose algorithm='miner'")
    if spec.window is not None:
        raise SpecError("tree knows no windows; choose algorithm='confluence' or 'mjoin', or leave window out")
    if spec.preserved is not None:
        refuse_kind(KINDS["left"], "tree", ("inner",))


def _shape(spec: MultiSpec, tree: Shape | None) -> Branch:
    return left_deep(spec) if tree is None else parse_shape(tree, spec)


def _least(columns: _Columns) -> list[int]:
    least = []
    for branch in columns.branches:
        node_spec = columns.node_spec(branch)
        if isinstance(node_spec, JoinSpec):
            least.append(XJoin.least_memory(node_spec))
        else:
            least.append(MJoin.least_memory(node_spec))
    return least


class _Columns:
    """What passes between the joins of a tree: every column under a name that tells its input."""

    def __init__(self, spec: MultiSpec, shape: Branch) -> None:
        self._spec = spec
        self.branches = list(shape.branches())
        self._top = shape
        self._outputs = []
        for number, kept in enumerate(spec.kept):
            if spec.output is Output.ROWS:
                self._outputs += [_column(number, place) for place in kept]
            elif spec.output is Output.PAIRS:
                self._outputs.append(_numbers(number))
        self._leaves = [self._leaf_schema(number) for number in range(len(spec.names))]

    def _leaf_schema(self, number: int) -> pa.Schema:
        schema = self._spec.input(number)
        keys = [_column(number, schema.get_field_index(column)) for column in self._spec.keys(number)]
        fields = {
            **{_column(number, place): field for place, field in enumerate(schema)},
            _numbers(number): pa.field("number", pa.int64(), nullable=False),
        }
        wanted = dict.fromkeys([*keys, *(name for name in self._outputs if name in fields)])
        return pa.schema([fields[name].with_name(name) for name in wanted])

    def leaf(self, number: int, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """A batch of an input as the tree takes it; its rows are numbered from `first` on."""
        columns = {_column(number, place): column for place, column in enumerate(batch.columns)}
        columns[_numbers(number)] = pa.array(np.arange(first, first + batch.num_rows))
        schema = self._leaves[number]
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def node_spec(self, branch: Branch) -> JoinSpec | MultiSpec:
        """What one join of the tree does; but for the top, it hands on whatever it was given."""
        schemas = [self._schema(child) for child in branch.children]
        edges = self._edges_at(branch)
        output = self._spec.output if branch is self._top and self._spec.output is Output.COUNTS else Output.ROWS
        names = tuple(self._called(child) for child in branch.children)
        if len(schemas) == 2:
            on = tuple(
                Equal(edge.first_column, edge.second_column)
                if edge.first == 0
                else Equal(edge.second_column, edge.first_column)
                for edge in edges
            )
            return JoinSpec(schemas[0], schemas[1], on, output=output, names=(names[0], names[1]))
        return MultiSpec(names, tuple(schemas), tuple(edges), output)

    def _schema(self, child: int | Branch) -> pa.Schema:
        if isinstance(child, int):
            return self._leaves[child]
        return pa.schema([field for each in child.children for field in self._schema(each)])

    def _called(self, child: int | Branch) -> str:
        return self._spec.names[child] if isinstance(child, int) else child.describe(self._spec.names)

    def _edges_at(self, branch: Branch) -> list[Edge]:
        """The conditions that this join checks: those between two of its children."""
        home = {
            number: place
            for place, child in enumerate(branch.children)
            for number in ((child,) if isinstance(child, int) else child.inputs)
        }
        return [
            Edge(home[edge.first], self._end(edge, 0), home[edge.second], self._end(edge, 1))
            for edge in self._spec.edges
            if edge.first in home and edge.second in home and home[edge.first] != home[edge.second]
        ]

    def _end(self, edge: Edge, side: int) -> str:
        number = edge.input(side)
        return _column(number, self._spec.input(number).get_field_index(edge.column(side)))

    def result(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A result of the top join in the order of the output's columns."""
        columns = [batch.column(batch.schema.get_field_index(name)) for name in self._outputs]
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)


def _column(number: int, place: int) -> str:
    """What a column of an input is called within the tree."""
    return f"{number}.{place}"


def _numbers(number: int) -> str:
    """What the row numbers of an input are called within the tree."""
    return f"{number}#"
