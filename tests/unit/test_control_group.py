"""A limit of the system's: made, entered, looked at and removed, with a directory in the place of the kernel's."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from watersmeet.cli import bench

VERSIONS = {
    "memory.limit_in_bytes": ("memory.memsw.limit_in_bytes", "1000", "rss 5\ncache 70\n"),
    "memory.max": ("memory.swap.max", "0", "anon 5\nfile 70\n"),
}
UNTIL_SEEN = "import os, sys, time\nprint(os.getpid())\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.001)"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_process_is_in_a_group_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.syspath_prepend(str(bench.find_benchmarks().parent))
    module: Any = importlib.import_module("benchmarks.control_group")
    monkeypatch.setattr(module, "EVERY", 0.001)
    swap, no_swap, held = VERSIONS[version]
    left: list[dict[str, str]] = []

    class Group(module.ControlGroup):  # type: ignore[misc]
        def _make(self) -> None:
            super()._make()
            for name, text in {version: "", swap: "", "memory.stat": held, "cgroup.procs": ""}.items():
                (self.path / name).write_text(text)

        def _remove(self) -> None:
            left.append({each.name: each.read_text() for each in self.path.iterdir()})
            if len(left) == 1:
                raise OSError(errno.EBUSY, "busy")
            shutil.rmtree(self.path)
            module.ControlGroup._make(self)
            super()._remove()

        def _look(self) -> None:
            super()._look()
            (self.path / "seen").touch()

    with Group(tmp_path, 1000) as group:
        done = group.run([sys.executable, "-c", UNTIL_SEEN, str(group.path / "seen")], os.environ)
    assert done.returncode == 0 and (group.own, group.cached) == (5, 70)
    assert left[-1]["cgroup.procs"].split() == done.stdout.split()
    assert left[-1][version] == "1000" and left[-1][swap] == no_swap
    assert len(left) == 2 and list(tmp_path.iterdir()) == []
