"""Clipping, the norm, and what happens when a gradient is not finite: on ranks of a small world."""

from __future__ import annotations

import math
from typing import Any

import pytest

from db.messages import Step
from db.run_config import ModelConfig, RunConfig, TrainConfig
from engine.parameters import parameters
from planner.plan import Pipeline, Plan, Stage
from tests.engine.test_training import document
from tests.engine.world import ScriptedUplink, run_world

MODEL = ModelConfig(num_layers=2, hidden_size=16, num_heads=4, num_kv_heads=4, ffn_size=16, seq_len=8)
TRAIN = TrainConfig(learning_rate=0.5, max_grad_norm=2.0, weight_decay=0.0)


def plan() -> Plan:
    """Two pipelines, one with two stages of two devices; device 5 stands by."""
    stages = (Stage(devices=(1, 0), layers=(0, 1)), Stage(devices=(2, 3), layers=(1, 2)))
    return Plan(
        num_layers=2,
        micro_batch_size=1,
        pipelines=(
            Pipeline(num_micro_batches=2, stages=stages),
            Pipeline(num_micro_batches=2, stages=(Stage(devices=(4,), layers=(0, 2)),)),
        ),
        standby=(5,),
    )


def update(rank: int, tied: bool) -> dict[str, Any]:
    """One update that is skipped, one with every gradient element 0.5 on every holder."""
    import torch

    from engine.groups import Groups
    from engine.layout import layout
    from engine.optimizer import Optimizer
    from engine.shard import Shard
    from engine.socket_links import connect

    spread = layout(plan(), parameters(MODEL.model_copy(update={"tie_embeddings": tied})), 2)
    shard = Shard(spread, rank, torch.float32, torch.float32)
    shard.initialise(1)
    optimizer = Optimizer(shard, connect(), Groups(is_used=False), TRAIN)
    before = [tensor.clone() for tensor in (*shard.weights.tensors, *shard.states["exp_avg"].tensors)]
    for tensor in shard.grads.tensors:
        tensor.fill_(0.5)
    if rank == 3:
        shard.grads.tensors[-1][-1] = math.nan
    skipped = optimizer.step(0.5)
    after = (*shard.weights.tensors, *shard.states["exp_avg"].tensors)
    result: dict[str, Any] = {
        "skipped": skipped,
        "unchanged": all(one.equal(other) for one, other in zip(before, after, strict=True)),
        "num_updates": [shard.num_updates],
        "left": [float(tensor.abs().max()) for tensor in shard.grads.tensors],
    }
    for tensor in shard.grads.tensors:
        tensor.fill_(0.5)
    result["norm"] = optimizer.step(0.5)
    result["num_updates"].append(shard.num_updates)
    result["left"] += [float(tensor.abs().max()) for tensor in shard.grads.tensors]
    names = [spread.parameters[span.parameter].name for span in shard.states["exp_avg"].spans]
    means = shard.states["exp_avg"].tensors
    result["means"] = [(name, set(mean.tolist())) for name, mean in zip(names, means, strict=True)]
    return result


@pytest.mark.parametrize("tied", [False, True])
def test_the_norm_counts_every_element_once_and_scales_all(tied: bool) -> None:
    results = run_world(6, update, tied)
    holders = {"embedding": 3} if tied else {}  # two ends of one pipeline, once in the other
    model = MODEL.model_copy(update={"tie_embeddings": tied})
    squares = {p.name: p.num_elements * (0.5 * holders.get(p.name, 2)) ** 2 for p in parameters(model)}
    norm = math.sqrt(sum(squares.values()))
    assert norm > 2
    assert {name for result in results for name, _ in result["means"]} == set(squares)
    for result in results:
        assert result["norm"] == pytest.approx(norm, rel=1e-12)
        for name, means in result["means"]:
            expected = 0.1 * 0.5 * holders.get(name, 2) * 2.0 / norm
            assert list(means) == pytest.approx([expected] * len(means), rel=1e-5), name


def test_a_gradient_that_is_not_finite_is_dropped_by_all_ranks_together() -> None:
    for result in run_world(6, update, True):
        assert math.isnan(result["skipped"])
        assert result["unchanged"]
        assert result["num_updates"] == [0, 1]
        assert set(result["left"]) <= {0.0}


def train_with_one_bad_step(rank: int) -> Any:
    from engine.trainer import Trainer

    config = RunConfig.model_validate(
        {
            "name": "t",
            "model": MODEL.model_dump(),
            "train": {"num_steps": 5, "global_batch": 4},
            "data": {"max_bytes": 200_000},
            "cluster": {"num_nodes": 1, "devices_per_node": 6},
            "device": {"layer_s": 0.0001},
        }
    )

    class Overflowing(Trainer):
        """Device 2's gradients overflow in step 2."""

        def _overflow(self) -> None:
            if self.step == 2 and self.device == 2:
                self.shard.grads.tensors[0].fill_(math.inf)

        def _step(self) -> Any:
            self._overflow()
            return super()._step()

    uplink = ScriptedUplink({}) if rank == 0 else None
    trainer = Overflowing(config, uplink)
    assert trainer.train(document(1, plan())) == "finished"
    steps = [message for message in uplink.sent if isinstance(message, Step)] if uplink else []
    return trainer.num_skipped_updates, trainer.shard.num_updates, steps


def test_a_skipped_update_is_counted_and_shown_and_training_goes_on() -> None:
    results = run_world(6, train_with_one_bad_step)
    assert {counts[:2] for counts in results} == {(1, 4)}
    steps = results[0][2]
    assert [math.isfinite(step.grad_norm) for step in steps] == [True, True, False, True, True]
    assert all(math.isfinite(step.loss) for step in steps)
    assert [step.samples for step in steps] == [(4 * index, 4 * index + 4) for index in range(5)]
