"""A little of `make fuzz` with every run of the tests: the same inputs each time; and that a fault would be found."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from fuzz import guard
from fuzz.__main__ import feed
from fuzz.targets import TARGETS, Target
from fuzz.written import (
    as_text,
    directory_of,
    run_directory,
    run_with,
    sound_description,
    sound_segment,
    with_directory,
)

INPUTS = 25


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_any_input_gives_a_result_or_a_sentence(target: Target) -> None:
    assert feed(target, INPUTS) >= INPUTS // 2


FOUND = {
    "runs, directory": run_with(run_directory()[0], b'{"rows": 100, "block_rows": 32, "nulls": [false, [1]]}'),
    "segments, directory": with_directory(
        sound_segment(), as_text({**directory_of(sound_segment()), "arrays": {"a": [64, 0, 0, "'<i8'", [1 << 40]]}})
    ),
    "segments": with_directory(
        sound_segment(), as_text({**directory_of(sound_segment()), "arrays": {"a": [64, 64, 0, "'|O'", [8]]}})
    ),
    "described joins": {**sound_description(), "inputs": [{"name": "left", "columns": [], "schema": "AAAA"}] * 2},
    "manifests, content": b"[" * 100_000 + b'\n{"checksum": 0}\n',
    "XML": b"<?xml version='1.0' encoding='nobody-knows'?><s/>",
    "memory": "9" * 400,
    "lengths of time": "9" * 30 + " d",
    "multijoin's words": ["a=a.csv", "a.id = b.id", "a.at = b.at:90s", "² rows", "b:²"],
    "--page": "²",
    "--queries": b"[" * 100_000,
    "paths": "x" * 5_000 + ".csv",
    "lookup-join's words": [f"a={'9' * 5_000}", "towns:id=id", "a:left"],
    "state": ("state.json", [(0, 0.140625, 0)]),
    "NDJSON": b'{"\xff": 1}',
}
"""What has once made each of these fail."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str) -> None:
    (target,) = [each for each in TARGETS if each.name == name]
    with guard.guarded(target.room):
        target.ask(FOUND[name])


def _hang(_: int) -> None:
    time.sleep(3600)


def _much(_: int) -> None:
    bytearray(guard.ROOM + (64 << 20))


def _crash(_: int) -> None:
    raise KeyError("nobody has thought of this")


@pytest.mark.parametrize(
    ("fault", "error"), [(_hang, guard.Hung), (_much, MemoryError), (_crash, KeyError)], ids=["hang", "memory", "error"]
)
def test_a_fault_is_found(fault: Callable[[int], None], error: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SECONDS", 0.05)
    with pytest.raises(error):
        feed(Target("a parser with a fault", st.integers(0, 3), fault), INPUTS)
