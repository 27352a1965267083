"""The bytes that the planner is told, against the bytes of the tensors that ranks really make."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from db.run_config import ModelConfig
from engine.layout import layout
from engine.memory import ElementBytes, parameter_bytes
from engine.parameters import Place, parameters
from engine.precision import wide
from engine.shard import Shard
from planner.plan import Pipeline, Plan, Stage
from tests.engine.plans import random_plan

MODEL = ModelConfig(num_layers=4, hidden_size=16, num_heads=4, num_kv_heads=4, ffn_size=24, seq_len=8)
NODE = tuple(range(8))


def made(plan: Plan, device: int, model: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the tensors of a device."""
    shard = Shard(layout(plan, parameters(model), 8), device, dtype, wide(dtype))
    stores = (shard.grads, *shard.tensors().values())
    return sum(tensor.numel() * tensor.element_size() for store in stores for tensor in store.tensors)


def told(stage: Stage, model: ModelConfig, dtype: torch.dtype) -> float:
    """Bytes of a device of the stage, as the planner reckons."""
    element = ElementBytes(weight=dtype.itemsize, state=wide(dtype).itemsize)

    def held(*places: Place) -> float:
        return parameter_bytes(parameters(model), places, 8, element)

    total = held("layer") / model.num_layers * stage.num_layers
    if stage.layers[0] == 0:
        total += held("first", "ends")
    if stage.layers[1] == model.num_layers:
        total += held("last", "ends")
    return total * 8 / stage.tp_degree


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("dtype", "element"), [(torch.float64, 40), (torch.float32, 20), (torch.bfloat16, 18)])
def test_bytes_of_an_element_are_those_of_weight_gradient_and_three_states(
    tied: bool, dtype: torch.dtype, element: int
) -> None:
    model = MODEL.model_copy(update={"tie_embeddings": tied})
    plan = Plan(
        num_layers=4,
        micro_batch_size=1,
        pipelines=(Pipeline(num_micro_batches=1, stages=(Stage(devices=NODE, layers=(0, 4)),)),),
    )
    total = sum(made(plan, device, model, dtype) for device in NODE)
    norms = sum(p.num_elements for p in parameters(model) if not p.is_sliced)
    replicas = 7 * norms * (dtype.itemsize + wide(dtype).itemsize)
    assert total == sum(p.num_elements for p in parameters(model)) * element + replicas
    again = 256 * 16 * (dtype.itemsize + wide(dtype).itemsize) if tied else 0
    assert told(plan.pipelines[0].stages[0], model, dtype) * 8 == pytest.approx(total + again)


@pytest.mark.parametrize("tied", [False, True])
def test_both_ends_of_one_pipeline_are_told_exactly(tied: bool) -> None:
    model = MODEL.model_copy(update={"tie_embeddings": tied})
    stages = tuple(Stage(devices=NODE[4 * i : 4 * i + 4], layers=(2 * i, 2 * i + 2)) for i in range(2))
    plan = Plan(num_layers=4, micro_batch_size=1, pipelines=(Pipeline(num_micro_batches=2, stages=stages),))
    norms = 5 * 16 * (2 + 4)
    for stage in stages:
        for device in stage.devices:
            actual = made(plan, device, model, torch.bfloat16)
            assert actual <= told(stage, model, torch.bfloat16) <= actual + norms


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=40, deadline=None)
def test_no_plan_needs_more_than_the_planner_is_told(seed: int, tied: bool, dtype: torch.dtype) -> None:
    model = MODEL.model_copy(update={"tie_embeddings": tied})
    plan = random_plan(seed, nodes=(NODE,), num_layers=4, num_micro_batches=8, max_tp=8)
    for _, _, stage in plan.places():
        for device in stage.devices:
            assert made(plan, device, model, dtype) <= told(stage, model, dtype) + 1e-6
