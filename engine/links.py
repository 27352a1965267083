"""Tensors from rank to rank, as messages: what tensor parallelism, pipelines and gradient sync send by.

    Links (interface)
    ├── TorchLinks               torch's point-to-point operations on the world group
    ├── socket_links.SocketLinks ranks on one Linux host, by socket; the rest through TorchLinks
    └── nccl_links.NcclLinks     tensors on GPUs, in groups of NCCL: boundary tensors of pipelines only

From one rank to another, messages arrive in the order in which they were sent, and the receives must
be posted in that order. The host never waits in `send`; a message may be sent before its receive is posted.
On the first two nothing more is asked. On NCCL the device does wait, so there the order of all messages of
all ranks matters (see `engine.nccl_links`). No group is promised, no barrier.
"""

from __future__ import annotations

from typing import Protocol

import torch.distributed as dist
from torch import Tensor


class Transfer(Protocol):
    """A message on its way."""

    def wait(self) -> Tensor:
        """The tensor, once it has arrived whole, or once it may be overwritten on the sending side.

        Raises:
            RuntimeError: the other rank is gone.
        """


class Links(Protocol):
    """One rank's links to all others."""

    def send(self, x: Tensor, peer: int, tag: int = 0, *, joins_next: bool = False) -> Transfer:
        """Starts to send a contiguous tensor, which must stay as it is until the transfer is done.

        Args:
            joins_next: the message may leave together with the next receive of this rank, and does
                where the two would otherwise wait for each other; one must follow.
        """

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        """Says where the next message of `peer` goes: a contiguous tensor of its shape and type."""

    def close(self) -> None:
        """Ends all links; who waits on one, on either side, gets an error."""


class TorchLinks:
    """Links over the world's process group; a message and its receive have equal tags."""

    def send(self, x: Tensor, peer: int, tag: int = 0, *, joins_next: bool = False) -> Transfer:
        return _TorchTransfer(dist.isend(x, peer, tag=tag), x)

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        return _TorchTransfer(dist.irecv(out, peer, tag=tag), out)

    def close(self) -> None:
        """The process group has its own end."""


class _TorchTransfer:
    __slots__ = ("_tensor", "_work")

    def __init__(self, work: dist.Work | None, tensor: Tensor) -> None:
        assert work is not None, "a rank has no link to itself"
        self._work, self._tensor = work, tensor

    def wait(self) -> Tensor:
        self._work.wait()
        return self._tensor
