"""Kinds of joins: which rows come out beside the pairs, and which come out in their place.

=======  ==============================  ===================================  ============================
kind     pairs                           rows without a partner               columns
=======  ==============================  ===================================  ============================
inner    all                             none                                 of both
left     all                             of the left input                    of both; the right's may be NULL
right    all                             of the right input                   of both; the left's may be NULL
full     all                             of both                              of both; all may be NULL
semi     none: a left row that has a     none                                 of the left
         partner, once
anti     none                            of the left input                    of the left
=======  ==============================  ===================================  ============================

A pair comes as soon as it is found. A row without a partner comes when it is *settled*: when no row can come any more
that would be its partner. No row ever comes with NULLs that a later row would contradict.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from watersmeet.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class Kind:
    """What comes out of a join of two inputs.

    >>> KINDS["full"].preserved, KINDS["semi"].tracked, KINDS["anti"].forgets
    ((True, True), (True, False), True)
    """

    name: str
    gives_pairs: bool = True
    """Whether each pair is a result."""
    preserved: tuple[bool, bool] = (False, False)
    """Of which inputs rows without a partner come out."""
    gives_matched: bool = False
    """Whether a row of the left input that has a partner comes out, once."""

    @property
    def tracked(self) -> tuple[bool, bool]:
        """Of which inputs it must be known whether a row has found a partner."""
        return self.preserved[0] or self.gives_matched, self.preserved[1]

    @property
    def forgets(self) -> bool:
        """Whether a row of the left input is of no more use once it has a partner."""
        return not self.gives_pairs

    @property
    def one_sided(self) -> bool:
        """Whether results have the columns of the left input alone."""
        return not self.gives_pairs

    @property
    def is_inner(self) -> bool:
        """Whether pairs are all that matters."""
        return self.gives_pairs and not any(self.preserved)

    def optional(self, side: int) -> bool:
        """Whether a result may lack a row of this input, and has NULLs in its place."""
        return self.gives_pairs and self.preserved[1 - side]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("inner"),
        Kind("left", preserved=(True, False)),
        Kind("right", preserved=(False, True)),
        Kind("full", preserved=(True, True)),
        Kind("semi", gives_pairs=False, gives_matched=True),
        Kind("anti", gives_pairs=False, preserved=(True, False)),
    )
}
"""All of them by their names."""


def kind_of(how: object, known: Collection[str] = tuple(KINDS)) -> Kind:
    """The kind that `how` names, one of those that are known here.

    >>> kind_of("left").preserved
    (True, False)
    >>> kind_of("outer")
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: there is no how='outer'; choose inner, left, right, full, semi or anti
    """
    if isinstance(how, str) and how in known:
        return KINDS[how]
    *most, last = known
    raise SpecError(f"there is no how={how!r}; choose {', '.join(most)} or {last}")


def refuse_kind(kind: Kind, algorithm: str, known: Collection[str]) -> None:
    """An error if an algorithm cannot do a kind.

    >>> refuse_kind(KINDS["full"], "rpj", ("inner",))
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: rpj finds pairs, and cannot do how='full'; use algorithm='confluence' or 'auto'
    """
    if kind.name not in known:
        raise SpecError(
            f"{algorithm} finds pairs, and cannot do how={kind.name!r}; use algorithm='confluence' or 'auto'"
        )


def refuse_endless(kind: Kind, what: str = "inputs that never end", instead: str = "inputs that end") -> None:
    """An error if rows without a partner would wait for ever.

    >>> refuse_endless(KINDS["left"])
    Traceback (most recent call last):
    watersmeet.core.errors.SpecError: how='left' of inputs that never end would hold back each row without a partner \
for ever, because a later row may be one; use window_join, which knows when a row is settled, or inputs that end, or \
that promise what they will not send any more
    >>> refuse_endless(KINDS["semi"])
    """
    if any(kind.preserved):
        raise SpecError(
            f"how={kind.name!r} of {what} would hold back each row without a partner for ever, because a later row may "
            f"be one; use window_join, which knows when a row is settled, or {instead}, or that promise what they will "
            f"not send any more"
        )
