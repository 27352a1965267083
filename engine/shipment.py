"""The point-to-point messages of one round of a migration, on one rank.

All ranks list the messages of a round in the same order, each keeps those it sends or receives. Long pieces
travel straight from tensor to tensor; short ones of a pair of ranks share a packet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from engine.layout import Span
from engine.rounds import DIRECT_BYTES
from engine.spans import SpanTensors
from engine.transfers import Transfer

MAX_IN_FLIGHT = 120

_Piece = tuple[Span, SpanTensors, SpanTensors]


class Shipment:
    """What one rank sends and receives in a round.

    At most `MAX_IN_FLIGHT` messages are under way on a rank. Of all that have not ended, the first in the
    common order has been posted by both its ends, so one-sided and lopsided rounds end too.

    Collective: the ranks that a message names, each `add` with equal transfers, then `post`, `wait`, `deliver`.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._direct: list[tuple[Transfer, Tensor]] = []
        self._packets: dict[tuple[int, int, str], list[_Piece]] = {}
        self._landed: list[tuple[list[_Piece], Tensor]] = []
        self._waiting: list[dist.P2POp] = []
        self._posted: list[dist.Work] = []

    def add(self, moves: Sequence[Transfer], source: SpanTensors, target: SpanTensors, *, is_packed: bool) -> None:
        """Takes up the transfers that cross between ranks and begin or end here."""
        for move in moves:
            if move.source == move.target or self._device not in (move.source, move.target):
                continue
            if is_packed and move.span.num_elements * target.dtype.itemsize < DIRECT_BYTES:
                key = (move.source, move.target, str(target.dtype))
                self._packets.setdefault(key, []).append((move.span, source, target))
            else:
                self._direct.append((move, (source if move.source == self._device else target).view(move.span)))

    def post(self) -> None:
        """Starts the first messages."""
        for move, tensor in self._direct:
            self._line_up(move.source, move.target, tensor)
        for (sender, receiver, _), pieces in sorted(self._packets.items(), key=lambda item: item[0]):
            if sender == self._device:
                packet = torch.cat([source.view(span) for span, source, _ in pieces])
            else:
                landing, size = pieces[0][2], sum(span.num_elements for span, _, _ in pieces)
                packet = torch.empty(size, dtype=landing.dtype, device=landing.torch_device)
                self._landed.append((pieces, packet))
            self._line_up(sender, receiver, packet)
        self._post_some()

    def wait(self) -> None:
        """Returns when everything has been sent and received."""
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

    def _line_up(self, sender: int, receiver: int, tensor: Tensor) -> None:
        if sender == self._device:
            self._waiting.append(dist.P2POp(dist.isend, tensor, receiver))
        else:
            self._waiting.append(dist.P2POp(dist.irecv, tensor, sender))

    def _post_some(self) -> None:
        now, self._waiting = self._waiting[:MAX_IN_FLIGHT], self._waiting[MAX_IN_FLIGHT:]
        self._posted = dist.batch_isend_irecv(now) if now else []
