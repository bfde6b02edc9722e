"""Everything in memory: two hash tables, each arrival kept in its own and looked up in the other's."""

from __future__ import annotations

from typing import ClassVar

from watersmeet.core.errors import BudgetError
from watersmeet.engine.shell import Operator
from watersmeet.memory import format_bytes


class SymmetricHash(Operator):
    """Join without ever waiting, as long as both inputs fit into memory [1]_.

    ```
    left row ──▶ keep in the left table ──▶ look up in the right table ──▶ pairs
    ```

    Each pair is found when its later row arrives, so nothing is left to do in a silence or at the end. Once an input
    has ended, the other's rows need not be kept any more: nobody will look them up. If memory runs out the join stops
    with an error; `xjoin` spills instead.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive
    >>> from watersmeet.core.spec import JoinSpec, parse_on
    >>> from watersmeet.spill.store import MemoryStore
    >>> left, right = pa.record_batch({"id": [1, 2]}), pa.record_batch({"id": [2, 2], "v": ["a", "b"]})
    >>> join = SymmetricHash(JoinSpec(left.schema, right.schema, parse_on("id")), 1 << 20, MemoryStore())
    >>> join.receive(Arrive(LEFT, left)); join.poll(0.0, fuel=100).status.name
    'NEED_INPUT'
    >>> join.receive(Arrive(RIGHT, right)); join.poll(0.0, fuel=100).out.to_pydict()
    {'id': [2, 2], 'v': ['a', 'b']}

    .. [1] W. Hong and M. Stonebraker. Optimization of parallel query execution plans in XPRS. Distributed and Parallel
       Databases 1(1), 1993; as described in section 2.1 of Y. Tao et al. RPJ: Producing fast join results on streams
       through rate-based optimization. SIGMOD 2005.
    """

    name: ClassVar[str] = "symmetric_hash"
    partitioned: ClassVar[bool] = False
    spills: ClassVar[bool] = False

    def must_keep(self, side: int) -> bool:
        """Only while the other input may still bring rows."""
        return not self.exhausted(1 - side)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        left, right = (
            f"{table.rows:,} rows of {name}" for table, name in zip(self.tables, self.spec.names, strict=True)
        )
        raise BudgetError(
            f"symmetric_hash keeps all rows in memory, and {format_bytes(self.budget.total)} hold no more than the "
            f"{left} and {right} received so far; allow more memory, or use algorithm='xjoin', which spills to disk"
        )

    def _input_closed(self, side: int) -> None:
        self.forget(1 - side, 0)
