"""The built wheel: what it needs is in it, nothing else is, its metadata is whole, and the examples run with it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [made] = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_package_and_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [about] = [name for name in names if name.endswith("/METADATA")]
        told = Parser().parsestr(archive.read(about).decode())
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "watersmeet").rglob("*.py")}
    assert sources <= set(names)
    assert {"watersmeet/py.typed", "watersmeet/live/assets/LICENSE.uplot"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"watersmeet", about.split("/")[0]}
    assert (told["Version"], told["License-Expression"], told["Requires-Python"]) == ("1.0.0", "Apache-2.0", ">=3.11")
    assert told["Description-Content-Type"] == "text/markdown" and "# Watersmeet" in str(told.get_payload())
    assert "bench" in told.get_all("Provides-Extra", []) and len(told.get_all("Classifier", [])) > 10


def test_the_examples_run_with_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tests" / "installed.py")]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert f"in {tmp_path / 'watersmeet'}: 5000 pairs" in told.stdout, "by the wheel, not by the sources"
