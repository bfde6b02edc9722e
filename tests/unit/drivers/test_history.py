"""The history of a run: bounded, exact at its samples, and told piece by piece without a gap."""

import gc
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

import watersmeet as wm
from waiting import until
from watersmeet.core.errors import SpecError
from watersmeet.drivers.history import CAPACITY, History
from watersmeet.drivers.progress import Progress
from watersmeet.drivers.thinning import Thinned


def progress(second: int, **more: object) -> Progress:
    return replace(Progress(("a", "b"), (second, 2 * second), 3 * second, elapsed=float(second)), **more)


class TestThinning:
    def test_ten_thousand_samples_stay_few_and_in_order(self) -> None:
        history = History()
        for second in range(10_000):
            history.add(progress(second, memory=second * 7919 % 1000))
        samples = history.samples()
        times = [each.elapsed for each in samples]
        assert CAPACITY // 4 < len(samples) <= CAPACITY
        assert times == sorted(set(times)) and (times[0], times[-1]) == (0.0, 9999.0)
        assert all(each.rows_in == (each.elapsed, 2 * each.elapsed) for each in samples)

    def test_the_fullest_memory_stays(self) -> None:
        history = History(capacity=16)
        for second in range(1000):
            history.add(progress(second, memory=99 if second == 357 else 1))
        assert max(each.memory for each in history.samples()) == 99

    def test_the_first_sample_of_a_phase_stays(self) -> None:
        history = History(capacity=64)
        for second in range(5000):
            history.add(progress(second, phase="reactive" if 1234 <= second < 1300 else "arriving"))
        began = [each.elapsed for each in history.samples() if each.phase == "reactive"]
        assert began[0] == 1234

    def test_room_for_too_few_is_refused(self) -> None:
        with pytest.raises(SpecError, match="at least 16 samples, not 15"):
            Thinned(15, lambda earlier, later: later)

    def test_a_stretch_without_news_is_its_beginning_and_its_end(self) -> None:
        history = History()
        for second in range(100):
            history.add(progress(min(second, 10) if second < 90 else second, elapsed=float(second)))
        assert [each.elapsed for each in history.samples()][10:13] == [10.0, 89.0, 90.0]
        assert history.last is not None and history.last.elapsed == 99.0


class TestUpdates:
    @pytest.mark.parametrize("every", [1, 3, 7, 50, 501])
    def test_pieces_make_the_whole(self, every: int) -> None:
        history = History(capacity=32)
        known: list[Progress] = []
        version, wholes = None, 0
        for second in range(2000):
            history.add(progress(second - second % 4, elapsed=float(second), phase="ab"[second % 97 > 90]))
            if second % every == 0:
                update = history.since(version)
                wholes += update.start == 0
                known[update.start :] = [*update.kept]
                version = update.version
                assert [*known, *update.tail] == history.samples()
        assert every > 400 or 1 < wholes < 2000 / every  # most were pieces, and it was thinned out in between

    def test_nothing_follows_the_end(self) -> None:
        history = History()
        history.add(progress(1))
        history.end("it broke")
        history.add(progress(2))
        assert [each.elapsed for each in history.samples()] == [1.0]
        assert history.ended and history.error == "it broke"


class TestOfARun:
    def test_every_result_has_one(self) -> None:
        left, right = (pa.table({"id": range(20_000)}) for _ in "lr")
        result = wm.join(left, right, on="id", memory="8 MiB")
        rows = sum(batch.num_rows for batch in result)
        first, *_, last = result.history.samples()
        assert (first.rows_in, last.rows_in, last.rows_out) == ((0, 0), (20_000, 20_000), rows)
        assert last.done and last.phase == "done" and result.history.ended and result.history.error is None

    def test_it_shows_where_a_silence_began_and_ended(self) -> None:
        results: list[wm.Result] = []

        def silence() -> list[float]:
            """When samples were taken after the first thousand rows."""
            return [each.elapsed for each in results[0].history.samples() if each.rows_in == (1000, 2000)]

        def slow() -> Iterator[dict[str, int]]:
            for number in range(1000):
                yield {"id": number}
            until(lambda: results and silence(), "all rows so far have been seen")
            # Long enough for another look, which a run of some age takes seldom: a hundredth of it apart.
            time.sleep(max(0.3, silence()[-1] / 20))
            yield {"id": 1000}

        results.append(wm.join(slow(), pa.table({"id": range(2000)}), on="id", memory="8 MiB", wait=0.001))
        assert sum(batch.num_rows for batch in results[0]) == 1001
        assert silence()[-1] - silence()[0] > 0.2
        assert results[0].history.samples()[-1].rows_in == (1001, 2000)

    def test_it_counts_what_the_join_did(self) -> None:
        left, right = (pa.table({"id": range(60_000), "text": ["x" * 100] * 60_000}) for _ in "lr")
        result = wm.join(left, right, on="id", memory="1 MiB")
        assert sum(batch.num_rows for batch in result) == 60_000
        assert dict(result.progress.events)["flushed"] > 0

    def test_a_failure_is_told(self) -> None:
        def broken() -> Iterator[dict[str, int]]:
            yield {"id": 1}
            raise ValueError("the cable")

        result = wm.join(broken(), [{"id": 1}], on="id")
        with pytest.raises(wm.SourceError):
            result.table()
        assert result.history.ended and "the cable" in (result.history.error or "")

    def test_leaving_is_no_failure(self) -> None:
        result = wm.join([{"id": 1}], [{"id": 1}], on="id")
        result.close()
        assert result.history.ended and result.history.error is None

    def test_a_companion_is_told_the_end_once_and_after_the_last_sample(self) -> None:
        told: list[bool] = []
        result = wm.join([{"id": 1}], [{"id": 1}], on="id")
        history = result.history
        result._run.accompany(lambda: told.append(history.ended))
        result.table()
        result.close()
        assert told == [True]

    def test_a_companion_is_told_when_nobody_has_the_run(self) -> None:
        told: list[bool] = []
        result = wm.join([{"id": 1}], [{"id": 1}], on="id")
        gone = weakref.ref(result._run)
        result._run.accompany(lambda: told.append(True))
        del result
        gc.collect()
        assert gone() is None and told == [True]
