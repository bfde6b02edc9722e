"""State in S3: the first writer wins, faults change nothing, and each request is counted.

On a server of ours in memory, and on two real ones, with the faults between them and us.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from servers.between import Between
from servers.moto import Moto
from servers.objects import FaultyServer, ObjectServer
from servers.process import Unavailable
from servers.s3proxy import S3Proxy
from simulate.disk import Disk
from simulate.faults import Fault, Faults
from spark.divided_streams import Stream, cut
from spark.frames import random_frames
from spark.test_streams import Streams
from watersmeet.core.errors import SnapshotError, SpillError
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.spark.offline.opened import OpenedState, verify
from watersmeet.spark.offline.reading import StateRows
from watersmeet.spark.offline.repartition import repartition
from watersmeet.spark.state import directory as state_directory
from watersmeet.spark.state import lineage, s3
from watersmeet.spark.state.files import publish
from watersmeet.spark.state.remote import RemotePath, place_of, store_at

REAL: dict[str, type[S3Proxy | Moto]] = {"s3proxy": S3Proxy, "moto": Moto}
EVERY = ["memory", *REAL]


def _started(name: str, place: Path) -> Iterator[Any]:
    try:
        found = REAL[name](place)
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield found
    s3.close_idle()
    found.close()


@pytest.fixture(scope="module")
def s3proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    yield from _started("s3proxy", tmp_path_factory.mktemp("s3proxy"))


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    yield from _started("moto", tmp_path_factory.mktemp("moto"))


@pytest.fixture(params=["memory"])
def server(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """That of which a test names, with faults."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    monkeypatch.setattr(s3, "_FIRST_PAUSE", 0.001)
    found = ObjectServer() if request.param == "memory" else Between(request.getfixturevalue(request.param).port)
    yield found
    s3.close_idle()
    found.close()


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_directory, "_BEGUN", {})
    monkeypatch.setattr(lineage, "_ENTRIES", {})


def _batches(rows: int, count: int) -> tuple[JoinSpec, list[list[pa.RecordBatch]]]:
    rng = np.random.default_rng(3)
    tables = [pa.record_batch({"id": rng.integers(0, 20, rows), name: np.arange(rows)}) for name in "ab"]
    spec = JoinSpec(tables[0].schema, tables[1].schema, parse_on("id"))
    return spec, [list(each) for each in zip(*(cut(table, count) for table in tables), strict=True)]


def _expected(batches: list[list[pa.RecordBatch]]) -> int:
    ids = [Counter(key for each in batches for key in each[side]["id"].to_pylist()) for side in (0, 1)]
    return sum(count * ids[1][key] for key, count in ids[0].items())


