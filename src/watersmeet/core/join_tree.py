"""Trees of joins: which inputs are joined first, and what passes from one join to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from watersmeet.core.errors import SpecError
from watersmeet.core.multi_spec import MultiSpec

Shape: TypeAlias = "str | Sequence[Shape]"
"""An input's name, or the shapes of what is joined: `(("r", "s"), "t")`."""


@dataclass(frozen=True)
class Branch:
    """A join of two or more inputs or branches."""

    children: tuple[int | Branch, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of all inputs below."""
        return tuple(i for child in self.children for i in ((child,) if isinstance(child, int) else child.inputs))

    def branches(self) -> Iterator[Branch]:
        """This branch and all below, those below first."""
        for child in self.children:
            if isinstance(child, Branch):
                yield from child.branches()
        yield self

    def shape(self, names: Sequence[str]) -> Shape:
        """As nested sequences of names."""
        return tuple(names[child] if isinstance(child, int) else child.shape(names) for child in self.children)

    def describe(self, names: Sequence[str]) -> str:
        """For people.

        >>> Branch((Branch((0, 1)), 2)).describe(["r", "s", "t"])
        '((r ⋈ s) ⋈ t)'
        """
        texts = [names[child] if isinstance(child, int) else child.describe(names) for child in self.children]
        return "(" + " ⋈ ".join(texts) + ")"


def parse_shape(shape: Shape, spec: MultiSpec) -> Branch:
    """A tree of inputs' names as a branch; every input once, and no join without a condition.

    >>> import pyarrow as pa
    >>> spec = MultiSpec.of(dict.fromkeys("rst", pa.schema({"a": pa.int64()})), ["r.a = s.a", "s.a = t.a"])
    >>> parse_shape((("r", "s"), "t"), spec).describe(spec.names)
    '((r ⋈ s) ⋈ t)'
    """
    tree = _branch(shape, spec)
    if isinstance(tree, int) or sorted(tree.inputs) != list(range(len(spec.names))):
        raise SpecError(f"tree={shape!r} must hold each of {', '.join(spec.names)} once")
    for branch in tree.branches():
        _check_connected(branch, spec)
    return tree


def _branch(shape: Shape, spec: MultiSpec) -> int | Branch:
    if isinstance(shape, str):
        if shape not in spec.names:
            raise SpecError(f"tree names {shape!r}, which is no input; the inputs are {', '.join(spec.names)}")
        return spec.names.index(shape)
    if len(shape) < 2:
        raise SpecError(f"a join in a tree takes two or more inputs, not {shape!r}")
    return Branch(tuple(_branch(each, spec) for each in shape))


def _check_connected(branch: Branch, spec: MultiSpec) -> None:
    groups = [{child} if isinstance(child, int) else set(child.inputs) for child in branch.children]
    reached = groups.pop(0)
    while groups:
        found = next((group for group in groups if touching(reached, group, spec)), None)
        if found is None:
            apart = ", ".join(spec.names[i] for group in groups for i in sorted(group))
            raise SpecError(
                f"the tree joins {apart} with inputs that no condition joins them with; choose another tree"
            )
        groups.remove(found)
        reached |= found


def touching(some: set[int], others: set[int], spec: MultiSpec) -> bool:
    """Whether a condition joins some inputs with others."""
    return any(
        edge.first in some and edge.second in others or edge.first in others and edge.second in some
        for edge in spec.edges
    )


def left_deep(spec: MultiSpec) -> Branch:
    """A binary tree that takes the inputs in their order, as far as conditions join them."""
    rest = list(range(1, len(spec.names)))
    tree: int | Branch = 0
    reached = {0}
    while rest:
        following = next(i for i in rest if touching(reached, {i}, spec))
        rest.remove(following)
        reached.add(following)
        tree = Branch((tree, following))
    assert isinstance(tree, Branch)
    return tree
