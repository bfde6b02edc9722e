"""Results of several inputs whose rows are anywhere: every value is the one that was written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.core.multi_spec import MultiSpec
from watersmeet.core.protocol import Arrive, End, Status
from watersmeet.joins.multiway.confluence import ManyConfluence
from watersmeet.kernels import addressed, run_files
from watersmeet.spill import FileStore

ROWS = 3000
ON = ["r.a = s.a", "s.b = t.b"]


def rows_of(name: str, keys: str) -> pa.RecordBatch:
    random = np.random.default_rng(ord(name))
    columns: dict[str, Any] = {key: random.integers(0, ROWS // 2, ROWS) for key in keys}
    numbers = np.arange(ROWS)
    missing = random.random(ROWS) < 0.3
    columns["text"] = pa.array([f"{name}{i}" * (i % 7) for i in numbers], pa.string(), mask=missing)
    columns["large"] = pa.array([f"{i}{name}" for i in numbers], pa.large_string())
    columns["flag"] = pa.array(numbers % 3 == 0, pa.bool_(), mask=numbers % 11 == 0)
    columns["small"] = pa.array((numbers % 99).astype(np.int16), pa.int16(), mask=missing)
    columns["word"] = pa.array(numbers * 7)
    return pa.record_batch(columns)


def expected(inputs: dict[str, pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    r, s, t = (each.to_pylist() for each in inputs.values())
    by_a: dict[int, list[dict[str, Any]]] = {}
    by_b: dict[int, list[dict[str, Any]]] = {}
    for row in r:
        by_a.setdefault(row["a"], []).append(row)
    for row in t:
        by_b.setdefault(row["b"], []).append(row)
    return Counter(  # a key that is the same in two inputs is there once
        (*one.values(), *list(two.values())[1:], *list(three.values())[1:])
        for two in s
        for one in by_a.get(two["a"], [])
        for three in by_b.get(two["b"], [])
    )


@pytest.mark.parametrize("in_memory", [True, False])
def test_all_columns_of_all_inputs_are_gathered_wherever_rows_lie(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"r": rows_of("r", "a"), "s": rows_of("s", "ab"), "t": rows_of("t", "b")}
    spec = MultiSpec.of({name: batch.schema for name, batch in inputs.items()}, ON)
    calls: Counter[str] = Counter()
    for module, way in ((addressed, "gather_together"), (run_files, "gather_by_stretch")):
        kernel = getattr(module, way)
        monkeypatch.setattr(module, way, lambda *args, w=way, k=kernel: calls.update([w]) or k(*args))
    store = FileStore()
    found: Counter[tuple[Any, ...]] = Counter()
    try:
        join = ManyConfluence(spec, (64 << 20) if in_memory else 2 * ManyConfluence.least_memory(spec), store)

        def work_off() -> None:
            while True:
                step = join.poll(0.0, 1 << 20)
                if step.out is not None:
                    found.update(zip(*(column.to_pylist() for column in step.out.columns), strict=True))
                if step.status is not Status.HAS_OUTPUT:
                    return

        for start in range(0, ROWS, 500):
            for number, batch in enumerate(inputs.values()):
                join.receive(Arrive(number, batch.slice(start, 500)))
                work_off()
        for number in range(3):
            join.receive(End(number))
        work_off()
        join.check()
        assert store.maps and (join.cost.pages_written > 0) is not in_memory
        join.close()
    finally:
        store.close()
    assert found == expected(inputs)
    assert calls["gather_together" if in_memory else "gather_by_stretch"] > 0, calls
