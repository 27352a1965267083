"""Devices are chosen so that few bytes move, and never so that the plan gets slower."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import plan_step_s
from planner.diff import diff
from planner.placement import place
from planner.plan import Plan, even_plan
from planner.presets import cluster, model
from planner.problem import problem_of
from planner.search import find_drafts
from planner.solve import solve
from planner.spec import check_rates
from planner.validate import violations
from tests.planner.cases import SEARCHED

PROFILE, TRAIN = model("demo")
CLUSTER = cluster("demo")
START = even_plan(
    CLUSTER.nodes,
    num_layers=16,
    num_micro_batches=16,
    micro_batch_size=1,
    dp_degree=2,
    tp_degree=2,
    pp_degree=2,
)
RATES = st.dictionaries(st.integers(0, 7), st.sampled_from([1.5, 2.57, 5.42, math.inf]), max_size=3)


def _best(rates: dict[int, float], current: Plan | None) -> Plan:
    result = solve(cluster=CLUSTER, profile=PROFILE, train=TRAIN, rates=rates, current=current)
    assert result.best is not None
    return result.best.plan


@settings(max_examples=12, deadline=None, phases=SEARCHED)
@given(rates=RATES)
def test_staying_close_costs_no_speed_and_never_moves_more(rates: dict[int, float]) -> None:
    every = check_rates(rates, CLUSTER)
    drafts = find_drafts(
        problem_of(CLUSTER, PROFILE, TRAIN, every), limit_s=math.inf, seed=0, is_over=lambda: False, log=[]
    )
    for draft in drafts:
        free, close = (place(draft, cluster=CLUSTER, rates=every, current=current) for current in (None, START))
        for plan in (free, close):
            assert plan_step_s(plan, PROFILE, rates) <= draft.step_s * (1 + 1e-9)
            assert not violations(plan, cluster=CLUSTER, num_layers=16, global_batch=16, max_tp=4, profile=PROFILE)
        moved, freely = (diff(START, plan, PROFILE).moved_bytes or 0.0 for plan in (close, free))
        assert moved <= freely * (1 + 1e-9)


def test_solving_again_from_the_new_plan_changes_nothing() -> None:
    rates = {3: 2.57, 6: 1.5}
    new = _best(rates, START)
    assert _best(rates, new) == new


def test_relabelled_straggler_moves_only_its_own_work() -> None:
    """Under the plan for one straggler, another device of the node becomes the slow one instead."""
    plan = _best({3: 5.42}, START)
    swapped = _best({2: 5.42}, plan)
    changed = {change.device for change in diff(plan, swapped).devices}
    assert changed <= {2, 3}


@pytest.mark.parametrize("rates", [{0: math.inf}, {0: math.inf, 1: math.inf, 2: math.inf, 3: math.inf}])
def test_failed_devices_end_in_failed(rates: dict[int, float]) -> None:
    plan = _best(rates, START)
    assert plan.failed == tuple(sorted(rates))
    assert not set(plan.active) & set(rates)
