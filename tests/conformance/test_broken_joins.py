"""A suite that catches nothing proves nothing: joins broken in one way each, every one of which it must catch."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pyarrow as pa
import pytest

from watersmeet.checks import ConformanceError, conform
from watersmeet.checks.__main__ import main
from watersmeet.checks.oracle import nested_loops as reference
from watersmeet.checks.oracle.nested_loops import ReferenceJoin
from watersmeet.core.cost import Cost
from watersmeet.core.protocol import Arrive, End, Event, Snapshot, Status, Step
from watersmeet.core.spec import JoinSpec, Output
from watersmeet.joins.confluence import Confluence
from watersmeet.spill.store import Store

CASES = 60


class DropsAPair(ReferenceJoin):
    """Forgets the first pair of each batch, once it has handed out ten."""

    def poll(self, now: float, fuel: int) -> Step:
        step = super().poll(now, fuel)
        if self._emitted > 10 and step.out is not None and step.out.num_rows > 1:
            return Step(step.out.slice(1), step.status, step.cost)
        return step


class RepeatsAPair(ReferenceJoin):
    """Hands out the first pair again instead of the last: the count is right, the multiset is not."""

    def poll(self, now: float, fuel: int) -> Step:
        step = super().poll(now, fuel)
        if step.out is not None and step.out.num_rows > 1:
            twice = pa.Table.from_batches([step.out.slice(0, 1), step.out.slice(0, step.out.num_rows - 1)])
            return Step(twice.combine_chunks().to_batches()[0], step.status, step.cost)
        return step


class MatchesNulls(ReferenceJoin):
    """NULL equals NULL."""

    def _tables(self) -> tuple[pa.Table, pa.Table]:
        left, right = super()._tables()
        if self._pairs is None:
            keys = [self.spec.keys(side)[0] for side in (0, 1)]
            nulls = [
                [row for row, value in enumerate(table.column(key).to_pylist()) if value is None]
                for table, key in zip((left, right), keys, strict=True)
            ]
            self._pairs = reference.reference_pairs(left, right, self.spec) + [
                (i, j) for i in nulls[0] for j in nulls[1]
            ]
        return left, right


class ForgetsNaN(ReferenceJoin):
    """NaN equals nothing."""

    def _tables(self) -> tuple[pa.Table, pa.Table]:
        left, right = super()._tables()
        if self._pairs is None:
            key = [value != value for value in left.column(self.spec.keys(0)[0]).to_pylist()]
            self._pairs = [pair for pair in reference.reference_pairs(left, right, self.spec) if not key[pair[0]]]
        return left, right


class ExceedsItsBudget(ReferenceJoin):
    """Keeps more than it may for the length of one step."""

    def poll(self, now: float, fuel: int) -> Step:
        step = super().poll(now, fuel)
        self.budget.peak = max(self.budget.peak, self.budget.total + 1) if self._received else self.budget.peak
        return step


class IgnoresItsBudget(ReferenceJoin):
    """Gives itself more memory than it was given."""

    def __init__(self, spec: JoinSpec, memory: int, store: Store) -> None:
        super().__init__(spec, memory, store)
        self.budget.total *= 2


class TakesAnything(ReferenceJoin):
    """Does not notice that an input has ended."""

    def receive(self, event: Event) -> None:
        if isinstance(event, Arrive | End):
            self._ended[event.input] = False
        super().receive(event)


class HandsOutTooMuch(ReferenceJoin):
    """Minds neither fuel nor memory when it builds its output."""

    spills = True

    @classmethod
    def least_memory(cls, spec: JoinSpec) -> int:
        return 16 * 1024

    def _reserve(self) -> None:
        """Everything fits, it believes."""

    def poll(self, now: float, fuel: int) -> Step:
        return super().poll(now, 4096)


class GoesOnWhenDone(ReferenceJoin):
    """Hands out its last batch once more after it said that it was done."""

    last: pa.RecordBatch | None = None

    def poll(self, now: float, fuel: int) -> Step:
        if self.phase == "done" and self.last is not None:
            return Step(self.last, Status.DONE, Cost())
        step = super().poll(now, fuel)
        self.last = step.out
        return step


class IsDoneTooEarly(ReferenceJoin):
    """Does not wait for the second end."""

    def poll(self, now: float, fuel: int) -> Step:
        if any(self._ended) and not all(self._ended):
            self.phase = "done"
            return Step(None, Status.DONE, Cost())
        return super().poll(now, fuel)


class WaitsForEver(ReferenceJoin):
    """Needs input after both ends."""

    def poll(self, now: float, fuel: int) -> Step:
        return Step(None, Status.NEED_INPUT, Cost())


class IsStuck(ReferenceJoin):
    """Always has work, and never does it."""

    def poll(self, now: float, fuel: int) -> Step:
        return Step(None, Status.HAS_WORK, Cost())


class NeverEnds(ReferenceJoin):
    """Hands out its first results again and again: something new with every poll, and no end."""

    first: pa.RecordBatch | None = None

    def poll(self, now: float, fuel: int) -> Step:
        if self.first is not None:
            return Step(self.first, Status.HAS_OUTPUT, Cost(results=self.first.num_rows))
        step = super().poll(now, fuel)
        self.first = step.out
        return step


class HandsOutNothing(ReferenceJoin):
    """An empty batch is no batch."""

    def poll(self, now: float, fuel: int) -> Step:
        step = super().poll(now, fuel)
        if step.out is None and self.spec.output is not Output.COUNTS:
            columns = [pa.array([], kind) for kind in self.spec.schema.types]
            return Step(pa.RecordBatch.from_arrays(columns, schema=self.spec.schema), step.status, step.cost)
        return step


class RenamesAColumn(ReferenceJoin):
    """The right rows under a wrong schema."""

    def poll(self, now: float, fuel: int) -> Step:
        step = super().poll(now, fuel)
        if step.out is not None:
            names = [*step.out.schema.names[:-1], "other"]
            return Step(step.out.rename_columns(names), step.status, step.cost)
        return step


class DecidesByChance(ReferenceJoin):
    """Hands out a different number of rows each time it is run."""

    runs = itertools.count()

    def __init__(self, spec: JoinSpec, memory: int, store: Store) -> None:
        super().__init__(spec, memory, store)
        self._run = next(self.runs)

    def poll(self, now: float, fuel: int) -> Step:
        return super().poll(now, 1 + self._run % 7)


class LosesRowsOnRestore(ReferenceJoin):
    """Forgets the first batch that came before the snapshot."""

    lost = False

    def snapshot(self) -> Snapshot:
        kept = super().snapshot()
        return Snapshot(kept.algorithm, kept.fingerprint, {**kept.state, "lost": self.lost}, kept.segments)

    @classmethod
    def restore(cls, spec: JoinSpec, snapshot: Snapshot, memory: int, store: Store) -> ReferenceJoin:
        join = super().restore(spec, snapshot, memory, store)
        assert isinstance(join, LosesRowsOnRestore)
        join.lost = snapshot.state["lost"] or (join.phase == "arriving" and bool(join._received))
        if join.lost:
            side, batch = join._received[0]
            join._received[0] = side, batch.slice(0, 0)
        return join


class RepeatsOnRestore(ReferenceJoin):
    """Begins to hand out from the start again."""

    @classmethod
    def restore(cls, spec: JoinSpec, snapshot: Snapshot, memory: int, store: Store) -> ReferenceJoin:
        join = super().restore(spec, snapshot, memory, store)
        if join.phase == "clean-up":
            join._emitted = 0
        return join


class SavesEverythingAgain(ReferenceJoin):
    """A snapshot costs what is held, not what changed."""

    saved = itertools.count()

    def snapshot(self) -> Snapshot:
        writer = self.store.create(f"all-{next(self.saved)}")
        for _, batch in self._received:
            writer.write(batch.serialize())
        writer.commit()
        return super().snapshot()


class ReadsSlicesFromTheStart(ReferenceJoin):
    """Overlooks that a batch may begin in the middle of its buffers."""

    def receive(self, event: Event) -> None:
        if isinstance(event, Arrive) and event.batch.num_rows:
            columns = [self._unsliced(column) for column in event.batch.columns]
            event = Arrive(event.input, pa.RecordBatch.from_arrays(columns, schema=event.batch.schema))
        super().receive(event)

    @staticmethod
    def _unsliced(column: pa.Array) -> pa.Array:
        if not pa.types.is_integer(column.type):
            return column
        return pa.Array.from_buffers(column.type, len(column), column.buffers(), -1, 0)


class SwapsItsPayload(ReferenceJoin):
    """The right keys beside the payload of other rows."""

    def poll(self, now: float, fuel: int) -> Step:
        step = super().poll(now, fuel)
        if step.out is None or step.out.num_rows < 2:
            return step
        last = step.out.column(step.out.num_columns - 1)
        turned = pa.concat_arrays([last.slice(1), last.slice(0, 1)])
        out = pa.RecordBatch.from_arrays([*step.out.columns[:-1], turned], schema=step.out.schema)
        return Step(out, step.status, step.cost)


BROKEN = {
    DropsAPair: "lost",
    RepeatsAPair: "invented or repeated",
    MatchesNulls: "invented or repeated",
    ForgetsNaN: "lost",
    ExceedsItsBudget: "ExceedsItsBudget: AssertionError",
    IgnoresItsBudget: "has a budget of",
    TakesAnything: "did not refuse rows after the end",
    HandsOutTooMuch: "bytes at once",
    GoesOnWhenDone: "went on after it was done",
    IsDoneTooEarly: "done before all inputs have ended",
    WaitsForEver: "needs input after all inputs have ended",
    IsStuck: "does nothing",
    NeverEnds: "is not done after [0-9]+ polls",
    HandsOutNothing: "empty batch",
    RenamesAColumn: "schema",
    DecidesByChance: "differ",
    LosesRowsOnRestore: "lost",
    RepeatsOnRestore: "RepeatsOnRestore: (lost 0 and invented or repeated|counted)",
    SavesEverythingAgain: "second snapshot",
    ReadsSlicesFromTheStart: "invented or repeated",
    SwapsItsPayload: "invented or repeated",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_broken_join_is_caught(broken: type[Any]) -> None:
    with pytest.raises(ConformanceError) as caught:
        conform(broken, cases=CASES, seed=100)
    assert re.search(BROKEN[broken], str(caught.value))
    assert "case 1" in str(caught.value), "the message shows the case and its seed"


def test_the_join_they_break_is_sound() -> None:
    assert conform(ReferenceJoin, cases=CASES, seed=100).cases == CASES


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watersmeet.checks.oracle.nested_loops:ReferenceJoin", "--cases", "3"]) == 0
    assert "ReferenceJoin conforms, equality: 3 cases" in capsys.readouterr().out
    assert main(["watersmeet.checks.oracle.nested_loops:NoSuchJoin"]) == 2
    assert "cannot find operator" in capsys.readouterr().err
    assert main(["watersmeet.core.spec:parse_on"]) == 2
    assert "not a class" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("operator", "suites"),
    [
        ("confluence:Confluence", ["equality", "bands", "kinds", "near", "promises"]),
        ("progressive.metadata_mjoin:MetadataMJoin", ["equality", "promises"]),
        ("multiway.confluence:ManyConfluence", ["several inputs", "preserving", "windows of several inputs"]),
        ("multiway.mjoin:MJoin", ["several inputs"]),
        ("window.confluence:WindowConfluence", ["windows", "queries"]),
        ("window.windowed_mjoin:WindowedMJoin", ["windows of several inputs"]),
        ("asof.join:AsofJoin", ["as-of"]),
        ("lookup.meshjoin:MeshJoin", ["look-ups"]),
        ("lookup.chain:LookupChain", ["chains"]),
        ("lookup.shared:SharedLookup", ["shared look-ups"]),
    ],
)
def test_command_line_knows_what_an_operator_joins(
    operator: str, suites: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"watersmeet.joins.{operator}", "--cases", "2", "--seed", "3"]) == 0
    name = operator.partition(":")[2]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{name} conforms, {suite}" for suite in suites]
    assert all(": 2 cases" in line for line in lines)


def test_a_summary_tells_what_the_operator_did() -> None:
    """Also before it was restored from a snapshot: such cases count, and none counts twice."""
    summary = conform(Confluence, cases=20, seed=100)
    events = dict(summary.events)
    assert {"flushed", "settled before a flush"} <= set(events)
    assert 0 < events["flushed"] <= summary.cases
    assert "flushed" in str(summary)


def test_command_line_with_a_broken_join(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "Broken", DropsAPair, raising=False)
    assert main(["watersmeet.checks.oracle.nested_loops:Broken", "--cases", "30"]) == 1
    assert "DropsAPair: lost" in capsys.readouterr().err
