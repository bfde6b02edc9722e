"""A few hundred of the flips of `make bits`; and that a flip that does harm would be seen."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from stress import bits, flipped_spill, flipped_states, flips
from stress.flips import BAD, DETECTED, HARMLESS
from watersmeet.core.errors import SegmentError
from watersmeet.runs import matched_bits

COUNT = {"spilled": 60, "runs": 20, "relations": 80, "states": 80}


@pytest.mark.parametrize("source", COUNT)
def test_every_flip_is_named_or_makes_no_difference(source: str) -> None:
    found = list(bits.flips(COUNT[source], 5, source))
    assert [flip for flip in found if flip.outcome == BAD] == []
    outcomes = Counter(flip.outcome for flip in found)
    assert outcomes[DETECTED] > COUNT[source] // 4, outcomes


def test_a_flip_that_nobody_checks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their checksum, bits that say which rows have a partner are believed, and results are missing."""
    monkeypatch.setattr(matched_bits, "check_bits", lambda *_: None)

    def place(draw: random.Random, content: bytes) -> int:
        return draw.randrange(8 * len(flips.parts(content)["bits"]))

    sound, right = flipped_states.state("join"), flipped_states._right("join", "batches")

    def look(where: Path) -> bool:
        return flipped_states.played("join", where) == right

    draw = random.Random(3)
    found = [
        flips.of_a_directory(draw, sound, file, "bitmaps", look, place)
        for _ in range(8)
        for file in flipped_states.files_of(sound)["bitmaps"]
    ]
    assert any("other results" in flip.told for flip in found), found


def test_state_of_every_verb_is_flipped_and_every_kind_of_file() -> None:
    kinds = {kind for name in flipped_states.NAMES for kind in flipped_states.files_of(flipped_states.state(name))}
    assert kinds == {
        "batches", "bitmaps", "manifests", "marks, known", "results that wait", "routing, load", "routing, routing",
        "runs", "runs of the query", "segments", "state.json", "versions",
    }  # fmt: skip


def test_the_name_is_that_of_the_file_where_several_operators_have_a_part_of_one_store() -> None:
    """Each of them calls its own `run-0-1`; who looks for the file must be told which it is."""
    tree = next(each for each in flipped_spill.joins() if each[0] == "multijoin by tree")
    found = list(flipped_spill.of_one(random.Random(1), *tree, count=8))
    assert [flip for flip in found if flip.outcome == BAD] == []
    assert any(flip.outcome == DETECTED and "'n0-" in flip.told for flip in found), found


def test_an_error_that_names_no_file_is_bad() -> None:
    assert flips.judged(SegmentError("'run-1' was altered"), "'run-1'")[0] == DETECTED
    assert flips.judged(SegmentError("something was altered"), "'run-1'")[0] == BAD
    assert flips.judged(SegmentError("run-12 was altered"), "run-1")[0] == BAD
    assert flips.judged(KeyError("run-1"), "'run-1'")[0] == BAD
    assert flips.judged(None, "'run-1'")[0] == HARMLESS
