"""The kinds of failure. Each makes one happen, proves that it did, and that the sink holds every pair once after it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from chaos.handle import Job, kill
from chaos.sink import committed, log_files
from chaos.watched import RAISE, STRAGGLE, Note
from chaos.work import Work, difference
from watersmeet.spark.state.directory import batch_of
from watersmeet.spark.state.files import read_json

T = TypeVar("T")
Say = Callable[[str], None]

_COMMON_GROUPS = 3
"""Groups that rows come to with every file, whatever the verb."""


class Trial:
    """A query that goes on from one failure to the next, and the input it is given.

    Where pairs may be owed until the inputs end, then before that no pair may have come too often, and after
    it none may be missing.
    """

    def __init__(self, job: Job, work: Work, say: Say) -> None:
        self.job, self.work, self._say = job, work, say
        self._may_owe = job.verb.owes
        self.rng = random.Random(0)
        self.checks = 0
        self.pairs = 0
        self.steps: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()

    def in_turn(self, choices: Sequence[T]) -> T:
        """One of some choices, the next one each time."""
        self._turns[str(choices)] += 1
        return choices[(self._turns[str(choices)] - 1) % len(choices)]

    def begin(self) -> None:
        """Start the query and see that it works at all."""
        self.work.offer(files=2)
        if self.job.verb.ends:
            self.work.offer(files=6, rows=1_500)  # more than memory holds, from the start
        self.job.start()
        self.check()

    def check(self) -> None:
        """Let the query take in everything, and compare the sink with the plain join of all files, by multiset."""
        self.job.drain()
        self._compare(committed(self.job.place / "out", self.job.verb.columns), self.work.expected())
        self.checks += 1

    def end_inputs(self) -> int:
        """Say that no more rows will come, and see that everything that was owed comes then; how many pairs."""
        self.check()
        owed = self.work.expected().total() - self.pairs
        self.work.end()
        self._may_owe = False
        self.check_with_spark()
        assert owed > 0 or not self.job.verb.owes, "no pair was owed: nothing was seen of rows that wait on disk"
        return owed

    def check_with_spark(self) -> None:
        """The same by Spark's reading of the sink, and by its own batch join of all files."""
        self.check()
        read = Counter(self.job.rows("read"))
        own = Counter(self.job.rows("own"))
        self._compare(read, own)
        assert not difference(own, self.work.expected()), "Spark's join and the plainest of joins differ"

    def _compare(self, found: Counter[tuple[object, ...]], expected: Counter[tuple[object, ...]]) -> None:
        wrong = difference(found, found & expected if self._may_owe else expected)
        assert not wrong, f"the sink is not what it should be: {wrong}"
        if self._may_owe and self.job.verb.due is not None:
            overdue = self.job.verb.due(expected) - found
            assert not overdue, f"{overdue.total()} results are overdue, such as {next(iter(overdue))}"
        assert max(expected.values()) > 1, "no pair comes twice, so nothing was compared by multiset"
        self.pairs = found.total()

    def running(self) -> tuple[int, Note]:
        """At a random moment, a process that is inside a task of the join, held there, and what it is at."""
        for _ in range(20):
            self.work.offer(files=1)
            time.sleep(self.rng.uniform(0, 1))
            if self.job.wait_running(timeout=20) is not None:
                time.sleep(self.rng.uniform(0, 0.5))
                found = self.job.wait_running(timeout=0.5)
                held = None if found is None else self.job.hold(found[0])
                if found is not None and held is not None:
                    return found[0], held
            self.job.drain()  # says what is wrong if the query has ended
        raise AssertionError("the query takes in files, but no task of the join was ever seen")

    def until_it_hits(self, attempt: Callable[[], str]) -> str:
        """A kill may come just after its task was done: then nothing had to be done again, and it does not count."""
        for _ in range(10):
            told = attempt()
            if told:
                return told
            self._say("the task was done just before the kill; once more")
        raise AssertionError("ten kills in a row came too late to be noticed")


def kill_worker(trial: Trial) -> str:
    """SIGKILL of the Python worker that runs a task."""

    def attempt() -> str:
        pid, note = trial.running()
        at = _kill(psutil.Process(pid))
        trial.check()
        again = _again(trial.job, note, at)
        if again is None:
            return ""
        trial.steps[note.step] += 1
        return f"worker {pid} killed in batch {note.batch}, group {note.group}, {note.step}; done again by {again.pid}"

    return trial.until_it_hits(attempt)


