"""Flows between two plans: what stays stays, the nearest copy sends, and everything that is missing arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.diff import diff, layer_state_bytes
from planner.errors import PlanError
from planner.flows import flows
from planner.plan import Pipeline, Plan, Stage, even_plan
from planner.presets import model

NODES = ((0, 1, 2, 3), (4, 5, 6, 7))


def plan_of(*stages: tuple[tuple[int, ...], tuple[int, int]], failed: tuple[int, ...] = ()) -> Plan:
    pipeline = Pipeline(
        num_micro_batches=8, stages=tuple(Stage(devices=devices, layers=layers) for devices, layers in stages)
    )
    return Plan(num_layers=stages[-1][1][1], micro_batch_size=1, pipelines=(pipeline,), failed=failed)


def even(dp: int, tp: int, pp: int, num_layers: int = 16) -> Plan:
    return even_plan(
        NODES,
        num_layers=num_layers,
        num_micro_batches=16,
        micro_batch_size=1,
        dp_degree=dp,
        tp_degree=tp,
        pp_degree=pp,
    )


def test_nothing_moves_between_equal_plans() -> None:
    assert flows(even(2, 2, 2), even(2, 2, 2), nodes=NODES) == []


def test_layers_go_from_one_stage_to_its_neighbour() -> None:
    (flow,) = flows(plan_of(((0,), (0, 4)), ((1,), (4, 8))), plan_of(((0,), (0, 6)), ((1,), (6, 8))), nodes=NODES)
    assert (flow.source, flow.target, flow.layers, flow.num_layers) == (1, 0, (4, 5), 2.0)
    assert flow.is_within_node is True
    assert flow.num_bytes is None


def test_a_wider_group_receives_slices() -> None:
    found = flows(plan_of(((0,), (0, 4))), plan_of(((0, 1), (0, 4))), nodes=NODES)
    assert [(flow.source, flow.target, flow.num_layers) for flow in found] == [(0, 1, 2.0)]


def test_the_same_node_sends_before_another_one() -> None:
    old = even(2, 2, 2)  # one replica a node
    new = Plan(
        num_layers=16,
        micro_batch_size=1,
        pipelines=(
            Pipeline(
                num_micro_batches=8,
                stages=(Stage(devices=(0,), layers=(0, 8)), Stage(devices=(2,), layers=(8, 16))),
            ),
            old.pipelines[1],
        ),
        standby=(1, 3),
    )
    assert {(flow.source, flow.target, flow.is_within_node) for flow in flows(old, new, nodes=NODES)} == {
        (1, 0, True),
        (3, 2, True),
    }


def test_a_failed_device_sends_nothing() -> None:
    old = even(2, 2, 2)
    new = Plan(
        num_layers=16,
        micro_batch_size=1,
        pipelines=(
            Pipeline(
                num_micro_batches=8,
                stages=(Stage(devices=(0,), layers=(0, 8)), Stage(devices=(2,), layers=(8, 16))),
            ),
            old.pipelines[1],
        ),
        standby=(3,),
        failed=(1,),
    )
    found = flows(old, new, nodes=NODES)
    assert 1 not in {flow.source for flow in found}
    assert {(flow.source, flow.is_within_node) for flow in found if flow.target == 0} == {(5, False)}, (
        "the replica has it"
    )


def test_without_nodes_nobody_is_near() -> None:
    (flow,) = flows(plan_of(((0,), (0, 4))), plan_of(((1,), (0, 4))))
    assert flow.is_within_node is None


def test_models_of_different_depth_are_refused() -> None:
    with pytest.raises(PlanError, match="given 16 and 8"):
        flows(even(2, 2, 2), even(2, 2, 2, num_layers=8))


@given(
    st.sampled_from([(d, t, p) for d in (1, 2, 4) for t in (1, 2, 4) for p in (1, 2, 4) if d * t * p == 8]), st.data()
)
def test_what_arrives_is_what_the_diff_counts(shape: tuple[int, int, int], data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([(1, 4, 2), (2, 2, 2), (2, 1, 4), (4, 2, 1), (2, 4, 1)]))
    profile, _ = model("demo")
    old, new = even(*shape, num_layers=profile.num_layers), even(*other, num_layers=profile.num_layers)
    found = flows(old, new, nodes=NODES, profile=profile)
    assert all(flow.source != flow.target for flow in found)
    per_layer = layer_state_bytes(profile, 1)
    for change in diff(old, new, profile).devices:
        arrived = sum(flow.num_layers for flow in found if flow.target == change.device)
        assert change.moved_bytes is not None
        assert arrived * per_layer == pytest.approx(change.moved_bytes)
