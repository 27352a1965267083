"""Shards whose every element says what and where it is, and checkpoints made of them without processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from db.messages import utc_now
from db.run_config import RunConfig
from engine.checkpoint.folder import joined_records, new_partial, publish
from engine.checkpoint.pieces import staged
from engine.checkpoint.storage import write_share
from engine.layout import Layout, layout
from engine.parameters import parameters
from engine.shard import STATES, Shard
from planner.plan import Pipeline, Plan, Stage
from tests.engine.plans import random_plan


def small_config(**sections: Any) -> RunConfig:
    """Six layers on eight devices; `sections` are merged in."""
    document: dict[str, Any] = {
        "name": "test",
        "model": {
            "num_layers": 6,
            "hidden_size": 32,
            "num_heads": 8,
            "num_kv_heads": 4,
            "ffn_size": 48,
            "seq_len": 16,
        },
        "train": {"num_steps": 20, "global_batch": 8, "micro_batch_sizes": [1, 2], "max_grad_norm": 0.0},
        "data": {"max_bytes": 200_000},
        "device": {"layer_s": 0.0001},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return RunConfig.model_validate(document)


def a_plan(config: RunConfig, seed: int) -> Plan:
    return random_plan(
        seed,
        nodes=config.nodes,
        num_layers=config.model.num_layers,
        num_micro_batches=config.train.global_batch,
        max_tp=config.parallel.max_tp,
    )


def single_plan(config: RunConfig) -> Plan:
    """Everything on device 0."""
    count = config.model.num_layers
    return Plan(
        num_layers=count,
        micro_batch_size=1,
        pipelines=(
            Pipeline(num_micro_batches=config.train.global_batch, stages=(Stage(devices=(0,), layers=(0, count)),)),
        ),
        standby=tuple(range(1, config.num_devices)),
    )


def laid_out(config: RunConfig, plan: Plan) -> Layout:
    return layout(plan, parameters(config.model), config.parallel.max_tp)


def empty_shard(config: RunConfig, plan: Plan, device: int, state_dtype: torch.dtype = torch.float32) -> Shard:
    dtype = getattr(torch, config.train.dtype)
    return Shard(laid_out(config, plan), device, dtype, torch.float64 if dtype == torch.float64 else state_dtype)


def expected(name: str, parameter: int, start: int, stop: int, seed: int) -> Tensor:
    """Elements `[start, stop)` of tensor `name` of a parameter, float64."""
    numbers = torch.arange(start, stop, dtype=torch.int64) * 2_654_435_761 + parameter * 97 + seed * 7_919
    numbers += STATES.index(name) * 31
    return (numbers % 1_000_003).double() / 1_000_003


def fill(shard: Shard, seed: int, num_updates: int = 3) -> Shard:
    """States by `expected`; weights as training leaves them."""
    for name, store in shard.states.items():
        for span in store.spans:
            store.view(span).copy_(expected(name, span.parameter, span.start, span.stop, seed))
    for span in shard.weights.spans:
        master = expected("master", span.parameter, span.start, span.stop, seed).to(shard.states["master"].dtype)
        shard.weights.view(span).copy_(master.to(shard.weights.dtype))
    shard.num_updates = num_updates
    return shard


def differences(shard: Shard, seed: int) -> list[str]:
    """What of a shard is not, bit for bit, what `fill` puts there."""
    wanted = fill(Shard(shard.layout, shard.device, shard.weights.dtype, shard.states["master"].dtype), seed)
    return [
        f"{name} {span}"
        for name, store in shard.tensors().items()
        for span in store.spans
        if not torch.equal(store.view(span), wanted.tensors()[name].view(span))
    ]


def save(config: RunConfig, plan: Plan, folder: Path, *, step: int, seed: int, keep: int = 2) -> Path:
    """A complete checkpoint of all devices under a plan, written by this process alone."""
    partial = new_partial(folder, step)
    spread = laid_out(config, plan)
    writers = sorted(device for device, spans in spread.states.items() if spans)
    for device in writers:
        write_share(staged(fill(empty_shard(config, plan, device), seed)), partial, device)
    return publish(partial, joined_records(partial, writers, **header(config, plan, step)), keep)


def header(config: RunConfig, plan: Plan, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "num_updates": 3,
        "request": 0,
        "saved_at": utc_now(),
        "torch_version": torch.__version__,
        "plan": plan.to_json(),
        "config": config.model_dump(mode="json"),
    }
