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


class Courier(Protocol):
    """How a stage hands tensors to its neighbours.

    Args:
        is_holding: whether sends wait for the next receive (see `holds`).
    """

    is_holding: bool

    def send(self, x: Tensor, receiver: int, tag: int) -> None:
        """Posts `x`, which must not change until `finish`."""

    def receive(self, x: Tensor, sender: int, tag: int) -> None:
        """Fills `x`; on a GPU later work of the current stream waits for it, the host does not."""

    def finish(self) -> None:
        """All that was sent has left; called once after a step's last action."""


class TaggedCourier:
    """For gloo: sends at once, the tag tells messages apart."""

    def __init__(self) -> None:
        self.is_holding = False
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def send(self, x: Tensor, receiver: int, tag: int) -> None:
        work = dist.isend(x, dst=receiver, tag=tag)
        assert work is not None
        self._sending.append((work, x))

    def receive(self, x: Tensor, sender: int, tag: int) -> None:
        dist.recv(x, src=sender, tag=tag)

    def finish(self) -> None:
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()


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


def post_group(messages: Sequence[Message]) -> Sequence[dist.Work]:
    """Starts messages of the world as one group and returns handles that cover them."""
    return dist.batch_isend_irecv(
        [dist.P2POp(dist.isend if m.is_send else dist.irecv, m.x, m.peer, tag=m.tag) for m in messages]
    )


class GroupedCourier:
    """For NCCL: every message travels in a group, order alone tells messages apart.

    Args:
        post: starts messages as one group and returns handles that cover them.
    """

    def __init__(self, post: Callable[[Sequence[Message]], Sequence[dist.Work]] = post_group) -> None:
        self.is_holding = False
        self._post = post
        self._held: list[Message] = []
        self._sending: list[tuple[Sequence[dist.Work], Sequence[Message]]] = []

    def send(self, x: Tensor, receiver: int, tag: int) -> None:
        message = Message(is_send=True, x=x, peer=receiver, tag=tag)
        if self.is_holding:
            self._held.append(message)
        else:
            self._sending.append((self._post([message]), [message]))

    def receive(self, x: Tensor, sender: int, tag: int) -> None:
        messages, self._held = [*self._held, Message(is_send=False, x=x, peer=sender, tag=tag)], []
        for work in self._post(messages):
            work.wait()

    def finish(self) -> None:
        assert not self._held, f"{len(self._held)} sends were held and no receive came"
        for works, _ in self._sending:
            for work in works:
                work.wait()
        self._sending.clear()
