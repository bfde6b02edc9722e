"""Both windows in memory: each arrival is kept in its own and looked up in the other's."""

from __future__ import annotations

from typing import Any, ClassVar

from watersmeet.core.errors import BudgetError
from watersmeet.engine.shell import Operator
from watersmeet.joins.window.blocks import expire_blocks, lookup_in, make_table
from watersmeet.matching.lookup import Lookup
from watersmeet.memory import format_bytes
from watersmeet.tables.window_table import WindowTable


class SymmetricWindow(Operator):
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
    windowed: ClassVar[bool] = True
    takes_punctuations: bool = True
    spills: ClassVar[bool] = False

    def _make_table(self, side: int) -> WindowTable:
        return make_table(self, side)

    def arrival_lookup(self, side: int, *rows: Any) -> Lookup:
        """The look-up of rows that arrived on one side in the window of the other."""
        return lookup_in(self, self.tables[1 - side], side, *rows)

    def must_keep(self, side: int) -> bool:
        """Only while the other input may still bring rows."""
        return not self.exhausted(1 - side)

    def expire(self) -> bool:
        """Let go of blocks whose rows have all expired; False if there are none."""
        return expire_blocks(self)

    def _input_closed(self, side: int) -> None:
        self.expire()

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
