"""Generators of bursty traffic and of auctions, held to the statistics that define them."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from watersmeet.core.errors import SpecError
from watersmeet.sources.nexmark import nexmark
from watersmeet.sources.traces import Quarters, b_model, bursty, pqrs


def entropy(shares: object) -> float:
    parts = np.asarray(shares, float)
    parts = parts[parts > 0] / parts.sum()
    return float(-(parts * np.log2(parts)).sum())


@pytest.mark.parametrize("bias", [0.5, 0.6, 0.7, 0.9])
def test_the_entropy_of_a_b_model_grows_by_that_of_its_bias_at_every_scale(bias: float) -> None:
    levels = 8
    volumes = b_model(10**12, levels, bias, seed=4)
    assert volumes.sum() == 10**12 and len(volumes) == 2**levels
    for level in range(1, levels + 1):
        summed = volumes.reshape(2**level, -1).sum(axis=1)
        assert entropy(summed) == pytest.approx(level * entropy([bias, 1 - bias]), abs=1e-6)


def test_the_largest_share_of_a_b_model_is_the_bias_to_the_power_of_its_levels() -> None:
    assert b_model(10**9, 6, 0.7, seed=1).max() == pytest.approx(10**9 * 0.7**6, abs=2)
    assert b_model(10**9, 6, 0.7, seed=1).min() == pytest.approx(10**9 * 0.3**6, abs=2)


def test_other_seeds_burst_elsewhere() -> None:
    assert not np.array_equal(b_model(10**6, 6, 0.7, seed=1), b_model(10**6, 6, 0.7, seed=2))
    assert np.array_equal(b_model(10**6, 6, 0.7, seed=1), b_model(10**6, 6, 0.7, seed=1))


def test_each_quarter_of_pqrs_gets_its_share_at_every_scale() -> None:
    quarters = Quarters(0.4, 0.3, 0.2, 0.1)
    times, keys = pqrs(200_000, quarters, seed=7)
    for level in range(1, 4):
        scaled = [np.floor(each * 2**level).astype(int) & 1 for each in (times, keys)]
        counts = np.bincount(2 * scaled[1] + scaled[0], minlength=4) / len(times)
        assert counts == pytest.approx(quarters.shares, abs=0.01)


def test_the_joint_entropy_of_pqrs_grows_by_that_of_its_shares() -> None:
    quarters = Quarters(0.55, 0.2, 0.15, 0.1)
    times, keys = pqrs(400_000, quarters, seed=7)
    for level in range(1, 5):
        cells = np.floor(times * 2**level).astype(int) * 2**level + np.floor(keys * 2**level).astype(int)
        assert entropy(np.bincount(cells)) == pytest.approx(level * entropy(quarters.shares), abs=0.02)


def test_keys_that_come_together_lie_together() -> None:
    """With early low and late high keys, times and keys go together; with equal shares they do not."""
    times, keys = pqrs(50_000, Quarters(0.4, 0.1, 0.1, 0.4))
    assert np.corrcoef(times, keys)[0, 1] == pytest.approx(0.6, abs=0.03)
    times, keys = pqrs(50_000, Quarters(0.25, 0.25, 0.25, 0.25))
    assert abs(np.corrcoef(times, keys)[0, 1]) < 0.03


def test_bursty_traffic_has_its_rate_and_its_bursts() -> None:
    times, keys = bursty(rate=500, duration=600, bias=0.7, domain=1000, most=5_000, seed=5)
    assert len(times) == len(keys) == 300_000
    assert (np.diff(times) >= 0).all() and times[0] >= 0 and times[-1] < 600
    assert keys.min() >= 0 and keys.max() < 1000
    even, _ = bursty(rate=500, duration=600, bias=0.5, domain=1000, most=5_000, seed=5)
    volumes = [np.histogram(each, 64, (0, 600))[0] for each in (times, even)]
    assert volumes[0].max() > 5 * volumes[1].max()


@pytest.mark.parametrize("act", [lambda: b_model(10, 2, 0.4), lambda: Quarters(0.5, 0.5, 0.5, 0.0)])
def test_what_cannot_be_is_refused(act: object) -> None:
    with pytest.raises(SpecError):
        act()  # type: ignore[operator]


def test_nexmark() -> None:
    made = nexmark(50_000, rate=1_000, seed=2)
    assert (made.people.num_rows, made.auctions.num_rows, made.bids.num_rows) == (1_000, 3_000, 46_000)
    for table in (made.people, made.auctions, made.bids):
        stamps = table["ts"].cast("int64").to_numpy()
        assert (np.diff(stamps) >= 0).all() and stamps[0] >= 0 and 49_000 < stamps[-1] < 50_000
    # Whoever is named came before: the seller before the auction, the auction before the bid.
    opened = dict(zip(made.auctions["auction"].to_pylist(), made.auctions["ts"].to_pylist(), strict=True))
    some = made.bids.slice(0, 4_600).to_pylist()
    assert all(opened[bid["auction"]] <= bid["ts"] for bid in some)
    came = dict(zip(made.people["person"].to_pylist(), made.people["ts"].to_pylist(), strict=True))
    assert all(came[auction["seller"]] <= auction["ts"] for auction in made.auctions.to_pylist())
    assert pc.all(pc.greater_equal(made.auctions["reserve"], made.auctions["initial"])).as_py()
    # Half of the bids go to the eight newest auctions.
    age = [made.auctions.num_rows * bid["ts"].timestamp() / 50 - (bid["auction"] - 1000) for bid in some[2_000:]]
    assert 0.4 < np.mean(np.array(age) < 12) < 0.75
    assert nexmark(50_000, rate=1_000, seed=2).bids.equals(made.bids)
