"""The public face: what is checked before any row is read, what a result can do, and files that are whole or absent."""

from __future__ import annotations

import gc
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import watersmeet as wm
from waiting import until
from watersmeet.api import sinks
from watersmeet.drivers.live import queue_bytes
from watersmeet.planner import ALGORITHMS
from watersmeet.spill.locks import try_lock

ORDERS = pa.table({"id": [1, 2, 3], "item": ["cup", "pot", "pan"]})
PAID = pa.table({"id": [3, 1, 1], "sum": [3.0, 1.0, 1.5]})
JOINED = [
    {"id": 1, "item": "cup", "sum": 1.0},
    {"id": 1, "item": "cup", "sum": 1.5},
    {"id": 3, "item": "pan", "sum": 3.0},
]
MEMORY = "16 MiB"
SOME = min(ALGORITHMS)


def join(left: object = ORDERS, right: object = PAID, on: object = "id", **more: object) -> wm.Result:
    more = {"memory": MEMORY, **more}
    return wm.join(left, right, on, **more)  # type: ignore[arg-type]


def rows(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=lambda row: tuple(row.values()))


def never() -> Iterator[dict[str, int]]:
    pytest.fail("a row was read")
    yield {}


# -- inputs ------------------------------------------------------------------------------------------------------------

TIMES = pa.table({"k": [1, 2, 1], "ts": [1, 2, 3]})
ITERATORS: dict[str, Callable[[], object]] = {
    "generator": lambda: (row for row in TIMES.to_pylist()),
    "list_iterator": lambda: iter([TIMES, TIMES]),
    "RecordBatchReader": TIMES.to_reader,
    "IteratorSource": lambda: wm.source(iter(TIMES.to_pylist())),
    "TableSource": lambda: wm.source(TIMES),
}
TWICE: dict[str, Callable[[object, object], object]] = {
    "left and right": lambda a, b: wm.join(a, b, "k"),
    "left and right ": lambda a, b: wm.window_join(a, b, "k", time="ts", window=3),
    "left and right  ": lambda a, b: wm.asof_join(a, b, time="ts"),
    "a and c": lambda a, b: wm.multijoin({"a": a, "b": TIMES, "c": b}, on=["a.k = b.k", "b.k = c.k"]),
    "relation and stream": lambda a, b: wm.lookup_join(a, b, "k"),
    "r and s": lambda a, b: wm.lookup_join(TIMES, {"r": a, "s": b}, "k"),
    "relation and t": lambda a, b: wm.shared_lookup_join({"s": TIMES, "t": a}, b, on="k"),
}


@pytest.mark.parametrize("parts", [1, 3])
def test_sqlite_is_read_by_other_threads_only_if_it_was_told_to_be(parts: int) -> None:
    refused, told = sqlite3.connect(":memory:"), sqlite3.connect(":memory:", check_same_thread=False)
    sql = " union all ".join(f"select {number} as id, {number} as n" for number in (1, 2, 3))
    with pytest.raises(wm.SourceError) as caught:
        join(wm.query(refused, sql, name="shop", batch_rows=parts)).table()
    assert str(caught.value) == (
        f"shop broke off after {parts} rows: sqlite3 lets only the thread that made a connection use it, and each "
        f"input is read in a thread of its own; make it with sqlite3.connect(..., check_same_thread=False)"
    )
    assert len(join(wm.query(told, sql, batch_rows=parts)).table()) == 3
    refused.close()
    told.close()


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize("names", TWICE)
def test_what_is_read_once_is_no_two_inputs(names: str, kind: str) -> None:
    rows = ITERATORS[kind]()
    with pytest.raises(wm.SourceError) as caught:
        TWICE[names](rows, rows)
    told = str(caught.value)
    assert told.startswith(f"{names.strip()} are one and the same ")
    assert told.endswith("give each of them an iterator of its own, or both a table")
    if "Source" not in kind:
        assert kind in told
        made = ITERATORS[kind]()
        with pytest.raises(wm.SourceError, match="one and the same"):
            TWICE[names](wm.source(made), wm.source(made))


