"""Detection: what is named, what is not, and when. No clock; a step is one call."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.detect import Detector, Observation, Thresholds, Verdict
from planner.plan import Plan, even_plan

NAN = math.nan
INF = math.inf
NODES = ((0, 1, 2, 3), (4, 5, 6, 7))
TP2 = even_plan(NODES, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=2, tp_degree=2, pp_degree=2)
TP1 = even_plan(NODES, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=2, tp_degree=1, pp_degree=4)
SPARE = even_plan(NODES, num_layers=16, num_micro_batches=16, micro_batch_size=1, dp_degree=1, tp_degree=2, pp_degree=3)


class Run:
    """Feeds a detector and keeps what it said."""

    def __init__(self, plan: Plan = TP2, assumed: dict[int, float] | None = None, **thresholds: int) -> None:
        self.detector = Detector(Thresholds(**thresholds), num_devices=8)
        self.detector.begin(plan, 1, assumed or {}, is_switch=False)
        self.version = 1
        self.step = -1
        self.verdicts: list[Verdict] = []

    def feed(
        self, num_steps: int, rates: Callable[[int], Sequence[float]], *, phase: str = "train", step_s: float = NAN
    ) -> list[Verdict]:
        found: list[Verdict] = []
        for _ in range(num_steps):
            self.step += 1
            found += self.detector.observe(
                Observation(
                    step=self.step, plan_version=self.version, phase=phase, rates=rates(self.step), step_s=step_s
                )
            )
        self.verdicts += found
        return found

    def switch(self, plan: Plan, assumed: dict[int, float]) -> None:
        self.version += 1
        self.detector.begin(plan, self.version, assumed, is_switch=True, last_step=self.step)


def rates(default: float = 1.0, **devices: float) -> Callable[[int], Sequence[float]]:
    """`rates(d3=2.57)`: every device healthy but device 3."""
    vector = [devices.get(f"d{device}", default) for device in range(8)]
    return lambda step: vector


def named(verdicts: Iterable[Verdict]) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(verdict.cause, verdict.change, verdict.devices) for verdict in verdicts}


@pytest.mark.parametrize(
    ("situation", "slow"),
    [
        ("S0", {}),
        ("S1", {3: 2.57}),
        ("S2", {3: 5.42}),
        ("S3", {3: 2.57, 5: 5.42}),
        ("S4", {1: 2.57, 4: 3.75, 7: 5.42}),
        ("S5", {0: 2.57, 1: 2.57, 2: 2.57, 3: 2.57}),  # all of one pipeline, and yet four slow devices
        ("S6", {0: 3.75, 1: 12.53, 6: 2.57}),
    ],
)
def test_situations_name_the_slow_devices_and_no_other(situation: str, slow: dict[int, float]) -> None:
    run, noise = Run(), random.Random(0)

    def noisy(slow: dict[int, float]) -> Callable[[int], Sequence[float]]:
        return lambda step: [slow.get(device, 1.0) * noise.uniform(0.97, 1.03) for device in range(8)]

    assert run.feed(30, noisy({})) == []
    found = run.feed(8 if situation == "S5" else 5, noisy(slow))
    assert named(found) == {("device", "slower", (device,)) for device in slow}, situation
    assert set(run.detector.shifted()) == set(slow)
    planned = run.detector.rates_for_planning()
    for device in range(8):
        assert planned[device] == pytest.approx(slow.get(device, 1.0), rel=0.03)
        assert device in slow or planned[device] == 1.0, "healthy devices plan as exactly healthy"
    assert run.feed(30, noisy(slow)) == [], "a confirmed level is no news"
    assert named(run.feed(6, noisy({}))) == {("device", "recovered", (device,)) for device in slow}
    assert run.detector.shifted() == ()


def test_confirmed_after_patience_with_the_step_it_began() -> None:
    run = Run()
    run.feed(10, rates())
    assert run.feed(4, rates(d3=1.4)) == [], "two steps to turn the median, then three in a row"
    (verdict,) = run.feed(1, rates(d3=1.4))
    assert (verdict.start_step, verdict.step) == (10, 14)
    assert verdict.rates == {3: 1.4}
    assert verdict.evidence["samples"] == {"3": [1.4] * 5}
    assert verdict.evidence["reference"] == {"3": 1.0}
    assert verdict.evidence["peers"] == {"count": 7, "median": 1.0, "highest": 1.0}
    json.dumps(verdict.evidence, allow_nan=False)


def test_a_jump_is_confirmed_by_three_samples_that_agree() -> None:
    run = Run()
    run.feed(10, rates())
    assert run.feed(2, rates(d3=2.57)) == []
    (verdict,) = run.feed(1, rates(d3=2.7))
    assert (verdict.start_step, verdict.step, verdict.rates) == (10, 12, {3: 2.57})
    assert verdict.evidence["samples"] == {"3": [2.57, 2.57, 2.7]}, "what was before the jump is no evidence of it"
    assert named(run.feed(3, rates())) == {("device", "recovered", (3,))}, "back as fast as there"


def test_two_devices_may_jump_at_once() -> None:
    run = Run()
    run.feed(10, rates())
    assert named(run.feed(3, rates(d2=2.57, d6=12.53))) == {("device", "slower", (2,)), ("device", "slower", (6,))}


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        (lambda step: rates(d3=(2.0, 3.0, 4.0)[step % 3])(step), "the samples do not agree"),
        (lambda step: rates(1.2, d3=3.0)(step), "the others did not stay"),
        (lambda step: rates(3.0, d0=1.0)(step), "most jumped"),
    ],
)
def test_what_is_no_jump_needs_patience(vectors: Callable[[int], Sequence[float]], why: str) -> None:
    run = Run()
    run.feed(10, rates())
    assert run.feed(4, vectors) == [], why


@pytest.mark.parametrize(
    ("vectors", "why"),
    [
        (lambda step: rates(d3=9.0 if step % 5 == 0 else 1.0)(step), "single spikes do not turn a median"),
        (lambda step: rates(d3=4.0 if 20 <= step < 22 else 1.0)(step), "a burst ends before it is a jump"),
        (lambda step: rates(d3=1.4 if 20 <= step < 24 else 1.0)(step), "a burst ends before patience does"),
        (lambda step: rates(d3=1.049)(step), "inside the band for ever"),
        (lambda step: rates(3.0 if 20 <= step < 23 else 1.0)(step), "three heavy steps for everyone"),
        (lambda step: [NAN if step % 2 else 1.0] * 8, "every other measurement is missing"),
    ],
)
def test_no_verdict(vectors: Callable[[int], Sequence[float]], why: str) -> None:
    assert Run().feed(60, vectors) == [], why


@pytest.mark.parametrize("phase", ["first", "switch", "checkpoint"])
def test_other_phases_are_left_out_and_do_not_disable(phase: str) -> None:
    run = Run()
    run.feed(10, rates())
    assert run.feed(20, rates(d3=8.0), phase=phase) == []
    assert run.detector.num_excluded == 20
    assert named(run.feed(5, rates(d3=2.57))) == {("device", "slower", (3,))}


def test_slow_creep_is_found_against_the_confirmed_level() -> None:
    found = Run().feed(40, lambda step: rates(d2=1.0 + 0.005 * step)(step))
    assert found
    assert named(found) == {("device", "slower", (2,))}


def test_worse_and_better_again() -> None:
    run = Run()
    run.feed(10, rates())
    changes = [named(run.feed(8, rates(d3=rate))) for rate in (2.57, 5.42, 2.57, 1.0)]
    assert changes == [
        {("device", "slower", (3,))},
        {("device", "slower", (3,))},
        {("device", "faster", (3,))},
        {("device", "recovered", (3,))},
    ]


def test_a_group_member_does_not_raise_its_peers() -> None:
    """Devices 2 and 3 are one TP group and wait for each other, yet each times its own compute."""
    run = Run()
    run.feed(10, rates())
    assert named(run.feed(10, rates(d3=2.57))) == {("device", "slower", (3,))}
    assert run.detector.is_healthy(2)
    assert not run.detector.is_healthy(3)


def test_everyone_is_no_device_and_needs_no_plan() -> None:
    run = Run()
    run.feed(10, rates())
    assert named(run.feed(10, rates(1.4))) == {("everyone", "slower", tuple(range(8)))}
    assert run.detector.shifted() == ()
    assert named(run.feed(10, rates(1.0))) == {("everyone", "recovered", tuple(range(8)))}


def test_a_device_stands_out_of_everyone() -> None:
    run = Run()
    run.feed(10, rates())
    found = run.feed(10, rates(1.4, d3=1.4 * 2.57))
    assert named(found) == {("everyone", "slower", (0, 1, 2, 4, 5, 6, 7)), ("device", "slower", (3,))}
    assert run.detector.shifted() == (3,)


def test_everyone_after_a_device_keeps_the_device_shifted() -> None:
    run = Run()
    run.feed(10, rates())
    run.feed(10, rates(d3=2.57))
    run.feed(10, rates(1.4, d3=1.4 * 2.57))
    assert run.detector.shifted() == (3,)


def test_five_of_eight_slow_is_not_everyone() -> None:
    run = Run()
    run.feed(10, rates())
    found = run.feed(8, rates(d0=2.57, d1=2.57, d2=2.57, d3=2.57, d4=2.57))
    assert named(found) == {("device", "slower", (device,)) for device in range(5)}


def heavy(devices: Sequence[int], seed: int) -> Callable[[int], Sequence[float]]:
    """Long sequences: the devices rise together, by another factor in each step."""
    noise = random.Random(seed)

    def vector(step: int) -> Sequence[float]:
        factor = noise.uniform(1.15, 2.4)
        return [factor * noise.uniform(0.98, 1.02) if device in devices else 1.0 for device in range(8)]

    return vector


@pytest.mark.parametrize("seed", range(40))
def test_heavy_micro_batches_of_one_pipeline_are_data(seed: int) -> None:
    run = Run()
    run.feed(10, rates())
    found = run.feed(40, heavy((0, 1, 2, 3), seed))
    assert named(found) == {("data", "slower", (0, 1, 2, 3))}
    assert run.detector.shifted() == ()
    assert run.detector.rates_for_planning() == dict.fromkeys(range(8), 1.0)
    assert named(run.feed(8, rates())) == {("data", "recovered", (0, 1, 2, 3))}


@pytest.mark.parametrize("seed", range(100))
def test_heavy_steps_of_all_are_never_a_device(seed: int) -> None:
    run = Run()
    run.feed(10, rates())
    assert {verdict.cause for verdict in run.feed(40, heavy(range(8), seed))} <= {"data", "everyone"}
    assert run.detector.shifted() == ()


def test_data_when_the_standby_devices_stay_as_they_were() -> None:
    """Only those that see the data rise; devices 6 and 7 probe themselves with fixed work."""
    run = Run(SPARE)
    run.feed(10, rates())
    assert named(run.feed(10, rates(1.5, d6=1.0, d7=1.0))) == {("data", "slower", (0, 1, 2, 3, 4, 5))}


def test_a_pipeline_that_stays_slow_turns_from_data_to_devices() -> None:
    run = Run()
    run.feed(10, rates())
    run.feed(20, heavy((0, 1, 2, 3), 1))
    found = run.feed(20, rates(d0=2.57, d1=2.57, d2=2.57, d3=2.57))
    assert {cause for cause, _, _ in named(found)} == {"device"}
    assert run.detector.shifted() == (0, 1, 2, 3)


def test_a_stage_heavy_from_the_start_is_by_design() -> None:
    """The last stage of both pipelines is up from the first step on (head and loss), nobody else."""
    run = Run(TP1)
    assert named(run.feed(20, rates(d3=1.18, d7=1.2))) == {("stage", "slower", (3, 7))}
    assert run.detector.shifted() == ()
    assert run.detector.rates_for_planning() == dict.fromkeys(range(8), 1.0)


def test_a_stage_that_turns_slow_later_is_devices() -> None:
    run = Run(TP1)
    run.feed(10, rates())
    assert named(run.feed(10, rates(d3=2.57, d7=2.57))) == {("device", "slower", (3,)), ("device", "slower", (7,))}


def test_one_slow_device_from_the_start_is_no_stage() -> None:
    assert named(Run(TP1).feed(10, rates(d3=2.5))) == {("device", "slower", (3,))}


def test_silence_is_unknown_never_healthy() -> None:
    run = Run(silence_steps=6)
    run.feed(10, rates())
    assert run.feed(5, rates(d3=NAN)) == []
    (verdict,) = run.feed(1, rates(d3=NAN))
    assert (verdict.cause, verdict.change, verdict.devices, verdict.start_step) == ("unknown", "silent", (3,), 10)
    assert math.isnan(run.detector.rates()[3])
    assert not run.detector.is_healthy(3)
    assert run.feed(20, rates(d3=NAN)) == [], "said once"
    assert named(run.feed(3, rates())) == {("unknown", "back", (3,))}
    assert run.detector.is_healthy(3)


def test_never_measured_is_unknown_too() -> None:
    run = Run(silence_steps=4)
    assert named(run.feed(4, lambda step: [NAN] * 8)) == {("unknown", "silent", (device,)) for device in range(8)}


def test_unknown_plans_with_the_last_known_rate() -> None:
    run = Run(silence_steps=4)
    run.feed(10, rates(d3=2.57))
    assert run.detector.rates_for_planning()[3] == 2.57
    run.feed(30, rates(d3=NAN))
    assert run.detector.rates_for_planning()[3] == 2.57
    run.switch(SPARE, {3: 2.57})
    assert run.detector.rates_for_planning()[3] == 2.57


def test_rates_from_a_store_stand_in_until_measured() -> None:
    run = Run()
    run.detector.remember({3: 2.57, 4: NAN, 5: INF})
    assert run.detector.rates_for_planning() == {**dict.fromkeys(range(8), 1.0), 3: 2.57}


def test_silent_then_back_slow() -> None:
    run = Run(silence_steps=4)
    run.feed(10, rates())
    run.feed(6, rates(d3=NAN))
    assert named(run.feed(4, rates(d3=2.57))) == {("unknown", "back", (3,)), ("device", "slower", (3,))}


def test_failed_needs_no_patience_and_plans_as_failed() -> None:
    run = Run()
    run.feed(10, rates())
    assert named(run.feed(1, rates(d6=INF))) == {("device", "failed", (6,))}
    assert run.detector.shifted() == (6,)
    assert run.detector.rates_for_planning()[6] == INF
    assert run.feed(10, rates(d6=INF)) == []
    assert named(run.feed(5, rates())) == {("device", "recovered", (6,))}


def test_devices_that_the_plan_has_given_up_may_be_silent() -> None:
    plan = Plan(num_layers=16, micro_batch_size=1, pipelines=TP2.pipelines, failed=(7,))
    run = Run(plan, {7: INF}, silence_steps=3)
    assert run.feed(10, rates(d7=NAN)) == []


def test_a_switch_starts_over_and_cools_down() -> None:
    run = Run()
    run.feed(10, rates())
    run.feed(6, rates(d3=2.57))
    run.switch(SPARE, {3: 2.57})
    assert run.detector.shifted() == ()
    assert run.feed(20, rates(d3=2.57)) == [], "as assumed"
    run.switch(SPARE, {3: 2.57})
    assert run.feed(5, rates(d3=3.2)) == [], "cool-down of three, then patience of three"
    assert named(run.feed(1, rates(d3=3.2))) == {("device", "slower", (3,))}
    run.switch(SPARE, {3: 2.57})
    assert run.feed(3, rates(d3=5.42)) == [], "cool-down of three"
    assert named(run.feed(1, rates(d3=5.42))) == {("device", "slower", (3,))}


def test_recovery_of_a_device_on_standby_is_a_shift() -> None:
    run = Run(SPARE, {7: 5.42})
    run.feed(10, rates(d7=5.42))
    assert named(run.feed(5, rates())) == {("device", "recovered", (7,))}
    assert run.detector.shifted() == (7,)
    assert run.detector.rates_for_planning()[7] == 1.0


def test_stale_steps_are_counted_and_ignored() -> None:
    run = Run()
    run.feed(10, rates())
    for plan_version, step, vector in ((2, 10, [9.0] * 8), (1, 9, [9.0] * 8), (1, 10, [9.0] * 7)):
        observation = Observation(step=step, plan_version=plan_version, phase="train", rates=vector)
        assert run.detector.observe(observation) == ()
    assert run.detector.num_stale == 3
    assert run.feed(10, rates()) == []


def test_waiting_that_grows_without_compute_is_the_link() -> None:
    run = Run()
    run.feed(20, rates(), step_s=1.0)
    (verdict,) = run.feed(10, rates(), step_s=1.5)
    assert (verdict.cause, verdict.devices) == ("link", ())
    assert run.feed(20, rates(), step_s=1.5) == [], "said once"
    assert run.detector.shifted() == ()


def test_a_step_time_that_grew_with_a_rate_is_not_the_link() -> None:
    run = Run()
    run.feed(20, rates(), step_s=1.0)
    assert named(run.feed(30, rates(d3=2.57), step_s=2.0)) == {("device", "slower", (3,))}


@pytest.mark.parametrize(
    "wrong",
    [{"shift": 0.0}, {"shift": NAN}, {"patience_steps": 0}, {"window_steps": 0}, {"jump": 1.0}, {"cooldown_steps": -1}],
)
def test_thresholds_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="given"):
        Thresholds(**wrong)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "train", "first", "switch"]),
            st.lists(st.one_of(st.floats(0.5, 20.0), st.just(NAN), st.just(INF)), min_size=8, max_size=8),
        ),
        max_size=40,
    )
)
def test_any_input_leaves_sound_rates(steps: list[tuple[str, list[float]]]) -> None:
    """Whatever comes in: every device has a positive planning rate and evidence is JSON."""
    run = Run(silence_steps=3)
    for phase, vector in steps:
        for verdict in run.feed(1, lambda step, vector=vector: vector, phase=phase):
            json.dumps(verdict.evidence)
            assert verdict.start_step <= verdict.step
    planned = run.detector.rates_for_planning()
    assert set(planned) == set(range(8))
    assert all(rate > 0 for rate in planned.values())
