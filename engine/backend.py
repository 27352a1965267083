"""What computes and what carries: emulated devices over gloo, or GPUs over NCCL.

Everything that differs between the two is behind one object: where tensors live, the process group,
the clock, how stages and groups exchange tensors, how calibration measures. All other code asks it,
or is told a `torch.device`.

What ranks agree on (`engine.agreement`, the gradient norm, the digests' table) are CPU tensors under both: they
travel over the host's links and gloo. The process group `cpu:gloo,cuda:nccl` dispatches by the tensor's device.

Of the engine's files only this one, `engine.allocator` and `engine.placement` call CUDA; clock and busy kernels are
handed what they need, and so are tests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist

from db.run_config import RunConfig
from engine.allocator import Allocator, CudaAllocator
from engine.busy import BusyKernel
from engine.clock import Clock, EmulatedClock, Emulation, Work
from engine.cuda_clock import CudaClock, Event, medians
from engine.errors import ConfigError
from engine.links import Links
from engine.nccl_links import NcclLinks
from engine.placement import CPU

log = logging.getLogger("malleus.engine")

Repeated = Callable[[Clock, Callable[[], None]], tuple[dict[Work, float], float]]


class Backend:
    """Emulated devices: tensors on the CPU, messages over the host's links.

    Attributes:
        label: how a rank names its device in `DeviceInfo.backend`.
        gpu_name: as its driver names it; empty for emulated devices.
        torch_device: where parameters and activations live.
        uses_groups: collectives on devices need process groups; else they are messages over links.
        repeated: how calibration measures an action; None: means, as emulated time needs.
    """

    label = "emulated"
    gpu_name = ""
    torch_device = CPU
    process_groups = "gloo"
    uses_groups = False
    repeated: Repeated | None = None

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def join(self) -> None:
        """Joins the world that the environment describes. Collective: all ranks."""
        dist.init_process_group(self.process_groups)

    def clock(self) -> Clock:
        """A clock for this rank's device."""
        device = self._config.device
        return EmulatedClock(Emulation(layer_s=device.layer_s, head_s=device.layer_s * device.head_layers))

    def links(self, host_links: Links) -> Links:
        """Links for tensors on the devices of a world that has been joined. Collective: all ranks.

        Args:
            host_links: those for tensors in host memory.
        """
        return host_links

    def synchronize(self) -> None:
        """Waits on the host until the device has done what was asked of it."""

    def allocator(self) -> Allocator | None:
        """Tells how much memory is in use; None where memory is not measured."""
        return None


class CudaBackend(Backend):
    """GPUs, one a rank, over NCCL.

    The world's NCCL communicator carries boundary tensors and migrations, each TP group and each bucket's
    owners have their own. A rank has at most one message group and one collective in flight beside its
    compute, so all of them find room on the device; see `engine.nccl_links` for their order.

    Args:
        index: which GPU of this node, the rank's number on the node.
    """

    process_groups = "cpu:gloo,cuda:nccl"
    uses_groups = True

    def __init__(self, config: RunConfig, index: int) -> None:
        super().__init__(config)
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.gpu_name = properties.name
        self.label = f"cuda: {properties.name}"
        check_total(config.cluster.memory_bytes, properties.total_memory, properties.name)
        log.info("device %d: %s", index, described(properties))
        self.repeated = self._medians

    def clock(self) -> CudaClock:
        return CudaClock(self.make_event, BusyKernel(self.spin, self.make_event))

    def links(self, host_links: Links) -> Links:
        """NCCL's; makes the world's communicator, which a message group between two ranks cannot."""
        dist.all_reduce(torch.zeros(1, device=self.torch_device))
        self.synchronize()
        return NcclLinks()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def make_event(self) -> Event:
        """An event that can measure time; its calls act on the current stream."""
        return cast(Event, torch.cuda.Event(enable_timing=True))

    def spin(self, cycles: int) -> None:
        """Appends a kernel that keeps one multiprocessor busy for that many of its clock cycles."""
        torch.cuda._sleep(cycles)

    def allocator(self) -> Allocator:
        return CudaAllocator(self.torch_device)

    def _medians(self, clock: Clock, action: Callable[[], None]) -> tuple[dict[Work, float], float]:
        assert isinstance(clock, CudaClock)
        return medians(clock, action, self.synchronize)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What torch finds on this node.

    Args:
        is_built: this torch was built with CUDA.
    """

    is_built: bool
    num_gpus: int
    has_nccl: bool


def select(
    config: RunConfig, environment: Mapping[str, str] = os.environ, hardware: Callable[[], Hardware] | None = None
) -> Backend:
    """The backend of a configuration, on this rank's device.

    Args:
        environment: `LOCAL_RANK` and `LOCAL_WORLD_SIZE` as torchrun sets them.
        hardware: what there is on this node.

    Raises:
        ConfigError: the configuration asks for GPUs that are not there.
    """
    if config.device.backend == "emulated":
        return Backend(config)
    index, num_ranks = int(environment.get("LOCAL_RANK", "0")), int(environment.get("LOCAL_WORLD_SIZE", "1"))
    check_hardware((hardware or found_hardware)(), index, num_ranks)
    return CudaBackend(config, index)


def found_hardware() -> Hardware:
    """What torch finds; starts no CUDA context."""
    return Hardware(
        is_built=torch.backends.cuda.is_built(),
        num_gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        has_nccl=dist.is_nccl_available(),
    )


def check_hardware(hardware: Hardware, index: int, num_ranks: int) -> None:
    """Refuses a node that cannot give each of its ranks a GPU.

    Raises:
        ConfigError: what is missing.
    """
    asked = 'device.backend = "cuda"'
    if not hardware.is_built:
        raise ConfigError(f"{asked} needs a torch built with CUDA, given {torch.__version__}")
    if not hardware.num_gpus:
        raise ConfigError(f"{asked} needs a GPU, torch finds none (driver, CUDA_VISIBLE_DEVICES?)")
    if not hardware.has_nccl:
        raise ConfigError(f"{asked} needs a torch with NCCL, {torch.__version__} has none")
    if max(index + 1, num_ranks) > hardware.num_gpus:
        raise ConfigError(
            f"{asked} needs a GPU for each of the {max(index + 1, num_ranks)} ranks of this node, "
            f"given {hardware.num_gpus}"
        )


def check_total(memory_bytes: float, total: float, name: str) -> None:
    """Refuses a configuration that promises more memory than a device has.

    Raises:
        ConfigError: `cluster.memory_bytes` is larger than `total`.
    """
    if memory_bytes > total:
        raise ConfigError(
            f"cluster.memory_bytes must be at most what a device has, {total:.4g} ({name}), given {memory_bytes:.4g}"
        )


def described(properties: object) -> str:
    """One line on a GPU for the log: name, memory, capability, and what tells it from its neighbours."""
    names = ("name", "total_memory", "major", "minor", "uuid", "pci_bus_id")
    known = {name: getattr(properties, name, None) for name in names}
    return (
        f"{known['name']}, {(known['total_memory'] or 0) / 1e9:.0f} GB, capability {known['major']}.{known['minor']}, "
        f"uuid {known['uuid'] or 'unknown'}, PCI bus {known['pci_bus_id'] or 'unknown'}"
    )