@pytest.mark.parametrize("names", TWICE)
def test_what_can_be_read_again_may_be_two_inputs(names: str, tmp_path: Path) -> None:
    pq.write_table(TIMES, tmp_path / "t.parquet")
    for data in (TIMES, TIMES.to_pylist(), [TIMES], TIMES.to_pandas(), str(tmp_path / "t.parquet")):
        result = TWICE[names](data, data)
        assert next(iter(result))  # type: ignore[call-overload]
        result.close()  # type: ignore[attr-defined]


# -- results -----------------------------------------------------------------------------------------------------------


def test_batches_table_pandas_and_polars_agree() -> None:
    assert rows(pa.Table.from_batches(join())) == JOINED
    assert rows(join().table()) == JOINED
    assert sorted(join().pandas()["sum"]) == [1.0, 1.5, 3.0]
    assert sorted(join().polars()["sum"]) == [1.0, 1.5, 3.0]


@pytest.mark.parametrize("algorithm", ["auto", *sorted(ALGORITHMS)])
def test_every_algorithm_can_be_asked_for(algorithm: str) -> None:
    result = join(algorithm=algorithm)
    assert rows(result.table()) == JOINED
    assert result.progress.algorithm in ALGORITHMS
    if algorithm != "auto":
        assert result.progress.algorithm == algorithm


def test_an_empty_result_has_its_columns() -> None:
    table = join(right=PAID.slice(0, 0)).table()
    assert table.num_rows == 0
    assert table.schema.names == ["id", "item", "sum"]


def test_the_schema_is_known_before_the_rows() -> None:
    result = join()
    assert result.schema.names == ["id", "item", "sum"]
    assert rows(result.table()) == JOINED


def test_the_schema_of_an_iterator_waits_for_its_first_row() -> None:
    result = join(right=({"id": i, "sum": float(i)} for i in (3, 1)))
    assert result.schema.names == ["id", "item", "sum"]
    assert result.table().num_rows == 2


def test_a_result_is_read_once() -> None:
    result = join()
    result.table()
    with pytest.raises(wm.WatersmeetError, match="only once"):
        iter(result)
    with pytest.raises(wm.WatersmeetError, match="only once"):
        result.table()


def test_progress_of_a_finished_join() -> None:
    result = join()
    assert result.progress.phase == "not started"
    result.table()
    progress = result.progress
    assert (progress.names, progress.rows_in, progress.rows_out) == (("left", "right"), (3, 3), 3)
    assert progress.done
    assert progress.phase == "done"
    assert progress.first_result_after is not None
    assert 0 < progress.peak <= progress.budget == 16 << 20
    assert "3 out" in str(progress)
    assert "left 3 + right 3 rows in" in repr(result)


def test_on_progress_is_called() -> None:
    seen: list[wm.Progress] = []
    join(on_progress=seen.append).table()
    assert seen[-1].done


def test_leaving_a_with_block_stops_the_join(tmp_path: Path) -> None:
    forever = ({"id": i % 5, "sum": 0.0} for i in range(10**9))
    with join(right=forever, spill=tmp_path) as result:
        assert next(iter(result)).num_rows
    assert result.progress.phase == "closed"
    assert not list(tmp_path.iterdir())
    await_no_reader()


def test_leaving_a_loop_stops_the_join_while_the_result_is_kept(tmp_path: Path) -> None:
    forever = ({"id": i % 5, "sum": 0.0} for i in range(10**9))
    result = join(right=forever, spill=tmp_path)
    for _ in result:
        assert list(tmp_path.iterdir())
        break
    assert not list(tmp_path.iterdir())
    await_no_reader()
    assert result.progress.phase == "closed"


def closed_meanwhile() -> wm.Result:
    """A join that its observer closes after the first results."""

    def close_at_some(progress: wm.Progress) -> None:
        if progress.rows_out:
            result.close()

    forever = ({"id": i % 5, "sum": 0.0} for i in range(10**9))
    result = join(right=forever, on_progress=close_at_some)
    return result


def test_a_join_that_is_closed_meanwhile_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    for read in (wm.Result.table, wm.Result.pandas, wm.Result.polars):
        with pytest.raises(wm.WatersmeetError, match="closed before its end, so that not all of its results are there"):
            read(closed_meanwhile())
    path = tmp_path / "out.csv"
    path.write_text("precious")
    with pytest.raises(wm.WatersmeetError, match="closed before its end, so that not all of its results are there"):
        closed_meanwhile().write(path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]
    assert sum(batch.num_rows for batch in closed_meanwhile())  # a loop has had what there was
    await_no_reader()


