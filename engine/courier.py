"""Boundary tensors between stages: who posts what, in which order, on which transport.

Gloo matches messages by tag and never lets a posted send hold up anything, so `TaggedCourier` sends at
once. NCCL knows no tags and runs the operations of a communicator one after the other, a send until
its receiver has come. In the alternating part of 1F1B a stage sends an activation to the next stage
and then receives a gradient from it, while the next stage sends that gradient before it receives that
activation: one after the other, both would wait for ever. So two things must hold on NCCL, and tests
prove both on random pipelines without a GPU:

1. Order. Between two ranks the sends of one equal, in order, the receives of the other.
2. No circle. If every rank ran its operations strictly one by one in the order it posts them (TP
   collectives included, each send holding its rank until it is received), all would end. GPUs run
   streams more freely than that, so what ends here ends there.

`GroupedCourier` gets both by joining a send with the receive that follows it wherever the schedule
turns from forward to backward or back (`holds`): the two become one NCCL group, inside which the
directions progress together. Elsewhere, in warm-up and cool-down, a send is a group of its own and
goes at once, so filling the pipeline is not delayed. All groups run on the world's communicator,
which is the reason that it must exist before: `Backend.connect` makes it.
Source: Narayanan et al., SC 2021 (1F1B; its code joins the same pairs); NCCL user guide, "Point-to-point
communication" (a send and a receive that depend on each other belong in one group).

Collective: the functions here are called by sender and receiver, in the order of their schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from engine.schedule import Action


def holds(actions: Sequence[Action]) -> tuple[bool, ...]:
    """For each action whether what it sends joins the next action's receive.

    True where the kind changes: after a forward whose successor is a backward the send goes to the
    next stage and the receive comes from it, after a backward before a forward both concern the
    previous one. Each held send is therefore followed by a receive.
    """
    return tuple(
        index + 1 < len(actions) and actions[index + 1].kind != action.kind for index, action in enumerate(actions)
    )


class Transfer(Protocol):
    """A message on its way."""

    def wait(self) -> Tensor:
        """The tensor, once it has arrived, or once it may be overwritten on the sending side.

        On a GPU later work of the current stream waits for that; the host does not.
        """


class Courier(Protocol):
    """How a rank hands tensors to others.

    Attributes:
        is_holding: whether sends wait for the next receive (see `holds`).
    """

    is_holding: bool

    def send(self, x: Tensor, peer: int, tag: int = 0) -> Transfer:
        """Starts to send `x`, which must stay as it is until the transfer is done."""

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        """Says where a message of `peer` goes; between two ranks in the order of its sends."""


class TaggedCourier:
    """For gloo: everything is posted at once, the tag tells messages apart."""

    def __init__(self) -> None:
        self.is_holding = False

    def send(self, x: Tensor, peer: int, tag: int = 0) -> Transfer:
        return _Started(dist.isend(x, peer, tag=tag), x)

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        return _Started(dist.irecv(out, peer, tag=tag), out)


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


class GroupedCourier:
    """For NCCL: every message travels in a group, order alone tells messages apart.

    A receive is started when it is waited for, not when it is posted: NCCL would keep everything behind
    it waiting.

    Args:
        start: starts messages as one group and returns handles that cover them.
    """

    def __init__(self, start: Callable[[Sequence[Message]], Sequence[dist.Work]] = start_group) -> None:
        self.is_holding = False
        self._start = start
        self._held: list[_Grouped] = []

    def send(self, x: Tensor, peer: int, tag: int = 0) -> Transfer:
        transfer = _Grouped(self, Message(is_send=True, x=x, peer=peer, tag=tag))
        if self.is_holding:
            self._held.append(transfer)
        else:
            self.start([transfer])
        return transfer

    def post(self, out: Tensor, peer: int, tag: int = 0) -> Transfer:
        return _Grouped(self, Message(is_send=False, x=out, peer=peer, tag=tag))

    def start(self, transfers: list[_Grouped]) -> None:
        """Starts transfers as one group, with the sends that are held."""
        together, self._held = [*self._held, *transfers], []
        works = list(self._start([transfer.message for transfer in together]))
        for transfer in together:
            transfer.works = works


class _Started:
    __slots__ = ("_tensor", "_work")

    def __init__(self, work: dist.Work | None, tensor: Tensor) -> None:
        assert work is not None, "a rank sends nothing to itself"
        self._work, self._tensor = work, tensor

    def wait(self) -> Tensor:
        self._work.wait()
        return self._tensor


class _Grouped:
    """A message of a group.

    Attributes:
        works: once the group has started, shared by its messages: each is waited for once, since gloo would
            wait for another message the second time.
    """

    __slots__ = ("_courier", "message", "works")

    def __init__(self, courier: GroupedCourier, message: Message) -> None:
        self._courier, self.message = courier, message
        self.works: list[dist.Work] | None = None

    def wait(self) -> Tensor:
        if self.works is None:
            assert not self.message.is_send, "a send was held and no receive came"
            self._courier.start([self])
        assert self.works is not None
        while self.works:
            self.works.pop().wait()
        return self.message.x
