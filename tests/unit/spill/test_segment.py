"""Segments: anything goes in and comes out unchanged, uncopied, and no damage goes unnoticed."""

from __future__ import annotations

import datetime as dt
import decimal
import errno
import json
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.stores import FaultyStore, flip_byte, truncate_at
from watersmeet.core.errors import ProtocolError, SegmentError, SpillError
from watersmeet.spill import (
    FileStore,
    MemoryStore,
    Segment,
    SegmentWriter,
    Store,
)

PLAIN = pa.schema({"id": pa.int64(), "name": pa.string()})


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = FileStore(tmp_path) if request.param == "file" else MemoryStore()
    yield made
    made.close()


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch({"id": list(ids), "name": [f"row {i}" for i in ids]}, schema=PLAIN)


def write(store: Store, name: str = "s") -> Segment:
    with SegmentWriter(store, name, PLAIN) as writer:
        writer.write_page(rows(0, 5))
        writer.add_array("hashes", np.arange(5, dtype=np.uint64))
        writer.write_page(rows(5, 3))
        writer.add_array("flags", np.array([True, False, True]))
        return writer.seal({"partition": 7, "least": -1.5, "columns": ["id"]})


def read_all(segment: Segment) -> list[Any]:
    pages: list[Any] = [segment.read_page(page).to_pylist() for page in range(segment.pages)]
    return [*pages, *(segment.array(name).tolist() for name in segment.arrays), dict(segment.meta)]


EXPECTED = [
    rows(0, 5).to_pylist(),
    rows(5, 3).to_pylist(),
    [0, 1, 2, 3, 4],
    [True, False, True],
    {"partition": 7, "least": -1.5, "columns": ["id"]},
]


@pytest.mark.parametrize("how", ["sealed", "opened", "pickled"])
def test_what_was_written_is_read(store: Store, how: str) -> None:
    segment = write(store)
    if how == "opened":
        segment = Segment.open(store, "s")
    elif how == "pickled":
        segment = pickle.loads(pickle.dumps(segment))
    assert read_all(segment) == EXPECTED
    assert (segment.name, segment.rows, segment.pages) == ("s", 8, 2)
    assert segment.schema == PLAIN
    assert [segment.page_rows(0), segment.page_rows(1)] == [5, 3]
    assert segment.nbytes == store.open("s").size
    assert segment.checksum == Segment.open(store, "s").checksum


def test_a_segment_may_be_empty(store: Store) -> None:
    SegmentWriter(store, "empty", PLAIN).seal()
    segment = Segment.open(store, "empty")
    assert (segment.rows, segment.pages, segment.arrays, segment.meta) == (0, 0, (), {})


class Labelled(pa.ExtensionType):  # type: ignore[misc]
    """An extension type whose storage hides a dictionary."""

    def __init__(self) -> None:
        super().__init__(pa.dictionary(pa.int8(), pa.string()), "watersmeet.test.labelled")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Labelled:
        return cls()


@pytest.fixture
def labelled() -> Iterator[Labelled]:
    kind = Labelled()
    pa.register_extension_type(kind)
    yield kind
    pa.unregister_extension_type("watersmeet.test.labelled")


WORDS = ["a", None, "a longer word than fits into a view", "b", "a", ""]
CATEGORY = pa.dictionary(pa.int8(), pa.string())
COLUMNS: dict[str, pa.Array] = {
    "null": pa.nulls(6),
    "bool": pa.array([True, None, False, True, False, None]),
    "float16": pa.array(np.arange(6, dtype=np.float16)),
    "decimal": pa.array([decimal.Decimal("1.50"), None] * 3, pa.decimal128(30, 2)),
    "wide decimal": pa.array([decimal.Decimal("1.50"), None] * 3, pa.decimal256(60, 2)),
    "time": pa.array([dt.datetime(2020, 1, 1), None] * 3, pa.timestamp("us", "Europe/Rome")),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None] * 3),
    "string": pa.array(WORDS),
    "large string": pa.array(WORDS, pa.large_string()),
    "string view": pa.array(WORDS, pa.string_view()),
    "binary view": pa.array([b"x" * n for n in range(0, 60, 10)], pa.binary_view()),
    "fixed binary": pa.array([b"abc", None] * 3, pa.binary(3)),
    "list": pa.array([[1, 2], None, [], [3], [None], [4, 5]]),
    "list view": pa.array([[1, 2], None, [], [3], [None], [4, 5]], pa.list_view(pa.int8())),
    "fixed list": pa.array([[1, 2], None] * 3, pa.list_(pa.int16(), 2)),
    "map": pa.array([[("a", 1)], None, [], [("b", None)], [("c", 3), ("d", 4)], []], pa.map_(pa.string(), pa.int8())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None] * 3),
    "union": pa.UnionArray.from_sparse(pa.array([0, 1] * 3, pa.int8()), [pa.array(range(6)), pa.array(WORDS)]),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([2, 6], pa.int32()), pa.array(["x", None])),
    "uuid": pa.array([b"0123456789abcdef", None] * 3, pa.uuid()),
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "list of dictionary": pa.array([["a"], None, ["b", "a"], [], [None], ["c"]], pa.list_(CATEGORY)),
    "struct of dictionary": pa.array([{"c": "a"}, {"c": None}] * 3, pa.struct({"c": CATEGORY})),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_every_type_comes_back_unchanged(store: Store, column: pa.Array) -> None:
    round_trip(store, column)


