"""Where tensors live, and how they get there."""

from __future__ import annotations

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
