"""The emulated clock, driven by a scripted time."""

from __future__ import annotations

import pytest

from engine import clock as module
from engine.clock import MAX_DEBT_S, EmulatedClock, Emulation, Work


class FakeTime:
    """`time` with a hand to move and sleeps that overshoot."""

    def __init__(self) -> None:
        self.now = 100.0
        self.overshoot = 0.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.overshoot


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(module, "time", fake)
    return fake


def layer_clock(fake: FakeTime) -> EmulatedClock:
    clock = EmulatedClock(Emulation(layer_s=0.6, head_s=0.3, forward_share=1 / 3))
    clock.configure(num_sequences=1, tp_degree=2)
    return clock


def run_segment(clock: EmulatedClock, fake: FakeTime, work: Work, real_s: float) -> None:
    clock.start(work)
    fake.now += real_s
    assert clock.stop() is work


def test_a_segment_lasts_its_share_times_the_rate(fake: FakeTime) -> None:
    clock = layer_clock(fake)
    clock.rate = 3.0
    run_segment(clock, fake, Work.FORWARD, 0.01)
    assert clock.take()[Work.FORWARD] == pytest.approx(0.6 / 3 / 2 / 2 * 3)


def test_two_forward_and_two_backward_segments_make_a_layer(fake: FakeTime) -> None:
    clock = layer_clock(fake)
    for work in (Work.FORWARD, Work.FORWARD, Work.BACKWARD, Work.BACKWARD):
        run_segment(clock, fake, work, 0.001)
    assert sum(clock.take().values()) == pytest.approx(0.6 / 2)


def test_overshoot_is_paid_back(fake: FakeTime) -> None:
    clock = layer_clock(fake)
    run_segment(clock, fake, Work.FORWARD, 0.08)
    run_segment(clock, fake, Work.FORWARD, 0.01)
    assert clock.take()[Work.FORWARD] == pytest.approx(0.1)


def test_debt_is_bounded(fake: FakeTime) -> None:
    clock = layer_clock(fake)
    run_segment(clock, fake, Work.FORWARD, 5.0)
    run_segment(clock, fake, Work.FORWARD, 0.0)
    assert fake.slept == [] or fake.slept[-1] == pytest.approx(0.05 - MAX_DEBT_S)


def test_left_overs_are_not_counted(fake: FakeTime) -> None:
    clock = layer_clock(fake)
    clock.start(Work.FORWARD)
    fake.now += 1.0
    clock.drop()
    assert sum(clock.take().values()) == 0.0


def test_an_open_segment_cannot_be_opened_again(fake: FakeTime) -> None:
    clock = layer_clock(fake)
    clock.start(Work.FORWARD)
    with pytest.raises(AssertionError, match="still open"):
        clock.start(Work.BACKWARD)
