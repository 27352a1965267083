"""Collectives that the engine needs in its own shape, each in two ways.

By messages over `engine.links`, for emulated devices: an all-reduce by recursive doubling for the small
tensors of tensor parallelism, a reduce-scatter and an all-gather that are started first and waited for
later. In process groups, for GPUs: there ranks that all send first would wait in a circle.

torch 2.13 renames `all_gather_into_tensor` and `reduce_scatter_tensor`; the supported range has both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from engine.links import Links, Transfer

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(part: Tensor, size: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Every member's equally long 1-D `part`, one after the other. Collective in `group` of `size`."""
    whole = part.new_empty(len(part) * size)
    _gather(whole, part, group=group)
    return whole


def all_reduce_by_doubling(
    x: Tensor, ranks: tuple[int, ...], rank: int, combine: Callable[[Tensor, Tensor], Tensor], links: Links
) -> Tensor:
    """`x` combined over the ranks, by log2(n) pairwise exchanges; all receives are posted first.

    All members get bitwise the same result, because both sides of an exchange combine the same two
    values with a commutative operation.

    Collective: every one of `ranks`, a power of two many.

    Args:
        rank: this member's position in `ranks`.
    """
    peers = [ranks[rank ^ (1 << turn)] for turn in range((len(ranks) - 1).bit_length())]
    arriving = [links.post(x.new_empty(x.shape), peer) for peer in peers]
    for peer, other in zip(peers, arriving, strict=True):
        leaving = links.send(x, peer)
        combined = combine(x, other.wait())
        leaving.wait()
        x = combined
    return x


def world_sum(row: Tensor, links: Links) -> Tensor:
    """The sum of all ranks' small 1-D `row`, bitwise the same on every rank. Collective: all ranks of the world.

    Messages over links in worlds of 2, 4, 8, ... ranks, the process group's all-reduce in others.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if size & (size - 1):
        row = row.clone()
        dist.all_reduce(row)
        return row
    return all_reduce_by_doubling(row, tuple(range(size)), rank, torch.add, links)


class StartedReduceScatter:
    """A reduce-scatter on its way: each rank's part is the sum over all ranks, in their order.

    Collective: every one of `ranks`; between two ranks, started in the same order on both.

    Args:
        parts: what this rank contributes to each rank's part; empty parts are not sent.
        ranks, rank: the members, and this one.
    """

    def __init__(self, parts: Sequence[Tensor], ranks: tuple[int, ...], rank: int, links: Links, tag: int) -> None:
        self._own = parts[ranks.index(rank)]
        others = [(other, part) for other, part in zip(ranks, parts, strict=True) if other != rank]
        self._ranks, self._rank = ranks, rank
        self._arriving = {
            other: links.post(self._own.new_empty(len(self._own)), other, tag) for other, _ in others if len(self._own)
        }
        self._leaving = [links.send(part, other, tag) for other, part in others if len(part)]

    def wait(self) -> Tensor:
        """This rank's part."""
        total: Tensor | None = None
        for other in self._ranks:
            if other == self._rank or other in self._arriving:
                part = self._own if other == self._rank else self._arriving[other].wait()
                total = part if total is None else total + part
        for transfer in self._leaving:
            transfer.wait()
        assert total is not None
        return total


class StartedAllGather:
    """An all-gather on its way: every rank gets every rank's part.

    Collective: every one of `ranks`; between two ranks, started in the same order on both.

    Args:
        lengths: elements of each rank's part.
    """

    def __init__(
        self, own: Tensor, lengths: Sequence[int], ranks: tuple[int, ...], rank: int, links: Links, tag: int
    ) -> None:
        self._parts: list[Tensor | Transfer] = []
        self._leaving = []
        for other, length in zip(ranks, lengths, strict=True):
            if other == rank or not length:
                self._parts.append(own if other == rank else own.new_empty(0))
            else:
                self._parts.append(links.post(own.new_empty(length), other, tag))
            if other != rank and len(own):
                self._leaving.append(links.send(own, other, tag))

    def wait(self) -> list[Tensor]:
        """The parts in the order of the ranks."""
        parts = [part if isinstance(part, Tensor) else part.wait() for part in self._parts]
        for transfer in self._leaving:
            transfer.wait()
        return parts


_OPERATIONS: dict[Callable[[Tensor, Tensor], Tensor], dist.ReduceOp.RedOpType] = {
    torch.add: dist.ReduceOp.SUM,
    torch.maximum: dist.ReduceOp.MAX,
}


def all_reduce_in_group(x: Tensor, combine: Callable[[Tensor, Tensor], Tensor], group: dist.ProcessGroup) -> Tensor:
    """`x` combined over a process group, in a new tensor (autograd may still need `x`). Collective in `group`.

    Args:
        combine: `torch.add` or `torch.maximum`.
    """
    result = x.clone()
    dist.all_reduce(result, op=_OPERATIONS[combine], group=group)
    return result


def reduce_scatter_in_group(parts: Sequence[Tensor], rank: int, group: dist.ProcessGroup | None) -> Tensor:
    """This member's part of the sum of all members' 1-D `parts`, which are padded to one length on the way.

    Collective in `group`; without one there is nobody else.

    Args:
        parts: what this rank contributes to each member's part, members in the order of the group.
        rank: this member's position in it.
    """
    if group is None:
        return parts[rank]
    longest = max(len(part) for part in parts)
    part = parts[rank].new_empty(longest)
    _scatter(part, torch.cat([pad(part, (0, longest - len(part))) for part in parts]), group=group)
    return part[: len(parts[rank])]


def all_gather_in_group(own: Tensor, lengths: Sequence[int], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Every member's 1-D part, in the order of the group; padded to one length on the way.

    Collective in `group`; without one there is nobody else.

    Args:
        lengths: elements of each member's part.
    """
    if group is None:
        return [own]
    longest = max(lengths)
    rows = all_gather(pad(own, (0, longest - len(own))), len(lengths), group).chunk(len(lengths))
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]
