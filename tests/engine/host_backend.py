"""The CUDA backend with the host in place of the GPU: all of its paths, none of CUDA's calls.

Messages in groups, collectives in process groups, event clock, busy kernel, medians; tensors on the CPU, gloo
under them. What is left for a machine with GPUs is in `test_cuda.py`.
"""

from __future__ import annotations

import time

import torch

from db.run_config import RunConfig
from engine.allocator import Allocator
from engine.backend import CudaBackend
from engine.cuda_clock import Event

CYCLES_PER_S = 2e9


class HostEvent:
    """Marks wall time; what was asked for is done at once."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: HostEvent, /) -> float:
        return (end_event.at_s - self.at_s) * 1e3


class HostBackend(CudaBackend):
    """No GPU is asked for."""

    process_groups = "gloo"

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.torch_device = torch.device("cpu")
        self.label = "cuda: host"
        self.repeated = self._medians

    def synchronize(self) -> None:
        pass

    def make_event(self) -> Event:
        return HostEvent()

    def spin(self, cycles: int) -> None:
        time.sleep(cycles / CYCLES_PER_S)

    def allocator(self) -> Allocator | None:
        return None
