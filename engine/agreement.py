"""How ranks agree: a text from one to all, a vote, and the exchange that ends every step.

Collective: every function here is called by all ranks of the world.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from engine.collectives import world_sum
from engine.links import Links


def broadcast_text(text: str, source: int = 0) -> str:
    """The text that rank `source` passes, on every rank."""
    data = text.encode() if dist.get_rank() == source else b""
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=source)
    if not int(size):
        return ""
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(buffer, src=source)
    return bytes(buffer.numpy()).decode()


def vote(problem: str) -> str:
    """The first problem that any rank has, the same on all; empty if every rank is ready."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first = torch.tensor([rank if problem else size])
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    return "" if int(first) == size else broadcast_text(problem, source=int(first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """What all ranks know after a step boundary.

    Args:
        desired_version: newest version that rank 0 has read.
        loss: mean over the global batch's tokens.
        num_samples, sum_samples: how many samples were consumed, and the sum of their ids.
        rates, compute_s: by device; NaN where nothing was measured.
    """

    desired_version: int
    loss: float
    num_samples: int
    sum_samples: int
    rates: tuple[float, ...]
    compute_s: tuple[float, ...]


def exchange(
    links: Links, *, desired_version: int, loss: float, samples: list[int], rate: float, compute_s: float
) -> Exchanged:
    """One all-reduce at a step boundary: each rank puts in its own, all get everything.

    Args:
        desired_version: newest version read, on rank 0; 0 elsewhere.
        loss: this rank's part of the mean loss; samples: ids that this rank consumed.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    row = torch.zeros(4 + 2 * size, dtype=torch.float64)
    row[:4] = torch.tensor([desired_version, loss, len(samples), sum(samples)], dtype=torch.float64)
    row[4 + rank], row[4 + size + rank] = rate, compute_s
    values = world_sum(row, links).tolist()
    return Exchanged(
        desired_version=int(values[0]),
        loss=values[1],
        num_samples=int(values[2]),
        sum_samples=int(values[3]),
        rates=tuple(values[4 : 4 + size]),
        compute_s=tuple(values[4 + size :]),
    )
