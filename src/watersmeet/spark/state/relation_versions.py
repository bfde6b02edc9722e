"""Which version of a relation the rows of a micro-batch meet: one for all its tasks, and for those that repeat it.

The first task of a batch that looks takes the newest version and notes it in the state directory::

    versions/version-12-77a1c2d3        batch 12 of this run: {"version": 5}

Before that, it asks the relation to keep the version for this query, so that a later change does not remove it as long
as the batch may have to be repeated.
"""

from __future__ import annotations

from pathlib import Path

from watersmeet.core.errors import RelationError
from watersmeet.relation.relation import Pinned, RelationReader, Version
from watersmeet.spark.state.directory import StateDirectory, batch_of
from watersmeet.spark.state.files import checked_json, make_directory, names_in, publish, read_json, remove
from watersmeet.spark.state.lineage import token
from watersmeet.spark.state.remote import Place
from watersmeet.spill.file_store import FileStore
from watersmeet.spill.pins import FilePins


class ReaderAsOf(RelationReader):
    """A reader for whom one version is the newest."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(FileStore.at(path), FilePins(path), str(path))
        self._version = self._found(number)

    def latest(self, pinned: bool = False) -> Version:
        """The version that counts."""
        return self._version

    def pin(self, number: int | None = None) -> Pinned:
        """Hold a version."""
        return super().pin(self._version.number if number is None else number)

    def go_to(self, number: int) -> None:
        """Let a later version count from now on."""
        assert number >= self._version.number, "rows that were taken in have met a later version"
        if number > self._version.number:
            self._version = self._found(number)

    def _found(self, number: int) -> Version:
        try:
            pinned = RelationReader(self.store, self.pins, self.where).pin(number)
        except RelationError as error:
            raise RelationError(f"these rows are to meet the relation as it was before: {error}") from None
        pinned.release()
        return pinned.version


class BatchVersions:
    """The versions that the batches of a query meet."""

    def __init__(self, directory: StateDirectory, relation: Path, query: str) -> None:
        self._path = directory.path / "versions"
        self._batch = directory.batch
        self._lineage = directory.lineage
        self._retain = directory.retain
        self._relation = relation
        self._query = query

    def current(self) -> int:
        """The version that this batch meets."""
        make_directory(self._path)
        number = self._batch.number
        own = self._path / self._name(self._batch.run)
        if not own.exists():
            told = [self._path / self._name(run) for run in self._lineage.repeated(number)]
            version = next((self._known(path) for path in told if path.exists()), None)
            publish(own, checked_json({"version": self._newest() if version is None else version}), first_wins=True)
            self._clean()
        return self._known(own)

    def _name(self, run: str) -> str:
        return f"version-{self._batch.number}-{token(run)}"

    def _known(self, path: Place) -> int:
        return int(read_json(path)["version"])

    def _newest(self) -> int:
        pins = FilePins(self._relation)
        reader = RelationReader(FileStore.at(self._relation), pins, str(self._relation))
        while True:
            version = reader.latest().number
            pins.hold(version, self._query)
            if reader.latest().number <= version + 1:  # else it may be gone: see `spill.pins`
                return version

    def _clean(self) -> None:
        """Drop what tells of batches that nobody can go back to, and let go of versions that only older ones met."""
        needed = []
        for name in names_in(self._path):
            batch = batch_of(name)
            if 0 <= batch < self._batch.number - self._retain:
                remove(self._path / name)
            elif batch >= self._batch.number - 1 and not name.startswith("."):
                needed.append(self._known(self._path / name))
        if needed:
            FilePins(self._relation).let_go(self._query, min(needed))