def kill_executor(trial: Trial) -> str:
    """SIGKILL of the executor that runs a task; its Python workers are left behind and may go on for a while."""

    def attempt() -> str:
        pid, note = trial.running()
        executor = trial.job.executor_of(pid)
        if executor is None:
            trial.job.let_go(pid)
            return ""
        orphans = {child.pid for child in executor.children(recursive=True)}
        at = _kill(executor)
        trial.job.let_go(pid)
        trial.check()
        again = _again(trial.job, note, at)
        if again is None:
            return ""
        late = [
            each for each in trial.job.journal() if each.pid in orphans and each.at > at and each.step == "published"
        ]
        trial.steps[note.step] += 1
        trial.steps["orphans that still published"] += len(late)
        return (
            f"executor {executor.pid} killed in batch {note.batch}, group {note.group}, {note.step}; "
            f"done again by {again.pid}" + (", while an orphan still published" if late else "")
        )

    return trial.until_it_hits(attempt)


def kill_driver(trial: Trial) -> str:
    """SIGKILL of the driver, Python and JVM, and a restart from the checkpoint at once."""
    pid, note = trial.running()
    at = time.time()
    jvm = trial.job.kill_driver()
    trial.job.let_go(pid)
    trial.job.start()
    trial.check()
    again = [each for each in trial.job.journal() if each.batch == note.batch and each.run != note.run and each.at > at]
    assert again, f"batch {note.batch} was being worked on when the driver died, and was not begun again"
    trial.steps[note.step] += 1
    return f"driver {jvm} killed in batch {note.batch}, {note.step}; begun again by run {again[0].run[:8]}"


def raise_after_publication(trial: Trial) -> str:
    """An exception in a task whose state is published already."""
    time.sleep(trial.rng.uniform(0, 0.3))
    trial.job.write_order(RAISE)
    trial.work.offer(files=1)
    trial.check()
    assert not trial.job.is_waiting(RAISE), "no task published anything, so none failed after it"
    raised = [note for note in trial.job.journal() if note.step == "raised"][-1]
    again = _again(trial.job, raised, raised.at)
    assert again is not None, "the task that failed was not run again"
    assert again.attempt == raised.attempt + 1 and again.run == raised.run
    trial.steps["published"] += 1
    return f"attempt {raised.attempt} at batch {raised.batch}, group {raised.group}, raised; {again.attempt} followed"


def replay(trial: Trial) -> str:
    """A batch that was done is run again: Spark's note of it is gone; every second time the sink's, too."""
    sink_too = trial.in_turn([False, True])
    batch = _before_a_plain_entry(trial)
    _forget(trial.job.place / "checkpoint" / "commits", batch)
    if sink_too:
        _forget(trial.job.place / "out" / "_spark_metadata", batch)
    at = time.time()
    trial.job.tell("start")
    trial.check()
    again = {note.group for note in trial.job.journal() if note.batch == batch and note.at > at}
    # A sink that has the batch does not ask for it again.
    assert bool(again) == sink_too, f"batch {batch} was run again for groups {sorted(again)}"
    trial.work.offer(files=1)
    trial.check()
    trial.steps["run again" if sink_too else "noted again"] += 1
    return f"batch {batch} was done and is {'run' if sink_too else 'noted'} again"


def _before_a_plain_entry(trial: Trial) -> int:
    """Stop the query after a batch that the sink's log has an entry of its own for; the batch."""
    while True:
        trial.job.tell("stop")
        batch, log = max(log_files(trial.job.place / "out").items())
        if not log.suffix:
            return batch
        trial.job.tell("start")
        trial.work.offer(files=1)
        trial.check()


def _forget(directory: Path, batch: int) -> None:
    (directory / str(batch)).unlink()
    (directory / f".{batch}.crc").unlink(missing_ok=True)


def damage(trial: Trial) -> str:
    """A segment that is altered, gone or cut short stops the query, which names it; put back, the query goes on."""
    how = trial.in_turn(["altered", "gone", "cut short"])
    kept = trial.job.verb.keeps_operators
    if kept:
        trial.job.kill_driver()  # what a worker process has in memory, it does not read
    else:
        trial.job.tell("stop")
    segment, read = (_newest_snapshot if kept else _newest_large_run)(trial.job.place / "state", trial.rng)
    content = segment.read_bytes()
    segment.unlink()
    if how != "gone":
        middle = trial.rng.randrange(int(len(content) * read))
        while how == "altered" and not content[middle]:
            middle -= 1  # not among the zeros that fill a run up to where rows begin, which say nothing
        altered = content[:middle] + bytes([content[middle] ^ 1 << trial.rng.randrange(8)]) + content[middle + 1 :]
        segment.write_bytes(altered if how == "altered" else content[:middle])
    if kept:
        trial.work.offer(files=1)
        trial.job.start()
    else:
        trial.work.offer_every_key()
        trial.job.tell("start")
    error = trial.job.tell("drain").get("error", f"none: {segment.name} is {how}, and the query went on")
    assert segment.name in error and "is damaged and the query cannot go on" in error, error
    segment.write_bytes(content)
    trial.job.tell("start")
    trial.check()
    trial.steps[how] += 1
    return f"{segment.parent.name}/{segment.name} was {how}, and was named"


