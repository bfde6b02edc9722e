"""A little of `make bounds`: some kernels with every index checked, in a process and a cache of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CHECKED = ("test_radix.py", "test_sort_keys.py", "test_hash_index.py")
BEYOND = """
import numpy as np
from watersmeet.kernels.compile import kernel

@kernel
def read(values, at):
    return values[at]

try:
    read(np.arange(3), 3)
except IndexError:
    print("checked")
"""


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "WATERSMEET_CACHE_DIR": str(place)}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


def test_an_index_beyond_the_end_is_an_error_there(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", BEYOND).stdout == "checked\n"


def test_no_kernel_goes_beyond(tmp_path: Path) -> None:
    files = [str(HERE / name) for name in CHECKED]
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files)
    assert done.returncode == 0, done.stdout[-3_000:]
    assert list(tmp_path.rglob("*.nbc")), "they were compiled there, and not taken from another cache"
