from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from waiting import Clock
from watersmeet.core.errors import SpecError
from watersmeet.sources import generators, schedules
from watersmeet.sources.schedules import Schedule

KEYS: dict[str, Callable[[int, int], np.ndarray]] = {
    "uniform": lambda n, seed: generators.uniform(n, 1000, seed),
    "zipf": lambda n, seed: generators.zipf(n, 1000, 1.0, seed),
    "normal": lambda n, seed: generators.normal(n, 500, 50, seed),
    "unique": lambda n, seed: generators.unique(n, seed),
}
TIMES: dict[str, Callable[[int, int], np.ndarray]] = {
    "constant": lambda n, seed: schedules.constant(n, 0.5),
    "poisson": lambda n, seed: schedules.poisson(n, 10, seed),
    "bursts": lambda n, seed: schedules.bursts(n, 7, 0.1, 5),
    "random-bursts": lambda n, seed: schedules.bursts(n, 7, 0.1, 5, seed),
    "zipf_gaps": lambda n, seed: schedules.zipf_gaps(n, 0.1, 2.0, 1.2, seed),
    "fragments": lambda n, seed: schedules.fragments(n, 4, 0.1, 0.5),
    "poisson-fragments": lambda n, seed: schedules.fragments(n, 4, [0.1, 0.2, 0.3, 0.4], [0.5, 0, 1, 2], seed),
}
SEEDED = ["poisson", "random-bursts", "zipf_gaps", "poisson-fragments"]


def chi_square(seen: np.ndarray, expected: np.ndarray) -> float:
    """The statistic divided by its degrees of freedom: about 1 if the frequencies are as expected."""
    return float(np.sum((seen - expected) ** 2 / expected) / (len(seen) - 1))


class TestKeys:
    @pytest.mark.parametrize("name", KEYS)
    def test_same_seed_same_keys(self, name: str) -> None:
        make = KEYS[name]
        assert make(500, 3).dtype == np.int64
        assert np.array_equal(make(500, 3), make(500, 3))
        assert not np.array_equal(make(500, 3), make(500, 4))
        assert len(make(0, 3)) == 0

    @pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
    def test_zipf_frequencies(self, exponent: float) -> None:
        n, domain = 200_000, 50
        seen = np.bincount(generators.zipf(n, domain, exponent, seed=1), minlength=domain + 1)
        assert seen[0] == 0
        assert len(seen) == domain + 1
        share = np.array([k**-exponent for k in range(1, domain + 1)])
        assert 0.5 < chi_square(seen[1:], n * share / share.sum()) < 1.6

    def test_uniform_frequencies(self) -> None:
        seen = np.bincount(generators.uniform(200_000, 50, seed=1), minlength=51)
        assert seen[0] == 0
        assert 0.5 < chi_square(seen[1:], np.full(50, 4000.0)) < 1.6

    def test_normal_moments(self) -> None:
        keys = generators.normal(100_000, 1000, 30, seed=1)
        assert abs(keys.mean() - 1000) < 0.5
        assert abs(keys.std() - 30) < 0.5

    def test_unique_is_a_permutation(self) -> None:
        keys = generators.unique(10_000, seed=1)
        assert np.array_equal(np.sort(keys), np.arange(1, 10_001))
        assert not np.array_equal(keys, np.sort(keys))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: generators.uniform(-1, 5),
            lambda: generators.uniform(1, 0),
            lambda: generators.zipf(1, 0),
            lambda: generators.zipf(1, 5, -1),
            lambda: generators.zipf(1, 5, float("nan")),
            lambda: generators.normal(1, 0, -1),
            lambda: generators.unique(-1),
            lambda: generators.rows(generators.unique(1), width=-1),
            lambda: generators.rows(generators.unique(1 << 18), width=1 << 20),
        ],
    )
    def test_bad_arguments(self, make: Callable[[], object]) -> None:
        with pytest.raises(SpecError):
            make()


class TestRows:
    def test_columns(self) -> None:
        keys = generators.unique(300_000, seed=2)  # more than one chunk
        table = generators.rows(keys, width=10, seed=2)
        table.validate(full=True)
        assert table.schema == pa.schema(
            {"key": pa.int64(), "number": pa.int64(), "measure": pa.float64(), "text": pa.string()}
        )
        assert np.array_equal(table["key"].to_numpy(), keys)
        texts = table["text"].to_pylist()
        assert {len(text) for text in texts} == {10}
        assert len(set(texts)) > 299_990
        assert all(text.isalpha() for text in texts[:100])

    def test_seed(self) -> None:
        keys = generators.unique(100)
        assert generators.rows(keys, 5, seed=1).equals(generators.rows(keys, 5, seed=1))
        assert not generators.rows(keys, 5, seed=1)["text"].equals(generators.rows(keys, 5, seed=2)["text"])

    def test_edges(self) -> None:
        assert generators.rows(generators.unique(0)).num_rows == 0
        assert generators.rows(generators.unique(3), width=0)["text"].to_pylist() == ["", "", ""]


