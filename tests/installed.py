"""Run the README's examples, and the first page's, with the installed package: `python -I tests/installed.py`.

Knows nothing but the standard library and what the package brings along; tests and releases run it.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet as wm

ROOT = Path(__file__).resolve().parents[1]
ROWS = 5_000


def slow_iterator() -> Iterator[pa.RecordBatch]:
    """Payments of the orders, which the example joins them with."""
    for start in range(0, ROWS, 500):
        yield pa.record_batch({"order_id": list(range(start, start + 500)), "paid": [0.5] * 500})


def readme() -> int:
    """Carry out every block of Python in the README, in a folder that has what it reads; returns the results' rows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks, "the README has no examples"
    pq.write_table(pa.table({"order_id": list(range(ROWS)), "item": ["tea"] * ROWS}), "orders.parquet")
    counted: list[int] = []
    for block in blocks:
        given = {"slow_iterator": slow_iterator(), "count": lambda batch: counted.append(batch.num_rows)}
        exec(block.replace("    ...  ", "    count(batch)  "), given)
    assert sum(counted) == ROWS, f"{sum(counted)} pairs of {ROWS}"
    return ROWS


def command() -> None:
    """The command that the package installs, by its module."""
    pq.write_table(pa.Table.from_batches(slow_iterator()), "payments.parquet")
    given = ["join", "orders.parquet", "payments.parquet", "--on", "order_id", "-o", "out.parquet", "--quiet"]
    subprocess.run([sys.executable, "-m", "watersmeet.cli", *given], check=True, env=os.environ)
    assert pq.read_table("out.parquet").num_rows == ROWS


def first_page() -> int:
    """The examples of docs/start.md; returns how many there are."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, tried = doctest.testfile(str(ROOT / "docs" / "start.md"), module_relative=False, optionflags=flags)
    assert not failed, f"{failed} of {tried} examples of docs/start.md"
    return tried


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pairs, examples = readme(), first_page()
        command()
    sys.stdout.write(f"{wm.__version__} in {Path(wm.__file__).parent}: {pairs} pairs, {examples} examples\n")
