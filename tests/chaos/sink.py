"""What the Parquet sink holds, read by its log and without Spark: the files that were committed, each row of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from chaos.work import rows_of


def log_files(out: Path) -> dict[int, Path]:
    """The log's files that count, by batch: the last one that sums up all before it, and those after."""
    names = [path for path in (out / "_spark_metadata").iterdir() if path.name.split(".")[0].isdigit()]
    found = {int(path.name.split(".")[0]): path for path in names}
    sums = [batch for batch, path in found.items() if path.suffix == ".compact"]
    return {batch: found[batch] for batch in sorted(found) if batch >= max(sums, default=0)}


def committed(out: Path, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """The multiset of all rows in committed files."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for log in log_files(out).values():
        version, *entries = log.read_text().splitlines()
        assert version == "v1", f"{log} is of version {version}, which this does not read"
        for entry in map(json.loads, entries):
            assert entry["action"] == "add", entry
            rows.update(rows_of(pq.read_table(unquote(urlsplit(entry["path"]).path), columns=list(columns))))
    return rows
