"""Promises of inputs, step by step: the news and their readers of the paper's figures, and each kind of promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm
from watersmeet.core.errors import PromiseError, SourceError, SpecError
from watersmeet.core.promises import Among, Promises, Punctuation, Range
from watersmeet.core.protocol import LEFT, RIGHT, Arrive, End, Event, Punctuate, Stall, Status
from watersmeet.core.spec import JoinSpec, Output, parse_on
from watersmeet.joins.progressive.metadata_mjoin import MetadataMJoin
from watersmeet.spill.store import MemoryStore

NEWS = """
<stream:NewsGeneral>
  <info>
    <sno> 79 </sno>
    <title> Cashless society gets mixed reviews </title>
    <keyword> Smart Card </keyword>
  </info>
  <info>
    <sno> 81 </sno>
    <title> Polls open </title>
    <keyword> Vote </keyword>
  </info>
</stream:NewsGeneral>
"""
HITS = """
<stream:AccessRecord>
  <record>
    <sno> 79 </sno>
    <ipaddr> 64.58.76.224 </ipaddr>
  </record>
  <record>
    <sno> 81 </sno>
    <ipaddr>207.68.172.234</ipaddr>
  </record>
  <record>
    <sno> 79 </sno>
    <ipaddr> 202.112.39.8 </ipaddr>
  </record>
  <punct:record>
    <sno> 79 </sno>
    <ipaddr> * </ipaddr>
  </punct:record>
