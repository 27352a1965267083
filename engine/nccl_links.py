"""Links for tensors on GPUs: boundary tensors between stages, in groups of NCCL.

NCCL knows no tags and runs the operations of a communicator one after the other, a send until its
receiver has come. In the alternating part of 1F1B a stage sends an activation to the next stage and
then receives a gradient from it, while the next stage sends that gradient before it receives that
activation: one after the other, both would wait for ever. So two things must hold, and tests prove
both on random pipelines without a GPU:

1. Order. Between two ranks the sends of one equal, in order, the receives of the other.
2. No circle. If every rank ran its operations strictly one by one in the order it posts them (TP
   collectives included, each send holding its rank until it is received), all would end. GPUs run
   streams more freely than that, so what ends here ends there.

Both hold because a send joins the receive that follows it wherever the schedule turns from forward to
backward or back (`engine.schedule.holds`): the two become one NCCL group, inside which the directions
progress together. Elsewhere, in warm-up and cool-down, a send is a group of its own and goes at once,
so filling the pipeline is not delayed. All groups run on the world's communicator, which must exist
before (`engine.backend` makes it).

Not for what sends first and receives later without such a schedule: the collectives of
`engine.collectives` that go by messages would wait in a circle here.
Source: Narayanan et al., SC 2021 (1F1B; its code joins the same pairs); NCCL user guide, "Point-to-point
communication" (a send and a receive that depend on each other belong in one group).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from engine.links import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One side of a message, as this rank posts it.

    Args:
        is_send: this rank sends `x` to `peer`; else it receives into `x`.
    """

    is_send: bool
    x: Tensor
    peer: int
    tag: int


def start_group(messages: Sequence[Message]) -> Sequence[dist.Work]:
    """Starts messages of the world as one group and returns handles that cover them."""
    return dist.batch_isend_irecv(
        [dist.P2POp(dist.isend if m.is_send else dist.irecv, m.x, m.peer, tag=m.tag) for m in messages]
    )


class NcclLinks:
    """Every message travels in a group, order alone tells messages apart.

    A receive is started when it is waited for, not when it is posted: NCCL would keep everything behind it
    waiting. A wait makes later work of the current stream wait; the host goes on.

    Args:
        start: starts messages as one group and returns handles that cover them.
    """

    def __init__(self, start: Callable[[Sequence[Message]], Sequence[dist.Work]] = start_group) -> None:
        self._start = start
        self._held: list[_Grouped] = []

    def send(self, x: Tensor, peer: int, tag: int = 0, *, joins_next: bool = False) -> Transfer:
        transfer = _Grouped(self, Message(is_send=True, x=x, peer=peer, tag=tag))
        if joins_next:
            self._held.append(transfer)
        else:
            self.start([transfer])
        return transfer

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        return _Grouped(self, Message(is_send=False, x=out, peer=peer, tag=tag))

    def close(self) -> None:
        """The process group has its own end."""

    def start(self, transfers: list[_Grouped]) -> None:
        """Starts transfers as one group, with the sends that are held."""
        together, self._held = [*self._held, *transfers], []
        works = list(self._start([transfer.message for transfer in together]))
        for transfer in together:
            transfer.works = works


class _Grouped:
    """A message of a group.

    Attributes:
        works: once the group has started, shared by its messages: each is waited for once, since gloo would
            wait for another message the second time.
    """

    __slots__ = ("_links", "message", "works")

    def __init__(self, links: NcclLinks, message: Message) -> None:
        self._links, self.message = links, message
        self.works: list[dist.Work] | None = None

    def wait(self) -> Tensor:
        if self.works is None:
            assert not self.message.is_send, "a send was held and no receive came"
            self._links.start([self])
        assert self.works is not None
        while self.works:
            self.works.pop().wait()
        return self.message.x
