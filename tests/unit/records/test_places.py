"""Keys that any join calls equal have one place; a place lies in one partition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.checks.keys import KEY_KINDS, key_of_kind
from watersmeet.checks.oracle.nested_loops import reference_pairs
from watersmeet.core.spec import JoinSpec, parse_on
from watersmeet.records.places import PlaceCodec, Places
from watersmeet.relation.partitions import PartitionMap


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("hashed", [False, True])
def test_equal_keys_share_a_place_whatever_their_types(kind: str, hashed: bool) -> None:
    met = 0
    for seed in range(8):
        rng = np.random.default_rng([seed, 7])
        key = key_of_kind(kind, rng, 24)
        size = len(key.values[0])
        columns = [key.column(side, np.arange(size), rng.random(size) < 0.1) for side in (0, 1)]
        tables = [pa.table({"k": column}) for column in columns]
        pairs = reference_pairs(tables[0], tables[1], JoinSpec(tables[0].schema, tables[1].schema, parse_on("k")))
        places = [PlaceCodec([column.type], hashed=hashed).places([column]) for column in columns]
        for i, j in pairs:
            assert places[0].words[i] == places[1].words[j], (seed, columns[0][i], columns[1][j])
            assert places[0].hashes[i] == places[1].hashes[j], (seed, columns[0][i], columns[1][j])
        met += len(pairs)
        for column, found in zip(columns, places, strict=True):
            known = np.array([value is not None for value in column.to_pylist()])
            assert (known if found.known is None else found.known == known).all()
    assert met > 0 or kind == "nothing"


def test_words_keep_the_order_of_numbers_times_and_strings() -> None:
    ordered = [
        pa.array([float("-inf"), -2.5, -0.0, 1e-300, 3.0, float("inf"), float("nan")]),
        pa.array([-(2**63), -1, 0, 5, 2**63 - 1]),
        pa.array([-(2**62), -1, 0, 10**15], pa.timestamp("s")),
        pa.array(["", "a", "aa", "b", "bcdefghijk"]),
    ]
    for column in ordered:
        words = PlaceCodec([column.type]).places([column]).words
        assert (np.diff(words.astype(object)) >= 0).all(), column


def test_a_common_prefix_leaves_the_words_to_what_follows() -> None:
    column = pa.array([f"customer-{i:06d}" for i in range(0, 900, 9)])
    plain = PlaceCodec([column.type])
    prefix = plain.common_prefix([column])
    assert prefix == b"customer-000"
    assert len(np.unique(plain.places([column]).words)) == 1
    words = PlaceCodec([column.type], prefix=prefix).places([column]).words
    assert len(np.unique(words)) == 100
    assert (np.diff(words) > 0).all()
    others = PlaceCodec([column.type], prefix=prefix).places([pa.array(["a", "custom", "customer-1", "d"])]).words
    assert others[0] == others[1] < words[0] <= words[-1] < others[2] == others[3]


@pytest.mark.parametrize("seed", range(20))
def test_a_slot_array_finds_what_a_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 200))
    spread = int(rng.choice([3, 1000, 2**40, 2**62]))
    words = np.sort(rng.integers(-spread, spread, count)) if seed % 2 else np.sort(rng.random(count) ** 8 * spread)
    words = words.astype(np.int64)
    hashes = np.sort(rng.integers(-(2**63), 2**63 - 1, count))
    first = sorted(zip(words.tolist(), hashes.tolist(), strict=True))
    partitions = PartitionMap(np.array([w for w, _ in first]), np.array([h for _, h in first]))
    wanted = np.concatenate([words, words - 1, words + 1, rng.integers(-(2**63), 2**63 - 1, 50)])
    asked = rng.choice(np.concatenate([hashes, hashes - 1, [0]]), len(wanted))
    found = partitions.locate(Places(wanted, asked, None))
    for word, hash_, part in zip(wanted.tolist(), asked.tolist(), found.tolist(), strict=True):
        expected = max((i for i in range(1, count) if first[i] <= (word, hash_)), default=0)
        assert part == expected
