"""Reads: ranges, medians, thinning that keeps spikes, and the roll-up by age."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from db import episodes, history, recorder, rollup, runs
from db.errors import InputError
from db.messages import utc_now
from db.run_config import RunConfig
from db.runs import RunView
from db.store import Store
from tests.db.conftest import PLAN
from tests.db.query_plan import query_plan
from tests.db.telemetry import START, batch, hello, step


def test_ranges_and_pages(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), *(step(number) for number in range(1, 11))))
    assert [view.step for view in history.steps(store, 1, since_step=3, until_step=5)] == [3, 4, 5]
    chosen = history.samples(store, 1, devices=[2, 6], since_step=9)
    assert [(view.step, view.device) for view in chosen] == [(9, 2), (9, 6), (10, 2), (10, 6)]
    assert history.samples(store, 1, limit=3, offset=8) == history.samples(store, 1)[8:11]
    assert history.last_step(store, 1) == history.steps(store, 1)[-1]


def test_the_samples_of_one_device_are_found_by_the_index(store: Store, run: RunView) -> None:
    recorder.record(store, 1, batch(hello(0), *(step(number) for number in range(1, 21))))
    chosen = history.samples(store, 1, devices=[3], since_step=5, until_step=18, limit=4, offset=2)
    assert [(view.step, view.device) for view in chosen] == [(7, 3), (8, 3), (9, 3), (10, 3)]
    if not store.is_sqlite:
        pytest.skip("PostgreSQL plans by statistics")
    plan = query_plan(store, lambda: history.samples(store, 1, devices=[3], since_step=5), of="samples")
    assert "COVERING INDEX ix_samples_run_device_step (run=? AND device=? AND step>?)" in plan
    assert "PRIMARY KEY (run=? AND step=? AND device=?)" in plan


def test_nothing_yet(store: Store, run: RunView) -> None:
    assert history.steps(store, 1) == []
    assert history.last_step(store, 1) is None
    assert history.samples(store, 1) == []
    assert history.latest_rates(store, 1) == {}
    assert history.rate_window(store, 1, 5).steps == ()
    assert history.median_step_s(store, 1) is None
    assert history.switches(store, 1) == []
    assert episodes.all_episodes(store, 1) == []
    with pytest.raises(InputError, match="run 1 has no switch 5"):
        history.switch_digests(store, 1, 5)


def test_thinning_keeps_ends_spikes_and_nan(store: Store, run: RunView) -> None:
    slow, unknown, high = 333, 500, 777
    messages = [
        step(
            number,
            step_s=99.0 if number == slow else 0.5 + number % 7 / 100,
            loss=math.nan if number == unknown else 50.0 if number == high else 2.0,
        )
        for number in range(1, 1001)
    ]
    recorder.record(store, 1, batch(hello(0), *messages))
    for max_points in (5, 50, 200):
        thinned = history.steps(store, 1, max_points=max_points)
        numbers = [view.step for view in thinned]
        assert numbers == sorted(set(numbers))
        assert max_points / 4 <= len(numbers) <= max_points
        assert (numbers[0], numbers[-1]) == (1, 1000)
        assert slow in numbers
        assert unknown in numbers
    assert high in [view.step for view in history.steps(store, 1, max_points=50)]
    assert math.isnan(next(view.loss for view in history.steps(store, 1, max_points=50) if view.step == unknown))
    assert len(history.steps(store, 1, since_step=101, until_step=150, max_points=50)) == 50
    with pytest.raises(InputError, match="max_points must be at least 5, given 4"):
        history.steps(store, 1, max_points=4)


@pytest.mark.parametrize(
    ("seconds", "median"),
    [
        ([3.0], 3.0),
        ([3.0, 1.0], 2.0),
        ([5.0, 1.0, 2.0], 2.0),
        ([math.nan, 1.0, math.inf, 3.0], 2.0),
        ([math.nan], None),
    ],
)
def test_median_of_train_steps(store: Store, run: RunView, seconds: list[float], median: float | None) -> None:
    messages = [step(number, step_s=value) for number, value in enumerate(seconds, start=1)]
    other = [step(20, step_s=100.0, phase="switch"), step(21, step_s=100.0, phase="first")]
    recorder.record(store, 1, batch(hello(0), *messages, *other))
    assert history.median_step_s(store, 1) == median


def test_median_of_a_plan_and_a_range(store: Store, run: RunView) -> None:
    messages = [step(number, step_s=float(number), plan_version=1 + number // 5) for number in range(1, 10)]
    recorder.record(store, 1, batch(hello(0), *messages))
    assert history.median_step_s(store, 1, plan_version=2) == 7.0
    assert history.median_step_s(store, 1, plan_version=1) == 2.5
    assert history.median_step_s(store, 1, since_step=4, until_step=6) == 5.0
    assert history.median_step_s(store, 1, plan_version=3) is None


def test_latest_rates_and_window(store: Store, run: RunView) -> None:
    messages = [
        step(number, rates=(float(number),) * 7 + (math.nan,), phase="switch" if number == 3 else "train")
        for number in range(1, 5)
    ]
    recorder.record(store, 1, batch(hello(0), *messages))
    latest = history.latest_rates(store, 1)
    assert list(latest) == list(range(8))
    assert (latest[0].rate, latest[0].step, latest[0].at) == (4.0, 4, START + timedelta(seconds=4))
    assert math.isnan(latest[7].rate)
    window = history.rate_window(store, 1, 3)
    assert (window.steps, window.phases) == ((2, 3, 4), ("train", "switch", "train"))
    assert window.rates[0] == (2.0, 3.0, 4.0)
    assert all(math.isnan(rate) for rate in window.rates[7])
    assert history.rate_window(store, 1, 2, only_train=True).rates[6] == (2.0, 4.0)


def test_episodes(store: Store, run: RunView) -> None:
    fields: dict[str, Any] = {
        "start_step": 10,
        "start_at": START,
        "rate": 2.0,
        "cause": "device",
        "evidence": {"peers": [1.0, math.nan]},
    }
    opened = episodes.open_episode(store, 1, 3, **fields)
    assert episodes.open_episode(store, 1, 3, **{**fields, "rate": 9.0}).id == opened.id
    for rate, peak in ((1.5, 2.0), (5.0, 5.0), (math.nan, 5.0), (math.inf, math.inf)):
        raised = episodes.update_peak(store, 1, 3, rate=rate)
        assert raised is not None
        assert (raised.rate, raised.peak) == (2.0, peak)
    closed = episodes.close(store, 1, 3, end_step=20, end_at=START + timedelta(seconds=9))
    assert closed is not None
    assert (closed.end_step, closed.is_open) == (20, False)
    assert episodes.close(store, 1, 3, end_step=21, end_at=START) is None
    assert episodes.update_peak(store, 1, 3, rate=3.0) is None
    second = episodes.open_episode(store, 1, 3, **fields)
    assert [view.id for view in episodes.all_episodes(store, 1)] == [second.id, closed.id]
    assert [view.id for view in episodes.all_episodes(store, 1, devices=[3], is_open=True)] == [second.id]
    assert episodes.all_episodes(store, 1, devices=[4]) == []
    assert math.isnan(second.evidence["peers"][1])


def test_roll_up_keeps_minutes_and_the_newest_steps(store: Store, run: RunView) -> None:
    rates = {number: (float(number), math.nan, *(1.0,) * 6) for number in range(1, 301)}
    messages = [
        step(number, rates=rates[number], phase="switch" if number == 61 else "train") for number in range(1, 301)
    ]
    recorder.record(store, 1, batch(hello(0), *messages))
    before = history.latest_rates(store, 1)
    done = rollup.roll_up(store, older_than=timedelta(days=1))
    # step n is at 12:00:00 + n s; the newest 100 are 201..300, so the minutes 12:00 to 12:02 may go (1..179)
    assert (done.num_samples, done.num_minutes) == (179 * 8, 3 * 8)
    assert [view.step for view in history.samples(store, 1, devices=[0])] == list(range(180, 301))
    first, second, third = history.sample_minutes(store, 1, devices=[0])
    assert (first.minute_at, first.num_samples, first.num_unknown) == (START, 59, 0)
    assert (first.rate_min, first.rate_median, first.rate_max) == (1.0, 30.0, 59.0)
    assert (second.first_step, second.last_step, second.num_samples) == (60, 119, 59)  # 61 carried a switch
    assert (third.rate_min, third.rate_max) == (120.0, 179.0)
    unknown = history.sample_minutes(store, 1, devices=[1], until_at=START)
    assert [(view.num_samples, view.num_unknown) for view in unknown] == [(0, 59)]
    assert math.isnan(unknown[0].rate_median)
    assert len(history.sample_minutes(store, 1, since_at=START + timedelta(minutes=1), limit=5)) == 5
    assert len(history.steps(store, 1)) == 300
    assert rollup.roll_up(store, older_than=timedelta(days=1)) == rollup.RolledUp(num_samples=0, num_minutes=0)
    assert history.latest_rates(store, 1)[0] == before[0]


def test_roll_up_leaves_what_is_young(store: Store, run: RunView) -> None:
    now = utc_now()
    messages = [step(number, at=now - timedelta(seconds=300 - number)) for number in range(1, 301)]
    recorder.record(store, 1, batch(hello(0), *messages))
    assert rollup.roll_up(store, older_than=timedelta(hours=1)).num_samples == 0
    assert len(history.samples(store, 1, limit=10_000)) == 2400


def test_roll_up_in_parts_and_with_late_samples(store: Store, monkeypatch: pytest.MonkeyPatch, run: RunView) -> None:
    monkeypatch.setattr(rollup, "MAX_STEPS_A_TRANSACTION", 70)
    monkeypatch.setattr(rollup, "NUM_STEPS_KEPT", 1)
    recorder.record(store, 1, batch(hello(0), *(step(number) for number in range(1, 301))))
    done = rollup.roll_up(store, older_than=timedelta(days=1))
    assert (done.num_samples, done.num_minutes) == (299 * 8, 5 * 8)
    again = [
        step(seq, number, attempt="a2", at=START + timedelta(seconds=number)) for seq, number in ((1, 10), (2, 11))
    ]
    far = step(3, 400, attempt="a2", at=START + timedelta(seconds=400), rates=(3.0,) * 8)
    recorder.record(store, 1, batch(hello(0, attempt="a2"), *again, far))
    rollup.roll_up(store, older_than=timedelta(days=1))
    first = history.sample_minutes(store, 1, devices=[0])[0]
    assert (first.num_samples, first.rate_median, first.first_step, first.last_step) == (61, 1.0, 1, 59)


def test_roll_up_of_many_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup, "NUM_STEPS_KEPT", 1)
    for run in (1, 2):
        runs.create(store, RunConfig(), plan=PLAN, actor="ann")
        messages = [step(number, run=run) for number in range(1, 100)]
        recorder.record(store, run, batch(hello(0, run=run), *messages))
    done = rollup.roll_up(store, older_than=timedelta(days=1))
    assert done.num_samples == 2 * 59 * 8