def _newest_large_run(state: Path, rng: random.Random) -> tuple[Path, float]:
    """The largest run of what some group holds now, of those that rows are looked up in; all of it is read.

    Of several inputs it is one of the first, which rows of the second with every id look for.
    """
    group = rng.choice(sorted(state.glob("group-*")))
    manifest = _newest_manifest(group)
    inputs = manifest["snapshot"]["state"]["runs"]
    several = len(inputs) > 2
    names = [name[0] if several else name for runs in inputs[: 1 if several else 2] for name, *_ in runs]
    return max((group / manifest["files"][name][0] for name in names), key=lambda path: path.stat().st_size), 1.0


def _newest_snapshot(state: Path, rng: random.Random) -> tuple[Path, float]:
    """The largest file out of which some group's rows in memory are restored, of which the first third are rows; or,
    if they were put away, its last run, of which the hashes at its beginning are read in any case.
    """
    groups = sorted(state.glob("group-*"))[:_COMMON_GROUPS]
    manifests = {group: _newest_manifest(group) for group in groups}
    group = rng.choice([group for group in groups if manifests[group]["snapshot"] is not None])
    saved, files = manifests[group]["snapshot"]["state"]["deltas"], manifests[group]["files"]
    found = [group / files[name][0] for deltas in saved for name, _ in deltas]
    if found:
        return max(found, key=lambda path: path.stat().st_size), 1 / 3
    state_of = manifests[group]["snapshot"]["state"]
    if len(state_of.get("runs", ())) > 2:  # of several inputs, rows of the others look for those of the first
        name = state_of["runs"][0][-1][0][0]
    elif "runs" in state_of:
        name = max((run for runs in state_of["runs"] for run in runs), key=lambda run: run[1])[0]
    else:  # an as-of join looks rows up in runs of its right input
        name = state_of["right"][-1][0]
    return group / files[name][0], 1 / 16


def _newest_manifest(group: Path) -> dict[str, Any]:
    newest = max(group.glob("manifest-*"), key=lambda path: (batch_of(path.name), path.stat().st_mtime))
    return dict(read_json(newest))


def speculate(trial: Trial) -> str:
    """Two attempts at one task at once; the first waits at some step, until the other has published or is done."""
    turns = [("read", "published"), ("published", "published"), ("published", "answered")]
    step, until = trial.in_turn(turns if trial.job.verb.publishes else [("read", "answered")])
    order = f"{STRAGGLE} {step}"
    trial.job.write_order(order, until)
    trial.work.offer(files=1)
    trial.check()
    assert not trial.job.is_waiting(order), "no task was slow"
    notes = trial.job.journal()
    waited = [note for note in notes if note.step.startswith("waited")][-1]
    same = [note for note in notes if (note.run, note.batch, note.group) == (waited.run, waited.batch, waited.group)]
    by_attempt = {attempt: [note.step for note in same if note.attempt == attempt] for attempt in (0, 1)}
    begun = next(note for note in same if note.attempt == 1 and note.step == "begun")
    assert begun.at < waited.at and begun.pid != waited.pid, "the attempts did not run at the same time"
    # One that begins after the other has published may find its results there, and has none to publish.
    assert until in by_attempt[1], by_attempt
    both = "published" in by_attempt[0]
    trial.steps[f"first waited after {step}" + (", both published" if both else "")] += 1
    return (
        f"batch {waited.batch}, group {waited.group}: attempt 0 waited after {step!r} until attempt 1 had "
        f"{until}" + (", both published" if both else "")
    )


FAILURES: dict[str, Callable[[Trial], str]] = {
    "worker": kill_worker,
    "exception": raise_after_publication,
    "executor": kill_executor,
    "driver": kill_driver,
    "replay": replay,
    "segment": damage,
    "speculation": speculate,
}
"""By their kind."""


def _kill(process: psutil.Process) -> float:
    at = time.time()
    kill(process)
    return at


def _again(job: Job, lost: Note, at: float) -> Note | None:
    """The attempt that was begun after another was lost."""
    for note in job.journal():
        if (note.step, note.batch, note.group) == ("begun", lost.batch, lost.group) and note.at > at:
            return note
    return None
