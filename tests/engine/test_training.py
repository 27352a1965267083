"""Real ranks train through plan changes and stay on the single-process reference's curve."""

from __future__ import annotations

from typing import Any

import pytest

from db.messages import Desired, Injection, Step, Switch
from db.run_config import RunConfig
from engine.groups import MAX_IDLE
from planner.plan import Pipeline, Plan, Stage, even_plan
from tests.engine.plans import random_plan
from tests.engine.reference import reference_losses
from tests.engine.world import ScriptedUplink, run_world

NUM_STEPS = 20


def small_config(dtype: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "test",
            "model": {
                "num_layers": 6,
                "hidden_size": 32,
                "num_heads": 8,
                "num_kv_heads": 4,
                "ffn_size": 48,
                "seq_len": 16,
            },
            "train": {"num_steps": NUM_STEPS, "global_batch": 8, "micro_batch_sizes": [1, 2], "dtype": dtype},
            "data": {"max_bytes": 200_000},
            "device": {"layer_s": 0.0001},
        }
    )


def stage(devices: list[int], first: int, stop: int) -> Stage:
    return Stage(devices=tuple(devices), layers=(first, stop))


def plans() -> list[Plan]:
    """Four plans that differ in layers, pipelines, TP degrees, micro-batch size and standby devices."""
    even = even_plan(
        ((0, 1, 2, 3), (4, 5, 6, 7)),
        num_layers=6,
        num_micro_batches=8,
        micro_batch_size=1,
        dp_degree=2,
        tp_degree=2,
        pp_degree=2,
    )
    uneven = Plan(
        num_layers=6,
        micro_batch_size=1,
        pipelines=(
            Pipeline(num_micro_batches=3, stages=(stage([2], 0, 1), stage([0, 1], 1, 6))),
            Pipeline(num_micro_batches=5, stages=(stage([4, 5, 6, 7], 0, 6),)),
        ),
        standby=(3,),
    )
    three = Plan(
        num_layers=6,
        micro_batch_size=1,
        pipelines=(
            Pipeline(num_micro_batches=3, stages=(stage([0, 1, 2, 3], 0, 4), stage([4], 4, 6))),
            Pipeline(num_micro_batches=2, stages=(stage([5], 0, 6),)),
            Pipeline(num_micro_batches=3, stages=(stage([7], 0, 2), stage([6], 2, 6))),
        ),
    )
    deep = Plan(
        num_layers=6,
        micro_batch_size=2,
        pipelines=(
            Pipeline(
                num_micro_batches=4,
                stages=(stage([3], 0, 1), stage([1, 2], 1, 3), stage([4, 5], 3, 5), stage([7], 5, 6)),
            ),
        ),
        standby=(0, 6),
    )
    return [even, uneven, three, deep]


def document(version: int, plan: Plan, **fields: Any) -> Desired:
    return Desired(run=1, version=version, plan_version=version, plan=plan.to_json(), **fields)


def train(rank: int, dtype: str) -> Any:
    from engine.trainer import Trainer

    first, *later = [document(number, plan) for number, plan in enumerate(plans(), start=1)]
    script = dict(zip((4, 9, 14), later, strict=True))
    uplink = ScriptedUplink(script) if rank == 0 else None
    trainer = Trainer(small_config(dtype), uplink)
    assert trainer.train(first) == "finished"
    return uplink.sent if uplink else None


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_three_plan_changes_keep_the_reference_loss(dtype: str, tolerance: float) -> None:
    sent = run_world(8, train, dtype)[0]
    steps = [message for message in sent if isinstance(message, Step)]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert [message.loss for message in steps] == pytest.approx(
        reference_losses(small_config(dtype), NUM_STEPS), rel=tolerance
    )
    consumed = [sample for message in steps for sample in range(*message.samples)]
    assert consumed == list(range(NUM_STEPS * 8))
    assert [(message.outcome, message.reason) for message in switches] == [("applied", "")] * 3
    assert [message.plan_version for message in steps] == [1] * 6 + [2] * 5 + [3] * 5 + [4] * 4
    for message in switches:
        assert message.digests_equal
        assert len(message.digests_before) == 6 * 9 + 3
        assert all(set(row) == {"weight", "master", "exp_avg", "exp_avg_sq"} for row in message.digests_after.values())
        assert "diverged" not in {digest for row in message.digests_after.values() for digest in row.values()}
        assert message.bytes_moved > 0


def refuse_and_obey(rank: int) -> Any:
    from engine.trainer import Trainer

    even, uneven, *_ = plans()
    bad = uneven.to_json() | {"standby": []}
    script = {
        0: Desired(run=1, version=2, plan_version=2, plan=bad),
        2: document(3, even, paused=True),
        6: Desired(
            run=1, version=4, plan_version=1, plan=even.to_json(), injections=(Injection(id=1, device=5, rate=500.0),)
        ),
        12: Desired(run=1, version=5, plan_version=1, plan=even.to_json(), stop=True),
    }
    uplink = ScriptedUplink(script) if rank == 0 else None
    trainer = Trainer(small_config("float32"), uplink)
    ending = trainer.train(document(1, even))
    return ending, (uplink.sent, uplink.states) if uplink else None


def test_a_bad_plan_is_refused_and_orders_are_obeyed_at_step_boundaries() -> None:
    results = run_world(8, refuse_and_obey)
    assert {ending for ending, _ in results} == {"stopped"}
    sent, states = results[0][1]
    switch = next(message for message in sent if isinstance(message, Switch))
    assert switch.outcome == "rejected"
    assert "3" in switch.reason
    assert switch.bytes_moved == 0
    steps = [message for message in sent if isinstance(message, Step)]
    assert [message.step for message in steps] == list(range(len(steps)))
    assert "paused" in states
    late = [message for message in steps if message.desired_version == 4 and message.step > 7]
    assert late
    for message in late:
        assert max(range(8), key=lambda device: message.rates[device]) == 5


def random_plans(count: int) -> list[Plan]:
    config = small_config("float64")
    return [
        random_plan(
            seed,
            nodes=config.nodes,
            num_layers=config.model.num_layers,
            num_micro_batches=8 // size,
            max_tp=config.parallel.max_tp,
            size=size,
        )
        for seed, size in ((seed, 1 + seed % 2) for seed in range(count))
    ]


def wander(rank: int) -> Any:
    from engine.trainer import Trainer

    first, *later = [document(number, plan) for number, plan in enumerate(random_plans(NUM_STEPS), start=1)]
    uplink = ScriptedUplink(dict(enumerate(later))) if rank == 0 else None
    trainer = Trainer(small_config("float64"), uplink)
    trainer.train(first)
    return (uplink.sent if uplink else None), len(trainer._groups)


def test_ten_random_switches_keep_the_reference_loss() -> None:
    results = run_world(8, wander)
    sent = results[0][0]
    steps = [message for message in sent if isinstance(message, Step)]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert len(switches) == NUM_STEPS // 2
    assert all(message.outcome == "applied" and message.digests_equal for message in switches)
    assert [message.loss for message in steps] == pytest.approx(
        reference_losses(small_config("float64"), NUM_STEPS), rel=1e-9
    )
    assert max(count for _, count in results) <= 16 + MAX_IDLE
