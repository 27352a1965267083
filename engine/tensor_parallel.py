"""Tensor parallelism inside one group: the two collectives of a block, and what lies between them.

`copy` is the identity forward and sums gradients backward; `reduce` sums forward and is the identity
backward (Megatron-LM's f and g). Both end the running compute segment before they communicate, so a
device's clock never counts waiting for its peers.

Collective: every member of the group calls them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.clock import Clock
from engine.collectives import all_reduce_by_doubling, all_reduce_in_group
from engine.data.batch import IGNORED
from engine.links import Links, TorchLinks
from engine.step_trace import Recorder


class TensorParallel:
    """One rank's view of its group.

    Args:
        ranks: the members' world ranks in order of TP rank; `rank`: this member's position.
        links: to the other members and to other stages' ranks.
        group: reduces in this process group; without one, by messages over `links`.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        rank: int,
        clock: Clock,
        links: Links | None = None,
        recorder: Recorder | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.ranks, self.rank, self.clock, self._group = ranks, rank, clock, group
        self.links, self.recorder = links or TorchLinks(), recorder or Recorder()

    @property
    def degree(self) -> int:
        return len(self.ranks)

    def copy(self, x: Tensor) -> Tensor:
        """Before column-parallel matrices."""
        result: Tensor = _Copy.apply(x, self)
        return result

    def reduce(self, x: Tensor) -> Tensor:
        """After row-parallel matrices."""
        result: Tensor = _Reduce.apply(x, self)
        return result

    def all_reduce(self, x: Tensor, combine: Callable[[Tensor, Tensor], Tensor] = torch.add) -> Tensor:
        """Between two compute segments."""
        work = self.clock.stop()
        if self.degree > 1:
            with self.recorder.span("all-reduce", "tp"):
                if self._group is None:
                    x = all_reduce_by_doubling(x, self.ranks, self.rank, combine, self.links)
                else:
                    x = all_reduce_in_group(x, combine, self._group)
        self.clock.start(work)
        return x


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.tp.all_reduce(grad.contiguous()), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        return tp.all_reduce(x.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy over tokens, logits cut over the vocabulary.

    Shapes: logits `[tokens, vocab / n]`, targets `[tokens]`; returns a scalar sum. Tokens whose target
    is `IGNORED` add nothing, and get no gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: TensorParallel) -> Tensor:
        peak = tp.all_reduce(logits.detach().max(dim=1).values, torch.maximum)
        exp = (logits - peak[:, None]).exp()
        local = targets - tp.rank * logits.shape[1]
        is_here = (local >= 0) & (local < logits.shape[1])
        local = torch.where(is_here, local, 0)
        picked = torch.where(is_here, logits.gather(1, local[:, None]).squeeze(1) - peak, 0.0)
        total, picked = tp.all_reduce(torch.stack([exp.sum(dim=1), picked]))
        is_ignored = targets == IGNORED
        ctx.save_for_backward(exp.div_(total.masked_fill(is_ignored, torch.inf)[:, None]), local, is_here)
        return (total.log() - picked).masked_fill(is_ignored, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        softmax, local, is_here = ctx.saved_tensors
        result = softmax * grad
        result[torch.arange(len(local), device=local.device), local] -= grad * is_here
        return result, None, None
