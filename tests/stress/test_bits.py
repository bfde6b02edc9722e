"""A few hundred of the flips of `make bits`; and that a flip that does harm would be seen."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from stress import bits
from watersmeet.core.errors import SegmentError
from watersmeet.runs import matched_bits

COUNT = {"spilled": 60, "relations": 80, "states": 80}


@pytest.mark.parametrize("source", COUNT)
def test_every_flip_is_named_or_makes_no_difference(source: str) -> None:
    found = list(bits.flips(COUNT[source], 5, source))
    assert [flip for flip in found if flip.outcome == bits.BAD] == []
    outcomes = Counter(flip.outcome for flip in found)
    assert outcomes[bits.DETECTED] > COUNT[source] // 4, outcomes


def test_a_flip_that_nobody_checks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without their checksum, bits that say which rows have a partner are believed, and results are missing."""
    monkeypatch.setattr(matched_bits, "check_bits", lambda *_: None)
    monkeypatch.setattr(bits, "place", lambda draw, size: draw.randrange(8 * (size - matched_bits._TRAILER.size)))
    sound, right = bits._state(False)
    bitmaps = [
        path for path in sound.glob("group-*/operator-*") if bits.kind_of("", path.read_bytes()[:64]) == "bitmaps"
    ]

    def look(where: Path) -> bool:
        return bits._batch(bits._stream(where, False), bits._LAST) == right

    draw = random.Random(3)
    found = [
        bits._of_a_directory(draw, sound, file.relative_to(sound), "bitmaps", look)
        for _ in range(8)
        for file in bitmaps
    ]
    assert any("other results" in flip.told for flip in found), found


def test_an_error_that_names_no_file_is_bad() -> None:
    assert bits.judged(SegmentError("'run-1' was altered"), "'run-1'")[0] == bits.DETECTED
    assert bits.judged(SegmentError("something was altered"), "'run-1'")[0] == bits.BAD
    assert bits.judged(KeyError("run-1"), "'run-1'")[0] == bits.BAD
    assert bits.judged(None, "'run-1'")[0] == bits.HARMLESS
