"""From a spec to an operator: known names, known options, enough memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from watersmeet.core.errors import BudgetError, SpecError
from watersmeet.core.protocol import JoinOperator
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.joins.confluence import Confluence
from watersmeet.joins.progressive.symmetric_hash import SymmetricHash
from watersmeet.joins.progressive.xjoin import XJoin
from watersmeet.planner import ALGORITHMS, OPERATORS, build
from watersmeet.policies.flush import FlushLargest
from watersmeet.spill import MemoryStore

SPEC = JoinSpec(pa.schema({"id": pa.int64(), "v": pa.string()}), pa.schema({"id": pa.int64()}), parse_on("id"))


def test_auto_is_confluence_and_a_name_is_what_it_says() -> None:
    assert type(build(SPEC, 1 << 20, MemoryStore())) is Confluence
    assert type(build(SPEC, 1 << 20, MemoryStore(), "xjoin")) is XJoin
    assert type(build(SPEC, 1 << 20, MemoryStore(), "symmetric_hash")) is SymmetricHash


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"there is no algorithm 'bogo'; there are auto, .*symmetric_hash.*xjoin"):
        build(SPEC, 1 << 20, MemoryStore(), "bogo")


def test_options_reach_the_operator_and_unknown_ones_are_refused() -> None:
    class Chosen(FlushLargest):
        pass

    policy = Chosen()
    join = build(SPEC, 1 << 20, MemoryStore(), "xjoin", flush=policy)
    assert join._flush_policy is policy  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="symmetric_hash does not take the options 'flush'"):
        build(SPEC, 1 << 20, MemoryStore(), "symmetric_hash", flush=policy)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_operator_works_in_its_least_memory_and_in_no_less(name: str) -> None:
    least = ALGORITHMS[name].least_memory(SPEC)
    join = build(SPEC, least, MemoryStore(), name)
    assert isinstance(join, JoinOperator)
    assert join.spec is SPEC and join.name == name and join.phase == "arriving"
    assert join.budget.total == least and 0 < join.budget.used <= least
    join.check()
    with pytest.raises(BudgetError, match=f"too little for the {name} join of these rows; allow at least"):
        build(SPEC, least - 1, MemoryStore(), name)


def test_wider_rows_need_more() -> None:
    wide = pa.schema({"id": pa.int64(), **{f"c{i}": pa.decimal256(70, 2) for i in range(20)}})
    assert XJoin.least_memory(JoinSpec(wide, wide, parse_on("id"))) > XJoin.least_memory(SPEC)


@pytest.mark.parametrize("registry", OPERATORS.values(), ids=list(OPERATORS))
def test_every_listed_operator_has_the_name_that_it_is_listed_by(registry: Mapping[str, Any]) -> None:
    assert {name: kind.name for name, kind in registry.items()} == {name: name for name in registry}
    assert all(name in registry for name in registry) and "bogo" not in registry


def test_a_join_imports_no_operator_but_its_own() -> None:
    """Imports are most of what a first join takes."""
    program = (
        "import sys, pyarrow as pa, watersmeet as wm\n"
        "rows = pa.table({'id': [1]})\n"
        "assert wm.join(rows, rows, on='id').table().num_rows == 1\n"
        "print(*sorted(name for name in sys.modules if name.startswith('watersmeet.joins.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {name.split(".")[2] for name in done.stdout.split()} == {"confluence"}
