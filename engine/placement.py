"""Where tensors live, and how they get there and back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

CPU = torch.device("cpu")


def placed(x: Tensor, torch_device: torch.device) -> Tensor:
    """A tensor of the host on a device; the host does not wait for the copy.

    From memory that may be paged out, or with gaps, the driver would make it wait: so a dense, pinned
    copy is taken first (torch keeps it until the device has read it).
    """
    if torch_device.type == "cpu":
        return x
    return x.contiguous().pin_memory().to(torch_device, non_blocking=True)


def host_copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies in host memory, complete on return; from a device through pinned memory, all under way at once.

    Raises:
        RuntimeError: there is no memory for them.
    """
    copies, devices = [], set()
    for x in tensors:
        copy = torch.empty(x.shape, dtype=x.dtype, device=CPU, pin_memory=x.is_cuda)
        copies.append(copy.copy_(x, non_blocking=True))
        if x.is_cuda:
            devices.add(x.device)
    for device in devices:
        torch.cuda.synchronize(device)
    return copies
