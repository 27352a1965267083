"""Every rule of a plan: a plan that breaks it is refused with what was expected and given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import PlanError
from planner.plan import Pipeline, Plan, Stage
from planner.presets import uniform_cluster
from planner.validate import check, violations
from tests.planner.cases import tiny_profile

CLUSTER = uniform_cluster(2, 4, memory_bytes=100.0)
GOOD = Plan(
    num_layers=6,
    micro_batch_size=1,
    pipelines=(
        Pipeline(
            num_micro_batches=5, stages=(Stage(devices=(0, 1), layers=(0, 3)), Stage(devices=(4, 5), layers=(3, 6)))
        ),
        Pipeline(num_micro_batches=3, stages=(Stage(devices=(2,), layers=(0, 6)),)),
    ),
    standby=(3, 6),
    failed=(7,),
)


def _second(**changes: object) -> Plan:
    return replace(GOOD, pipelines=(GOOD.pipelines[0], replace(GOOD.pipelines[1], **changes)))  # type: ignore[arg-type]


def _stage(devices: tuple[int, ...], layers: tuple[int, int] = (0, 6)) -> tuple[Stage, ...]:
    return (Stage(devices=devices, layers=layers),)


def test_a_good_plan_has_no_violations() -> None:
    assert violations(GOOD, cluster=CLUSTER, num_layers=6, global_batch=8, max_tp=4, profile=tiny_profile()) == []
    check(GOOD, cluster=CLUSTER, num_layers=6, global_batch=8)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (replace(GOOD, pipelines=()), "at least 1 pipeline, given 0"),
        (replace(GOOD, micro_batch_size=0), "micro_batch_size must be at least 1, given 0"),
        (_second(num_micro_batches=4), "global batch 8, given 9 x 1 = 9"),
        (_second(num_micro_batches=0), "at least as many micro-batches as stages (1), given 0"),
        (
            replace(GOOD, pipelines=(replace(GOOD.pipelines[0], num_micro_batches=1), GOOD.pipelines[1])),
            "at least as many micro-batches as stages (2), given 1",
        ),
        (replace(GOOD, num_layers=7), "num_layers must be 6, given 7"),
        (_second(stages=()), "pipeline 1 needs at least 1 stage, given 0"),
        (_second(stages=_stage((2,), (0, 5))), "pipeline 1 must end at layer 6, given 5"),
        (_second(stages=_stage((2,), (1, 6))), "must start at layer 0, given 1"),
        (_second(stages=_stage((2,), (0, 0))), "needs at least 1 layer, given [0, 0)"),
        (_second(stages=_stage((2, 3, 6))), "group of [1, 2, 4, 8] devices, given [2, 3, 6]"),
        (_second(stages=_stage(())), "group of [1, 2, 4, 8] devices, given []"),
        (_second(stages=_stage((2, 6))), "must lie on one node, given devices [2, 6] on nodes [0, 1]"),
        (_second(stages=_stage((3,))), "exactly one place, given several for [3]"),
        (replace(GOOD, standby=(3,)), "active, standby or failed, missing [6]"),
        (replace(GOOD, standby=(3, 6, 8)), "must be of the cluster 0..7, given [8]"),
        (replace(GOOD, failed=(7, 7)), "exactly one place, given several for [7]"),
    ],
)
def test_each_broken_rule_is_named(plan: Plan, expected: str) -> None:
    found = violations(plan, cluster=CLUSTER, num_layers=6, global_batch=8)
    assert any(expected in sentence for sentence in found), found


def test_all_broken_rules_are_listed_at_once() -> None:
    plan = replace(_second(num_micro_batches=4, stages=_stage((3,), (0, 5))), failed=())
    with pytest.raises(PlanError) as error:
        check(plan, cluster=CLUSTER, num_layers=6, global_batch=8)
    assert len(error.value.violations) == 4


def test_groups_larger_than_the_allowed_degree_are_refused() -> None:
    found = violations(GOOD, cluster=CLUSTER, num_layers=6, global_batch=8, max_tp=1)
    assert [sentence.split(" must")[0] for sentence in found] == ["pipeline 0 stage 0", "pipeline 0 stage 1"]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (tiny_profile(memory_table=(6.0, 7.0)), "pipeline 1 stage 0 needs 0.0 MB"),  # 6 layers x 6 x 4 = 144 > 100
        (tiny_profile(memory_table=(1.0,)), "pipeline 0 stage 0 may hold at most 1 micro-batches in flight"),
        (tiny_profile(reserve_bytes=90.0), "pipeline 1 stage 0 needs"),  # 6 x 1 x 4 + 90
        (tiny_profile(first_extra_bytes=20.0), "pipeline 1 stage 0 needs"),  # (6 + 20) x 4
        (tiny_profile(last_extra_bytes=20.0), "pipeline 1 stage 0 needs"),
    ],
)
def test_memory_is_checked_against_the_profile(profile: object, expected: str) -> None:
    found = violations(GOOD, cluster=CLUSTER, num_layers=6, global_batch=8, profile=profile)  # type: ignore[arg-type]
    assert any(expected in sentence for sentence in found), found


def test_unknown_micro_batch_size_and_degree_are_named() -> None:
    profile = tiny_profile()
    plan = replace(GOOD, micro_batch_size=2)
    found = violations(plan, cluster=CLUSTER, num_layers=6, global_batch=16, profile=profile)
    assert found == ["micro_batch_size must be one that the profile knows [1], given 2"]
    only_one = tiny_profile(
        compute_s={1: {1: 1.0}}, comm_s={1: {1: 0.0}}, embed_s={1: {1: 0.0}}, head_s={1: {1: 0.0}}, max_tp=1
    )
    found = violations(GOOD, cluster=CLUSTER, num_layers=6, global_batch=8, profile=only_one)
    assert "a TP degree that the profile knows [1], given 2" in found[0]
