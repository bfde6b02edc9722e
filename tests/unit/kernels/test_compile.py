"""Compiled code that several processes keep in one place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE

MODULE = """
import sys
import numpy as np
from watersmeet.kernels.compile import kernel

@kernel
def total(values, factor):
    found = values[0] * 0
    for value in values:
        found += value * factor
    return found

def answer(kind):
    return total(np.array([100, 3, 27], kind), np.dtype(kind).type(2))

if __name__ == "__main__":
    for kind in sys.argv[1:]:
        assert answer(kind) == (260 if kind != "uint8" else 4), (kind, answer(kind))
"""
KINDS = ["int32", "int64", "float32", "float64", "int16", "uint32"]


def run(folder: Path, kinds: list[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "WATERSMEET_CACHE_DIR": str(folder / "cache")}
    return subprocess.Popen([sys.executable, str(folder / "summing.py"), *kinds], env=environment)


def test_processes_that_compile_at_once_do_not_mix_up_their_code(tmp_path: Path) -> None:
    (tmp_path / "summing.py").write_text(MODULE)
    together = [run(tmp_path, [kind]) for kind in KINDS]
    assert [process.wait(PATIENCE) for process in together] == [0] * len(KINDS)
    saved = sorted(tmp_path.rglob("summing.total*.nbc"))
    assert len(saved) == len(KINDS), "each version has a file of its own"
    afterwards = run(tmp_path, KINDS[::-1])
    assert afterwards.wait(PATIENCE) == 0


def test_kept_code_is_run_without_all_that_numba_could_compile(tmp_path: Path) -> None:
    (tmp_path / "summing.py").write_text(MODULE)
    assert run(tmp_path, ["int64"]).wait(PATIENCE) == 0
    ask = "import sys, summing; assert summing.answer('{}') == 260; print('numba.np.linalg' in sys.modules)"
    environment = {**os.environ, "WATERSMEET_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", ask.format(kind)], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for kind in ("int64", "float64")
    ]
    assert told == ["False", "True"], "what was compiled before, and what has yet to be"
