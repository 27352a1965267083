"""Fingerprints of tensors that do not depend on who holds which part.

Each element is mixed with its position into 64 bits and the results are added modulo 2^64, so
partial sums of any partition add up to the same number. Equal digests before and after a switch
mean that every element arrived where it belongs, bit for bit (up to 64-bit collisions).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from engine.layout import Holdings, Layout, Span
from engine.shard import Shard

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = -4658895280553007687  # 0xBF58476D1CE4E5B9
_CHUNK_ELEMENTS = 1 << 15
SCRATCH_BYTES = 5 * 8 * _CHUNK_ELEMENTS
"""More than what `span_digests` needs beside the tensors: five 64-bit words for each element of a chunk."""

Digests = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Who holds copies of what, as far as digests need it.

    Args:
        primary: for each device the spans of which it is the first holder; together every element once.
        num_copies: holders of each element, by parameter.
    """

    primary: Mapping[int, frozenset[Span]]
    num_copies: tuple[int, ...]


def census(holdings: Holdings, order: Iterable[int], num_elements: Sequence[int]) -> Census:
    """Counts holders; the first is the first in `order` (plan order, in which TP ranks ascend).

    Args:
        num_elements: of each parameter.
    """
    covered, held = [0] * len(num_elements), [0] * len(num_elements)
    primary: dict[int, frozenset[Span]] = {}
    for device in order:
        first = []
        for span in sorted(holdings.get(device, ())):
            held[span.parameter] += span.num_elements
            if span.start == covered[span.parameter]:
                covered[span.parameter] = span.stop
                first.append(span)
        primary[device] = frozenset(first)
    assert covered == list(num_elements), "the first holders' spans tile every parameter"
    copies = tuple(total // number for total, number in zip(held, num_elements, strict=True))
    assert all(count * number == total for count, number, total in zip(copies, num_elements, held, strict=True))
    return Census(primary=primary, num_copies=copies)


def weight_census(layout: Layout) -> Census:
    """The census of a layout's weights. Optimizer state needs none: each element has one holder."""
    return census(layout.weights, layout.plan.active, [parameter.num_elements for parameter in layout.parameters])


def span_digests(pieces: Sequence[tuple[Span, Tensor]]) -> Tensor:
    """The digest of each span's elements, int64 `[len(pieces)]` on the CPU.

    Args:
        pieces: spans with their 1-D tensors, all of one dtype.
    """
    sums = torch.zeros(len(pieces), dtype=torch.int64)
    for rows in _chunks(pieces):
        sums.index_add_(0, torch.tensor([index for index, _, _ in rows]), _row_digests(rows))
    return sums


def local_table(shard: Shard, primary: frozenset[Span]) -> Tensor:
    """This rank's part of the digests, int64 `[1 + tensors, parameters]`.

    Row 0 sums the weights of which this rank is the first holder; then one row for each of
    `Shard.tensors`, all that is held. Summed over ranks they are digests of the whole tensors, the
    weights' row as often as there are copies.
    """
    rows = [torch.zeros(len(shard.layout.parameters), dtype=torch.int64)]
    for name, store in shard.tensors().items():
        sums = span_digests(list(zip(store.spans, store.tensors, strict=True)))
        rows.append(_by_parameter(store.spans, sums, len(rows[0])))
        if name == "weight":
            first = torch.tensor([span in primary for span in store.spans], dtype=torch.bool)
            rows[0] = _by_parameter(store.spans, sums * first, len(rows[0]))
    return torch.stack(rows)


def digests(table: Tensor, layout: Layout, num_copies: Sequence[int]) -> Digests:
    """`{parameter: {tensor: hex}}` from the table summed over all ranks; "diverged" where copies differ."""
    agree = table[1] == table[0] * torch.tensor(num_copies)
    rows = [table[0].tolist(), *table[2:].tolist()]
    names = ("weight", "master", "exp_avg", "exp_avg_sq")
    return {
        parameter.name: {
            name: as_hex(row[parameter.index]) if name != "weight" or agree[parameter.index] else "diverged"
            for name, row in zip(names, rows, strict=True)
        }
        for parameter in layout.parameters
    }


def shard_digests(shard: Shard) -> Digests:
    """Digests over all ranks of every parameter's weight, master, exp_avg and exp_avg_sq.

    A weight that several devices hold must be equal on all of them: its digest is that of the first
    holders, and the sum over all holders must be as many times as large; else it shows as "diverged".

    Collective: all ranks of the world.
    """
    counted = weight_census(shard.layout)
    table = local_table(shard, counted.primary.get(shard.device, frozenset()))
    dist.all_reduce(table)
    return digests(table, shard.layout, counted.num_copies)


def as_hex(value: int) -> str:
    """A digest as 16 digits."""
    return f"{value & ((1 << 64) - 1):016x}"


def _chunks(pieces: Sequence[tuple[Span, Tensor]]) -> Iterator[list[tuple[int, int, Tensor]]]:
    """Rows of (index of the piece, first position, elements), together at most a chunk each."""
    rows: list[tuple[int, int, Tensor]] = []
    room = _CHUNK_ELEMENTS
    for index, (span, tensor) in enumerate(pieces):
        offset = 0
        while offset < span.num_elements:
            part = tensor[offset : offset + room]
            rows.append((index, span.start + offset, part))
            offset, room = offset + len(part), room - len(part)
            if not room:
                yield rows
                rows, room = [], _CHUNK_ELEMENTS
    if rows:
        yield rows


def _row_digests(rows: Sequence[tuple[int, int, Tensor]]) -> Tensor:
    bits = torch.cat([part.detach().view(_BITS[part.element_size()]) for _, _, part in rows]).to(torch.int64)
    lengths = torch.tensor([len(part) for _, _, part in rows], device=bits.device)
    ends = lengths.cumsum(0)
    starts = torch.tensor([start for _, start, _ in rows], device=bits.device) - (ends - lengths)
    position = torch.arange(1, len(bits) + 1, device=bits.device)
    position += starts.repeat_interleave(lengths, output_size=len(bits))
    mixed = bits.add_(position, alpha=_GOLDEN).mul_(_ODD)
    mixed.bitwise_xor_(mixed >> 31).mul_(_GOLDEN)
    running = mixed.bitwise_xor_(mixed >> 29).cumsum_(0)
    totals = running[ends - 1].cpu()
    totals[1:] -= totals[:-1].clone()
    return totals


def _by_parameter(spans: Sequence[Span], sums: Tensor, num_parameters: int) -> Tensor:
    indices = torch.tensor([span.parameter for span in spans], dtype=torch.int64)
    return torch.zeros(num_parameters, dtype=torch.int64).index_add_(0, indices, sums)