def test_a_dictionary_inside_an_extension_type_comes_back(store: Store, labelled: Labelled) -> None:
    round_trip(store, pa.ExtensionArray.from_storage(labelled, pa.array(WORDS).dictionary_encode().cast(CATEGORY)))


def round_trip(store: Store, column: pa.Array) -> None:
    schema = pa.schema([pa.field("c", column.type)], metadata={"about": "the rows"})
    batch = pa.record_batch([column], schema=schema)
    pages = [batch, batch.slice(1, 3), batch.slice(6)]
    with SegmentWriter(store, "s", schema) as writer:
        for page in pages:
            writer.write_page(page)
        writer.seal()
    segment = Segment.open(store, "s")
    assert segment.schema.equals(schema, check_metadata=True)
    for number, page in enumerate(pages):
        found = segment.read_page(number)
        found.validate(full=True)
        assert found.schema.equals(schema, check_metadata=True)
        assert found.num_rows == page.num_rows
        assert found["c"].to_pylist() == page["c"].to_pylist()


def test_each_page_brings_its_own_dictionary(store: Store) -> None:
    with SegmentWriter(store, "s", pa.schema({"c": CATEGORY})) as writer:
        for word in ("one", "two", "three"):
            writer.write_page(pa.record_batch([pa.array([word], CATEGORY)], ["c"]))
        segment = writer.seal()
    assert [segment.read_page(page)["c"].to_pylist() for page in (2, 0, 1)] == [["three"], ["one"], ["two"]]


def test_rows_without_columns_are_still_rows(store: Store) -> None:
    nothing = rows(0, 4).select([])
    with SegmentWriter(store, "s", nothing.schema) as writer:
        writer.write_page(nothing)
        segment = writer.seal()
    assert segment.rows == segment.read_page(0).num_rows == 4


