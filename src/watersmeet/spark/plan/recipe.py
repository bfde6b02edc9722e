"""What the recipes of all joins on Spark say of their inputs and their output."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


class Recipe:
    """A join that Spark's tasks can make operators from."""

    spec: Any

    @property
    def inputs(self) -> tuple[pa.Schema, ...]:
        """The schema of each input."""
        return tuple(self.spec.input(number) for number in range(len(self.spec.names)))

    @property
    def names(self) -> tuple[str, ...]:
        """What errors call the inputs."""
        names: tuple[str, ...] = self.spec.names
        return names

    @property
    def output(self) -> pa.Schema:
        """The schema of the results."""
        return self.spec.schema
