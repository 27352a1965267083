"""What only a machine with GPUs can show: `pytest tests/engine/test_cuda.py` there. Skipped elsewhere.

Each test says how many GPUs it needs. All of the CUDA backend but CUDA's own calls is tested without
one in `test_backend.py`, `test_nccl_links.py`, `test_cuda_clock.py` and `test_gpu_memory.py`.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

from db.messages import Hello, Injection, Profile, Step, Switch
from db.run_config import RunConfig
from planner.plan import Pipeline, Plan, Stage
from tests.engine.reference import reference_losses
from tests.engine.test_training import document
from tests.engine.world import ScriptedUplink, run_world

WORLD = "cpu:gloo,cuda:nccl"


def needs(num_gpus: int) -> pytest.MarkDecorator:
    """Skips where there are fewer; asked without starting a CUDA context in this process."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    each = f" for each of {num_gpus} ranks, given {found}" if num_gpus > 1 else ""
    return pytest.mark.skipif(found < num_gpus, reason=f"needs a CUDA device{each}")


def config_for(num_gpus: int, num_steps: int, **model: int) -> RunConfig:
    degree = min(2, num_gpus)
    return RunConfig.model_validate(
        {
            "name": "cuda",
            "model": {
                "num_layers": 6,
                "hidden_size": 128,
                "num_heads": 8,
                "num_kv_heads": 4,
                "ffn_size": 256,
                "seq_len": 64,
            }
            | model,
            "train": {"num_steps": num_steps, "global_batch": 8, "micro_batch_sizes": [1, 2]},
            "data": {"max_bytes": 200_000},
            "cluster": {"num_nodes": 1, "devices_per_node": num_gpus, "memory_bytes": 8e9},
            "parallel": {"dp": 1, "tp": 1, "pp": 1, "max_tp": degree, "max_dp": num_gpus},
            "device": {"backend": "cuda"},
        }
    )


def pipeline(num_micro_batches: int, *stages: tuple[list[int], int, int]) -> Pipeline:
    return Pipeline(
        num_micro_batches=num_micro_batches,
        stages=tuple(Stage(devices=tuple(devices), layers=(first, stop)) for devices, first, stop in stages),
    )


def plan_of(*pipelines: Pipeline, size: int = 1, standby: tuple[int, ...] = ()) -> Plan:
    return Plan(num_layers=6, micro_batch_size=size, pipelines=pipelines, standby=standby)


ONE = [plan_of(pipeline(8, ([0], 0, 6)))]
TWO = [
    plan_of(pipeline(8, ([0], 0, 2), ([1], 2, 6))),  # two stages: messages both ways
    plan_of(pipeline(4, ([0, 1], 0, 6)), size=2),  # one TP group
    plan_of(pipeline(5, ([0], 0, 6)), pipeline(3, ([1], 0, 6))),  # two pipelines
    plan_of(pipeline(8, ([1], 0, 6)), standby=(0,)),
]
FOUR = [
    plan_of(pipeline(8, ([0, 1], 0, 3), ([2, 3], 3, 6))),
    plan_of(pipeline(3, ([0], 0, 1), ([2, 3], 1, 6)), pipeline(5, ([1], 0, 6))),
    plan_of(pipeline(8, ([3], 0, 1), ([0, 1], 1, 4), ([2], 4, 6))),
]


def train(rank: int, config: RunConfig, script: dict[int, Any], first: Any) -> Any:
    from engine.backend import CudaBackend
    from engine.trainer import Trainer

    backend = CudaBackend(config, rank)
    uplink = ScriptedUplink(script) if rank == 0 else None
    assert Trainer(config, uplink, backend).train(first) == "finished"
    return uplink.sent if uplink else None


def run_plans(num_gpus: int, plans: list[Plan]) -> None:
    """Four steps under each plan; the loss must follow the CPU's, the digests survive each switch."""
    config = config_for(num_gpus, 4 * len(plans))
    first, *later = [document(number, plan) for number, plan in enumerate(plans, start=1)]
    script = {4 * number - 2: each for number, each in enumerate(later, start=1)}
    sent = run_world(num_gpus, train, config, script, first, backend=WORLD)[0]
    steps = [message for message in sent if isinstance(message, Step)]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert [message.loss for message in steps] == pytest.approx(
        reference_losses(config, config.train.num_steps), rel=1e-4
    )
    assert [(message.outcome, message.digests_equal) for message in switches] == [("applied", True)] * len(later)
    assert {message.plan_version for message in steps} == set(range(1, len(plans) + 1))
    hello = next(message for message in sent if isinstance(message, Hello))
    assert all(device.backend.startswith("cuda: ") for device in hello.devices)
    profile = next(message for message in sent if isinstance(message, Profile)).profile
    assert 0 < profile["reserve_bytes"] < config.cluster.memory_bytes
    for row in profile["layer_bytes"].values():
        assert all(after > before for before, after in pairwise(row))


@needs(1)
def test_one_gpu_follows_the_cpus_loss() -> None:
    run_plans(1, ONE)


@needs(2)
def test_two_gpus_follow_the_cpus_loss_through_three_switches() -> None:
    run_plans(2, TWO)


