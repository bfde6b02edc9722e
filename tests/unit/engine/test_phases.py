"""The phases of an operator, and how deep operators are built."""

from __future__ import annotations

import pyarrow as pa
import pytest

from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.engine.phases import LATER, NEXT, Phase, diagram, phase_of
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.planner import OPERATORS
from watersmeet.spill.store import MemoryStore


def depth(kind: type) -> int:
    """Classes of ours from a class up to the root, on the longest way."""
    ours = kind.__module__.startswith("watersmeet.")
    return ours + max((depth(base) for base in kind.__bases__), default=0)


@pytest.mark.parametrize("kind", [kind for listed in OPERATORS.values() for kind in listed.values()])
def test_an_operator_is_a_shell_at_most_one_layer_and_a_paper(kind: type) -> None:
    assert depth(kind) <= 3


def test_every_phase_is_reached_and_left() -> None:
    assert LATER[Phase.ARRIVING] == frozenset(Phase) and LATER[Phase.DONE] == {Phase.DONE}
    assert LATER[Phase.CLEANING_UP] == {Phase.CLEANING_UP, Phase.DONE}
    assert set(NEXT.values()) == set(Phase)


def test_the_diagram_has_every_transition() -> None:
    drawn = diagram().splitlines()
    assert len(drawn) == len(NEXT)
    for line, ((before, why), after) in zip(drawn, NEXT.items(), strict=True):
        assert line.startswith(before.value) and f" {why} " in line and line.endswith(f"▶ {after.value}")


def test_what_ends_counts_more_than_what_is_at_hand() -> None:
    assert phase_of(done=True, ended=True, reacting=True) is Phase.DONE
    assert phase_of(done=False, ended=True, reacting=True) is Phase.CLEANING_UP
    assert phase_of(done=False, ended=False, reacting=False) is Phase.ARRIVING


def test_a_phase_that_nothing_leads_to_is_noticed() -> None:
    schema = pa.schema({"id": pa.int64()})
    join = XJoin(JoinSpec(schema, schema, parse_on("id")), 1 << 20, MemoryStore())
    join.check()
    join._closed = [True, True]
    join.check()
    join._closed = [False, False]
    with pytest.raises(AssertionError, match="from clean-up nothing leads to arriving"):
        join.check()
