"""What changes between two plans, in data, sentences and bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.diff import Place, diff, layer_state_bytes, received_layers
from planner.errors import PlanError
from planner.plan import Pipeline, Plan, Stage
from tests.planner.cases import tiny_profile

OLD = Plan(
    num_layers=6,
    micro_batch_size=1,
    pipelines=(
        Pipeline(
            num_micro_batches=4, stages=(Stage(devices=(0, 1), layers=(0, 3)), Stage(devices=(2, 3), layers=(3, 6)))
        ),
    ),
    standby=(4,),
)


def _active(layers: tuple[int, int], rank: int = 0, degree: int = 1) -> Place:
    return Place(role="active", layers=layers, tp_rank=rank, tp_degree=degree)


def test_equal_plans_differ_in_nothing() -> None:
    found = diff(OLD, OLD, tiny_profile())
    assert found.is_empty
    assert found.sentences() == []
    assert found.moved_bytes == 0


def test_layers_gained_and_lost_and_roles() -> None:
    new = Plan(
        num_layers=6,
        micro_batch_size=1,
        pipelines=(
            Pipeline(
                num_micro_batches=4,
                stages=(
                    Stage(devices=(0, 1), layers=(0, 4)),
                    Stage(devices=(2,), layers=(4, 5)),
                    Stage(devices=(4,), layers=(5, 6)),
                ),
            ),
        ),
        failed=(3,),
    )
    found = diff(OLD, new)
    changes = {change.device: change for change in found.devices}
    assert sorted(changes) == [0, 1, 2, 3, 4]
    assert changes[0].gained == ((3, 4),)
    assert changes[0].lost == ()
    assert changes[2].gained == ()
    assert changes[2].lost == ((3, 4), (5, 6))
    assert changes[3].new.role == "failed"
    assert changes[3].lost == ((3, 6),)
    assert changes[4].old.role == "standby"
    assert changes[4].gained == ((5, 6),)
    assert found.moved_bytes is None
    assert str(changes[2]) == ("device 2: pipeline 0 stage 1, layers 3-5, TP 2 -> pipeline 0 stage 1, layers 4-4, TP 1")
    assert json.loads(json.dumps(found.to_json()))["devices"][0]["gained"] == [[3, 4]]


def test_only_micro_batches_change() -> None:
    new = replace(OLD, pipelines=(replace(OLD.pipelines[0], num_micro_batches=5),))
    found = diff(OLD, new)
    assert not found.is_empty
    assert found.sentences() == ["pipeline 0: 4 -> 5 micro-batches"]


def test_another_number_of_pipelines_and_size() -> None:
    new = replace(OLD, micro_batch_size=2, pipelines=(*OLD.pipelines, *OLD.pipelines))
    assert diff(OLD, new).sentences()[:2] == [
        "micro-batch size 1 -> 2",
        "pipelines 1 -> 2, micro-batches [4] -> [4, 4]",
    ]


@pytest.mark.parametrize(
    ("old", "new", "layers", "why"),
    [
        (_active((0, 4)), _active((0, 4)), 0.0, "nothing changes"),
        (_active((0, 4)), _active((2, 6)), 2.0, "two of four are new"),
        (_active((0, 4)), Place(role="standby"), 0.0, "standing by needs nothing"),
        (Place(role="standby"), _active((0, 4), 0, 2), 2.0, "half of each of four layers"),
        (_active((0, 4), 0, 2), _active((0, 4), 0, 4), 0.0, "a quarter within the half it has"),
        (_active((0, 4), 0, 2), _active((0, 4), 3, 4), 1.0, "a quarter outside the half it has"),
        (_active((0, 4), 1, 2), _active((0, 4)), 2.0, "the other half of each"),
        (_active((0, 4), 0, 2), _active((0, 4), 1, 2), 2.0, "the other slice is no overlap"),
    ],
)
def test_what_a_device_must_receive(old: Place, new: Place, layers: float, why: str) -> None:
    assert received_layers(old, new) == pytest.approx(layers), why


def test_bytes_leave_activations_out() -> None:
    profile = tiny_profile(memory_table=(10.0, 12.0, 14.0))
    assert layer_state_bytes(profile, 1) == pytest.approx((10 - 2) * 4)
    new = replace(
        OLD,
        pipelines=(
            replace(
                OLD.pipelines[0],
                stages=(Stage(devices=(0, 1), layers=(0, 4)), Stage(devices=(2, 3), layers=(4, 6))),
            ),
        ),
    )
    assert diff(OLD, new, profile).moved_bytes == pytest.approx(2 * 0.5 * 32)


def test_plans_of_different_models_are_refused() -> None:
    with pytest.raises(PlanError, match="given 6 and 7"):
        diff(OLD, replace(OLD, num_layers=7))
