"""What a device's memory allocator tells of itself."""

from __future__ import annotations

from typing import Protocol

import torch


class Allocator(Protocol):
    """An allocator's figures, in bytes."""

    def allocated(self) -> int:
        """Given out now."""

    def start_peak(self) -> None:
        """Forgets the peaks, and returns unused blocks to the device."""

    def peak(self) -> int:
        """Most that was given out since `start_peak`."""

    def slack(self) -> int:
        """Most that was kept since `start_peak`, less most that was given out."""

    def outside(self) -> int:
        """Used on the device by anything but this allocator."""


class CudaAllocator:
    """torch's caching allocator on one GPU."""

    def __init__(self, torch_device: torch.device) -> None:
        self._device = torch_device

    def allocated(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.memory_allocated(self._device)

    def start_peak(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def slack(self) -> int:
        return max(0, torch.cuda.max_memory_reserved(self._device) - torch.cuda.max_memory_allocated(self._device))

    def outside(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return max(0, total - free - torch.cuda.memory_reserved(self._device))

    def free(self) -> int:
        """Can still be given out."""
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return torch.cuda.mem_get_info(self._device)[0] + unused
