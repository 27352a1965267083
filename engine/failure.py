"""A device that fails because somebody asked for it: its process dies as that of a lost device does.

The one that dies cannot say so afterwards, so rank 0 says it before. What follows is up to who started the ranks.
"""

from __future__ import annotations

import os
import signal

import torch.distributed as dist

from db.messages import Desired
from engine.agreement import vote
from engine.uplink import Uplink


def fail(document: Desired, uplink: Uplink | None, *, step: int) -> None:
    """Kills the process of the document's failing device once rank 0 has sent its last words.

    Collective: all ranks, at the same step boundary. The others come back, and meet the loss in their next collective.

    Args:
        document: with a failure that is meant for this attempt.
        uplink: on rank 0; None elsewhere. It is closed afterwards.
        step: the next step to run.
    """
    assert document.failure is not None
    device = document.failure.device
    if uplink:
        uplink.applied(document.version)
        uplink.set_state("failed", step=step, reason=f"device {device} failed on request")
        uplink.close()
    vote("")
    if dist.get_rank() == device:
        os.kill(os.getpid(), signal.SIGKILL)