ARRAYS = {
    "structured": np.array([(1, 2.5), (3, 4.5)], dtype=np.dtype([("tick", "i4"), ("x", "f8")], align=True)),
    "dates": np.array(["2020-01-01", "NaT"], dtype="M8[ns]"),
    "text": np.array(["ab", "c"]),
    "matrix": np.arange(12, dtype=np.int32).reshape(3, 4),
    "columns first": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "strided": np.arange(20)[::3],
    "scalar": np.array(5.0),
    "empty": np.empty((0, 3), np.int8),
    "big-endian": np.array([1, 2], dtype=">i4"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_come_back_read_only(store: Store, array: np.ndarray[Any, Any]) -> None:
    with SegmentWriter(store, "s", PLAIN) as writer:
        writer.add_array("odd length before", np.zeros(3, np.int8))
        writer.add_array("a", array)
        writer.seal()
    found = Segment.open(store, "s").array("a")
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)
    with pytest.raises(ValueError, match="read-only"):
        found[...] = array


def test_blocks_are_aligned_and_not_copied(store: Store) -> None:
    write(store)
    segment = Segment.open(store, "s")
    before = pa.total_allocated_bytes()
    hashes, page = segment.array("hashes"), segment.read_page(1)
    assert pa.total_allocated_bytes() == before
    assert hashes.ctypes.data % 64 == 0
    buffer = segment._mapped()
    inside = range(buffer.address, buffer.address + buffer.size)
    assert hashes.ctypes.data in inside
    assert page["id"].buffers()[1].address in inside


def test_every_byte_is_covered_by_a_checksum_or_a_constant() -> None:
    segment = write(MemoryStore())
    blocks = [tuple(page[:2]) for page in segment._directory.pages.tolist()]
    blocks += [(block.offset, block.length) for block in segment._directory.arrays.values()]
    end = 64
    for offset, length in sorted(blocks):
        assert offset == end
        end = offset + -(-length // 64) * 64
    assert end + segment._directory.own_size == segment.nbytes


def damaged_store(damage: Any) -> FaultyStore:
    return FaultyStore(MemoryStore(), fail_at=1, operation="commit", damage=damage)


def test_any_altered_byte_is_noticed() -> None:
    for position in range(write(MemoryStore()).nbytes):
        for mask in (0x01, 0xFF):
            store = damaged_store(flip_byte(position, mask))
            write(store)
            with pytest.raises(SegmentError, match=r"spill segment 's' cannot be used: .*; run the join again"):
                read_all(Segment.open(store, "s"))


def test_a_sealed_segment_notices_too() -> None:
    for position in range(write(MemoryStore()).nbytes):
        segment = write(damaged_store(flip_byte(position)))
        with pytest.raises(SegmentError, match="'s' cannot be used"):
            read_all(segment)


def test_any_truncation_is_noticed_on_opening() -> None:
    for length in range(write(MemoryStore()).nbytes):
        store = damaged_store(truncate_at(length))
        write(store)
        with pytest.raises(SegmentError, match="'s' cannot be used"):
            Segment.open(store, "s")


def test_added_bytes_are_noticed_on_opening() -> None:
    for extra in (b"\0", b"wm.end.1", bytes(64)):
        store = damaged_store(lambda content, extra=extra: content + extra)
        write(store)
        with pytest.raises(SegmentError, match="'s' cannot be used"):
            Segment.open(store, "s")


def test_damage_to_one_page_leaves_the_others_readable() -> None:
    offset = int(write(MemoryStore())._directory.pages[1, 0])
    store = damaged_store(flip_byte(offset + 10))
    write(store)
    segment = Segment.open(store, "s")
    assert segment.read_page(0).num_rows == 5
    for _ in range(2):  # a page that was found bad stays bad
        with pytest.raises(SegmentError, match="'s' cannot be used: page 1 was altered"):
            segment.read_page(1)


def test_a_damaged_file_on_disk_is_noticed(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        write(store)
        path = store.path / "s"
        content = bytearray(path.read_bytes())
        content[70] ^= 4
        path.write_bytes(content)
        with pytest.raises(SegmentError, match="page 0 was altered"):
            Segment.open(store, "s").read_page(0)


def test_a_missing_segment_is_named(store: Store) -> None:
    segment = write(store)
    store.remove("s")
    pickled = pickle.dumps(segment)
    for use in (lambda: Segment.open(store, "s"), lambda: segment.read_page(0), lambda: pickle.loads(pickled)):
        with pytest.raises(SegmentError, match="segment 's' is missing"):
            use()


def test_what_is_open_outlives_close_and_removal(store: Store) -> None:
    segment = write(store)
    page, hashes = segment.read_page(0), segment.array("hashes")
    segment.close()
    store.remove("s")
    store.close()
    assert page.to_pylist() == EXPECTED[0]
    assert hashes.tolist() == EXPECTED[2]


def test_a_closed_segment_opens_itself_again(store: Store) -> None:
    segment = write(store)
    for _ in range(2):
        assert read_all(segment) == EXPECTED
        segment.close()
    store.remove("s")
    with SegmentWriter(store, "s", PLAIN) as writer:
        writer.write_page(rows(0, 5))
        writer.seal()
    with pytest.raises(SegmentError, match="another segment has taken its name"):
        segment.read_page(0)


def test_released_pages_are_read_again(store: Store) -> None:
    segment = write(store)
    segment.release(0)  # nothing is mapped yet
    for page in (0, 1, None):
        first = segment.read_page(0)
        segment.release(page)
        assert first.to_pylist() == EXPECTED[0]
        assert read_all(segment) == EXPECTED


def test_release_gives_resident_memory_back(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    process = psutil.Process()
    if not hasattr(process.memory_info(), "shared"):
        pytest.skip("this system does not tell mapped memory apart")
    with FileStore(tmp_path) as store:
        with SegmentWriter(store, "s", PLAIN) as writer:
            writer.add_array("large", np.ones(8 << 20, np.int8))
            segment = writer.seal()
        segment.array("large")
        mapped = process.memory_info().shared
        segment.release()
        assert mapped - process.memory_info().shared > 7 << 20


def read_in_child(segment: Segment, answers: Any) -> None:
    answers.put(read_all(segment))


@pytest.mark.skipif(sys.platform == "win32", reason="forks as POSIX has them")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_and_removes_nothing(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        segment = write(store)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=read_in_child, args=(segment, answers))
        child.start()
        assert answers.get() == EXPECTED
        child.join()
        assert child.exitcode == 0
        assert read_all(segment) == EXPECTED


def test_reads_are_counted_as_they_happen(store: Store) -> None:
    segment = write(store)
    assert store.bytes_read == 0
    segment.read_page(0)
    segment.read_page(0)
    assert store.bytes_read == 2 * segment.page_nbytes(0)
    segment.array("hashes")
    assert store.bytes_read == 2 * segment.page_nbytes(0) + 40
    before = store.bytes_read
    Segment.open(store, "s")
    assert 0 < store.bytes_read - before < segment.nbytes - segment.page_nbytes(0)


def test_the_schema_is_not_repeated_on_plain_pages() -> None:
    with SegmentWriter(MemoryStore(), "s", pa.schema({f"column {i}": pa.int64() for i in range(50)})) as writer:
        batch = pa.record_batch([pa.array([1] * 100)] * 50, schema=writer.schema)
        writer.write_page(batch)
        segment = writer.seal()
    assert segment.page_nbytes(0) < batch.nbytes + 50 * 8 + 50 * 64


def test_the_size_does_not_depend_on_the_checksums() -> None:
    sizes, digits = set(), set()
    for number in range(200):
        store = MemoryStore()
        with SegmentWriter(store, "s", pa.schema({"id": pa.int64()})) as writer:
            writer.write_page(pa.record_batch({"id": [number]}))
            writer.add_array("a", np.array([number]))
            segment = writer.seal()
        sizes.add(segment.nbytes)
        digits.add(len(str(segment._directory.pages[0, 2])))
    assert len(digits) > 1
    assert len(sizes) == 1


def test_misuse_is_refused(store: Store) -> None:
    writer = SegmentWriter(store, "s", PLAIN)
    with pytest.raises(ProtocolError, match=r"holds rows of id: int64, name: string, not of id: int64;"):
        writer.write_page(rows(0, 1).select(["id"]))
    writer.add_array("a", np.arange(3))
    with pytest.raises(ProtocolError, match="has an array 'a' already"):
        writer.add_array("a", np.arange(3))
    with pytest.raises(ProtocolError, match="'b' holds Python objects"):
        writer.add_array("b", np.array([object()]))
    with pytest.raises(ProtocolError, match="what JSON can say"):
        writer.seal({"path": Path()})
    segment = writer.seal({"count": np.int64(3)})
    assert segment.meta == {"count": 3}
    for use in (lambda: writer.write_page(rows(0, 1)), writer.seal):
        with pytest.raises(ProtocolError, match="sealed or aborted"):
            use()
    writer.abort()
    assert store.names() == ["s"]
    with pytest.raises(IndexError, match="has 0 pages"):
        segment.read_page(0)
    with pytest.raises(KeyError, match="no array 'z'; it has a"):
        segment.array("z")


def test_leaving_the_block_unsealed_leaves_nothing(store: Store) -> None:
    with SegmentWriter(store, "s", PLAIN) as writer:
        writer.write_page(rows(0, 5))
    assert (store.names(), store.bytes_held) == ([], 0)


def script(store: Store) -> None:
    """Every operation a join uses, for faults to strike."""
    write(store, "a")
    write(store, "b")
    assert read_all(Segment.open(store, "a")) == EXPECTED
    store.remove("a")
    write(store, "c")


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_every_single_operation_may_fail(store: Store, code: int, lasting: bool) -> None:
    trial = FaultyStore(MemoryStore())
    script(trial)
    assert min(trial.calls[kind] for kind in ("create", "write", "commit", "open", "remove")) >= 1
    for fail_at in range(1, trial.calls.total() + 1):
        for name in store.names():
            store.remove(name)
        faulty = FaultyStore(store, fail_at, error=code, lasting=lasting)
        with pytest.raises(SpillError, match=r"could not .*; ") as caught:
            script(faulty)
        assert caught.value.errno == code
        assert faulty.failures == 1
        held = 0
        for name in store.names():  # what was committed is whole, what failed is absent
            segment = Segment.open(store, name)
            assert read_all(segment) == EXPECTED
            held += segment.nbytes
        assert store.bytes_held == held
        if isinstance(store, FileStore):
            assert {path.name for path in store.path.iterdir()} == {".lock", *store.names()}


@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    meta=st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=4),
)
def test_any_pages_and_meta_come_back(sizes: list[int], meta: dict[str, Any]) -> None:
    store = MemoryStore()
    with SegmentWriter(store, "s", PLAIN) as writer:
        for size in sizes:
            writer.write_page(rows(size, size))
        writer.seal(meta)
    segment = Segment.open(store, "s")
    assert [segment.read_page(page).to_pylist() for page in range(segment.pages)] == [
        rows(size, size).to_pylist() for size in sizes
    ]
    assert segment.rows == sum(sizes)
    assert segment.meta == json.loads(json.dumps(meta))
