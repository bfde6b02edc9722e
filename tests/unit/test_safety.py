"""What is true of all of the sources: nothing that is read from a disk is run."""

from __future__ import annotations

import ast
from pathlib import Path

import watersmeet as wm

SOURCES = Path(wm.__file__).parent
UNPACKING = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
"""Modules whose content can run code when it is read."""
RUNNING = {"eval", "exec", "compile", "__import__"}

TASKS = "spark/task/worker.py"
"""Sends functions to Spark's workers, as Spark itself does: over Spark's own connections, and through no file."""


def findings(text: str) -> set[str]:
    """What in a module reads or runs what it should not."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in UNPACKING}
        elif isinstance(node, ast.ImportFrom):
            names = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
            found |= names & UNPACKING
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            found |= {name} & RUNNING
            found |= {"allow_pickle" for word in node.keywords if word.arg == "allow_pickle"}
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("load", "system", "popen"):
                found |= {ast.unparse(node.func)} & {"np.load", "numpy.load", "os.system", "os.popen"}
            found |= {"shell=True" for word in node.keywords if word.arg == "shell"}
    return found


def test_nothing_on_disk_is_unpickled_or_run() -> None:
    seen = {
        str(path.relative_to(SOURCES)): found
        for path in SOURCES.rglob("*.py")
        if (found := findings(path.read_text(encoding="utf-8")))
    }
    assert seen == {TASKS: {"cloudpickle", "pickle"}}
    assert "open(" not in (SOURCES / TASKS).read_text()


def test_it_would_be_found() -> None:
    assert findings("import pickle") == {"pickle"}
    assert findings("from pyspark import cloudpickle") == {"cloudpickle"}
    assert findings("np.load(file)") == {"np.load"} and findings("numpy.load(f, allow_pickle=True)")
    assert findings("eval('1')") == {"eval"} and not findings("ast.literal_eval('1')")
