"""What a join would do, told before any row is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.core import html
from watersmeet.core.spec import Band, Equal, Near
from watersmeet.drivers.live import queue_bytes
from watersmeet.memory import format_bytes

if TYPE_CHECKING:
    from watersmeet.policies.splitting import Plan


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm that was chosen, why, and the least memory that it works in where that is known."""

    algorithm: str
    reason: str
    least: int | None = None
    plan: Plan | None = None


@dataclass(frozen=True)
class Explanation:
    """A join before it runs: `print` it, or look at it in a notebook.

    >>> import watersmeet as wm
    >>> orders, paid = pa.table({"id": [1], "item": ["cup"]}), pa.table({"order": [1]})
    >>> print(wm.join(orders, paid, on="id = order", memory="8 MiB").explain())  # doctest: +ELLIPSIS
    join, inner
      left     id int64, item string
      right    order int64
      on       id = order
      by       confluence: ...
      memory   8 MiB: 1 MiB for input queues, 7 MiB for the join; at least ...
      gives    id int64, item string, order int64
    """

    verb: str
    how: str
    inputs: Mapping[str, pa.Schema]
    """The columns of each input, by its name."""
    on: Sequence[str]
    window: str | None
    choice: Choice
    memory: int
    """All that was allowed."""
    output: pa.Schema

    def rows(self) -> list[tuple[str, str]]:
        """What is to be said, line by line."""
        queues = queue_bytes(self.memory)
        least = "" if self.choice.least is None else f"; at least {format_bytes(self.choice.least)}"
        lines = [(name, columns(schema)) for name, schema in self.inputs.items()]
        lines.append(("on", ", ".join(self.on) or "the window alone"))
        if self.window is not None:
            lines.append(("window", self.window))
        lines += [
            ("by", f"{self.choice.algorithm}: {self.choice.reason}"),
            (
                "memory",
                f"{format_bytes(self.memory)}: {format_bytes(queues)} for input queues, "
                f"{format_bytes(self.memory - queues)} for the join{least}",
            ),
            ("gives", columns(self.output)),
        ]
        return lines

    def __str__(self) -> str:
        lines = self.rows()
        width = max(8, *(len(name) for name, _ in lines))
        told = [f"{self.verb}, {self.how}", *(f"  {name:<{width}} {said}" for name, said in lines)]
        if self.choice.plan is not None:
            told += ["  " + line for line in str(self.choice.plan).splitlines()]
        return "\n".join(told)

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        drawn = html.table([(name, escape(said)) for name, said in self.rows()], f"{self.verb}, {self.how}")
        return drawn if self.choice.plan is None else drawn + html.block(str(self.choice.plan))

    def as_dict(self) -> dict[str, Any]:
        """The same, as JSON knows it."""
        return {
            "verb": self.verb,
            "how": self.how,
            "inputs": {name: types(schema) for name, schema in self.inputs.items()},
            "on": list(self.on),
            "window": self.window,
            "algorithm": self.choice.algorithm,
            "reason": self.choice.reason,
            "memory": self.memory,
            "queues": queue_bytes(self.memory),
            "least_memory": self.choice.least,
            "plan": None if self.choice.plan is None else str(self.choice.plan),
            "output": types(self.output),
        }


def types(schema: pa.Schema) -> dict[str, str]:
    """The types of columns, by their names."""
    return {field.name: str(field.type) for field in schema}


def columns(schema: pa.Schema) -> str:
    """Names and types of all columns, for people."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def conditions(on: object) -> tuple[str, ...]:
    """What is joined on, in words.

    >>> conditions(["id", Band("price", "bid", 0.05)]), conditions(Equal("id", "order"))
    (('id', '|price - bid| <= 0.05'), ('id = order',))
    >>> conditions(Near(("x", "y"), ("east", "north"), 3))
    ('|(x, y) - (east, north)| <= 3',)
    """
    if on is None:
        return ()
    if isinstance(on, Band):
        return (f"|{on.left} - {on.right}| <= {on.width}",)
    if isinstance(on, Near):
        return (f"|({', '.join(on.left)}) - ({', '.join(on.right)})| <= {on.radius}",)
    if isinstance(on, Equal):
        return (on.left if on.left == on.right else f"{on.left} = {on.right}",)
    if isinstance(on, Mapping):
        return tuple(f"{name}: {', '.join(conditions(each))}" for name, each in on.items())
    if isinstance(on, Iterable) and not isinstance(on, str):
        return tuple(text for each in on for text in conditions(each))
    return (str(on),)
