"""Orders of look-ups follow what matches now, however long the join has run."""

from __future__ import annotations

import pyarrow as pa
import pytest

from watersmeet.core.multi_spec import MultiSpec
from watersmeet.policies import probing
from watersmeet.policies.probing import ProbingOrder, SteadyOrder

SCHEMA = pa.schema({"a": pa.int64()})
SPEC = MultiSpec.of(dict.fromkeys("rst", SCHEMA), ["r.a = s.a", "r.a = t.a"])


def look_up(order: ProbingOrder, batches: int, in_s: float, in_t: float, rows: int = 1000) -> None:
    """Rows of r look for those of s and t, and find so many each."""
    for _ in range(batches):
        order.count(0, 1, rows, int(in_s * rows))
        order.count(1, 1, rows, int(in_t * rows))


@pytest.mark.parametrize("kind", [ProbingOrder, SteadyOrder])
@pytest.mark.parametrize("batches", [100, 10_000])
def test_an_order_turns_with_the_inputs_as_soon_after_a_year_as_after_an_hour(
    kind: type[ProbingOrder], batches: int
) -> None:
    order = kind(SPEC)
    look_up(order, batches, in_s=5, in_t=1)
    assert [step.input for step in order.of(0)] == [2, 1]
    look_up(order, 4 * probing._REMEMBERED // 1000, in_s=1, in_t=5)
    assert [step.input for step in order.of(0)] == [1, 2]


def test_without_forgetting_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_REMEMBERED", 1 << 60)
    order = ProbingOrder(SPEC)
    look_up(order, 10_000, in_s=5, in_t=1)
    look_up(order, 4 * 66, in_s=1, in_t=5)
    assert [step.input for step in order.of(0)] == [2, 1]


def test_forgetting_leaves_how_often_rows_match_as_it_is() -> None:
    order = ProbingOrder(SPEC)
    look_up(order, 5_000, in_s=3, in_t=0.5)
    assert order.matches(0, 1) == pytest.approx(3, rel=0.01)
    assert order.matches(1, 1) == pytest.approx(0.5, rel=0.01)
    again = ProbingOrder(SPEC)
    again.load(order.to_state())
    assert again.matches(0, 1) == order.matches(0, 1)
