"""Real ranks train through plan changes and stay on the single-process reference's curve."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from db.messages import Desired, Injection, Step, Switch
from db.run_config import RunConfig
from engine.calibration import teams
from engine.groups import MAX_IDLE, needed_groups
from engine.layout import Layout, layout
from engine.parameters import parameters
from planner.plan import Pipeline, Plan, Stage, even_plan
from tests.engine.plans import random_plan
from tests.engine.reference import reference_losses, reference_steps
from tests.engine.world import ScriptedUplink, run_world

NUM_STEPS = 20


def small_config(dtype: str, **fields: Any) -> RunConfig:
    """Two nodes of four devices; `fields` replace whole keys of a section."""
    sections: dict[str, dict[str, Any]] = {
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
    for name, values in fields.items():
        sections[name] = sections.get(name, {}) | values
    return RunConfig.model_validate({"name": "test", **sections})


def wide_config(dtype: str, *, tied: bool, num_steps: int, num_nodes: int = 1) -> RunConfig:
    """Nodes of eight devices, groups of up to eight; warm-up, decay and clipping."""
    return small_config(
        dtype,
        model={"num_layers": 4, "num_kv_heads": 8, "tie_embeddings": tied},
        train={
            "num_steps": num_steps,
            "micro_batch_sizes": [1, 2, 4],
            "warmup_steps": 3,
            "decay": "cosine",
            "min_learning_rate": 3e-4,
        },
        cluster={"num_nodes": num_nodes, "devices_per_node": 8},
        parallel={"max_tp": 8},
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


def test_three_plan_changes_keep_the_reference_loss() -> None:
    sent = run_world(8, train, "float32")[0]
    steps = [message for message in sent if isinstance(message, Step)]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert [message.loss for message in steps] == pytest.approx(
        reference_losses(small_config("float32"), NUM_STEPS), rel=1e-4
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


def broken_plans() -> list[tuple[Plan, str]]:
    """Plans that break one rule each, and a word of the refusal."""
    even, uneven, *_ = plans()
    first, second = even.pipelines

    def with_stages(*stages: Stage) -> Plan:
        return replace(even, pipelines=(replace(first, stages=stages), second))

    return [
        (replace(even, pipelines=()), "at least 1 pipeline"),
        (replace(even, pipelines=(first, replace(second, num_micro_batches=5))), "must be the global batch 8"),
        (
            replace(even, pipelines=(replace(first, num_micro_batches=1), replace(second, num_micro_batches=7))),
            "as many",
        ),
        (replace(even, num_layers=7), "num_layers must be 6"),
        (with_stages(stage([0, 1], 0, 3), stage([2, 3], 4, 6)), "must start at layer 3"),
        (with_stages(stage([0, 1], 0, 4), stage([2, 3], 3, 6)), "must start at layer 4"),
        (with_stages(stage([0, 1], 0, 3), stage([2, 3], 3, 5)), "must end at layer 6"),
        (with_stages(stage([0, 1], 0, 6), stage([2, 3], 6, 6)), "at least 1 layer"),
        (with_stages(), "at least 1 stage"),
        (with_stages(stage([0], 0, 3), stage([1, 2, 3], 3, 6)), r"group of \[1, 2, 4\] devices"),
        (with_stages(stage([0, 1], 0, 3), stage([2, 4], 3, 6)), "must lie on one node"),
        (with_stages(stage([0, 1], 0, 3), stage([1, 2], 3, 6)), "exactly one place"),
        (with_stages(stage([0, 1], 0, 3), stage([2, 9], 3, 6)), "must be of the cluster"),
        (replace(uneven, standby=()), r"active, standby or failed, missing \[3\]"),
        (replace(uneven, standby=(3, 0)), r"several for \[0\]"),
        (
            replace(
                even,
                micro_batch_size=4,
                pipelines=(
                    Pipeline(num_micro_batches=1, stages=(stage([0, 1, 2, 3], 0, 6),)),
                    Pipeline(num_micro_batches=1, stages=(stage([4, 5, 6, 7], 0, 6),)),
                ),
            ),
            "must be one of \\[1, 2\\]",
        ),
    ]


def refuse_all(rank: int) -> Any:
    """On a backend that needs groups."""
    from engine.trainer import Trainer
    from tests.engine.host_backend import HostBackend

    refusals, config = [], small_config("float32")
    for plan, _ in broken_plans():
        trainer = Trainer(config, None, HostBackend(config))
        try:
            trainer.train(document(1, plan))
        except ValueError as error:
            refusals.append((str(error), len(trainer._groups)))
    orders = [document(number, plan) for number, (plan, _) in enumerate(broken_plans(), start=2)]
    uplink = ScriptedUplink({2 * index: order for index, order in enumerate(orders)}) if rank == 0 else None
    config = small_config("float32", train={"num_steps": 2 * len(orders) + 2})
    trainer = Trainer(config, uplink, HostBackend(config))
    trainer.train(document(1, plans()[0]))
    return refusals, uplink.sent if uplink else None, len(trainer._groups)


def test_broken_plans_are_refused_with_the_rule_they_break_before_any_group_is_built() -> None:
    results = run_world(8, refuse_all)
    rules = [rule for _, rule in broken_plans()]
    for refusals, _, _ in results:
        assert [re.search(rule, text) is not None for rule, (text, _) in zip(rules, refusals, strict=True)] == [
            True
        ] * len(rules), refusals
        assert {num_groups for _, num_groups in refusals} == {0}
    sent = results[0][1]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert [(message.outcome, message.bytes_moved) for message in switches] == [("rejected", 0)] * len(rules)
    for message, rule in zip(switches, rules, strict=True):
        assert re.search(rule, message.reason), f"expected {rule}, given {message.reason}"
    calibrated = {team for degree in (2, 4) for team in teams(small_config("float32"), degree)}
    expected = needed_groups(layout_of(plans()[0])) | calibrated
    assert {num_groups for _, _, num_groups in results} == {len(expected)}
    assert {message.plan_version for message in sent if isinstance(message, Step)} == {1}


def layout_of(plan: Plan) -> Layout:
    return layout(plan, parameters(small_config("float32").model), 4)


def wander_config(dtype: str) -> RunConfig:
    if dtype == "bfloat16":
        return wide_config(dtype, tied=True, num_steps=NUM_STEPS)
    return small_config(dtype)


def random_plans(config: RunConfig, count: int) -> list[Plan]:
    sizes = config.train.micro_batch_sizes[-2:]
    return [
        random_plan(
            seed,
            nodes=config.nodes,
            num_layers=config.model.num_layers,
            num_micro_batches=config.train.global_batch // sizes[seed % 2],
            max_tp=config.parallel.max_tp,
            size=sizes[seed % 2],
        )
        for seed in range(count)
    ]


def wander(rank: int, dtype: str, is_host: bool) -> Any:
    from engine.trainer import Trainer
    from tests.engine.host_backend import HostBackend

    class Checked(Trainer):
        """Looks at what it goes on with after each switch."""

        def _take_up(self, shard: Any) -> None:
            master = shard.states["master"]
            rounded = master.gather(master.spans).to(shard.weights.dtype)
            assert rounded.equal(shard.weights.gather(master.spans)), "weights must be the rounded master weights"
            super()._take_up(shard)

    config = wander_config(dtype)
    first, *later = [document(number, plan) for number, plan in enumerate(random_plans(config, NUM_STEPS), start=1)]
    uplink = ScriptedUplink(dict(enumerate(later))) if rank == 0 else None
    trainer = Checked(config, uplink, HostBackend(config) if is_host else None)
    trainer.train(first)
    return (uplink.sent if uplink else None), len(trainer._groups)


@pytest.mark.parametrize(
    ("dtype", "is_host", "loss", "norm"),
    [
        ("float64", False, 1e-9, 1e-9),
        ("float64", True, 1e-9, 1e-9),
        ("bfloat16", False, 1.5e-3, 0.2),
        ("bfloat16", True, 1.5e-3, 0.2),
    ],
    ids=["float64", "float64 as on GPUs", "bfloat16", "bfloat16 as on GPUs"],
)
def test_ten_random_switches_keep_the_reference_curve(dtype: str, is_host: bool, loss: float, norm: float) -> None:
    results = run_world(8, wander, dtype, is_host)
    sent = results[0][0]
    steps = [message for message in sent if isinstance(message, Step)]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert len(switches) == NUM_STEPS // 2
    assert all(message.outcome == "applied" and message.digests_equal for message in switches)
    assert "diverged" not in {
        digest for message in switches for row in message.digests_after.values() for digest in row.values()
    }
    expected = reference_steps(wander_config(dtype), NUM_STEPS)  # bf16: tolerance as in test_plans, 20 steps
    assert [message.loss for message in steps] == pytest.approx([step.loss for step in expected], rel=loss)
    assert [message.grad_norm for message in steps] == pytest.approx([step.grad_norm for step in expected], rel=norm)
    most = max(count for _, count in results)
    assert 0 < most <= 16 + MAX_IDLE if is_host else most == 0, f"emulated devices need no groups, given {most}"