def await_no_reader() -> None:
    until(lambda: not any(t.name.startswith("watersmeet-read-") for t in threading.enumerate()), "all readers end")


# -- checks before any row is read -------------------------------------------------------------------------------------

KNOWN = pa.schema({"id": pa.int64(), "sum": pa.float64()})


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"on": "order"}, wm.SpecError, r"join column 'order' is not in left; it has id, item"),
        ({"on": "item = sum"}, wm.SpecError, r"'item' of left \(string\) cannot be compared with .*'sum' of right"),
        ({"on": []}, wm.SpecError, r"on=\[\]"),
        ({"how": "outer"}, wm.SpecError, r"there is no how='outer'; choose inner, left"),
        ({"algorithm": "bogo"}, wm.SpecError, rf"algorithm 'bogo' is not known; choose auto, or one of .*{SOME}"),
        ({"flux": 3}, wm.SpecError, r"algorithm auto has no option 'flux'; it takes"),
        ({"memory": "64 Mipps"}, wm.SpecError, r"memory '64 Mipps' is not understood"),
        ({"memory": 0}, wm.SpecError, r"memory must be more than nothing"),
        ({"suffixes": ("a",)}, wm.SpecError, r"suffixes must be two strings"),
        ({"names": ("a",)}, wm.SpecError, r"names must be two strings"),
        ({"wait": -1.0}, wm.SpecError, r"^wait must be zero or more, not -1.0$"),
        ({"wait": "soon"}, wm.SpecError, r"^wait 'soon' is not understood; write a length of time such as '1 s'"),
        ({"wait": None}, wm.SpecError, r"^wait None is not understood; write a length of time such as '1 s'"),
        ({"on_progress": 3}, wm.SpecError, r"^on_progress must be a function .*, not 3; leave it out"),
        ({"left": 7}, wm.SourceError, r"left is of type int"),
        ({"left": "https://host/a.csv"}, wm.SourceError, r"https://host/a.csv is an address, and only files"),
        ({"left": "no-such.parquet"}, wm.SourceError, r"no-such.parquet does not exist"),
        ({"names": ("orders", "payments"), "on": "x"}, wm.SpecError, r"not in orders"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_mistakes_are_told_before_any_row_is_read(change: dict[str, object], error: type[Exception], says: str) -> None:
    given: dict[str, object] = {"left": ORDERS, "right": wm.source(never(), name="right", schema=KNOWN), **change}
    with pytest.raises(error, match=says):
        join(**given)
    await_no_reader()


def test_a_file_is_called_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "orders.parquet"
    pq.write_table(ORDERS, path)
    with pytest.raises(wm.SpecError, match=r"orders\.parquet; it has id, item"):
        join(path, on="x")
    with pytest.raises(wm.SpecError, match=r"not in shop; it has"):
        join(path, on="x", names=("shop", "bank"))


def test_mistakes_about_an_iterator_are_told_at_first_use() -> None:
    result = join(right=iter([{"ident": 1}]))
    with pytest.raises(wm.SpecError, match="join column 'id' is not in right"):
        result.table()
    await_no_reader()


@pytest.mark.parametrize("algorithm", ["auto", *sorted(set(ALGORITHMS) - {"reference"})])
def test_a_budget_that_is_too_small_says_what_would_do(algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(wm.BudgetError, match=r"memory of 100 B is too small.*allow at least") as caught:
        join(memory=100, algorithm=algorithm, spill=tmp_path)
    assert not list(tmp_path.iterdir())
    needed = int(str(caught.value).split("(")[1].split(" bytes")[0].replace(",", ""))
    assert rows(join(memory=needed, algorithm=algorithm).table()) == JOINED
    with pytest.raises(wm.BudgetError):
        join(memory=needed - 2, algorithm=algorithm)
    assert needed - queue_bytes(needed) > 0


def test_a_spill_directory_that_is_none_is_an_error() -> None:
    with pytest.raises(wm.SpillError, match="/no/such/place"):
        join(spill="/no/such/place").table()
    await_no_reader()


# -- failures on the way -----------------------------------------------------------------------------------------------


def breaking(after: int) -> Iterator[dict[str, object]]:
    for i in range(after):
        yield {"id": i, "sum": float(i)}
    raise ConnectionError("the line went dead")


def test_a_source_that_breaks_off_is_named(tmp_path: Path) -> None:
    found: list[pa.RecordBatch] = []
    with pytest.raises(wm.SourceError, match=r"right broke off after 100 rows.*the line went dead"):
        found.extend(join(right=breaking(100), spill=tmp_path))
    assert sum(batch.num_rows for batch in found) == 3
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_no_more_spill_is_told_and_left_clean(tmp_path: Path) -> None:
    many = pa.table({"id": range(200_000), "text": ["some text that takes room"] * 200_000})
    result = join(many, many, memory="2 MiB", algorithm="xjoin", spill=tmp_path, suffixes=("", "_b"))
    with files_no_larger_than(4096), pytest.raises(wm.SpillError, match=r"(?i)full|large|room"):
        result.table()
    assert not list(tmp_path.iterdir())
    await_no_reader()


def test_spilling_shows_in_the_progress_and_is_gone_afterwards(tmp_path: Path) -> None:
    many = pa.table({"id": range(200_000), "text": ["some text that takes room"] * 200_000})
    result = join(many, many, memory="2 MiB", algorithm="xjoin", spill=tmp_path, suffixes=("", "_b"))
    assert sum(batch.num_rows for batch in result) == 200_000
    progress = result.progress
    assert progress.spilled > 1 << 20
    assert progress.on_disk == progress.memory == 0
    assert progress.peak <= progress.budget
    assert not list(tmp_path.iterdir())


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["parquet", "pq", "csv", "arrow", "feather", "ipc", "PARQUET"])
def test_the_ending_says_the_format(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{ending}"
    assert join().write(path) == 3
    read = {"parquet": pq.read_table, "pq": pq.read_table, "csv": pyarrow.csv.read_csv}
    table = read.get(ending.lower(), lambda p: pyarrow.feather.read_table(p))(path)
    assert rows(table) == JOINED
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_no_rows_are_a_whole_file(tmp_path: Path) -> None:
    assert join(right=PAID.slice(0, 0)).write(tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet").schema.names == ["id", "item", "sum"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_midway_leaves_the_folder_as_it_was(existing: bool, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    if existing:
        path.write_bytes(b"precious")
    with pytest.raises(wm.SourceError):
        join(right=breaking(100)).write(path)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([b"precious"] if existing else [])


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
def test_an_interruption_right_after_a_file_was_opened_leaves_neither_a_file_nor_a_complaint(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, open_writer = sinks.FORMATS[f".{ending}"]

    def open_and_stop(file: pa.NativeFile, schema: pa.Schema) -> None:
        opened = open_writer(file, schema)
        raise KeyboardInterrupt(opened)

    complaints: list[object] = []
    monkeypatch.setattr(sinks, "FORMATS", {f".{ending}": (name, open_and_stop)})
    monkeypatch.setattr(sys, "unraisablehook", lambda about: complaints.append(about.exc_value))
    with pytest.raises(KeyboardInterrupt):
        sinks.write(ORDERS.to_batches(), ORDERS.schema, tmp_path / f"out.{ending}")
    gc.collect()
    assert not complaints
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 4096])
@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
def test_a_disk_that_takes_no_more_leaves_the_existing_file(ending: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / f"out.{ending}"
    path.write_bytes(b"precious")
    left = pa.table({"id": range(20_000), "a": [str(i * 7919) for i in range(20_000)]})
    result = join(left, left, suffixes=("", "_b"))
    with files_no_larger_than(size), pytest.raises(wm.WatersmeetError, match=rf"cannot write .*out\.{ending}: .+"):
        result.write(path)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"precious"]
    await_no_reader()


def test_an_existing_file_is_replaced_and_a_link_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "real.csv", tmp_path / "link.csv"
    path.write_text("old")
    link.symlink_to(path)
    join().write(link)
    assert link.is_symlink()
    assert rows(pyarrow.csv.read_csv(path)) == JOINED


@pytest.mark.parametrize("target", ["real.dat", "real", "real.parquet"])
def test_the_ending_of_a_link_tells_the_format(target: str, tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / target)
    join().write(link)
    assert link.is_symlink()
    assert rows(pyarrow.csv.read_csv(tmp_path / target)) == JOINED


def test_a_file_in_the_home_is_written_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    join().write("~/out.csv")
    assert rows(pyarrow.csv.read_csv(tmp_path / "out.csv")) == JOINED


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (None, "written to a file, by its path such as 'joined.parquet', not to None"),
        (7, "by its path such as 'joined.parquet', not to 7"),
        (b"out.csv", "by its path such as 'joined.parquet', not to b'out.csv'"),
        ("out\0.csv", "is no path of a file: embedded null"),
        ("~nobody-of-this-name/out.csv", "is no path of a file: Could not determine home"),
    ],
)
def test_what_is_no_path_cannot_be_written(path: object, says: str) -> None:
    with join(right=wm.source(never(), name="right", schema=KNOWN)) as result, pytest.raises(wm.SpecError, match=says):
        result.write(path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("out.txt", r"out\.txt cannot be written; name it \.parquet"),
        ("out", r"out cannot be written; name it"),
        ("missing/out.csv", r"there is no folder .*missing"),
        ("folder.csv", r"exists and is not a file"),
    ],
)
def test_a_target_that_cannot_be_written_is_told_before_any_row_is_read(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    result = join(right=wm.source(never(), name="right", schema=KNOWN))
    with pytest.raises(wm.SpecError, match=says):
        result.write(tmp_path / name)
    result.close()


STOPPED_WRITER = """
import sys, time, pyarrow as pa, watersmeet as wm

def rows():
    yield {"id": 1}
    print("begun", flush=True)
    time.sleep(600)

wm.join(pa.table({"id": [1]}), rows(), on="id").write(sys.argv[1])
"""


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    def parts() -> list[Path]:
        return list(tmp_path.glob(".out.csv.*.part"))

    path = tmp_path / "out.csv"
    writer = subprocess.Popen([sys.executable, "-c", STOPPED_WRITER, str(path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        until(parts, "the part is there")
        left = parts()
        join().write(path)
        assert parts() == left
    finally:
        writer.kill()
        writer.communicate()
    assert parts() == left
    others = [tmp_path / ".other.csv.1-01234567.part", tmp_path / ".out.csv.mine.part"]
    for other in others:
        other.touch()
    join().write(path)
    assert sorted(tmp_path.iterdir()) == sorted([*others, path])


def test_a_part_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[Path] = []

    def swept_before_lock(lock: int) -> bool:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        return try_lock(lock)

    monkeypatch.setattr("watersmeet.spill.locks.try_lock", swept_before_lock)
    join().write(tmp_path / "out.csv")
    assert swept
    assert list(tmp_path.iterdir()) == [tmp_path / "out.csv"]


def test_columns_a_format_cannot_hold_are_told(tmp_path: Path) -> None:
    nested = pa.table({"id": [1], "many": [[1, 2]]})
    with pytest.raises(wm.SpecError, match=r"CSV cannot hold these columns: .*list.*; write \.arrow instead"):
        join(nested).write(tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())
    assert join(nested).write(tmp_path / "out.parquet") == 2


# -- the package -------------------------------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ["numba", "numpy", "pandas", "pyspark", "matplotlib", "rich", "pyarrow", "polars"]
    code = f"import sys, watersmeet; watersmeet.WatersmeetError; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in wm.__all__:
        assert getattr(wm, name) is not None
    assert set(wm.__all__) <= set(dir(wm))
    assert callable(wm.simulate)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = wm.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [100, 256, 2000])
def test_the_budget_holds_however_large_the_batches_are(rows: int) -> None:
    """Batches that are larger than a queue's share are cut finer, and no more of them is let in."""
    tables = [pa.table({"id": range(6000), name: ["x" * 70] * 6000}) for name in "lr"]
    sources = [wm.source(iter(table.to_batches(max_chunksize=rows)), schema=table.schema) for table in tables]
    with join(*sources, on="id", memory="512 KiB") as result:
        assert sum(batch.num_rows for batch in result) == 6000
    assert result.progress.spilled > 0
    assert result.progress.peak <= result.progress.budget
