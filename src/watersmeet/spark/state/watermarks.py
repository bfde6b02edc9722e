"""How far the inputs of a streaming window join have come, in all groups: what a batch's tasks tell those of the next.

A group sees only its own rows. What is late, and what has expired, depends on the newest time of an input wherever it
came: a group to which nothing comes any more must let its rows go, too. So each task leaves the newest times of its
rows behind, in the name of an empty file, and the first task of the next batch that looks adds them up for all others::

    marks/
      mark-12-77a1c2d3-0003.1700000000.1699999990    batch 12, group 3: the newest left and the newest right time
      known-13-77a1c2d3                              what was known when batch 13 began

Both depend on the rows of finished batches alone, so whoever writes them, and however often, writes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from watersmeet.engine.silence import followed, overtaken
from watersmeet.records.times import NEVER
from watersmeet.spark.state.directory import StateDirectory, batch_of, token_of
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json, remove
from watersmeet.spark.state.lineage import Lineage, token
from watersmeet.spark.state.remote import Place

_MARK = "mark-"
_KNOWN = "known-"


class Marks:
    """The times that the inputs had reached before a batch, and those that they have reached in it."""

    def __init__(self, directory: StateDirectory, inputs: int, never: int) -> None:
        """`never` is the time of an input that has told none."""
        self._path: Place = directory.path / "marks"
        self._batch = directory.batch
        self._lineage = directory.lineage
        self._retain = directory.retain
        self._nothing = [never] * inputs

    def before(self) -> list[int]:
        """The newest time of each input in all batches before this one."""
        number = self._batch.number
        if number == 0:
            return self._nothing
        make_directory(self._path)
        names = names_in(self._path)
        known = _known(names, self._lineage)
        base = max((batch for batch in known if batch <= number), default=0)
        newest: list[int] = read_json(self._path / known[base])["newest"] if base else self._nothing
        if base == number:
            return newest
        newest = _latest([newest, *_told(names, self._lineage, base, number)])
        whose = self._lineage.token_for(number - 1)
        publish(self._path / f"{_KNOWN}{number}-{whose}", checked_json({"newest": newest}), first_wins=True)
        self._clean(names, base)
        return newest

    def tell(self, group: int, newest: Sequence[int]) -> None:
        """The newest times of a group's rows in this batch."""
        make_directory(self._path)
        times = "".join(f".{time}" for time in newest)
        publish(self._path / f"{_MARK}{self._batch.number}-{token(self._batch.run)}-{group:04d}{times}", b"")

    def _clean(self, names: Sequence[str], base: int) -> None:
        """Drop marks that have been added up, sums that nobody can go back to, and what is void.

        What a run has left that this task has never heard of stays: it may be a later one. What is being written, under
        a hidden name, stays for as long as what it is to become.
        """
        oldest, known = min(base, self._batch.number - self._retain), self._lineage.tokens
        for name in names:
            batch, shown = batch_of(name), name.removeprefix(".")
            needed = batch >= (oldest if shown.startswith(_KNOWN) else base) and _is_valid(shown, self._lineage)
            if not needed and batch >= 0 and token_of(name) in known:
                remove(self._path / name)


def newest_after(batch: int, marks: Place, names: Sequence[str], lineage: Lineage) -> list[int] | None:
    """For somebody who only looks: the newest time of each input up to and with a batch; None if that is not known.

    :param names: what there is in the directory `marks`.
    """
    known = _known(names, lineage)
    last = max(known, default=0)
    if batch + 1 in known:
        found: list[int] = read_json(marks / known[batch + 1])["newest"]
        return found
    if batch < last:  # what was known then has been dropped
        return None
    before = [read_json(marks / known[last])["newest"]] if last else []
    return _latest([*before, *_told(names, lineage, last, batch + 1)]) or None


def _known(names: Iterable[str], lineage: Lineage) -> dict[int, str]:
    return {batch_of(name): name for name in names if name.startswith(_KNOWN) and _is_valid(name, lineage)}


def _told(names: Iterable[str], lineage: Lineage, first: int, end: int) -> Iterator[list[int]]:
    """The times of marks of batches from the first to before the end."""
    for name in names:
        if name.startswith(_MARK) and first <= batch_of(name) < end and _is_valid(name, lineage):
            yield [int(time) for time in name.split(".")[1:]]


def _latest(times: Iterable[Sequence[int]]) -> list[int]:
    return [max(of_input) for of_input in zip(*times, strict=True)]


def _is_valid(name: str, lineage: Lineage) -> bool:
    """Whether the run that has finished the last batch that this speaks of is the one that answers for it."""
    last = batch_of(name) - name.startswith(_KNOWN)
    return lineage.answers_for(last, token_of(name))


_MICROSECONDS = 1_000_000


class Silences:
    """All inputs at one batch: how far they had come before it, and what is to be told to the next.

    A task knows when its batch began: Spark says so, and says the same when the batch is carried out once more. So each
    task leaves behind, beside the newest times of its rows, when its inputs last spoke; and whether an input has been
    overtaken (`engine.silence`) is the same for all tasks of a batch that have rows. Those without rows learn it a
    batch later. What an input was overtaken by is told on, so that it stays reached when the input speaks again.

    >>> hour = 3_600 * _MICROSECONDS
    >>> silences = Silences([700, 900, 0, hour - 5], idle=60.0, at=hour, speaks=[True, False])
    >>> silences.newest, silences.told([705, NEVER])
    ([900, 900], [900, 900, 3600000000, 3599999995])
    """

    def __init__(self, before: Sequence[int], idle: float, at: int | None, speaks: Sequence[bool]) -> None:
        """`before` is what was told up to the batch, which began `at` so many microseconds; None: nobody has said."""
        inputs = len(speaks)
        newest, spoke = list(before[:inputs]), list(before[inputs:])
        if at is not None:
            # Whoever has said nothing yet spoke just before the first batch.
            spoke = [at - 1 if each == NEVER else each for each in spoke]
            found = [overtaken(number, spoke, at, round(idle * _MICROSECONDS)) for number in range(inputs)]
            newest = followed(newest, found)
            spoke = [at if own else last for own, last in zip(speaks, spoke, strict=True)]
        self.newest = newest
        """How far each input has come, before this batch."""
        self._spoke = spoke

    def told(self, newest: Sequence[int]) -> list[int]:
        """What the next batch is to know, if these are the newest times of this one's rows."""
        return [*(max(pair) for pair in zip(self.newest, newest, strict=True)), *self._spoke]
