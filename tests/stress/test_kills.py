"""A few of the kills of `make kills`; and that a command that leaves its files is seen."""

from __future__ import annotations

import pytest

from stress import kills


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> kills.Killing:
    return kills.Killing(tmp_path_factory.mktemp("kills"), ("join",))


def test_what_is_killed_is_whole_or_as_before_and_the_next_run_sweeps(killing: kills.Killing) -> None:
    outcomes = [killing.outcome(kill) for kill in kills.kills(2, 4, ["join"])]
    assert [told for word, told in outcomes if told or word in ("BAD", "failed")] == []
    assert any(word != "was over" for word, _ in outcomes), outcomes


def test_what_the_next_run_leaves_is_seen(killing: kills.Killing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "left_behind", lambda here: ["spill/segment"])
    word, told = killing.outcome(kills.Kill(0, "join", 0.5, False))
    assert (word, told) == ("BAD", "not swept by the next run: spill/segment")
