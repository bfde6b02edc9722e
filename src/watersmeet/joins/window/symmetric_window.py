"""Both windows in memory: each arrival is kept in its own and looked up in the other's."""

from __future__ import annotations

from typing import ClassVar

from watersmeet.core.errors import BudgetError
from watersmeet.engine.arrival import Task
from watersmeet.joins.window.windowed_blocks import BlockWindowJoin
from watersmeet.memory import format_bytes


class SymmetricWindow(BlockWindowJoin):
    """Join endless inputs without ever waiting, as long as both windows fit into memory [1]_.

    ```
    left row ──▶ keep in the left window ──▶ look up in the right window ──▶ pairs
                  └ blocks that have expired go
    ```

    Each pair is found when its later row arrives. Expiry drops whole blocks, without touching the index: links into a
    block that is gone lead nowhere. If memory runs out the join stops with an error; `confluence` spills instead.

    >>> import pyarrow as pa
    >>> from watersmeet.core.protocol import LEFT, RIGHT, Arrive
    >>> from watersmeet.core.spec import parse_on
    >>> from watersmeet.core.windows import WindowJoinSpec, parse_windows
    >>> from watersmeet.spill.store import MemoryStore
    >>> clicks, views = pa.record_batch({"ad": [1, 1], "t": [10, 50]}), pa.record_batch({"ad": [1], "t": [45]})
    >>> spec = WindowJoinSpec(clicks.schema, views.schema, parse_on("ad"), window=parse_windows(10, "t"))
    >>> join = SymmetricWindow(spec, 1 << 20, MemoryStore())
    >>> join.receive(Arrive(LEFT, clicks)); join.poll(0.0, fuel=100).status.name
    'NEED_INPUT'
    >>> join.receive(Arrive(RIGHT, views)); join.poll(0.0, fuel=100).out.to_pydict()
    {'ad': [1], 't': [50], 't_right': [45]}

    .. [1] J. Kang, J. F. Naughton and S. D. Viglas. Evaluating window joins over unbounded streams. ICDE 2003; as
       described in section 3.2 of A. Chakraborty. Processing exact results for queries over data streams. PhD thesis,
       University of Waterloo, 2010.
    """

    name: ClassVar[str] = "symmetric_window"
    spills: ClassVar[bool] = False

    def must_keep(self, side: int) -> bool:
        """Only while the other input may still bring rows."""
        return not self.exhausted(1 - side)

    def _flush_one(self, spared: frozenset[tuple[int, int]]) -> bool:
        if self.expire():
            return True
        left, right = (
            f"{table.rows:,} rows of {name}" for table, name in zip(self.tables, self.spec.names, strict=True)
        )
        raise BudgetError(
            f"symmetric_window keeps both windows in memory, and {format_bytes(self.budget.total)} hold no more than "
            f"{left} and {right}; allow more memory, or use algorithm='confluence', which spills to disk"
        )

    def _input_closed(self, side: int) -> None:
        self.expire()

    def _can_react(self) -> bool:
        return False

    def _reactive_task(self) -> Task | None:
        return None

    def _give_way(self, task: Task) -> int:
        raise AssertionError("there is no reactive work")

    def _clean_up_task(self) -> Task | None:
        return None
