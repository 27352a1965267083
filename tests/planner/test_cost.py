"""The event model: against a simulation of single operations, its bounds, and cases counted by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import capacity_bound_s, layer_s, pipeline_makespan_s, plan_step_s, stage_s, timeline
from planner.errors import SpecError
from planner.plan import Pipeline, Plan, Stage, even_plan
from planner.presets import cluster, model
from tests.planner.brute_force import _simulate
from tests.planner.cases import tiny_profile

TIMES = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


@given(times=TIMES, count=st.integers(1, 12), share=st.floats(0.1, 0.9), send_s=st.sampled_from([0.0, 0.05, 2.0]))
def test_recurrence_equals_a_simulation_of_single_operations(
    times: list[float], count: int, share: float, send_s: float
) -> None:
    expected = _simulate(np.array([times]), count, share, send_s)[0]
    assert pipeline_makespan_s(times, count, forward_share=share, send_s=send_s) == pytest.approx(expected)


@given(times=TIMES, count=st.integers(1, 12), share=st.floats(0.1, 0.9))
def test_makespan_lies_between_the_busiest_stage_and_the_textbook_formula(
    times: list[float], count: int, share: float
) -> None:
    seconds = pipeline_makespan_s(times, count, forward_share=share, send_s=0.0)
    assert count * max(times) <= seconds * (1 + 1e-9)
    assert seconds <= ((count - 1) * max(times) + sum(times)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("times", "count", "send_s", "expected", "why"),
    [
        ([3.0], 4, 1.0, 12.0, "one stage sends nothing and never waits"),
        ([1.0, 1.0], 4, 0.0, 5.0, "equal stages: m + S - 1"),
        ([1.0, 1.0, 1.0, 1.0], 8, 0.0, 11.0, "equal stages: m + S - 1"),
        ([2.0, 1.0], 8, 0.0, 16.0, "a slow first stage hides the fill; the textbook says 17"),
        ([1.0, 2.0], 8, 0.0, 17.0, "a slow last stage does not"),
        ([1.0, 1.0], 1, 0.5, 3.0, "one micro-batch goes there and back, two sends"),
    ],
)
def test_makespans_counted_by_hand(times: list[float], count: int, send_s: float, expected: float, why: str) -> None:
    assert pipeline_makespan_s(times, count, forward_share=0.5, send_s=send_s) == pytest.approx(expected), why


def test_rate_slows_compute_head_and_embedding_but_not_collectives() -> None:
    profile = tiny_profile(
        comm_s={1: {1: 0.0, 2: 0.1, 4: 0.2}}, embed_s={1: {1: 3, 2: 3, 4: 3}}, head_s={1: {1: 5, 2: 5, 4: 5}}
    )
    assert layer_s(profile, micro_batch_size=1, tp_degree=2, rate=3.0) == pytest.approx(0.5 * 3 + 0.1)
    seconds = stage_s(profile, micro_batch_size=1, tp_degree=2, rate=3.0, num_layers=2, is_first=True, is_last=True)
    assert seconds == pytest.approx(2 * 1.6 + 3 * 3 + 5 * 3)


def test_step_is_the_slowest_pipeline_plus_sync() -> None:
    plan = Plan(
        num_layers=6,
        micro_batch_size=1,
        pipelines=(
            Pipeline(num_micro_batches=2, stages=(Stage(devices=(0,), layers=(0, 6)),)),
            Pipeline(num_micro_batches=2, stages=(Stage(devices=(1, 2), layers=(0, 6)),)),
        ),
    )
    profile = tiny_profile(sync_s=0.5)
    assert plan_step_s(plan, profile, {}) == pytest.approx(12.5)
    assert plan_step_s(plan, profile, {2: 3.0}) == pytest.approx(18.5), "the slowest member counts"
    assert plan_step_s(plan, profile, {1: math.inf}) == math.inf
    assert timeline(plan, profile, {1: math.inf})[-1].pipeline_index == 0, "a pipeline that cannot run has no events"


def test_timeline_is_what_the_step_time_is_made_of() -> None:
    profile, _ = model("demo")
    plan = even_plan(
        cluster("demo").nodes,
        num_layers=16,
        num_micro_batches=16,
        micro_batch_size=1,
        dp_degree=2,
        tp_degree=2,
        pp_degree=2,
    )
    events = timeline(plan, profile, {3: 2.57})
    assert len(events) == 2 * 16 * 2
    assert max(event.end_s for event in events) + profile.sync_s == pytest.approx(plan_step_s(plan, profile, {3: 2.57}))
    for place in {(event.pipeline_index, event.stage_index) for event in events}:
        mine = [event for event in events if (event.pipeline_index, event.stage_index) == place]
        mine.sort(key=lambda event: event.start_s)
        assert all(one.end_s <= two.start_s + 1e-12 for one, two in pairwise(mine))
    assert events[0].to_json()["kind"] == "forward"


def test_what_the_profile_does_not_know_is_named() -> None:
    with pytest.raises(SpecError, match=r"TP degree must be one of \[1, 2, 4\], given 8"):
        layer_s(tiny_profile(), micro_batch_size=1, tp_degree=8, rate=1.0)
    with pytest.raises(SpecError, match=r"micro-batch size must be one of \[1\], given 2"):
        layer_s(tiny_profile(), micro_batch_size=2, tp_degree=1, rate=1.0)


def test_capacity_bound() -> None:
    assert capacity_bound_s(2.0, {0: 1.0, 1: 1.0}) == pytest.approx(2.0)
    assert capacity_bound_s(2.0, [1.0, 2.0]) == pytest.approx(2.0 * 2 / 1.5)
    assert capacity_bound_s(2.0, {0: 1.0, 1: math.inf}) == pytest.approx(4.0)
    assert capacity_bound_s(2.0, [math.inf]) == math.inf
