"""The point-to-point messages of one round of a migration, on one rank.

All ranks list the messages of a round in the same order and cut the list into the same batches; each posts those
of a batch that it sends or receives. Long pieces travel straight from tensor to tensor; short ones of a pair of ranks
share a packet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from engine.layout import Span
from engine.rounds import DIRECT_BYTES
from engine.spans import SpanTensors
from engine.transfers import Transfer

MAX_IN_FLIGHT = 120

_Piece = tuple[Span, SpanTensors, SpanTensors]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """From one rank to another; what travels is known to these two."""

    sender: int
    receiver: int
    tensor: Tensor | None


def batches(messages: Iterable[Message]) -> list[list[Message]]:
    """The messages, in their order, cut so that no rank has more than `MAX_IN_FLIGHT` of a batch."""
    cut: list[list[Message]] = [[]]
    counts: Counter[int] = Counter()
    for message in messages:
        if max(counts[message.sender], counts[message.receiver]) == MAX_IN_FLIGHT:
            cut.append([])
            counts.clear()
        cut[-1].append(message)
        counts.update((message.sender, message.receiver))
    return cut


class Shipment:
    """What one rank sends and receives in a round.

    A rank posts a batch when its part of the one before has ended. Both ends of a message post it in the same
    batch, so one-sided and lopsided rounds end too: of the first batch that has not ended, all messages get
    posted. NCCL runs a batch as one group, and groups match.

    Collective: all ranks of the world, each `add` with equal transfers, then `post`, `wait`, `deliver`.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._direct: list[Message] = []
        self._packets: dict[tuple[int, int, str], list[_Piece]] = {}
        self._landed: list[tuple[list[_Piece], Tensor]] = []
        self._waiting: list[list[dist.P2POp]] = []
        self._posted: list[dist.Work] = []

    def add(self, moves: Sequence[Transfer], source: SpanTensors, target: SpanTensors, *, is_packed: bool) -> None:
        """Takes up the transfers that cross between ranks."""
        for move in moves:
            if move.source == move.target:
                continue
            is_here = self._device in (move.source, move.target)
            if is_packed and move.span.num_elements * target.dtype.itemsize < DIRECT_BYTES:
                pieces = self._packets.setdefault((move.source, move.target, str(target.dtype)), [])
                if is_here:
                    pieces.append((move.span, source, target))
            else:
                held = source if move.source == self._device else target
                tensor = held.view(move.span) if is_here else None
                self._direct.append(Message(sender=move.source, receiver=move.target, tensor=tensor))

    def post(self) -> None:
        """Starts the first messages."""
        packed = [
            self._packed(*key[:2], pieces) for key, pieces in sorted(self._packets.items(), key=lambda item: item[0])
        ]
        for batch in batches([*self._direct, *packed]):
            if here := [message for message in batch if message.tensor is not None]:
                self._waiting.append([self._operation(message) for message in here])
        self._post_some()

    def wait(self) -> None:
        """Returns when everything has been sent and received; on GPUs later work of the current stream waits."""
        while self._posted:
            for work in self._posted:
                work.wait()
            self._post_some()

    def deliver(self) -> None:
        """Unpacks what came in packets, and lets go of all buffers."""
        for pieces, packet in self._landed:
            parts = packet.split([span.num_elements for span, _, _ in pieces])
            for (span, _, target), part in zip(pieces, parts, strict=True):
                target.view(span).copy_(part)
        self._direct, self._packets, self._landed = [], {}, []

    def _packed(self, sender: int, receiver: int, pieces: list[_Piece]) -> Message:
        packet: Tensor | None = None
        if sender == self._device:
            packet = torch.cat([source.view(span) for span, source, _ in pieces])
        elif receiver == self._device:
            landing, size = pieces[0][2], sum(span.num_elements for span, _, _ in pieces)
            packet = torch.empty(size, dtype=landing.dtype, device=landing.torch_device)
            self._landed.append((pieces, packet))
        return Message(sender=sender, receiver=receiver, tensor=packet)

    def _operation(self, message: Message) -> dist.P2POp:
        assert message.tensor is not None
        if message.sender == self._device:
            return dist.P2POp(dist.isend, message.tensor, message.receiver)
        return dist.P2POp(dist.irecv, message.tensor, message.sender)

    def _post_some(self) -> None:
        self._posted = dist.batch_isend_irecv(self._waiting.pop(0)) if self._waiting else []
