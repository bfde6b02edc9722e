"""What a verb returns: results as they are found, and how far the join is."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

import pyarrow as pa

from watersmeet.api import sinks
from watersmeet.api.explanation import Explanation
from watersmeet.core.closing import Closing
from watersmeet.core.errors import WatersmeetError
from watersmeet.core.promises import Punctuation
from watersmeet.drivers.drawing import drawn
from watersmeet.drivers.history import History
from watersmeet.drivers.live import LiveRun
from watersmeet.drivers.progress import Progress

Item = TypeVar("Item")


class RunResult(Closing, Generic[Item]):
    """What every verb returns: what its join finds, to be read once, and how far the join is."""

    def __init__(self, run: LiveRun, explain: Callable[[], Explanation]) -> None:
        self._run = run
        self._explain = explain
        # Weak, so that the end of a loop is the end of the run, even while the result itself is kept.
        self._batches: weakref.ref[Generator[Any, None, None]] | None = None

    def __iter__(self) -> Iterator[Item]:
        return self._once(self._items())

    def _items(self) -> Generator[Item, None, None]:
        """What the join finds."""
        raise NotImplementedError

    def _once(self, items: Generator[Any, None, None]) -> Iterator[Any]:
        if self._batches is not None:
            raise WatersmeetError(
                "the result of a join can be read only once, and this one was; call join() again, or keep its table()"
            )
        self._batches = weakref.ref(items)
        return items

    def _all(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items, and an error in place of their end if somebody closed the join before: who asks for all results
        is not to take some of them for all.
        """
        yield from items
        if not self._run.done:
            raise WatersmeetError(
                "this join was closed before its end, so that not all of its results are there; call join() again, and "
                "close it later"
            )

    @property
    def progress(self) -> Progress:
        """How far the join is: rows in and out, first result, memory, spilled bytes, phase."""
        return self._run.progress()

    def explain(self) -> Explanation:
        """What the join does, or will do: its inputs, conditions, algorithm, memory and columns. `print` it.

        Where all inputs know their columns, no row is read for that.
        """
        return self._explain()

    @property
    def history(self) -> History:
        """What the join was like so far: at most about a thousand samples of its progress."""
        return self._run.history

    @property
    def page(self) -> str | None:
        """The address of the live page, if one was asked for; it is served until the join is over."""
        return self._run.page

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write what the join was like, with all charts of the live page, to one HTML file that opens offline.

        >>> import pyarrow as pa, watersmeet as wm
        >>> result = wm.join(pa.table({"id": [1, 2]}), pa.table({"id": [2, 3]}), on="id", memory="8 MiB")
        >>> found = result.table()
        >>> result.report("run.html")  # doctest: +SKIP
        """
        from watersmeet.live.attach import write_report

        write_report(path, " ⋈ ".join(self.progress.names), self.history)

    def close(self) -> None:
        """Stop the join and let go of everything; harmless when it is over."""
        batches = self._batches() if self._batches is not None else None
        if batches is not None and inspect.getgeneratorstate(batches) != inspect.GEN_RUNNING:
            batches.close()
        self._run.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.progress}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: how far it is, and how results grew. Nothing is read for that."""
        return drawn(self.history, self.progress)


class Result(RunResult[pa.RecordBatch]):
    """The pairs of a join, as they are found: an iterable of `pyarrow.RecordBatch` that can be read once.

    Reading starts the join. Leaving the loop, an error, `close` or the end of a `with` block stops it: threads end,
    sources are closed, and nothing is left on disk.

    >>> import pyarrow as pa, watersmeet as wm
    >>> result = wm.join(pa.table({"id": [1, 2]}), pa.table({"id": [2, 3]}), on="id", memory="8 MiB")
    >>> [batch.to_pylist() for batch in result]
    [[{'id': 2}]]
    >>> result.progress.rows_in
    (2, 2)
    """

    def __init__(self, run: LiveRun, schema: pa.Schema | None, explain: Callable[[], Explanation]) -> None:
        super().__init__(run, explain)
        self._schema = schema

    def _items(self) -> Generator[pa.RecordBatch, None, None]:
        return self._run.batches()

    def marked(self) -> Iterator[pa.RecordBatch | Punctuation]:
        """The batches, and among them the punctuations that hold for the result: no row that matches one follows it.

        >>> from watersmeet.core.promises import Punctuation
        >>> from watersmeet.sources import source
        >>> import watersmeet as wm
        >>> news = source([{"sno": 79, "keyword": "Smart Card"}], unique=["sno"])
        >>> hits = [{"sno": 79, "ip": "64.58.76.224"}, Punctuation({"sno": 79})]
        >>> result = wm.join(news, hits, on="sno", memory="8 MiB")
        >>> [item if isinstance(item, Punctuation) else item.to_pylist() for item in result.marked()]
        [[{'sno': 79, 'keyword': 'Smart Card', 'ip': '64.58.76.224'}], Punctuation(sno = 79)]
        """
        return self._once(self._run.marked_batches())

    @property
    def schema(self) -> pa.Schema:
        """The output's schema; where an input tells its own only with its first row, this waits for that row."""
        if self._schema is None:
            self._schema = self._run.schema()
        return self._schema

    def table(self) -> pa.Table:
        """All results as a PyArrow table; it is outside the join's memory. An error if the join is closed before."""
        batches = list(self._all(iter(self)))
        return pa.Table.from_batches(batches, self.schema)

    def pandas(self) -> Any:
        """All results as a pandas frame."""
        _need("pandas")
        return self.table().to_pandas()

    def polars(self) -> Any:
        """All results as a Polars frame."""
        return _need("polars").from_arrow(self.table())

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write all results to a Parquet, CSV or Arrow IPC file, as its name says; returns the number of rows.

        The file is whole or absent: one that exists is replaced at the very end, and only if all went well. A join that
        is closed meanwhile is an error, too.
        """
        sinks.check_target(path)
        batches = iter(self)
        try:
            return sinks.write(self._all(batches), self.schema, path)
        finally:
            self.close()


def _need(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WatersmeetError(f"{module} is not installed; install it, or take the PyArrow table() instead") from error
