"""The clock of events and its busy kernel, on a scripted stream."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine import cuda_clock as module
from engine.busy import BusyKernel
from engine.clock import Work
from engine.cuda_clock import CudaClock, medians
from tests.engine.fake_stream import FakeStream


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


def make_clock(stream: FakeStream) -> CudaClock:
    clock = CudaClock(stream.make_event, BusyKernel(stream.spin, stream.make_event))
    clock.configure(num_sequences=1, tp_degree=2)
    stream.num_waits = 0
    return clock


def run_segments(
    clock: CudaClock, stream: FakeStream, work: Work, seconds: Sequence[float], gap_s: float = 0.0
) -> None:
    for own_s in seconds:
        clock.start(work)
        stream.work(own_s)
        assert clock.stop() is work
        stream.work(gap_s)


def test_own_compute_counts_and_waiting_between_segments_does_not(stream: FakeStream) -> None:
    clock = make_clock(stream)
    run_segments(clock, stream, Work.FORWARD, (0.1, 0.2), gap_s=7.0)
    run_segments(clock, stream, Work.BACKWARD, (0.5,))
    seconds = clock.take()
    assert seconds[Work.FORWARD] == pytest.approx(0.3)
    assert seconds[Work.BACKWARD] == pytest.approx(0.5)
    assert sum(clock.take().values()) == 0.0


def test_the_host_waits_once_a_step_whatever_is_in_it(stream: FakeStream) -> None:
    clock = make_clock(stream)
    clock.rate = 2.0
    for expected in (1, 2, 3):
        run_segments(clock, stream, Work.FORWARD, [0.001] * 50)
        assert stream.num_waits == expected - 1
        clock.take()
        assert stream.num_waits == expected


def test_a_step_without_segments_waits_for_nothing(stream: FakeStream) -> None:
    assert sum(make_clock(stream).take().values()) == 0.0
    assert stream.num_waits == 0


@pytest.mark.parametrize("rate", [1.5, 2.57, 12.53])
def test_an_injected_rate_stretches_a_step_by_exactly_that(stream: FakeStream, rate: float) -> None:
    clock = make_clock(stream)
    unequal = (0.1, 0.3, 0.05)  # attention, feed-forward, left-overs
    run_segments(clock, stream, Work.FORWARD, unequal)
    clock.take()
    clock.rate = rate
    before = stream.now_s
    run_segments(clock, stream, Work.FORWARD, unequal * 4)
    assert clock.take()[Work.FORWARD] == pytest.approx(4 * sum(unequal) * rate)
    assert stream.now_s - before == pytest.approx(4 * sum(unequal) * rate)


def test_what_is_stretched_is_own_time_not_time_that_was_stretched(stream: FakeStream) -> None:
    clock = make_clock(stream)
    clock.rate = 3.0
    measured = []
    for _ in range(5):
        run_segments(clock, stream, Work.FORWARD, (0.1, 0.1))
        measured.append(clock.take()[Work.FORWARD])
    assert measured == pytest.approx([0.2, 0.6, 0.6, 0.6, 0.6])  # the first read tells what there is to stretch


def test_each_kind_size_and_degree_is_stretched_by_its_own_time(stream: FakeStream) -> None:
    clock = make_clock(stream)
    run_segments(clock, stream, Work.FORWARD, (0.1,))
    clock.configure(num_sequences=4, tp_degree=1)
    run_segments(clock, stream, Work.FORWARD, (0.8,))
    clock.take()
    clock.rate = 2.0
    run_segments(clock, stream, Work.FORWARD, (0.8,))
    run_segments(clock, stream, Work.HEAD, (0.4,))
    seconds = clock.take()
    assert seconds[Work.FORWARD] == pytest.approx(1.6)
    assert seconds[Work.HEAD] == pytest.approx(0.4)  # never read before


def test_nothing_makes_a_gpu_faster(stream: FakeStream) -> None:
    clock = make_clock(stream)
    clock.rate = 0.5
    for _ in range(2):
        run_segments(clock, stream, Work.FORWARD, (0.1,))
        assert clock.take()[Work.FORWARD] == pytest.approx(0.1)


def test_left_overs_count_on_a_gpu(stream: FakeStream) -> None:
    clock = make_clock(stream)
    clock.start(Work.BACKWARD)
    stream.work(0.2)
    clock.drop()
    assert clock.take()[Work.BACKWARD] == pytest.approx(0.2)


def test_a_segment_cannot_be_opened_twice_nor_closed_without_being_open(stream: FakeStream) -> None:
    clock = make_clock(stream)
    with pytest.raises(AssertionError, match="no segment is open"):
        clock.stop()
    clock.start(Work.FORWARD)
    with pytest.raises(AssertionError, match="still open"):
        clock.start(Work.FORWARD)


def test_events_are_used_again(stream: FakeStream) -> None:
    clock = make_clock(stream)
    clock.rate = 2.0
    for _ in range(20):
        run_segments(clock, stream, Work.FORWARD, [0.01] * 10)
        clock.take()
    assert len(stream.events) <= 4 + 3 * 10  # four of the busy kernel's calibration


def test_calibration_takes_medians_and_leaves_warm_ups_out(stream: FakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = make_clock(stream)
    durations = iter([9.0] * module.WARM_UPS + [0.2, 0.2, 5.0, 0.2, 0.1, 0.2, 0.3])

    class StreamTime:
        @staticmethod
        def perf_counter() -> float:
            assert stream.seen_s == stream.now_s, "wall time is read only where the stream has come to its end"
            return stream.now_s

    monkeypatch.setattr(module, "time", StreamTime)

    def action() -> None:
        run_segments(clock, stream, Work.FORWARD, (next(durations),), gap_s=1.0)

    seconds, wall = medians(clock, action, stream.synchronize)
    assert seconds[Work.FORWARD] == pytest.approx(0.2)
    assert seconds[Work.BACKWARD] == 0.0
    assert wall == pytest.approx(1.2)


def test_a_busy_kernel_takes_the_time_that_was_asked_for(stream: FakeStream) -> None:
    busy = BusyKernel(stream.spin, stream.make_event)
    assert busy.cycles_per_s == pytest.approx(stream.cycles_per_s)
    before = stream.now_s
    busy.run(0.25)
    assert stream.now_s - before == pytest.approx(0.25)


@pytest.mark.parametrize("factor", [0.6, 0.9, 1.3])
def test_a_clock_that_changes_is_followed(stream: FakeStream, factor: float) -> None:
    clock = make_clock(stream)
    clock.rate = 4.0
    run_segments(clock, stream, Work.FORWARD, (0.1,))
    clock.take()
    stream.cycles_per_s *= factor
    for _ in range(12):
        run_segments(clock, stream, Work.FORWARD, (0.1,))
        measured = clock.take()[Work.FORWARD]
    assert measured == pytest.approx(0.4, rel=0.01)


def test_one_odd_measurement_moves_the_busy_kernel_by_half_at_most(stream: FakeStream) -> None:
    busy = BusyKernel(stream.spin, stream.make_event)
    busy.observe(asked_s=1.0, took_s=1e-6)
    assert busy.cycles_per_s == pytest.approx(1.5 * stream.cycles_per_s)
    busy.observe(asked_s=1.0, took_s=0.0)  # no time can be read: nothing is learnt
    assert busy.cycles_per_s == pytest.approx(1.5 * stream.cycles_per_s)