@pytest.mark.parametrize("server", EVERY, indirect=True)
def test_of_many_that_write_a_name_at_once_one_is_first(server: FaultyServer) -> None:
    place = place_of(server.address("state"))
    for number in range(10):
        told: list[int] = []
        ready = threading.Barrier(6)

        def write(who: int, number: int = number, told: list[int] = told, ready: Any = ready) -> None:
            ready.wait()
            if publish(place / f"name {number}", f"{who}".encode(), first_wins=True):
                told.append(who)

        threads = [threading.Thread(target=write, args=(who,)) for who in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 1
        assert (place / f"name {number}").read_text() == str(told[0])
    assert server.asked == Counter({"PUT": 60, "GET": 10})


def test_addresses_keep_their_options(server: FaultyServer) -> None:
    place = RemotePath.of(server.address("some/state/"))
    assert (place / "a" / "b").key == "some/state/a/b"
    assert (place / "a").name == "a"
    assert str(place / "a").partition("?")[0] == "s3://me:...@bucket/some/state/a"
    (place / "a").write_bytes(b"x")
    assert place.names() == ["a"]
    assert (place / "a").exists() and place.exists() and not (place / "b").exists()


@pytest.mark.parametrize("server", ["memory", "s3proxy"], indirect=True)
def test_a_small_batch_costs_a_group_few_requests(server: FaultyServer) -> None:
    spec, batches = _batches(400, 4)
    stream = Stream(server.address("state"), spec, 4)
    found = sum(stream.batch(number, of_batch).total() for number, of_batch in enumerate(batches[:3]))
    server.asked.clear()
    server.requests.clear()
    found += stream.batch(3, batches[3]).total()
    assert found == _expected(batches)
    # For each group: what is there, its manifest, a run of each side, the next manifest; for the process a few more.
    assert server.asked == Counter({"PUT": 4 * 3 + 1, "GET": 4 + 1, "LIST": 4 + 2}), server.requests
    assert server.asked.total() / 4 <= 6


def _faulty(server: FaultyServer, rng: np.random.Generator, kinds: list[str], share: float) -> Counter[str]:
    """Faults at random, never more than a few in a row; returns what happened, as it happens."""
    happened: Counter[str] = Counter()
    row = 0

    def fault(verb: str, key: str) -> str:
        nonlocal row
        row = row + 1 if rng.random() < share and row < 3 else 0
        kind = str(rng.choice(kinds)) if row else ""
        if kind == "half" and verb not in ("GET", "LIST"):
            kind = "cut after"
        if kind == "cut within" and verb != "PUT":
            kind = "cut before"
        happened[f"{kind} {verb}" if kind else ""] += 1
        return kind

    server.fault = fault
    return happened


CUTS = ("cut before", "cut within", "cut after")


@pytest.mark.parametrize(
    ("server", "seed"), [*(("memory", seed) for seed in range(3)), ("s3proxy", 0), ("s3proxy", 1), ("moto", 0)],
    indirect=["server"],
)  # fmt: skip
def test_faults_change_nothing(seed: int, server: FaultyServer) -> None:
    spec, batches = _batches(240, 6)
    rng = np.random.default_rng(seed)
    happened = _faulty(server, rng, ["503", *CUTS, "half", "slow"], 0.25)
    stream = Stream(server.address("state"), spec, 2)
    found = 0
    for number, of_batch in enumerate(batches):
        first = stream.batch(number, of_batch)
        if rng.random() < 0.4:
            stream.run = f"run-{number}"
            state_directory._BEGUN.clear()
            assert stream.batch(number, of_batch) == first
        found += first.total()
    assert found == _expected(batches)
    seen = {kind.partition(" ")[0] for kind in happened}
    assert seen >= {"503", "cut", "slow"} and happened["cut within PUT"] and happened["cut after PUT"], happened
    rows = StateRows(OpenedState(server.address("state")), "left")
    assert sum(batch.num_rows for batch in rows.read()) == 240


def test_a_server_that_stays_away_is_named(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, batches = _batches(40, 2)
    stream = Stream(server.address("state"), spec, 1)
    stream.batch(0, batches[0])
    server.fault = lambda verb, key: "503"
    with pytest.raises(SpillError, match=r"could not GET .* in 8 attempts \(the answer was 503\); see whether"):
        stream.batch(1, batches[1])
    server.fault = lambda verb, key: ""
    assert stream.batch(1, batches[1]).total() > 0


def test_a_local_disk_that_fails_while_a_segment_is_uploaded_is_named(server: FaultyServer, tmp_path: Path) -> None:
    store = store_at(place_of(server.address("state/group-0000")), 1 << 20)
    writer = store.create("operator-0")
    writer.write(b"content")
    with Disk(tmp_path, Faults([Fault("open", at=1, error=errno.EIO)])):
        with pytest.raises(
            SpillError, match=r"could not write s3://.*operator-0.*: the disk failed \(Input/output error\)"
        ):
            writer.commit()
    assert not server.keys() and not list(store.path.iterdir())


@pytest.mark.parametrize("server", EVERY, indirect=True)
def test_listings_that_lag_lose_no_rows(server: FaultyServer) -> None:
    spec, batches = _batches(300, 6)
    stream = Stream(server.address("state"), spec, 2)
    found = 0
    hidden: list[str] = []
    server.hidden = lambda key: "/group-" in key and key in hidden
    for number, of_batch in enumerate(batches):
        before = server.keys()
        found += stream.batch(number, of_batch).total()
        hidden[:] = server.keys() - before  # what a batch has written is listed a batch later
        state_directory._BEGUN.clear()
    assert found == _expected(batches)
    server.hidden = lambda key: "/batches/" in key and key.endswith("5")
    with pytest.raises(SnapshotError, match="needs batch 5"):
        stream.batch(6, batches[5])


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_a_real_server_lets_one_be_first_and_keeps_a_state(server: FaultyServer) -> None:
    place = place_of(server.address("names"))
    told = [publish(place / "a name", who, first_wins=True) for who in (b"one", b"two")]
    assert told == [True, False]
    assert (place / "a name").read_bytes() == b"one"
    assert place.names() == ["a name"]
    spec, batches = _batches(240, 6)
    stream = Stream(server.address("state"), spec, 2)
    found = 0
    for number, of_batch in enumerate(batches):
        found += stream.batch(number, of_batch).total()
        if number == 3:
            repartition(server.address("state"), 3)
            stream.groups = 3
    assert found == _expected(batches)
    assert verify(OpenedState(server.address("state"))).damaged == []


def test_a_query_keeps_its_state_on_a_real_server(s3proxy: S3Proxy, spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    streams = Streams(spark, tmp_path, ["k0"], state=s3proxy.address("query"))
    for _ in range(2):
        frames = random_frames(spark, rng, ["string"], (90, 80), 9)
        streams.add(*(frame.select("k0", f"{'lr'[side]}_number") for side, frame in enumerate(frames)))
        streams.run()
        assert streams.found() == streams.expected()
    state = OpenedState(s3proxy.address("query"))
    assert state.batches() == [0, 1]
    assert sum(1 for _ in state.versions()) == 2
