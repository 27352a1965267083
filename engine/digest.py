"""Fingerprints of tensors that do not depend on who holds which part.

Each element is mixed with its position into 64 bits and the results are added modulo 2^64, so
partial sums of any partition add up to the same number. Equal digests before and after a switch
mean that every element arrived where it belongs, bit for bit (up to 64-bit collisions).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from engine.layout import Layout
from engine.shard import Shard
from engine.spans import SpanTensors

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = -4658895280553007687  # 0xBF58476D1CE4E5B9


def shard_digests(shard: Shard) -> dict[str, dict[str, str]]:
    """`{parameter: {tensor: hex}}` over all ranks, for weight, master, exp_avg and exp_avg_sq.

    A weight that several devices hold must be equal on all of them: its digest is the sum over the
    holders, compared with holders times the digest of the first; a mismatch shows as "diverged".

    Collective: all ranks of the world.
    """
    layout = shard.layout
    names = list(shard.tensors())
    rows = torch.stack([_digest(store, len(layout.parameters)) for store in shard.tensors().values()])
    primary = _digest(_primary(shard), len(layout.parameters))
    table = torch.cat([rows, primary[None]]).cpu()
    dist.all_reduce(table)
    copies = torch.tensor(_copies(layout), dtype=torch.int64)
    agree = (table[0] == table[-1] * copies).tolist()
    table[0] = table[-1]
    return {
        parameter.name: {
            name: "diverged" if name == "weight" and not agree[parameter.index] else _hex(int(row[parameter.index]))
            for name, row in zip(names, table[: len(names)], strict=True)
        }
        for parameter in layout.parameters
    }


def _digest(store: SpanTensors, num_parameters: int) -> Tensor:
    """Digest of the held spans by parameter, int64 `[num_parameters]`."""
    sums = torch.zeros(num_parameters, dtype=torch.int64, device=store.torch_device)
    for span, tensor in zip(store.spans, store.tensors, strict=True):
        bits = tensor.detach().view(_BITS[tensor.element_size()]).to(torch.int64)
        places = torch.arange(span.start + 1, span.stop + 1, device=tensor.device)
        mixed = (bits + places * _GOLDEN) * _ODD
        mixed = (mixed ^ (mixed >> 31)) * _GOLDEN
        sums[span.parameter] += (mixed ^ (mixed >> 29)).sum()
    return sums


def _primary(shard: Shard) -> SpanTensors:
    """The weights for which this rank is the first holder: pipeline 0, and TP rank 0 of replicated ones."""
    place = shard.layout.places.get(shard.device)
    is_first = place is not None and place.pipeline_index == 0
    spans = [
        span
        for span in shard.weights.spans
        if is_first and place is not None and (shard.layout.parameters[span.parameter].is_sliced or place.tp_rank == 0)
    ]
    store = SpanTensors(spans, shard.weights.dtype, shard.torch_device)
    store.scatter(spans, shard.weights.gather(spans))
    return store


def _copies(layout: Layout) -> list[int]:
    """How many devices hold each element of each parameter's weight."""
    counts = [0] * len(layout.parameters)
    for _, _, stage in layout.plan.places():
        for parameter in layout.parameters:
            if parameter.is_on(stage.layers, layout.plan.num_layers):
                counts[parameter.index] += 1 if parameter.is_sliced else stage.tp_degree
    return counts


def _hex(value: int) -> str:
    return f"{value & ((1 << 64) - 1):016x}"