@needs(4)
def test_four_gpus_follow_the_cpus_loss_where_groups_of_different_degree_meet() -> None:
    run_plans(4, FOUR)


@needs(1)
def test_an_injected_rate_of_two_doubles_the_measured_rate() -> None:
    """Layers large enough that the GPU, not the host, sets the pace: else the gaps that busy time hides shrink."""
    config = config_for(1, 24, hidden_size=2048, ffn_size=8192, seq_len=1024)
    slow = (Injection(id=1, device=0, rate=2.0),)
    script = {11: document(2, ONE[0], injections=slow).model_copy(update={"plan_version": 1})}
    sent = run_world(1, train, config, script, document(1, ONE[0]), backend=WORLD)[0]
    steps = [message for message in sent if isinstance(message, Step)]
    healthy = [message.rates[0] for message in steps if message.desired_version == 1][2:]
    injected = [message.rates[0] for message in steps if message.desired_version == 2][2:]
    assert len(healthy) > 4
    assert len(injected) > 4
    assert statistics.median(injected) / statistics.median(healthy) == pytest.approx(2.0, rel=0.15)
    assert statistics.median(healthy) == pytest.approx(1.0, rel=0.25)  # calibration measures what training does


def step_without_waiting(rank: int, config: RunConfig) -> float:
    """All micro-batches of a step under torch's own watch; the first step loads kernels and is left out."""
    from engine.backend import CudaBackend
    from engine.equipment import equip
    from engine.layout import layout
    from engine.model import Decoder
    from engine.optimizer import Optimizer
    from engine.parameters import parameters
    from engine.pipeline import StageRunner
    from engine.shard import Shard
    from engine.socket_links import connect
    from tests.engine.test_backend import SomeBatches

    backend = CudaBackend(config, rank)
    equipment = equip(backend, connect())
    spread = layout(ONE[0], parameters(config.model), config.parallel.max_tp)
    shard = Shard(spread, 0, torch.float32, torch.float32, backend.torch_device)
    shard.initialise(0)
    clock = equipment.clock
    runner = StageRunner(
        plan=ONE[0],
        place=spread.places[0],
        decoder=Decoder(config.model, torch.float32, backend.torch_device),
        weights=shard.bind(),
        tp=equipment.tensor_parallel((0,), 0),
        data=SomeBatches(config),  # type: ignore[arg-type]
    )
    optimizer = Optimizer(shard, equipment.host_links, equipment.groups, config.train)
    loss: Any = 0.0
    for number in range(3):
        clock.rate = 1.0 + number
        torch.cuda.set_sync_debug_mode("error" if number else "default")
        try:
            loss = runner.run_step(0, 8 * config.model.seq_len)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.step(1e-3)  # reads the norm
        backend.synchronize()
        assert sum(clock.take().values()) > 0
    return float(loss)


@needs(1)
def test_no_micro_batch_makes_the_host_wait() -> None:
    assert 3 < run_world(1, step_without_waiting, config_for(1, 1), backend=WORLD)[0] < 7


def busy_for(rank: int, seconds: float) -> float:
    from engine.backend import CudaBackend
    from engine.busy import BusyKernel

    backend = CudaBackend(config_for(1, 1), rank)
    busy = BusyKernel(backend.spin, backend.make_event)
    start, end = backend.make_event(), backend.make_event()
    start.record()
    busy.run(seconds)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


@needs(1)
def test_a_busy_kernel_is_busy_as_long_as_it_was_asked() -> None:
    assert run_world(1, busy_for, 0.05, backend=WORLD)[0] == pytest.approx(0.05, rel=0.15)


def both_worlds(rank: int) -> tuple[float, float]:
    """A CPU tensor travels over gloo and a GPU's over NCCL, in one process group."""
    from engine.backend import CudaBackend
    from engine.links import TorchLinks

    backend = CudaBackend(config_for(2, 1), rank)
    backend.links(TorchLinks())
    on_host, on_gpu = torch.tensor([rank + 1.0]), torch.tensor([rank + 1.0], device=backend.torch_device)
    dist.all_reduce(on_host)
    dist.all_reduce(on_gpu)
    return float(on_host), float(on_gpu)


@needs(2)
def test_one_process_group_carries_both_kinds_of_tensor() -> None:
    assert run_world(2, both_worlds, backend=WORLD) == [(3.0, 3.0)] * 2


def other_memory(rank: int, memory_bytes: float) -> str:
    from engine.backend import CudaBackend
    from engine.errors import ConfigError
    from engine.trainer import Trainer

    config = config_for(1, 1)
    config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"memory_bytes": memory_bytes})})
    try:
        backend = CudaBackend(config, rank)
        Trainer(config, ScriptedUplink({}), backend).train(document(1, ONE[0]))
    except ConfigError as error:
        return str(error)
    return ""


@needs(1)
@pytest.mark.parametrize(
    ("memory_bytes", "expected"), [(1e15, "must be at most what a device has"), (1e6, "must be more than the")]
)
def test_memory_that_cannot_be_is_refused(memory_bytes: float, expected: str) -> None:
    assert expected in run_world(1, other_memory, memory_bytes, backend=WORLD)[0]
