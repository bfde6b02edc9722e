"""Punctuations of a micro-batch: rows that say what will not come, on their way to an operator as its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.core.errors import SpecError
from watersmeet.core.promises import Promises, among, between
from watersmeet.core.protocol import Punctuate
from watersmeet.core.spec import JoinSpec
from watersmeet.spark.plan.control_rows import OVER, SIGN_CODES
from watersmeet.spark.plan.inputs import SIDES
from watersmeet.spark.task.ordered_rows import Arrivals
from watersmeet.spill.store import Store

_FIRST = SIGN_CODES[OVER]
_KINDS = 2


class Punctuations(Arrivals):
    """Those of all inputs, in an order that depends on them alone; memory as for other rows."""

    def __init__(self, schemas: Sequence[pa.Schema], limit: int, scratch: Callable[[], Store]) -> None:
        super().__init__([schema for schema in schemas for _ in range(_KINDS)], limit, scratch)

    def take(self, number: int, code: int, rows: pa.RecordBatch) -> None:
        """Punctuations of an input that have one sign."""
        self.add(number * _KINDS + code - _FIRST, rows)

    @property
    def digest(self) -> list[list[int]]:
        """What tells them from others; empty if there are none."""
        return [*map(list, zip(self.rows, self.digests, strict=True))] if any(self.rows) else []

    def events(self, spec: JoinSpec) -> Iterator[Punctuate]:
        """All of them."""
        self.settle()
        for number in (0, 1):
            for kind in range(_KINDS):
                for _, rows in self.pieces(number * _KINDS + kind):
                    for pattern in _patterns(rows, spec.keys(number), up_to=kind > 0):
                        yield Punctuate(number, pattern)


def _patterns(rows: pa.RecordBatch, keys: Sequence[str], up_to: bool) -> Iterator[dict[str, Any]]:
    """What rows say: of those that are about one key alone, all together."""
    if len(keys) == 1:
        about_keys = pa.array([True] * rows.num_rows)
        for name in rows.schema.names:
            null = rows.column(name).is_null()
            about_keys = pc.and_(about_keys, pc.invert(null) if name == keys[0] else null)
        values = rows.column(keys[0]).filter(about_keys)
        if len(values) and up_to:
            yield {keys[0]: between(None, pc.max(values).as_py())}
        elif len(values):
            yield {keys[0]: among(values.to_pylist())}
        return
    for row in rows.to_pylist() if not up_to else ():  # each with values of its own for all keys
        yield {name: value for name, value in row.items() if value is not None}


def read_promises(promises: Mapping[str, Mapping[str, Any]] | None) -> tuple[Promises, Promises]:
    """What the inputs promise, from what people write.

    >>> read_promises({"left": {"unique": "id"}})[0]
    Promises(unique=('id',), clustered=(), sorted=(), punctuated=False)
    """
    given = dict(promises or {})
    unknown = sorted(set(given) - set(SIDES))
    if unknown:
        raise SpecError(f"promises are of the inputs 'left' and 'right', not of {unknown[0]!r}")
    found = [Promises.of(**given.get(side, {})) for side in SIDES]
    if any(each.clustered or each.sorted for each in found):
        raise SpecError(
            "rows of a micro-batch have no order, so that nothing can be promised of it; on Spark an input can promise "
            "unique=[...] and punctuated=True"
        )
    return found[0], found[1]
