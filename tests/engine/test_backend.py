"""Choosing a backend, what it refuses, and the CUDA backend's paths on the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from db.messages import Hello, Injection, Profile, Step, Switch
from db.run_config import RunConfig
from engine.backend import Backend, Hardware, check_hardware, check_total, described, found_hardware, select
from engine.clock import EmulatedClock, Work
from engine.data.batch import Batch
from engine.equipment import equip
from engine.errors import ConfigError
from engine.layout import layout
from engine.links import TorchLinks
from engine.model import Decoder
from engine.optimizer import Optimizer
from engine.parameters import parameters
from engine.pipeline import StageRunner
from engine.placement import placed
from engine.shard import Shard
from planner.plan import Plan, even_plan
from tests.engine.host_backend import HostBackend
from tests.engine.reference import reference_losses
from tests.engine.test_training import document, plans, small_config
from tests.engine.world import ScriptedUplink, run_world

NUM_STEPS = 20
GOOD = Hardware(is_built=True, num_gpus=4, has_nccl=True)


def cuda_config() -> RunConfig:
    return RunConfig.model_validate({"device": {"backend": "cuda"}})


@pytest.mark.parametrize(
    ("hardware", "index", "num_ranks", "expected"),
    [
        (Hardware(is_built=False, num_gpus=0, has_nccl=False), 0, 1, "needs a torch built with CUDA"),
        (Hardware(is_built=True, num_gpus=0, has_nccl=True), 0, 1, "needs a GPU, torch finds none"),
        (Hardware(is_built=True, num_gpus=1, has_nccl=False), 0, 1, "needs a torch with NCCL"),
        (GOOD, 0, 8, "each of the 8 ranks of this node, given 4"),  # every rank says so, not the fifth alone
        (GOOD, 4, 1, "each of the 5 ranks of this node, given 4"),  # started without torchrun's count
    ],
)
def test_missing_hardware_is_named_in_one_line(hardware: Hardware, index: int, num_ranks: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        check_hardware(hardware, index, num_ranks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("index", range(4))
def test_a_gpu_for_each_rank_is_enough(index: int) -> None:
    check_hardware(GOOD, index, 4)


def test_the_environment_says_which_gpu_of_how_many() -> None:
    environment = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "6"}
    with pytest.raises(ConfigError, match="the 6 ranks"):
        select(cuda_config(), environment, lambda: GOOD)


def test_emulated_devices_ask_for_no_hardware() -> None:
    def never() -> Hardware:
        raise AssertionError("looked for GPUs")

    backend = select(RunConfig(), {}, never)
    assert type(backend) is Backend
    assert isinstance(backend.clock(), EmulatedClock)
    links = TorchLinks()
    assert backend.links(links) is links
    assert backend.allocator() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs")
def test_a_rank_without_a_gpu_ends_with_one_line_and_status_2(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[device]\nbackend = "cuda"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "engine", "--run-id", "1", "--config", str(path)],
        env=os.environ | {"RANK": "1", "LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in ended.stderr.splitlines() if "ERROR" in line]
    assert ended.returncode == 2, ended.stderr
    assert len(lines) == 1
    assert 'device.backend = "cuda" needs a' in lines[0]
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has GPUs")
def test_what_is_found_here_is_no_gpu() -> None:
    assert found_hardware().num_gpus == 0


def test_more_memory_than_a_device_has_is_refused() -> None:
    check_total(80e9, 80e9, "GPU")
    with pytest.raises(ConfigError, match=r"at most what a device has, 8e\+10 \(GPU\), given 8\.1e\+10"):
        check_total(81e9, 80e9, "GPU")


def test_a_gpu_is_described_even_where_torch_tells_less() -> None:
    class Properties:
        name, total_memory, major, minor = "NVIDIA H200", 150e9, 9, 0

    assert described(Properties()) == "NVIDIA H200, 150 GB, capability 9.0, uuid unknown, PCI bus unknown"


def test_the_host_needs_no_copy() -> None:
    x = torch.zeros(3)
    assert placed(x, torch.device("cpu")) is x


def train(rank: int) -> Any:
    from engine.trainer import Trainer

    config = small_config("float64")
    even, uneven, three, deep = plans()
    script = {
        4: document(2, uneven),
        9: document(3, three, injections=(Injection(id=1, device=5, rate=40.0),)),
        12: document(4, deep),
    }
    uplink = ScriptedUplink(script) if rank == 0 else None
    trainer = Trainer(config, uplink, HostBackend(config))
    assert trainer.train(document(1, even)) == "finished"
    return uplink.sent if uplink else None


def test_the_cuda_backends_paths_keep_the_reference_loss_through_three_switches() -> None:
    sent = run_world(8, train)[0]
    steps = [message for message in sent if isinstance(message, Step)]
    switches = [message for message in sent if isinstance(message, Switch)]
    assert [message.loss for message in steps] == pytest.approx(
        reference_losses(small_config("float64"), NUM_STEPS), rel=1e-9
    )
    assert [(message.outcome, message.digests_equal) for message in switches] == [("applied", True)] * 3
    hello = next(message for message in sent if isinstance(message, Hello))
    assert {device.backend for device in hello.devices} == {"cuda: host"}
    profile = next(message for message in sent if isinstance(message, Profile)).profile
    assert all(seconds > 0 for row in profile["compute_s"].values() for seconds in row.values())
    injected = [message for message in steps if message.plan_version == 3][1:]
    assert injected
    for message in injected:
        assert max(range(8), key=lambda device: message.rates[device]) == 5


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class SomeBatches:
    """Tokens that were made beforehand."""

    def __init__(self, config: RunConfig) -> None:
        shape = (config.train.global_batch, config.model.seq_len)
        self._tokens = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))

    def batch(self, first: int, num_sequences: int) -> Batch:
        return Batch(inputs=self._tokens[:num_sequences], targets=self._tokens[:num_sequences])


FACTORIES = ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")


@pytest.mark.usefixtures("world_of_one")
def test_every_tensor_of_a_step_is_made_on_the_device_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing makes a tensor without saying where.

    A device that holds no numbers is the default, so a tensor made without a device meets others and
    fails; in a backward torch ignores such a default, so there the functions themselves are watched.
    """
    config = small_config("float32")
    plan: Plan = even_plan(
        ((0,),), num_layers=6, num_micro_batches=8, micro_batch_size=1, dp_degree=1, tp_degree=1, pp_degree=1
    )
    spread = layout(plan, parameters(config.model), 4)
    shard = Shard(spread, 0, torch.float32, torch.float32, torch.device("cpu"))
    shard.initialise(0)
    backend = HostBackend(config)
    equipment = equip(backend, TorchLinks())
    clock = equipment.clock
    runner = StageRunner(
        plan=plan,
        place=spread.places[0],
        decoder=Decoder(config.model, torch.float32, backend.torch_device),
        weights=shard.bind(),
        tp=equipment.tensor_parallel((0,), 0),
        data=SomeBatches(config),  # type: ignore[arg-type]
    )
    optimizer = Optimizer(shard, equipment.host_links, equipment.groups, config.train)
    with torch.device("meta"):
        torch.empty(0)  # torch now remembers its own factories, and not those that stand in for them below
    for name in FACTORIES:
        monkeypatch.setattr(torch, name, _placing(name, getattr(torch, name)))
    with torch.device("meta"):
        loss = runner.run_step(0, 8 * config.model.seq_len)
        optimizer.step(1e-3)
    assert isinstance(loss, torch.Tensor), "the loss stays on its device"
    assert 4 < float(loss) < 7
    assert clock.take()[Work.BACKWARD] > 0


def _placing(name: str, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def placed_only(*arguments: Any, **named: Any) -> torch.Tensor:
        assert "device" in named, f"torch.{name} without a device"
        return make(*arguments, **named)

    return placed_only