</stream:AccessRecord>
"""
KEYWORDS = {("Smart Card", "64.58.76.224"), ("Smart Card", "202.112.39.8"), ("Vote", "207.68.172.234")}


@pytest.fixture
def streams(tmp_path: Path) -> tuple[Path, Path]:
    news, hits = tmp_path / "news.xml", tmp_path / "hits.xml"
    news.write_text(NEWS)
    hits.write_text(HITS)
    return news, hits


def test_the_query_of_figure_4_over_the_streams_of_figures_2_and_3(streams: tuple[Path, Path]) -> None:
    news, hits = streams
    result = wm.join(wm.source(news, unique=["sno"]), wm.source(hits), on="sno", memory="8 MiB")
    items = list(result.marked())
    rows = [row for item in items if isinstance(item, pa.RecordBatch) for row in item.to_pylist()]
    assert {(row["keyword"], row["ipaddr"]) for row in rows} == KEYWORDS and len(rows) == 3
    assert [item for item in items if isinstance(item, Punctuation)] == [Punctuation({"sno": 79})]
    last_79 = max(
        i for i, item in enumerate(items) if isinstance(item, pa.RecordBatch) and 79 in item.column("sno").to_pylist()
    )
    assert items.index(Punctuation({"sno": 79})) > last_79
    assert result.progress.algorithm == "metadata_mjoin"


def test_the_same_streams_as_ndjson(tmp_path: Path) -> None:
    hits = tmp_path / "hits.ndjson"
    hits.write_text(
        '{"sno": 79, "ipaddr": "64.58.76.224"}\n{"sno": 81, "ipaddr": "207.68.172.234"}\n'
        '{"sno": 79, "ipaddr": "202.112.39.8"}\n{"punct:record": {"sno": 79, "ipaddr": "*"}}\n'
        '{"sno": 81, "ipaddr": "1.2.3.4"}\n{"punct:record": {"sno": [80, 81]}}\n{"punct:record": {"sno": {"lt": 100}}}'
    )
    source = wm.source(hits, punctuated=True)
    items = list(source.marked_batches())  # type: ignore[attr-defined]
    assert [item.num_rows if isinstance(item, pa.RecordBatch) else item for item in items] == [
        3,
        Punctuation({"sno": 79}),
        1,
        Punctuation({"sno": Among((80, 81))}),
        Punctuation({"sno": Range(None, 100, high_open=True)}),
    ]
    assert sum(batch.num_rows for batch in wm.source(hits, punctuated=True).batches()) == 4


@pytest.mark.parametrize("block", [1, 7, 64])
def test_inline_streams_in_pieces(streams: tuple[Path, Path], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watersmeet.sources.marked.TEXT_BLOCK", block)
    items = list(wm.source(streams[1], schema=HIT).marked_batches())  # type: ignore[attr-defined]
    rows = [row["sno"] if isinstance(item, pa.RecordBatch) else item for item in items for row in _rows(item)]
    assert rows == [79, 81, 79, Punctuation({"sno": 79})]


def _rows(item: Any) -> list[Any]:
    rows: list[Any] = item.to_pylist() if isinstance(item, pa.RecordBatch) else [item]
    return rows


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<s><r><a>1</a></r>", "no XML"),
        ('<!DOCTYPE s [<!ENTITY x "boom">]><s><r><a>&x;</a></r></s>', "declares a type or entities"),
        ('<!DOCTYPE s SYSTEM "file:///etc/passwd"><s><r><a>1</a></r></s>', "declares a type or entities"),
        ("<s><r><a><b>1</b></a></r></s>", "text only"),
        ("<s></s>", "no rows"),
        ("<s><r><a>1</a></r><punct:r><b>1</b></punct:r></s>", "column 'b'"),
        ("<s><r><a>1</a></r><r><c>1</c></r></s>", "column 'c'"),
    ],
)
def test_bad_xml_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.xml"
    path.write_text(text)
    schema = pa.schema({"a": pa.int64()}) if "no rows" not in told else None
    with pytest.raises(SourceError, match=told):
        list(wm.source(path, schema=schema).marked_batches())  # type: ignore[attr-defined]


def test_markers_of_xml(tmp_path: Path) -> None:
    path = tmp_path / "markers.xml"
    markers = ["{3, 4}", "[3, 7]", "(3, 7]", "[, 7)", "*"]
    path.write_text(
        "<s><r><a>1.5</a></r>" + "".join(f"<punct:r><a>{marker}</a></punct:r>" for marker in markers) + "</s>"
    )
    items = list(wm.source(path).marked_batches())[1:]  # type: ignore[attr-defined]
    assert [item.pattern.get("a") for item in items] == [
        Among((3.0, 4.0)), Range(3.0, 7.0), Range(3.0, 7.0, low_open=True), Range(None, 7.0, high_open=True), None
    ]  # fmt: skip


# --- the operator, step by step ---

NEW = pa.schema({"sno": pa.int64(), "keyword": pa.string()})
HIT = pa.schema({"sno": pa.int64(), "ipaddr": pa.string()})


def news(*keys: int) -> Arrive:
    return Arrive(LEFT, pa.record_batch({"sno": list(keys), "keyword": [f"k{key}" for key in keys]}, NEW))


def hits(*keys: int) -> Arrive:
    return Arrive(RIGHT, pa.record_batch({"sno": list(keys), "ipaddr": [f"ip{key}" for key in keys]}, HIT))


def punct(key: object, side: int = RIGHT) -> Punctuate:
    return Punctuate(side, {"sno": key})


def joined(left: Promises | None = None, right: Promises | None = None, **options: Any) -> MetadataMJoin:
    promises = (left or Promises(), right or Promises())
    spec = JoinSpec(NEW, HIT, parse_on("sno"), promises=promises, names=("news", "hits"))
    return MetadataMJoin(spec, 1 << 20, MemoryStore(), **{"optimize": "memory", **options})


def tell(join: MetadataMJoin, *events: Event) -> tuple[list[int], list[Punctuation]]:
    """Hand over events one by one, and work them off: the keys of results, and the punctuations."""
    keys: list[int] = []
    told: list[Punctuation] = []
    for event in events:
        join.receive(event)
        while True:
            step = join.poll(0.0, 1000)
            join.check()
            keys += step.out.column("sno").to_pylist() if step.out is not None else []
            told += step.punctuations
            if step.status is not Status.HAS_OUTPUT:
                break
    return keys, told


UNIQUE, MARKED = Promises(unique=("sno",)), Promises(punctuated=True)


def test_a_row_of_the_many_side_goes_once_it_has_met_its_one_partner() -> None:
    join = joined(UNIQUE)
    assert tell(join, hits(1, 2, 2))[0] == [] and join.state_rows == (0, 3)
    assert tell(join, news(2))[0] == [2, 2] and join.state_rows == (1, 1)
    assert tell(join, hits(2))[0] == [2] and join.state_rows == (1, 1)
    assert join.promised.purged == [0, 2] and join.promised.dropped == [0, 1]


def test_a_row_whose_partners_are_all_there_is_dropped_on_the_fly() -> None:
    join = joined(UNIQUE, MARKED)
    tell(join, hits(1, 1), punct(1))
    assert join.state_rows == (0, 2)
    assert tell(join, news(1)) == ([1, 1], [Punctuation({"sno": 1})])
    assert join.state_rows == (0, 0) and join.promised.dropped == [1, 0]


def test_a_cluster_that_is_over_counts_as_punctuated() -> None:
    join = joined(UNIQUE, Promises(clustered=("sno",)))
    tell(join, news(1, 2, 3), hits(2, 2))
    assert join.state_rows == (3, 0)
    tell(join, hits(2, 3))
    assert join.state_rows == (2, 0), "2 is over, 1 and 3 may still come"
    tell(join, hits(1))
    assert join.state_rows == (1, 0)


@pytest.mark.parametrize("descending", [False, True])
def test_all_that_lies_before_a_sorted_row_is_over(descending: bool) -> None:
    join = joined(right=Promises(sorted=(("sno", descending),)))
    tell(join, news(1, 2, 2, 3, 9), hits(3))
    assert join.state_rows == ((4, 1) if descending else (2, 1))
    assert join.promised.purged == [1 if descending else 3, 0]
    tell(join, hits(2 if descending else 4))
    assert join.state_rows[0] == (3 if descending else 1)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        (5, 8),
        (Among((2, 3, 77)), 7),
        (Range(3, 6), 5),
        (Range(3, 6, low_open=True, high_open=True), 7),
        (Range(None, 4), 5),
        (Range(8, None), 7),
    ],
)
@pytest.mark.parametrize("search", ["index", "scan"])
def test_values_sets_and_ranges_purge_what_they_cover(pattern: object, left: int, search: str) -> None:
    join = joined(right=MARKED, search=search)
    tell(join, news(*range(1, 10)), punct(pattern))
    assert join.state_rows == (left, 0)


def test_batch_purging_waits_for_enough_promises_for_a_silence_or_for_want_of_memory() -> None:
    join = joined(right=MARKED, optimize="rate", purge_every=3)
    tell(join, news(*range(1, 10)), punct(1), punct(2))
    assert join.state_rows == (9, 0) and join.promised.purges == 0
    tell(join, punct(3))
    assert join.state_rows == (6, 0) and join.promised.purges == 1
    tell(join, punct(4))
    assert join.state_rows == (6, 0)
    tell(join, Stall())
    assert join.state_rows == (5, 0)
    tell(join, punct(5))
    assert join.promised.purge_now() and join.state_rows == (4, 0)


def test_little_memory_is_enough_for_a_long_stream_of_which_little_is_needed() -> None:
    spec = JoinSpec(NEW, HIT, parse_on("sno"), promises=(UNIQUE, MARKED))
    store = MemoryStore()
    join = MetadataMJoin(spec, 256 * 1024, store, optimize="rate", purge_every=10**9)
    for key in range(0, 20_000, 1000):
        keys = range(key, key + 1000)
        found, told = tell(join, news(*keys), hits(*keys), punct(Range(key, key + 998)), punct(key + 999))
        assert len(found) == 1000 and Punctuation({"sno": key + 999}) in told
    assert join.promised.purges > 0 and store.bytes_written == 0 and max(join.state_rows) < 10_000


def test_a_punctuation_is_handed_on_when_both_inputs_have_promised_it() -> None:
    join = joined(MARKED, MARKED)
    assert tell(join, news(1, 2), hits(1, 1, 2), punct(1)) == ([1, 1, 2], [])
    assert tell(join, punct(2, LEFT))[1] == []
    assert tell(join, punct(1, LEFT))[1] == [Punctuation({"sno": 1})] * 2
    assert tell(join, End(RIGHT))[1] == [Punctuation({"sno": 2})]


def test_a_range_is_handed_on_when_the_other_input_has_promised_all_of_it() -> None:
    join = joined(MARKED, MARKED)
    span = Punctuation({"sno": Range(2, 5)})
    assert tell(join, punct(Range(2, 5)), punct(Range(0, 3), LEFT))[1] == []
    assert tell(join, punct(Among((4, 5)), LEFT))[1] == [span, Punctuation({"sno": Among((4, 5))})]


@pytest.mark.parametrize(
    ("left", "right", "events", "row"),
    [
        (UNIQUE, None, [news(1, 2, 1)], "row 3 of news has sno=1"),
        (UNIQUE, None, [news(1), news(7, 1)], "row 3 of news has sno=1"),
        (UNIQUE, MARKED, [news(1), punct(1), news(1)], "row 2 of news has sno=1"),
        (None, MARKED, [hits(3), punct(3), hits(4, 3)], "row 3 of hits has sno=3"),
        (None, Promises(clustered=("sno",)), [hits(3, 4, 3)], "row 3 of hits has sno=3"),
        (None, Promises(clustered=("sno",)), [hits(3, 4), hits(4, 3)], "row 4 of hits has sno=3"),
        (None, Promises(sorted=(("sno", False),)), [hits(3, 4, 4, 3)], "row 4 of hits has sno=3"),
        (None, Promises(sorted=(("sno", True),)), [hits(3), hits(4)], "row 2 of hits has sno=4"),
    ],
)
def test_a_broken_promise_names_the_row(
    left: Promises | None, right: Promises | None, events: list[Event], row: str
) -> None:
    with pytest.raises(PromiseError, match=row):
        tell(joined(left, right), *events)


def test_a_broken_promise_that_is_only_counted_loses_nothing() -> None:
    join = joined(UNIQUE, MARKED, broken="count")
    keys, told = tell(join, news(1, 2), hits(1, 1), punct(1), hits(1), news(1), hits(1), End(LEFT), End(RIGHT))
    assert sorted(keys) == [1] * 8 and told == []
    assert join.promised.broken == [1, 2]
    assert join.cost.pages_written > 0, "what should find no more partners waits for them on disk"


def test_value_oriented_scheduling_takes_first_what_a_punctuation_waits_for() -> None:
    def order(tuples: str) -> list[int]:
        join = joined(UNIQUE, MARKED, tuples=tuples, streams="priority", quotas=(8, 8))
        tell(join, hits(5, 6, 7), punct(7))
        return tell(join, news(5, 6, 7, 8))[0]

    assert order("sequential") == [5, 6, 7]
    assert order("value") == [7, 5, 6]


def test_a_turn_does_not_end_amid_a_cluster_that_has_found_its_partner() -> None:
    def order(right: Promises) -> list[int]:
        join = joined(UNIQUE, right, streams="priority", quotas=(1, 2))
        for event in (news(1, 2, 3), hits(1, 1, 1, 1, 2, 3)):
            join.receive(event)
        taken = []
        while (step := join.poll(0.0, 1)).status is Status.HAS_OUTPUT:
            taken += step.out.column("sno").to_pylist() if step.out is not None else []
            if step.out is not None and len(taken) == 4:
                return list(join.state_rows)
        return taken

    assert order(Promises(clustered=("sno",)))[0] == 1, "all of the cluster came before the second row of news"
    assert order(Promises())[0] == 2


def test_promises_go_with_a_snapshot() -> None:
    spec = JoinSpec(NEW, HIT, parse_on("sno"), promises=(UNIQUE, MARKED))
    store = MemoryStore()
    join = MetadataMJoin(spec, 1 << 20, store, optimize="memory")
    tell(join, news(1, 2, 3), hits(1, 2, 4), punct(1), punct(4))
    again = MetadataMJoin.restore(spec, join.snapshot(), 1 << 20, store, optimize="memory")
    assert again.state_rows == join.state_rows == (2, 1)
    assert tell(again, news(4)) == ([4], [Punctuation({"sno": 4})])
    with pytest.raises(PromiseError):
        tell(again, hits(4))


def test_auto_relies_on_promises() -> None:
    news_table = pa.table({"sno": [1, 2]})
    hits_table = pa.table({"sno": [2, 2]})
    for promise in ({"unique": ["sno"]}, {"clustered": "sno"}, {"sorted": ["sno"]}):
        with wm.join(wm.source(news_table, **promise), hits_table, on="sno", memory="8 MiB") as result:
            assert result.table().num_rows == 2
        assert result.progress.algorithm == "metadata_mjoin"
    with wm.join(news_table, hits_table, on="sno", memory="8 MiB") as result:
        assert result.table().num_rows == 2
    assert result.progress.algorithm == "confluence"


def test_other_algorithms_take_the_rows_and_leave_the_punctuations() -> None:
    hits_source = wm.source([{"sno": 2}, Punctuation({"sno": 2}), {"sno": 3}])
    found = wm.join(pa.table({"sno": [2, 3]}), hits_source, on="sno", memory="8 MiB", algorithm="symmetric_hash")
    assert found.table().num_rows == 2


def test_a_live_join_counts_broken_promises() -> None:
    hits_source = wm.source([{"sno": 2}, Punctuation({"sno": 2}), {"sno": 2}])
    result = wm.join(pa.table({"sno": [2, 3]}), hits_source, on="sno", memory="8 MiB", broken="count")
    assert result.table().num_rows == 2
    assert result.progress.promises is not None and result.progress.promises.broken == (0, 1)
    assert "0 + 1 broke their promises" in str(result.progress)


def test_a_live_join_reports_a_broken_promise() -> None:
    def rows() -> Any:
        yield {"sno": 1}
        yield Punctuation({"sno": 1})
        yield {"sno": 1}

    result = wm.join(pa.table({"sno": [1]}), wm.source(rows(), punctuated=True), on="sno", memory="8 MiB")
    with pytest.raises(PromiseError, match="row 2 of right has sno=1"):
        result.table()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: wm.between(None, None), "needs a bound"),
        (lambda: wm.between(1, 2, closed="some"), "closed='some'"),
        (lambda: wm.source(pa.table({"a": [1]}), unique=[1]), "names of columns"),  # type: ignore[list-item]
        (lambda: wm.source(pa.table({"a": [1]}), sorted=[("a", "up")]), "'up'"),
        (lambda: wm.join(wm.source(pa.table({"a": [1]}), unique="b"), pa.table({"a": [1]}), on="a"), "column 'b'"),
        (lambda: joined(optimize="fun"), "optimize='fun'"),
        (lambda: joined(tuples="fun"), "tuples='fun'"),
        (lambda: joined(streams="fun"), "streams='fun'"),
        (lambda: joined(purge_every=0), "purge_every"),
        (lambda: joined(UNIQUE, quotas=(0, 1)), "quotas"),
        (lambda: tell(joined(), Punctuate(LEFT, {"nothing": 1})), "column 'nothing'"),
        (lambda: tell(joined(), Punctuate(LEFT, {"sno": "x"})), "'x' for column 'sno'"),
    ],
)
def test_nonsense_is_refused(make: Any, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        make()


def test_what_says_nothing_of_the_keys_is_not_used() -> None:
    join = joined(right=MARKED)
    tell(join, news(1), Punctuate(RIGHT, {"ipaddr": "x"}), Punctuate(RIGHT, {"sno": 1, "ipaddr": "x"}))
    assert join.unused == [0, 2] and join.state_rows == (1, 0)


def test_pairs_and_counts_have_no_punctuations() -> None:
    spec = JoinSpec(NEW, HIT, parse_on("sno"), promises=(UNIQUE, MARKED), output=Output.PAIRS)
    join = MetadataMJoin(spec, 1 << 20, MemoryStore(), optimize="memory")
    for event in (news(1), hits(1), punct(1)):
        join.receive(event)
    step = join.poll(0.0, 100)
    assert step.out is not None and step.out.to_pylist() == [{"left": 0, "right": 0}]
    assert join.poll(0.0, 100).punctuations == () and join.state_rows == (0, 0)
