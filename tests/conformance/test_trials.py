"""A little of `make conformance`: every operator and suite is in it, what happened is counted, what fails is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from conformance import __main__ as command
from conformance import trials as trying
from conformance.trials import BLOCK, PROVEN_BY, Tally, Trials, all_trials, play
from conformance.ways import WAYS, operators, way
from watersmeet.checks.run import ConformanceError
from watersmeet.checks.suites import suites_of

TRIALS = {each.name: each for each in all_trials()}


def test_every_operator_and_every_listed_way_is_there() -> None:
    assert len(TRIALS) == len(all_trials()), "names tell them apart"
    assert {name for name, _ in operators()} <= {each.operator for each in TRIALS.values()}
    listed = {f"{operator}/{suite}" for operator, suite in WAYS}
    assert listed <= set(TRIALS), "a way that belongs to nobody is never gone"
    assert all(list(suites_of(operator_class)) for _, operator_class in operators())


@pytest.mark.parametrize("name", [name for name, each in TRIALS.items() if each.operator in ("on Spark", "driver")])
def test_a_case_of_each_that_is_about_no_single_operator(name: str) -> None:
    tally = play(TRIALS[name], [3])
    assert not tally.failed, tally.failed
    assert tally.total["cases"] == 1


def test_seeds_go_all_ways_and_each_way_has_all_checks() -> None:
    each = TRIALS["confluence/bands"]
    gone = Counter((each.way_of(seed), seed % BLOCK) for seed in range(BLOCK * len(each.ways)))
    assert set(gone.values()) == {1} and len(gone) == BLOCK * len(each.ways)


def _fails_at_7(seed: int, taken: Any) -> Counter[str]:
    if seed == 7:
        raise ConformanceError("lost 1 and invented or repeated 0 of 3 results")
    return Counter({"results": 3, "flushed": 1})


def test_what_fails_is_shown_with_a_line_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials("toy", "suite", {"usual": way()}, _fails_at_7)
    for module in (command, trying):
        monkeypatch.setattr(module, "by_name", lambda: {trials.name: trials})
    assert command.main(["--cases", "20", "--keep-going"]) == 1
    told = capsys.readouterr().out
    assert "FAILED toy/suite/usual 7: lost 1" in told
    assert "make conformance ARGS=\"--only 'toy/suite/usual' --seed 7 --cases 1\"" in told
    assert "20 cases, 57 results, 1 failed" in told
    assert command.main(["--cases", "20"]) == 1
    assert "\n8 cases, 21 results, 1 failed" in capsys.readouterr().out
    assert command.main(["--cases", "1", "--seed", "7", "--only", "toy/suite/usual"]) == 1
    assert command.main(["--cases", "5", "--only", "toy"]) == 0


def test_a_way_that_is_never_gone_counts_as_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials("toy", "suite", {"usual": way({}, "flushed", "merged")}, lambda seed, _: Counter({"flushed": 1}))
    for module in (command, trying):
        monkeypatch.setattr(module, "by_name", lambda: {trials.name: trials})
    assert command.main(["--cases", str(PROVEN_BY)]) == 1
    assert f"UNPROVEN toy/suite/usual: in {PROVEN_BY} cases never merged" in capsys.readouterr().out
    assert command.main(["--cases", str(PROVEN_BY - 1)]) == 0


def test_a_suite_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "nobody"])
    assert "nothing is called nobody" in capsys.readouterr().err


def test_processes_count_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    def table(jobs: str) -> list[str]:
        assert command.main(["--only", "hmj", "--cases", "8", "--jobs", jobs]) == 0
        return [line.rpartition(" ")[0].rstrip() for line in capsys.readouterr().out.splitlines()[:2]]

    assert table("1") == table("2")


def test_tallies_add_up() -> None:
    tally = Tally()
    for counts in ({"cases": 2, "flushed": 1}, {"cases": 1}):
        tally.add(Tally({"usual": Counter(counts)}, seconds=0.5))
    assert tally.total == Counter({"cases": 3, "flushed": 1}) and tally.seconds == 1.0
    assert trying.again(TRIALS["hmj/equality"], "usual", 3).startswith("make conformance")
