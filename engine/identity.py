"""How a rank introduces itself."""

from __future__ import annotations

import os
import socket

from db.messages import DeviceInfo


def identity(device: int, devices_per_node: int, backend: str) -> DeviceInfo:
    """This process as a device; the device's number is its rank.

    Args:
        backend: what computes, `emulated` or `cuda: NVIDIA H200`.
    """
    return DeviceInfo(
        device=device,
        node=device // devices_per_node,
        rank=device,
        pid=os.getpid(),
        host=socket.gethostname(),
        backend=backend,
    )