class TestTimes:
    @pytest.mark.parametrize("name", TIMES)
    @pytest.mark.parametrize("n", [0, 1, 3, 1000])
    def test_monotone(self, name: str, n: int) -> None:
        times = TIMES[name](n, 5)
        assert times.dtype == np.float64
        assert times.shape == (n,)
        assert np.all(np.diff(times) >= 0)
        assert np.all(times > 0)

    @pytest.mark.parametrize("name", SEEDED)
    def test_same_seed_same_times(self, name: str) -> None:
        make = TIMES[name]
        assert np.array_equal(make(500, 3), make(500, 3))
        assert not np.array_equal(make(500, 3), make(500, 4))

    def test_poisson_moments(self) -> None:
        gaps = np.diff(schedules.poisson(100_000, rate=20, seed=1))
        assert abs(gaps.mean() - 0.05) < 0.001
        assert abs(gaps.std() - 0.05) < 0.001  # an exponential's deviation is its mean

    def test_bursts(self) -> None:
        gaps = np.diff(schedules.bursts(100, size=10, gap=0.01, pause=3))
        assert np.flatnonzero(gaps > 1).tolist() == list(range(9, 99, 10))
        assert np.allclose(gaps[gaps > 1], 3.01)
        assert np.allclose(gaps[gaps < 1], 0.01)

    def test_random_bursts_have_the_means_asked_for(self) -> None:
        gaps = np.diff(schedules.bursts(200_000, size=20, gap=0.01, pause=3, seed=1))
        pauses = gaps[gaps > 0.0101] - 0.01
        assert abs(len(gaps) / len(pauses) - 20) < 1
        assert abs(pauses.mean() - 3) < 0.1

    def test_zipf_gaps(self) -> None:
        mild, strong = (np.diff(schedules.zipf_gaps(50_000, 0.1, 2.0, skew, seed=1)) for skew in (0.0, 1.5))
        for gaps in (mild, strong):
            assert gaps.min() > 0.1 - 1e-6
            assert gaps.max() < 2.0 + 1e-6
        assert abs(mild.mean() - 1.05) < 0.02
        assert np.mean(strong < 0.11) > 0.6

    def test_fragments(self) -> None:
        times = schedules.fragments(10, fragments=2, gaps=[1.0, 2.0], delay=[0.5, 9.0])
        assert times.tolist() == [1, 2, 3, 4, 5, 9.5, 11.5, 13.5, 15.5, 17.5]  # a silence of 0.5 * 5 seconds
        uneven = schedules.fragments(5, fragments=2, gaps=1.0, delay=1.0)
        assert uneven.tolist() == [1, 2, 3, 7, 8]

    def test_poisson_fragments_are_silent_for_their_share(self) -> None:
        n = 10_000
        times = schedules.fragments(n, fragments=4, gaps=0.01, delay=0.5, seed=1)
        assert abs(times[-1] - n * 0.01 * (1 + 0.5 * 3 / 4)) < 5
        silences = np.sort(np.diff(times))[-3:]
        assert np.all(silences > 10)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: schedules.constant(-1, 1),
            lambda: schedules.constant(1, -1),
            lambda: schedules.constant(1, float("nan")),
            lambda: schedules.poisson(1, 0),
            lambda: schedules.bursts(1, 0, 1, 1),
            lambda: schedules.bursts(1, 1, 1, -1),
            lambda: schedules.zipf_gaps(1, 2, 1, 1),
            lambda: schedules.fragments(1, 0, 1, 1),
            lambda: schedules.fragments(1, 2, [1, 2, 3], 1),
            lambda: schedules.fragments(1, 2, 1, [1, -2]),
        ],
    )
    def test_bad_arguments(self, make: Callable[[], object]) -> None:
        with pytest.raises(SpecError):
            make()


class TestSchedule:
    TABLE = pa.table({"id": range(4)})

    def test_totals(self) -> None:
        schedule = Schedule([self.TABLE, self.TABLE.slice(0, 1)], [np.array([0, 1, 1, 2]), np.array([7.5])])
        assert schedule.total_rows == 5
        assert schedule.end_time == 7.5
        assert schedule.times[0].dtype == np.float64
        assert Schedule([self.TABLE.slice(0, 0)], [np.array([])]).end_time == 0

    @pytest.mark.parametrize(
        "times, told",
        [
            ([], "one array of times for each input"),
            ([[1, 2, 3]], "input 0 has 4 rows"),
            ([[1, 3, 2, 4]], "go back after row 1: from 3 to 2"),
            ([[-1, 0, 1, 2]], "from 0 on"),
            ([[0, 1, 2, np.inf]], "finite"),
        ],
    )
    def test_refused(self, times: list[list[float]], told: str) -> None:
        with pytest.raises(SpecError, match=told):
            Schedule([self.TABLE], [np.array(each) for each in times])

    def test_paced_keeps_to_the_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock()
        monkeypatch.setattr(schedules, "time", clock)
        schedule = Schedule([self.TABLE], [np.array([0.0, 0.0, 1.0, 2.0])])
        start = clock.now
        came = [(clock.now - start, batch.num_rows) for batch in schedule.paced(0, speed=4)]
        assert came == [(0.0, 2), (0.25, 1), (0.5, 1)]
        slow = schedule.paced(0, speed=4, start=clock.now)
        assert next(slow).num_rows == 2
        clock.now += 0.375  # whoever asks was away: the row is late, and the next one is in time all the same
        assert next(slow).num_rows == 1 and clock.now - start == 0.875
        assert next(slow).num_rows == 1 and clock.now - start == 1.0

    def test_paced_gives_at_once_what_is_due(self) -> None:
        table = pa.table({"id": range(1000)})
        schedule = Schedule([table], [schedules.constant(1000, 1.0)])
        batches = list(schedule.paced(0, speed=1e9, batch_rows=100))
        assert max(batch.num_rows for batch in batches) <= 100
        assert pa.Table.from_batches(batches).equals(table)
        late = list(schedule.paced(0, start=time.monotonic() - 2000))
        assert [batch.num_rows for batch in late] == [1000]

    def test_paced_wants_a_speed(self) -> None:
        schedule = Schedule([self.TABLE], [schedules.constant(4, 1)])
        with pytest.raises(SpecError, match="speed"):
            schedule.paced(0, speed=0)
