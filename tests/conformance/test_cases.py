"""The generator itself: its cases are reproducible, and between them go through everything they promise."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from watersmeet.checks import Case, make_case
from watersmeet.checks.bands import BAND_KINDS
from watersmeet.checks.canonical import canonical_rows
from watersmeet.checks.keys import KEY_KINDS
from watersmeet.checks.oracle.nested_loops import ReferenceJoin
from watersmeet.checks.payload import PAYLOAD_TYPES
from watersmeet.core.protocol import Arrive, End, Stall
from watersmeet.core.spec import JoinSpec, Output

LEAST = 48 * 1024


class Spiller(ReferenceJoin):
    """Stands for an operator that needs some tens of KiB and can spill."""

    spills = True

    @classmethod
    def least_memory(cls, spec: JoinSpec) -> int:
        return LEAST


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [make_case(seed, Spiller) for seed in range(600)]


def batches(case: Case) -> Iterator[Arrive]:
    return (move.event for move in case.moves if isinstance(move.event, Arrive))


def test_a_seed_makes_the_same_case_again(cases: list[Case]) -> None:
    for case in cases[:20]:
        again = make_case(case.seed, Spiller)
        assert str(again) == str(case)
        assert canonical_rows(again.left) == canonical_rows(case.left)
        assert canonical_rows(again.right) == canonical_rows(case.right)
    assert len({str(case) for case in cases}) == len(cases)


def test_the_batches_are_the_tables_and_each_input_ends_once(cases: list[Case]) -> None:
    for case in cases:
        ends = [move.event.input for move in case.moves if isinstance(move.event, End)]
        assert sorted(ends) == [0, 1]
        for side in (0, 1):
            arrived = [event.batch for event in batches(case) if event.input == side]
            assert all(batch.schema.equals(case.spec.input(side), check_metadata=True) for batch in arrived)
            rows = [row for batch in arrived for row in canonical_rows(batch)]
            assert rows == canonical_rows(case.table(side)), case


def test_all_kinds_of_keys_and_payload(cases: list[Case]) -> None:
    assert {kind for case in cases for kind in case.kinds} == set(KEY_KINDS)
    seen = {str(field.type) for case in cases for side in (0, 1) for field in case.spec.input(side)}
    assert {str(kind) for kind in PAYLOAD_TYPES} <= seen
    assert any(kind.startswith("dictionary<values=timestamp") for kind in seen)
    assert {len(case.spec.on) for case in cases} == {1, 2, 3}


@pytest.mark.parametrize(
    "promise, least_share",
    [
        (lambda case: case.memory == case.least, 0.3),
        (lambda case: case.least < case.memory < 2 * case.least, 0.2),
        (lambda case: case.memory > 100 * case.least, 0.04),
        (lambda case: case.left.nbytes + case.right.nbytes > 1.2 * case.memory, 0.5),
        (lambda case: any(isinstance(move.event, Stall) for move in case.moves), 0.7),
        (lambda case: case.spec.output is Output.ROWS, 0.7),
        (lambda case: case.spec.output is Output.PAIRS, 0.03),
        (lambda case: case.spec.output is Output.COUNTS, 0.03),
        (lambda case: 1 in case.fuel, 0.1),
        (lambda case: bool(case.restores), 0.08),
        (lambda case: not case.left.num_rows or not case.right.num_rows, 0.01),
        (lambda case: case.pairs and len(case.pairs) == case.left.num_rows * case.right.num_rows, 0.01),
        (lambda case: len(case.pairs) > 60, 0.3),
        (lambda case: len(case.pairs) > 1_000, 0.01),
        (lambda case: any(column.null_count for column in case.left.columns), 0.4),
        (lambda case: any(event.batch.num_rows == 0 for event in batches(case)), 0.3),
        (lambda case: any(event.batch.num_rows == 1 for event in batches(case)), 0.2),
        (lambda case: any(c.offset for event in batches(case) for c in event.batch.columns), 0.5),
        (lambda case: any(move.polls == 0 for move in case.moves), 0.5),
        (lambda case: set(case.spec.left.names) & set(case.spec.right.names) - set(case.spec.keys(0)), 0.1),
        (lambda case: any(not field.nullable for field in case.spec.left), 0.1),
        (lambda case: longest_text(case) > 3_000, 0.01),
    ],
)
def test_promises(cases: list[Case], promise: object, least_share: float) -> None:
    assert callable(promise)
    kept = sum(bool(promise(case)) for case in cases)
    assert kept >= least_share * len(cases)


def longest_text(case: Case) -> int:
    columns = [c for side in (0, 1) for c in case.table(side).columns if c.type in (pa.string(), pa.large_string())]
    return max((len(text or "") for column in columns for text in column.to_pylist()), default=0)


def test_printed_case_tells_how_to_make_it_again() -> None:
    text = str(make_case(12, Spiller))
    assert text.startswith("case 12: ")
    assert "moves" in text
    assert "least 48 KiB" in text


class RangeJoin(ReferenceJoin):
    """The oracle, offered bands, too."""

    joins_ranges = True


def test_bands_of_all_kinds_for_joins_that_take_them() -> None:
    cases = [make_case(seed, RangeJoin) for seed in range(300)]
    with_band = [case for case in cases if case.spec.band is not None]
    assert 0.4 < len(with_band) / len(cases) < 0.6
    assert {case.kinds[-1].removeprefix("band of ") for case in with_band} == set(BAND_KINDS)
    alone = [case for case in with_band if not case.spec.equalities]
    assert 0.4 < len(alone) / len(with_band) < 0.8
    assert sum(len(case.pairs) > 20 for case in with_band) > len(with_band) / 3
    assert all(case.spec.band is None for case in (make_case(seed, ReferenceJoin) for seed in range(20)))
    # A width that lets everything through, or nothing, would prove little.
    shares = [len(case.pairs) / max(1, case.left.num_rows * case.right.num_rows) for case in alone]
    assert sum(0 < share < 0.5 for share in shares) > len(alone) / 2
