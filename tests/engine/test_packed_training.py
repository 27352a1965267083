"""Packed documents on real ranks: the loss is that of a reference that computes each document alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from db.messages import Desired, Step, Switch
from db.run_config import RunConfig
from engine.data import Corpus
from engine.data.source import read_tokens
from planner.plan import Pipeline, Plan, Stage
from tests.engine.reference import reference_losses
from tests.engine.world import ScriptedUplink, run_world

NUM_STEPS = 3
LINE = "a straggler in the middle of a long night, and nobody awake to see it"


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    rng = random.Random(7)
    for number in range(60):
        (tmp_path / f"{number:02}.txt").write_text(LINE[rng.randrange(20) :][: rng.randint(2, 30)])
    return RunConfig.model_validate(
        {
            "name": "packed",
            "model": {
                "num_layers": 3,
                "hidden_size": 32,
                "num_heads": 8,
                "num_kv_heads": 4,
                "ffn_size": 48,
                "seq_len": 24,
            },
            "train": {"num_steps": NUM_STEPS, "global_batch": 6, "micro_batch_sizes": [1, 2], "dtype": "float64"},
            "data": {"source": str(tmp_path), "packed": True},
            "cluster": {"num_nodes": 1, "devices_per_node": 4},
            "device": {"layer_s": 0.0001},
        }
    )


def stage(devices: list[int], first: int, stop: int) -> Stage:
    return Stage(devices=tuple(devices), layers=(first, stop))


PLANS = (
    Plan(
        num_layers=3,
        micro_batch_size=2,
        pipelines=(Pipeline(num_micro_batches=3, stages=(stage([0, 1], 0, 2), stage([2, 3], 2, 3))),),
    ),
    Plan(
        num_layers=3,
        micro_batch_size=1,
        pipelines=(
            Pipeline(num_micro_batches=4, stages=(stage([3], 0, 1), stage([1, 2], 1, 3))),
            Pipeline(num_micro_batches=2, stages=(stage([0], 0, 3),)),
        ),
    ),
)


def train(rank: int, config: RunConfig) -> Any:
    from engine.trainer import Trainer

    first, second = (
        Desired(run=1, version=number, plan_version=number, plan=plan.to_json())
        for number, plan in enumerate(PLANS, start=1)
    )
    uplink = ScriptedUplink({0: second}) if rank == 0 else None
    assert Trainer(config, uplink).train(first) == "finished"
    return uplink.sent if uplink else None


def test_documents_are_trained_each_on_its_own(config: RunConfig) -> None:
    data = Corpus(read_tokens(config.data, config.model.vocab_size), config)
    for step in range(NUM_STEPS):
        counts = {data.num_targets(step * 6 + index, 1) for index in range(6)}
        assert len(counts) > 1, "micro-batches must differ in what they weigh"
    sent = run_world(4, train, config)[0]
    assert [message.outcome for message in sent if isinstance(message, Switch)] == ["applied"]
    losses = [message.loss for message in sent if isinstance(message, Step)]
    assert losses == pytest.approx(reference_losses(config, NUM_STEPS), rel=1e-9)
