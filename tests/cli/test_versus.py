"""`python -m benchmarks.versus`: two checkouts in turns, here two that only say what they were told to."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from watersmeet.cli import bench
from watersmeet.core.errors import SpecError, WatersmeetError

MAIN = """
import json, sys
from pathlib import Path

figures = {figures}
if "--list" in sys.argv:
    print(*figures, "suite of-others", sep="\\n")
    sys.exit()
told = Path(__file__).parent.parent.parent / "turns"
scale = sys.argv[sys.argv.index("--scale") + 1]
with told.open("a") as turns:
    turns.write("{name} " + scale + "\\n")
turn = told.read_text().splitlines().count("{name} 1.0") - 1
found = [dict(metric=metric, value=values[turn], unit="s") for metric, values in figures[sys.argv[1]].items()]
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(found))
sys.exit({code})
"""


@pytest.fixture
def versus(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(bench.find_benchmarks().parent))
    return importlib.import_module("benchmarks.versus")


def checkout(place: Path, name: str, figures: dict[str, dict[str, list[float]]], code: int = 0) -> str:
    for package in ("src/watersmeet", "benchmarks"):
        (place / name / package).mkdir(parents=True)
        (place / name / package / "__init__.py").touch()
    (place / name / "benchmarks" / "__main__.py").write_text(MAIN.format(figures=figures, name=name, code=code))
    return str(place / name)


def test_takes_two_checkouts_in_turns_and_tells_medians(
    tmp_path: Path, versus: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    old = checkout(tmp_path, "old", {"join": {"total": [4.0, 1.0, 2.0], "first": [1.0] * 3, "older": [1.0] * 3}})
    new = checkout(
        tmp_path, "new", {"join": {"total": [1.0, 1.0, 9.0], "first": [1.04] * 3, "newer": [1.0] * 3}, "late": {}}
    )
    told = tmp_path / "told.json"
    assert versus.main([old, new, "join", "late", "--repeat", "3", "--json", str(told)]) == 0
    warm, *turns = (tmp_path / "turns").read_text().split("\n")[1:-1]
    assert warm == "new 0.01"
    assert turns == [f"{name} 1.0" for name in ("old", "new", "new", "old", "old", "new")]
    total, first = json.loads(told.read_text())
    assert (total["metric"], total["old"], total["new"], total["ratio"], total["close"]) == ("total", 2, 1, 0.5, False)
    assert first["ratio"] == pytest.approx(1.04) and first["close"]
    out = capsys.readouterr().out
    assert f"late: left out, {old} has no such benchmark" in out
    assert "only one has: older; newer" in out


def test_wrong_results_and_what_is_no_checkout_are_told(tmp_path: Path, versus: Any) -> None:
    old = checkout(tmp_path, "old", {"join": {"total": [1.0]}}, code=1)
    with pytest.raises(WatersmeetError, match="results were wrong"):
        versus.main([old, old, "join", "--repeat", "1"])
    with pytest.raises(SpecError, match="is no checkout"):
        versus.main([old, str(tmp_path), "join"])
